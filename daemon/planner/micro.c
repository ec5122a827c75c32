/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for ranks that meet at every micro-batch: what counts is the sum over micro-batches of the largest rank's cost. And
 * for pipelines, where the largest micro-batch counts for every stage: they want micro-batches alike as well.
 *
 * First the best that is to be had if moving cost nothing: the units in groups of a micro-batch each, as alike as LPT makes
 * them (so that the largest do not meet and memory stays flat), the groups sorted, n at a time one micro-batch. That gives a
 * height for every micro-batch. Then the same heights with few bytes moved: each rank arranges its own units under the
 * heights, which is free, and only what sticks out is exchanged with a rank that has air below its height.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "heap.h"
#include "loads.h"
#include "micro.h"

#define RANKS 128        /* that a unit which sticks out is offered to: bounds the search at 1,024 ranks */
#define ROUNDS 3         /* over all cells; later ones find little */
#define SLACK_PARTS 10   /* heights are raised by tolerance / SLACK_PARTS: less moves more, more leaves more standing out */
#define WORK_A_UNIT 1000 /* pairs of units compared in all, for each unit: bounds time, not quality, up to 256 ranks */

struct micro {
    struct problem *pb;
    struct loads loads;
    uint32_t n_mb, k;     /* micro-batches; samples of one */
    uint64_t *cost;       /* [n_units] scaled */
    uint64_t *height;     /* [n_mb] falling */
    uint64_t *sum;        /* [n_ranks * n_mb] */
    uint64_t *length;     /* [n_ranks * n_mb][n_phases] */
    uint32_t *cell_first; /* [n_ranks * n_mb + 1] */
    uint32_t *unit;       /* [n_units] by cell */
    uint64_t work;        /* pairs that may still be compared */
};

bool micro_applies(const struct problem *pb)
{
    uint64_t room = (uint64_t)pb->micro_batch_samples * pb->n_micro_batches * pb->n_ranks;
    bool full = pb->micro_batch_samples != PLAN_ANY && room == pb->n_samples && pb->req->cut == POISE_CUT_FIXED;

    bool meets = pb->req->objective == POISE_OBJECTIVE_MICROBATCH && pb->n_sets < pb->n_ranks;
    bool pipes = pb->req->objective == POISE_OBJECTIVE_PIPELINE && pb->stages > 1;

    return (meets || pipes) && pb->n_micro_batches > 1 && pb->n_segments == 1 && !pb->is_padded && !pb->has_units && !pb->has_speeds && pb->n_units > 0 &&
           (full || (pb->req->count == POISE_COUNT_FREE && pb->req->cut == POISE_CUT_BY_COST));
}

/* ------------------------------------------------------------------------------------------------------ as if moving were free */

/* LPT into n_ranks * n_mb groups: group[unit]. Sums stay in the heap's keys. */
static int make_groups(struct problem *pb, uint32_t *group, struct heap *heap)
{
    uint32_t n_groups = pb->n_ranks * pb->n_micro_batches;
    uint32_t *count = pool_get(&pb->pool, n_groups, sizeof *count);

    if (!count || heap_new(&pb->pool, n_groups, heap) < 0)
        return -ENOMEM;
    for (uint32_t g = 0; g < n_groups; g++)
        heap_push(heap, g, 0);
    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = pb->sorted[i].id, g = heap->id[0];
        group[u] = g;
        heap->key[g] += pb->cost[u];
        if (++count[g] == pb->micro_batch_samples)
            heap_remove(heap, g);
        else
            heap_moved(heap, g);
    }
    return 0;
}

/* The rank, of those still free in this micro-batch, that owns most bytes of a group; PLAN_ANY: none owns any. */
static uint32_t owner_of(const struct problem *pb, const uint32_t *units, uint32_t n, const uint8_t *used)
{
    uint32_t best = PLAN_ANY;
    u128 most = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = pb->unit_rank[units[i]];
        u128 bytes = 0;
        if (used[r])
            continue;
        for (uint32_t k = 0; k < n; k++)
            bytes += pb->unit_rank[units[k]] == r ? pb->bytes[units[k]] : 0;
        if (best == PLAN_ANY || bytes > most) {
            best = r;
            most = bytes;
        }
    }
    return best;
}

/* Which ranks take the groups of one micro-batch: owners first, then the lightest ranks take the largest that are left. */
static void share_out(struct problem *pb, const struct sort_item *groups, const uint32_t *first, const uint32_t *units,
                      u128 *load, uint8_t *used, struct sort_item *rest, uint32_t *rank_of)
{
    uint32_t n = pb->n_ranks, n_rest = 0;

    memset(used, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t g = groups[i].id, r = owner_of(pb, units + first[g], first[g + 1] - first[g], used);
        rank_of[g] = r;
        if (r != PLAN_ANY)
            used[r] = 1;
    }
    for (uint32_t r = 0; r < n; r++)
        if (!used[r])
            rest[n_rest++] = (struct sort_item){saturate(load[r]), r};
    sort_items(rest, n_rest, rest + n);
    for (uint32_t i = 0, k = 0; i < n; i++) {
        uint32_t g = groups[i].id;
        if (rank_of[g] == PLAN_ANY)
            rank_of[g] = rest[k++].id;
        load[rank_of[g]] += ~groups[i].key;
    }
}

static void group_units(const struct problem *pb, const uint32_t *group, uint32_t n_groups, uint32_t *first, uint32_t *units)
{
    for (uint32_t u = 0; u < pb->n_units; u++)
        first[group[u] + 1]++;
    for (uint32_t g = 0; g < n_groups; g++)
        first[g + 1] += first[g];
    for (uint32_t u = 0; u < pb->n_units; u++)
        units[first[group[u]]++] = u;
    memmove(first + 1, first, n_groups * sizeof *first);
    first[0] = 0;
}

/* The layout if moving were free. Its micro-batches' heights stand in height[]. */
static int place_groups(struct problem *pb, struct layout *layout, u128 *height)
{
    uint32_t n = pb->n_ranks, n_mb = pb->n_micro_batches, n_groups = n * n_mb;
    uint32_t *group = pool_get(&pb->pool, pb->n_units, sizeof *group);
    uint32_t *units = pool_get(&pb->pool, pb->n_units, sizeof *units);
    uint32_t *first = pool_get(&pb->pool, n_groups + 1ull, sizeof *first);
    uint32_t *rank_of = pool_get(&pb->pool, n_groups, sizeof *rank_of);
    uint32_t *mb_of = pool_get(&pb->pool, n_groups, sizeof *mb_of);
    struct sort_item *items = pool_get(&pb->pool, 2ull * n_groups, sizeof *items);
    struct sort_item *rest = pool_get(&pb->pool, 2ull * n, sizeof *rest);
    u128 *load = pool_get(&pb->pool, n, sizeof *load);
    uint8_t *used = pool_get(&pb->pool, n, 1);
    struct heap heap;

    if (!group || !units || !first || !rank_of || !mb_of || !items || !rest || !load || !used ||
        make_groups(pb, group, &heap) < 0)
        return -ENOMEM;
    group_units(pb, group, n_groups, first, units);
    for (uint32_t g = 0; g < n_groups; g++)
        items[g] = (struct sort_item){~saturate(heap.key[g]), g};
    sort_items(items, n_groups, items + n_groups);
    for (uint32_t m = 0; m < n_mb; m++) {
        share_out(pb, items + (size_t)m * n, first, units, load, used, rest, rank_of);
        height[m] = heap.key[items[(size_t)m * n].id];
        for (uint32_t i = 0; i < n; i++)
            mb_of[items[(size_t)m * n + i].id] = m;
    }
    for (uint32_t u = 0; u < pb->n_units; u++) {
        layout->rank[u] = rank_of[group[u]];
        layout->micro_batch[u] = mb_of[group[u]];
        layout->reason[u] = layout->rank[u] == pb->unit_rank[u] ? POISE_REASON_KEPT : POISE_REASON_ALGORITHM;
    }
    layout->is_cut = true;
    return 0;
}

int micro_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    u128 *height = pool_get(&pb->pool, pb->n_micro_batches, sizeof *height);

    if (!height || place_groups(pb, layout, height) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    return 0;
}

/* --------------------------------------------------------------------------------------------------- with few bytes moved */

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
    mc->cost = pool_get(&pb->pool, pb->n_units, sizeof *mc->cost);
    mc->height = pool_get(&pb->pool, mc->n_mb, sizeof *mc->height);
    mc->sum = pool_get(&pb->pool, n_cells, sizeof *mc->sum);
    mc->length = pool_get(&pb->pool, n_cells * pb->n_phases, sizeof *mc->length);
    mc->cell_first = pool_get(&pb->pool, n_cells + 1, sizeof *mc->cell_first);
    mc->unit = pool_get(&pb->pool, pb->n_units, sizeof *mc->unit);
    if (!mc->cost || !mc->height || !mc->sum || !mc->length || !mc->cell_first || !mc->unit || loads_new(pb, &mc->loads) < 0)
        return -ENOMEM;
    while (pb->cost_total >> shift >> 62)
        shift++;
    for (uint32_t u = 0; u < pb->n_units; u++) {
        mc->cost[u] = pb->cost[u] >> shift;
        loads_add(&mc->loads, layout->rank[u], u);
    }
    for (uint32_t m = 0; m < mc->n_mb; m++) {
        mc->height[m] = (uint64_t)(raised(pb, height[m]) >> shift);
    }
    return 0;
}

static uint64_t length_of(const struct problem *pb, uint32_t p, uint32_t unit)
{
    return pb->length[(size_t)p * pb->n_units + unit];
}

/* -------------------------------------------------------------------------------------------------------------- levels */

/*
 * The level of a unit is the number of micro-batches that are high enough for it, beside the least others. A rank whose units
 * all find a place holds at most c units of levels up to c, for every c; one that holds more exchanges a unit of the lowest
 * such level with a rank that has room there, for the fewest bytes. With one sample a micro-batch there always is one, and
 * the result is exact.
 */
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
        if (mc->loads.length[(size_t)rank * pb->n_phases + p] - length_of(pb, p, out) + length_of(pb, p, in) >
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

static void exchange(struct micro *mc, struct layout *layout, uint32_t u, uint32_t v)
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

static bool relieve(struct levels *lv, uint32_t rank, uint32_t c, struct layout *layout)
{
    struct micro *mc = lv->mc;
    const struct problem *pb = mc->pb;
    uint32_t n = pb->n_ranks < RANKS ? pb->n_ranks : RANKS, best_a = PLAN_ANY, best_b = PLAN_ANY;
    int64_t least = INT64_MAX;

    for (uint32_t i = 1; i < n; i++) {
        uint32_t q = (rank + i) % pb->n_ranks, high = room_up_to(lv, q, c);
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
    exchange(mc, layout, u, v);
    return true;
}

static int level_ranks(struct micro *mc, struct layout *layout)
{
    struct levels lv;

    if (levels_init(&lv, mc, layout) < 0)
        return -ENOMEM;
    for (uint32_t r = 0; r < mc->pb->n_ranks; r++)
        for (uint32_t c; (c = crowded_level(&lv, r)) && relieve(&lv, r, c, layout);)
            ;
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------- arranging */

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
            fits = mc->length[(cell + m) * pb->n_phases + p] + length_of(pb, p, unit) <= pb->cap_length_micro_batch[p];
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
            mc->length[(cell + m) * pb->n_phases + p] += length_of(pb, p, u);
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
        uint64_t was = mc->length[cell * pb->n_phases + p], now = was - length_of(pb, p, out) + length_of(pb, p, in);
        uint64_t sum = mc->loads.length[(size_t)rank * pb->n_phases + p] - length_of(pb, p, out) + length_of(pb, p, in);
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

static void consider(const struct micro *mc, size_t cell, uint32_t mine, size_t other, uint32_t theirs, struct exchange *best)
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
    uint32_t rank = (uint32_t)(cell / mc->n_mb), n = pb->n_ranks < RANKS ? pb->n_ranks : RANKS;

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
        mc->length[cell * pb->n_phases + p] += length_of(pb, p, v) - length_of(pb, p, u);
        mc->length[best.cell * pb->n_phases + p] += length_of(pb, p, u) - length_of(pb, p, v);
    }
    layout->micro_batch[u] = (uint32_t)(best.cell % mc->n_mb);
    layout->micro_batch[v] = (uint32_t)(cell % mc->n_mb);
    exchange(mc, layout, u, v);
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

    if (!height || place_groups(pb, layout, height) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    /* In a pipeline only the largest micro-batch counts: all may be as high. */
    for (uint32_t m = 1; pb->req->objective == POISE_OBJECTIVE_PIPELINE && m < pb->n_micro_batches; m++)
        height[m] = height[0];
    if (pb->micro_batch_samples == 1 && pb->req->objective == POISE_OBJECTIVE_MICROBATCH)
        memcpy(layout->rank, pb->unit_rank, pb->n_units * sizeof *layout->rank); /* levels say all */
    else if ((rc = balance_ranks(pb, height, layout, err)) < 0)
        return rc;
    if (micro_init(&mc, pb, layout, height) < 0 || (pb->micro_batch_samples == 1 && pb->req->objective == POISE_OBJECTIVE_MICROBATCH &&
                                                    level_ranks(&mc, layout) < 0))
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if ((rc = arrange(&mc, layout)) < 0)
        return err_set(err, rc, "the samples of some rank do not fit into micro-batches under the caps");
    lower_all(&mc, layout);
    return 0;
}
