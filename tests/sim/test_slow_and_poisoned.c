/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Alive and slow is waited for, by name; an input that kills planners ends its own epoch and no other.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster.h"

static struct sim_config plain(void)
{
    return (struct sim_config){.seed = 1, .n_ranks = 4, .n_replicas = 1, .n_nodes = 2, .n_coordinators = 1, .n_steps = 30,
                               .max_samples = 9, .delay_ms = 3, .compute_ms = 40, .load_ms = 40};
}

Test(slow, a_rank_that_stops_without_a_word_is_named_and_waited_for, .timeout = 60)
{
    struct sim_config config = plain();
    struct group_report *reports;
    struct sim sim;
    uint32_t n;

    sim_start(&sim, &config);
    cr_assert(sim_run_to_step(&sim, 9, 60000));
    sim.processes[2].connected = false; /* stopped: its connection is there, and nobody reads or writes */
    cr_assert(!sim_run(&sim, 70000, sim_finished));
    cr_assert_eq(coordinator_report(sim.coordinators[0].coordinator, sim.now_ms, &reports, &n), 0);
    cr_assert(n == 1 && reports[0].n_waiting == 1 && reports[0].waiting[0] == 2 && reports[0].waiting_ms >= 60000);
    free(reports);
    cr_assert(sim_logged(&sim, "ms for rank 2"));
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(!sim.processes[i].over, "rank %u: %s", i, sim.processes[i].error.text);
    sim.processes[2].connected = true; /* SIGCONT */
    cr_assert(sim_run(&sim, 600000, sim_finished));
    cr_assert_eq(sim.n_checked, 30);
    sim_stop(&sim);
}

Test(poisoned, who_planned_what_is_told_to_all_and_the_next_epoch_runs, .timeout = 60)
{
    struct sim_config config = plain();
    struct sim sim;

    config.n_coordinators = 2;
    sim_start(&sim, &config);
    cr_assert(sim_run_to_step(&sim, 3, 60000));
    sim.fatal_step = 7;
    cr_assert(sim_run(&sim, 30000, sim_all_over));
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(sim.processes[i].error.code, -ESHUTDOWN);
        cr_assert_eq(sim.processes[i].error.step, 7);
        cr_assert(strstr(sim.processes[i].error.text, "planning step 7 killed the coordinator of node c (simulated)"), "%s",
                  sim.processes[i].error.text);
    }
    cr_assert(sim.coordinators[0].n_deaths <= 1 && sim.coordinators[1].n_deaths <= 1);
    sim_forget_steps(&sim);
    sim.fatal_step = 0; /* other data */
    for (uint32_t i = 0; i < 4; i++) {
        sim_kill_process(&sim, i, 0);
        sim_reopen_process(&sim, i, 0);
    }
    cr_assert(sim_run(&sim, 600000, sim_finished));
    cr_assert_eq(sim.n_checked, 30);
    sim_stop(&sim);
}
