/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever goes wrong is said with the seed that repeats it. */
#include "tests/sim/runs.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LIMIT_MS 600000 /* virtual: a run takes seconds */

uint64_t runs_seed(const char *test)
{
    const char *given = getenv("POISE_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);

    printf("%s: POISE_SEED=%lu\n", test, (unsigned long)seed);
    return seed;
}

struct sim_config runs_plain(uint64_t n_steps)
{
    return (struct sim_config){.seed = 1, .n_ranks = 4, .n_replicas = 1, .n_nodes = 2, .n_coordinators = 1,
                               .n_steps = n_steps, .max_samples = 9, .delay_ms = 3, .compute_ms = 40, .load_ms = 40};
}

void runs_start(struct sim *sim, const struct sim_config *config, uint64_t to_step)
{
    sim_start(sim, config);
    cr_assert(sim_run_to_step(sim, to_step, LIMIT_MS), "seed %lu: step %lu was not reached: %s",
              (unsigned long)config->seed, (unsigned long)to_step, sim->failure);
}

void runs_whole(struct sim *sim, uint64_t n_steps)
{
    const unsigned long seed = (unsigned long)sim->config.seed;

    cr_assert(sim_run(sim, LIMIT_MS, sim_finished), "seed %lu: not finished: %s", seed, sim->failure);
    for (uint32_t i = 0; i < sim->n_processes; i++)
        cr_assert(!sim->processes[i].over, "seed %lu: rank %u: %s", seed, sim->processes[i].rank,
                  sim->processes[i].error.text);
    cr_assert_eq(sim->n_checked, n_steps, "seed %lu: %lu steps of %lu", seed, (unsigned long)sim->n_checked,
                 (unsigned long)n_steps);
}

void runs_finish(struct sim *sim, uint64_t n_steps)
{
    runs_whole(sim, n_steps);
    sim_stop(sim);
}
