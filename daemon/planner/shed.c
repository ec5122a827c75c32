/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What leaves a rank that is above its target: enough, and the fewest bytes. A greedy choice, most cost a byte first,
 * closed by the unit or exchange that costs least, and then a short search for a better one. Units that no rank has
 * room for stay as long as others are enough.
 */
#include "shed.h"

#include <errno.h>
#include <string.h>

/* Units already chosen that may be exchanged for a better fit; more would make shedding quadratic in samples. */
#define EXCHANGES 16
/* The search for a better choice of what leaves: steps, the units it looks at, ranks that are searched in full, and
 * when a choice is close enough to what no choice can beat (1/64). With eight samples a rank a greedy choice is 13 %
 * above it. */
#define NODES 400
#define SEARCH_UNITS 40
#define SMALL_RANK 16
#define CLOSE_ENOUGH 64

/* Cost a byte as a sort key. Coarse on purpose: it only orders, and 64-bit division is what costs time here. */
static uint64_t density_key(const struct mover *mv, uint32_t unit, uint32_t shift)
{
    return ~(((mv->cost[unit] >> shift) << 23) / (mv->pb->bytes[unit] + !mv->pb->bytes[unit]));
}

/* What shedding the unit helps. One that no rank has room for stays: it would only push others out. */
static uint64_t gain(const struct mover *mv, uint32_t unit)
{
    return mv->cost[unit] > mv->small && mv->cost[unit] <= mv->most_room ? mv->cost[unit] - mv->small : 0;
}

/* The largest unit that some rank could take in. */
uint64_t shed_most_room(const struct mover *mv)
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
    const uint32_t *unit; /* [n] most cost a byte first */
    uint64_t *gain;       /* [n] */
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
    struct search search = {.mv = mv,
                            .unit = units,
                            .gain = gains,
                            .n = n,
                            .nodes = s->n <= SMALL_RANK ? NODES : NODES / 8,
                            .chosen = chosen,
                            .best = best,
                            .best_bytes = have,
                            .floor_bytes = floor};
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

/* Takes what is above the target off a rank. Where what others have room for is not enough, larger units leave as well.
 */
void shed_excess(struct shedder *s, uint32_t rank)
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
void shed_count(struct shedder *s, uint32_t rank, uint32_t surplus)
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

int shedder_new(struct mover *mv, struct shedder *ret_shedder)
{
    struct problem *pb = mv->pb;
    struct shedder s = {.mv = mv};
    uint32_t most = 1;

    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t n = pb->unit_of_rank[r + 1] - pb->unit_of_rank[r];
        most = n > most ? n : most;
    }
    s.items = pool_get(&pb->pool, most, sizeof *s.items);
    s.scratch = pool_get(&pb->pool, most, sizeof *s.scratch);
    s.taken = pool_get(&pb->pool, most, sizeof *s.taken);
    if (!s.items || !s.scratch || !s.taken)
        return -ENOMEM;
    *ret_shedder = s;
    return 0;
}
