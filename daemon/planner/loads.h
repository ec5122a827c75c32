/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks hold while an algorithm places units, and whether one more fits. Internal to the planner. */
#ifndef POISE_PLANNER_LOADS_H
#define POISE_PLANNER_LOADS_H

#include "problem.h"

struct loads {
    const struct problem *pb;
    u128 *cost;                      /* [n_ranks] */
    uint64_t *bytes;                 /* [n_ranks] unpadded: the judge looks at padding */
    uint32_t *count;                 /* [n_ranks] samples */
    uint64_t *length;                /* [n_ranks][n_phases] */
    uint32_t *present;               /* [n_ranks][n_phases] units that have the phase */
    uint32_t above;                  /* bounded: ranks above the least count */
    uint64_t lack[POISE_MAX_PHASES]; /* micro-batches that must lack the phase, however ranks are cut */
};

/* Empty ranks. -ENOMEM. */
int loads_new(struct problem *pb, struct loads *ret_loads);

void loads_add(struct loads *loads, uint32_t rank, uint32_t unit);
void loads_remove(struct loads *loads, uint32_t rank, uint32_t unit);

/* Counts and caps of the rank let it take the unit. */
bool loads_fits(const struct loads *loads, uint32_t rank, uint32_t unit);

/* Taking the unit away leaves no more micro-batches without a phase than arrival order has. */
bool loads_may_lose(const struct loads *loads, uint32_t rank, uint32_t unit);

/* Whether unit `in` fits where `out` leaves; counts included. */
bool loads_fits_for(struct loads *loads, uint32_t rank, uint32_t in, uint32_t out);

/* After any number of changes: no more micro-batches without a phase than arrival order has. */
bool loads_not_emptier(const struct loads *loads);

#endif
