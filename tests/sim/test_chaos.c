/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemons that die, hang and come back at random, several at a time, none for longer than a node may be silent: every run
 * must deliver every step. POISE_SEED repeats one run, POISE_RUNS says how many (default 20).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/sim/outages.h"

static struct sim_config random_config(uint64_t seed)
{
    uint64_t x = oracle_hash(seed, 1, 2, 3);
    struct sim_config config = {.seed = seed, .max_samples = 6, .n_steps = 24};

    config.n_ranks = 1 + (uint32_t)(x % 6);
    config.n_replicas = 1 + (uint32_t)(x / 7 % 3);
    config.n_nodes = 1 + (uint32_t)(x / 31 % 4);
    if (config.n_nodes > config.n_ranks * config.n_replicas)
        config.n_nodes = config.n_ranks * config.n_replicas;
    config.n_coordinators = 1 + (uint32_t)(x / 127 % 3);
    config.spread = x / 1024 % 2;
    config.loss_ppm = (uint32_t)(x / 2048 % 4) * 50000;
    config.double_ppm = (uint32_t)(x / 8192 % 2) * 100000;
    config.delay_ms = (uint32_t)(x / 16384 % 3) * 25;
    config.depth = 1 + (uint32_t)(x / 65536 % 8);
    config.compute_ms = 10 + (uint32_t)(x / 524288 % 4) * 100;
    config.load_ms = 10 + (uint32_t)(x / 4194304 % 4) * 100;
    if (x / 33554432 % 4 == 0) {
        config.leave_rank = (uint32_t)(x % config.n_ranks);
        config.leave_after = 12;
    }
    config.first_step = x / 16777216 % 2 * 12345;
    return config;
}

static void one_run(uint64_t seed)
{
    struct sim_config config = random_config(seed);
    struct outage coordinators[SIM_COORDINATORS] = {{0}}, nodes[4] = {{0}};
    struct sim sim;

    sim_start(&sim, &config);
    cr_assert(sim_run(&sim, 60000, sim_all_running), "seed %lu: never began", (unsigned long)seed);
    for (int i = 0; i < 2000 && !sim_finished(&sim); i++) {
        sim_run(&sim, 100, sim_finished);
        for (uint32_t k = 0; k < config.n_coordinators; k++)
            outage_coordinator(&sim, k, &coordinators[k]);
        for (uint32_t k = 0; k < config.n_nodes && !sim_finished(&sim); k++)
            outage_node(&sim, k, &nodes[k]);
    }
    cr_assert(sim_finished(&sim), "seed %lu: stuck", (unsigned long)seed);
    for (uint32_t i = 0; i < sim.n_processes; i++)
        cr_assert(!sim.processes[i].over, "seed %lu: rank %u replica %u: %s", (unsigned long)seed, sim.processes[i].rank,
                  sim.processes[i].replica, sim.processes[i].error.text);
    cr_assert_eq(sim.n_checked, config.leave_after ? config.leave_after : config.n_steps, "seed %lu: %lu steps",
                 (unsigned long)seed, (unsigned long)sim.n_checked);
    sim_stop(&sim);
}

/* A death in this weather: everyone is told, however often daemons died before, and however much is lost. */
static void one_death(uint64_t seed)
{
    struct sim_config config = random_config(seed);
    struct outage coordinators[SIM_COORDINATORS] = {{0}};
    struct sim sim;
    uint32_t dead;

    config.leave_after = 0;
    config.n_steps = 400;
    sim_start(&sim, &config);
    cr_assert(sim_run(&sim, 60000, sim_all_running), "seed %lu: never began", (unsigned long)seed);
    for (uint64_t i = 0; i < 20 + seed % 50; i++) {
        sim_run(&sim, 100, sim_finished);
        for (uint32_t k = 0; k < config.n_coordinators; k++)
            outage_coordinator(&sim, k, &coordinators[k]);
    }
    if (!sim_finished(&sim)) {
        dead = (uint32_t)sim_random(&sim, sim.n_processes);
        sim_kill_process(&sim, sim.processes[dead].rank, sim.processes[dead].replica);
        for (uint32_t k = 0; k < config.n_coordinators; k++)
            if (coordinators[k].until_ms) {
                coordinators[k].until_ms = sim.now_ms;
                outage_coordinator(&sim, k, &coordinators[k]);
            }
        cr_assert(sim_run(&sim, 30000, sim_all_over), "seed %lu: someone was not told of a death", (unsigned long)seed);
    }
    sim_stop(&sim);
}

static void many_runs(void (*run)(uint64_t))
{
    const char *given = getenv("POISE_SEED"), *runs = getenv("POISE_RUNS");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    int n = runs ? atoi(runs) : given ? 1 : 20;

    printf("POISE_SEED=%lu to %lu\n", (unsigned long)seed, (unsigned long)seed + (unsigned long)n - 1);
    for (int i = 0; i < n; i++)
        run(seed + (uint64_t)i);
}

Test(chaos, every_step_is_delivered_whatever_happens_to_daemons, .timeout = 900)
{
    many_runs(one_run);
}

Test(chaos, everyone_hears_of_a_death_whatever_happens_to_daemons, .timeout = 900)
{
    many_runs(one_death);
}
