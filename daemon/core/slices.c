/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a plan (destination, micro-batch and row of each sample) to slices: for each rank what comes in, in delivered order,
 * and where its own samples go. Linear in samples: rows say the order, so nothing is sorted but members of transposed units.
 *
 * A plan is checked to be a permutation before anything is written by it: a planner's bug becomes an error of the step.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/outcome.h"
#include "daemon/planner/err.h"

struct member {
    uint64_t key;    /* its unit, or which member it is */
    uint32_t sample; /* or its place */
};

struct work {
    const struct columns *columns;
    struct poise_plan *plan;
    uint32_t n_ranks, n_cells;
    uint32_t *start; /* [n_ranks * n_micro_batches + 1] place of a micro-batch's first row, over all ranks in order */
    uint32_t *at;    /* [n_total] the sample at a place, over all ranks in order */
    uint32_t *order; /* [n_total] transposed units: which member of its unit a sample is */
    struct member *members; /* [n_total] scratch of the same */
    uint32_t *origin;       /* [n_total] */
};

static int count_cells(struct work *w, struct poise_err *err)
{
    const struct poise_plan *plan = w->plan;
    uint32_t n_mb = plan->n_micro_batches;

    for (uint32_t i = 0; i < w->columns->n_total; i++) {
        if (plan->rank[i] >= w->n_ranks || plan->micro_batch[i] >= n_mb)
            return err_set(err, -EPROTO, "the planner sends sample %u to rank %u, micro-batch %u of %u: a bug", i,
                           plan->rank[i], plan->micro_batch[i], n_mb);
        w->start[(size_t)plan->rank[i] * n_mb + plan->micro_batch[i] + 1]++;
    }
    for (uint32_t cell = 0; cell < w->n_cells; cell++)
        w->start[cell + 1] += w->start[cell];
    return 0;
}

static int place_all(struct work *w, struct poise_err *err)
{
    const struct poise_plan *plan = w->plan;

    memset(w->at, 0xff, w->columns->n_total * sizeof *w->at);
    for (uint32_t i = 0; i < w->columns->n_total; i++) {
        size_t cell = (size_t)plan->rank[i] * plan->n_micro_batches + plan->micro_batch[i];
        uint32_t room = w->start[cell + 1] - w->start[cell];

        if (plan->row[i] >= room || w->at[w->start[cell] + plan->row[i]] != POISE_NONE)
            return err_set(err, -EPROTO, "the planner gives row %u of %u to sample %u, taken or too high: a bug",
                           plan->row[i], room, i);
        w->at[w->start[cell] + plan->row[i]] = i;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- transposed units */

static int compare_members(const void *a, const void *b)
{
    const struct member *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

/* order[]: how many members of its unit come before a sample in its submission; only for transposed ones. */
static void number_members(struct work *w)
{
    const struct columns *c = w->columns;
    struct member *members = w->members;

    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        uint32_t n = 0;

        for (uint32_t i = c->first[rank]; i < c->first[rank + 1]; i++) {
            w->order[i] = POISE_NONE;
            if (c->unit[i] && c->layout[i] == POISE_UNIT_TRANSPOSED)
                members[n++] = (struct member){c->unit[i], i};
        }
        qsort(members, n, sizeof *members, compare_members);
        for (uint32_t i = 0; i < n; i++)
            w->order[members[i].sample] =
                i > 0 && members[i].key == members[i - 1].key ? w->order[members[i - 1].sample] + 1 : 0;
    }
}

/* The places of transposed samples in [from, to) are given to them anew: by member number, otherwise in the old order. */
static void transpose_cell(struct work *w, uint32_t from, uint32_t to)
{
    uint32_t n = 0, slot = from;

    for (uint32_t place = from; place < to; place++)
        if (w->order[w->at[place]] != POISE_NONE)
            w->members[n++] = (struct member){w->order[w->at[place]], place};
    qsort(w->members, n, sizeof *w->members, compare_members);
    for (uint32_t i = 0; i < n; i++)
        w->members[i].sample = w->at[w->members[i].sample];
    for (uint32_t i = 0; i < n; i++, slot++) {
        while (w->order[w->at[slot]] == POISE_NONE)
            slot++;
        w->at[slot] = w->members[i].sample;
        w->plan->row[w->members[i].sample] = slot - from;
    }
}

static int transpose_all(struct work *w)
{
    w->order = core_alloc(w->columns->n_total, sizeof *w->order);
    w->members = core_alloc(w->columns->n_total, sizeof *w->members);
    if (!w->order || !w->members)
        return -ENOMEM;
    number_members(w);
    for (uint32_t cell = 0; cell < w->n_cells; cell++)
        transpose_cell(w, w->start[cell], w->start[cell + 1]);
    return 0;
}

/* --------------------------------------------------------------------------------------------------------------- slices */

static int allocate(struct work *w, struct outcome *outcome)
{
    size_t n = w->columns->n_total, n_cells = w->n_cells;

    w->start = core_alloc(n_cells + 1, sizeof *w->start);
    w->at = core_alloc(n, sizeof *w->at);
    w->origin = core_alloc(n, sizeof *w->origin);
    outcome->slices = core_alloc(w->n_ranks, sizeof *outcome->slices);
    outcome->u32 = core_alloc(6 * n + n_cells, sizeof *outcome->u32);
    outcome->u64 = core_alloc(n, sizeof *outcome->u64);
    if (!w->start || !w->at || !w->origin || !outcome->slices || !outcome->u32 || !outcome->u64)
        return -ENOMEM; /* the outcome frees its part */
    return 0;
}

static void fill_in(struct work *w, struct outcome *outcome)
{
    const struct columns *c = w->columns;
    uint32_t n = c->n_total, n_mb = w->plan->n_micro_batches;
    uint32_t *in_rank = outcome->u32, *in_index = in_rank + n, *count = outcome->u32 + 6 * (size_t)n;

    for (uint32_t place = 0; place < n; place++) {
        uint32_t i = w->at[place];

        in_rank[place] = w->origin[i];
        in_index[place] = i - c->first[w->origin[i]];
        outcome->u64[place] = c->bytes[i];
    }
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        uint32_t *start = w->start + (size_t)rank * n_mb;
        struct wire_slice *slice = &outcome->slices[rank];

        slice->rank = rank;
        slice->n_in = start[n_mb] - start[0];
        slice->in_rank = in_rank + start[0];
        slice->in_index = in_index + start[0];
        slice->in_bytes = outcome->u64 + start[0];
        slice->count = count + (size_t)rank * n_mb;
        for (uint32_t mb = 0; mb < n_mb; mb++)
            slice->count[mb] = start[mb + 1] - start[mb];
    }
}

static void fill_out(struct work *w, struct outcome *outcome)
{
    const struct columns *c = w->columns;
    const struct poise_plan *plan = w->plan;
    size_t n = c->n_total, n_mb = plan->n_micro_batches;
    uint32_t *to = outcome->u32 + 2 * n, *micro_batch = to + n, *row = micro_batch + n, *place = row + n;

    memcpy(to, plan->rank, n * sizeof *to);
    memcpy(micro_batch, plan->micro_batch, n * sizeof *to);
    memcpy(row, plan->row, n * sizeof *to);
    for (size_t i = 0; i < n; i++)
        place[i] = w->start[to[i] * n_mb + micro_batch[i]] + row[i] - w->start[to[i] * n_mb];
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        struct wire_slice *slice = &outcome->slices[rank];
        uint32_t first = c->first[rank];

        slice->n_out = c->n_samples[rank];
        slice->out_rank = to + first;
        slice->out_micro_batch = micro_batch + first;
        slice->out_row = row + first;
        slice->out_place = place + first;
    }
}

static void fill_origin(struct work *w)
{
    for (uint32_t rank = 0; rank < w->n_ranks; rank++)
        for (uint32_t i = w->columns->first[rank]; i < w->columns->first[rank + 1]; i++)
            w->origin[i] = rank;
}

int slices_make(const struct columns *columns, struct poise_plan *plan, bool transpose, struct outcome *outcome,
                struct poise_err *err)
{
    struct work w = {.columns = columns, .plan = plan, .n_ranks = columns->req.n_ranks};
    uint64_t n_cells = (uint64_t)w.n_ranks * plan->n_micro_batches;
    int r;

    if (n_cells >= UINT32_MAX / 2)
        return err_set(err, -EINVAL, "%u micro-batches on each of %u ranks are too many", plan->n_micro_batches, w.n_ranks);
    w.n_cells = (uint32_t)n_cells;
    r = allocate(&w, outcome);
    if (r == 0)
        r = count_cells(&w, err);
    if (r == 0)
        r = place_all(&w, err);
    if (r == 0 && transpose && columns->unit && columns->layout)
        r = transpose_all(&w);
    if (r == 0) {
        outcome->n_ranks = w.n_ranks;
        fill_origin(&w);
        fill_in(&w, outcome);
        fill_out(&w, outcome);
    }
    core_free(w.start);
    core_free(w.at);
    core_free(w.order);
    core_free(w.members);
    core_free(w.origin);
    return r;
}
