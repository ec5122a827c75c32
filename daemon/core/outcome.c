/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of a step's outcome, in their order:
 *   1. replicas of a rank that do not say the same: ERROR naming both
 *   2. a rank that says that its step is bad: ERROR, of the lowest (rank, sample, field)
 *   3. the end: END if the option says that the first one ends all or if all have ended; else those ranks are empty.
 *      Before the tables: those stay as they are, and ranks that have ended would be told of an error for ever
 *   4. field tables that cannot be merged: ERROR
 *   5. metadata that does not fit the options, or the planner's refusal: ERROR
 *   6. PLAN, in the most cautious mode that any process stamped on the step; every other block of an audit is shadow
 * The order is part of the protocol: two coordinators that tried in another order would answer differently.
 */
#include "daemon/core/outcome.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

static const struct wire_meta *meta_of(const struct outcome_input *in, uint32_t rank, uint32_t replica)
{
    return in->metas[(size_t)rank * in->n_replicas + replica];
}

/* Does the text say whose fault it is ("rank 3" and not "rank 31")? */
static bool names_rank(const char *text, uint32_t rank)
{
    char word[24];
    size_t n = (size_t)snprintf(word, sizeof word, "rank %u", rank);

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if (at[n] < '0' || at[n] > '9')
            return true;
    return false;
}

static void set_error(struct outcome *outcome, const struct poise_err *err)
{
    outcome->kind = WIRE_OUTCOME_ERROR;
    if (err->rank == POISE_NONE || names_rank(err->text, err->rank))
        outcome->error = *err;
    else
        err_set_at(&outcome->error, err->code, err->rank, err->sample, err->field, "rank %u: %s", err->rank, err->text);
    if (outcome->error.code >= 0)
        outcome->error.code = -EINVAL;
    outcome->error.step = outcome->step;
}

/* --------------------------------------------------------------------------------------------------- rules without a plan */

static bool replicas_agree(const struct outcome_input *in, uint32_t rank, uint32_t replica, struct poise_err *err)
{
    const struct wire_meta *a = meta_of(in, rank, 0), *b = meta_of(in, rank, replica);
    const struct wire_meta *bad = a->kind == WIRE_META_BAD ? a : b;

    if (a->kind == b->kind && a->n_samples == b->n_samples && wire_id_is(a->digest, b->digest))
        return true;
    if (a->kind != b->kind && bad->kind == WIRE_META_BAD)
        err_set_at(err, -EINVAL, rank, bad->error.sample, bad->error.field,
                   "rank %u: replica %u failed the step and replica %u did not: %s", rank, bad->replica,
                   bad == a ? b->replica : a->replica, bad->error.text);
    else if (a->kind != b->kind)
        err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "rank %u: the data has ended for replica %u and not for replica %u",
                   rank, a->kind == WIRE_META_END ? 0 : replica, a->kind == WIRE_META_END ? replica : 0);
    else
        err_set_at(err, -EINVAL, rank, POISE_NONE, NULL,
                   "rank %u: replicas 0 and %u submitted different samples (%u and %u of them): replicas of a rank must "
                   "read the same data in the same order",
                   rank, replica, a->n_samples, b->n_samples);
    return false;
}

static bool find_disagreement(const struct outcome_input *in, struct poise_err *err)
{
    for (uint32_t rank = 0; rank < in->n_ranks; rank++)
        for (uint32_t replica = 1; replica < in->n_replicas; replica++)
            if (!replicas_agree(in, rank, replica, err))
                return true;
    return false;
}

static bool find_bad(const struct outcome_input *in, struct poise_err *err)
{
    for (uint32_t rank = 0; rank < in->n_ranks; rank++) {
        const struct wire_meta *meta = meta_of(in, rank, 0);

        if (meta->kind != WIRE_META_BAD)
            continue;
        *err = meta->error;
        err->rank = rank;
        return true;
    }
    return false;
}

static bool at_end(const struct outcome_input *in)
{
    uint32_t n_ended = 0;

    for (uint32_t rank = 0; rank < in->n_ranks; rank++)
        n_ended += meta_of(in, rank, 0)->kind == WIRE_META_END;
    return in->options->end == POISE_END_CONTINUE ? n_ended == in->n_ranks : n_ended > 0;
}

/* An audit's blocks are of the step's number alone, so that coordinators and restarts agree on them. */
static bool in_arrival_block(const struct outcome_input *in)
{
    return in->options->audit && in->step / in->options->audit % 2 == 1;
}

static uint32_t mode_of(const struct outcome_input *in)
{
    uint32_t mode = in_arrival_block(in) ? POISE_MODE_SHADOW : POISE_MODE_ON;

    for (size_t i = 0; i < (size_t)in->n_ranks * in->n_replicas; i++)
        if (in->metas[i]->mode > mode)
            mode = in->metas[i]->mode;
    return mode > POISE_MODE_OFF ? POISE_MODE_OFF : mode;
}

static void drop_all(const struct outcome_input *in, struct outcome *outcome)
{
    for (uint32_t rank = 0; rank < in->n_ranks; rank++)
        if (meta_of(in, rank, 0)->kind == WIRE_META_SAMPLES)
            outcome->n_dropped += meta_of(in, rank, 0)->n_samples;
}

/* ---------------------------------------------------------------------------------------------------------------- plan */

static void plan_free(struct poise_plan *plan)
{
    core_free(plan->rank);
    core_free(plan->micro_batch);
    core_free(plan->row);
    memset(plan, 0, sizeof *plan);
}

static int plan_new(uint32_t n, struct poise_plan *plan)
{
    *plan = (struct poise_plan){.size = sizeof *plan,
                                .rank = core_alloc(n, sizeof *plan->rank),
                                .micro_batch = core_alloc(n, sizeof *plan->micro_batch),
                                .row = core_alloc(n, sizeof *plan->row)};
    if (plan->rank && plan->micro_batch && plan->row)
        return 0;
    plan_free(plan);
    return -ENOMEM;
}

/* How many (rank, arrival micro-batch) hold a sample, where ranks say which. */
static int count_given(const struct columns *c, uint64_t *ret_n)
{
    const uint32_t *micro_batch = c->micro_batch;
    uint32_t highest = 0, *seen;
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->n_total; i++)
        if (micro_batch[i] > highest)
            highest = micro_batch[i];
    seen = core_alloc((size_t)highest + 1, sizeof *seen); /* the planner refused numbers that memory cannot hold */
    if (!seen)
        return -ENOMEM;
    for (uint32_t rank = 0; rank < c->req.n_ranks; rank++)
        for (uint32_t i = c->first[rank]; i < c->first[rank + 1]; i++) {
            n += seen[micro_batch[i]] != rank + 1;
            seen[micro_batch[i]] = rank + 1;
        }
    core_free(seen);
    *ret_n = n;
    return 0;
}

/* The same for the planner's default: consecutive pieces of micro_batch_size, or n_micro_batches equal ones. */
static uint64_t count_default(const struct columns *c)
{
    uint32_t size = c->req.micro_batch_size, pieces = c->req.n_micro_batches ? c->req.n_micro_batches : 1;
    uint64_t n = 0;

    for (uint32_t rank = 0; rank < c->req.n_ranks; rank++) {
        uint32_t samples = c->n_samples[rank];

        if (size)
            n += samples / size + (samples % size > 0);
        else
            n += samples < pieces ? samples : pieces;
    }
    return n;
}

static int count_arrival(const struct columns *c, uint64_t *ret_n)
{
    if (c->micro_batch)
        return count_given(c, ret_n);
    *ret_n = count_default(c);
    return 0;
}

static void fill_totals(const struct columns *c, const struct poise_quality *q, uint32_t mode, struct poise_totals *t)
{
    t->n_samples = c->n_total;
    t->loss_tokens = c->sum_loss_tokens;
    t->bytes = c->sum_bytes;
    t->bytes_moved = q->bytes_moved;
    t->samples_moved = q->samples_moved;
    t->cost_before = q->objective_before;
    t->cost_after = q->objective_after;
    t->cost_mean = q->rank_mean;
    memcpy(t->length_micro_batch_before, q->length_micro_batch_before, sizeof t->length_micro_batch_before);
    memcpy(t->length_micro_batch_after, q->length_micro_batch_after, sizeof t->length_micro_batch_after);
    t->lacking_before = q->lacking_before;
    t->lacking_after = q->lacking_after;
    t->mode = mode;
    t->oversize = q->oversize;
    t->bytes_between_nodes = q->bytes_between_nodes;
}

/*
 * The plan that is delivered, and the quality that is told. Shadow delivers arrival order and tells of the plan; what the
 * planner alone refuses must not hurt a group that only looks on.
 */
static int plan_step(const struct columns *c, uint32_t mode, struct poise_plan *arrival, struct poise_plan *plan,
                     struct poise_plan **ret_deliver, struct poise_quality *ret_told, struct poise_err *err)
{
    int r = 0;

    if (mode != POISE_MODE_ON)
        r = plan_arrival(&c->req, arrival, err);
    if (r < 0)
        return r;
    *ret_told = arrival->quality;
    *ret_deliver = arrival;
    if (mode == POISE_MODE_OFF)
        return 0;
    r = plan_make(&c->req, plan, err);
    if (r == 0)
        *ret_told = plan->quality;
    if (mode == POISE_MODE_ON)
        *ret_deliver = plan;
    return mode == POISE_MODE_SHADOW && r != -ENOMEM ? 0 : r;
}

static void set_plan(const struct outcome_input *in, const struct columns *c, const struct poise_plan *plan,
                     struct outcome *outcome)
{
    outcome->kind = WIRE_OUTCOME_PLAN;
    outcome->n_micro_batches = plan->n_micro_batches;
    memcpy(&outcome->plan_id.hi, plan->plan_id, 8);
    memcpy(&outcome->plan_id.lo, plan->plan_id + 8, 8);
    outcome->n_extents = in->schema->n_axes;
    memcpy(outcome->extent, c->step_extent, sizeof outcome->extent);
}

static int plan_into(const struct outcome_input *in, const struct columns *c, struct outcome *outcome, struct poise_err *err)
{
    struct poise_plan arrival = {0}, plan = {0}, *deliver;
    struct poise_quality told;
    uint32_t mode = mode_of(in);
    int r = plan_new(c->n_total, &arrival);

    if (r == 0)
        r = plan_new(c->n_total, &plan);
    if (r == 0)
        r = plan_step(c, mode, &arrival, &plan, &deliver, &told, err);
    if (r == 0)
        r = count_arrival(c, &outcome->totals.arrival_micro_batches);
    if (r == 0)
        r = slices_make(c, deliver, mode == POISE_MODE_ON, outcome, err);
    if (r == 0) {
        set_plan(in, c, deliver, outcome);
        fill_totals(c, &told, mode, &outcome->totals);
    }
    plan_free(&arrival);
    plan_free(&plan);
    return r;
}

/* -------------------------------------------------------------------------------------------------------------- public */

static int decide(const struct outcome_input *in, struct outcome *outcome, struct poise_err *err)
{
    struct columns columns;
    int r;

    if (find_disagreement(in, err) || find_bad(in, err))
        return -EINVAL;
    if (in->schema->error.code == 0)
        outcome->schema = schema_ref(in->schema);
    if (at_end(in)) {
        outcome->kind = WIRE_OUTCOME_END;
        return 0;
    }
    if (in->schema->error.code) {
        *err = in->schema->error;
        return -EINVAL;
    }
    r = columns_make(in, &columns, err);
    if (r < 0)
        return r;
    r = plan_into(in, &columns, outcome, err);
    columns_free(&columns);
    return r;
}

int outcome_make(const struct outcome_input *in, struct outcome **ret_outcome)
{
    struct outcome *outcome = core_alloc(1, sizeof *outcome);
    struct poise_err err;
    int r;

    if (!outcome)
        return -ENOMEM;
    err_set(&err, -EINVAL, "unknown error");
    outcome->step = in->step;
    err_set(&outcome->error, 0, "%s", "");
    r = decide(in, outcome, &err);
    if (r == -ENOMEM) {
        outcome_free(outcome);
        return r;
    }
    if (r < 0)
        set_error(outcome, &err);
    if (outcome->kind != WIRE_OUTCOME_PLAN) {
        drop_all(in, outcome);
        memset(&outcome->totals, 0, sizeof outcome->totals);
        outcome->totals.mode = mode_of(in);
    }
    *ret_outcome = outcome;
    return 0;
}

void outcome_free(struct outcome *outcome)
{
    if (!outcome)
        return;
    schema_unref(outcome->schema);
    core_free(outcome->slices);
    core_free(outcome->u32);
    core_free(outcome->u64);
    core_free(outcome);
}

void outcome_message(const struct outcome *outcome, struct wire_id epoch, bool with_table, struct wire_slice *slices,
                     uint32_t n_slices, struct wire_message *msg)
{
    struct wire_outcome *to = &msg->outcome;
    bool planned = outcome->kind == WIRE_OUTCOME_PLAN;

    memset(msg, 0, sizeof *msg);
    msg->type = WIRE_OUTCOME;
    to->epoch = epoch;
    to->step = outcome->step;
    to->kind = outcome->kind;
    to->plan_id = outcome->plan_id;
    to->n_micro_batches = outcome->n_micro_batches;
    to->totals = outcome->totals;
    to->n_extents = outcome->n_extents;
    memcpy(to->extent, outcome->extent, sizeof to->extent);
    to->error = outcome->error;
    if (outcome->schema) {
        to->table_hash = outcome->schema->hash;
        to->table = with_table && !wire_id_none(to->table_hash) ? &outcome->schema->merged : NULL;
    }
    to->n_slices = planned ? n_slices : 0;
    to->slices = planned ? slices : NULL;
}
