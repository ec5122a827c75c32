/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaches the target while moving as few bytes as it can. What a rank can keep stays; the excess of each rank above the
 * target goes into a pool, the units with most cost a byte first; the pool, largest first, fills the largest holes. Where
 * counts are fixed, a rank that takes one in gives its smallest back, and these small ones fill the slots that shedding
 * left. What then still sticks out is repaired by moves and swaps (repair.c).
 *
 * Stops at the target, never beyond: below it nothing is gained that the user asked for, and bytes are lost.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "mover.h"

/* Looked at below the top of the heap where caps keep a unit out of the largest hole. */
#define CANDIDATES 8
/* Ranks of a node that are looked at: more than accelerators in any machine, but not a whole group declared one node. */
#define PEERS 64
/* Units already chosen that may be exchanged for a better fit; more would make shedding quadratic in samples. */
#define EXCHANGES 16
/* The search for a better choice of what leaves: steps, the units it looks at, ranks that are searched in full, and when a
 * choice is close enough to what no choice can beat (1/64). With eight samples a rank a greedy choice is 13 % above it. */
#define NODES 400
#define SEARCH_UNITS 40
#define SMALL_RANK 16
#define CLOSE_ENOUGH 64
/* Steps of search for each unit, in repair: bounds the time where the target cannot be reached. */
#define WORK_A_UNIT 60

/*
 * With few samples a rank, luck decides whether the target is reached. Tried in turn until one reaches it: as it is, with
 * the greedy choice of what leaves, and with an aim below the target (in quarters of the tolerance), which moves a little
 * more and leaves air for what does not fit exactly.
 */
static const struct attempt {
    uint32_t below;
    bool searches, exchanges;
} attempts[] = {{0, true, true},  {0, false, false}, {1, true, true}, {2, true, false},
                {2, false, true}, {3, true, true},   {4, false, false}};
#define SMALL_STEP 128 /* units: all are tried, it takes less than 0.2 ms, and the fewest bytes win */
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

struct shedder {
    struct mover *mv;
    struct sort_item *items; /* [most] a rank's units, most cost a byte first; id: unit */
    struct sort_item *scratch;
    uint32_t *taken;         /* [most] positions in items */
    uint32_t n, n_taken;
};

/* Cost a byte as a sort key. Coarse on purpose: it only orders, and 64-bit division is what costs time here. */
static uint64_t density_key(const struct mover *mv, uint32_t unit, uint32_t shift)
{
    return ~(((mv->cost[unit] >> shift) << 23) / (mv->pb->bytes[unit] + 1));
}

/* What shedding the unit helps. One that no rank has room for stays: it would only push others out. */
static uint64_t gain(const struct mover *mv, uint32_t unit)
{
    return mv->cost[unit] > mv->small && mv->cost[unit] <= mv->most_room ? mv->cost[unit] - mv->small : 0;
}

/* The largest unit that some rank could take in. */
static uint64_t most_room(const struct mover *mv)
{
    const struct problem *pb = mv->pb;
    uint64_t most = 0;

    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint64_t room = mover_hole(mv, r);
        if (mv->exchanges && pb->unit_of_rank[r + 1] > pb->unit_of_rank[r])
            room += mv->cost[mv->home[pb->unit_of_rank[r + 1] - 1]];
        most = room > most ? room : most;
    }
    /* A giant makes the bubbles of its pipeline: its rank aims lower from the start, another would not. */
    if (pb->req->objective == POISE_OBJECTIVE_PIPELINE && pb->stages > 1) {
        u128 giant = (pb->target - rank_target(pb)) / (pb->stages - 1) >> mv->shift;
        most = most > giant ? (uint64_t)giant : most;
    }
    return most;
}

static void list_units(struct shedder *s, uint32_t rank)
{
    const struct problem *pb = s->mv->pb;
    const uint32_t *home = s->mv->home + pb->unit_of_rank[rank];
    uint32_t shift = 0;

    s->n = pb->unit_of_rank[rank + 1] - pb->unit_of_rank[rank];
    s->n_taken = 0;
    while (s->n && s->mv->cost[home[0]] >> shift >> 40)
        shift++;
    for (uint32_t i = 0; i < s->n; i++)
        s->items[i] = (struct sort_item){density_key(s->mv, home[i], shift), home[i]};
    sort_items(s->items, s->n, s->scratch);
}

static void shed_one(struct shedder *s, uint32_t i, uint8_t reason)
{
    uint32_t u = s->items[i].id;

    mover_take(s->mv, u);
    s->mv->reason[u] = reason;
    s->taken[s->n_taken++] = i;
}

/* The cheapest way to get rid of what is left: one more unit, or a chosen one exchanged for a larger. */
static bool close_gap(struct shedder *s, uint32_t rank, uint64_t rest)
{
    struct mover *mv = s->mv;
    int64_t least = INT64_MAX;
    uint32_t in = PLAN_ANY, out = PLAN_ANY, from = s->n_taken > EXCHANGES ? s->n_taken - EXCHANGES : 0;

    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t u = s->items[i].id;
        int64_t bytes = (int64_t)(mv->pb->bytes[u] >> 1);
        if (mv->where[u] == IN_POOL || !loads_may_lose(&mv->loads, rank, u))
            continue;
        if (gain(mv, u) == 0)
            continue;
        if (gain(mv, u) >= rest && bytes < least) {
            least = bytes;
            in = i;
            out = PLAN_ANY;
        }
        for (uint32_t k = from; k < s->n_taken; k++) {
            uint32_t v = s->items[s->taken[k]].id;
            int64_t more = bytes - (int64_t)(mv->pb->bytes[v] >> 1);
            if (mv->cost[u] >= mv->cost[v] && mv->cost[u] - mv->cost[v] >= rest && more < least) {
                least = more;
                in = i;
                out = k;
            }
        }
    }
    if (in == PLAN_ANY)
        return false;
    if (out != PLAN_ANY) {
        mover_put(mv, rank, s->items[s->taken[out]].id, POISE_REASON_KEPT);
        s->taken[out] = s->taken[--s->n_taken];
    }
    shed_one(s, in, POISE_REASON_SHED);
    return true;
}

/* Branch and bound over which units leave: the fewest bytes that shed at least `rest`. */
struct search {
    const struct mover *mv;
    const uint32_t *unit;  /* [n] most cost a byte first */
    uint64_t *gain;        /* [n] */
    uint32_t n, n_chosen, nodes;
    uint8_t *chosen, *best; /* [n] */
    uint64_t best_bytes, floor_bytes;
};

static void branch(struct search *s, uint32_t i, uint64_t rest, uint64_t bytes)
{
    if (rest == 0) {
        if (bytes < s->best_bytes) {
            s->best_bytes = bytes;
            memcpy(s->best, s->chosen, s->n);
        }
        return;
    }
    if (i == s->n || s->nodes == 0 || s->best_bytes - s->floor_bytes <= s->floor_bytes / CLOSE_ENOUGH)
        return;
    s->nodes--;
    /* At best what is left goes at this unit's bytes a cost, and no unit after it is cheaper. */
    uint64_t more = s->mv->pb->bytes[s->unit[i]];
    u128 least = (u128)rest * more / (s->gain[i] ? s->gain[i] : 1);
    if (s->gain[i] == 0 || bytes + least >= s->best_bytes)
        return;
    s->chosen[i] = 1;
    branch(s, i + 1, s->gain[i] < rest ? rest - s->gain[i] : 0, bytes + more);
    s->chosen[i] = 0;
    branch(s, i + 1, rest, bytes);
}

/* A better choice than the one at hand, if a short search finds it. The floor is its bytes if units were divisible. */
static void choose_better(struct shedder *s, uint32_t rank, uint64_t rest)
{
    struct mover *mv = s->mv;
    uint64_t gains[SEARCH_UNITS], have = 0, floor = 0, need = rest;
    uint8_t chosen[SEARCH_UNITS] = {0}, best[SEARCH_UNITS];
    uint32_t units[SEARCH_UNITS], n = 0;

    for (uint32_t k = 0; k < s->n_taken; k++)
        have += mv->pb->bytes[s->items[s->taken[k]].id];
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t u = s->items[i].id;
        if (mv->where[u] != IN_POOL && (gain(mv, u) == 0 || !loads_may_lose(&mv->loads, rank, u)))
            continue;
        if (n == SEARCH_UNITS)
            break;
        units[n] = u;
        gains[n++] = gain(mv, u);
        if (gain(mv, u) < need)
            floor += mv->pb->bytes[u];
        else if (need)
            floor += (uint64_t)((u128)need * mv->pb->bytes[u] / gain(mv, u));
        need -= gain(mv, u) < need ? gain(mv, u) : need;
    }
    struct search search = {.mv = mv, .unit = units, .gain = gains, .n = n, .nodes = s->n <= SMALL_RANK ? NODES : NODES / 8,
                            .chosen = chosen, .best = best, .best_bytes = have, .floor_bytes = floor};
    branch(&search, 0, rest, 0);
    if (search.best_bytes == have)
        return;
    for (uint32_t k = 0; k < s->n_taken; k++)
        mover_put(mv, rank, s->items[s->taken[k]].id, POISE_REASON_KEPT);
    for (uint32_t i = 0; i < n; i++)
        if (best[i]) {
            mover_take(mv, units[i]);
            mv->reason[units[i]] = POISE_REASON_SHED;
        }
}

static bool shed_within(struct shedder *s, uint32_t rank)
{
    struct mover *mv = s->mv;
    uint64_t over = mover_over(mv, rank), rest = over;

    for (uint32_t i = 0; i < s->n && rest > 0; i++) {
        uint32_t u = s->items[i].id;
        if (mv->where[u] == IN_POOL || gain(mv, u) == 0 || gain(mv, u) > rest || !loads_may_lose(&mv->loads, rank, u))
            continue;
        rest -= gain(mv, u);
        shed_one(s, i, POISE_REASON_SHED);
    }
    if (rest > 0 && !close_gap(s, rank, rest))
        return false;
    if (mv->searches)
        choose_better(s, rank, over);
    return true;
}

/* Takes what is above the target off a rank. Where what others have room for is not enough, larger units leave as well. */
static void shed(struct shedder *s, uint32_t rank)
{
    uint64_t most_room = s->mv->most_room;

    s->n_taken = 0;
    if (mover_over(s->mv, rank) == 0)
        return;
    list_units(s, rank);
    if (shed_within(s, rank) || s->mv->pb->req->objective == POISE_OBJECTIVE_PIPELINE)
        return;
    while (s->n_taken)
        mover_put(s->mv, rank, s->items[s->taken[--s->n_taken]].id, POISE_REASON_KEPT);
    s->mv->most_room = UINT64_MAX;
    shed_within(s, rank); /* what is left is for repair */
    s->mv->most_room = most_room;
}

/* Units above the wanted count leave, the fewest bytes first. */
static void shed_count(struct shedder *s, uint32_t rank, uint32_t surplus)
{
    const struct mover *mv = s->mv;

    list_units(s, rank);
    while (surplus > 0) {
        uint32_t best = PLAN_ANY;
        for (uint32_t i = 0; i < s->n; i++)
            if (mv->where[s->items[i].id] == rank &&
                (best == PLAN_ANY || mv->pb->bytes[s->items[i].id] < mv->pb->bytes[s->items[best].id]))
                best = i;
        if (best == PLAN_ANY)
            return;
        shed_one(s, best, POISE_REASON_COUNT);
        surplus--;
    }
}

/* The smallest unit that lives on the rank, if it is smaller than the one that is to come. */
static uint32_t smallest_home(const struct mover *mv, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = mv->pb;

    for (uint32_t i = pb->unit_of_rank[rank + 1]; i-- > pb->unit_of_rank[rank];) {
        uint32_t v = mv->home[i];
        if (mv->where[v] == rank && mover_may_move(mv, v))
            return mv->position[v] > mv->position[unit] && mv->cost[v] < mv->cost[unit] ? v : PLAN_ANY;
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
    struct shedder s = {.mv = mv};
    uint32_t most = 1, *want = pool_get(&pb->pool, pb->n_ranks, sizeof *want);

    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t n = pb->unit_of_rank[r + 1] - pb->unit_of_rank[r];
        most = n > most ? n : most;
    }
    s.items = pool_get(&pb->pool, most, sizeof *s.items);
    s.scratch = pool_get(&pb->pool, most, sizeof *s.scratch);
    s.taken = pool_get(&pb->pool, most, sizeof *s.taken);
    if (!want || !s.items || !s.scratch || !s.taken || want_counts(pb, want) < 0)
        return -ENOMEM;
    mv->small = mv->exchanges ? small_cost(mv) : 0;
    mv->most_room = most_room(mv);
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t g = pb->size ? pb->size[0] : 1, n = mv->loads.count[r];
        shed(&s, r);
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
    mv->work = (uint64_t)WORK_A_UNIT * (pb->n_units + 64);
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

    for (uint32_t i = 0; i < N_ATTEMPTS && (least > 0 || pb->n_units <= SMALL_STEP); i++) {
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
