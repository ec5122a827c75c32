/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a sample in one phase. Internal to the planner. */
#ifndef POISE_PLANNER_COST_H
#define POISE_PLANNER_COST_H

#include <stdbool.h>

#include "problem.h"

/* passes * (linear * length + quadratic * attention + constant), unit 1,024 FLOP; false: above PLAN_COST_MAX. */
bool cost_of_phase(const struct poise_phase *phase, uint64_t length, uint64_t attention, uint64_t *ret_cost);

/* length squared; false: does not fit. */
bool cost_attention(uint64_t length, uint64_t *ret_attention);

#endif
