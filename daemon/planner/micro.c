/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for ranks that meet at every micro-batch: what counts is the sum over micro-batches of the largest rank's cost.
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

#define RANKS 48      /* that a unit which sticks out is offered to: bounds the search at 1,024 ranks */
#define ROUNDS 3      /* over all cells; later ones find little */
#define SLACK_PARTS 2 /* heights are raised by tolerance / SLACK_PARTS: the rest is for what finds no exchange */

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
};

bool micro_applies(const struct problem *pb)
{
    uint64_t room = (uint64_t)pb->micro_batch_samples * pb->n_micro_batches * pb->n_ranks;
    bool full = pb->micro_batch_samples != PLAN_ANY && room == pb->n_samples && pb->req->cut == POISE_CUT_FIXED;

    return pb->req->objective == POISE_OBJECTIVE_MICROBATCH && pb->n_sets < pb->n_ranks && pb->n_micro_batches > 1 &&
           pb->n_segments == 1 && !pb->is_padded && !pb->has_units && !pb->has_speeds && pb->n_units > 0 &&
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

static int micro_init(struct micro *mc, struct problem *pb, const u128 *height)
{
    uint64_t n_cells = (uint64_t)pb->n_ranks * pb->n_micro_batches;
    uint32_t shift = 0;

    memset(mc, 0, sizeof *mc);
    mc->pb = pb;
    mc->n_mb = pb->n_micro_batches;
    mc->k = pb->micro_batch_samples;
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
        loads_add(&mc->loads, pb->unit_rank[u], u);
    }
    for (uint32_t m = 0; m < mc->n_mb; m++) {
        u128 h = height[m] + height[m] * pb->tolerance_ppm / (SLACK_PARTS * 1000000u);
        mc->height[m] = (uint64_t)(h >> shift);
    }
    return 0;
}

static uint64_t length_of(const struct problem *pb, uint32_t p, uint32_t unit)
{
    return pb->length[(size_t)p * pb->n_units + unit];
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
        for (uint32_t p = 0; p < pb->n_phases && fits && count[m]; p++)
            fits = mc->length[(cell + m) * pb->n_phases + p] + length_of(pb, p, unit) <= pb->cap_length_micro_batch[p];
        if (fits && air > most) {
            most = air;
            best = m;
        }
    }
    return best;
}

/* Every rank's own units under the heights, as well as they fit. */
static int arrange(struct micro *mc, struct layout *layout)
{
    struct problem *pb = mc->pb;
    uint32_t *count = pool_get(&pb->pool, (uint64_t)pb->n_ranks * mc->n_mb, sizeof *count);

    if (!count)
        return -ENOMEM;
    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = pb->sorted[i].id;
        size_t cell = (size_t)pb->unit_rank[u] * mc->n_mb;
        uint32_t m = airiest(mc, cell, count + cell, u);
        if (m == PLAN_ANY)
            return -ENOSPC;
        mc->sum[cell + m] += mc->cost[u];
        count[cell + m]++;
        for (uint32_t p = 0; p < pb->n_phases; p++)
            mc->length[(cell + m) * pb->n_phases + p] += length_of(pb, p, u);
        layout->rank[u] = pb->unit_rank[u];
        layout->micro_batch[u] = m;
        layout->reason[u] = POISE_REASON_KEPT;
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
    size_t cell;       /* the other cell */
    uint32_t mine, theirs; /* places in unit[] */
    uint64_t bytes;
};

static void consider(const struct micro *mc, size_t cell, uint32_t mine, size_t other, uint32_t theirs, struct exchange *best)
{
    const struct problem *pb = mc->pb;
    uint32_t u = mc->unit[mine], v = mc->unit[theirs];
    uint64_t shift = mc->cost[u] - mc->cost[v];

    if (mc->cost[v] >= mc->cost[u] || mc->sum[other] + shift > mc->height[other % mc->n_mb] ||
        mc->sum[cell] - shift > mc->height[cell % mc->n_mb])
        return;
    bool same = other / mc->n_mb == cell / mc->n_mb; /* within a rank nothing moves */
    uint64_t bytes = same ? 0 : pb->bytes[u] + pb->bytes[v];
    if (best->mine != PLAN_ANY && bytes >= best->bytes)
        return;
    if (cell_takes(mc, cell, v, u) && cell_takes(mc, other, u, v))
        *best = (struct exchange){other, mine, theirs, bytes};
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
            if (other + m == cell || mc->sum[other + m] >= mc->height[m])
                continue;
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
    uint32_t to = (uint32_t)(best.cell / mc->n_mb);
    loads_remove(&mc->loads, rank, u);
    loads_remove(&mc->loads, to, v);
    loads_add(&mc->loads, to, u);
    loads_add(&mc->loads, rank, v);
    layout->rank[u] = to;
    layout->micro_batch[u] = (uint32_t)(best.cell % mc->n_mb);
    layout->rank[v] = rank;
    layout->micro_batch[v] = (uint32_t)(cell % mc->n_mb);
    layout->reason[u] = layout->rank[u] == pb->unit_rank[u] ? POISE_REASON_KEPT : POISE_REASON_SHED;
    layout->reason[v] = layout->rank[v] == pb->unit_rank[v] ? POISE_REASON_KEPT : POISE_REASON_SWAP;
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
                if (mc->sum[cell] > mc->height[m])
                    changed |= lower(mc, cell, layout);
            }
    }
}

int micro_place_near(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    u128 *height = pool_get(&pb->pool, pb->n_micro_batches, sizeof *height);
    struct micro mc;
    int rc;

    if (!height || place_groups(pb, layout, height) < 0 || micro_init(&mc, pb, height) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if ((rc = arrange(&mc, layout)) < 0)
        return err_set(err, rc, "the samples of some rank do not fit into micro-batches under the caps");
    lower_all(&mc, layout);
    return 0;
}
