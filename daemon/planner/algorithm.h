/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms. Internal to the planner. */
#ifndef POISE_PLANNER_ALGORITHM_H
#define POISE_PLANNER_ALGORITHM_H

#include "problem.h"

#define ALGORITHM_EXEMPT 1u  /* compatibility: places without looking at caps, counts or arrival order */
#define ALGORITHM_CUTS 2u    /* sets micro-batches too; else only ranks, and cut_layout() follows */
#define ALGORITHM_OFFLINE 4u /* for comparison: one phase, no units */

struct algorithm {
    const char *name;
    /* Fills layout->rank and reason (and what its flags say) of a layout that holds arrival order. -ENOSPC: found nothing
     * that keeps the caps, arrival order is delivered. */
    int (*place)(struct problem *pb, struct layout *layout, struct poise_err *err);
    uint32_t flags;
    const char *optimises, *complexity;
    const char *text;
};

/* NULL name: the default. NULL: unknown, and *err lists what there is. */
const struct algorithm *algorithm_find(const char *name, struct poise_err *err);


int least_move_place(struct problem *pb, struct layout *layout, struct poise_err *err);
int greedy_place(struct problem *pb, struct layout *layout, struct poise_err *err);
int reference_mbs_place(struct problem *pb, struct layout *layout, struct poise_err *err);
int reference_global_place(struct problem *pb, struct layout *layout, struct poise_err *err);

/* Cuts every rank's units into micro-batches under the caps. -ENOSPC: some rank does not fit. */
int cut_layout(struct problem *pb, struct layout *layout, struct poise_err *err);

#endif
