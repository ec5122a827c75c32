/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for ranks that meet at every micro-batch. Internal to the planner. */
#ifndef POISE_PLANNER_MICRO_H
#define POISE_PLANNER_MICRO_H

#include "algorithm.h"

/* The objective and the counts are such that these two can place. */
bool micro_applies(const struct problem *pb);

/* The lowest objective, whatever it moves. Sets micro-batches too. */
place_fn micro_place;

/* About the same objective with few bytes moved. */
place_fn micro_place_near;

#endif
