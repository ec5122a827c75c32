/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes and shapes of one field of one sample. Every shape that enters the library passes value_check() once, at submit
 * or out of a peer's directory; what comes later may rely on sizes that fit 63 bits.
 */
#include "client/value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/err.h"

int value_bytes(const struct value *value, uint32_t dtype, uint64_t *ret_bytes)
{
    uint32_t element = poise_dtype_bytes(dtype);
    uint64_t bytes = element;
    bool empty = false;

    if (element == 0 || value->n_dims > POISE_MAX_DIMS)
        return -EINVAL;
    for (uint32_t i = 0; i < value->n_dims; i++) {
        if (value->shape[i] < 0)
            return -EOVERFLOW;
        if (value->shape[i] == 0)
            empty = true;
        /* An empty value's other axes must fit too: they become extents of assembled tensors. */
        else if (__builtin_mul_overflow(bytes, (uint64_t)value->shape[i], &bytes) || bytes > INT64_MAX)
            return -EOVERFLOW;
    }
    *ret_bytes = empty ? 0 : bytes;
    return 0;
}

/* The first axis that its rule does not allow; POISE_NONE: none. */
static uint32_t bad_axis(const struct value *value, const struct wire_field *field)
{
    for (uint32_t i = 0; i < field->n_dims; i++) {
        if (value->shape[i] < 0)
            return i;
        if (field->shape[i] >= 0 && value->shape[i] != field->shape[i])
            return i;
        if (field->assembly == POISE_PADDED && field->pad_scope == POISE_PAD_FIXED && field->shape[i] < 0 &&
            (uint64_t)value->shape[i] > field->pad_to)
            return i;
    }
    return POISE_NONE;
}

int value_check(const struct value *value, const struct wire_field *field, uint32_t rank, uint32_t sample,
                uint64_t *ret_bytes, struct poise_err *err)
{
    char has[VALUE_SHAPE_TEXT], declared[VALUE_SHAPE_TEXT];
    uint64_t bytes = 0;
    uint32_t axis;

    if (value->present) {
        if (value->n_dims != field->n_dims)
            return err_set_at(err, -EINVAL, rank, sample, field->name, "%s has %" PRIu32 " dimensions, declared with %"
                              PRIu32, field->name, value->n_dims, field->n_dims);
        axis = bad_axis(value, field);
        if (axis != POISE_NONE) {
            value_shape_format(value->shape, value->n_dims, has);
            value_shape_format(field->shape, field->n_dims, declared);
            if (value->shape[axis] >= 0 && field->shape[axis] < 0)
                return err_set_at(err, -EINVAL, rank, sample, field->name, "%s has shape %s: axis %" PRIu32
                                  " is longer than the fixed width %" PRIu64, field->name, has, axis, field->pad_to);
            return err_set_at(err, -EINVAL, rank, sample, field->name,
                              "%s has shape %s, declared as %s (-1: any): axis %" PRIu32 " differs", field->name, has,
                              declared, axis);
        }
        if (value_bytes(value, field->dtype, &bytes) < 0)
            return err_set_at(err, -EINVAL, rank, sample, field->name, "%s has shape %s: its bytes do not fit 63 bits",
                              field->name, value_shape_format(value->shape, value->n_dims, has));
    }
    if (ret_bytes)
        *ret_bytes = bytes;
    return 0;
}

uint32_t value_field(const struct wire_table *table, const char *name, uint32_t hint)
{
    for (uint32_t i = 0; i < table->n_fields; i++) {
        uint32_t at = (hint + i) % table->n_fields;

        if (strcmp(table->fields[at].name, name) == 0)
            return at;
    }
    return POISE_NONE;
}

const char *value_shape_format(const int64_t *shape, uint32_t n_dims, char text[VALUE_SHAPE_TEXT])
{
    size_t used = 1;

    text[0] = '[';
    for (uint32_t i = 0; i < n_dims && i < POISE_MAX_DIMS; i++) /* at most 8 numbers of 20 characters: it fits */
        used += (size_t)snprintf(text + used, VALUE_SHAPE_TEXT - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    snprintf(text + used, VALUE_SHAPE_TEXT - used, "]");
    return text;
}

const char *value_number_format(uint64_t number, char text[VALUE_NUMBER_TEXT])
{
    char digits[24];
    size_t n = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, number), at = 0;

    for (size_t i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = 0;
    return text;
}
