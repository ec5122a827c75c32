/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that every constructive algorithm keeps: sums by rank. One place knows all caps of a rank, so that an
 * algorithm asks one question. A rank that holds nothing takes anything: a unit that alone exceeds a cap has to go
 * somewhere.
 */
#include "loads.h"

#include <errno.h>

int loads_new(struct problem *pb, struct loads *ret_loads)
{
    struct loads l = {.pb = pb};
    uint64_t n = pb->n_ranks;

    l.cost = pool_get(&pb->pool, n, sizeof *l.cost);
    l.bytes = pool_get(&pb->pool, n, sizeof *l.bytes);
    l.count = pool_get(&pb->pool, n, sizeof *l.count);
    l.length = pool_get(&pb->pool, n * pb->n_phases, sizeof *l.length);
    l.present = pool_get(&pb->pool, n * pb->n_phases, sizeof *l.present);
    if (!l.cost || !l.bytes || !l.count || !l.length || !l.present)
        return -ENOMEM;
    for (uint32_t p = 0; p < pb->n_phases; p++)
        l.lack[p] = pb->present[p] ? n * pb->n_micro_batches : 0;
    *ret_loads = l;
    return 0;
}

static bool is_above(const struct loads *l, uint32_t rank)
{
    return l->pb->count_quota != PLAN_ANY && l->count[rank] > l->pb->count_min[rank];
}

void loads_add(struct loads *l, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = l->pb;

    l->above -= is_above(l, rank);
    l->cost[rank] += pb->cost[unit];
    l->bytes[rank] += pb->packed[unit];
    l->count[rank] += unit_size(pb, unit);
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        uint64_t length = pb->length[(size_t)p * pb->n_units + unit];
        l->length[(size_t)rank * pb->n_phases + p] += length;
        if (length > 0 && l->present[(size_t)rank * pb->n_phases + p]++ < pb->n_micro_batches)
            l->lack[p]--;
    }
    l->above += is_above(l, rank);
}

void loads_remove(struct loads *l, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = l->pb;

    l->above -= is_above(l, rank);
    l->cost[rank] -= pb->cost[unit];
    l->bytes[rank] -= pb->packed[unit];
    l->count[rank] -= unit_size(pb, unit);
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        uint64_t length = pb->length[(size_t)p * pb->n_units + unit];
        l->length[(size_t)rank * pb->n_phases + p] -= length;
        if (length > 0 && l->present[(size_t)rank * pb->n_phases + p]-- <= pb->n_micro_batches)
            l->lack[p]++;
    }
    l->above += is_above(l, rank);
}

bool loads_fits(const struct loads *l, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = l->pb;
    uint32_t count = l->count[rank] + unit_size(pb, unit);

    if (count > pb->count_max[rank])
        return false;
    if (pb->count_quota != PLAN_ANY && count > pb->count_min[rank] && !is_above(l, rank) && l->above >= pb->count_quota)
        return false;
    if (l->count[rank] == 0)
        return true;
    if (pb->packed[unit] > pb->cap_bytes_rank || l->bytes[rank] > pb->cap_bytes_rank - pb->packed[unit])
        return false;
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        uint64_t length = pb->length[(size_t)p * pb->n_units + unit];
        if (length > 0 && (length > pb->cap_length_rank[p] ||
                           l->length[(size_t)rank * pb->n_phases + p] > pb->cap_length_rank[p] - length))
            return false;
    }
    return true;
}

bool loads_may_lose(const struct loads *l, uint32_t rank, uint32_t unit)
{
    const struct problem *pb = l->pb;

    for (uint32_t p = 0; p < pb->n_phases; p++)
        if (pb->length[(size_t)p * pb->n_units + unit] > 0 &&
            l->present[(size_t)rank * pb->n_phases + p] <= pb->n_micro_batches &&
            l->lack[p] >= pb->arrival.lacking_phase[p])
            return false;
    return true;
}

bool loads_fits_for(struct loads *l, uint32_t rank, uint32_t in, uint32_t out)
{
    loads_remove(l, rank, out);
    bool fits = loads_fits(l, rank, in);
    loads_add(l, rank, out);
    return fits;
}

bool loads_not_emptier(const struct loads *l)
{
    for (uint32_t p = 0; p < l->pb->n_phases; p++)
        if (l->lack[p] > l->pb->arrival.lacking_phase[p])
            return false;
    return true;
}
