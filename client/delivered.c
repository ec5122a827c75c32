/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Delivered micro-batches. All tables of a step are one allocation with one count of references: the engine's while it
 * fills them, and one for each micro-batch and iterator. A batch may be released by any thread, after the handle is
 * closed, and (without effect) in the child of a fork, where the payload is not mapped but this block is.
 */
#include "client/delivered.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/forks.h"
#include "daemon/planner/err.h"

/* ------------------------------------------------------------------------------------------------------------ table */

int merged_new(const struct wire_table *table, struct wire_id hash, struct merged **ret_merged, struct poise_err *err)
{
    uint32_t n_fields = table ? table->n_fields : 0;
    struct merged *merged = calloc(1, sizeof *merged + n_fields * sizeof *merged->table.fields);

    if (!merged)
        return err_set(err, -ENOMEM, "no memory for the field table");
    atomic_init(&merged->refs, 1);
    merged->hash = hash;
    merged->table.n_fields = n_fields;
    merged->table.fields = (struct wire_field *)(merged + 1);
    if (n_fields)
        memcpy(merged->table.fields, table->fields, n_fields * sizeof *table->fields);
    *ret_merged = merged;
    return 0;
}

struct merged *merged_ref(struct merged *merged)
{
    atomic_fetch_add_explicit(&merged->refs, 1, memory_order_relaxed);
    return merged;
}

void merged_unref(struct merged *merged)
{
    if (merged && atomic_fetch_sub_explicit(&merged->refs, 1, memory_order_acq_rel) == 1)
        free(merged);
}

/* ------------------------------------------------------------------------------------------------------- allocation */

struct layout { /* offsets of the tables inside the block */
    size_t held, rows, fields, values, in, out, bytes;
};

/* Counts come from a checked message of at most WIRE_MAX_BYTES and at most POISE_MAX_FIELDS fields: sums fit 64 bits.
 */
static size_t table_at(size_t *bytes, uint64_t n, size_t element)
{
    size_t at = (*bytes + 15) & ~(size_t)15;

    *bytes = at + n * element;
    return at;
}

static struct layout layout_of(uint64_t n_micro_batches, uint64_t n_in, uint64_t n_out, uint64_t n_fields)
{
    struct layout at = {.bytes = sizeof(struct delivered)};

    at.held = table_at(&at.bytes, n_micro_batches, sizeof(struct held));
    at.rows = table_at(&at.bytes, n_in, sizeof(struct poise_row));
    at.fields = table_at(&at.bytes, n_micro_batches * n_fields, sizeof(struct poise_tensor));
    at.values = table_at(&at.bytes, n_in * n_fields, sizeof(struct poise_tensor));
    at.in = table_at(&at.bytes, n_in, sizeof(struct poise_mapping_in));
    at.out = table_at(&at.bytes, n_out, sizeof(struct poise_mapping_out));
    return at;
}

static struct delivered *allocate(uint32_t n_micro_batches, uint32_t n_in, uint32_t n_out, uint32_t n_fields)
{
    struct layout at = layout_of(n_micro_batches, n_in, n_out, n_fields);
    struct delivered *set = calloc(1, at.bytes);
    unsigned char *base = (unsigned char *)set;

    if (!set)
        return NULL;
    set->held = (struct held *)(base + at.held);
    set->rows = (struct poise_row *)(base + at.rows);
    set->fields = (struct poise_tensor *)(base + at.fields);
    set->values = (struct poise_tensor *)(base + at.values);
    set->in = (struct poise_mapping_in *)(base + at.in);
    set->out = (struct poise_mapping_out *)(base + at.out);
    set->n_micro_batches = n_micro_batches;
    set->n_fields = n_fields;
    set->n_in = n_in;
    return set;
}

/* ---------------------------------------------------------------------------------------------------------- filling */

static void fill_in(struct delivered *set, const struct wire_slice *slice)
{
    uint32_t i = 0;

    for (uint32_t b = 0; b < set->n_micro_batches; b++) {
        for (uint32_t row = 0; row < slice->count[b]; row++, i++) {
            set->in[i] = (struct poise_mapping_in){
                .rank = slice->in_rank[i], .index = slice->in_index[i], .micro_batch = b, .row = row};
            set->rows[i].origin_rank = slice->in_rank[i];
            set->rows[i].origin_index = slice->in_index[i];
            if (set->totals.loss_tokens)
                set->rows[i].weight_step = 1.0 / (double)set->totals.loss_tokens;
        }
    }
}

static void fill_out(struct delivered *set, const struct wire_slice *slice)
{
    for (uint32_t i = 0; i < slice->n_out; i++)
        set->out[i] = (struct poise_mapping_out){.rank = slice->out_rank[i],
                                                 .micro_batch = slice->out_micro_batch[i],
                                                 .row = slice->out_row[i],
                                                 .place = slice->out_place[i]};
}

static void id_bytes(struct wire_id id, unsigned char bytes[16])
{
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(id.hi >> (56 - 8 * i));
        bytes[8 + i] = (unsigned char)(id.lo >> (56 - 8 * i));
    }
}

static void fill_batches(struct delivered *set, const struct wire_outcome *outcome)
{
    uint32_t first = 0;

    for (uint32_t b = 0; b < set->n_micro_batches; b++) {
        struct held *held = &set->held[b];
        held->set = set;
        held->part = b;
        held->first = first;
        held->batch = (struct poise_batch){
            .step = set->step,
            .micro_batch = b,
            .n_micro_batches = set->n_micro_batches,
            .n_samples = outcome->slices[0].count[b],
            .n_fields = set->n_fields,
            .rows = set->rows + first,
            .row_size = sizeof *set->rows,
            .fields = set->fields + (size_t)b * set->n_fields,
            .tensor_size = sizeof *set->fields,
            .values = set->values + (size_t)first * set->n_fields,
            .totals = &set->totals,
            .mapping = &set->mapping,
        };
        id_bytes(outcome->plan_id, held->batch.plan_id);
        first += outcome->slices[0].count[b];
    }
}

int delivered_new(const struct wire_outcome *outcome, struct merged *merged, struct wake *wake, uint32_t generation,
                  struct delivered **ret_set, struct poise_err *err)
{
    const struct wire_slice *slice = &outcome->slices[0];
    struct delivered *set = allocate(outcome->n_micro_batches, slice->n_in, slice->n_out, merged->table.n_fields);

    if (!set)
        return err_set(err, -ENOMEM, "no memory for the tables of step %llu (%u samples, %u fields)",
                       (unsigned long long)outcome->step, slice->n_in, merged->table.n_fields);
    atomic_init(&set->refs, 1);
    set->generation = generation;
    set->wake = wake_ref(wake);
    set->merged = merged_ref(merged);
    set->step = outcome->step;
    set->totals = outcome->totals;
    fill_in(set, slice);
    fill_out(set, slice);
    set->mapping = (struct poise_mapping){.n_in = slice->n_in,
                                          .n_out = slice->n_out,
                                          .in = set->in,
                                          .in_size = sizeof *set->in,
                                          .out = set->out,
                                          .out_size = sizeof *set->out};
    fill_batches(set, outcome);
    *ret_set = set;
    return 0;
}

/* weight_arrival: what a mean over the micro-batches' means gives this sample's tokens in the unbalanced run. */
void delivered_row(struct delivered *set, uint32_t i, const struct directory_sample *sample)
{
    struct poise_row *row = &set->rows[i];

    row->tag = sample->tag;
    row->loss_tokens = sample->loss_tokens;
    row->arrival_micro_batch = sample->arrival_micro_batch;
    if (sample->arrival_loss_tokens && set->totals.arrival_micro_batches)
        row->weight_arrival = 1.0 / ((double)sample->arrival_loss_tokens * (double)set->totals.arrival_micro_batches);
}

/* ----------------------------------------------------------------------------------------------------------- ending */

void delivered_ref(struct delivered *set, uint32_t n)
{
    atomic_fetch_add_explicit(&set->refs, n, memory_order_relaxed);
}

void delivered_unref(struct delivered *set)
{
    if (atomic_fetch_sub_explicit(&set->refs, 1, memory_order_acq_rel) != 1)
        return;
    wake_ring(set->wake); /* there is room for another step */
    wake_unref(set->wake);
    merged_unref(set->merged);
    free(set);
}

void delivered_release(struct held *held)
{
    struct delivered *set = held->set;

    if (set->slot)
        receive_release(set->slot, held->part);
    delivered_unref(set);
}

void poise_release(const struct poise_batch *batch)
{
    struct held *held = (struct held *)(uintptr_t)batch; /* the batch is its first member */

    if (held && held->set->generation == forks_generation())
        delivered_release(held);
}

const struct poise_tensor *poise_batch_field(const struct poise_batch *batch, const char *name)
{
    for (uint32_t f = 0; batch && name && f < batch->n_fields; f++) {
        if (strcmp(batch->fields[f].name, name) == 0)
            return &batch->fields[f];
    }
    return NULL;
}
