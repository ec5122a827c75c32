/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The level of a unit is the number of micro-batches that are high enough for it, beside the least others. A rank whose
 * units all find a place holds at most c units of levels up to c, for every c; one that holds more exchanges a unit of
 * the lowest such level with a rank that has room there, for the fewest bytes. With one sample a micro-batch there
 * always is one, and the result is exact.
 */
#include <errno.h>
#include <string.h>

#include "micro.h"

#define WITH_ROOM 12 /* ranks that an exchange is looked for in: more find little that costs fewer bytes */

struct levels {
    struct micro *mc;
    uint32_t *level;      /* [n_units] 1 .. n_mb */
    uint32_t *count;      /* [n_ranks][n_mb + 1] units of a level */
    uint32_t *rank_first; /* [n_ranks + 1] */
    uint32_t *unit;       /* [n_units] by rank */
};

static int levels_init(struct levels *lv, struct micro *mc, const struct layout *layout)
{
    struct problem *pb = mc->pb;
    uint64_t base = 0;

    lv->mc = mc;
    lv->level = pool_get(&pb->pool, pb->n_units, sizeof *lv->level);
    lv->unit = pool_get(&pb->pool, pb->n_units, sizeof *lv->unit);
    lv->rank_first = pool_get(&pb->pool, pb->n_ranks + 2ull, sizeof *lv->rank_first);
    lv->count = pool_get(&pb->pool, (uint64_t)pb->n_ranks * (mc->n_mb + 1ull), sizeof *lv->count);
    if (!lv->level || !lv->unit || !lv->rank_first || !lv->count)
        return -ENOMEM;
    for (uint32_t i = 1; i < mc->k && i <= pb->n_units; i++) /* its neighbours in the micro-batch, at best */
        base += mc->cost[pb->sorted[pb->n_units - i].id];
    for (uint32_t i = 0, m = mc->n_mb; i < pb->n_units; i++) {
        uint32_t u = pb->sorted[pb->n_units - 1 - i].id; /* rising cost, falling level */
        while (m > 1 && mc->height[m - 1] < mc->cost[u] + base)
            m--;
        lv->level[u] = m;
        lv->count[(size_t)layout->rank[u] * (mc->n_mb + 1) + m]++;
        lv->rank_first[layout->rank[u] + 2]++;
    }
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        lv->rank_first[r + 2] += lv->rank_first[r + 1];
    for (uint32_t u = 0; u < pb->n_units; u++)
        lv->unit[lv->rank_first[layout->rank[u] + 1]++] = u;
    return 0;
}

/* The lowest level up to which the rank holds too many; 0: none. */
static uint32_t crowded_level(const struct levels *lv, uint32_t rank)
{
    const uint32_t *count = lv->count + (size_t)rank * (lv->mc->n_mb + 1);

    for (uint32_t c = 1, sum = 0; c < lv->mc->n_mb; c++)
        if ((sum += count[c]) > c)
            return c;
    return 0;
}

/* The highest level such that one unit of level c more and one of that level less crowds nothing; c: none. */
static uint32_t room_up_to(const struct levels *lv, uint32_t rank, uint32_t c)
{
    const uint32_t *count = lv->count + (size_t)rank * (lv->mc->n_mb + 1);
    uint32_t sum = 0, k = 1;

    for (; k < c; k++)
        sum += count[k];
    for (; k < lv->mc->n_mb; k++)
        if ((sum += count[k]) >= k)
            return k;
    return lv->mc->n_mb;
}

static bool rank_takes(const struct micro *mc, uint32_t rank, uint32_t in, uint32_t out)
{
    const struct problem *pb = mc->pb;

    if (mc->loads.bytes[rank] - pb->packed[out] + pb->packed[in] > pb->cap_bytes_rank)
        return false;
    for (uint32_t p = 0; p < pb->n_phases; p++)
        if (mc->loads.length[(size_t)rank * pb->n_phases + p] - micro_length(pb, p, out) + micro_length(pb, p, in) >
            pb->cap_length_rank[p])
            return false;
    return true;
}

/* Bytes that an exchange adds to all that moved; one that sends a unit home takes some away. Halved for the sign. */
static int64_t bytes_to(const struct problem *pb, uint32_t unit, uint32_t from, uint32_t to)
{
    int64_t bytes = (int64_t)(pb->bytes[unit] >> 1);

    return (to != pb->unit_rank[unit] ? bytes : 0) - (from != pb->unit_rank[unit] ? bytes : 0);
}

static bool relieve(struct levels *lv, uint32_t rank, uint32_t c, struct layout *layout)
{
    struct micro *mc = lv->mc;
    const struct problem *pb = mc->pb;
    uint32_t best_a = PLAN_ANY, best_b = PLAN_ANY, seen = 0;
    int64_t least = INT64_MAX;

    /* Most ranks have no room at this level, and that is quickly seen: only those that have are counted. */
    for (uint32_t i = 1; i < pb->n_ranks && seen < WITH_ROOM && mc->work > 0; i++, mc->work--) {
        uint32_t q = (rank + i) % pb->n_ranks, high = room_up_to(lv, q, c);
        seen += high > c;
        for (uint32_t a = lv->rank_first[rank]; high > c && a < lv->rank_first[rank + 1]; a++) {
            uint32_t u = lv->unit[a];
            if (lv->level[u] != c)
                continue;
            int64_t go = bytes_to(pb, u, rank, q);
            for (uint32_t b = lv->rank_first[q]; b < lv->rank_first[q + 1]; b++) {
                uint32_t v = lv->unit[b];
                if (lv->level[v] <= c || lv->level[v] > high || go + bytes_to(pb, v, q, rank) >= least ||
                    !rank_takes(mc, q, u, v))
                    continue;
                least = go + bytes_to(pb, v, q, rank);
                best_a = a;
                best_b = b;
            }
        }
    }
    if (best_a == PLAN_ANY)
        return false;
    uint32_t u = lv->unit[best_a], v = lv->unit[best_b], q = layout->rank[v], *count = lv->count;
    count[(size_t)rank * (mc->n_mb + 1) + lv->level[u]]--;
    count[(size_t)rank * (mc->n_mb + 1) + lv->level[v]]++;
    count[(size_t)q * (mc->n_mb + 1) + lv->level[v]]--;
    count[(size_t)q * (mc->n_mb + 1) + lv->level[u]]++;
    lv->unit[best_a] = v;
    lv->unit[best_b] = u;
    micro_exchange(mc, layout, u, v);
    return true;
}

int level_ranks(struct micro *mc, struct layout *layout)
{
    struct levels lv;

    if (levels_init(&lv, mc, layout) < 0)
        return -ENOMEM;
    for (uint32_t r = 0; r < mc->pb->n_ranks; r++)
        for (uint32_t c; (c = crowded_level(&lv, r)) && relieve(&lv, r, c, layout);)
            ;
    return 0;
}
