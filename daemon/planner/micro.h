/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for ranks that meet at every micro-batch. Internal to the planner. */
#ifndef POISE_PLANNER_MICRO_H
#define POISE_PLANNER_MICRO_H

#include "algorithm.h"
#include "loads.h"

#define MICRO_RANKS 128 /* that a unit which sticks out is offered to: bounds the search at 1,024 ranks */

struct micro {
    struct problem *pb;
    struct loads loads;
    uint32_t n_mb, k;     /* micro-batches; samples of one */
    uint64_t *cost;       /* [n_units] scaled */
    uint64_t *height;     /* [n_mb] falling */
    uint64_t *sum;        /* [n_ranks * n_mb] */
    uint64_t *length;     /* [n_ranks * n_mb][n_phases] */
    uint32_t *cell_first; /* [n_ranks * n_mb + 1] */
    uint32_t *unit;       /* [n_units] by cell */
    uint64_t work;        /* pairs that may still be compared */
};

/* The objective and the counts are such that these two can place. */
bool micro_applies(const struct problem *pb);

/* The lowest objective, whatever it moves. Sets micro-batches too. */
place_fn micro_place;

/* About the same objective with few bytes moved. */
place_fn micro_place_near;

/* The layout if moving were free, and its micro-batches' heights, falling. -ENOMEM. (groups.c) */
int groups_place(struct problem *pb, struct layout *layout, u128 *height);

/* Exchanges units between ranks until each can hold its own under the heights (levels.c). -ENOMEM. */
int level_ranks(struct micro *mc, struct layout *layout);

/* u and v change ranks; loads and reasons follow. */
void micro_exchange(struct micro *mc, struct layout *layout, uint32_t u, uint32_t v);

static inline uint64_t micro_length(const struct problem *pb, uint32_t p, uint32_t unit)
{
    return pb->length[(size_t)p * pb->n_units + unit];
}

#endif
