/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of sizes from a file that somebody else wrote. What makes the whole file unusable (a directory, a Parquet
 * file, no header, a quote that swallows the rest) is an error with its line; what spoils one row is said of that row,
 * and the next one is read. The file is held in memory and its fields are unquoted in place: a size list is small, and
 * a pipe works too.
 */
#include "client/ctl/csv.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/planner/err.h"

#define MOST_BYTES (2ull << 30) /* 40 million rows: more is not a list of sizes but a data set */
#define MOST_COLUMNS 4096u      /* more is not a header */

/* ------------------------------------------------------------------------------------------------------------ the file
 */

/* What people pass by mistake, by its first bytes. NULL: not known. */
static const char *known_binary(const char *text, size_t n)
{
    static const struct {
        const char *magic;
        size_t n;
        const char *what;
    } known[] = {
        {"PAR1", 4, "a Parquet file: write its columns to a CSV file"},
        {"\x1f\x8b", 2, "compressed with gzip: unpack it first"},
        {"\x28\xb5\x2f\xfd", 4, "compressed with zstd: unpack it first"},
        {"PK\x03\x04", 4, "a zip or spreadsheet file: save it as CSV"},
        {"\xff\xfe", 2, "UTF-16 text: save it as UTF-8"},
        {"\xfe\xff", 2, "UTF-16 text: save it as UTF-8"},
        {"SQLite format 3", 15, "a database: write its columns to a CSV file"},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (n >= known[i].n && !memcmp(text, known[i].magic, known[i].n))
            return known[i].what;
    return NULL;
}

/* Looks at each piece as it comes, so that an endless device is refused at once. */
static int check_text(const struct csv *csv, size_t n_before, size_t n, struct poise_err *err)
{
    const char *what = known_binary(csv->text, n_before + n);
    const char *zero = memchr(csv->text + n_before, 0, n);

    if (what)
        return err_set(err, -EINVAL, "%s is %s", csv->path, what);
    if (zero)
        return err_set(err, -EINVAL, "%s is binary, not a CSV file: it has a zero byte at offset %zu", csv->path,
                       (size_t)(zero - csv->text));
    return 0;
}

static int read_all(struct csv *csv, int fd, struct poise_err *err)
{
    size_t n = 0, room = 0;

    for (;;) {
        ssize_t got;
        int rc;

        if (n + 1 >= room) {
            char *text = realloc(csv->text, room = room ? room * 2 : 65536);
            if (!text)
                return err_set(err, -ENOMEM, "%s: no memory for its first %zu bytes", csv->path, room);
            csv->text = text;
        }
        got = read(fd, csv->text + n, room - n - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(err, -errno, "%s cannot be read: %s", csv->path, strerror(errno));
        if (got == 0)
            break;
        if ((rc = check_text(csv, n, (size_t)got, err)) < 0)
            return rc;
        n += (size_t)got;
        if (n > MOST_BYTES)
            return err_set(err, -EFBIG, "%s is larger than %llu bytes: a list of sizes is not", csv->path, MOST_BYTES);
    }
    csv->text[n] = 0;
    csv->at = csv->text;
    csv->end = csv->text + n;
    if (n >= 3 && !memcmp(csv->text, "\xef\xbb\xbf", 3)) /* a byte order mark, as spreadsheets write it */
        csv->at += 3;
    csv->next_line = 1;
    return csv->at < csv->end ? 0
                              : err_set(err, -EINVAL, "%s is empty: a header and a row a sample are needed", csv->path);
}

static int read_file(struct csv *csv, struct poise_err *err)
{
    struct stat st;
    int rc, fd = open(csv->path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_set(err, -errno, "%s cannot be opened: %s", csv->path, strerror(errno));
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        rc = err_set(err, -EISDIR, "%s is a directory: give a CSV file", csv->path);
    else
        rc = read_all(csv, fd, err);
    close(fd);
    return rc;
}

/* ------------------------------------------------------------------------------------------------------------- one row
 */

static bool at_line_end(const struct csv *csv)
{
    return csv->at == csv->end || *csv->at == '\n' || *csv->at == '\r';
}

static void pass_line_end(struct csv *csv)
{
    if (csv->at < csv->end && *csv->at == '\r')
        csv->at++;
    if (csv->at < csv->end && *csv->at == '\n')
        csv->at++;
    csv->next_line++;
}

/* Unquotes in place. The closing quote is always behind what was written, so nothing unread is overwritten. */
static int read_quoted(struct csv *csv, char **ret_out, struct poise_err *err)
{
    char *out = ++csv->at;
    uint64_t line = csv->next_line;

    for (; csv->at < csv->end; csv->at++) {
        if (*csv->at == '"' && csv->at[1] != '"') {
            csv->at++;
            *ret_out = out;
            return 0;
        }
        if (*csv->at == '"')
            csv->at++;
        csv->next_line += *csv->at == '\n';
        *out++ = *csv->at;
    }
    return err_set(err, -EINVAL, "%s line %" PRIu64 ": a quote is opened and never closed", csv->path, line);
}

/* Reads one field and what ends it. *ret_last: the row ends here. The field is cut at *ret_end by the caller, when the
 * character there has been read. */
static int read_field(struct csv *csv, char **ret_field, bool *ret_last, struct poise_err *err)
{
    char *out = csv->at;
    bool stray = false;
    int rc;

    *ret_field = csv->at;
    if (csv->at < csv->end && *csv->at == '"') {
        *ret_field = csv->at + 1;
        if ((rc = read_quoted(csv, &out, err)) < 0)
            return rc;
        stray = !at_line_end(csv) && *csv->at != csv->delimiter;
    }
    while (!at_line_end(csv) && *csv->at != csv->delimiter)
        *out++ = *csv->at++;
    if (stray && !csv->problem[0])
        snprintf(csv->problem, sizeof csv->problem, "text after a closing quote");
    *ret_last = at_line_end(csv);
    if (*ret_last)
        pass_line_end(csv);
    else
        csv->at++;
    *out = 0;
    return 0;
}

/* Reads a row of any width; keeps the first n_room fields. Returns their number, or a negative errno. */
static int64_t read_row(struct csv *csv, char **fields, uint32_t n_room, struct poise_err *err)
{
    uint32_t n = 0;
    bool last = false;

    csv->problem[0] = 0;
    csv->line = csv->next_line;
    while (!last) {
        char *field;
        int rc = read_field(csv, &field, &last, err);
        if (rc < 0)
            return rc;
        if (n < n_room)
            fields[n] = field;
        n++;
    }
    return n;
}

int csv_next(struct csv *csv, struct poise_err *err)
{
    int64_t n;

    while (csv->at < csv->end && at_line_end(csv))
        pass_line_end(csv);
    if (csv->at == csv->end)
        return 0;
    n = read_row(csv, csv->field, csv->n_columns, err);
    if (n < 0)
        return (int)n;
    for (uint32_t i = (uint32_t)n; i < csv->n_columns; i++)
        csv->field[i] = csv->end; /* "" */
    if (n != csv->n_columns)
        snprintf(csv->problem, sizeof csv->problem, "has %s fields than the header",
                 n < csv->n_columns ? "fewer" : "more");
    return 1;
}

/* ---------------------------------------------------------------------------------------------------------- the header
 */

/* A comma, unless the first line has none outside quotes and does have a tab or semicolon. */
static char find_delimiter(const struct csv *csv)
{
    bool quoted = false;
    char other = ',';

    for (const char *c = csv->at; c < csv->end && (quoted || (*c != '\n' && *c != '\r')); c++) {
        quoted ^= *c == '"';
        if (!quoted && *c == ',')
            return ',';
        if (!quoted && (*c == '\t' || *c == ';') && other == ',')
            other = *c;
    }
    return other;
}

static char *trim(char *text)
{
    size_t n;

    text += strspn(text, " \t");
    n = strlen(text);
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        text[--n] = 0;
    return text;
}

static int check_header(const struct csv *csv, struct poise_err *err)
{
    bool numbers = true;
    double number;

    for (uint32_t i = 0; i < csv->n_columns; i++) {
        numbers &= !csv_number(csv->column[i], HUGE_VAL, &number);
        for (const char *c = csv->column[i]; *c; c++)
            if (iscntrl((unsigned char)*c) && !isspace((unsigned char)*c))
                return err_set(err, -EINVAL, "%s is not a CSV file: its first line has the control character 0x%02x",
                               csv->path, (unsigned char)*c);
    }
    if (numbers)
        return err_set(err, -EINVAL, "%s has no header: its first line must name the columns, it begins with %.20s",
                       csv->path, csv->column[0]);
    return 0;
}

static int read_header(struct csv *csv, struct poise_err *err)
{
    int64_t n;

    csv->delimiter = find_delimiter(csv);
    csv->column = calloc(MOST_COLUMNS, sizeof *csv->column);
    if (!csv->column)
        return err_set(err, -ENOMEM, "%s: no memory for its header", csv->path);
    n = read_row(csv, csv->column, MOST_COLUMNS, err);
    if (n < 0)
        return (int)n;
    if (n > MOST_COLUMNS)
        return err_set(err, -EINVAL, "%s is not a CSV file: its first line has %" PRId64 " fields", csv->path, n);
    csv->n_columns = (uint32_t)n;
    if (csv->problem[0])
        return err_set(err, -EINVAL, "%s line 1: %s", csv->path, csv->problem);
    for (uint32_t i = 0; i < csv->n_columns; i++)
        csv->column[i] = trim(csv->column[i]);
    if (n == 1 && !csv->column[0][0])
        return err_set(err, -EINVAL, "%s has no header: its first line is empty, it must name the columns", csv->path);
    csv->field = calloc(csv->n_columns, sizeof *csv->field);
    if (!csv->field)
        return err_set(err, -ENOMEM, "%s: no memory for its header", csv->path);
    return check_header(csv, err);
}

int csv_open(const char *path, struct csv *ret_csv, struct poise_err *err)
{
    struct csv csv = {.path = strdup(path)};
    int rc = csv.path ? read_file(&csv, err) : err_set(err, -ENOMEM, "%.100s: no memory for its name", path);

    if (rc == 0)
        rc = read_header(&csv, err);
    if (rc < 0) {
        csv_close(&csv);
        return rc;
    }
    *ret_csv = csv;
    return 0;
}

void csv_close(struct csv *csv)
{
    free(csv->path);
    free(csv->text);
    free(csv->column);
    free(csv->field);
    memset(csv, 0, sizeof *csv);
}

int csv_find(const struct csv *csv, const char *name)
{
    int found = -ENOENT;

    for (uint32_t i = 0; i < csv->n_columns; i++)
        if (!strcmp(csv->column[i], name)) {
            if (found >= 0)
                return -EEXIST;
            found = (int)i;
        }
    return found;
}

const char *csv_list(const struct csv *csv, char *list, size_t n_list)
{
    size_t n = 0;

    list[0] = 0;
    for (uint32_t i = 0; i < csv->n_columns && n < n_list; i++)
        n += (size_t)snprintf(list + n, n_list - n, "%s%.60s", i ? ", " : "", csv->column[i]);
    return list;
}

const char *csv_number(const char *text, double most, double *ret_number)
{
    double number;
    char *end;

    text += strspn(text, " \t");
    if (!*text)
        return "is empty";
    if (!strncasecmp(text, "nan", 3) || !strncasecmp(text, "inf", 3))
        return "is not finite";
    if (text[0] == '-')
        return "is negative";
    if (!isdigit((unsigned char)text[text[0] == '+' || text[0] == '.']) || text[1] == 'x' || text[1] == 'X')
        return "is not a number";
    number = strtod(text, &end);
    if (end[strspn(end, " \t")])
        return "is not a number";
    if (!isfinite(number) || number > most)
        return "is too large";
    *ret_number = number;
    return NULL;
}
