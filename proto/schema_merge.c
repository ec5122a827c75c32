/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The field tables of all ranks as one, by name. Ranks are taken in order and each one's fields by name, so the error
 * is the same whoever computes it: the lowest rank that differs from an earlier one, its first such field.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "proto/memory.h"
#include "proto/schema_sort.h"

/* ---------------------------------------------------------------------------------------------------------- by name */

static int by_name(const void *a, const void *b)
{
    const struct wire_field *const *x = a, *const *y = b;
    int order = strcmp((*x)->name, (*y)->name);

    if (order == 0 && *x != *y) /* of one name: as they stand, for the order to be the same everywhere */
        order = *x < *y ? -1 : 1;
    return order;
}

uint32_t schema_sort(const struct wire_table *table, const struct wire_field *sorted[POISE_MAX_FIELDS])
{
    uint32_t n = table->n_fields < POISE_MAX_FIELDS ? table->n_fields : POISE_MAX_FIELDS;

    for (uint32_t i = 0; i < n; i++)
        sorted[i] = &table->fields[i];
    if (n > 1)
        qsort(sorted, n, sizeof *sorted, by_name);
    return n;
}

/* ------------------------------------------------------------------------------------------- what differs, in words */

static void print_shape(const struct wire_field *field, char *text, size_t n_text)
{
    size_t n = (size_t)snprintf(text, n_text, "shape [");

    for (uint32_t d = 0; d < field->n_dims && d < POISE_MAX_DIMS; d++) {
        const char *comma = d > 0 ? ", " : "";
        if (field->shape[d] < 0)
            n += (size_t)snprintf(text + n, n_text - n, "%sragged", comma);
        else
            n += (size_t)snprintf(text + n, n_text - n, "%s%" PRId64, comma, field->shape[d]);
    }
    snprintf(text + n, n_text - n, "]");
}

static void print_axis_names(const struct wire_field *field, char *text, size_t n_text)
{
    size_t n = (size_t)snprintf(text, n_text, "axis names [");

    for (uint32_t d = 0; d < field->n_dims && d < POISE_MAX_DIMS; d++)
        n += (size_t)snprintf(text + n, n_text - n, "%s%s", d > 0 ? ", " : "", field->axis_name[d]);
    snprintf(text + n, n_text - n, "]");
}

static void print_rows(const struct wire_field *field, char *text, size_t n_text)
{
    size_t n = (size_t)snprintf(text, n_text, "rows_of %s / [", field->rows_of[0] ? field->rows_of : "nothing");

    for (uint32_t i = 0; i < field->n_divisors && i < POISE_MAX_DIMS; i++)
        n += (size_t)snprintf(text + n, n_text - n, "%s%u", i > 0 ? ", " : "", field->divisor[i]);
    snprintf(text + n, n_text - n, "]");
}

static void print_dtype(const struct wire_field *field, char *text, size_t n_text)
{
    const char *name = poise_dtype_name(field->dtype);
    snprintf(text, n_text, "%s", name ? name : "an unknown dtype");
}

static void print_assembly(const struct wire_field *field, char *text, size_t n_text)
{
    static const char *const names[] = {"concat", "padded", "opaque"};
    snprintf(text, n_text, "assembly %s at axis %u", field->assembly < 3 ? names[field->assembly] : "unknown",
             field->axis);
}

static void print_padding(const struct wire_field *field, char *text, size_t n_text)
{
    static const char *const scopes[] = {"micro-batch", "step", "fixed"};
    snprintf(text, n_text, "padding %s to %s, pad_to %" PRIu64 ", multiple %u, value 0x%" PRIx64,
             field->pad_side == POISE_PAD_LEFT ? "left" : "right",
             field->pad_scope < 3 ? scopes[field->pad_scope] : "unknown", field->pad_to, field->pad_multiple,
             field->pad_bits);
}

/* Every member is in one of these, in the order in which a difference is named. */
static const struct {
    const char *word;
    void (*print)(const struct wire_field *field, char *text, size_t n_text);
} aspects[] = {
    {"as", print_dtype},     {"with", print_shape}, {"with", print_assembly},
    {"with", print_padding}, {"with", print_rows},  {"with", print_axis_names},
};

/* Room for the longest: 7 axis names. */
#define ASPECT_BYTES (POISE_MAX_DIMS * (POISE_MAX_NAME + 2) + 32)

static int differ(const struct wire_field *a, uint32_t rank_a, const struct wire_field *b, uint32_t rank_b,
                  struct poise_err *err)
{
    char text_a[ASPECT_BYTES], text_b[ASPECT_BYTES];

    /* The usual case, at once: the struct has no padding and its texts are filled up with zeros. */
    if (memcmp(a, b, sizeof *a) == 0)
        return 0;
    for (size_t i = 0; i < sizeof aspects / sizeof *aspects; i++) {
        aspects[i].print(a, text_a, sizeof text_a);
        aspects[i].print(b, text_b, sizeof text_b);
        if (strcmp(text_a, text_b) != 0)
            return err_set_at(err, -EINVAL, rank_b, POISE_NONE, b->name,
                              "rank %u sends %s %s %.160s, rank %u %s %.160s: make them agree", rank_b, b->name,
                              aspects[i].word, text_b, rank_a, aspects[i].word, text_a);
    }
    return 0;
}

_Static_assert(sizeof(struct wire_field) ==
                   POISE_MAX_NAME * (2 + POISE_MAX_DIMS) + 8 * 4 + POISE_MAX_DIMS * (8 + 4) + 16,
               "struct wire_field has padding: compare by member in differ()");

/* ---------------------------------------------------------------------------------------------------------- merging */

struct merge {
    uint32_t n;
    const struct wire_field *fields[POISE_MAX_FIELDS]; /* sorted by name */
    uint32_t rank[POISE_MAX_FIELDS];                   /* the lowest that has it */
};

/* Where the name is, or where it would go. */
static uint32_t place_of(const struct merge *merge, const char *name, bool *ret_found)
{
    uint32_t low = 0, high = merge->n;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = strcmp(merge->fields[middle]->name, name);
        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_found = false;
    return low;
}

static int add(struct merge *merge, const struct wire_field *field, uint32_t rank, struct poise_err *err)
{
    bool found;
    uint32_t at = place_of(merge, field->name, &found);

    if (found)
        return differ(merge->fields[at], merge->rank[at], field, rank, err);
    if (merge->n == POISE_MAX_FIELDS)
        return err_set_at(err, -EINVAL, rank, POISE_NONE, field->name,
                          "rank %u: field %s is one more than the %d that a group may have over all ranks", rank,
                          field->name, POISE_MAX_FIELDS);
    memmove(&merge->fields[at + 1], &merge->fields[at], (merge->n - at) * sizeof *merge->fields);
    memmove(&merge->rank[at + 1], &merge->rank[at], (merge->n - at) * sizeof *merge->rank);
    merge->fields[at] = field;
    merge->rank[at] = rank;
    merge->n++;
    return 0;
}

static int add_table(struct merge *merge, const struct wire_table *table, uint32_t rank, struct poise_err *err)
{
    const struct wire_field *sorted[POISE_MAX_FIELDS];
    uint32_t n = schema_sort(table, sorted);

    for (uint32_t i = 0; i < n; i++)
        if (add(merge, sorted[i], rank, err) < 0)
            return -EINVAL;
    return 0;
}

int schema_merge(const struct wire_table *const *tables, uint32_t n_ranks, struct wire_table *ret_table,
                 struct poise_err *err)
{
    struct merge merge = {0};

    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        if (!tables[rank] || (rank > 0 && tables[rank] == tables[rank - 1])) /* ranks may share one table */
            continue;
        if (add_table(&merge, tables[rank], rank, err) < 0)
            return -EINVAL;
    }
    struct wire_table table = {.n_fields = merge.n};
    if (merge.n > 0) {
        table.fields = wire_malloc(merge.n * sizeof *table.fields);
        if (!table.fields)
            return err_set(err, -ENOMEM, "no memory to merge %u fields", merge.n);
    }
    for (uint32_t i = 0; i < merge.n; i++)
        table.fields[i] = *merge.fields[i];
    /* Together they may break what each alone does not: the number of axes, a grid that another rank declares
     * otherwise. */
    if (schema_check(&table, POISE_NONE, err) < 0) {
        free(table.fields);
        return -EINVAL;
    }
    *ret_table = table;
    return 0;
}
