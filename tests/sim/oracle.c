/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knows what every rank submitted and sees what every process is told. A step is checked as a whole when each living process
 * has its outcome: same kind and plan everywhere, replicas alike, every sample delivered once and where its origin thinks.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster.h"

uint64_t oracle_hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b;

    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u + c;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu + d;
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static bool has_ended(const struct sim_config *config, uint32_t rank, uint64_t step)
{
    return rank < 8 && config->end_step[rank] && step >= config->end_step[rank];
}

uint32_t oracle_n_samples(const struct sim_config *config, uint32_t rank, uint64_t step)
{
    if (has_ended(config, rank, step) || (config->bad_step && step == config->bad_step && rank == config->bad_rank))
        return 0;
    return (uint32_t)(oracle_hash(config->seed, rank, step, 1) % (config->max_samples + 1));
}

uint64_t oracle_length(const struct sim_config *config, uint32_t rank, uint64_t step, uint32_t index)
{
    uint64_t x = oracle_hash(config->seed, rank, step, 100 + index);

    return 1 + (x % 4 == 0 ? x / 7 % 900 : x / 7 % 60); /* a few large ones, as real data has */
}

static struct sim_step *step_of(struct sim *sim, uint64_t step)
{
    uint64_t at = step - sim->config.first_step;
    struct sim_step *seen;

    if (at >= sim->n_step_slots)
        return NULL;
    seen = &sim->steps[at];
    if (!seen->used) {
        seen->used = true;
        seen->step = step;
        seen->slices = calloc(sim->config.n_ranks, sizeof *seen->slices);
    }
    return seen;
}

static bool same_slices(const struct wire_slice *a, const struct wire_slice *b, uint32_t n_micro_batches)
{
    return a->n_in == b->n_in && a->n_out == b->n_out &&
           (a->n_in == 0 || (memcmp(a->in_rank, b->in_rank, a->n_in * 4) == 0 &&
                             memcmp(a->in_index, b->in_index, a->n_in * 4) == 0)) &&
           (n_micro_batches == 0 || memcmp(a->count, b->count, n_micro_batches * 4) == 0) &&
           (a->n_out == 0 || (memcmp(a->out_rank, b->out_rank, a->n_out * 4) == 0 &&
                              memcmp(a->out_place, b->out_place, a->n_out * 4) == 0));
}

static uint32_t micro_batch_of(const struct wire_slice *slice, uint32_t n_micro_batches, uint32_t place, uint32_t *ret_row)
{
    uint32_t mb = 0, at = place;

    while (mb < n_micro_batches && at >= slice->count[mb])
        at -= slice->count[mb++];
    *ret_row = at;
    return mb;
}

/* Where a rank's samples go must be where they come from. */
static bool check_rank(struct sim *sim, const struct sim_step *seen, uint32_t rank)
{
    const struct wire_slice *own = &seen->slices[rank]->outcome.slices[0];

    if (own->rank != rank || own->n_out != oracle_n_samples(&sim->config, rank, seen->step)) {
        sim_fail(sim, "step %lu: rank %u submitted %u samples and is told of %u", (unsigned long)seen->step, rank,
                 oracle_n_samples(&sim->config, rank, seen->step), own->n_out);
        return false;
    }
    for (uint32_t i = 0; i < own->n_out; i++) {
        const struct wire_slice *to = own->out_rank[i] < sim->config.n_ranks
                                          ? &seen->slices[own->out_rank[i]]->outcome.slices[0]
                                          : NULL;
        uint32_t place = own->out_place[i], row, mb;

        if (!to || place >= to->n_in || to->in_rank[place] != rank || to->in_index[place] != i ||
            to->in_bytes[place] != oracle_length(&sim->config, rank, seen->step, i) * 4) {
            sim_fail(sim, "step %lu: sample %u of rank %u is not delivered where its origin thinks",
                     (unsigned long)seen->step, i, rank);
            return false;
        }
        mb = micro_batch_of(to, seen->n_micro_batches, place, &row);
        if (mb != own->out_micro_batch[i] || row != own->out_row[i]) {
            sim_fail(sim, "step %lu: sample %u of rank %u has another row", (unsigned long)seen->step, i, rank);
            return false;
        }
    }
    return true;
}

static void check_step(struct sim *sim, struct sim_step *seen)
{
    uint64_t n_in = 0, n_out = 0;

    seen->checked = true;
    sim->n_checked++;
    if (seen->kind != WIRE_OUTCOME_PLAN)
        return;
    for (uint32_t rank = 0; rank < sim->config.n_ranks; rank++) {
        n_in += seen->slices[rank]->outcome.slices[0].n_in;
        n_out += seen->slices[rank]->outcome.slices[0].n_out;
        if (!check_rank(sim, seen, rank))
            return;
    }
    /* Every sample is at its own place, and there are no more places than samples: each is delivered once. */
    if (n_in != n_out || seen->totals.n_samples != n_out)
        sim_fail(sim, "step %lu: %lu samples in, %lu out", (unsigned long)seen->step, (unsigned long)n_out,
                 (unsigned long)n_in);
    sim->n_samples += n_in;
}

void oracle_outcome(struct sim *sim, const struct sim_process *process, const struct wire_message *msg)
{
    const struct wire_outcome *outcome = &msg->outcome;
    struct sim_step *seen = step_of(sim, outcome->step);
    struct wire_message **kept;

    if (!seen) {
        sim_fail(sim, "outcome of step %lu, which nobody wants", (unsigned long)outcome->step);
        return;
    }
    if (seen->n_decided++ == 0) {
        seen->kind = outcome->kind;
        seen->plan_id = outcome->plan_id;
        seen->totals = outcome->totals;
        seen->n_micro_batches = outcome->n_micro_batches;
        memcpy(seen->error, outcome->error.text, sizeof seen->error);
    }
    if (seen->kind != outcome->kind || !wire_id_is(seen->plan_id, outcome->plan_id) ||
        memcmp(&seen->totals, &outcome->totals, sizeof seen->totals) != 0 ||
        (outcome->kind == WIRE_OUTCOME_ERROR && strcmp(seen->error, outcome->error.text) != 0)) {
        sim_fail(sim, "step %lu: rank %u replica %u is told another outcome", (unsigned long)outcome->step, process->rank,
                 process->replica);
        return;
    }
    if (outcome->kind == WIRE_OUTCOME_PLAN && outcome->n_slices != 1) {
        sim_fail(sim, "step %lu: rank %u gets %u slices", (unsigned long)outcome->step, process->rank, outcome->n_slices);
        return;
    }
    kept = &seen->slices[process->rank];
    if (!*kept && wire_copy(msg, kept) < 0)
        abort();
    if (outcome->kind == WIRE_OUTCOME_PLAN &&
        !same_slices(&(*kept)->outcome.slices[0], &outcome->slices[0], outcome->n_micro_batches))
        sim_fail(sim, "step %lu: replicas of rank %u see different micro-batches", (unsigned long)outcome->step,
                 process->rank);
    if (seen->n_decided == sim->n_processes && !seen->checked && sim->n_failures == 0)
        check_step(sim, seen);
}

void oracle_pure(struct sim *sim, const struct wire_message *msg)
{
    const struct wire_outcome *outcome = &msg->outcome;
    struct sim_step *seen = step_of(sim, outcome->step);

    if (!seen) {
        sim_fail(sim, "a coordinator decides step %lu, which nobody wants", (unsigned long)outcome->step);
        return;
    }
    if (!wire_id_is(seen->pure.epoch, outcome->epoch)) {
        seen->pure.epoch = outcome->epoch;
        seen->pure.plan_id = outcome->plan_id;
        seen->pure.kind = outcome->kind;
    } else if (seen->pure.kind != outcome->kind || !wire_id_is(seen->pure.plan_id, outcome->plan_id)) {
        sim_fail(sim, "step %lu: two coordinators decide differently", (unsigned long)outcome->step);
    }
}
