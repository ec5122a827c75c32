/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo's samples: sizes of real images and texts from a CSV, dealt out to ranks and steps as a shuffling loader
 * would, the same way every time; what the planner thinks that they cost, and what they do cost. Rows that a Qwen2-VL
 * processor would refuse are left out and counted, never bent to fit.
 */
#include "client/ctl/demo.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/csv.h"
#include "client/ctl/sizes.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

#define SEED 20240229u          /* any number: the demo is the same every time */
#define MISTAKE_PPM 200000      /* the truth's coefficients differ from the planner's by up to 20 % */
#define TEXT_MOST 4096u         /* bytes of a caption: enough to see strings travel */
#define NUMBER_MOST 100000000.0 /* pixels of a side, tokens: no size of a sample is larger, and products fit */

enum { WIDTH, HEIGHT, PROMPT, ANSWER, TEXT_TOKENS, TEXT_CHARS, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"width",         "height",      "prompt_tokens",
                                                    "answer_tokens", "text_tokens", "text_chars"};

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* -------------------------------------------------------------------------------------------------------- the table */

static int find_columns(const char *path, const struct csv *csv, int columns[N_COLUMNS], struct poise_err *err)
{
    char list[256];

    for (int c = 0; c < N_COLUMNS; c++)
        columns[c] = csv_find(csv, column_names[c]);
    if (columns[WIDTH] < 0 || columns[HEIGHT] < 0)
        return err_set(err, -EINVAL,
                       "%s: it must have the columns width and height, and may have prompt_tokens, "
                       "answer_tokens, text_tokens, text_chars; there are: %s",
                       path, csv_list(csv, list, sizeof list));
    return 0;
}

/* An absent column or an empty field is 0. */
static bool read_field(const struct csv *csv, int column, uint32_t *ret_number)
{
    double number = 0;

    if (column >= 0 && *csv->field[column] &&
        (csv_number(csv->field[column], NUMBER_MOST, &number) || number != floor(number)))
        return false;
    *ret_number = (uint32_t)number;
    return true;
}

static void read_row(struct demo_data *data, const struct csv *csv, const int columns[N_COLUMNS])
{
    uint32_t value[N_COLUMNS];
    struct sizes_image image = {0};
    struct payload_size *size = &data->rows[data->n_rows].size;
    int rc = 0;

    for (int c = 0; c < N_COLUMNS; c++)
        if (csv->problem[0] || !read_field(csv, columns[c], &value[c])) {
            data->n_bad++;
            return;
        }
    if (value[WIDTH] || value[HEIGHT]) /* neither: a sample of text */
        rc = sizes_image(value[WIDTH], value[HEIGHT], SIZES_Q1280, &image);
    if (rc < 0) {
        *(rc == -EDOM ? &data->n_small : &data->n_thin) += 1;
        return;
    }
    size->grid_h = image.grid_h;
    size->grid_w = image.grid_w;
    size->prompt_tokens = value[PROMPT] + (image.tokens ? (uint32_t)image.tokens + SIZES_IMAGE_MARKERS : 0);
    size->answer_tokens = value[ANSWER] + value[TEXT_TOKENS];
    size->text_bytes = value[TEXT_CHARS] < TEXT_MOST ? value[TEXT_CHARS] : TEXT_MOST;
    if (payload_tokens(size) == 0)
        data->n_bad++;
    else
        data->n_rows++;
}

static int read_rows(const char *path, struct csv *csv, struct demo_data *data, struct poise_err *err)
{
    int columns[N_COLUMNS], rc = find_columns(path, csv, columns, err);
    size_t n_room = 0;

    if (rc < 0)
        return rc;
    while ((rc = csv_next(csv, err)) > 0) {
        if (data->n_rows == n_room) {
            struct demo_row *rows = realloc(data->rows, (n_room + 1) * 2 * sizeof *rows);
            if (!rows)
                return err_set(err, -ENOMEM, "%s: no memory after %u rows", path, data->n_rows);
            data->rows = rows;
            n_room = (n_room + 1) * 2;
        }
        read_row(data, csv, columns);
    }
    if (rc == 0 && data->n_rows == 0)
        rc = err_set(err, -EINVAL,
                     "%s has no row that can be used: %u have a side under 28 pixels, %u a ratio above 200, "
                     "%u no numbers",
                     path, data->n_small, data->n_thin, data->n_bad);
    return rc;
}

static void shuffle(struct demo_data *data)
{
    for (uint32_t i = data->n_rows - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(mix(SEED + i) % (i + 1));
        struct demo_row row = data->rows[i];
        data->rows[i] = data->rows[j];
        data->rows[j] = row;
    }
}

int demo_data_read(const char *path, struct demo_data *ret_data, struct poise_err *err)
{
    struct demo_data data = {0};
    uint32_t n_phases;
    struct csv csv;
    int rc = csv_open(path, &csv, err);

    if (rc < 0)
        return rc;
    rc = read_rows(path, &csv, &data, err);
    csv_close(&csv);
    if (rc == 0)
        rc = poise_preset(PAYLOAD_COST, data.phases, sizeof *data.phases, &n_phases, err);
    if (rc == 0 && n_phases != PAYLOAD_PHASES)
        rc = err_set(err, -EINVAL, "preset " PAYLOAD_COST " has %u phases, the demo's samples %d", n_phases,
                     PAYLOAD_PHASES);
    if (rc < 0) {
        free(data.rows);
        return rc;
    }
    memcpy(data.truth, data.phases, sizeof data.truth);
    shuffle(&data);
    *ret_data = data;
    return 0;
}

void demo_data_fini(struct demo_data *data)
{
    free(data->rows);
    data->rows = NULL;
}

/* -------------------------------------------------------------------------------------------------------- the truth */

static void spoil(uint64_t *coefficient, uint64_t seed)
{
    const uint64_t factor = 1000000 - MISTAKE_PPM + mix(seed) % (2 * MISTAKE_PPM + 1);

    *coefficient = *coefficient * factor / 1000000;
}

void demo_data_spoil(struct demo_data *data)
{
    for (uint32_t p = 0; p < PAYLOAD_PHASES; p++) {
        spoil(&data->truth[p].linear, SEED + p * 3);
        spoil(&data->truth[p].quadratic, SEED + p * 3 + 1);
        spoil(&data->truth[p].constant, SEED + p * 3 + 2);
    }
}

static int price(const struct demo_data *data, struct board_sample *sample, struct poise_err *err)
{
    const uint64_t length[PAYLOAD_PHASES] = {(uint64_t)payload_patches(&sample->size),
                                             (uint64_t)payload_tokens(&sample->size)};
    const uint64_t attention[PAYLOAD_PHASES] = {length[0] * length[0], length[1] * length[1]};
    uint64_t truth;
    int rc = plan_sample_cost(data->phases, PAYLOAD_PHASES, length, attention, &sample->cost, err);

    if (rc == 0)
        rc = plan_sample_cost(data->truth, PAYLOAD_PHASES, length, attention, &truth, err);
    if (rc == 0)
        sample->truth = (double)truth;
    return rc;
}

int demo_data_deal(const struct demo_data *data, struct board *board, struct poise_err *err)
{
    const struct board_head *head = board->head;
    const double n_rank_steps = (double)head->n_ranks * head->n_steps;
    double sum = 0;
    uint64_t next = 0;
    int rc = 0;

    for (uint64_t step = 0; step < head->n_steps; step++)
        for (uint32_t rank = 0; rank < head->n_ranks; rank++)
            for (uint32_t i = 0; i < head->n_samples; i++) {
                struct board_sample *sample = &board->samples[board_at(board, &(struct payload_origin){rank, i, step})];
                sample->size = data->rows[next++ % data->n_rows].size;
                sample->bytes = payload_bytes(&sample->size);
                rc = price(data, sample, err);
                if (rc < 0)
                    return rc;
                sum += sample->truth;
            }
    for (uint64_t i = 0; sum > 0 && i < next; i++)
        board->samples[i].truth *= n_rank_steps / sum;
    return 0;
}
