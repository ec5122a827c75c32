/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Largest first, but at home where home has room: for what least_move's bulk cannot do. It balances several sums at
 * once (phases between barriers each have a maximum of their own) and takes units of any sizes under fixed counts.
 *
 * A unit's weight in a segment is its share of that segment's target. Units go by their largest weight, falling; each
 * stays if no sum of its rank comes above the target, else it goes to the rank whose largest sum is least, among those
 * with room.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "heap.h"
#include "loads.h"

#define ONE ((uint64_t)1 << 30) /* a whole target; sums of 2^31 samples still fit in 64 bits */
/* Ranks keep their own up to this much of the target, in 1/64: tried in turn until the largest sum meets the target.
 * Lower ones leave more air for what has no home. */
static const uint32_t keeps[] = {64, 63, 62, 61, 60};
#define N_KEEPS (sizeof keeps / sizeof *keeps)
#define WORK_A_UNIT 64 /* ranks asked in all for each unit where caps bind everywhere */
#define CANDIDATES 16  /* ranks from the top of the heap that are looked at for each unit */

struct sticky {
    struct problem *pb;
    struct loads loads;
    uint64_t *weight; /* [n_units][n_segments] */
    uint64_t *sum;    /* [n_ranks][n_segments] */
    struct heap heap; /* ranks that may take more, by their largest sum */
    uint64_t keep;    /* a rank keeps its own up to this */
    uint64_t work;    /* ranks that may still be asked where caps bind everywhere */
};

bool sticky_applies(const struct problem *pb)
{
    if (pb->n_segments > 1)
        return true;
    for (uint32_t u = 1; pb->has_units && pb->req->count != POISE_COUNT_FREE && u < pb->n_units; u++)
        if (pb->size[u] != pb->size[0])
            return true;
    return false;
}

static uint64_t segment_cost(const struct problem *pb, uint32_t unit, uint32_t g)
{
    uint64_t cost = 0;

    if (pb->n_segments == 1)
        return pb->cost[unit];
    for (uint32_t p = 0; p < pb->n_phases; p++)
        if (pb->segment[p] == g)
            cost += pb->phase_cost[(size_t)p * pb->n_units + unit];
    return cost;
}

/* The target of a segment: the mean rank or the largest unit, and the tolerance. */
static u128 segment_target(const struct problem *pb, uint32_t g)
{
    u128 total = 0, largest = 0;

    for (uint32_t u = 0; u < pb->n_units; u++) {
        u128 cost = segment_cost(pb, u, g);
        total += cost;
        largest = cost > largest ? cost : largest;
    }
    total = pb->has_speeds ? total * 1000000u / pb->speed_sum : (total + pb->n_ranks - 1) / pb->n_ranks;
    total = total > largest ? total : largest;
    return total + total * pb->tolerance_ppm / 1000000u + 1;
}

static uint64_t heaviest(const uint64_t *w, uint32_t n)
{
    uint64_t most = 0;

    for (uint32_t g = 0; g < n; g++)
        most = w[g] > most ? w[g] : most;
    return most;
}

static int sticky_init(struct sticky *st, struct problem *pb, struct sort_item *items)
{
    memset(st, 0, sizeof *st);
    st->pb = pb;
    st->weight = pool_get(&pb->pool, (uint64_t)pb->n_units * pb->n_segments, sizeof *st->weight);
    st->sum = pool_get(&pb->pool, (uint64_t)pb->n_ranks * pb->n_segments, sizeof *st->sum);
    if (!st->weight || !st->sum || loads_new(pb, &st->loads) < 0 || heap_new(&pb->pool, pb->n_ranks, &st->heap) < 0)
        return -ENOMEM;
    for (uint32_t g = 0; g < pb->n_segments; g++) {
        u128 target = segment_target(pb, g);
        for (uint32_t u = 0; u < pb->n_units; u++)
            st->weight[(size_t)u * pb->n_segments + g] = (uint64_t)((u128)segment_cost(pb, u, g) * ONE / target);
    }
    for (uint32_t u = 0; u < pb->n_units; u++) {
        /* What costs nothing is placed first, at home. */
        uint64_t weight = pb->cost[u] ? heaviest(st->weight + (size_t)u * pb->n_segments, pb->n_segments) : UINT64_MAX;
        items[u] = (struct sort_item){~weight, u};
    }
    sort_items(items, pb->n_units, items + pb->n_units);
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        if (pb->count_max[r] > 0)
            heap_push(&st->heap, r, 0);
    return 0;
}

/* The rank's largest sum with the unit, by its speed. */
static uint64_t height_with(const struct sticky *st, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = st->pb;
    uint64_t most = 0;

    for (uint32_t g = 0; g < pb->n_segments; g++) {
        uint64_t sum = st->sum[(size_t)rank * pb->n_segments + g] + st->weight[(size_t)unit * pb->n_segments + g];
        most = sum > most ? sum : most;
    }
    return saturate(rank_time(pb, rank, most));
}

static uint32_t choose(struct sticky *st, uint32_t unit)
{
    const struct problem *pb = st->pb;
    uint32_t home = pb->unit_rank[unit], best = PLAN_ANY;
    uint64_t least = UINT64_MAX;

    if (loads_fits(&st->loads, home, unit) && (pb->cost[unit] == 0 || height_with(st, home, unit) <= st->keep))
        return home;
    for (uint32_t i = 0; i < st->heap.n && i < CANDIDATES; i++) {
        uint32_t r = st->heap.id[i];
        uint64_t height = height_with(st, r, unit);
        if (height < least && loads_fits(&st->loads, r, unit)) {
            least = height;
            best = r;
        }
    }
    if (best != PLAN_ANY)
        return best;
    if (loads_fits(&st->loads, home, unit))
        return home;
    for (uint32_t i = 0; i < st->heap.n && st->work > 0; i++, st->work--)
        if (loads_fits(&st->loads, st->heap.id[i], unit))
            return st->heap.id[i];
    return PLAN_ANY;
}

static void put(struct sticky *st, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = st->pb;

    loads_add(&st->loads, rank, unit);
    for (uint32_t g = 0; g < pb->n_segments; g++)
        st->sum[(size_t)rank * pb->n_segments + g] += st->weight[(size_t)unit * pb->n_segments + g];
    if (!heap_has(&st->heap, rank))
        return;
    st->heap.key[rank] = rank_time(pb, rank, heaviest(st->sum + (size_t)rank * pb->n_segments, pb->n_segments));
    if (st->loads.count[rank] >= pb->count_max[rank])
        heap_remove(&st->heap, rank);
    else
        heap_moved(&st->heap, rank);
}

/* One try; *ret_height: the largest sum of any rank. -ENOSPC: some unit fits nowhere. */
static int try_keep(struct sticky *st, const struct sort_item *items, uint32_t *rank, uint64_t *ret_height)
{
    const struct problem *pb = st->pb;
    uint64_t height = 0;

    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = items[i].id, r = choose(st, u);
        if (r == PLAN_ANY)
            return -ENOSPC;
        put(st, r, u);
        rank[u] = r;
    }
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint64_t h = saturate(rank_time(pb, r, heaviest(st->sum + (size_t)r * pb->n_segments, pb->n_segments)));
        height = h > height ? h : height;
    }
    *ret_height = height;
    return 0;
}

int sticky_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    struct sort_item *items = pool_get(&pb->pool, 2ull * pb->n_units, sizeof *items);
    uint32_t *rank = pool_get(&pb->pool, pb->n_units, sizeof *rank);
    uint64_t least = UINT64_MAX, height;

    if (!items || !rank)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t k = 0; k < N_KEEPS && least > ONE; k++) {
        struct sticky st;
        if (sticky_init(&st, pb, items) < 0)
            return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
        st.keep = ONE / 64 * keeps[k];
        st.work = (uint64_t)WORK_A_UNIT * pb->n_units + pb->n_ranks;
        if (try_keep(&st, items, rank, &height) < 0 || height >= least)
            continue;
        least = height;
        memcpy(layout->rank, rank, pb->n_units * sizeof *rank);
    }
    if (least == UINT64_MAX)
        return err_set(err, -ENOSPC, "no rank under caps and counts takes some unit");
    for (uint32_t u = 0; u < pb->n_units; u++) {
        if (layout->rank[u] != pb->unit_rank[u])
            layout->reason[u] = pb->cost[u] ? POISE_REASON_SHED : POISE_REASON_COUNT;
        else
            layout->reason[u] = pb->cost[u] ? POISE_REASON_KEPT : POISE_REASON_ZERO;
    }
    return 0;
}
