/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lowest sum of micro-batch maxima that is to be had if moving cost nothing: units in groups of a micro-batch each,
 * as alike as LPT makes them (so that the largest do not meet and memory stays flat), the groups sorted, n at a time
 * one micro-batch. Which rank takes which group is free: whoever owns most of it.
 */
#include <errno.h>
#include <string.h>

#include "heap.h"
#include "micro.h"

bool micro_applies(const struct problem *pb)
{
    uint64_t room = (uint64_t)pb->micro_batch_samples * pb->n_micro_batches * pb->n_ranks;
    bool full = pb->micro_batch_samples != PLAN_ANY && room == pb->n_samples && pb->req->cut == POISE_CUT_FIXED;

    bool meets = pb->req->objective == POISE_OBJECTIVE_MICROBATCH && pb->n_sets < pb->n_ranks;
    bool pipes = pb->req->objective == POISE_OBJECTIVE_PIPELINE && pb->stages > 1;

    return (meets || pipes) && pb->n_micro_batches > 1 && pb->n_segments == 1 && !pb->is_padded && !pb->has_units &&
           !pb->has_speeds && pb->n_units > 0 &&
           (full || (pb->req->count == POISE_COUNT_FREE && pb->req->cut == POISE_CUT_BY_COST));
}

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

/* Which ranks take the groups of one micro-batch: owners first, then the lightest ranks take the largest that are left.
 */
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

static void group_units(const struct problem *pb, const uint32_t *group, uint32_t n_groups, uint32_t *first,
                        uint32_t *units)
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
int groups_place(struct problem *pb, struct layout *layout, u128 *height)
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

    if (!height || groups_place(pb, layout, height) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    return 0;
}
