/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for ranks that meet at every micro-batch: what counts is the sum over micro-batches of the largest rank's cost.
 * And for pipelines, where the largest micro-batch counts for every stage: they want micro-batches alike as well.
 *
 * groups.c gives every micro-batch a height, the best if moving cost nothing. Here the same heights are reached with
 * few bytes moved: ranks are balanced as a whole, each arranges its own units under the heights, which is free, and
 * only what sticks out is exchanged with a rank that has air below its height.
 */
#include <errno.h>
#include <string.h>

#include "micro.h"

/* Rounds over all cells; later ones find little. */
#define ROUNDS 3
/* Heights are raised by tolerance / SLACK_PARTS: less moves more, more leaves more standing out. */
#define SLACK_PARTS 10
/* Pairs of units compared for each unit, and in all: bounds time (about a tenth of a second), not quality, up to 256
 * ranks. */
#define WORK_A_UNIT 1000
#define MOST_WORK 16000000u

static u128 raised(const struct problem *pb, u128 height)
{
    return height + height * pb->tolerance_ppm / (SLACK_PARTS * 1000000u);
}

static int micro_init(struct micro *mc, struct problem *pb, const struct layout *layout, const u128 *height)
{
    uint64_t n_cells = (uint64_t)pb->n_ranks * pb->n_micro_batches;
    uint32_t shift = 0;

    memset(mc, 0, sizeof *mc);
    mc->pb = pb;
    mc->n_mb = pb->n_micro_batches;
    mc->k = pb->micro_batch_samples;
    mc->work = (uint64_t)WORK_A_UNIT * pb->n_units;
    mc->work = mc->work < MOST_WORK ? mc->work : MOST_WORK;
    mc->cost = pool_get(&pb->pool, pb->n_units, sizeof *mc->cost);
    mc->height = pool_get(&pb->pool, mc->n_mb, sizeof *mc->height);
    mc->sum = pool_get(&pb->pool, n_cells, sizeof *mc->sum);
    mc->length = pool_get(&pb->pool, n_cells * pb->n_phases, sizeof *mc->length);
    mc->cell_first = pool_get(&pb->pool, n_cells + 1, sizeof *mc->cell_first);
    mc->unit = pool_get(&pb->pool, pb->n_units, sizeof *mc->unit);
    if (!mc->cost || !mc->height || !mc->sum || !mc->length || !mc->cell_first || !mc->unit ||
        loads_new(pb, &mc->loads) < 0)
        return -ENOMEM;
    while (pb->cost_total >> shift >> 62)
        shift++;
    for (uint32_t u = 0; u < pb->n_units; u++) {
        mc->cost[u] = pb->cost[u] >> shift;
        loads_add(&mc->loads, layout->rank[u], u);
    }
    for (uint32_t m = 0; m < mc->n_mb; m++)
        mc->height[m] = (uint64_t)(raised(pb, height[m]) >> shift);
    return 0;
}

void micro_exchange(struct micro *mc, struct layout *layout, uint32_t u, uint32_t v)
{
    const struct problem *pb = mc->pb;
    uint32_t a = layout->rank[u], b = layout->rank[v];

    loads_remove(&mc->loads, a, u);
    loads_remove(&mc->loads, b, v);
    loads_add(&mc->loads, b, u);
    loads_add(&mc->loads, a, v);
    layout->rank[u] = b;
    layout->rank[v] = a;
    layout->reason[u] = b == pb->unit_rank[u] ? POISE_REASON_KEPT : POISE_REASON_SHED;
    layout->reason[v] = a == pb->unit_rank[v] ? POISE_REASON_KEPT : POISE_REASON_SWAP;
}

/* Where a unit goes in its own rank: most air below the height. Signed: a cell may stick out already. */
static uint32_t airiest(const struct micro *mc, size_t cell, const uint32_t *count, uint32_t unit)
{
    const struct problem *pb = mc->pb;
    uint32_t best = PLAN_ANY;
    int64_t most = INT64_MIN;

    for (uint32_t m = 0; m < mc->n_mb; m++) {
        int64_t air = (int64_t)(mc->height[m] - mc->sum[cell + m]);
        bool fits = count[m] < mc->k;
        if (mc->k == 1 && fits)
            return m; /* the i-th largest into the i-th: micro-batches fall */
        for (uint32_t p = 0; p < pb->n_phases && fits && count[m]; p++)
            fits =
                mc->length[(cell + m) * pb->n_phases + p] + micro_length(pb, p, unit) <= pb->cap_length_micro_batch[p];
        if (fits && air > most) {
            most = air;
            best = m;
        }
    }
    return best;
}

/* Every rank's units under the heights, as well as they fit. */
static int arrange(struct micro *mc, struct layout *layout)
{
    struct problem *pb = mc->pb;
    uint32_t *count = pool_get(&pb->pool, (uint64_t)pb->n_ranks * mc->n_mb, sizeof *count);

    if (!count)
        return -ENOMEM;
    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = pb->sorted[i].id;
        size_t cell = (size_t)layout->rank[u] * mc->n_mb;
        uint32_t m = airiest(mc, cell, count + cell, u);
        if (m == PLAN_ANY)
            return -ENOSPC;
        mc->sum[cell + m] += mc->cost[u];
        count[cell + m]++;
        for (uint32_t p = 0; p < pb->n_phases; p++)
            mc->length[(cell + m) * pb->n_phases + p] += micro_length(pb, p, u);
        layout->micro_batch[u] = m;
        mc->cell_first[cell + m + 1]++;
    }
    for (size_t c = 0; c < (size_t)pb->n_ranks * mc->n_mb; c++)
        mc->cell_first[c + 1] += mc->cell_first[c];
    memset(count, 0, (size_t)pb->n_ranks * mc->n_mb * sizeof *count);
    for (uint32_t u = 0; u < pb->n_units; u++) {
        size_t cell = (size_t)layout->rank[u] * mc->n_mb + layout->micro_batch[u];
        mc->unit[mc->cell_first[cell] + count[cell]++] = u;
    }
    return 0;
}

/* After `out` has left for `in`: within the caps of cell and rank, and no phase is lost. */
static bool cell_takes(const struct micro *mc, size_t cell, uint32_t in, uint32_t out)
{
    const struct problem *pb = mc->pb;
    uint32_t rank = (uint32_t)(cell / mc->n_mb);

    if (mc->loads.bytes[rank] - pb->packed[out] + pb->packed[in] > pb->cap_bytes_rank)
        return false;
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        uint64_t was = mc->length[cell * pb->n_phases + p],
                 now = was - micro_length(pb, p, out) + micro_length(pb, p, in);
        uint64_t sum =
            mc->loads.length[(size_t)rank * pb->n_phases + p] - micro_length(pb, p, out) + micro_length(pb, p, in);
        if (now > pb->cap_length_micro_batch[p] || sum > pb->cap_length_rank[p] || (was > 0 && now == 0))
            return false;
    }
    return true;
}

struct exchange {
    size_t cell;           /* the other cell */
    uint32_t mine, theirs; /* places in unit[]; PLAN_ANY: none found */
    uint64_t bytes, gain;  /* gain: how much less sticks out in all */
};

static uint64_t excess(uint64_t sum, uint64_t height)
{
    return sum > height ? sum - height : 0;
}

/* Within a rank nothing moves, so that comes first; then most gain a byte. */
static bool better(const struct exchange *a, const struct exchange *b)
{
    if (b->mine == PLAN_ANY || (a->bytes == 0) != (b->bytes == 0))
        return b->mine == PLAN_ANY || a->bytes == 0;
    if (a->bytes == 0)
        return a->gain > b->gain;
    return (u128)a->gain * b->bytes > (u128)b->gain * a->bytes;
}

static void consider(const struct micro *mc, size_t cell, uint32_t mine, size_t other, uint32_t theirs,
                     struct exchange *best)
{
    const struct problem *pb = mc->pb;
    uint32_t u = mc->unit[mine], v = mc->unit[theirs];
    uint64_t shift = mc->cost[u] - mc->cost[v], mine_high = mc->height[cell % mc->n_mb];
    uint64_t their_high = mc->height[other % mc->n_mb];

    if (mc->cost[v] >= mc->cost[u])
        return;
    uint64_t before = excess(mc->sum[cell], mine_high) + excess(mc->sum[other], their_high);
    uint64_t after = excess(mc->sum[cell] - shift, mine_high) + excess(mc->sum[other] + shift, their_high);
    if (after >= before)
        return;
    bool same = other / mc->n_mb == cell / mc->n_mb;
    struct exchange e = {other, mine, theirs, same ? 0 : pb->bytes[u] + pb->bytes[v] + 1, before - after};
    if (better(&e, best) && cell_takes(mc, cell, v, u) && cell_takes(mc, other, u, v))
        *best = e;
}

/* Exchanges something of a cell that sticks out with a smaller unit elsewhere. */
static bool lower(struct micro *mc, size_t cell, struct layout *layout)
{
    struct problem *pb = mc->pb;
    struct exchange best = {.mine = PLAN_ANY};
    uint32_t rank = (uint32_t)(cell / mc->n_mb), n = pb->n_ranks < MICRO_RANKS ? pb->n_ranks : MICRO_RANKS;

    for (uint32_t i = 0; i < n; i++) {
        size_t other = (size_t)((rank + i) % pb->n_ranks) * mc->n_mb;
        for (uint32_t m = 0; m < mc->n_mb; m++) {
            uint64_t pairs = (uint64_t)(mc->cell_first[cell + 1] - mc->cell_first[cell]) *
                             (mc->cell_first[other + m + 1] - mc->cell_first[other + m]);
            if (other + m == cell || mc->sum[other + m] >= mc->height[m] || pairs > mc->work)
                continue;
            mc->work -= pairs;
            for (uint32_t a = mc->cell_first[cell]; a < mc->cell_first[cell + 1]; a++)
                for (uint32_t b = mc->cell_first[other + m]; b < mc->cell_first[other + m + 1]; b++)
                    consider(mc, cell, a, other + m, b, &best);
        }
        if (best.mine != PLAN_ANY && best.bytes == 0)
            break;
    }
    if (best.mine == PLAN_ANY)
        return false;
    uint32_t u = mc->unit[best.mine], v = mc->unit[best.theirs];
    mc->unit[best.mine] = v;
    mc->unit[best.theirs] = u;
    mc->sum[cell] -= mc->cost[u] - mc->cost[v];
    mc->sum[best.cell] += mc->cost[u] - mc->cost[v];
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        mc->length[cell * pb->n_phases + p] += micro_length(pb, p, v) - micro_length(pb, p, u);
        mc->length[best.cell * pb->n_phases + p] += micro_length(pb, p, u) - micro_length(pb, p, v);
    }
    layout->micro_batch[u] = (uint32_t)(best.cell % mc->n_mb);
    layout->micro_batch[v] = (uint32_t)(cell % mc->n_mb);
    micro_exchange(mc, layout, u, v);
    return true;
}

static void lower_all(struct micro *mc, struct layout *layout)
{
    bool changed = true;

    for (uint32_t round = 0; changed && round < ROUNDS; round++) {
        changed = false;
        for (uint32_t m = 0; m < mc->n_mb; m++)
            for (uint32_t r = 0; r < mc->pb->n_ranks; r++) {
                size_t cell = (size_t)r * mc->n_mb + m;
                while (mc->sum[cell] > mc->height[m] && lower(mc, cell, layout))
                    changed = true;
            }
    }
}

/* Ranks first: each brought below the sum of the heights, with few bytes moved. */
static int balance_ranks(struct problem *pb, const u128 *height, struct layout *layout, struct poise_err *err)
{
    u128 target = pb->target, sum = 0;
    int rc;

    if (pb->req->objective == POISE_OBJECTIVE_PIPELINE)
        return least_move_place(pb, layout, err); /* aims at what the bubbles leave */
    for (uint32_t m = 0; m < pb->n_micro_batches; m++)
        sum += raised(pb, height[m]);
    pb->target = sum;
    rc = least_move_place(pb, layout, err);
    pb->target = target;
    return rc;
}

int micro_place_near(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    u128 *height = pool_get(&pb->pool, pb->n_micro_batches, sizeof *height);
    struct micro mc;
    int rc = 0;

    if (!height || groups_place(pb, layout, height) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    /* In a pipeline only the largest micro-batch counts: all may be as high. */
    for (uint32_t m = 1; pb->req->objective == POISE_OBJECTIVE_PIPELINE && m < pb->n_micro_batches; m++)
        height[m] = height[0];
    if (pb->micro_batch_samples == 1 && pb->req->objective == POISE_OBJECTIVE_MICROBATCH)
        memcpy(layout->rank, pb->unit_rank, pb->n_units * sizeof *layout->rank); /* levels say all */
    else if ((rc = balance_ranks(pb, height, layout, err)) < 0)
        return rc;
    if (micro_init(&mc, pb, layout, height) < 0 ||
        (pb->micro_batch_samples == 1 && pb->req->objective == POISE_OBJECTIVE_MICROBATCH &&
         level_ranks(&mc, layout) < 0))
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if ((rc = arrange(&mc, layout)) == -ENOMEM)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if (rc < 0)
        return err_set(err, rc, "the samples of some rank do not fit into micro-batches under the caps");
    lower_all(&mc, layout);
    return 0;
}
