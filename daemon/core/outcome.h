/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outcome of a step: one pure function of all its metadata and the group's options, so that every coordinator, also
 * one that was restarted, gives the same answer. outcome.c holds the rules, columns.c makes the planner's request of
 * the metadata, slices.c cuts the plan into what each rank needs.
 */
#ifndef POISE_CORE_OUTCOME_H
#define POISE_CORE_OUTCOME_H

#include "daemon/core/tables.h"
#include "proto/options.h"

struct outcome_input {
    uint64_t step;
    uint32_t n_ranks, n_replicas;
    const struct options *options;
    const uint32_t *node;     /* [n_ranks] of replica 0 */
    const uint32_t *sync_set; /* [n_ranks] */
    const struct wire_meta *const *metas; /* [n_ranks * n_replicas], ordered by (rank, replica); all there */
    struct schema *schema; /* of replica 0's tables; the outcome takes a reference */
};

struct outcome {
    uint64_t step;
    uint32_t kind; /* WIRE_OUTCOME_* */
    struct poise_err error;
    struct wire_id plan_id;
    struct poise_totals totals;
    uint32_t n_micro_batches;
    uint32_t n_extents;
    uint32_t extent[POISE_MAX_EXTENTS];
    struct schema *schema; /* NULL where the tables could not be merged */
    uint64_t n_dropped; /* samples of a step without a plan */
    uint32_t n_ranks;
    struct wire_slice *slices; /* PLAN: [n_ranks], in columns below */
    uint32_t *u32;             /* their memory */
    uint64_t *u64;
};

/* *ret_outcome: caller frees with outcome_free(). 0 or -ENOMEM: whatever is wrong with the input is an outcome. */
int outcome_make(const struct outcome_input *in, struct outcome **ret_outcome);
void outcome_free(struct outcome *outcome);

/* Fills a WIRE_OUTCOME with n_slices slices (lent by the caller, as everything else by the outcome). */
void outcome_message(const struct outcome *outcome, struct wire_id epoch, bool with_table, struct wire_slice *slices,
                     uint32_t n_slices, struct wire_message *msg);

/* ------------------------------------------------------------------------------------------------ between its files */

/* The planner's request and the memory that it points into. */
struct columns {
    struct poise_plan_request req;
    uint32_t n_total;      /* samples of the step */
    uint32_t *first;       /* [n_ranks + 1] where a rank's samples begin */
    uint64_t *bytes, *packed_bytes, *unit, *length, *attention, *loss_tokens;
    uint32_t *n_samples, *micro_batch, *extent, *speed_ppm;
    uint8_t *layout;       /* NULL: all together */
    struct poise_pad pads[POISE_MAX_FIELDS];
    uint32_t step_extent[POISE_MAX_EXTENTS];
    uint64_t sum_bytes, sum_loss_tokens;
};

/* Errors: -ENOMEM, or what is wrong with which rank's metadata (rank, sample, text). */
int columns_make(const struct outcome_input *in, struct columns *columns, struct poise_err *err);
void columns_free(struct columns *columns);

/* Fills outcome->slices from a plan. plan->row is changed where `transpose` moves members of units. -EPROTO: the plan
 * is no permutation (a planner's bug, which must not become a wild write). */
int slices_make(const struct columns *columns, struct poise_plan *plan, bool transpose, struct outcome *outcome,
                struct poise_err *err);

#endif
