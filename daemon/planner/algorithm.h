/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms. Internal to the planner. */
#ifndef POISE_PLANNER_ALGORITHM_H
#define POISE_PLANNER_ALGORITHM_H

#include "problem.h"

#define ALGORITHM_EXEMPT 1u  /* compatibility: places without looking at caps, counts or arrival order */
#define ALGORITHM_NEAR 2u    /* of several proposals that are about as good, takes the one that moves fewest bytes */
#define ALGORITHM_ALL 8u     /* makes all its proposals; else stops at the first that reaches the target */
#define ALGORITHM_OFFLINE 4u /* for comparison: one phase, no units */

#define ALGORITHM_PROPOSALS 6

/* Fills layout->rank and reason of a layout that holds arrival order, and micro_batch where it sets is_cut. -ENOSPC:
 * found nothing that keeps the caps. */
typedef int place_fn(struct problem *pb, struct layout *layout, struct poise_err *err);

struct algorithm {
    const char *name;
    uint32_t flags;
    struct {
        place_fn *place;
        bool (*applies)(const struct problem *pb); /* NULL: always */
    } proposal[ALGORITHM_PROPOSALS];               /* in turn; the judge picks the best of those made */
    const char *optimises, *complexity;
    const char *text;
};

/* NULL name: the default. NULL: unknown, and *err lists what there is. */
const struct algorithm *algorithm_find(const char *name, struct poise_err *err);

/* For phases with barriers and units of many sizes (sticky.c). */
place_fn sticky_place;
bool sticky_applies(const struct problem *pb);

place_fn least_move_place, greedy_place, karmarkar_karp_place, reference_mbs_place, reference_global_place;

/* Cuts every rank's units into micro-batches under the caps. -ENOSPC: some rank does not fit. */
int cut_layout(struct problem *pb, struct layout *layout, struct poise_err *err);

#endif
