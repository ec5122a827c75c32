/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A submission's way into the arena: check every value against the field table, copy what is not already there, hash if
 * wanted, write the step directory. Everything that can fail does so before the arena changes.
 */
#ifndef POISE_CLIENT_STAGE_H
#define POISE_CLIENT_STAGE_H

#include "client/arena.h"
#include "client/control.h"
#include "client/value.h"

struct stage_sample { /* one a sample, filled by stage_check() for the metadata */
    uint64_t bytes;        /* of all its values */
    uint64_t packed_bytes; /* of these, in fields that are not padded */
    uint32_t extent[POISE_MAX_EXTENTS]; /* of its padded ragged axes, in the order of schema_axes(table) */
};

/*
 * Checks the values of a submission: known field, at most one a field, dims, fixed axes, data there, extents below
 * 2^32, rows tied to grids (client/grid.h). samples and their values are strided by sample_size and value_size, which
 * are at least this build's. out: [n_samples]. *ret_n_values: of all samples. Errors: -EINVAL naming rank, sample and
 * field; -ENOMEM.
 */
int stage_check(const struct wire_table *table, uint32_t rank, const struct poise_sample *samples, uint32_t n_samples,
                size_t sample_size, struct stage_sample *out, uint64_t *ret_n_values, struct poise_err *err);

struct stage_request {
    uint64_t step;
    const struct wire_table *table; /* this rank's own */
    const struct poise_sample *samples;
    uint32_t n_samples;
    size_t sample_size;
    const struct stage_sample *checked; /* [n_samples] from stage_check() of the very same samples */
    uint64_t n_values;                  /* likewise */
    const uint32_t *arrival_micro_batch;  /* [n_samples] */
    const uint64_t *arrival_loss_tokens;  /* [n_samples] loss tokens of the sample's arrival micro-batch */
    bool hash; /* verify_wanted(step) */
};

/*
 * Copies and writes; then commits the arena's pending step as `step`. *ret_place is for control_publish(). Errors, all
 * without side effect: those of arena_alloc() and arena_commit() (-EAGAIN: again when an older step is done; -ENOMEM).
 */
int stage_step(struct arena *arena, const struct stage_request *req, struct control_place *ret_place,
               struct poise_err *err);

#endif
