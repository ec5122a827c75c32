/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: which rank trains on which sample. Pure code: no I/O, no clock, no random number, no float comparison;
 * the plan is one function of the request. libpoise's poise_plan() checks the struct sizes and calls plan_make().
 */
#ifndef POISE_PLANNER_PLANNER_H
#define POISE_PLANNER_PLANNER_H

#include "poise.h"

#define PLANNER_VERSION 1u /* changes whenever any plan changes for the same request */

/* As poise_plan(); the structs are of this build's size. Allocates and frees its own working memory (linear in
 * samples). */
int plan_make(const struct poise_plan_request *req, struct poise_plan *plan, struct poise_err *err);

/* Arrival order as a plan, with its quality: what modes shadow and off deliver. */
int plan_arrival(const struct poise_plan_request *req, struct poise_plan *plan, struct poise_err *err);

/* Checks the parts of a request that are known at open: algorithm, objective, count, cut, phases and their
 * combinations. */
int plan_check_options(const struct poise_plan_request *req, struct poise_err *err);

/* A sample's cost over all phases (length, attention: [n_phases]); -ERANGE above 2^63 - 1. */
int plan_sample_cost(const struct poise_phase *phases, uint32_t n_phases, const uint64_t *length,
                     const uint64_t *attention, uint64_t *ret_cost, struct poise_err *err);

#endif
