/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the metadata of all ranks to the planner's request: columns of all samples ordered by (rank, index). A column that no
 * rank sent stays NULL, so that the planner's own default holds; where only some ranks sent it, the others' part gets the
 * value that the absence stands for. Extents come in the order of each rank's own table and leave in that of the merged one.
 *
 * Metadata was checked when it was decoded (columns as long as n_samples says); what only the group knows is checked here.
 */
#include <errno.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/outcome.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"
#include "proto/schema.h"

void columns_free(struct columns *columns)
{
    core_free(columns->first);
    core_free(columns->bytes);
    core_free(columns->packed_bytes);
    core_free(columns->unit);
    core_free(columns->length);
    core_free(columns->attention);
    core_free(columns->loss_tokens);
    core_free(columns->n_samples);
    core_free(columns->micro_batch);
    core_free(columns->extent);
    core_free(columns->speed_ppm);
    core_free(columns->layout);
    memset(columns, 0, sizeof *columns);
}

static const struct wire_meta *meta_of(const struct outcome_input *in, uint32_t rank)
{
    return in->metas[(size_t)rank * in->n_replicas];
}

/* A rank that ended contributes nothing. */
static uint32_t count_of(const struct wire_meta *meta)
{
    return meta->kind == WIRE_META_SAMPLES ? meta->n_samples : 0;
}

static int check_rank(const struct outcome_input *in, uint32_t rank, struct poise_err *err)
{
    const struct wire_meta *meta = meta_of(in, rank);
    uint32_t n_phases = in->options->n_phases, n_axes = in->schema->n_rank_axes[rank];

    if (count_of(meta) == 0)
        return 0;
    if (!meta->has_columns || !meta->bytes || !meta->loss_tokens)
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "rank %u sent no columns for its %u samples", rank,
                          meta->n_samples);
    if (meta->n_phases != n_phases || !meta->length)
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL,
                          "rank %u sent lengths of %u phases, the group's cost has %u", rank, meta->n_phases, n_phases);
    if (meta->n_extents != n_axes || (n_axes && !meta->extent))
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL,
                          "rank %u sent extents of %u axes, its fields have %u ragged padded ones", rank, meta->n_extents,
                          n_axes);
    return 0;
}

static int count_samples(const struct outcome_input *in, struct columns *c, struct poise_err *err)
{
    uint64_t total = 0;
    int r;

    c->n_samples = core_alloc(in->n_ranks, sizeof *c->n_samples);
    c->first = core_alloc((size_t)in->n_ranks + 1, sizeof *c->first);
    if (!c->n_samples || !c->first)
        return -ENOMEM;
    for (uint32_t rank = 0; rank < in->n_ranks; rank++) {
        r = check_rank(in, rank, err);
        if (r < 0)
            return r;
        c->n_samples[rank] = count_of(meta_of(in, rank));
        total += c->n_samples[rank];
        if (total >= UINT32_MAX / 2)
            return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "up to rank %u the step has %llu samples: too many",
                              rank, (unsigned long long)total);
        c->first[rank + 1] = (uint32_t)total;
    }
    c->n_total = (uint32_t)total;
    return 0;
}

/* Which optional columns some rank sent, and which some rank did not. */
struct presence {
    bool packed_bytes, unit, layout, micro_batch, no_micro_batch, attention;
};

static struct presence look(const struct outcome_input *in)
{
    struct presence p = {0};

    for (uint32_t rank = 0; rank < in->n_ranks; rank++) {
        const struct wire_meta *meta = meta_of(in, rank);

        if (count_of(meta) == 0)
            continue;
        p.packed_bytes |= meta->packed_bytes != NULL;
        p.unit |= meta->unit != NULL;
        p.layout |= meta->unit != NULL && meta->unit_layout != NULL;
        p.attention |= meta->attention != NULL;
        p.micro_batch |= meta->micro_batch != NULL;
        p.no_micro_batch |= meta->micro_batch == NULL;
    }
    return p;
}

static int allocate(const struct outcome_input *in, struct columns *c, const struct presence *p)
{
    size_t n = c->n_total, n_phases = in->options->n_phases;

    c->bytes = core_alloc(n, sizeof *c->bytes);
    c->loss_tokens = core_alloc(n, sizeof *c->loss_tokens);
    c->length = core_alloc(n * n_phases, sizeof *c->length);
    c->speed_ppm = core_alloc(in->n_ranks, sizeof *c->speed_ppm);
    if (!c->bytes || !c->loss_tokens || !c->length || !c->speed_ppm)
        return -ENOMEM;
    if (p->attention && !(c->attention = core_alloc(n * n_phases, sizeof *c->attention)))
        return -ENOMEM;
    if (p->packed_bytes && !(c->packed_bytes = core_alloc(n, sizeof *c->packed_bytes)))
        return -ENOMEM;
    if (p->unit && !(c->unit = core_alloc(n, sizeof *c->unit)))
        return -ENOMEM;
    if (p->layout && !(c->layout = core_alloc(n, sizeof *c->layout)))
        return -ENOMEM;
    if (p->micro_batch && !(c->micro_batch = core_alloc(n, sizeof *c->micro_batch)))
        return -ENOMEM;
    if (in->schema->n_axes && !(c->extent = core_alloc(n * in->schema->n_axes, sizeof *c->extent)))
        return -ENOMEM;
    return 0;
}

/* A square that does not fit is the largest number: in a phase that looks at it the planner refuses the cost, and a phase
 * that does not may have any length. */
static void fill_attention(const struct wire_meta *meta, uint64_t *to, size_t stride, uint32_t n_phases)
{
    for (uint32_t phase = 0; phase < n_phases; phase++) {
        const uint64_t *length = meta->length + (size_t)phase * meta->n_samples;

        for (uint32_t i = 0; i < meta->n_samples; i++) {
            uint64_t *at = &to[phase * stride + i];

            if (meta->attention)
                *at = meta->attention[(size_t)phase * meta->n_samples + i];
            else if (__builtin_mul_overflow(length[i], length[i], at))
                *at = UINT64_MAX;
        }
    }
}

static int add_up(struct columns *c, const struct wire_meta *meta, uint32_t rank, struct poise_err *err)
{
    for (uint32_t i = 0; i < meta->n_samples; i++) {
        if (__builtin_add_overflow(c->sum_bytes, meta->bytes[i], &c->sum_bytes))
            return err_set_at(err, -ERANGE, rank, i, NULL, "rank %u sample %u: the step's bytes do not fit 64 bits", rank,
                              i);
        if (__builtin_add_overflow(c->sum_loss_tokens, meta->loss_tokens[i], &c->sum_loss_tokens))
            return err_set_at(err, -ERANGE, rank, i, NULL,
                              "rank %u sample %u: the step's loss tokens do not fit 64 bits", rank, i);
    }
    return 0;
}

static void fill_extents(const struct outcome_input *in, struct columns *c, const struct wire_meta *meta, uint32_t rank)
{
    for (uint32_t axis = 0; axis < meta->n_extents; axis++) {
        uint32_t to = in->schema->axis[rank][axis];
        uint32_t *column = c->extent + (size_t)to * c->n_total + c->first[rank];

        for (uint32_t i = 0; i < meta->n_samples; i++) {
            column[i] = meta->extent[(size_t)axis * meta->n_samples + i];
            if (column[i] > c->step_extent[to])
                c->step_extent[to] = column[i];
        }
    }
}

static int fill_rank(const struct outcome_input *in, struct columns *c, uint32_t rank, struct poise_err *err)
{
    const struct wire_meta *meta = meta_of(in, rank);
    size_t n = c->n_samples[rank], at = c->first[rank];
    int r;

    c->speed_ppm[rank] = meta->speed_ppm ? meta->speed_ppm : 1000000;
    if (n == 0)
        return 0;
    r = add_up(c, meta, rank, err);
    if (r < 0)
        return r;
    if (c->attention)
        fill_attention(meta, c->attention + at, c->n_total, in->options->n_phases);
    memcpy(c->bytes + at, meta->bytes, n * sizeof *c->bytes);
    memcpy(c->loss_tokens + at, meta->loss_tokens, n * sizeof *c->loss_tokens);
    for (uint32_t phase = 0; phase < in->options->n_phases; phase++)
        memcpy(c->length + (size_t)phase * c->n_total + at, meta->length + phase * n, n * sizeof *c->length);
    if (c->packed_bytes)
        memcpy(c->packed_bytes + at, meta->packed_bytes ? meta->packed_bytes : meta->bytes, n * sizeof *c->bytes);
    if (c->unit && meta->unit)
        memcpy(c->unit + at, meta->unit, n * sizeof *c->unit);
    if (c->layout && meta->unit && meta->unit_layout)
        memcpy(c->layout + at, meta->unit_layout, n);
    if (c->micro_batch && meta->micro_batch)
        memcpy(c->micro_batch + at, meta->micro_batch, n * sizeof *c->micro_batch);
    fill_extents(in, c, meta, rank);
    return 0;
}

static void point(const struct outcome_input *in, struct columns *c)
{
    struct poise_plan_request *req = &c->req;

    options_request(in->options, req);
    req->n_ranks = in->n_ranks;
    req->n_phases = in->options->n_phases;
    req->n_samples = c->n_samples;
    req->length = c->length;
    req->attention = c->attention;
    req->bytes = c->bytes;
    req->micro_batch = c->micro_batch;
    req->unit = c->unit;
    req->packed_bytes = c->packed_bytes;
    req->node = in->node;
    req->sync_set = in->sync_set;
    req->speed_ppm = c->speed_ppm;
    req->extent = c->extent;
    req->n_extents = in->schema->n_axes;
    req->n_pads = schema_pads(&in->schema->merged, c->step_extent, c->pads);
    req->pads = c->pads;
    req->pad_size = sizeof c->pads[0];
}

/* Some ranks gave arrival micro-batches: the others' default pieces are the planner's, asked for as a plan of their own. */
static int fill_default_pieces(const struct outcome_input *in, struct columns *c, struct poise_err *err)
{
    size_t n = c->n_total;
    struct poise_plan plan = {.size = sizeof plan};
    int r = -ENOMEM;

    plan.rank = core_alloc(n, sizeof *plan.rank);
    plan.micro_batch = core_alloc(n, sizeof *plan.micro_batch);
    plan.row = core_alloc(n, sizeof *plan.row);
    if (!plan.rank || !plan.micro_batch || !plan.row)
        goto out;
    c->req.micro_batch = NULL;
    r = plan_arrival(&c->req, &plan, err);
    c->req.micro_batch = c->micro_batch;
    if (r < 0)
        goto out;
    for (uint32_t rank = 0; rank < in->n_ranks; rank++) {
        uint32_t at = c->first[rank];

        if (!meta_of(in, rank)->micro_batch && c->n_samples[rank])
            memcpy(c->micro_batch + at, plan.micro_batch + at, c->n_samples[rank] * sizeof *c->micro_batch);
    }
out:
    core_free(plan.rank);
    core_free(plan.micro_batch);
    core_free(plan.row);
    return r;
}

int columns_make(const struct outcome_input *in, struct columns *columns, struct poise_err *err)
{
    struct presence presence = look(in);
    int r;

    memset(columns, 0, sizeof *columns);
    r = count_samples(in, columns, err);
    if (r == 0)
        r = allocate(in, columns, &presence);
    for (uint32_t rank = 0; r == 0 && rank < in->n_ranks; rank++)
        r = fill_rank(in, columns, rank, err);
    if (r == 0) {
        point(in, columns);
        if (presence.micro_batch && presence.no_micro_batch)
            r = fill_default_pieces(in, columns, err);
    }
    if (r < 0)
        columns_free(columns);
    return r;
}
