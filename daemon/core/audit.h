/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an audit measured on one node: how long steps took that were balanced, and steps that were delivered as they
 * arrived. A step takes as long as its slowest rank computes; its mode is its outcome's; a block counts by the mean of
 * its steps, since neighbours are alike and single steps would promise an interval that is too small. Pure.
 */
#ifndef POISE_CORE_AUDIT_H
#define POISE_CORE_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

/* Steps that wait for their ranks' times: a rank reports when it has trained, up to a window after the outcome, and
 * ranks are up to a window apart; twice that, since a trainer may report late. */
#define AUDIT_STEPS 32u

struct audit_tally { /* mean and squared deviations of n values, kept as they come (Welford) */
    uint64_t n;
    double mean, deviations;
};

struct audit_report {
    uint64_t every; /* steps of a block; 0: no audit */
    uint64_t balanced_steps, arrival_steps;
    struct audit_tally balanced_ns, arrival_ns; /* of blocks: mean step time */
    struct audit_tally speedup; /* of pairs: an arrival block over the balanced one right before it */
};

struct audit_step {
    bool used, counted;
    uint64_t step, max_ns;
    uint32_t mode, n_here;
};

struct audit {
    struct audit_report report;
    struct audit_step steps[AUDIT_STEPS];
    bool begun;
    uint64_t first_block; /* warms up, or was seen in part: it does not count */
    uint64_t block;       /* that is summed up now */
    uint64_t n_steps;     /* of it; 0: none yet */
    double sum_ns;
    uint32_t mode; /* of its steps */
    bool mixed;    /* the mode was switched inside */
    uint64_t balanced_block; /* the newest balanced one that counted + 1; 0: none */
    double balanced_ns;      /* its mean */
};

void audit_init(struct audit *audit, uint64_t every); /* 0: nothing is measured */

/* A step got its plan. n_measuring: ranks of this node that report at all; a step that fewer or more reported is left
 * out. */
void audit_planned(struct audit *audit, uint64_t step, uint32_t mode, uint32_t n_measuring);

/* A rank tells what a step took. */
void audit_reported(struct audit *audit, uint64_t step, uint64_t compute_ns);

/* How many ranks have told of the step; 0 where it is not awaited. */
uint32_t audit_n_here(const struct audit *audit, uint64_t step);

/* All ranks of the node have told of it: it counts now and not when its place is needed. */
void audit_complete(struct audit *audit, uint64_t step);

#endif
