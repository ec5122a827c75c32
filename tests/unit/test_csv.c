/* SPDX-License-Identifier: Apache-2.0 */
/* The CSV reader against files that people have: quotes, CRLF, a missing end, binaries, directories, hostile bytes. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/csv.h"

static char path[64];

static void write_file(const char *text, size_t n)
{
    int fd;

    snprintf(path, sizeof path, "/tmp/poise-test-csv-XXXXXX");
    fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert(write(fd, text, n) == (ssize_t)n);
    close(fd);
}

static int open_text(const char *text, size_t n, struct csv *csv, struct poise_err *err)
{
    int rc;

    write_file(text, n);
    memset(csv, 0, sizeof *csv);
    rc = csv_open(path, csv, err);
    unlink(path);
    return rc;
}
#define OPEN(literal, csv, err) open_text(literal, sizeof(literal) - 1, csv, err)

static void expect_row(struct csv *csv, uint64_t line, const char *first, const char *second)
{
    struct poise_err err = {0};
    int rc = csv_next(csv, &err);

    cr_assert(rc == 1, "rc %d %s", rc, err.text);
    cr_assert(csv->line == line, "line %lu", (unsigned long)csv->line);
    cr_assert_str_eq(csv->field[0], first);
    cr_assert_str_eq(csv->field[1], second);
    cr_assert_str_eq(csv->problem, "");
}

Test(csv, quotes_line_breaks_and_crlf)
{
    struct poise_err err = {0};
    struct csv csv;

    cr_assert(OPEN("\xef\xbb\xbfname, size \r\n\"a, \"\"b\"\"\",1\r\n\r\n\"two\nlines\",2\r\n,\r\nlast,\"\"", &csv,
                   &err) == 0,
              "%s", err.text);
    cr_assert(csv.n_columns == 2);
    cr_assert(csv_find(&csv, "name") == 0);
    cr_assert(csv_find(&csv, "size") == 1);
    cr_assert(csv_find(&csv, "Size") == -ENOENT);
    expect_row(&csv, 2, "a, \"b\"", "1");
    expect_row(&csv, 4, "two\nlines", "2");
    expect_row(&csv, 6, "", "");
    expect_row(&csv, 7, "last", "");
    cr_assert(csv_next(&csv, &err) == 0);
    cr_assert(csv_next(&csv, &err) == 0);
    csv_close(&csv);
    csv_close(&csv);
}

Test(csv, other_delimiters_and_old_line_ends)
{
    struct poise_err err = {0};
    struct csv csv;

    cr_assert(OPEN("a\tb;c\r1\t2;3\r", &csv, &err) == 0);
    expect_row(&csv, 2, "1", "2;3");
    csv_close(&csv);
    cr_assert(OPEN("a;b\n1,5;2\n", &csv, &err) == 0);
    expect_row(&csv, 2, "1,5", "2");
    csv_close(&csv);
    cr_assert(OPEN("a,\"b;c\"\n1,2;3\n", &csv, &err) == 0);
    expect_row(&csv, 2, "1", "2;3");
    csv_close(&csv);
}

Test(csv, a_bad_row_spoils_only_itself)
{
    struct poise_err err = {0};
    struct csv csv;

    cr_assert(OPEN("a,b\n1\n1,2,3\n\"x\"y,2\n3,4\n", &csv, &err) == 0);
    cr_assert(csv_next(&csv, &err) == 1);
    cr_assert_str_eq(csv.problem, "has fewer fields than the header");
    cr_assert_str_eq(csv.field[0], "1");
    cr_assert_str_eq(csv.field[1], "");
    cr_assert(csv_next(&csv, &err) == 1);
    cr_assert_str_eq(csv.problem, "has more fields than the header");
    cr_assert(csv_next(&csv, &err) == 1);
    cr_assert_str_eq(csv.problem, "text after a closing quote");
    expect_row(&csv, 5, "3", "4");
    csv_close(&csv);
}

Test(csv, what_is_no_csv_is_said_clearly)
{
    static const struct {
        const char *text;
        size_t n;
        const char *says;
    } cases[] = {
        {"", 0, "is empty"},
        {"\xef\xbb\xbf", 3, "is empty"},
        {"\n1,2\n", 5, "first line is empty"},
        {"640,480\n1,2\n", 12, "has no header"},
        {"PAR1....", 8, "Parquet"},
        {"\x1f\x8b\x08", 3, "gzip"},
        {"\xff\xfe"
         "a",
         3, "UTF-16"},
        {"a,b\n1,\0\n", 8, "zero byte at offset 6"},
        {"a\x01,b\n", 5, "control character 0x01"},
        {"a,\"b\n1,2\n", 9, "line 1: a quote is opened and never closed"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct poise_err err = {0};
        struct csv csv;
        int rc = open_text(cases[i].text, cases[i].n, &csv, &err);
        cr_expect(rc == -EINVAL && strstr(err.text, cases[i].says) && strstr(err.text, path), "case %zu: %d %s", i, rc,
                  err.text);
    }
}

Test(csv, directories_and_absent_files)
{
    struct poise_err err = {0};
    struct csv csv;

    cr_assert(csv_open("/tmp", &csv, &err) == -EISDIR);
    cr_assert(strstr(err.text, "/tmp is a directory"));
    cr_assert(csv_open("/nonexistent/x.csv", &csv, &err) == -ENOENT);
    cr_assert(strstr(err.text, "/nonexistent/x.csv"));
    cr_assert(csv_open("/dev/zero", &csv, &err) == -EINVAL); /* endless: refused at its first piece */
    cr_assert(csv_open("/dev/null", &csv, &err) == -EINVAL);
}

Test(csv, an_open_quote_names_its_line)
{
    struct poise_err err = {0};
    struct csv csv;

    cr_assert(OPEN("a,b\n1,2\n3,\"x\n4,5\n", &csv, &err) == 0);
    expect_row(&csv, 2, "1", "2");
    cr_assert(csv_next(&csv, &err) == -EINVAL);
    cr_assert(strstr(err.text, "line 3"), "%s", err.text);
    csv_close(&csv);
}

Test(csv, columns_that_stand_twice)
{
    struct poise_err err = {0};
    struct csv csv;
    char list[8];

    cr_assert(OPEN("a,b,a\n1,2,3\n", &csv, &err) == 0);
    cr_assert(csv_find(&csv, "a") == -EEXIST);
    cr_assert(csv_find(&csv, "b") == 1);
    cr_assert_str_eq(csv_list(&csv, list, sizeof list), "a, b, a");
    cr_assert_str_eq(csv_list(&csv, list, 5), "a, b");
    csv_close(&csv);
}

Test(csv, numbers)
{
    double number = -1;

    cr_assert(csv_number("640", 1e9, &number) == NULL && number == 640);
    cr_assert(csv_number(" 640.5 ", 1e9, &number) == NULL && number == 640.5);
    cr_assert(csv_number("1e3", 1e9, &number) == NULL && number == 1000);
    cr_assert(csv_number(".5", 1e9, &number) == NULL && number == 0.5);
    number = 7;
    cr_assert_str_eq(csv_number("", 1e9, &number), "is empty");
    cr_assert_str_eq(csv_number("  ", 1e9, &number), "is empty");
    cr_assert_str_eq(csv_number("-3", 1e9, &number), "is negative");
    cr_assert_str_eq(csv_number("NaN", 1e9, &number), "is not finite");
    cr_assert_str_eq(csv_number("inf", 1e9, &number), "is not finite");
    cr_assert_str_eq(csv_number("1e400", HUGE_VAL, &number), "is too large");
    cr_assert_str_eq(csv_number("11", 10, &number), "is too large");
    cr_assert_str_eq(csv_number("0x10", 1e9, &number), "is not a number");
    cr_assert_str_eq(csv_number("12px", 1e9, &number), "is not a number");
    cr_assert_str_eq(csv_number("1 2", 1e9, &number), "is not a number");
    cr_assert_str_eq(csv_number(".", 1e9, &number), "is not a number");
    cr_assert(number == 7);
}

/* Hostile bytes: never a crash, never a row after the end, every field inside the file. Under sanitizers this is a
 * proof. */
Test(csv, random_bytes)
{
    static const char alphabet[] = "ab1,,;\t\"\"\"\n\n\r. -x";
    unsigned seed = (unsigned)getpid();

    fprintf(stderr, "seed %u\n", seed);
    for (int round = 0; round < 300; round++) {
        struct poise_err err = {0};
        struct csv csv;
        char text[64];
        size_t n = (size_t)rand_r(&seed) % sizeof text;
        int rc, rows = 0;

        for (size_t i = 0; i < n; i++)
            text[i] = alphabet[(size_t)rand_r(&seed) % (sizeof alphabet - 1)];
        if (open_text(text, n, &csv, &err) < 0)
            continue;
        while ((rc = csv_next(&csv, &err)) == 1) {
            size_t bytes = 0;
            for (uint32_t i = 0; i < csv.n_columns; i++)
                bytes += strlen(csv.field[i]);
            cr_assert(bytes <= n && ++rows <= (int)n);
        }
        csv_close(&csv);
    }
}
