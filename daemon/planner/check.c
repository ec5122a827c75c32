/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses what cannot be planned, before anything is computed: options at open, columns at each step. Every error names
 * the option, or the rank and sample, and the value.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "algorithm.h"

/* More would make 32-bit indices of twice the samples overflow; a step of two billion samples is a bug of the caller.
 */
#define MAX_SAMPLES (1u << 31)
/* Longer than any pipeline, and the objective still fits in 128 bits: 31 bits of samples, 63 of cost, 20 of speed. */
#define MAX_STAGES 4096u

static int check_phases(const struct poise_plan_request *req, struct poise_err *err)
{
    if (req->n_phases == 0 || req->n_phases > POISE_MAX_PHASES || !req->phases)
        return err_set(err, -EINVAL, "n_phases is %u: 1 to %u phases are needed", req->n_phases, POISE_MAX_PHASES);
    if (req->phase_size != sizeof *req->phases)
        return err_set(err, -EINVAL, "phase_size is %zu: must be %zu", req->phase_size, sizeof *req->phases);
    for (uint32_t p = 0; p < req->n_phases; p++) {
        const struct poise_phase *phase = &req->phases[p];
        if (!memchr(phase->name, 0, sizeof phase->name))
            return err_set(err, -EINVAL, "the name of phase %u has no end", p);
        if (phase->flags & ~(POISE_PHASE_PADDED | POISE_PHASE_BARRIER))
            return err_set(err, -EINVAL, "phase %s: unknown flags 0x%x", phase->name, phase->flags);
        if (phase->flags & POISE_PHASE_BARRIER && req->objective == POISE_OBJECTIVE_PIPELINE)
            return err_set(err, -EINVAL,
                           "phase %s is a barrier: objective pipeline has none, its ranks meet once a step",
                           phase->name);
    }
    return 0;
}

static bool has_explicit_cap(const struct poise_plan_request *req)
{
    for (uint32_t p = 0; req->cap_length_micro_batch && p < req->n_phases; p++)
        if (req->cap_length_micro_batch[p] != 0 && req->cap_length_micro_batch[p] != POISE_NO_CAP)
            return true;
    return req->cap_samples_micro_batch != 0 || req->micro_batch_size != 0;
}

static int check_cut(const struct poise_plan_request *req, struct poise_err *err)
{
    if (req->cut > POISE_CUT_AS_NEEDED)
        return err_set(err, -EINVAL, "cut is %u: 0 (fixed), 1 (by cost) or 2 (as needed)", req->cut);
    if (req->cut == POISE_CUT_AS_NEEDED && req->n_micro_batches)
        return err_set(err, -EINVAL, "n_micro_batches is %u, but cut as needed finds the number itself: leave it 0",
                       req->n_micro_batches);
    if (req->cut == POISE_CUT_AS_NEEDED && !has_explicit_cap(req))
        return err_set(err, -EINVAL,
                       "cut as needed wants a cap of a micro-batch: set cap_length_micro_batch or "
                       "cap_samples_micro_batch");
    return 0;
}

int plan_check_options(const struct poise_plan_request *req, struct poise_err *err)
{
    const struct algorithm *algorithm = algorithm_find(req->algorithm, err);
    int rc;

    if (!algorithm)
        return -EINVAL;
    if (req->n_ranks == 0)
        return err_set(err, -EINVAL, "n_ranks is 0: a group has at least one rank");
    if (req->objective > POISE_OBJECTIVE_PIPELINE)
        return err_set(err, -EINVAL, "objective is %u: 0 (step), 1 (microbatch) or 2 (pipeline)", req->objective);
    if (req->stages > MAX_STAGES)
        return err_set(err, -EINVAL, "stages is %u: at most %u", req->stages, MAX_STAGES);
    if (req->count > POISE_COUNT_FREE)
        return err_set(err, -EINVAL, "count is %u: 0 (equal), 1 (bounded) or 2 (free)", req->count);
    if ((rc = check_phases(req, err)) < 0 || (rc = check_cut(req, err)) < 0)
        return rc;
    if (algorithm->flags & ALGORITHM_OFFLINE && req->n_phases != 1)
        return err_set(err, -EINVAL, "algorithm %s is for comparison and knows one phase, there are %u",
                       algorithm->name, req->n_phases);
    if (algorithm->proposal[0].place == reference_global_place && req->micro_batch_size == 0)
        return err_set(err, -EINVAL, "algorithm %s wants micro_batch_size, its max_batch_capacity: it is 0",
                       algorithm->name);
    return 0;
}

/* Which rank a sample index over all ranks belongs to, for messages. */
static void locate(const struct poise_plan_request *req, uint32_t s, uint32_t *ret_rank, uint32_t *ret_index)
{
    uint32_t r = 0;

    while (s >= req->n_samples[r])
        s -= req->n_samples[r++];
    *ret_rank = r;
    *ret_index = s;
}

static int check_pads(const struct poise_plan_request *req, struct poise_err *err)
{
    if (req->n_extents > POISE_MAX_EXTENTS || (req->n_extents && !req->extent))
        return err_set(err, -EINVAL, "n_extents is %u: at most %u, with extents", req->n_extents, POISE_MAX_EXTENTS);
    if (req->n_pads > POISE_MAX_FIELDS || (req->n_pads && (!req->pads || req->pad_size != sizeof *req->pads)))
        return err_set(err, -EINVAL, "n_pads is %u of %zu bytes: at most %u of %zu", req->n_pads, req->pad_size,
                       POISE_MAX_FIELDS, sizeof *req->pads);
    for (uint32_t i = 0; i < req->n_pads; i++)
        if (req->pads[i].axis_mask >> req->n_extents)
            return err_set(err, -EINVAL, "pad %u names extents 0x%x, there are %u", i, req->pads[i].axis_mask,
                           req->n_extents);
    return 0;
}

int check_columns(const struct poise_plan_request *req, uint32_t *ret_n_samples, struct poise_err *err)
{
    uint64_t n = 0;
    uint32_t rank, index;
    int rc;

    if (!req->n_samples)
        return err_set(err, -EINVAL, "n_samples is NULL: the number of samples of each rank is needed");
    for (uint32_t r = 0; r < req->n_ranks; r++)
        if ((n += req->n_samples[r]) >= MAX_SAMPLES)
            return err_set(err, -EINVAL, "rank %u brings the step to %" PRIu64 " samples: at most %u", r, n,
                           MAX_SAMPLES - 1);
    if (n && !req->length)
        return err_set(err, -EINVAL, "length is NULL, there are %" PRIu64 " samples", n);
    for (uint32_t r = 0; r < req->n_ranks; r++)
        if (req->speed_ppm && req->speed_ppm[r] == 0)
            return err_set_at(err, -EINVAL, r, POISE_NONE, NULL, "rank %u has speed_ppm 0: 1,000,000 is a usual rank",
                              r);
    if ((rc = check_pads(req, err)) < 0)
        return rc;
    if (req->packed_bytes && req->bytes)
        for (uint32_t s = 0; s < n; s++)
            if (req->packed_bytes[s] > req->bytes[s]) {
                locate(req, s, &rank, &index);
                return err_set_at(err, -EINVAL, rank, index, NULL,
                                  "rank %u sample %u has %" PRIu64 " packed bytes of %" PRIu64 " in all", rank, index,
                                  req->packed_bytes[s], req->bytes[s]);
            }
    *ret_n_samples = (uint32_t)n;
    return 0;
}
