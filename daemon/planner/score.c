/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: what a layout comes to. It sees every sample once, in the order of cells (rank, micro-batch), and knows
 * nothing of how the layout was made; so a bug of an algorithm shows here as a plan that is refused, not as a wrong
 * plan. All sums are exact, in 128 bits.
 *
 * The objective is the predicted time of the step (DESIGN: objective):
 *   step        sum over segments (phases between barriers) of the max over ranks of their cost
 *   microbatch  max over sync sets of the sum over micro-batches and segments of the max over the set's ranks
 *   pipeline    max over ranks of (sum + (stages - 1) x largest micro-batch)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

int layout_new(struct problem *pb, uint32_t n_micro_batches, struct layout *ret_layout)
{
    struct layout layout = {.n_micro_batches = n_micro_batches};
    uint64_t n_cells = (uint64_t)pb->n_ranks * n_micro_batches;

    layout.rank = pool_get(&pb->pool, pb->n_units, sizeof *layout.rank);
    layout.micro_batch = pool_get(&pb->pool, pb->n_units, sizeof *layout.micro_batch);
    layout.reason = pool_get(&pb->pool, pb->n_units, sizeof *layout.reason);
    layout.order = pool_get(&pb->pool, pb->n_units, sizeof *layout.order);
    layout.cell_first = pool_get(&pb->pool, n_cells + 1, sizeof *layout.cell_first);
    if (!layout.rank || !layout.micro_batch || !layout.reason || !layout.order || !layout.cell_first)
        return -ENOMEM;
    memcpy(layout.rank, pb->unit_rank, pb->n_units * sizeof *layout.rank);
    memcpy(layout.micro_batch, pb->unit_arrival, pb->n_units * sizeof *layout.micro_batch);
    *ret_layout = layout;
    return 0;
}

void layout_sort(const struct problem *pb, struct layout *layout)
{
    size_t n_cells = (size_t)pb->n_ranks * layout->n_micro_batches;
    uint32_t *first = layout->cell_first;

    memset(first, 0, (n_cells + 1) * sizeof *first);
    for (uint32_t u = 0; u < pb->n_units; u++)
        first[(size_t)layout->rank[u] * layout->n_micro_batches + layout->micro_batch[u] + 1]++;
    for (size_t c = 0; c < n_cells; c++)
        first[c + 1] += first[c];
    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = layout->sequence ? layout->sequence[i] : i;
        layout->order[first[(size_t)layout->rank[u] * layout->n_micro_batches + layout->micro_batch[u]]++] = u;
    }
    memmove(first + 1, first, n_cells * sizeof *first); /* each now stands where the next begins */
    first[0] = 0;
}

struct cell {
    uint32_t samples, units;
    uint64_t length[POISE_MAX_PHASES];
    u128 cost[POISE_MAX_PHASES]; /* [n_segments] */
    u128 bytes;                  /* after padding */
};

/* A phase that pads: as many samples as have it, each at the cost of the largest. */
static u128 padded_cost(const struct problem *pb, uint32_t p, const uint32_t *units, uint32_t n)
{
    const struct poise_plan_request *req = pb->req;
    const struct poise_phase *phase = &pb->phase[p];
    uint64_t length = 0, attention = 0, count = 0;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t m = 0; m < unit_n_members(pb, units[i]); m++) {
            size_t at = (size_t)p * pb->n_samples + unit_member(pb, units[i], m);
            uint64_t l = req->length[at];
            uint64_t a = l == 0 || !phase->quadratic ? 0 : req->attention ? req->attention[at] : l * l;
            length = l > length ? l : length;
            attention = a > attention ? a : attention;
            count += l > 0;
        }
    u128 one = (u128)phase->linear * length + (u128)phase->quadratic * attention + phase->constant;
    return one * (phase->passes ? phase->passes : 1) * count;
}

/* The widest of each extent. */
static void widen(const struct problem *pb, const uint32_t *units, uint32_t n, uint64_t widest[POISE_MAX_EXTENTS])
{
    const struct poise_plan_request *req = pb->req;

    for (uint32_t e = 0; e < req->n_extents; e++) {
        const uint32_t *extent = req->extent + (size_t)e * pb->n_samples;
        uint32_t most = 0;
        for (uint32_t i = 0; i < n && !pb->member_first; i++) /* units are samples */
            most = extent[units[i]] > most ? extent[units[i]] : most;
        for (uint32_t i = 0; i < n && pb->member_first; i++)
            for (uint32_t m = 0; m < unit_n_members(pb, units[i]); m++) {
                uint32_t x = extent[unit_member(pb, units[i], m)];
                most = x > most ? x : most;
            }
        widest[e] = most;
    }
}

static u128 padded_bytes(const struct problem *pb, const uint32_t *units, uint32_t n, uint32_t samples)
{
    const struct poise_plan_request *req = pb->req;
    uint64_t widest[POISE_MAX_EXTENTS] = {0};
    u128 sum = 0;

    widen(pb, units, n, widest);
    for (uint32_t i = 0; i < req->n_pads; i++) {
        const struct poise_pad *pad = &req->pads[i];
        uint32_t multiple = pad->multiple ? pad->multiple : 1;
        u128 bytes = (u128)samples * pad->unit_bytes;
        for (uint32_t e = 0; e < req->n_extents; e++)
            if (pad->axis_mask >> e & 1) {
                uint64_t x = pad->fixed[e] ? pad->fixed[e] : widest[e];
                if (multiple > 1)
                    x = (x + multiple - 1) / multiple * multiple;
                /* Four axes of 32 bits and a count may overflow even 128 bits; no such batch fits any cap. */
                if (__builtin_mul_overflow(bytes, (u128)x, &bytes))
                    return (u128)1 << 100;
            }
        if (__builtin_add_overflow(sum, bytes, &sum) || sum >> 100)
            return (u128)1 << 100;
    }
    return sum;
}

/* Sums of a column over units, a loop a column: the sum stays in registers. Lengths of a phase fit in 64 bits. */
static uint64_t sum_of(const uint64_t *column, const uint32_t *units, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += column[units[i]];
    return sum;
}

static u128 wide_sum_of(const uint64_t *column, const uint32_t *units, uint32_t n)
{
    u128 sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += column[units[i]];
    return sum;
}

static uint32_t samples_of(const struct problem *pb, const uint32_t *units, uint32_t n)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < n && pb->size; i++)
        sum += pb->size[units[i]];
    return pb->size ? sum : n;
}

static void score_cell(const struct problem *pb, const uint32_t *units, uint32_t n, struct cell *cell)
{
    cell->units = n;
    cell->samples = samples_of(pb, units, n);
    cell->bytes = wide_sum_of(pb->packed, units, n);
    for (uint32_t p = 0; p < pb->n_phases; p++)
        cell->length[p] = sum_of(pb->length + (size_t)p * pb->n_units, units, n);
    for (uint32_t g = 0; g < pb->n_segments; g++)
        cell->cost[g] = 0;
    if (!pb->phase_cost)
        cell->cost[0] = wide_sum_of(pb->cost, units, n);
    for (uint32_t p = 0; pb->phase_cost && p < pb->n_phases; p++) {
        if (pb->phase[p].flags & POISE_PHASE_PADDED)
            cell->cost[pb->segment[p]] += padded_cost(pb, p, units, n);
        else
            cell->cost[pb->segment[p]] += wide_sum_of(pb->phase_cost + (size_t)p * pb->n_units, units, n);
    }
    if (pb->req->n_pads && cell->samples)
        cell->bytes += padded_bytes(pb, units, n, cell->samples);
}

struct rank_sum {
    uint32_t samples, units;
    uint64_t length[POISE_MAX_PHASES];
    u128 bytes, largest;
    u128 cost[POISE_MAX_PHASES];
};

#define RAISE(max, x)                                                                                                  \
    do {                                                                                                               \
        if ((max) < (x))                                                                                               \
            (max) = (x);                                                                                               \
    } while (0)

static void add_cell(const struct problem *pb, const struct cell *cell, struct rank_sum *rank, struct score *score)
{
    bool lacks = false, over = cell->samples > pb->micro_batch_samples;
    u128 cost = 0;

    rank->samples += cell->samples;
    rank->units += cell->units;
    rank->bytes += cell->bytes;
    RAISE(score->samples_micro_batch, cell->samples);
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        bool lack = pb->present[p] && cell->length[p] == 0;
        rank->length[p] += cell->length[p];
        RAISE(score->length_micro_batch[p], cell->length[p]);
        score->lacking_phase[p] += lack;
        lacks |= lack;
        over |= cell->length[p] > pb->cap_length_micro_batch[p];
    }
    score->lacking += lacks;
    score->over += over && cell->units > 1; /* one that alone exceeds a cap has a micro-batch of its own */
    for (uint32_t g = 0; g < pb->n_segments; g++) {
        rank->cost[g] += cell->cost[g];
        cost += cell->cost[g];
    }
    RAISE(rank->largest, cost);
}

static void add_rank(const struct problem *pb, uint32_t r, const struct rank_sum *rank, u128 *segment_max,
                     struct score *score)
{
    bool over = rank->bytes > pb->cap_bytes_rank;
    u128 cost = 0;

    if (r == 0)
        score->samples_rank_min = rank->samples;
    if (rank->samples < score->samples_rank_min)
        score->samples_rank_min = rank->samples;
    RAISE(score->samples_rank_max, rank->samples);
    RAISE(score->bytes_rank, rank->bytes);
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        RAISE(score->length_rank[p], rank->length[p]);
        over |= rank->length[p] > pb->cap_length_rank[p];
    }
    score->over += over && rank->units > 1;
    score->over += rank->samples < pb->count_min[r] || rank->samples > pb->count_max[r];
    for (uint32_t g = 0; g < pb->n_segments; g++) {
        cost += rank->cost[g];
        RAISE(segment_max[g], rank_time(pb, r, rank->cost[g]));
    }
    RAISE(score->rank_max, rank_time(pb, r, cost));
    if (pb->req->objective == POISE_OBJECTIVE_PIPELINE)
        RAISE(score->objective, rank_time(pb, r, cost + (pb->stages - 1) * rank->largest));
}

/* max over sets of the sum over micro-batches and segments of meet[set][micro-batch][segment] */
static u128 longest_set(const struct problem *pb, const u128 *meet, uint32_t n_micro_batches)
{
    size_t n = (size_t)n_micro_batches * pb->n_segments;
    u128 longest = 0;

    for (uint32_t s = 0; s < pb->n_sets; s++) {
        u128 sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += meet[s * n + i];
        RAISE(longest, sum);
    }
    return longest;
}

int score_layout(struct problem *pb, const struct layout *layout, struct score *ret_score)
{
    bool meets = pb->req->objective == POISE_OBJECTIVE_MICROBATCH;
    uint32_t n_mb = layout->n_micro_batches;
    struct score score = {0};
    u128 segment_max[POISE_MAX_PHASES] = {0};
    u128 *meet = NULL;

    if (meets && !(meet = calloc((size_t)pb->n_sets * n_mb * pb->n_segments, sizeof *meet)))
        return -ENOMEM;
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        struct rank_sum rank = {0};
        for (uint32_t m = 0; m < n_mb; m++) {
            size_t c = (size_t)r * n_mb + m;
            struct cell cell;
            score_cell(pb, layout->order + layout->cell_first[c], layout->cell_first[c + 1] - layout->cell_first[c],
                       &cell);
            add_cell(pb, &cell, &rank, &score);
            for (uint32_t g = 0; meets && g < pb->n_segments; g++)
                RAISE(meet[((size_t)pb->set[r] * n_mb + m) * pb->n_segments + g], rank_time(pb, r, cell.cost[g]));
        }
        add_rank(pb, r, &rank, segment_max, &score);
    }
    if (meets)
        score.objective = longest_set(pb, meet, n_mb);
    else if (pb->req->objective == POISE_OBJECTIVE_STEP)
        for (uint32_t g = 0; g < pb->n_segments; g++)
            score.objective += segment_max[g];
    free(meet);
    *ret_score = score;
    return 0;
}

bool score_not_worse(const struct problem *pb, const struct score *score)
{
    for (uint32_t p = 0; p < pb->n_phases; p++)
        if (score->lacking_phase[p] > pb->arrival.lacking_phase[p])
            return false;
    return score->objective <= pb->arrival.objective && score->lacking <= pb->arrival.lacking;
}
