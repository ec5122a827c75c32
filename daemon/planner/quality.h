/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan is worth. Internal to the planner. */
#ifndef POISE_PLANNER_QUALITY_H
#define POISE_PLANNER_QUALITY_H

#include "problem.h"

/* Fills *ret_quality for a scored layout. -ENOMEM. */
int quality_make(struct problem *pb, const struct layout *layout, const struct score *score,
                 struct poise_quality *ret_quality);

/* Hash of the canonical input and of the algorithm (plan_id.c). */
void plan_id_make(const struct problem *pb, const char *algorithm, unsigned char ret_plan_id[16]);

#endif
