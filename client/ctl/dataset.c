/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads sizes of samples. A row that cannot be used is left out, counted, and named by its line and what is wrong with
 * it, never bent to fit: real files have images that a processor refuses, empty cells and NaN.
 */
#include "client/ctl/dataset.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/dataset_columns.h"
#include "client/ctl/sizes.h"
#include "daemon/planner/err.h"

#define MOST_LENGTH 4294967295.0 /* its square fits in 64 bits */
#define MOST_TEXT 1e9            /* with all images of a sample its square still fits */
#define MOST_SIDE 1e6            /* pixels */
#define MOST_FRAMES 1e8          /* 46 days at 24 a second */
#define MOST_SECONDS 1e7         /* 115 days */
#define MOST_TILES 1e6
#define MOST_BYTES 1e15
#define NTSC_A_SECOND 29.97 /* where a file has no column fps */

struct reader {
    struct csv csv;
    struct columns columns;
    struct dataset *data;
    uint64_t n_row_room, n_image_room;
};

void dataset_leave_out(struct dataset *data, uint64_t line, const char *reason)
{
    uint32_t i = 0;

    data->n_left_out++;
    while (i < data->n_reasons && strcmp(data->left_out[i].reason, reason) != 0)
        i++;
    if (i == DATASET_REASONS) {
        i--;
        snprintf(data->left_out[i].reason, sizeof data->left_out[i].reason, "and more");
    } else if (i == data->n_reasons) {
        snprintf(data->left_out[i].reason, sizeof data->left_out[i].reason, "%s", reason);
        data->n_reasons++;
    }
    if (data->left_out[i].n < DATASET_LINES)
        data->left_out[i].line[data->left_out[i].n] = line;
    data->left_out[i].n++;
}

/* ------------------------------------------------------------------------------------------------------- one row's
 * values */

/* A failure of a row: -EBADMSG, and the reason in text. Its size is that of a reason. */
static int bad_row(char *text, const char *column, const char *what)
{
    snprintf(text, sizeof((struct dataset_left_out *)0)->reason, "%.40s%s%s", column, *column ? " " : "", what);
    return -EBADMSG;
}

static int read_number(const struct reader *reader, int at, double most, double *ret_number, char *text)
{
    const char *what = csv_number(reader->csv.field[at], most, ret_number);

    return what ? bad_row(text, reader->csv.column[at], what) : 0;
}

/* Spreadsheets and data frames write whole numbers as 640.0 where a column has holes. */
static int read_whole(const struct reader *reader, int at, double most, uint64_t *ret_number, char *text)
{
    double number;
    int rc = read_number(reader, at, most, &number, text);

    if (rc == 0 && number != floor(number))
        rc = bad_row(text, reader->csv.column[at], "is not a whole number");
    if (rc == 0)
        *ret_number = (uint64_t)number;
    return rc;
}

/* An empty cell of text is a sample without it. */
static int read_text(const struct reader *reader, struct dataset_row *row, char *text)
{
    for (uint32_t i = 0; i < reader->columns.n_text; i++) {
        uint64_t tokens = 0;
        int rc = *reader->csv.field[reader->columns.text[i]]
                     ? read_whole(reader, reader->columns.text[i], MOST_TEXT / TEXT_COLUMNS, &tokens, text)
                     : 0;
        if (rc < 0)
            return rc;
        row->text += tokens;
    }
    return 0;
}

static int add_image(struct reader *reader, struct dataset_row *row, double width, double height, char *text)
{
    struct dataset *data = reader->data;
    struct sizes_image size;
    int rc;

    if (width < 1 || height < 1 || width != floor(width) || height != floor(height))
        return bad_row(text, "", "a side of an image is not a whole number of pixels");
    rc = sizes_image((uint32_t)width, (uint32_t)height, SIZES_Q1280, &size);
    if (rc == -EDOM)
        return bad_row(text, "", "an image has a side under 28 pixels, which processors refuse");
    if (rc < 0)
        return bad_row(text, "", "an image has a side more than 200 times the other, which processors refuse");
    if (data->n_images == reader->n_image_room) {
        uint64_t room = reader->n_image_room ? reader->n_image_room * 2 : 1024;
        struct dataset_image *images = realloc(data->images, room * sizeof *images);
        if (!images)
            return -ENOMEM;
        data->images = images;
        reader->n_image_room = room;
    }
    data->images[data->n_images++] = (struct dataset_image){(uint32_t)width, (uint32_t)height};
    row->n_images++;
    return 0;
}

/* Both sides empty or 0: a sample of text alone, if it has text. */
static int read_image(struct reader *reader, struct dataset_row *row, char *text)
{
    const int *at = reader->columns.at;
    const bool none = !*reader->csv.field[at[WIDTH]] && !*reader->csv.field[at[HEIGHT]];
    double width = 0, height = 0;
    int rc = 0;

    if (!none && (rc = read_number(reader, at[WIDTH], MOST_SIDE, &width, text)) == 0)
        rc = read_number(reader, at[HEIGHT], MOST_SIDE, &height, text);
    if (rc == 0 && (width > 0 || height > 0))
        return add_image(reader, row, width, height, text);
    if (rc == 0 && row->text == 0)
        rc = bad_row(text, "", "has neither an image nor text");
    return rc;
}

/* "1493x389;1250x317", also with spaces; empty: text alone. */
static int read_image_list(struct reader *reader, struct dataset_row *row, char *text)
{
    const char *column = reader->csv.column[reader->columns.at[IMAGE_SIZES]];
    char *words = reader->csv.field[reader->columns.at[IMAGE_SIZES]], *save = NULL, *word;
    int rc = 0;

    for (; rc == 0 && (word = strtok_r(words, "; ", &save)); words = NULL) {
        char *times = strpbrk(word, "xX");
        double width, height;
        if (!times)
            return bad_row(text, column, "is not a list WxH;WxH");
        *times = 0;
        if (csv_number(word, MOST_SIDE, &width) || csv_number(times + 1, MOST_SIDE, &height))
            return bad_row(text, column, "is not a list WxH;WxH");
        rc = add_image(reader, row, width, height, text);
    }
    if (rc == 0 && row->n_images == 0 && row->text == 0)
        rc = bad_row(text, "", "has neither an image nor text");
    return rc;
}

static int read_video(struct reader *reader, struct dataset_row *row, char *text)
{
    const int *at = reader->columns.at;
    uint64_t frames = 0;
    int rc = read_whole(reader, at[FRAMES], MOST_FRAMES, &frames, text);

    row->per_second = NTSC_A_SECOND;
    if (rc == 0 && at[PER_SECOND] >= 0)
        rc = read_number(reader, at[PER_SECOND], 1e6, &row->per_second, text);
    if (rc == 0 && row->per_second <= 0)
        rc = bad_row(text, reader->csv.column[at[PER_SECOND]], "is 0");
    if (rc == 0 && frames < 2)
        rc = bad_row(text, reader->csv.column[at[FRAMES]], "is under 2: a video has two frames at least");
    row->frames = (uint32_t)frames;
    return rc < 0 ? rc : read_image(reader, row, text);
}

static int read_length(struct reader *reader, struct dataset_row *row, char *text)
{
    int at = reader->columns.at[reader->columns.kind == DATASET_TILES ? TOKENS : LENGTH];
    uint64_t tiles = 0;
    int rc = read_whole(reader, at, reader->columns.n_text ? MOST_TEXT : MOST_LENGTH, &row->length, text);

    if (rc == 0 && reader->columns.kind == DATASET_TILES)
        rc = read_whole(reader, reader->columns.at[TILES], MOST_TILES, &tiles, text);
    row->tiles = (uint32_t)tiles;
    return rc;
}

static int read_row(struct reader *reader, struct dataset_row *row, char *text)
{
    const int *at = reader->columns.at;
    int rc = read_text(reader, row, text);

    if (rc == 0 && at[BYTES] >= 0)
        rc = read_whole(reader, at[BYTES], MOST_BYTES, &row->bytes, text);
    if (rc < 0)
        return rc;
    switch (reader->columns.kind) {
    case DATASET_IMAGE:
        return read_image(reader, row, text);
    case DATASET_IMAGES:
        return read_image_list(reader, row, text);
    case DATASET_VIDEO:
        return read_video(reader, row, text);
    case DATASET_AUDIO:
        return read_number(reader, at[SECONDS], MOST_SECONDS, &row->seconds, text);
    case DATASET_LENGTH:
    case DATASET_TILES:
        break;
    }
    return read_length(reader, row, text);
}

/* -------------------------------------------------------------------------------------------------------------- the
 * file */

static int add_row(struct reader *reader, struct poise_err *err)
{
    struct dataset *data = reader->data;
    struct dataset_row row = {.line = reader->csv.line, .first_image = data->n_images};
    char text[sizeof data->left_out[0].reason];
    int rc;

    if (data->n_rows == reader->n_row_room) {
        uint64_t room = reader->n_row_room ? reader->n_row_room * 2 : 1024;
        struct dataset_row *rows = realloc(data->rows, room * sizeof *rows);
        if (!rows)
            return err_set(err, -ENOMEM, "%s: no memory for more than %" PRIu64 " rows", reader->csv.path,
                           data->n_rows);
        data->rows = rows;
        reader->n_row_room = room;
    }
    rc = reader->csv.problem[0] ? bad_row(text, "", reader->csv.problem) : read_row(reader, &row, text);
    if (rc == -ENOMEM)
        return err_set(err, -ENOMEM, "%s: no memory for more than %" PRIu64 " images", reader->csv.path,
                       data->n_images);
    if (rc < 0) {
        data->n_images = row.first_image;
        dataset_leave_out(data, row.line, text);
        return 0;
    }
    data->n_text_only += row.n_images == 0 && (data->kind == DATASET_IMAGE || data->kind == DATASET_IMAGES);
    data->n_several_images += row.n_images > 1;
    data->rows[data->n_rows++] = row;
    return 0;
}

static int read_rows(struct reader *reader, struct poise_err *err)
{
    struct dataset *data = reader->data;
    int rc;

    data->kind = reader->columns.kind;
    data->has_text = reader->columns.n_text > 0;
    data->has_bytes = reader->columns.at[BYTES] >= 0;
    columns_text(&reader->csv, &reader->columns, data->columns, sizeof data->columns);
    while ((rc = csv_next(&reader->csv, err)) == 1) {
        data->n_read++;
        if ((rc = add_row(reader, err)) < 0)
            return rc;
    }
    if (rc == 0 && data->n_read == 0)
        rc = err_set(err, -EINVAL, "%s has a header and no row", reader->csv.path);
    if (rc == 0 && data->n_rows == 0)
        rc = err_set(err, -EINVAL, "%s: none of its %" PRIu64 " rows can be used. Line %" PRIu64 ": %s",
                     reader->csv.path, data->n_read, data->left_out[0].line[0], data->left_out[0].reason);
    return rc;
}

int dataset_read(const char *path, const char *columns, struct dataset *ret_data, struct poise_err *err)
{
    struct dataset data = {0};
    struct reader reader = {.data = &data};
    int rc = csv_open(path, &reader.csv, err);

    if (rc < 0)
        return rc;
    rc = columns_find(&reader.csv, columns, &reader.columns, err);
    if (rc == 0)
        rc = read_rows(&reader, err);
    csv_close(&reader.csv);
    if (rc < 0) {
        dataset_free(&data);
        return rc;
    }
    *ret_data = data;
    return 0;
}

void dataset_free(struct dataset *data)
{
    free(data->rows);
    free(data->images);
    memset(data, 0, sizeof *data);
}
