/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two passes over a submission. The first only looks: it finds every mistake of the caller and what the metadata needs.
 * The second asks the arena once for all that it will write (copies and directory), which is the last thing that can
 * fail.
 */
#include "client/stage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/copy.h"
#include "client/directory.h"
#include "client/grid.h"
#include "client/verify.h"
#include "daemon/planner/err.h"
#include "proto/schema.h"

struct rule { /* what a field's values count for, besides their bytes */
    uint32_t grid;                 /* position of its grid; POISE_NONE: not tied, or the grid is unknown to this rank */
    uint8_t extent[POISE_MAX_DIMS]; /* number of the axis's extent; POISE_MAX_EXTENTS: none */
};

static const struct poise_sample *sample_at(const struct poise_sample *samples, size_t sample_size, uint32_t i)
{
    return (const struct poise_sample *)((const char *)samples + i * sample_size);
}

static const struct poise_value *submitted_at(const struct poise_sample *sample, uint32_t i)
{
    return (const struct poise_value *)((const char *)sample->values + i * sample->value_size);
}

static uint8_t extent_of(const char *const *names, uint32_t n_names, const struct wire_field *field, uint32_t axis)
{
    if (field->assembly == POISE_PADDED && axis < field->n_dims && field->shape[axis] < 0)
        for (uint8_t i = 0; i < n_names && i < POISE_MAX_EXTENTS; i++)
            if (strcmp(names[i], field->axis_name[axis]) == 0)
                return i;
    return POISE_MAX_EXTENTS;
}

static void make_rules(const struct wire_table *table, struct rule *rules)
{
    const char *names[POISE_MAX_EXTENTS];
    uint32_t n_names = schema_axes(table, names);

    for (uint32_t f = 0; f < table->n_fields; f++) {
        const struct wire_field *field = &table->fields[f];

        rules[f].grid = field->rows_of[0] ? value_field(table, field->rows_of, 0) : POISE_NONE;
        for (uint32_t i = 0; i < POISE_MAX_DIMS; i++)
            rules[f].extent[i] = extent_of(names, n_names, field, i);
    }
}

/* Sorts a sample's values by the table's fields. The only checks: name, once. values: [n_fields]. */
static int sort_values(const struct wire_table *table, uint32_t rank, const struct poise_sample *sample, uint32_t index,
                       struct value *values, struct poise_err *err)
{
    uint32_t hint = 0;

    for (uint32_t f = 0; f < table->n_fields; f++)
        values[f].present = false;
    if (sample->n_values > 0 && !sample->values)
        return err_set_at(err, -EINVAL, rank, index, NULL, "sample %" PRIu32 ": n_values is %" PRIu32
                          " and values is NULL", index, sample->n_values);
    for (uint32_t i = 0; i < sample->n_values; i++) {
        const struct poise_value *submitted = submitted_at(sample, i);
        uint32_t f = submitted->field ? value_field(table, submitted->field, hint) : POISE_NONE;

        if (f == POISE_NONE)
            return err_set_at(err, -EINVAL, rank, index, submitted->field, "sample %" PRIu32
                              ": field %s is not declared", index, submitted->field ? submitted->field : "NULL");
        if (values[f].present)
            return err_set_at(err, -EINVAL, rank, index, submitted->field, "sample %" PRIu32 ": %s is there twice",
                              index, submitted->field);
        values[f] = (struct value){ .data = submitted->data, .present = true, .n_dims = submitted->n_dims };
        memcpy(values[f].shape, submitted->shape, sizeof values[f].shape);
        hint = f + 1;
    }
    return 0;
}

static int check_value(const struct wire_field *field, const struct rule *rule, uint32_t rank, uint32_t index,
                       const struct value *value, struct stage_sample *out, struct poise_err *err)
{
    uint64_t bytes;
    int rc = value_check(value, field, rank, index, &bytes, err);

    if (rc < 0)
        return rc;
    if (bytes > 0 && !value->data)
        return err_set_at(err, -EINVAL, rank, index, field->name, "%s has %" PRIu64 " bytes and data NULL", field->name,
                          bytes);
    if (bytes > INT64_MAX - out->bytes)
        return err_set_at(err, -EINVAL, rank, index, field->name, "sample %" PRIu32 ": its bytes do not fit 63 bits",
                          index);
    out->bytes += bytes;
    if (field->assembly != POISE_PADDED)
        out->packed_bytes += bytes;
    for (uint32_t i = 0; i < value->n_dims; i++) {
        uint8_t extent = rule->extent[i];

        if (extent == POISE_MAX_EXTENTS)
            continue;
        if (value->shape[i] > UINT32_MAX)
            return err_set_at(err, -EINVAL, rank, index, field->name, "%s: axis %" PRIu32 " is longer than 2^32 - 1",
                              field->name, i);
        if (value->shape[i] > out->extent[extent])
            out->extent[extent] = (uint32_t)value->shape[i];
    }
    return 0;
}

static int check_sample(const struct wire_table *table, const struct rule *rules, uint32_t rank, uint32_t index,
                        const struct value *values, struct stage_sample *out, struct poise_err *err)
{
    int rc;

    *out = (struct stage_sample){ 0 };
    for (uint32_t f = 0; f < table->n_fields; f++) {
        rc = values[f].present ? check_value(&table->fields[f], &rules[f], rank, index, &values[f], out, err) : 0;
        if (rc < 0)
            return rc;
    }
    /* Only now all shapes and data are known to be sound. */
    for (uint32_t f = 0; f < table->n_fields; f++) {
        uint32_t grid = rules[f].grid;

        if (grid == POISE_NONE)
            continue;
        rc = grid_check(&table->fields[f], &values[f], &table->fields[grid], &values[grid], rank, index, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int stage_check(const struct wire_table *table, uint32_t rank, const struct poise_sample *samples, uint32_t n_samples,
                size_t sample_size, struct stage_sample *out, uint64_t *ret_n_values, struct poise_err *err)
{
    size_t n = table->n_fields ? table->n_fields : 1;
    struct value *values = calloc(n, sizeof *values);
    struct rule *rules = calloc(n, sizeof *rules);
    uint64_t n_values = 0;
    int rc = values && rules ? 0 : err_set(err, -ENOMEM, "out of memory");

    if (rc == 0)
        make_rules(table, rules);
    for (uint32_t i = 0; i < n_samples && rc == 0; i++) {
        const struct poise_sample *sample = sample_at(samples, sample_size, i);

        rc = sort_values(table, rank, sample, i, values, err);
        if (rc == 0)
            rc = check_sample(table, rules, rank, i, values, &out[i], err);
        n_values += sample->n_values;
    }
    free(rules);
    free(values);
    if (rc == 0)
        *ret_n_values = n_values;
    return rc;
}

/* ------------------------------------------------------------------------------------------------------------ writing
 * */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

struct copier { /* what the second pass walks with */
    struct arena *arena;
    const struct stage_request *req;
    struct value *values;             /* [n_fields] of the sample at hand */
    struct directory_value *entries;  /* [n_fields] likewise */
    unsigned char *next;              /* where the next copy goes */
    struct arena_place place;         /* of what the arena gave */
    unsigned char *base;
};

/* The first half of the second pass: bytes of what must be copied; UINT64_MAX if they overflow. */
static uint64_t copied_bytes(struct copier *copier)
{
    const struct stage_request *req = copier->req;
    uint64_t sum = 0, bytes;
    struct arena_place place;

    for (uint32_t i = 0; i < req->n_samples; i++) {
        sort_values(req->table, POISE_NONE, sample_at(req->samples, req->sample_size, i), i, copier->values, NULL);
        for (uint32_t f = 0; f < req->table->n_fields; f++) {
            const struct value *value = &copier->values[f];

            if (!value->present || value_bytes(value, req->table->fields[f].dtype, &bytes) < 0 ||
                arena_find(copier->arena, value->data, bytes, &place))
                continue;
            if (bytes > INT64_MAX - ARENA_ALIGN - sum)
                return UINT64_MAX;
            sum += round_up(bytes);
        }
    }
    return sum;
}

/* Puts a value where it can be read by peers, and says where. */
static void write_value(struct copier *copier, uint32_t f, struct directory_value *entry)
{
    const struct value *value = &copier->values[f];
    struct arena_place place = { 0 };
    uint64_t bytes = 0;

    value_bytes(value, copier->req->table->fields[f].dtype, &bytes);
    if (bytes > 0 && !arena_find(copier->arena, value->data, bytes, &place)) {
        place = copier->place;
        place.offset += (uint64_t)(copier->next - copier->base);
        copy_bytes(copier->next, value->data, bytes);
        copier->next += round_up(bytes);
    }
    *entry = (struct directory_value){ .field = f, .segment = place.segment, .generation = place.generation,
                                       .n_dims = value->n_dims, .offset = place.offset };
    memcpy(entry->shape, value->shape, sizeof entry->shape);
}

static void write_sample(struct copier *copier, uint32_t index, struct directory_writer *writer)
{
    const struct stage_request *req = copier->req;
    const struct poise_sample *sample = sample_at(req->samples, req->sample_size, index);
    struct directory_sample head = { .tag = sample->tag, .loss_tokens = (uint64_t)sample->loss_tokens,
                                     .arrival_loss_tokens = req->arrival_loss_tokens[index],
                                     .bytes = req->checked[index].bytes,
                                     .arrival_micro_batch = req->arrival_micro_batch[index] };
    uint32_t n = 0;

    sort_values(req->table, POISE_NONE, sample, index, copier->values, NULL);
    for (uint32_t f = 0; f < req->table->n_fields; f++)
        if (copier->values[f].present)
            write_value(copier, f, &copier->entries[n++]);
    if (req->hash)
        head.hash = verify_sample(req->table, copier->values);
    directory_add(writer, &head, copier->entries, n);
}

/* Room for `copies` and the directory behind them; writes both. */
static int write_step(struct copier *copier, uint64_t copies, struct control_place *ret_place, struct poise_err *err)
{
    const struct stage_request *req = copier->req;
    uint64_t bytes = directory_bytes(req->n_samples, req->n_values, req->table->n_fields);
    struct directory_writer writer;
    void *data;
    int rc;

    if (copies > INT64_MAX || bytes > INT64_MAX)
        return err_set(err, -ENOMEM, "a step's bytes do not fit 63 bits");
    rc = arena_alloc(copier->arena, copies + bytes, &data, err);
    if (rc < 0)
        return rc;
    copier->base = copier->next = data;
    arena_find(copier->arena, data, copies + bytes, &copier->place);
    directory_begin(copier->base + copies, req->step, req->table, req->n_samples, req->n_values, &writer);
    for (uint32_t i = 0; i < req->n_samples; i++)
        write_sample(copier, i, &writer);
    *ret_place = (struct control_place){ .segment = copier->place.segment, .generation = copier->place.generation,
                                         .offset = copier->place.offset + copies, .bytes = bytes,
                                         .n_samples = req->n_samples };
    return arena_commit(copier->arena, req->step, err); /* was asked before: cannot fail */
}

int stage_step(struct arena *arena, const struct stage_request *req, struct control_place *ret_place,
               struct poise_err *err)
{
    size_t n = req->table->n_fields ? req->table->n_fields : 1;
    struct copier copier = { .arena = arena, .req = req, .values = calloc(n, sizeof *copier.values),
                             .entries = calloc(n, sizeof *copier.entries) };
    int rc = copier.values && copier.entries ? 0 : err_set(err, -ENOMEM, "out of memory");

    if (rc == 0)
        rc = arena_may_commit(arena, req->step, err);
    if (rc == 0)
        rc = write_step(&copier, copied_bytes(&copier), ret_place, err);
    free(copier.entries);
    free(copier.values);
    return rc;
}
