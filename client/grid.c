/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads grids of any integer type at any address, multiplies and adds with overflow checks, and says both numbers where
 * a field and its grid do not agree: this is the most common mistake of a loader, so its text must be enough to find
 * it.
 */
#include "client/grid.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/planner/err.h"

/* An unsigned number above 2^63 - 1 becomes negative, and is refused as such. */
#define READ(type)                                                                           \
    {                                                                                        \
        type number;                                                                         \
        memcpy(&number, (const unsigned char *)data + index * sizeof number, sizeof number); \
        return (int64_t)number;                                                              \
    }

static bool is_integer(uint32_t dtype)
{
    return dtype >= POISE_U8 && dtype <= POISE_I64;
}

/* Element `index`; data may be unaligned. */
static int64_t read_integer(const void *data, uint32_t dtype, uint64_t index)
{
    switch (dtype) {
    case POISE_U8:
        READ(uint8_t)
    case POISE_I8:
        READ(int8_t)
    case POISE_U16:
        READ(uint16_t)
    case POISE_I16:
        READ(int16_t)
    case POISE_U32:
        READ(uint32_t)
    case POISE_I32:
        READ(int32_t)
    case POISE_U64:
        READ(uint64_t)
    case POISE_I64:
        READ(int64_t)
    default:
        return -1;
    }
}

/* One number of the grid, divided. */
static int read_cell(const struct wire_field *field, const struct wire_field *grid, const struct value *value,
                     uint64_t row, uint64_t column, uint32_t rank, uint32_t sample, uint64_t *ret_number,
                     struct poise_err *err)
{
    uint32_t divisor = column < field->n_divisors && column < POISE_MAX_DIMS ? field->divisor[column] : 1;
    int64_t number = read_integer(value->data, grid->dtype, row * (uint64_t)value->shape[1] + column);

    if (number < 0)
        return err_set_at(err, -EINVAL, rank, sample, grid->name,
                          "%s, row %" PRIu64 ", column %" PRIu64 " is negative or above 2^63 - 1", grid->name, row,
                          column);
    if (divisor > 1 && number % divisor != 0)
        return err_set_at(err, -EINVAL, rank, sample, grid->name,
                          "%s, row %" PRIu64 ", column %" PRIu64 " is %" PRId64 ", which %" PRIu32 " does not divide",
                          grid->name, row, column, number, divisor);
    *ret_number = (uint64_t)number / (divisor ? divisor : 1);
    return 0;
}

static int check_shape(const struct wire_field *field, const struct wire_field *grid, const struct value *value,
                       uint32_t rank, uint32_t sample, struct poise_err *err)
{
    uint64_t bytes;

    if (!is_integer(grid->dtype) || value->n_dims != 2)
        return err_set_at(err, -EINVAL, rank, sample, grid->name,
                          "%s counts the rows of %s, so it must be 2-dimensional integers", grid->name, field->name);
    if (value_bytes(value, grid->dtype, &bytes) < 0 || (bytes > 0 && !value->data))
        return err_set_at(err, -EINVAL, rank, sample, grid->name, "%s has a shape or data that cannot be", grid->name);
    /* A grid of no columns has the empty product in each row: nobody means that. */
    if (value->shape[0] > 0 && value->shape[1] == 0)
        return err_set_at(err, -EINVAL, rank, sample, grid->name, "%s has no columns", grid->name);
    return 0;
}

int grid_rows(const struct wire_field *field, const struct wire_field *grid, const struct value *grid_value,
              uint32_t rank, uint32_t sample, uint64_t *ret_rows, struct poise_err *err)
{
    uint64_t rows = 0, number = 0;
    int rc;

    if (!grid_value || !grid_value->present) {
        *ret_rows = 0;
        return 0;
    }
    rc = check_shape(field, grid, grid_value, rank, sample, err);
    if (rc < 0)
        return rc;
    for (uint64_t row = 0; row < (uint64_t)grid_value->shape[0]; row++) {
        uint64_t product = 1;

        for (uint64_t column = 0; column < (uint64_t)grid_value->shape[1]; column++) {
            rc = read_cell(field, grid, grid_value, row, column, rank, sample, &number, err);
            if (rc < 0)
                return rc;
            if (__builtin_mul_overflow(product, number, &product))
                return err_set_at(err, -EINVAL, rank, sample, grid->name, "%s, row %" PRIu64
                                  ": its product is above 2^64", grid->name, row);
        }
        if (__builtin_add_overflow(rows, product, &rows) || rows > INT64_MAX)
            return err_set_at(err, -EINVAL, rank, sample, grid->name, "%s: its rows are above 2^63", grid->name);
    }
    *ret_rows = rows;
    return 0;
}

int grid_check(const struct wire_field *field, const struct value *value, const struct wire_field *grid,
               const struct value *grid_value, uint32_t rank, uint32_t sample, struct poise_err *err)
{
    char has[VALUE_NUMBER_TEXT], says[VALUE_NUMBER_TEXT];
    uint64_t rows, own = 0;
    int rc = grid_rows(field, grid, grid_value, rank, sample, &rows, err);

    if (rc < 0)
        return rc;
    if (value && value->present && value->n_dims > 0)
        own = (uint64_t)value->shape[0];
    if (own == rows)
        return 0;
    return err_set_at(err, -EINVAL, rank, sample, field->name, "%s has %s rows, %s says %s", field->name,
                      value_number_format(own, has), grid->name, value_number_format(rows, says));
}
