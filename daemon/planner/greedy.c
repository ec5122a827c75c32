/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Longest processing time first: the largest unit to the lightest rank that may take it, through a heap. Ties go to the
 * rank where the unit already is, then to the lowest. It does not try to move little; least_move does.
 */
#include <errno.h>

#include "algorithm.h"
#include "heap.h"
#include "loads.h"

/* Ranks passed over in all because a cap kept the unit out, for each unit: bounds the work where caps bind everywhere.
 */
#define SKIPS_A_UNIT 64

/* The rank for a unit: its own where that is as light as the lightest, else the lightest that fits. PLAN_ANY: none
 * does. */
static uint32_t choose(struct heap *heap, const struct loads *loads, uint32_t unit, uint32_t *skipped, uint64_t *skips)
{
    const struct problem *pb = loads->pb;
    uint32_t own = pb->unit_rank[unit], n_skipped = 0, found = PLAN_ANY;
    bool own_fits = loads_fits(loads, own, unit);

    if (own_fits && pb->cost[unit] == 0)
        return own;
    while (heap->n && found == PLAN_ANY && *skips > 0) {
        uint32_t top = heap->id[0];
        if (own_fits && heap_has(heap, own) && heap->key[own] == heap->key[top])
            found = own;
        else if (loads_fits(loads, top, unit))
            found = top;
        if (found != PLAN_ANY)
            break;
        heap_remove(heap, top);
        skipped[n_skipped++] = top;
        --*skips;
    }
    while (n_skipped--)
        heap_push(heap, skipped[n_skipped], heap->key[skipped[n_skipped]]);
    return found;
}

static uint8_t reason_of(const struct problem *pb, uint32_t unit, uint32_t rank)
{
    bool own = rank == pb->unit_rank[unit];

    if (pb->cost[unit] == 0)
        return own ? POISE_REASON_ZERO : POISE_REASON_COUNT;
    return own ? POISE_REASON_KEPT : POISE_REASON_ALGORITHM;
}

int greedy_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    struct loads loads;
    struct heap heap;
    uint32_t *skipped = pool_get(&pb->pool, pb->n_ranks, sizeof *skipped);
    uint64_t skips = (uint64_t)SKIPS_A_UNIT * pb->n_units + pb->n_ranks;

    if (!skipped || loads_new(pb, &loads) < 0 || heap_new(&pb->pool, pb->n_ranks, &heap) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        if (pb->count_max[r] > 0)
            heap_push(&heap, r, 0);
    /* What costs nothing moves only for a count or a cap: it is placed first, where it is. `sorted` has it last. */
    uint32_t n_cost = pb->n_units;
    while (n_cost > 0 && pb->cost[pb->sorted[n_cost - 1].id] == 0)
        n_cost--;
    for (uint32_t k = 0; k < pb->n_units; k++) {
        uint32_t i = (k + n_cost) % pb->n_units;
        uint32_t u = pb->sorted[i].id, r = choose(&heap, &loads, u, skipped, &skips);
        if (r == PLAN_ANY)
            return err_set(err, -ENOSPC, "greedy found no rank under caps and counts for unit %u of %u", i,
                           pb->n_units);
        loads_add(&loads, r, u);
        heap.key[r] = rank_time(pb, r, loads.cost[r]);
        if (loads.count[r] >= pb->count_max[r])
            heap_remove(&heap, r);
        else
            heap_moved(&heap, r);
        layout->rank[u] = r;
        layout->reason[u] = reason_of(pb, u, r);
    }
    return 0;
}
