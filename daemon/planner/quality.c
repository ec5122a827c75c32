/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan is worth, and what no plan can beat. bytes_floor is the least traffic that brings every rank to the
 * target if samples were divisible: each rank above it must give away its excess, and does so cheapest by giving the
 * samples with most cost a byte. Nothing about where they go enters, so it is below every plan that reaches the target.
 */
#include "quality.h"

#include <errno.h>
#include <string.h>

/* Units of a rank with most cost a byte first. Compared by cross multiplication: a division would round. */
static bool denser(const struct problem *pb, uint32_t a, uint32_t b)
{
    return (u128)pb->cost[a] * pb->bytes[b] > (u128)pb->cost[b] * pb->bytes[a];
}

static void sink(const struct problem *pb, uint32_t *heap, uint32_t n, uint32_t at)
{
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && denser(pb, heap[child + 1], heap[child]))
            child++;
        if (!denser(pb, heap[child], heap[at]))
            return;
        uint32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

/* Takes the densest units out of a heap until `excess` is gone; the last one in part. Few of many: no sort is needed.
 */
static uint64_t least_bytes(const struct problem *pb, uint32_t *heap, uint32_t n, u128 excess)
{
    uint64_t bytes = 0;

    for (uint32_t i = n / 2; i-- > 0;)
        sink(pb, heap, n, i);
    while (n > 0 && excess > 0) {
        uint32_t u = heap[0];
        if (pb->cost[u] >= excess)
            return bytes + (uint64_t)(excess * pb->bytes[u] / (pb->cost[u] ? pb->cost[u] : 1));
        bytes += pb->bytes[u];
        excess -= pb->cost[u];
        heap[0] = heap[--n];
        sink(pb, heap, n, 0);
    }
    return bytes;
}

static int bytes_floor(struct problem *pb, uint64_t *ret_floor)
{
    uint32_t *heap = pool_get(&pb->pool, pb->n_units, sizeof *heap);
    u128 target = pb->n_micro_batches ? rank_target(pb) : pb->target;
    uint64_t floor = 0;

    if (!heap)
        return -ENOMEM;
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t first = pb->unit_of_rank[r], n = pb->unit_of_rank[r + 1] - first;
        u128 load = 0;
        u128 room = pb->has_speeds ? (target + 1) * pb->speed[r] / 1000000u : target;
        for (uint32_t i = 0; i < n; i++) {
            heap[i] = first + i;
            load += pb->cost[first + i];
        }
        if (load > room)
            floor += least_bytes(pb, heap, n, load - room);
    }
    *ret_floor = floor;
    return 0;
}

static void count_moves(const struct problem *pb, const struct layout *layout, struct poise_quality *quality)
{
    const uint32_t *node = pb->req->node;

    for (uint32_t u = 0; u < pb->n_units; u++) {
        uint32_t from = pb->unit_rank[u], to = layout->rank[u];
        if (from == to)
            continue;
        quality->samples_moved += unit_size(pb, u);
        quality->bytes_moved += pb->bytes[u];
        if (node && node[from] != node[to])
            quality->bytes_between_nodes += pb->bytes[u];
    }
}

int quality_make(struct problem *pb, const struct layout *layout, const struct score *score,
                 struct poise_quality *ret_quality)
{
    struct poise_quality q = {0};
    const struct score *before = &pb->arrival;
    int rc;

    q.objective_before = saturate(before->objective);
    q.objective_after = saturate(score->objective);
    q.objective_bound = saturate(pb->bound);
    q.rank_max_before = saturate(before->rank_max);
    q.rank_max_after = saturate(score->rank_max);
    q.rank_mean = saturate(pb->cost_total / pb->n_ranks);
    q.bytes_total = pb->bytes_total;
    q.bytes_rank_before = saturate(before->bytes_rank);
    q.bytes_rank_after = saturate(score->bytes_rank);
    q.lacking_before = before->lacking;
    q.lacking_after = score->lacking;
    q.oversize = pb->oversize;
    memcpy(q.length_micro_batch_before, before->length_micro_batch, sizeof q.length_micro_batch_before);
    memcpy(q.length_micro_batch_after, score->length_micro_batch, sizeof q.length_micro_batch_after);
    memcpy(q.length_rank_before, before->length_rank, sizeof q.length_rank_before);
    memcpy(q.length_rank_after, score->length_rank, sizeof q.length_rank_after);
    count_moves(pb, layout, &q);
    if ((rc = bytes_floor(pb, &q.bytes_floor)) < 0)
        return rc;
    *ret_quality = q;
    return 0;
}
