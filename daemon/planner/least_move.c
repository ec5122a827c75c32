/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaches the target while moving as few bytes as it can. What a rank can keep stays; the excess of each rank above the
 * target goes into a pool, the units with most cost a byte first; the pool, largest first, fills the largest holes.
 * Where counts are fixed, a rank that takes one in gives its smallest back, and these small ones fill the slots that
 * shedding left. What then still sticks out is repaired by moves and swaps (repair.c).
 *
 * Stops at the target, never beyond: below it nothing is gained that the user asked for, and bytes are lost.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "shed.h"

/* Looked at below the top of the heap where caps keep a unit out of the largest hole. */
#define CANDIDATES 8
/* Ranks of a node that are looked at: more than accelerators in any machine, but not a whole group declared one node.
 */
#define PEERS 64
/*
 * With few samples a rank, luck decides whether the target is reached. Tried in turn until one reaches it: as it is,
 * with the greedy choice of what leaves, and with an aim below the target (in quarters of the tolerance), which moves a
 * little more and leaves air for what does not fit exactly. Later ones search longer: `work` is the steps for each
 * unit, which bounds the time where the target cannot be reached.
 */
static const struct attempt {
    uint32_t below, work;
    bool searches, exchanges;
} attempts[] = {{0, 60, true, true},   {0, 60, false, false}, {1, 100, true, true},  {2, 100, true, false},
                {2, 400, false, true}, {3, 400, true, true},  {4, 800, false, false}};
#define MOST_WORK 1500000u /* steps of one attempt: about a tenth of a second */
#define LARGE_STEP 16384u  /* units: beyond, luck evens out and two attempts are all */
#define SMALL_STEP 128     /* units: all are tried, it takes less than 0.2 ms, and the fewest bytes win */
#define N_ATTEMPTS (sizeof attempts / sizeof *attempts)

/* Counts that are to be reached: every rank's own, or those that differ by at most one, with the longer ones where most
 * samples already are. */
static int want_counts(struct problem *pb, uint32_t *want)
{
    struct sort_item *items = pool_get(&pb->pool, 2ull * pb->n_ranks, sizeof *items);

    if (!items)
        return -ENOMEM;
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        want[r] = pb->req->count == POISE_COUNT_FREE ? pb->first[r + 1] - pb->first[r] : pb->count_min[r];
        items[r] = (struct sort_item){~(uint64_t)(pb->first[r + 1] - pb->first[r]), r};
    }
    if (pb->req->count != POISE_COUNT_BOUNDED)
        return 0;
    sort_items(items, pb->n_ranks, items + pb->n_ranks);
    for (uint32_t i = 0; i < pb->count_quota; i++)
        want[items[i].id]++;
    return 0;
}

/* What a small unit costs, which will fill a slot: the mean over ranks below their target of their smallest. */
static uint64_t small_cost(const struct mover *mv)
{
    const struct problem *pb = mv->pb;
    u128 sum = 0;
    uint32_t n = 0;

    for (uint32_t r = 0; r < pb->n_ranks; r++)
        if (mover_over(mv, r) == 0 && pb->unit_of_rank[r + 1] > pb->unit_of_rank[r]) {
            uint32_t k = pb->unit_of_rank[r + 1] - pb->unit_of_rank[r];
            sum += mv->cost[mv->home[pb->unit_of_rank[r + 1] - 1 - k / 10]];
            n++;
        }
    return n ? (uint64_t)(sum / n) : 0;
}

/* The smallest unit that lives on the rank, if it is smaller than the one that is to come. */
static uint32_t smallest_home(const struct mover *mv, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = mv->pb;

    for (uint32_t i = pb->unit_of_rank[rank + 1]; i-- > pb->unit_of_rank[rank];) {
        uint32_t v = mv->home[i];
        if (mv->where[v] == rank && mover_may_move(mv, v))
            return mv->cost[v] < mv->cost[unit] ? v : PLAN_ANY;
    }
    return PLAN_ANY;
}

static bool put_into(struct mover *mv, uint32_t rank, uint32_t unit)
{
    bool closed = mv->exchanges && mv->slots[rank] == 0;
    uint64_t room = mover_room(mv, rank);
    uint32_t leaver = closed ? smallest_home(mv, rank, unit) : PLAN_ANY;

    if (closed) {
        if (leaver == PLAN_ANY || room + mv->cost[leaver] < mv->cost[unit] ||
            !loads_may_lose(&mv->loads, rank, leaver) || !loads_fits_for(&mv->loads, rank, unit, leaver))
            return false;
        mover_take(mv, leaver);
        mv->reason[leaver] = POISE_REASON_COUNT;
    } else if (room < mv->cost[unit] || !loads_fits(&mv->loads, rank, unit)) {
        return false;
    }
    mover_put(mv, rank, unit, mv->reason[unit]);
    return true;
}

/* Tries the ranks on top of a heap. */
static bool try_heap(struct mover *mv, struct heap *heap, uint32_t unit)
{
    uint32_t popped[CANDIDATES], n_popped = 0, found = PLAN_ANY;

    while (found == PLAN_ANY && heap->n && n_popped < CANDIDATES) {
        uint32_t rank = heap->id[0];
        if (!mv->exchanges && mover_room(mv, rank) < mv->cost[unit])
            break; /* all others have less */
        heap_remove(heap, rank);
        popped[n_popped++] = rank;
        mv->is_open = false;
        if (put_into(mv, rank, unit))
            found = rank;
        mv->is_open = true;
    }
    while (n_popped--)
        mover_changed(mv, popped[n_popped]);
    return found != PLAN_ANY;
}

/* The rank of the unit's own node with the most room, if the unit fits there. */
static bool try_node(struct mover *mv, uint32_t unit)
{
    uint32_t home = mv->pb->unit_rank[unit], best = PLAN_ANY;

    if (!mv->peers)
        return false;
    for (uint32_t i = mv->node_first[home]; i < mv->node_end[home] && i - mv->node_first[home] < PEERS; i++) {
        uint32_t r = mv->peers[i];
        bool closed = mv->exchanges && mv->slots[r] == 0;
        if (mover_room(mv, r) > 0 && (best == PLAN_ANY || mover_room(mv, r) > mover_room(mv, best)) &&
            (closed || loads_fits(&mv->loads, r, unit)))
            best = r;
    }
    return best != PLAN_ANY && put_into(mv, best, unit);
}

bool mover_refill(struct mover *mv, uint32_t unit)
{
    if (try_node(mv, unit))
        return true;
    return try_heap(mv, &mv->open, unit) || try_heap(mv, &mv->closed, unit);
}

static int move_bulk(struct mover *mv)
{
    struct problem *pb = mv->pb;
    struct shedder s;
    uint32_t *want = pool_get(&pb->pool, pb->n_ranks, sizeof *want);

    if (!want || want_counts(pb, want) < 0 || shedder_new(mv, &s) < 0)
        return -ENOMEM;
    mv->small = mv->exchanges ? small_cost(mv) : 0;
    mv->most_room = shed_most_room(mv);
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t g = pb->size ? pb->size[0] : 1, n = mv->loads.count[r];
        shed_excess(&s, r);
        if (!mv->exchanges)
            continue;
        if (n > want[r] && s.n_taken < (n - want[r]) / g)
            shed_count(&s, r, (n - want[r]) / g - s.n_taken);
        mv->slots[r] = mv->slots[r] + want[r] / g - n / g; /* unsigned: the sum is never below 0 */
    }
    mover_open(mv);
    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = pb->sorted[i].id;
        if (mv->where[u] == IN_POOL && !mover_refill(mv, u))
            mover_squeeze(mv, u);
    }
    return 0;
}

/* Units that all have one size can be exchanged one for one; others only by repair. */
static bool alike(const struct problem *pb)
{
    for (uint32_t u = 1; pb->size && u < pb->n_units; u++)
        if (pb->size[u] != pb->size[0])
            return false;
    return true;
}

/* Hardly anything can move but in exchange: counts are fixed, or all micro-batches are full. */
static bool must_exchange(const struct problem *pb)
{
    if (pb->req->count != POISE_COUNT_FREE)
        return true;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        if (pb->first[r + 1] - pb->first[r] != pb->count_max[r])
            return false;
    return true;
}

static bool all_placed(const struct mover *mv)
{
    for (uint32_t u = 0; u < mv->pb->n_units; u++)
        if (mv->where[u] == IN_POOL)
            return false;
    return true;
}

static uint8_t reason_of(const struct mover *mv, uint32_t unit)
{
    if (mv->where[unit] != mv->pb->unit_rank[unit])
        return mv->reason[unit];
    return mv->cost[unit] ? POISE_REASON_KEPT : POISE_REASON_ZERO;
}

/* One attempt. Aims below the target by a share of the tolerance. *ret_over: the most that a rank sticks out. */
static int attempt(struct mover *mv, struct problem *pb, const struct attempt *how, uint64_t *ret_over)
{
    u128 target = pb->target, spare = pb->target - pb->bound;
    int rc;

    pb->target -= spare * how->below / 4;
    rc = mover_init(mv, pb);
    pb->target = target;
    if (rc < 0)
        return rc;
    mv->exchanges = pb->req->count != POISE_COUNT_FREE || (how->exchanges && must_exchange(pb));
    mv->searches = how->searches;
    mv->work = (uint64_t)how->work * (pb->n_units + 64);
    mv->work = mv->work < MOST_WORK ? mv->work : MOST_WORK;
    if (mv->exchanges && !alike(pb))
        mover_open(mv);
    else if ((rc = move_bulk(mv)) < 0)
        return rc;
    if (!all_placed(mv))
        return -ENOSPC;
    mover_aim(mv);
    mover_repair(mv);
    mover_return(mv);
    *ret_over = 0;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        *ret_over = mover_over(mv, r) > *ret_over ? mover_over(mv, r) : *ret_over;
    return 0;
}

int least_move_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    uint64_t least = UINT64_MAX, over = 0;
    u128 fewest = 0;

    for (uint32_t i = 0; i < (pb->n_units > LARGE_STEP ? 2 : N_ATTEMPTS) && (least > 0 || pb->n_units <= SMALL_STEP);
         i++) {
        struct mover mv;
        u128 bytes = 0;
        int rc = attempt(&mv, pb, &attempts[i], &over);
        if (rc == -ENOMEM)
            return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
        for (uint32_t u = 0; rc == 0 && u < pb->n_units; u++)
            bytes += mv.where[u] != pb->unit_rank[u] ? pb->bytes[u] : 0;
        if (rc < 0 || over > least || (over == least && bytes >= fewest))
            continue;
        least = over;
        fewest = bytes;
        for (uint32_t u = 0; u < pb->n_units; u++) {
            layout->rank[u] = mv.where[u];
            layout->reason[u] = reason_of(&mv, u);
        }
    }
    if (least == UINT64_MAX)
        return err_set(err, -ENOSPC, "least_move found no rank under caps and counts for some samples");
    return 0;
}
