/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters of 8 to 4,096 ranks, 8 a node, under loss, doubling and reordering, with coordinators and nodes that die and stand
 * still; in the middle of each run a rank dies, all are told, and all come back as new incarnations with other metadata. Every
 * step is checked: each sample once, one outcome for all, the same from every coordinator.
 *
 * POISE_FLEET=full (make chaos-sim) checks 10,000 steps and prints how many of what; else a few. POISE_SEED repeats.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/outages.h"

#define MAX_DOWN_NODES 4u /* at a time: 512 nodes that each fall once a minute would leave no minute without */

static struct {
    uint64_t steps, samples, deaths, outages;
} total;

static struct sim_config config_of(uint64_t seed, uint32_t n_ranks, uint64_t n_steps)
{
    uint64_t x = oracle_hash(seed, 4, 5, n_ranks);

    return (struct sim_config){.seed = seed, .n_ranks = n_ranks, .n_replicas = 1, .n_nodes = (n_ranks + 7) / 8,
                               .n_coordinators = 1 + (uint32_t)(x % 3), .n_steps = n_steps, .max_samples = 4,
                               .loss_ppm = (uint32_t)(x / 4 % 3) * 20000, .double_ppm = (uint32_t)(x / 16 % 2) * 50000,
                               .delay_ms = (uint32_t)(x / 64 % 3) * 15, .depth = 1 + (uint32_t)(x / 256 % 8),
                               .compute_ms = 60, .load_ms = 60, .first_step = x / 4096 % 2 * 777};
}

struct weather {
    struct outage coordinators[SIM_COORDINATORS], nodes[MAX_DOWN_NODES];
    uint32_t node[MAX_DOWN_NODES];
};

static void blow(struct sim *sim, struct weather *w)
{
    for (uint32_t i = 0; i < sim->config.n_coordinators; i++) {
        bool up = !w->coordinators[i].until_ms;

        outage_coordinator(sim, i, &w->coordinators[i]);
        total.outages += up && w->coordinators[i].until_ms;
    }
    for (uint32_t i = 0; i < MAX_DOWN_NODES && i < sim->config.n_nodes && !sim_finished(sim); i++) {
        bool up = !w->nodes[i].until_ms;

        outage_node(sim, w->node[i], &w->nodes[i]);
        total.outages += up && w->nodes[i].until_ms;
    }
}

static void calm(struct sim *sim, struct weather *w)
{
    for (uint32_t i = 0; i < sim->config.n_coordinators; i++)
        outage_end_coordinator(sim, i, &w->coordinators[i]);
    for (uint32_t i = 0; i < MAX_DOWN_NODES && i < sim->config.n_nodes; i++)
        outage_end_node(sim, w->node[i], &w->nodes[i]);
}

static uint64_t wanted;

static bool reached(const struct sim *sim)
{
    return sim->n_checked >= wanted || sim_finished(sim);
}

static void sail(struct sim *sim, struct weather *w, uint64_t n_steps, uint64_t seed)
{
    wanted = n_steps;
    for (int i = 0; i < 5000 && !reached(sim); i++) {
        sim_run(sim, 100, reached);
        blow(sim, w);
    }
    cr_assert(reached(sim), "seed %lu, %u ranks: stuck with %lu of %lu steps", (unsigned long)seed, sim->config.n_ranks,
              (unsigned long)sim->n_checked, (unsigned long)n_steps);
}

/* One dies, everyone is told; all come back as others, who read other data. */
static void come_back(struct sim *sim, struct weather *w, uint64_t seed)
{
    uint32_t dead = (uint32_t)sim_random(sim, sim->n_processes);

    sim_kill_process(sim, sim->processes[dead].rank, 0);
    calm(sim, w);
    cr_assert(sim_run(sim, 40000, sim_all_over), "seed %lu, %u ranks: someone was not told of a death", (unsigned long)seed,
              sim->config.n_ranks);
    total.steps += sim->n_checked;
    total.samples += sim->n_samples;
    total.deaths++;
    sim_forget_steps(sim);
    sim->config.seed += 1000003;
    for (uint32_t i = 0; i < sim->n_processes; i++) {
        if (sim->processes[i].alive)
            sim_kill_process(sim, sim->processes[i].rank, 0);
        sim_reopen_process(sim, sim->processes[i].rank, 0);
    }
    cr_assert(sim_run(sim, 60000, sim_all_running), "seed %lu, %u ranks: the group did not form again",
              (unsigned long)seed, sim->config.n_ranks);
}

static void one_fleet(uint64_t seed, uint32_t n_ranks, uint64_t n_steps)
{
    struct sim_config config = config_of(seed, n_ranks, n_steps);
    struct weather w;
    struct sim sim;

    memset(&w, 0, sizeof w);
    sim_start(&sim, &config);
    for (uint32_t i = 0; i < MAX_DOWN_NODES && i < config.n_nodes; i++)
        w.node[i] = i + (uint32_t)sim_random(&sim, config.n_nodes / MAX_DOWN_NODES) * MAX_DOWN_NODES;
    cr_assert(sim_run(&sim, 60000, sim_all_running), "seed %lu, %u ranks: never began", (unsigned long)seed, n_ranks);
    sail(&sim, &w, n_steps / 3, seed);
    come_back(&sim, &w, seed);
    sail(&sim, &w, n_steps, seed);
    calm(&sim, &w);
    cr_assert(sim_run(&sim, 120000, sim_finished), "seed %lu, %u ranks: never finished", (unsigned long)seed, n_ranks);
    for (uint32_t i = 0; i < sim.n_processes; i++)
        cr_assert(!sim.processes[i].over, "seed %lu, %u ranks: rank %u: %s", (unsigned long)seed, n_ranks, i,
                  sim.processes[i].error.text);
    cr_assert_eq(sim.n_checked, n_steps, "seed %lu, %u ranks: %lu steps", (unsigned long)seed, n_ranks,
                 (unsigned long)sim.n_checked);
    cr_assert(!sim_logged(&sim, "coordinators disagree") && !sim_logged(&sim, "changes its metadata"));
    total.steps += sim.n_checked;
    total.samples += sim.n_samples;
    sim_stop(&sim);
}

static void fleets(const uint32_t (*plan)[3], uint32_t n_rows)
{
    const char *given = getenv("POISE_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);

    printf("POISE_SEED=%lu\n", (unsigned long)seed);
    for (uint32_t row = 0; row < n_rows; row++) {
        for (uint32_t i = 0; i < plan[row][1]; i++)
            one_fleet(seed + i, plan[row][0], plan[row][2]);
        printf("up to %4u ranks: %lu steps, %lu samples, %lu deaths and comebacks, %lu outages of daemons, 0 lost or doubled\n",
               plan[row][0], (unsigned long)total.steps, (unsigned long)total.samples, (unsigned long)total.deaths,
               (unsigned long)total.outages);
        fflush(stdout);
    }
}

Test(fleet, of_every_size_survives, .timeout = 3600)
{
    static const uint32_t few[][3] = {{8, 6, 30}, {64, 2, 20}, {256, 1, 12}}; /* ranks, runs, steps of the second epoch */
    static const uint32_t many[][3] = {{8, 120, 40}, {16, 50, 36}, {64, 24, 30}, {256, 8, 30}, {1024, 3, 18}, {4096, 1, 12}};
    const char *fleet = getenv("POISE_FLEET");

    if (fleet && strcmp(fleet, "full") == 0) {
        fleets(many, sizeof many / sizeof *many);
        cr_assert_geq(total.steps, 10000);
    } else {
        fleets(few, sizeof few / sizeof *few);
    }
}
