/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of poisectl simulate: samples of a cost, random global batches, what algorithms make of them, what to
 * advise. */
#ifndef POISE_CTL_SIMULATE_H
#define POISE_CTL_SIMULATE_H

#include <stdio.h>

#include "client/ctl/ctl.h"
#include "client/ctl/dataset.h"

#define SIMULATE_ALGORITHMS 32u /* named at once: the table has fewer */

struct simulate_cost {
    char name[80]; /* as given, or the default */
    bool by_default;
    struct poise_phase phases[POISE_MAX_PHASES];
    uint32_t n_phases;
    enum dataset_size size[POISE_MAX_PHASES]; /* which size of a sample is the phase's length */
    char unit[POISE_MAX_PHASES][24];          /* "patches" */
    bool tiles;
};

/* Usable samples of a dataset, as one cost and one rule see them. Columns are ordered [phase][sample]. */
struct simulate_samples {
    uint64_t n;
    uint64_t *row; /* [n] of the dataset */
    uint64_t *length, *attention, *bytes, *cost;
};

/* What is simulated: the group, its batches, how it is planned. */
struct simulate_setup {
    const struct simulate_samples *samples;
    const struct simulate_cost *cost;
    uint32_t n_ranks, per_rank, micro_batch; /* micro_batch: samples, never 0 */
    uint32_t objective, count, stages, n_nodes, tolerance_ppm;
    uint32_t n_batches;
    uint64_t seed;
    const char *algorithm; /* NULL: the default */
    bool no_caps;
};

struct simulate_batch {                /* of one planned batch; costs in units, fractions of all bytes */
    double mean, before, after, bound; /* mean rank cost; objective of arrival order, of the plan, no plan is below */
    double rank_before, rank_after;    /* largest summed cost of a rank */
    double largest;                    /* sample's cost */
    double moved, floor, between;      /* bytes: moved, the least, between nodes */
    double plan_ns;
    uint64_t length_before[POISE_MAX_PHASES], length_after[POISE_MAX_PHASES]; /* largest of a micro-batch */
    uint64_t lacking_before, lacking_after;
    uint64_t oversize;
};

struct simulate_result { /* of one algorithm over all batches */
    const char *algorithm;
    char error[200]; /* "": none. Else nothing below counts */
    uint32_t n;
    struct simulate_batch *batch;
    double imbalance_before, imbalance_after; /* objective over the mean rank cost: means over batches */
    double rank_before, rank_after;           /* largest over mean rank cost */
    double gap;                               /* objective over its lower bound, minus 1 */
    double moved, floor, between;
    double plan_ms;                                                           /* median */
    double mean_cost, before_cost, after_cost;                                /* means over batches, in units */
    uint64_t length_before[POISE_MAX_PHASES], length_after[POISE_MAX_PHASES]; /* largest of all batches */
    uint64_t lacking_before, lacking_after;                                   /* sums */
};

/* Rank loads of one batch by phase, for a picture: [n_ranks][n_phases], in units. */
struct simulate_loads {
    uint32_t n_ranks, n_phases;
    double *before, *after;
    double mean; /* of a rank */
};

struct simulate_limits {           /* in arrival order's own terms: what no exchange of whole samples can cure */
    double bound;                  /* lower bound over the mean rank cost, mean over batches */
    uint32_t n_giant;              /* batches in which one sample costs more than the mean rank */
    double giant_mean, giant_most; /* its cost over the mean rank's, in those batches */
    double largest_mean;           /* the largest sample over the mean rank's cost, over all batches */
};

#define SIMULATE_HELPS 8u
struct simulate_help { /* a change that was simulated */
    const char *key;
    char title[96], note[160];
    double imbalance_before, imbalance_after;
    double time;  /* predicted step time a sample and device, over the one of the chosen plan without the change */
    double moved; /* fraction of the bytes; below 0: not told */
};

struct simulate_advice {
    const struct simulate_result *chosen; /* NULL: nothing but arrival order was asked for */
    double speedup;                       /* of it */
    struct simulate_limits limits;
    struct simulate_help help[SIMULATE_HELPS];
    uint32_t n_helps, n_batches; /* batches that each was simulated with */
    char summary[1024];          /* plain words, a few sentences */
};

struct simulate { /* the whole run */
    const struct ctl_command *command;
    const char *path;
    struct simulate_setup setup; /* its algorithm is not used */
    struct dataset_rule rule;
    double fixed; /* part of the mean rank cost that a step takes besides */
    struct dataset data;
    struct simulate_cost cost;
    struct simulate_samples samples;
    struct simulate_result result[SIMULATE_ALGORITHMS];
    uint32_t n_results;
    struct simulate_advice advice;
    struct simulate_loads loads;
    bool progress; /* stderr is a terminal */
};

/* simulate_cost.c: from --cost and the kind of data. */
int simulate_cost_read(const char *text, const struct dataset *data, struct simulate_cost *ret_cost,
                       struct poise_err *err);

/* simulate_batch.c */
struct simulate_draw { /* random global batches: rows in a random order, each once, then again in another */
    uint32_t *order;
    uint32_t n, at;
    uint64_t state[4];
};
int simulate_draw_init(struct simulate_draw *draw, uint64_t n, uint64_t seed, struct poise_err *err);
void simulate_draw_free(struct simulate_draw *draw);
uint32_t simulate_draw_next(struct simulate_draw *draw);

/* Rows whose cost does not fit are left out, and noted in *left_out (may be NULL, or data). Caller frees with
 * simulate_samples_free(). */
int simulate_samples_make(const struct dataset *data, const struct simulate_cost *cost, const struct dataset_rule *rule,
                          struct dataset *left_out, struct simulate_samples *ret_samples, struct poise_err *err);
void simulate_samples_free(struct simulate_samples *samples);

/* simulate_plan.c: one global batch as a request, and a plan for it. */
struct simulate_room {
    struct poise_plan_request req;
    struct poise_plan plan;
    uint64_t uncapped[POISE_MAX_PHASES];
    uint32_t n;       /* samples */
    uint32_t *sample; /* [n] which of the samples each is */
    uint32_t *n_samples, *node;
    uint64_t *length, *attention, *bytes;
    uint32_t *ranks; /* [3][n] the plan's columns */
};
int simulate_room_init(struct simulate_room *room, const struct simulate_setup *setup, struct poise_err *err);
void simulate_room_free(struct simulate_room *room);
void simulate_room_fill(struct simulate_room *room, const struct simulate_setup *setup, struct simulate_draw *draw);

/* simulate_run.c. An algorithm that cannot plan such a request is told in ret_result->error, and 0 is returned. */
int simulate_run(const struct simulate_setup *setup, struct simulate_result *ret_result, struct poise_err *err);
void simulate_result_free(struct simulate_result *result);
/* Predicted time of a step before over after, with a fixed part. */
double simulate_speedup(const struct simulate_result *result, double fixed);
int simulate_loads_make(const struct simulate_setup *setup, uint32_t batch, struct simulate_loads *ret_loads,
                        struct poise_err *err);
void simulate_loads_free(struct simulate_loads *loads);

/* simulate_advice.c, simulate_helps.c (with simulate_images.c), simulate_words.c */
int simulate_advise(struct simulate *sim, struct poise_err *err);
int simulate_help_all(struct simulate *sim, struct poise_err *err);
void simulate_words(struct simulate *sim);
bool simulate_is_comparison(const char *algorithm); /* known for comparison only: not advised */

/* simulate_print.c, simulate_json.c */
void simulate_print(const struct simulate *sim);
int simulate_print_json(const struct simulate *sim, struct poise_err *err);
const char *simulate_objective_name(uint32_t objective);
const char *simulate_count_name(uint32_t count);

#endif
