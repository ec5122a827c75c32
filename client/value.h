/* SPDX-License-Identifier: Apache-2.0 */
/* One field of one sample, wherever its bytes lie: what a submission holds, what a directory tells, what a micro-batch
 * takes. */
#ifndef POISE_CLIENT_VALUE_H
#define POISE_CLIENT_VALUE_H

#include <stdbool.h>

#include "proto/wire.h"

struct value {
    const void *data; /* C-contiguous; borrowed; may be NULL where it has no bytes */
    bool present;     /* false: the sample lacks this field; nothing else counts */
    uint32_t n_dims;
    int64_t shape[POISE_MAX_DIMS]; /* [n_dims] >= 0 */
};

/* Product of the shape times the element's size. -EOVERFLOW above 2^63 - 1 or for a negative axis; -EINVAL unknown
 * dtype or more than POISE_MAX_DIMS dims. */
int value_bytes(const struct value *value, uint32_t dtype, uint64_t *ret_bytes);

/*
 * Checks a value against its field's rule: number of dims, fixed axes, at most 2^63 - 1 bytes, and for PAD_FIXED that
 * no ragged axis is longer than pad_to. *ret_bytes (may be NULL): its bytes, 0 for an absent one. Errors: -EINVAL with
 * rank and sample (POISE_NONE: unknown) and the field.
 */
int value_check(const struct value *value, const struct wire_field *field, uint32_t rank, uint32_t sample,
                uint64_t *ret_bytes, struct poise_err *err);

/* A field's position in the table by its name, POISE_NONE: not there. What comes in is mostly in the table's order, so
 * the search begins at `hint`, where the last one ended. */
uint32_t value_field(const struct wire_table *table, const char *name, uint32_t hint);

#define VALUE_SHAPE_TEXT 192
/* "[1560, 1176]". Returns text. */
const char *value_shape_format(const int64_t *shape, uint32_t n_dims, char text[VALUE_SHAPE_TEXT]);

#define VALUE_NUMBER_TEXT 28
/* "1,560". Returns text. */
const char *value_number_format(uint64_t number, char text[VALUE_NUMBER_TEXT]);

#endif
