/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows tied to a grid (struct poise_field.rows_of): a field's first axis must be the sum over the grid's rows of the
 * product of its columns, each divided by its divisor. Found at submit, before a byte moves.
 */
#ifndef POISE_CLIENT_GRID_H
#define POISE_CLIENT_GRID_H

#include "client/value.h"

/* The rows that a grid says; an absent grid says 0. Errors, with rank and sample: -EINVAL not integers, not
 * 2-dimensional, a negative number, one that its divisor does not divide, above 2^63 - 1. */
int grid_rows(const struct wire_field *field, const struct wire_field *grid, const struct value *grid_value,
              uint32_t rank, uint32_t sample, uint64_t *ret_rows, struct poise_err *err);

/* -EINVAL "pixel_values has 1,560 rows, image_grid_thw says 1,564". An absent field has 0 rows. */
int grid_check(const struct wire_field *field, const struct value *value, const struct wire_field *grid,
               const struct value *grid_value, uint32_t rank, uint32_t sample, struct poise_err *err);

#endif
