/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bulk moving leaves: units that fit no hole as they are, and ranks still above the target. Both are searched for
 * the change that costs the fewest bytes, among the ranks with the largest holes; all within a bound on work, so that
 * time never depends on how hard a batch is.
 */
#include "mover.h"

#define RANKS 12 /* with the largest holes that a search looks at: half of what it finds among 64 it finds among 12 */
#define SMALLEST 24 /* units of all, whose ranks are looked at too where counts are fixed */
#define MOST_RANKS (2 * RANKS + SMALLEST)
#define NEAR 4    /* guests, small units and ranks tried first where little sticks out */
#define GUESTS 16 /* of a rank that a search looks at */

/* Ranks near the top of the heaps (the first entries of a heap are its largest but for few). */
static uint32_t candidates(struct mover *mv, uint32_t except, uint32_t ranks[MOST_RANKS])
{
    uint32_t n = 0, now = ++mv->n_listed;

    for (uint32_t i = 0; i < mv->open.n && n < RANKS; i++)
        if (mv->open.id[i] != except)
            ranks[n++] = mv->open.id[i];
    for (uint32_t i = 0, k = 0; i < mv->closed.n && k < RANKS; i++, k++)
        if (mv->closed.id[i] != except)
            ranks[n++] = mv->closed.id[i];
    for (uint32_t i = 0; i < n; i++)
        mv->listed[ranks[i]] = now;
    /* Beside a giant only the smallest units of all will do, wherever they are. */
    for (uint32_t i = 0; mv->exchanges && i < mv->pb->n_units && i < SMALLEST; i++) {
        uint32_t at = mv->where[mv->pb->sorted[mv->pb->n_units - 1 - i].id];
        if (at == IN_POOL || at == except || mv->listed[at] == now)
            continue;
        mv->listed[at] = now;
        ranks[n++] = at;
    }
    return n;
}

struct change {
    uint32_t unit, rank, back; /* unit goes to rank, back (PLAN_ANY: nothing) comes from there */
    int64_t bytes;
    uint64_t shift; /* cost that changes sides */
};

/* The place in a rank's home list of the first unit that costs at most `cost` (the list falls). */
static uint32_t first_at_most(const struct mover *mv, uint32_t rank, uint64_t cost)
{
    uint32_t low = mv->pb->unit_of_rank[rank], high = mv->pb->unit_of_rank[rank + 1];

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (mv->cost[mv->home[mid]] > cost)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* -------------------------------------------------------------------------------------------------------- squeezing in
 */

/* A unit of the rank, smaller than `unit`, that leaves enough room for it: the fewest bytes. */
static void leaver_in(struct mover *mv, uint32_t rank, uint32_t unit, struct change *best)
{
    const struct problem *pb = mv->pb;
    bool found_guest = best->back != PLAN_ANY && best->bytes == 0; /* no other costs fewer bytes */
    uint32_t seen = 0;

    if (mv->cost[unit] == 0 || found_guest)
        return;
    uint64_t room = mover_hole(mv, rank);
    u128 reserved = (u128)mv->slots[rank] * mv->small;
    room = room > reserved ? room - (uint64_t)reserved : 0;
    uint64_t need = mv->cost[unit] > room ? mv->cost[unit] - room : 0;
    for (uint32_t v = mv->guest_first[rank]; v != PLAN_ANY && seen < GUESTS; v = mv->guest_next[v], seen++)
        if (mv->cost[v] >= need && mv->cost[v] < mv->cost[unit] && unit_size(pb, v) == unit_size(pb, unit) &&
            (best->back == PLAN_ANY || best->bytes > 0) && loads_fits_for(&mv->loads, rank, unit, v)) {
            *best = (struct change){unit, rank, v, 0, mv->cost[v]}; /* it moves anyway */
        }
    /* Smallest first that is large enough. */
    for (uint32_t i = first_at_most(mv, rank, need ? need - 1 : 0), n = 0; i-- > pb->unit_of_rank[rank] && n < GUESTS;
         n++) {
        uint32_t v = mv->home[i];
        int64_t bytes = (int64_t)(pb->bytes[v] >> 1);
        if (mv->cost[v] >= mv->cost[unit])
            return;
        if (mv->where[v] != rank || !mover_may_move(mv, v) || mv->cost[v] < need ||
            (best->back != PLAN_ANY && bytes >= best->bytes) || unit_size(pb, v) != unit_size(pb, unit) ||
            !loads_may_lose(&mv->loads, rank, v) || !loads_fits_for(&mv->loads, rank, unit, v))
            continue;
        *best = (struct change){unit, rank, v, bytes, mv->cost[v]};
        return;
    }
}

/* Somewhere under the caps, even above the target: where it sticks out least of those seen first, else home, else
 * anywhere. */
static bool put_anywhere(struct mover *mv, uint32_t unit)
{
    uint32_t ranks[MOST_RANKS], n = candidates(mv, PLAN_ANY, ranks), best = PLAN_ANY, home = mv->pb->unit_rank[unit];

    for (uint32_t i = 0; i < n; i++)
        if ((!mv->exchanges || mv->slots[ranks[i]] > 0) && loads_fits(&mv->loads, ranks[i], unit) &&
            (best == PLAN_ANY || mover_room(mv, ranks[i]) > mover_room(mv, best)))
            best = ranks[i];
    if (best == PLAN_ANY && (!mv->exchanges || mv->slots[home] > 0) && loads_fits(&mv->loads, home, unit))
        best = home;
    for (uint32_t r = 0; r < mv->pb->n_ranks && best == PLAN_ANY && mv->work > 0; r++, mv->work--)
        if ((!mv->exchanges || mv->slots[r] > 0) && loads_fits(&mv->loads, r, unit))
            best = r;
    if (best == PLAN_ANY)
        return false;
    mover_put(mv, best, unit, mv->reason[unit]);
    return true;
}

/* It begins behind a mover_refill() that failed: a second one would find the same, and leaves the heaps as they are,
 * since pushing what was popped, in reverse, and popping it again undo each other. */
bool mover_squeeze(struct mover *mv, uint32_t unit)
{
    uint32_t ranks[MOST_RANKS];

    /* What is pushed out is smaller each time, so this ends. */
    do {
        struct change best = {.back = PLAN_ANY};
        uint32_t n = candidates(mv, PLAN_ANY, ranks);
        for (uint32_t i = 0; i < n && mv->work > 4; i++, mv->work -= 4) /* about as a step of search */
            leaver_in(mv, ranks[i], unit, &best);
        if (best.back == PLAN_ANY)
            return put_anywhere(mv, unit);
        uint8_t why = mv->reason[unit];
        mover_take(mv, best.back);
        mover_put(mv, best.rank, unit, why);
        unit = best.back;
        mv->reason[unit] = POISE_REASON_SWAP;
    } while (!mover_refill(mv, unit));
    return true;
}

/* -------------------------------------------------------------------------------------------------- ranks that stick
 * out */

/* Is `a` better? Whatever brings the rank to its target beats what does not; then fewest bytes, else most cost shifted.
 */
static bool better(const struct change *a, const struct change *b, uint64_t over)
{
    bool a_done = a->shift >= over, b_done = b->shift >= over;

    if (b->unit == PLAN_ANY || a_done != b_done)
        return b->unit == PLAN_ANY || a_done;
    if (a_done)
        return a->bytes < b->bytes || (a->bytes == b->bytes && a->shift < b->shift);
    return a->shift > b->shift || (a->shift == b->shift && a->bytes < b->bytes);
}

/* Caps and counts, by trying; everything is as before afterwards. */
static bool allowed(struct mover *mv, uint32_t from, const struct change *c)
{
    bool ok;

    loads_remove(&mv->loads, from, c->unit);
    if (c->back != PLAN_ANY)
        loads_remove(&mv->loads, c->rank, c->back);
    ok = loads_fits(&mv->loads, c->rank, c->unit);
    loads_add(&mv->loads, c->rank, c->unit);
    if (c->back != PLAN_ANY) {
        ok = ok && loads_fits(&mv->loads, from, c->back);
        loads_add(&mv->loads, from, c->back);
    }
    ok = ok && loads_not_emptier(&mv->loads) && mv->loads.count[from] >= mv->pb->count_min[from];
    if (c->back != PLAN_ANY) {
        loads_remove(&mv->loads, from, c->back);
        loads_add(&mv->loads, c->rank, c->back);
    }
    loads_remove(&mv->loads, c->rank, c->unit);
    loads_add(&mv->loads, from, c->unit);
    return ok;
}

static void consider(struct mover *mv, uint32_t from, struct change c, uint64_t over, struct change *best)
{
    uint64_t cost = mv->cost[c.unit], less = c.back == PLAN_ANY ? 0 : mv->cost[c.back];

    if (cost <= less || (c.back != PLAN_ANY && !mover_may_move(mv, c.back)))
        return;
    c.shift = cost - less;
    c.bytes = mover_bytes(mv, c.unit, c.rank) + (c.back == PLAN_ANY ? 0 : mover_bytes(mv, c.back, from));
    if (better(&c, best, over) && allowed(mv, from, &c))
        *best = c;
}

/* All changes that send `unit` to the rank without lifting that above its target. */
static void search(struct mover *mv, uint32_t from, uint32_t unit, uint32_t to, uint64_t over, struct change *best)
{
    uint64_t cost = mv->cost[unit], hole = mover_hole(mv, to);
    uint32_t end = mv->pb->unit_of_rank[to + 1], seen = 0;

    if (cost <= hole)
        consider(mv, from, (struct change){.unit = unit, .rank = to, .back = PLAN_ANY}, over, best);
    for (uint32_t v = mv->guest_first[to]; v != PLAN_ANY && seen < GUESTS; v = mv->guest_next[v], seen++)
        if (cost > mv->cost[v] && cost - mv->cost[v] <= hole)
            consider(mv, from, (struct change){.unit = unit, .rank = to, .back = v}, over, best);
    /* From the largest that still brings `from` to its target, two that live here; and the largest shift that fits. */
    uint32_t i = first_at_most(mv, to, cost > over ? cost - over : 0), n = 0;
    for (; i < end && n < 3; i++)
        if (mv->where[mv->home[i]] == to) {
            if (cost - mv->cost[mv->home[i]] > hole)
                break;
            consider(mv, from, (struct change){.unit = unit, .rank = to, .back = mv->home[i]}, over, best);
            n++;
        }
    if (best->unit != PLAN_ANY && best->shift >= over)
        return;
    i = first_at_most(mv, to, cost > hole ? cost - hole - 1 : 0);
    for (n = 0; i-- > mv->pb->unit_of_rank[to] && n < 3; n++)
        if (mv->where[mv->home[i]] == to && mv->cost[mv->home[i]] < cost && cost - mv->cost[mv->home[i]] <= hole) {
            consider(mv, from, (struct change){.unit = unit, .rank = to, .back = mv->home[i]}, over, best);
            break;
        }
}

static void apply(struct mover *mv, uint32_t from, const struct change *c)
{
    mover_take(mv, c->unit);
    if (c->back != PLAN_ANY)
        mover_take(mv, c->back);
    mover_put(mv, c->rank, c->unit, c->back == PLAN_ANY ? POISE_REASON_SHED : POISE_REASON_SWAP);
    if (c->back != PLAN_ANY)
        mover_put(mv, from, c->back, POISE_REASON_SWAP);
}

/*
 * The usual case: the rank sticks out by little. Something small goes and something smaller comes: of the units larger
 * than the other's smallest by what sticks out, the smallest; or a guest, which moves anyway.
 */
static void search_small(struct mover *mv, uint32_t rank, const uint32_t *ranks, uint32_t n, struct change *best)
{
    const struct problem *pb = mv->pb;
    uint64_t over = mover_over(mv, rank);

    for (uint32_t k = 0; k < n && k < NEAR; k++) {
        uint32_t last = pb->unit_of_rank[ranks[k] + 1], first = pb->unit_of_rank[ranks[k]], seen = 0;
        uint64_t least = over;
        while (last > first && mv->where[mv->home[last - 1]] != ranks[k])
            last--;
        if (mv->exchanges && last > first)
            least += mv->cost[mv->home[last - 1]];
        for (uint32_t v = mv->guest_first[rank]; v != PLAN_ANY && seen < NEAR;
             v = mv->guest_next[v], seen++, mv->work--)
            if (mv->cost[v] > over)
                search(mv, rank, v, ranks[k], over, best);
        seen = 0;
        for (uint32_t i = first_at_most(mv, rank, least ? least - 1 : 0); i-- > pb->unit_of_rank[rank] && seen < NEAR;)
            if (mv->where[mv->home[i]] == rank) {
                search(mv, rank, mv->home[i], ranks[k], over, best);
                seen++;
                mv->work--;
            }
    }
}

static void search_all(struct mover *mv, uint32_t rank, const uint32_t *ranks, uint32_t n, struct change *best)
{
    uint64_t over = mover_over(mv, rank);

    for (uint32_t k = 0; k < n; k++) {
        if (mover_hole(mv, ranks[k]) == 0)
            continue;
        for (uint32_t i = mv->pb->unit_of_rank[rank]; i < mv->pb->unit_of_rank[rank + 1] && mv->work; i++, mv->work--)
            if (mv->where[mv->home[i]] == rank && mv->cost[mv->home[i]] > 0)
                search(mv, rank, mv->home[i], ranks[k], over, best);
        for (uint32_t v = mv->guest_first[rank]; v != PLAN_ANY && mv->work; v = mv->guest_next[v], mv->work--)
            if (mv->cost[v] > 0)
                search(mv, rank, v, ranks[k], over, best);
    }
}

/* One change for a rank above its target; false: none helps. */
static bool improve(struct mover *mv, uint32_t rank)
{
    struct change best = {.unit = PLAN_ANY};
    uint32_t ranks[MOST_RANKS], n = candidates(mv, rank, ranks);

    if (mv->work > 2 * NEAR * NEAR)
        search_small(mv, rank, ranks, n, &best);
    if (best.unit == PLAN_ANY || best.shift < mover_over(mv, rank))
        search_all(mv, rank, ranks, n, &best);
    if (best.unit == PLAN_ANY)
        return false;
    apply(mv, rank, &best);
    return true;
}

/* ------------------------------------------------------------------------------------------------- spreading what is
 * left */

/* How much the higher of the two sticks out after the change. */
static uint64_t higher_after(const struct mover *mv, uint32_t from, uint32_t to, uint64_t shift)
{
    uint64_t over = mover_over(mv, from), hole = mover_hole(mv, to);
    uint64_t mine = over > shift ? over - shift : 0;
    uint64_t theirs = mover_over(mv, to) + (shift > hole ? shift - hole : 0);

    return mine > theirs ? mine : theirs;
}

/* The exchange of `unit` with the rank after which the higher of the two sticks out least. */
static void search_spread(struct mover *mv, uint32_t from, uint32_t unit, uint32_t to, uint64_t *least,
                          struct change *best)
{
    uint64_t cost = mv->cost[unit], half = (mover_over(mv, from) + mover_hole(mv, to)) / 2;
    uint32_t first = mv->pb->unit_of_rank[to], end = mv->pb->unit_of_rank[to + 1];
    uint32_t i = first_at_most(mv, to, cost > half ? cost - half : 0), seen = 0;

    for (uint32_t k = i > first + 1 ? i - 2 : first; k < end && k < i + 2; k++) {
        struct change c = {.unit = unit, .rank = to, .back = mv->home[k]};
        if (mv->where[c.back] != to || mv->cost[c.back] >= cost || !mover_may_move(mv, c.back))
            continue;
        if (higher_after(mv, from, to, cost - mv->cost[c.back]) < *least && allowed(mv, from, &c)) {
            *least = higher_after(mv, from, to, cost - mv->cost[c.back]);
            *best = c;
        }
    }
    for (uint32_t v = mv->guest_first[to]; v != PLAN_ANY && seen < GUESTS; v = mv->guest_next[v], seen++) {
        struct change c = {.unit = unit, .rank = to, .back = v};
        if (mv->cost[v] < cost && higher_after(mv, from, to, cost - mv->cost[v]) < *least && allowed(mv, from, &c)) {
            *least = higher_after(mv, from, to, cost - mv->cost[v]);
            *best = c;
        }
    }
    struct change c = {.unit = unit, .rank = to, .back = PLAN_ANY};
    if (!mv->exchanges && cost > 0 && higher_after(mv, from, to, cost) < *least && allowed(mv, from, &c)) {
        *least = higher_after(mv, from, to, cost);
        *best = c;
    }
}

/*
 * No rank has room for what sticks out, because all were filled to the brim: share it with one, which then shares its
 * part. The largest sum of the two always falls, so this ends.
 */
static bool spread(struct mover *mv, uint32_t rank)
{
    struct change best = {.unit = PLAN_ANY};
    uint32_t ranks[MOST_RANKS], n = candidates(mv, rank, ranks);
    uint64_t least = mover_over(mv, rank);

    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = mv->pb->unit_of_rank[rank]; i < mv->pb->unit_of_rank[rank + 1] && mv->work; i++, mv->work--)
            if (mv->where[mv->home[i]] == rank)
                search_spread(mv, rank, mv->home[i], ranks[k], &least, &best);
        for (uint32_t v = mv->guest_first[rank]; v != PLAN_ANY && mv->work; v = mv->guest_next[v], mv->work--)
            search_spread(mv, rank, v, ranks[k], &least, &best);
    }
    if (best.unit == PLAN_ANY)
        return false;
    apply(mv, rank, &best);
    return true;
}

/* The rank that sticks out most; PLAN_ANY: none does. */
static uint32_t highest(const struct mover *mv)
{
    uint32_t rank = PLAN_ANY;

    for (uint32_t r = 0; r < mv->pb->n_ranks; r++)
        if (mover_over(mv, r) > (rank == PLAN_ANY ? 0 : mover_over(mv, rank)))
            rank = r;
    return rank;
}

void mover_repair(struct mover *mv)
{
    uint32_t rank;

    for (uint32_t r = 0; r < mv->pb->n_ranks; r++)
        while (mover_over(mv, r) > 0 && mv->work > 0 && (improve(mv, r) || mover_swap_pairs(mv, r)))
            ;
    while (mv->work > mv->pb->n_ranks && (rank = highest(mv)) != PLAN_ANY) {
        mv->work -= mv->pb->n_ranks / 64;
        if (!improve(mv, rank) && !mover_swap_pairs(mv, rank) && !spread(mv, rank))
            break;
    }
}

/* A smaller unit of the same rank that can go in this one's place: the fewest bytes. PLAN_ANY: none. */
static uint32_t substitute(struct mover *mv, uint32_t unit)
{
    const struct problem *pb = mv->pb;
    uint32_t home = pb->unit_rank[unit], at = mv->where[unit], best = PLAN_ANY;
    uint64_t hole = mover_hole(mv, home), cost = mv->cost[unit];

    for (uint32_t i = first_at_most(mv, home, cost), seen = 0; i < pb->unit_of_rank[home + 1] && seen < GUESTS;
         i++, seen++) {
        uint32_t v = mv->home[i];
        struct change back = {.unit = unit, .rank = home, .back = v};
        if (cost - mv->cost[v] > hole)
            break;
        if (mv->where[v] == home && mover_may_move(mv, v) && pb->bytes[v] < pb->bytes[best == PLAN_ANY ? unit : best] &&
            unit_size(pb, v) == unit_size(pb, unit) && allowed(mv, at, &back))
            best = v;
    }
    return best;
}

void mover_return(struct mover *mv)
{
    for (uint32_t u = 0; u < mv->pb->n_units && mv->work > GUESTS; u++) {
        uint32_t home = mv->pb->unit_rank[u], at = mv->where[u], v;
        struct change back = {.unit = u, .rank = home, .back = PLAN_ANY};
        if (at == home)
            continue;
        mv->work -= 4;
        if (!mv->exchanges && mover_hole(mv, home) >= mv->cost[u] && allowed(mv, at, &back)) {
            mover_take(mv, u);
            mover_put(mv, home, u, POISE_REASON_KEPT);
        } else if (mover_hole(mv, home) > 0 && (v = substitute(mv, u)) != PLAN_ANY) {
            apply(mv, at, &(struct change){.unit = u, .rank = home, .back = v});
        }
    }
}
