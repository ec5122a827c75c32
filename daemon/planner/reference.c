/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two algorithms of the system that poise descends from, exactly, so that anyone can compare. Their cost is the
 * squared length of the first phase; they look neither at where samples are, nor at counts, caps or other phases.
 *
 *   mbs     sorted by length, the first n go one to each rank, every next one to the rank with the least total
 *   global  sorted by length into slots of C = micro_batch_size * n / image_encoder_dp samples: one each, then every
 * next one to the open slot with the least total; the slots, in order, are cut into n equal pieces
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "heap.h"

#define MAX_LENGTH ((uint64_t)1 << 48) /* squares of more could overflow 128 bits when 2^31 of them are summed */

static int sort_lengths(struct problem *pb, struct sort_item **ret_items, struct poise_err *err)
{
    uint32_t n = pb->n_samples;
    struct sort_item *items = pool_get(&pb->pool, 2ull * n, sizeof *items);

    if (!items)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", n);
    for (uint32_t r = 0, s = 0; r < pb->n_ranks; r++)
        for (; s < pb->first[r + 1]; s++) {
            if (pb->req->length[s] > MAX_LENGTH)
                return err_set_at(err, -ERANGE, r, s - pb->first[r], NULL,
                                  "rank %u sample %u: a length above 2^48 is too long for the reference's algorithms",
                                  r, s - pb->first[r]);
            items[s] = (struct sort_item){~pb->req->length[s], s};
        }
    sort_items(items, n, items + n);
    *ret_items = items;
    return 0;
}

/* Fills bin[i] for the i-th longest: the first n_bins one each, then the lightest bin with room. */
static int fill_bins(struct problem *pb, const struct sort_item *items, uint32_t n_bins, uint32_t capacity,
                     uint32_t *bin, struct poise_err *err)
{
    struct heap heap;
    uint32_t *count = pool_get(&pb->pool, n_bins, sizeof *count);

    if (!count || heap_new(&pb->pool, n_bins, &heap) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t i = 0; i < pb->n_samples; i++) {
        u128 length = ~items[i].key;
        uint32_t b = i < n_bins ? i : heap.id[0];
        bin[i] = b;
        count[b]++;
        if (i < n_bins)
            heap_push(&heap, b, length * length);
        else
            heap.key[b] += length * length;
        if (count[b] == capacity)
            heap_remove(&heap, b);
        else
            heap_moved(&heap, b);
    }
    return 0;
}

/* Ranks, the sequence by rank and then by turn, and micro-batches: consecutive pieces of each rank's sequence. */
static int lay_out(struct problem *pb, const struct sort_item *items, const uint32_t *bin, uint32_t n_bins,
                   struct layout *layout, struct poise_err *err)
{
    const struct poise_plan_request *req = pb->req;
    uint32_t bins_a_rank = n_bins / pb->n_ranks, most = 0;
    uint32_t *first = pool_get(&pb->pool, n_bins + 1ull, sizeof *first);
    uint32_t *sequence = pool_get(&pb->pool, pb->n_samples, sizeof *sequence);
    uint32_t *rank_first = pool_get(&pb->pool, pb->n_ranks + 1ull, sizeof *rank_first);

    if (!first || !sequence || !rank_first)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t i = 0; i < pb->n_samples; i++)
        first[bin[i] + 1]++;
    for (uint32_t b = 0; b < n_bins; b++)
        first[b + 1] += first[b];
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        rank_first[r + 1] = first[(r + 1) * bins_a_rank];
        most = rank_first[r + 1] - rank_first[r] > most ? rank_first[r + 1] - rank_first[r] : most;
    }
    for (uint32_t i = 0; i < pb->n_samples; i++)
        sequence[first[bin[i]]++] = items[i].id;

    uint32_t k = req->micro_batch_size ? req->micro_batch_size : req->n_micro_batches ? 0 : UINT32_MAX;
    layout->n_micro_batches = k ? most / k + !!(most % k) : req->n_micro_batches;
    if (layout->n_micro_batches < req->n_micro_batches)
        layout->n_micro_batches = req->n_micro_batches;
    if (layout->n_micro_batches == 0)
        layout->n_micro_batches = 1;
    if ((uint64_t)layout->n_micro_batches * pb->n_ranks > PLAN_MAX_CELLS)
        return err_set(err, -EINVAL, "%u micro-batches on %u ranks: at most %u in all", layout->n_micro_batches,
                       pb->n_ranks, PLAN_MAX_CELLS);
    layout->cell_first =
        pool_get(&pb->pool, (uint64_t)layout->n_micro_batches * pb->n_ranks + 1, sizeof *layout->cell_first);
    if (!layout->cell_first)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t n = rank_first[r + 1] - rank_first[r];
        uint32_t piece = k ? k : n / layout->n_micro_batches + !!(n % layout->n_micro_batches);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t s = sequence[rank_first[r] + i];
            layout->rank[s] = r;
            layout->micro_batch[s] = i / piece;
            layout->reason[s] = r == pb->unit_rank[s] ? POISE_REASON_KEPT : POISE_REASON_ALGORITHM;
        }
    }
    layout->sequence = sequence;
    layout->is_cut = true;
    return 0;
}

static int place(struct problem *pb, uint32_t n_bins, uint32_t capacity, struct layout *layout, struct poise_err *err)
{
    struct sort_item *items = NULL;
    uint32_t *bin = pool_get(&pb->pool, pb->n_samples, sizeof *bin);
    int rc;

    if (!bin)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if ((rc = sort_lengths(pb, &items, err)) < 0 || (rc = fill_bins(pb, items, n_bins, capacity, bin, err)) < 0)
        return rc;
    return lay_out(pb, items, bin, n_bins, layout, err);
}

int reference_mbs_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    return place(pb, pb->n_ranks, UINT32_MAX, layout, err);
}

int reference_global_place(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    uint32_t dp = pb->req->image_encoder_dp ? pb->req->image_encoder_dp : pb->n_ranks, n = pb->n_samples;
    uint64_t capacity = (uint64_t)pb->req->micro_batch_size * pb->n_ranks / dp;

    if (capacity == 0)
        return err_set(err, -EINVAL, "slots of micro_batch_size %u * %u ranks / image_encoder_dp %u hold 0 samples",
                       pb->req->micro_batch_size, pb->n_ranks, dp);
    if (n % capacity)
        return err_set(err, -EINVAL,
                       "%u samples are no multiple of the %llu that a slot holds (micro_batch_size %u * %u ranks "
                       "/ image_encoder_dp %u)",
                       n, (unsigned long long)capacity, pb->req->micro_batch_size, pb->n_ranks, dp);
    if (n / capacity % pb->n_ranks)
        return err_set(err, -EINVAL, "%llu slots of %llu samples cannot be shared equally by %u ranks",
                       (unsigned long long)(n / capacity), (unsigned long long)capacity, pb->n_ranks);
    return place(pb, (uint32_t)(n / capacity), capacity < UINT32_MAX ? (uint32_t)capacity : UINT32_MAX, layout, err);
}
