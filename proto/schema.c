/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Field tables: turning a declared field into its checked, self-contained form, and what follows from a table (its
 * hash, its ragged axes, its padded memory). What a rule does not use is set to its default here, so that two ranks
 * never differ in something without a meaning; a table from the wire is checked again, as it may not come from this
 * code.
 */
#include "proto/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "proto/codec.h"
#include "proto/hash.h"
#include "proto/schema_sort.h"

/* Errors read "field NAME: ...", or "rank 3: field NAME: ..." where the table is another's. */
#define FIELD_PREFIX 100
static const char *prefix(char text[FIELD_PREFIX], uint32_t rank, const char *name)
{
    if (rank == POISE_NONE)
        snprintf(text, FIELD_PREFIX, "field %s", name);
    else
        snprintf(text, FIELD_PREFIX, "rank %u: field %s", rank, name);
    return text;
}

#define FAIL(...) return err_set_at(err, -EINVAL, rank, POISE_NONE, field->name, __VA_ARGS__)

static bool is_integer(uint32_t dtype)
{
    return dtype >= POISE_U8 && dtype <= POISE_I64;
}

static bool is_ragged_padded(const struct wire_field *field, uint32_t dim)
{
    return field->assembly == POISE_PADDED && field->shape[dim] < 0;
}

/* ------------------------------------------------------------------------------------------------ one field's rules */

static int check_shape(const struct wire_field *field, uint32_t rank, const char *who, struct poise_err *err)
{
    uint64_t bytes = poise_dtype_bytes(field->dtype);

    if (field->n_dims > POISE_MAX_DIMS - 1)
        FAIL("%s: n_dims is %u: a sample has at most %d dimensions", who, field->n_dims, POISE_MAX_DIMS - 1);
    for (uint32_t d = 0; d < field->n_dims; d++) {
        if (field->shape[d] < -1)
            FAIL("%s: shape[%u] is %" PRId64 ": at least 0, or -1 where ragged", who, d, field->shape[d]);
        /* 0 is left out of the product: it must not hide the others. */
        if (field->shape[d] > 0 &&
            (__builtin_mul_overflow(bytes, (uint64_t)field->shape[d], &bytes) || bytes > INT64_MAX))
            FAIL("%s: its fixed axes make more than 2^63 bytes (shape[%u] is %" PRId64 ")", who, d, field->shape[d]);
    }
    return 0;
}

static int check_concat(const struct wire_field *field, uint32_t rank, const char *who, struct poise_err *err)
{
    if (field->axis >= field->n_dims)
        FAIL("%s: axis is %u: to be concatenated along it, a sample needs more than its %u dimensions", who,
             field->axis, field->n_dims);
    for (uint32_t d = 0; d < field->n_dims; d++)
        if (d != field->axis && field->shape[d] < 0)
            FAIL("%s: shape[%u] is ragged: of a concatenated field only axis %u may be; declare it padded or opaque",
                 who, d, field->axis);
    return 0;
}

static int check_padded(const struct wire_field *field, uint32_t rank, const char *who, struct poise_err *err)
{
    if (field->axis > field->n_dims)
        FAIL("%s: axis is %u: samples of %u dimensions can be stacked at axis %u at most", who, field->axis,
             field->n_dims, field->n_dims);
    if (field->pad_side > POISE_PAD_LEFT)
        FAIL("%s: pad_side is %u: 0 (right) or 1 (left)", who, field->pad_side);
    if (field->pad_scope > POISE_PAD_FIXED)
        FAIL("%s: pad_scope is %u: 0 (micro-batch), 1 (step) or 2 (fixed)", who, field->pad_scope);
    if (field->pad_scope == POISE_PAD_FIXED && (field->pad_to == 0 || field->pad_to > UINT32_MAX))
        FAIL("%s: pad_to is %" PRIu64 ": from 1 to 2^32 - 1 with a fixed width", who, field->pad_to);
    if (field->pad_multiple == 0)
        FAIL("%s: pad_multiple is 0", who);
    for (uint32_t d = 0; d < field->n_dims; d++) {
        if (!is_ragged_padded(field, d))
            continue;
        if (!field->axis_name[d][0])
            FAIL("%s: ragged axis %u has no name", who, d);
        /* Memory is counted by extents, each once. */
        for (uint32_t before = 0; before < d; before++)
            if (is_ragged_padded(field, before) && strcmp(field->axis_name[before], field->axis_name[d]) == 0)
                FAIL("%s: axes %u and %u are both named %s: leave one of them without a name", who, before, d,
                     field->axis_name[d]);
    }
    return 0;
}

static int check_rows(const struct wire_field *field, uint32_t rank, const char *who, struct poise_err *err)
{
    if (field->n_divisors > POISE_MAX_DIMS)
        FAIL("%s: n_divisors is %u: at most %d", who, field->n_divisors, POISE_MAX_DIMS);
    if (!field->rows_of[0])
        return 0;
    if (field->n_dims == 0)
        FAIL("%s: rows_of is %s, but a scalar has no rows", who, field->rows_of);
    if (strcmp(field->rows_of, field->name) == 0)
        FAIL("%s: rows_of names the field itself", who);
    for (uint32_t i = 0; i < field->n_divisors; i++)
        if (field->divisor[i] == 0)
            FAIL("%s: divisor[%u] is 0", who, i);
    return 0;
}

static int check_field(const struct wire_field *field, uint32_t rank, struct poise_err *err)
{
    char text[FIELD_PREFIX];
    const char *who = prefix(text, rank, field->name);

    if (!field->name[0])
        FAIL("%s: a field without a name", who);
    if (field->dtype >= POISE_N_DTYPES)
        FAIL("%s: dtype is %u: below %d", who, field->dtype, POISE_N_DTYPES);
    if (field->assembly > POISE_OPAQUE)
        FAIL("%s: assembly is %u: 0 (concat), 1 (padded) or 2 (opaque)", who, field->assembly);
    if (check_shape(field, rank, who, err) < 0 || check_rows(field, rank, who, err) < 0)
        return -EINVAL;
    if (field->assembly == POISE_CONCAT)
        return check_concat(field, rank, who, err);
    return field->assembly == POISE_PADDED ? check_padded(field, rank, who, err) : 0;
}

/* ------------------------------------------------------------------------------------------------------ declaration */

static int copy_name(const char *from, const char *what, const char *name, char to[POISE_MAX_NAME],
                     struct poise_err *err)
{
    size_t n = from ? strlen(from) : 0;

    if (n >= POISE_MAX_NAME)
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, name,
                          "field %.63s: %s has %zu bytes, at most %d: %.80s", name, what, n, POISE_MAX_NAME - 1, from);
    if (!wire_text_valid(from, n))
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, NULL, "%s of a field is not valid UTF-8", what);
    memset(to, 0, POISE_MAX_NAME);
    if (n > 0)
        memcpy(to, from, n);
    return 0;
}

/* The pad value as bits of one element. A negative number that was sign-extended to 64 bits is as good. */
static int take_pad_bits(uint64_t bits, struct wire_field *field, struct poise_err *err)
{
    const uint32_t n_bits = 8 * poise_dtype_bytes(field->dtype), rank = POISE_NONE;

    if (n_bits > 64) {
        if (bits != 0)
            FAIL("field %s: pad_bits is 0x%" PRIx64 ": %s can be padded with 0 only", field->name, bits,
                 poise_dtype_name(field->dtype));
    } else if (n_bits < 64) {
        uint64_t above = bits >> n_bits, all = UINT64_MAX >> n_bits, sign = bits >> (n_bits - 1) & 1;
        if (above != 0 && !(above == all && sign))
            FAIL("field %s: pad_bits is 0x%" PRIx64 ": an element of %s has %u bits", field->name, bits,
                 poise_dtype_name(field->dtype), n_bits);
        bits &= ~(UINT64_MAX << n_bits);
    }
    field->pad_bits = bits;
    return 0;
}

static int take_axis_names(const struct poise_field *from, struct wire_field *field, struct poise_err *err)
{
    const uint32_t rank = POISE_NONE;

    for (uint32_t d = 0; d < field->n_dims; d++) {
        if (!is_ragged_padded(field, d))
            continue;
        if (from->axis_name[d] && from->axis_name[d][0]) {
            if (copy_name(from->axis_name[d], "axis_name", field->name, field->axis_name[d], err) < 0)
                return -EINVAL;
            continue;
        }
        char own[POISE_MAX_NAME + 16];
        int n = snprintf(own, sizeof own, "%s.%u", field->name, d);
        if (n >= POISE_MAX_NAME)
            FAIL("field %s: no room in %d bytes for the name of its ragged axis %u: give it an axis_name", field->name,
                 POISE_MAX_NAME, d);
        memcpy(field->axis_name[d], own, (size_t)n);
    }
    return 0;
}

static int take_padding(const struct poise_field *from, struct wire_field *field, struct poise_err *err)
{
    field->pad_side = from->pad_side;
    field->pad_scope = from->pad_scope;
    field->pad_multiple = from->pad_multiple ? from->pad_multiple : 1;
    field->pad_to = from->pad_scope == POISE_PAD_FIXED ? from->pad_to : 0;
    if (take_pad_bits(from->pad_bits, field, err) < 0)
        return -EINVAL;
    return take_axis_names(from, field, err);
}

static int take_rows(const struct poise_field *from, struct wire_field *field, struct poise_err *err)
{
    if (copy_name(from->rows_of, "rows_of", field->name, field->rows_of, err) < 0)
        return -EINVAL;
    if (!field->rows_of[0])
        return 0;
    const uint32_t rank = POISE_NONE;
    if (from->n_divisors > POISE_MAX_DIMS)
        FAIL("field %s: n_divisors is %u: at most %d", field->name, from->n_divisors, POISE_MAX_DIMS);
    for (uint32_t i = 0; i < from->n_divisors; i++) {
        field->divisor[i] = from->divisor[i] ? from->divisor[i] : 1;
        if (field->divisor[i] > 1)
            field->n_divisors = i + 1; /* ones at the end divide nothing */
    }
    for (uint32_t i = field->n_divisors; i < POISE_MAX_DIMS; i++)
        field->divisor[i] = 0;
    return 0;
}

int schema_field(const struct poise_field *from, struct wire_field *ret_field, struct poise_err *err)
{
    struct wire_field made = {0}, *field = &made;
    const uint32_t rank = POISE_NONE;

    if (!from->name || !from->name[0])
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, NULL, "a field without a name");
    if (copy_name(from->name, "name", from->name, field->name, err) < 0)
        return -EINVAL;
    field->dtype = from->dtype;
    field->assembly = from->assembly;
    field->n_dims = from->n_dims;
    if (field->dtype >= POISE_N_DTYPES)
        FAIL("field %s: dtype is %u: below %d", field->name, field->dtype, POISE_N_DTYPES);
    if (field->n_dims > POISE_MAX_DIMS - 1)
        FAIL("field %s: n_dims is %u: a sample has at most %d dimensions", field->name, field->n_dims,
             POISE_MAX_DIMS - 1);
    for (uint32_t d = 0; d < field->n_dims; d++)
        field->shape[d] = from->shape[d];
    if (field->assembly != POISE_OPAQUE)
        field->axis = from->axis;
    if ((field->assembly == POISE_PADDED && take_padding(from, field, err) < 0) || take_rows(from, field, err) < 0)
        return -EINVAL;
    if (check_field(field, POISE_NONE, err) < 0)
        return -EINVAL;
    *ret_field = made;
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- whole tables */

/* Distinct names of ragged padded axes, sorted; stops at max. */
static uint32_t axes(const struct wire_table *table, const char **names, uint32_t max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < table->n_fields; i++) {
        const struct wire_field *field = &table->fields[i];
        for (uint32_t d = 0; d < field->n_dims; d++) {
            if (!is_ragged_padded(field, d))
                continue;
            uint32_t at = 0;
            while (at < n && strcmp(names[at], field->axis_name[d]) < 0)
                at++;
            if (at < n && strcmp(names[at], field->axis_name[d]) == 0)
                continue;
            if (n == max)
                return n;
            memmove(&names[at + 1], &names[at], (n - at) * sizeof *names);
            names[at] = field->axis_name[d];
            n++;
        }
    }
    return n;
}

uint32_t schema_axes(const struct wire_table *table, const char *names[POISE_MAX_EXTENTS])
{
    return axes(table, names, POISE_MAX_EXTENTS);
}

static const struct wire_field *find(const struct wire_table *table, const char *name)
{
    for (uint32_t i = 0; i < table->n_fields; i++)
        if (strcmp(table->fields[i].name, name) == 0)
            return &table->fields[i];
    return NULL;
}

/* The grid that a field's rows follow must be one, where it is in the table: another rank may bring it. */
static int check_grid(const struct wire_table *table, const struct wire_field *field, uint32_t rank,
                      struct poise_err *err)
{
    char text[FIELD_PREFIX];
    const char *who = prefix(text, rank, field->name);
    const struct wire_field *grid = field->rows_of[0] ? find(table, field->rows_of) : NULL;

    if (!grid)
        return 0;
    if (!is_integer(grid->dtype))
        FAIL("%s: rows_of is %s, which is %s: a grid is of integers", who, grid->name, poise_dtype_name(grid->dtype));
    if (grid->n_dims != 2 || grid->shape[0] >= 0)
        FAIL("%s: rows_of is %s, which has %u dimensions: a grid has 2, the first ragged", who, grid->name,
             grid->n_dims);
    if (grid->shape[1] >= 0 && field->n_divisors > (uint64_t)grid->shape[1])
        FAIL("%s: %u divisors for the %" PRId64 " columns of %s", who, field->n_divisors, grid->shape[1], grid->name);
    return 0;
}

int schema_check(const struct wire_table *table, uint32_t rank, struct poise_err *err)
{
    const struct wire_field *sorted[POISE_MAX_FIELDS], *field;
    const char *names[POISE_MAX_EXTENTS + 1];

    if (table->n_fields > POISE_MAX_FIELDS)
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "%u fields: at most %d", table->n_fields,
                          POISE_MAX_FIELDS);
    schema_sort(table, sorted);
    for (uint32_t i = 0; i < table->n_fields; i++) {
        char text[FIELD_PREFIX];
        field = sorted[i];
        if (check_field(field, rank, err) < 0)
            return -EINVAL;
        if (i > 0 && strcmp(sorted[i - 1]->name, field->name) == 0)
            FAIL("%s: declared twice", prefix(text, rank, field->name));
        if (check_grid(table, field, rank, err) < 0)
            return -EINVAL;
    }
    if (axes(table, names, POISE_MAX_EXTENTS + 1) > POISE_MAX_EXTENTS)
        return err_set_at(
            err, -EINVAL, rank, POISE_NONE, NULL,
            "more than %d ragged axes in padded fields (%s, %s, %s, %s, %s): give those that are as long as each "
            "other one axis_name",
            POISE_MAX_EXTENTS, names[0], names[1], names[2], names[3], names[4]);
    return 0;
}

static void hash_field(struct hash *h, const struct wire_field *field)
{
    hash_text(h, field->name);
    hash_u64(h, (uint64_t)field->dtype << 32 | field->assembly);
    hash_u64(h, (uint64_t)field->n_dims << 32 | field->axis);
    for (uint32_t d = 0; d < field->n_dims; d++) {
        hash_u64(h, (uint64_t)field->shape[d]);
        hash_text(h, field->axis_name[d]);
    }
    hash_u64(h, (uint64_t)field->pad_side << 32 | field->pad_scope);
    hash_u64(h, (uint64_t)field->pad_multiple << 32 | field->n_divisors);
    hash_u64(h, field->pad_to);
    hash_u64(h, field->pad_bits);
    hash_text(h, field->rows_of);
    for (uint32_t i = 0; i < field->n_divisors; i++)
        hash_u64(h, field->divisor[i]);
}

struct wire_id schema_hash(const struct wire_table *table)
{
    const struct wire_field *sorted[POISE_MAX_FIELDS];
    struct hash h;

    if (!table || table->n_fields == 0)
        return (struct wire_id){0};
    uint32_t n = schema_sort(table, sorted);
    hash_begin(&h, "poise fields");
    hash_u64(&h, n);
    for (uint32_t i = 0; i < n; i++)
        hash_field(&h, sorted[i]);
    return hash_end(&h);
}

static uint64_t round_up(uint64_t extent, uint32_t multiple)
{
    return multiple > 1 ? (extent + multiple - 1) / multiple * multiple : extent;
}

static struct poise_pad pad_of(const struct wire_field *field, const char *const *names, uint32_t n_names,
                               const uint32_t *step_extent)
{
    struct poise_pad pad = {.multiple = field->pad_multiple, .unit_bytes = poise_dtype_bytes(field->dtype)};

    for (uint32_t d = 0; d < field->n_dims; d++) {
        if (field->shape[d] >= 0) {
            pad.unit_bytes *= (uint64_t)field->shape[d];
            continue;
        }
        for (uint32_t e = 0; e < n_names; e++) {
            if (strcmp(names[e], field->axis_name[d]) != 0)
                continue;
            pad.axis_mask |= 1u << e;
            if (field->pad_scope == POISE_PAD_FIXED)
                pad.fixed[e] = round_up(field->pad_to, field->pad_multiple);
            if (field->pad_scope == POISE_PAD_STEP)
                pad.fixed[e] = round_up(step_extent[e], field->pad_multiple);
        }
    }
    return pad;
}

uint32_t schema_pads(const struct wire_table *table, const uint32_t step_extent[POISE_MAX_EXTENTS],
                     struct poise_pad pads[POISE_MAX_FIELDS])
{
    const char *names[POISE_MAX_EXTENTS];
    uint32_t n_names = schema_axes(table, names), n = 0;

    for (uint32_t i = 0; i < table->n_fields && n < POISE_MAX_FIELDS; i++)
        if (table->fields[i].assembly == POISE_PADDED)
            pads[n++] = pad_of(&table->fields[i], names, n_names, step_extent);
    return n;
}
