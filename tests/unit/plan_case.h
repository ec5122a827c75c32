/* SPDX-License-Identifier: Apache-2.0 */
/* A planning request written in one line, with its plan, and checks that every plan must pass. */
#ifndef TESTS_PLAN_CASE_H
#define TESTS_PLAN_CASE_H

#include <stdbool.h>

#include "daemon/planner/planner.h"

struct plan_case {
    struct poise_plan_request req;
    struct poise_plan plan;
    struct poise_err err;
    struct poise_phase phases[POISE_MAX_PHASES];
    uint32_t n;          /* samples */
    uint32_t *n_samples; /* [n_ranks] */
    uint64_t *length;    /* [n_phases][n] */
};

/* An empty case of that cost (a preset) with room for n samples on n_ranks ranks. */
void plan_case_new(struct plan_case *c, const char *cost, uint32_t n_ranks, uint32_t n);

/* Lengths by rank, "100,4 ; 4,100 ; (none)"; one phase of the preset `cost`. */
void plan_case_parse(struct plan_case *c, const char *cost, const char *lengths);

void plan_case_free(struct plan_case *c);

/* plan_make; fails the test on an error, and on a plan that breaks conservation, rows, counts or invariant 3. */
void plan_case_make(struct plan_case *c);

/* Fails the test unless every sample has one place, and rows of each micro-batch are 0, 1, 2 ... */
void plan_case_check_conserved(const struct plan_case *c);

/* Count rules; caps by default; never worse, never bigger, never emptier. */
void plan_case_check_invariants(const struct plan_case *c);

uint32_t plan_case_count(const struct plan_case *c, uint32_t rank); /* samples that the plan gives a rank */
uint64_t plan_case_sum(const struct plan_case *c, uint32_t phase, uint32_t rank); /* their length */
uint64_t plan_case_max_sum(const struct plan_case *c);

/* A small generator for tests; the same everywhere. */
uint64_t plan_random(uint64_t *state);
uint64_t plan_random_below(uint64_t *state, uint64_t n);
uint64_t plan_seed(void); /* from POISE_SEED, else the clock; printed when a test fails */

#endif
