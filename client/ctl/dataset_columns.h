/* SPDX-License-Identifier: Apache-2.0 */
/* Which column of a file says what. Internal to the reading of datasets. */
#ifndef POISE_CTL_DATASET_COLUMNS_H
#define POISE_CTL_DATASET_COLUMNS_H

#include "client/ctl/dataset.h"

enum role { LENGTH, WIDTH, HEIGHT, IMAGE_SIZES, FRAMES, PER_SECOND, TILES, TOKENS, SECONDS, TEXT, BYTES, N_ROLES };

#define TEXT_COLUMNS 4 /* that are summed: question, answer ... */

struct columns {
    int at[N_ROLES];        /* index in the file; -1: none */
    int text[TEXT_COLUMNS]; /* all columns of TEXT */
    uint32_t n_text;
    enum dataset_kind kind;
};

/* From the header and --columns. Errors list what there is. */
int columns_find(const struct csv *csv, const char *option, struct columns *ret_columns, struct poise_err *err);

/* "width, height, prompt_tokens + answer_tokens": those that its kind uses. */
void columns_text(const struct csv *csv, const struct columns *columns, char *text, size_t n_text);

#endif
