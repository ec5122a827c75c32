/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that comes in pieces from another node is written once, from the message to where the trainer reads it. A
 * sample travels as the bytes of its present fields in C order, by position in the merged table; a piece is any range
 * of that, so it may begin and end inside of a field, a row or an element. Padding does not travel: assemble_pad().
 */
#ifndef POISE_CLIENT_SCATTER_H
#define POISE_CLIENT_SCATTER_H

#include "client/value.h"

struct scatter { /* where the next byte of a sample goes */
    const struct wire_table *table;
    const struct value *values;         /* [n_fields] of the sample: data is not looked at */
    const struct poise_tensor *tensors; /* [n_fields] its views in the slot */
    uint32_t field;
    uint64_t offset; /* in that field */
};

/* At byte `offset` of the sample. */
void scatter_begin(struct scatter *at, const struct wire_table *table, const struct value *values,
                   const struct poise_tensor *tensors, uint64_t offset);

/* Writes at most n_bytes and goes on by them. Returns how many: less where the sample ends. */
uint64_t scatter_put(struct scatter *at, const void *bytes, uint64_t n_bytes);

/* Writes the bytes [offset, offset + n_bytes) of a tensor, counted in C order; they are inside of it. */
void scatter_tensor(const struct poise_tensor *tensor, uint64_t offset, const void *bytes, uint64_t n_bytes);

#endif
