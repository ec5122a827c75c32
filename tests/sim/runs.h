/* SPDX-License-Identifier: Apache-2.0 */
/* How most simulations begin and end: a small cluster in fair weather, and that all of a run was delivered. */
#ifndef TESTS_SIM_RUNS_H
#define TESTS_SIM_RUNS_H

#include "tests/sim/cluster.h"

/* POISE_SEED, else the time; printed. */
uint64_t runs_seed(const char *test);

/* 4 ranks on 2 nodes, one coordinator. */
struct sim_config runs_plain(uint64_t n_steps);

/* Up, and every process has consumed so many steps. */
void runs_start(struct sim *sim, const struct sim_config *config, uint64_t to_step);

/* To the end: all n_steps were delivered and checked, and no process saw an error. runs_finish() also stops it. */
void runs_whole(struct sim *sim, uint64_t n_steps);
void runs_finish(struct sim *sim, uint64_t n_steps);

#endif
