/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request made ready to plan: defaults resolved, features turned into costs, samples of one unit joined, arrival
 * order scored, caps and counts known. Internal to the planner.
 */
#ifndef POISE_PLANNER_PROBLEM_H
#define POISE_PLANNER_PROBLEM_H

#include <stdbool.h>

#include "err.h"
#include "planner.h"
#include "sort.h"

typedef unsigned __int128 u128; /* sums of costs: a real global batch of a 7B model overflows 64 bits in FLOP */

#define PLAN_COST_MAX ((uint64_t)INT64_MAX) /* of one sample */
#define PLAN_MAX_CELLS (1u << 24) /* ranks x micro-batches: memory stays bounded whatever n_micro_batches says */
#define PLAN_ANY UINT32_MAX

/* Working memory of one call: blocks that are freed together. */
struct pool {
    struct pool_block *blocks;
};
void *pool_get(struct pool *pool, uint64_t n, size_t size); /* zeroed; NULL: out of memory */
void pool_free(struct pool *pool);

/* What a layout comes to. Everything that invariant 3 and the caps speak of. */
struct score {
    u128 objective;
    u128 rank_max;   /* summed cost of a rank, by its speed */
    u128 bytes_rank; /* after padding */
    uint64_t length_rank[POISE_MAX_PHASES];
    uint64_t length_micro_batch[POISE_MAX_PHASES];
    uint64_t lacking;                         /* micro-batches that lack a phase that some sample has */
    uint64_t lacking_phase[POISE_MAX_PHASES]; /* the same by phase */
    uint32_t samples_rank_min, samples_rank_max, samples_micro_batch;
    uint64_t over; /* micro-batches and ranks above a cap that hold more than one unit, and ranks with a wrong count */
};

/* Where every unit goes. */
struct layout {
    uint32_t n_micro_batches;
    uint32_t *rank;        /* [n_units] */
    uint32_t *micro_batch; /* [n_units] */
    uint32_t *sequence;    /* [n_units] units in the order that rows follow; NULL: origin order */
    uint8_t *reason;       /* [n_units] */
    bool is_cut;           /* micro_batch is set; else cut_layout() follows */
    uint32_t *cell_first;  /* [n_ranks * n_micro_batches + 1] filled by layout_sort() */
    uint32_t *order;       /* [n_units] units by cell, then by sequence */
};

struct problem {
    const struct poise_plan_request *req;
    struct pool pool;
    uint32_t n_ranks, n_phases, n_samples, n_units;
    struct poise_phase phase[POISE_MAX_PHASES];
    uint32_t segment[POISE_MAX_PHASES]; /* phases between barriers */
    uint32_t n_segments;
    bool is_padded;                 /* some phase pads */
    bool has_units;                 /* some unit has more than one sample */
    bool splits_unit;               /* arrival order has a unit in two micro-batches */
    bool has_speeds;                /* ranks differ in speed */
    bool present[POISE_MAX_PHASES]; /* some sample has this phase */
    uint32_t tolerance_ppm, stages;
    uint32_t n_sets; /* sync sets */
    uint32_t *set;   /* [n_ranks] numbered from 0 */
    uint64_t *speed; /* [n_ranks] parts a million */
    u128 speed_sum;

    uint32_t *first;          /* [n_ranks + 1] first sample of a rank */
    uint32_t *sample_arrival; /* [S] micro-batch */
    uint32_t *member_first;   /* [n_units + 1] NULL: units are samples */
    uint32_t *member;         /* [S] samples by unit, in order */
    uint32_t *unit_rank;      /* [n_units] origin */
    uint32_t *unit_arrival;   /* [n_units] micro-batch of its first sample */
    uint32_t *unit_of_rank;   /* [n_ranks + 1] first unit of a rank */

    uint64_t *cost;         /* [n_units] over all phases */
    uint64_t *phase_cost;   /* [n_phases][n_units]; NULL where one segment and no padding */
    const uint64_t *length; /* [n_phases][n_units] */
    const uint64_t *bytes;  /* [n_units] */
    const uint64_t *packed; /* [n_units] bytes that are not padded */
    uint32_t *size;         /* [n_units] samples; NULL: 1 each */
    u128 cost_total;
    uint64_t bytes_total;

    uint32_t n_micro_batches; /* on every rank; 0: as many as the caps need */
    uint32_t arrival_micro_batches;
    uint32_t micro_batch_samples;    /* cap; PLAN_ANY: none */
    uint32_t count_quota;            /* bounded: ranks that may have one more than the least; PLAN_ANY: no such rule */
    uint32_t *count_min, *count_max; /* [n_ranks] samples */
    uint64_t cap_bytes_rank;
    uint64_t cap_length_rank[POISE_MAX_PHASES], cap_length_micro_batch[POISE_MAX_PHASES];
    uint64_t oversize;

    struct score arrival;
    bool arrival_fits;   /* arrival order keeps caps and counts */
    bool arrival_counts; /* it keeps the counts */
    bool refused;        /* a plan was made that kept the caps and was worse */
    struct layout identity;
    struct sort_item *sorted; /* [n_units] id: units by cost, largest first; key: ~cost. Of one segment only */
    u128 bound;               /* no plan can be below */
    u128 target;              /* bound and tolerance: good enough */
};

/* Fills *pb from a request; the caller frees with problem_free() also after an error. arrival_only: whatever counts and
 * caps say, arrival order is what is wanted. */
int problem_init(struct problem *pb, const struct poise_plan_request *req, bool arrival_only, struct poise_err *err);
void problem_free(struct problem *pb);

/* Lifts the caps that nobody set: where arrival order does not keep the others, what it comes to is no measure. */
void problem_lift_caps(struct problem *pb);
/* Lifts all caps but those of samples: for algorithms that know none. */
void problem_no_caps(struct problem *pb);

/* Checks a request's options and columns (check.c). */
int check_columns(const struct poise_plan_request *req, uint32_t *ret_n_samples, struct poise_err *err);

int layout_new(struct problem *pb, uint32_t n_micro_batches, struct layout *ret_layout);
void layout_sort(const struct problem *pb, struct layout *layout);

/* Scores a sorted layout. -ENOMEM. */
int score_layout(struct problem *pb, const struct layout *layout, struct score *ret_score);

/* Invariant 3 against arrival order: never worse, never emptier. */
bool score_not_worse(const struct problem *pb, const struct score *score);

/* Fills bound, target and sorted (bound.c). -ENOMEM. */
int bound_make(struct problem *pb);

static inline uint32_t unit_size(const struct problem *pb, uint32_t unit)
{
    return pb->size ? pb->size[unit] : 1;
}

static inline uint32_t unit_n_members(const struct problem *pb, uint32_t unit)
{
    return pb->member_first ? pb->member_first[unit + 1] - pb->member_first[unit] : 1;
}

static inline uint32_t unit_member(const struct problem *pb, uint32_t unit, uint32_t i)
{
    return pb->member_first ? pb->member[pb->member_first[unit] + i] : unit;
}

/* What a cost takes on a rank of that speed, in the cost of a rank of speed 1. */
static inline u128 rank_time(const struct problem *pb, uint32_t rank, u128 cost)
{
    return pb->has_speeds ? cost * 1000000u / pb->speed[rank] : cost;
}

/* What the sum of a rank of speed 1 may be. In a pipeline the largest micro-batch, at best the mean one, counts for
 * every stage. */
static inline u128 rank_target(const struct problem *pb)
{
    uint64_t n_mb = pb->n_micro_batches ? pb->n_micro_batches : 1;

    if (pb->req->objective != POISE_OBJECTIVE_PIPELINE)
        return pb->target;
    return pb->target * n_mb / (n_mb + pb->stages - 1);
}

static inline uint64_t saturate(u128 x)
{
    return x > UINT64_MAX ? UINT64_MAX : (uint64_t)x;
}

#endif
