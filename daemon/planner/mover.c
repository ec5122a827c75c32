/* SPDX-License-Identifier: Apache-2.0 */
/* Book-keeping of least_move: one place changes where a unit is, so that loads, lists and holes always agree. */
#include "mover.h"

#include <errno.h>
#include <string.h>

#define SUM_BITS 62 /* two sums and a sign fit in 64 bits */

#define GET(field, n)                                                                                                  \
    do {                                                                                                               \
        if (!(mv->field = pool_get(&pb->pool, (n), sizeof *mv->field)))                                                \
            return -ENOMEM;                                                                                            \
    } while (0)

static void scale_costs(struct mover *mv)
{
    const struct problem *pb = mv->pb;

    while (pb->cost_total >> mv->shift >> SUM_BITS)
        mv->shift++;
    for (uint32_t u = 0; u < pb->n_units; u++)
        mv->cost[u] = pb->cost[u] >> mv->shift;
}

/* The largest unit that the rank holds. */
static uint64_t largest_of(const struct mover *mv, uint32_t rank)
{
    const struct problem *pb = mv->pb;
    uint64_t most = 0;

    for (uint32_t i = pb->unit_of_rank[rank]; i < pb->unit_of_rank[rank + 1]; i++)
        if (mv->where[mv->home[i]] == rank) {
            most = mv->cost[mv->home[i]];
            break;
        }
    for (uint32_t v = mv->guest_first[rank]; v != PLAN_ANY; v = mv->guest_next[v])
        most = mv->cost[v] > most ? mv->cost[v] : most;
    return most;
}

void mover_aim(struct mover *mv)
{
    const struct problem *pb = mv->pb;
    bool pipes = pb->req->objective == POISE_OBJECTIVE_PIPELINE;

    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        u128 target = rank_target(pb);
        /* Its largest unit makes a micro-batch at least as large, which counts for every stage. */
        u128 bubbles = pipes ? ((u128)largest_of(mv, r) << mv->shift) * (pb->stages - 1) : 0;
        if (pipes && pb->target - target < bubbles)
            target = pb->target > bubbles ? pb->target - bubbles : 0;
        if (pb->has_speeds)
            target = target * pb->speed[r] / 1000000u;
        mv->target[r] = target >> mv->shift >> SUM_BITS ? (uint64_t)1 << SUM_BITS : (uint64_t)(target >> mv->shift);
        if (mv->is_open)
            mover_changed(mv, r);
    }
}

/* Ranks by node. */
static int list_peers(struct mover *mv)
{
    struct problem *pb = mv->pb;
    const uint32_t *node = pb->req->node;
    struct sort_item *items;

    if (!node)
        return 0;
    GET(peers, pb->n_ranks);
    GET(node_first, pb->n_ranks);
    GET(node_end, pb->n_ranks);
    if (!(items = pool_get(&pb->pool, 2ull * pb->n_ranks, sizeof *items)))
        return -ENOMEM;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        items[r] = (struct sort_item){node[r], r};
    sort_items(items, pb->n_ranks, items + pb->n_ranks);
    for (uint32_t i = 0, first = 0; i < pb->n_ranks; i++) {
        if (items[i].key != items[first].key)
            first = i;
        mv->peers[i] = items[i].id;
        mv->node_first[items[i].id] = first;
        for (uint32_t k = first; k <= i && (i + 1 == pb->n_ranks || items[i + 1].key != items[i].key); k++)
            mv->node_end[items[k].id] = i + 1;
    }
    return 0;
}

int mover_init(struct mover *mv, struct problem *pb)
{
    uint32_t *fill = pool_get(&pb->pool, pb->n_ranks, sizeof *fill);

    memset(mv, 0, sizeof *mv);
    mv->pb = pb;
    GET(cost, pb->n_units);
    GET(load, pb->n_ranks);
    GET(target, pb->n_ranks);
    GET(where, pb->n_units);
    GET(home, pb->n_units);
    GET(guest_first, pb->n_ranks);
    GET(guest_next, pb->n_units);
    GET(reason, pb->n_units);
    GET(slots, pb->n_ranks);
    GET(listed, pb->n_ranks);
    if (!fill || loads_new(pb, &mv->loads) < 0 || heap_new(&pb->pool, pb->n_ranks, &mv->closed) < 0 ||
        heap_new(&pb->pool, pb->n_ranks, &mv->open) < 0)
        return -ENOMEM;
    scale_costs(mv);
    memset(mv->guest_first, 0xff, pb->n_ranks * sizeof *mv->guest_first);
    memcpy(mv->where, pb->unit_rank, pb->n_units * sizeof *mv->where);
    for (uint32_t i = 0; i < pb->n_units; i++) {
        uint32_t u = pb->sorted[i].id, r = pb->unit_rank[u];
        mv->home[pb->unit_of_rank[r] + fill[r]++] = u;
    }
    for (uint32_t u = 0; u < pb->n_units; u++) {
        mv->load[pb->unit_rank[u]] += mv->cost[u];
        loads_add(&mv->loads, pb->unit_rank[u], u);
    }
    mover_aim(mv);
    return list_peers(mv);
}

static void remove_guest(struct mover *mv, uint32_t rank, uint32_t unit)
{
    uint32_t *link = &mv->guest_first[rank];

    while (*link != unit)
        link = &mv->guest_next[*link];
    *link = mv->guest_next[unit];
}

/* Least where most may come in. */
static u128 room_key(const struct mover *mv, uint32_t rank)
{
    u128 reserved = mv->slots[rank] ? (u128)(mv->slots[rank] - 1) * mv->small : 0;

    return ((u128)1 << 64) + mv->load[rank] + reserved - mv->target[rank];
}

void mover_changed(struct mover *mv, uint32_t rank)
{
    struct heap *to = mv->slots[rank] ? &mv->open : &mv->closed, *from = mv->slots[rank] ? &mv->closed : &mv->open;

    if (!mv->is_open)
        return;
    if (heap_has(from, rank))
        heap_remove(from, rank);
    if (heap_has(to, rank)) {
        to->key[rank] = room_key(mv, rank);
        heap_moved(to, rank);
    } else if (mv->pb->count_max[rank] > 0) {
        heap_push(to, rank, room_key(mv, rank));
    }
}

void mover_take(struct mover *mv, uint32_t unit)
{
    uint32_t rank = mv->where[unit];

    if (rank != mv->pb->unit_rank[unit])
        remove_guest(mv, rank, unit);
    loads_remove(&mv->loads, rank, unit);
    mv->load[rank] -= mv->cost[unit];
    mv->where[unit] = IN_POOL;
    mv->slots[rank] += mv->exchanges;
    mover_changed(mv, rank);
}

void mover_put(struct mover *mv, uint32_t rank, uint32_t unit, uint8_t reason)
{
    if (rank != mv->pb->unit_rank[unit]) {
        mv->guest_next[unit] = mv->guest_first[rank];
        mv->guest_first[rank] = unit;
    }
    loads_add(&mv->loads, rank, unit);
    mv->load[rank] += mv->cost[unit];
    mv->where[unit] = rank;
    mv->slots[rank] -= mv->exchanges;
    mv->reason[unit] = reason;
    mover_changed(mv, rank);
}

void mover_open(struct mover *mv)
{
    mv->is_open = true;
    for (uint32_t r = 0; r < mv->pb->n_ranks; r++)
        mover_changed(mv, r);
}
