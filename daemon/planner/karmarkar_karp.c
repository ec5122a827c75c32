/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Largest differencing (Karmarkar and Karp 1982, N-way): partial solutions, N sums each, are merged two at a time,
 * those with the largest differences first, the largest sums of one with the smallest of the other. With equal counts
 * it starts from sorted chunks of N units, one for each rank (the balanced variant). It ignores where samples are; it
 * is here because others use it, so that one can compare.
 *
 * Most merges are of small solutions, whose ranks are mostly empty: only the cells that hold units are looked
 * at, which is what makes it quick. The order of equal sums is the one that looking at all of them has.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "heap.h"

#define MAX_SUMS (1ull << 27) /* sums of all partial solutions: 1 GB; it is for offline use */

struct cell { /* what one rank has in a partial solution */
    uint64_t sum;
    uint32_t first, last; /* its units, linked; PLAN_ANY: none */
};

struct partial { /* cells by falling sum; those behind n_used are empty and not stored */
    struct cell *cells;
    uint32_t n_used, n_room;
};

struct differencing {
    struct problem *pb;
    struct partial *partials;
    uint32_t n;
    uint32_t *next; /* [n_units] */
    uint64_t *cost;
    struct sort_item *items, *scratch; /* [n_ranks] */
    struct cell *joined;               /* [n_ranks] */
};

/* Room for n cells, which are lost if they have to move. */
static int reserve(struct problem *pb, struct partial *p, uint32_t n)
{
    uint32_t n_room = p->n_room ? p->n_room : 1;

    if (n <= p->n_room)
        return 0;
    while (n_room < n)
        n_room *= 2;
    p->cells = pool_get(&pb->pool, n_room, sizeof *p->cells);
    p->n_room = p->cells ? n_room : 0;
    return p->cells ? 0 : -ENOMEM;
}

/* a's units, then b's. */
static void join(struct differencing *d, struct cell *a, const struct cell *b)
{
    if (a->last != PLAN_ANY)
        d->next[a->last] = b->first;
    if (a->first == PLAN_ANY)
        a->first = b->first;
    if (b->last != PLAN_ANY)
        a->last = b->last;
    a->sum += b->sum;
}

/* Items [from, n) have one list of b's each: rising sums. Falling, with equal ones in the order of their places. */
static void reverse_items(struct sort_item *items, uint32_t from, uint32_t n)
{
    for (uint32_t i = from, k = n; i + 1 < k; i++) {
        struct sort_item swap = items[i];
        items[i] = items[--k];
        items[k] = swap;
    }
    for (uint32_t i = from, end; i < n; i = end) {
        for (end = i + 1; end < n && items[end].key == items[i].key; end++)
            ;
        for (uint32_t lo = i, hi = end; lo + 1 < hi; lo++) {
            struct sort_item swap = items[lo];
            items[lo] = items[--hi];
            items[hi] = swap;
        }
    }
}

/* a = a and b, largest with smallest. */
static int merge(struct differencing *d, struct partial *a, const struct partial *b)
{
    uint32_t n = d->pb->n_ranks, begin = n - b->n_used, n_joined = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (i >= a->n_used && i < begin)
            i = begin;
        struct cell cell = i < a->n_used ? a->cells[i] : (struct cell){0, PLAN_ANY, PLAN_ANY};
        if (i >= begin)
            join(d, &cell, &b->cells[n - 1 - i]);
        d->joined[n_joined] = cell;
        d->items[n_joined] = (struct sort_item){~cell.sum, n_joined};
        n_joined++;
    }
    if (a->n_used <= begin)
        reverse_items(d->items, a->n_used, n_joined);
    sort_items(d->items, n_joined, d->scratch);
    if (reserve(d->pb, a, n_joined) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < n_joined; i++)
        a->cells[i] = d->joined[d->items[i].id];
    a->n_used = n_joined;
    return 0;
}

static int start(struct differencing *d, uint32_t chunk)
{
    struct problem *pb = d->pb;

    for (uint32_t i = 0; i < d->n; i++) {
        struct partial *p = &d->partials[i];
        const struct sort_item *units = &pb->sorted[(size_t)i * chunk];
        /* A unit of cost 0 looks like an empty cell: then all are looked at. */
        p->n_used = d->cost[units[chunk - 1].id] ? chunk : pb->n_ranks;
        if (reserve(pb, p, p->n_used) < 0)
            return -ENOMEM;
        for (uint32_t k = 0; k < p->n_used; k++)
            p->cells[k] = (struct cell){0, PLAN_ANY, PLAN_ANY};
        for (uint32_t k = 0; k < chunk; k++) {
            p->cells[k] = (struct cell){d->cost[units[k].id], units[k].id, units[k].id};
            d->next[units[k].id] = PLAN_ANY;
        }
    }
    return 0;
}

static u128 difference_key(const struct differencing *d, uint32_t i)
{
    const struct partial *p = &d->partials[i];
    uint32_t n = d->pb->n_ranks;

    return ((u128)1 << 64) - (p->cells[0].sum - (p->n_used == n ? p->cells[n - 1].sum : 0));
}

static int run(struct differencing *d)
{
    struct heap heap;

    if (heap_new(&d->pb->pool, d->n, &heap) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < d->n; i++)
        heap_push(&heap, i, difference_key(d, i));
    while (heap.n > 1) {
        uint32_t a = heap.id[0];
        heap_remove(&heap, a);
        uint32_t b = heap.id[0];
        heap_remove(&heap, b);
        if (merge(d, &d->partials[a], &d->partials[b]) < 0)
            return -ENOMEM;
        heap_push(&heap, a, difference_key(d, a));
    }
    d->partials[0] = d->partials[heap.id[0]];
    return 0;
}

static int check_size(const struct problem *pb, uint32_t n_partials, struct poise_err *err)
{
    bool equal = pb->req->count != POISE_COUNT_FREE;

    for (uint32_t r = 1; equal && r < pb->n_ranks; r++)
        if (pb->req->n_samples[r] != pb->req->n_samples[0])
            return err_set(err, -EINVAL,
                           "karmarkar_karp with counts wants the same on all ranks: rank 0 has %u, rank %u %u",
                           pb->req->n_samples[0], r, pb->req->n_samples[r]);
    if ((uint64_t)n_partials * pb->n_ranks > MAX_SUMS)
        return err_set(err, -EINVAL, "karmarkar_karp is for comparison: %u samples on %u ranks are too many",
                       pb->n_samples, pb->n_ranks);
    return 0;
}

int karmarkar_karp_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    bool equal = pb->req->count != POISE_COUNT_FREE;
    uint32_t chunk = equal ? pb->n_ranks : 1, shift = 0;
    struct differencing d = {.pb = pb, .n = pb->n_units / chunk};
    int rc = check_size(pb, d.n, err);

    if (rc < 0 || pb->n_units == 0)
        return rc;
    d.partials = pool_get(&pb->pool, d.n, sizeof *d.partials);
    d.next = pool_get(&pb->pool, pb->n_units, sizeof *d.next);
    d.cost = pool_get(&pb->pool, pb->n_units, sizeof *d.cost);
    d.items = pool_get(&pb->pool, pb->n_ranks, sizeof *d.items);
    d.scratch = pool_get(&pb->pool, pb->n_ranks, sizeof *d.scratch);
    d.joined = pool_get(&pb->pool, pb->n_ranks, sizeof *d.joined);
    if (!d.partials || !d.next || !d.cost || !d.items || !d.scratch || !d.joined)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    while (pb->cost_total >> shift >> 63)
        shift++;
    for (uint32_t u = 0; u < pb->n_units; u++)
        d.cost[u] = pb->cost[u] >> shift;
    if (start(&d, chunk) < 0 || run(&d) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t r = 0; r < d.partials[0].n_used; r++)
        for (uint32_t u = d.partials[0].cells[r].first; u != PLAN_ANY; u = d.next[u]) {
            layout->rank[u] = r;
            layout->reason[u] = r == pb->unit_rank[u] ? POISE_REASON_KEPT : POISE_REASON_ALGORITHM;
        }
    return 0;
}
