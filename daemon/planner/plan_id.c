/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name of a plan: a 128-bit hash of everything that the plan depends on, with defaults resolved and in
 * little-endian 64-bit words, so that requests that mean the same have the same id on every machine. Every transfer
 * names it.
 */
#include <string.h>

#include "cost.h"
#include "quality.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define CHUNK 512 /* words handed to the hash at once: 4 KB, so its set-up cost is gone and the stack stays small */

struct digest {
    XXH3_state_t state;
    uint32_t n;
    unsigned char bytes[CHUNK * 8];
};

static void flush(struct digest *d)
{
    if (d->n == 0)
        return;
    XXH3_128bits_update(&d->state, d->bytes, d->n * 8u);
    d->n = 0;
}

static void put(struct digest *d, uint64_t x)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    memcpy(d->bytes + d->n * 8u, &x, 8);
    if (++d->n == CHUNK)
        flush(d);
}

static void put_text(struct digest *d, const char *text)
{
    size_t n = strlen(text);

    put(d, n);
    for (size_t i = 0; i < n; i++)
        put(d, (unsigned char)text[i]);
}

/* NULL: every element is `none`. */
static void put32(struct digest *d, const uint32_t *column, uint64_t n, uint32_t none)
{
    for (uint64_t i = 0; i < n; i++)
        put(d, column ? column[i] : none);
}

static void put64(struct digest *d, const uint64_t *column, uint64_t n, uint64_t none)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (column) { /* memory is canonical as it is */
        flush(d);
        XXH3_128bits_update(&d->state, column, n * sizeof *column);
        return;
    }
#endif
    for (uint64_t i = 0; i < n; i++)
        put(d, column ? column[i] : none);
}

static void put_options(struct digest *d, const struct problem *pb)
{
    const struct poise_plan_request *req = pb->req;

    for (uint32_t p = 0; p < pb->n_phases; p++) { /* names do not change a plan */
        put(d, pb->phase[p].linear);
        put(d, pb->phase[p].quadratic);
        put(d, pb->phase[p].constant);
        put(d, pb->phase[p].passes ? pb->phase[p].passes : 1);
        put(d, pb->phase[p].flags);
    }
    put(d, req->objective);
    put(d, req->count);
    put(d, req->cut);
    put(d, pb->stages);
    put(d, pb->tolerance_ppm);
    put(d, req->micro_batch_size);
    put(d, req->n_micro_batches);
    put(d, req->image_encoder_dp ? req->image_encoder_dp : pb->n_ranks);
    put(d, req->cap_samples_rank);
    put(d, req->cap_samples_micro_batch);
    put(d, req->cap_bytes_rank);
    put64(d, req->cap_length_rank, pb->n_phases, 0);
    put64(d, req->cap_length_micro_batch, pb->n_phases, 0);
    put(d, req->n_extents);
    put(d, req->n_pads);
    for (uint32_t i = 0; i < req->n_pads; i++) {
        put(d, req->pads[i].axis_mask);
        put(d, req->pads[i].multiple ? req->pads[i].multiple : 1);
        put64(d, req->pads[i].fixed, req->n_extents, 0);
        put(d, req->pads[i].unit_bytes);
    }
}

static void put_columns(struct digest *d, const struct problem *pb)
{
    const struct poise_plan_request *req = pb->req;
    uint64_t n = pb->n_samples;

    put32(d, req->n_samples, pb->n_ranks, 0);
    put32(d, req->node, pb->n_ranks, 0);
    put32(d, req->speed_ppm, pb->n_ranks, 1000000);
    put32(d, req->sync_set, pb->n_ranks, 0);
    put64(d, req->length, n * pb->n_phases, 0);
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        const uint64_t *length = req->length + p * n, *attention = req->attention ? req->attention + p * n : NULL;
        /* Without a quadratic part attention does not matter, and the square may not fit. */
        for (uint64_t s = 0; pb->phase[p].quadratic && s < n; s++)
            put(d, attention ? attention[s] : length[s] * length[s]);
    }
    put64(d, req->bytes, n, 1);
    put64(d, req->packed_bytes ? req->packed_bytes : req->bytes, n, 1);
    put32(d, pb->sample_arrival, n, 0);
    put64(d, req->unit, n, 0);
    put32(d, req->extent, n * req->n_extents, 0);
}

void plan_id_make(const struct problem *pb, const char *algorithm, unsigned char ret_plan_id[16])
{
    struct digest d;
    XXH128_canonical_t canonical;

    d.n = 0;
    XXH3_128bits_reset(&d.state);
    put(&d, PLANNER_VERSION);
    put_text(&d, algorithm);
    put(&d, pb->n_ranks);
    put(&d, pb->n_phases);
    put_options(&d, pb);
    put_columns(&d, pb);
    flush(&d);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&d.state));
    memcpy(ret_plan_id, canonical.digest, 16);
}
