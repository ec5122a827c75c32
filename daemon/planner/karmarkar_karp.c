/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Largest differencing (Karmarkar and Karp 1982, N-way): partial solutions, N sums each, are merged two at a time,
 * those with the largest differences first, the largest sums of one with the smallest of the other. With equal counts
 * it starts from sorted chunks of N units, one for each rank (the balanced variant). It ignores where samples are; it
 * is here because others use it, so that one can compare.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "heap.h"

#define MAX_SUMS (1ull << 27) /* sums of all partial solutions: 1 GB; it is for offline use */

struct partial {     /* sums falling; each with a list of units */
    uint64_t *sum;   /* [n_ranks] */
    uint32_t *first; /* [n_ranks] PLAN_ANY: empty */
    uint32_t *last;
};

struct differencing {
    struct problem *pb;
    struct partial *partials;
    uint32_t n;
    uint32_t *next; /* [n_units] */
    uint64_t *cost;
    struct sort_item *items, *scratch; /* [n_ranks] */
    struct partial merged;
};

static int partial_new(struct problem *pb, struct partial *p)
{
    p->sum = pool_get(&pb->pool, pb->n_ranks, sizeof *p->sum);
    p->first = pool_get(&pb->pool, pb->n_ranks, sizeof *p->first);
    p->last = pool_get(&pb->pool, pb->n_ranks, sizeof *p->last);
    if (!p->sum || !p->first || !p->last)
        return -ENOMEM;
    memset(p->first, 0xff, pb->n_ranks * sizeof *p->first);
    memset(p->last, 0xff, pb->n_ranks * sizeof *p->last);
    return 0;
}

/* a = a and b, largest with smallest. */
static void merge(struct differencing *d, struct partial *a, const struct partial *b)
{
    uint32_t n = d->pb->n_ranks;
    struct partial *m = &d->merged;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = n - 1 - i;
        d->items[i] = (struct sort_item){~(a->sum[i] + b->sum[k]), i};
        if (a->last[i] != PLAN_ANY)
            d->next[a->last[i]] = b->first[k];
        if (a->first[i] == PLAN_ANY)
            a->first[i] = b->first[k];
        if (b->last[k] != PLAN_ANY)
            a->last[i] = b->last[k];
    }
    sort_items(d->items, n, d->scratch);
    for (uint32_t i = 0; i < n; i++) {
        m->sum[i] = ~d->items[i].key;
        m->first[i] = a->first[d->items[i].id];
        m->last[i] = a->last[d->items[i].id];
    }
    struct partial swap = *a;
    *a = *m;
    *m = swap;
}

static int start(struct differencing *d, uint32_t chunk)
{
    struct problem *pb = d->pb;

    for (uint32_t i = 0; i < d->n; i++) {
        struct partial *p = &d->partials[i];
        if (partial_new(pb, p) < 0)
            return -ENOMEM;
        for (uint32_t k = 0; k < chunk; k++) {
            uint32_t u = pb->sorted[(size_t)i * chunk + k].id;
            p->sum[k] = d->cost[u];
            p->first[k] = p->last[k] = u;
            d->next[u] = PLAN_ANY;
        }
    }
    return 0;
}

static u128 difference_key(const struct differencing *d, uint32_t i)
{
    const struct partial *p = &d->partials[i];

    return ((u128)1 << 64) - (p->sum[0] - p->sum[d->pb->n_ranks - 1]);
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
        merge(d, &d->partials[a], &d->partials[b]);
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
    if (!d.partials || !d.next || !d.cost || !d.items || !d.scratch || partial_new(pb, &d.merged) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    while (pb->cost_total >> shift >> 63)
        shift++;
    for (uint32_t u = 0; u < pb->n_units; u++)
        d.cost[u] = pb->cost[u] >> shift;
    if (start(&d, chunk) < 0 || run(&d) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        for (uint32_t u = d.partials[0].first[r]; u != PLAN_ANY; u = d.next[u]) {
            layout->rank[u] = r;
            layout->reason[u] = r == pb->unit_rank[u] ? POISE_REASON_KEPT : POISE_REASON_ALGORITHM;
        }
    return 0;
}
