/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves a rank. Internal to the planner. */
#ifndef POISE_PLANNER_SHED_H
#define POISE_PLANNER_SHED_H

#include "mover.h"

struct shedder {
    struct mover *mv;
    struct sort_item *items; /* [most] a rank's units, most cost a byte first; id: unit */
    struct sort_item *scratch;
    uint32_t *taken; /* [most] positions in items */
    uint32_t n, n_taken;
};

int shedder_new(struct mover *mv, struct shedder *ret_shedder); /* -ENOMEM */

/* The largest unit that some rank could take in. */
uint64_t shed_most_room(const struct mover *mv);

/* Takes what is above the target off a rank; what cannot leave is for repair. */
void shed_excess(struct shedder *shedder, uint32_t rank);

/* Units above the wanted count leave, the fewest bytes first. */
void shed_count(struct shedder *shedder, uint32_t rank, uint32_t surplus);

#endif
