/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bad days: processes, nodes and coordinators die, fall silent, come back, or meet others that do not fit. What is a
 * pause must stay one; what is an end must be told to everyone, by name, in time.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/runs.h"

static bool all_over(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (sim->processes[i].alive && !sim->processes[i].over)
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ processes */

Test(failures, a_killed_rank_is_named_to_all_in_under_a_second)
{
    struct sim_config config = runs_plain(30);
    uint64_t killed;
    struct sim sim;

    runs_start(&sim, &config, 9);
    killed = sim.now_ms;
    sim_kill_process(&sim, 2, 0);
    cr_assert(sim_run(&sim, 1000, all_over));
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        cr_assert_lt(sim.processes[i].error_ms - killed, 1000);
        cr_assert_eq(sim.processes[i].error.code, -ESHUTDOWN);
        cr_assert(strstr(sim.processes[i].error.text, "rank 2 (pid 1020 on host1) died"), "%s",
                  sim.processes[i].error.text);
    }
    cr_assert(sim_logged(&sim, "group qwen/dp: rank 2 (pid 1020) lost, aborting step"));
    sim_stop(&sim);
}

Test(failures, a_lost_report_of_a_death_is_repeated)
{
    uint64_t seed = runs_seed("a_lost_report_of_a_death_is_repeated");

    for (uint64_t i = 0; i < 10; i++) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.seed = seed + i;
        config.n_nodes = 4;
        config.n_coordinators = 1 + (uint32_t)(i % 2);
        config.loss_ppm = 400000;
        runs_start(&sim, &config, 3);
        sim_kill_process(&sim, 2, 0);
        cr_assert(sim_run(&sim, 60000, all_over), "seed %lu", (unsigned long)config.seed);
        sim_stop(&sim);
    }
}

Test(failures, the_group_forms_again_after_a_death)
{
    struct sim_config config = runs_plain(30);
    struct wire_id first;
    struct sim sim;

    runs_start(&sim, &config, 5);
    first = sim.processes[0].epoch;
    sim_kill_process(&sim, 2, 0);
    cr_assert(sim_run(&sim, 1000, all_over));
    sim_forget_steps(&sim);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2)
            sim_kill_process(&sim, i, 0);
        sim_reopen_process(&sim, i, 0);
    }
    cr_assert(sim_run(&sim, 60000, sim_finished));
    cr_assert_eq(sim.n_checked, 30);
    cr_assert(!wire_id_is(first, sim.processes[0].epoch));
    sim_stop(&sim);
}

Test(failures, a_second_process_of_a_rank_supersedes_the_first)
{
    struct sim_config config = runs_plain(30);
    struct sim sim;
    uint64_t old;

    runs_start(&sim, &config, 5);
    old = sim.processes[2].session;
    sim.processes[2].incarnation.attempt = 1;
    trainer_open(&sim, &sim.processes[2]); /* while the old one lives; it is not heard any more in this simulation */
    cr_assert_neq(old, sim.processes[2].session);
    sim_run(&sim, 1000, all_over);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2)
            cr_assert(strstr(sim.processes[i].error.text, "was opened again by pid 1020"), "rank %u: %s", i,
                      sim.processes[i].error.text);
    }
    cr_assert(!sim.processes[2].over, "the new one waits for the others");
    sim_stop(&sim);
}

Test(failures, a_member_that_dies_before_the_epoch_is_only_forgotten)
{
    struct sim_config config = runs_plain(30);
    struct sim sim;

    config.missing_rank = 4;
    sim_start(&sim, &config);
    sim_run(&sim, 1000, sim_finished);
    sim_kill_process(&sim, 1, 0);
    sim_run(&sim, 3000, sim_finished);
    cr_assert(!sim.processes[0].running && !sim.processes[0].over);
    sim.processes[3].alive = true;
    sim_reopen_process(&sim, 3, 0);
    sim_run(&sim, 3000, sim_finished);
    cr_assert(!sim.processes[0].running, "rank 1 is dead");
    sim_reopen_process(&sim, 1, 0);
    runs_finish(&sim, 30);
}

static bool who_waits_hears(const struct sim *sim, uint32_t n, uint32_t first, uint32_t second)
{
    for (uint32_t i = 0; i < sim->n_processes; i++) {
        const struct sim_process *p = &sim->processes[i];

        if (p->alive && (p->forming.missing_total != n || p->forming.n_missing != n || p->forming.missing[0] != first ||
                         (n > 1 && p->forming.missing[1] != second)))
            return false;
    }
    return true;
}

static bool ranks_1_and_3_are_missed(const struct sim *sim)
{
    return who_waits_hears(sim, 2, 1, 3);
}

static bool rank_3_is_missed(const struct sim *sim)
{
    return who_waits_hears(sim, 1, 3, 0);
}

Test(failures, processes_that_wait_hear_who_is_missing)
{
    for (uint32_t n_coordinators = 1; n_coordinators <= 3; n_coordinators += 2) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.missing_rank = 4;
        config.loss_ppm = 100000;
        config.n_coordinators = n_coordinators;
        sim_start(&sim, &config);
        cr_assert(sim_run(&sim, 10000, rank_3_is_missed), "%s", sim.failure);
        sim_kill_process(&sim, 1, 0);
        cr_assert(sim_run(&sim, 10000, ranks_1_and_3_are_missed), "%s", sim.failure);
        sim_reopen_process(&sim, 1, 0);
        cr_assert(sim_run(&sim, 10000, rank_3_is_missed), "%s", sim.failure);
        sim.processes[3].alive = true;
        sim_reopen_process(&sim, 3, 0);
        runs_finish(&sim, 30);
    }
}

Test(failures, options_that_differ_fail_open_on_every_rank_naming_both)
{
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.differ_rank = 1 + rank;
        sim_start(&sim, &config);
        cr_assert(sim_run(&sim, 5000, all_over), "differing rank %u", rank);
        for (uint32_t i = 0; i < 4; i++) {
            const char *text = sim.processes[i].error.text;

            cr_assert(strstr(text, "micro_batch_size is") && strstr(text, "make them agree"), "rank %u: %s", i, text);
            cr_assert(strstr(text, rank == 0 ? "4 on rank 0" : "4 on rank 3"), "rank %u: %s", i, text);
            cr_assert_eq(sim.processes[i].error.code, -EINVAL);
        }
        sim_stop(&sim);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- nodes */

Test(failures, a_restarted_node_is_a_pause)
{
    uint64_t seed = runs_seed("a_restarted_node_is_a_pause");

    for (uint64_t i = 0; i < 12; i++) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.seed = seed + i;
        config.n_replicas = 1 + (uint32_t)(i % 2);
        config.spread = i % 4 == 1;
        config.n_coordinators = 1 + (uint32_t)(i % 3);
        config.loss_ppm = i % 3 == 2 ? 50000 : 0;
        config.depth = 8;
        sim_start(&sim, &config);
        for (uint64_t k = 1; k < 6; k++) {
            cr_assert(sim_run_to_step(&sim, 4 * k, 300000), "seed %lu", (unsigned long)config.seed);
            sim_kill_node(&sim, (uint32_t)(k % 2));
            sim_run(&sim, 300 * k, sim_finished);
            sim_start_node(&sim, (uint32_t)(k % 2));
        }
        runs_finish(&sim, 30);
    }
}

Test(failures, who_dies_while_its_poised_is_down_is_named)
{
    struct sim_config config = runs_plain(30);
    struct sim sim;

    runs_start(&sim, &config, 5);
    sim_kill_node(&sim, 1);
    sim_kill_process(&sim, 2, 0);
    sim_run(&sim, 500, all_over);
    sim_start_node(&sim, 1);
    cr_assert(!sim_run(&sim, 8000, all_over));
    cr_assert(sim_run(&sim, 5000, all_over));
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(i == 2 || strstr(sim.processes[i].error.text, "rank 2 did not come back"), "%s",
                  sim.processes[i].error.text);
    sim_stop(&sim);
}

Test(failures, a_silent_node_is_named_after_the_timeout_and_not_before)
{
    struct sim_config config = runs_plain(30);
    uint64_t killed;
    struct sim sim;

    config.n_coordinators = 2;
    runs_start(&sim, &config, 5);
    killed = sim.now_ms;
    sim_kill_node(&sim, 1);
    cr_assert(!sim_run(&sim, 9000, all_over));
    for (uint32_t i = 0; i < 2; i++)
        cr_assert(!sim.processes[i].over, "%s", sim.processes[i].error.text);
    sim_kill_process(&sim, 2, 0);
    sim_kill_process(&sim, 3, 0);
    cr_assert(sim_run(&sim, 5000, all_over));
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_geq(sim.processes[i].error_ms - killed, 9500);
        cr_assert(strstr(sim.processes[i].error.text, "node1") && strstr(sim.processes[i].error.text, "rank 2"), "%s",
                  sim.processes[i].error.text);
    }
    sim_stop(&sim);
}

/* ---------------------------------------------------------------------------------------------------------- coordinators */

Test(failures, a_restarted_coordinator_is_a_pause)
{
    uint64_t seed = runs_seed("a_restarted_coordinator_is_a_pause");

    for (uint64_t i = 0; i < 12; i++) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.seed = seed + i;
        config.n_replicas = 1 + (uint32_t)(i % 2);
        config.spread = i % 4 == 1;
        config.loss_ppm = i % 3 == 2 ? 50000 : 0;
        config.delay_ms = 10;
        config.depth = 8;
        sim_start(&sim, &config);
        for (uint64_t k = 1; k < 6; k++) {
            cr_assert(sim_run_to_step(&sim, 4 * k, 300000), "seed %lu", (unsigned long)config.seed);
            sim_kill_coordinator(&sim, 0);
            sim_run(&sim, 200 * k, sim_finished);
            sim_start_coordinator(&sim, 0);
        }
        runs_finish(&sim, 30);
    }
}

Test(failures, one_of_two_coordinators_suffices)
{
    uint64_t seed = runs_seed("one_of_two_coordinators_suffices");

    for (uint64_t i = 0; i < 12; i++) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.seed = seed + i;
        config.n_coordinators = 2 + (uint32_t)(i % 2);
        config.n_nodes = 3;
        config.n_ranks = 5;
        config.loss_ppm = 30000;
        config.depth = 8;
        runs_start(&sim, &config, 5);
        sim_kill_coordinator(&sim, 0); /* for longer than a node's silence would be borne */
        sim_run(&sim, 15000, sim_finished);
        sim_start_coordinator(&sim, 0);
        sim_run(&sim, 500, sim_finished);
        sim_kill_coordinator(&sim, 1);
        runs_finish(&sim, 30);
    }
}

Test(failures, all_daemons_restarted_at_once)
{
    uint64_t seed = runs_seed("all_daemons_restarted_at_once");

    for (uint64_t i = 0; i < 12; i++) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.seed = seed + i;
        config.n_replicas = 1 + (uint32_t)(i % 3);
        config.loss_ppm = i % 2 ? 30000 : 0;
        config.depth = 8;
        sim_start(&sim, &config);
        for (uint64_t k = 1; k < 5; k++) {
            cr_assert(sim_run_to_step(&sim, 5 * k, 300000), "seed %lu", (unsigned long)config.seed);
            sim_kill_coordinator(&sim, 0);
            sim_kill_node(&sim, 0);
            sim_kill_node(&sim, 1);
            sim_run(&sim, 700, sim_finished);
            sim_start_coordinator(&sim, 0);
            sim_start_node(&sim, 0);
            sim_start_node(&sim, 1);
        }
        runs_finish(&sim, 30);
    }
}

Test(failures, no_coordinator_for_too_long_is_an_error_naming_it)
{
    struct sim_config config = runs_plain(30);
    struct sim sim;

    runs_start(&sim, &config, 5);
    sim_kill_coordinator(&sim, 0);
    cr_assert(sim_run(&sim, 13000, all_over));
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(strstr(sim.processes[i].error.text, "no coordinator of qwen/dp answers") &&
                      strstr(sim.processes[i].error.text, "c0"),
                  "%s", sim.processes[i].error.text);
    sim_stop(&sim);
}

Test(failures, a_coordinator_that_stood_still_accuses_nobody)
{
    struct sim_config config = runs_plain(30);
    struct sim sim;

    config.n_coordinators = 2; /* so that nodes do not miss it */
    runs_start(&sim, &config, 5);
    sim.coordinators[0].stalled = true;
    sim_run(&sim, 300, sim_finished);
    sim_kill_coordinator(&sim, 1);
    sim_run(&sim, 9000, sim_finished);
    sim.coordinators[0].stalled = false;
    runs_finish(&sim, 30);
}

/* ------------------------------------------------------------------------------------------- coordinators of the nodes */

/* All that the job names are gone for good: those of its own nodes are asked, and nothing is lost. */
Test(failures, without_a_coordinator_of_the_list_the_nodes_coordinate)
{
    uint64_t seed = runs_seed("without_a_coordinator_of_the_list_the_nodes_coordinate");

    for (uint64_t i = 0; i < 12; i++) {
        struct sim_config config = runs_plain(30);
        struct sim sim;

        config.seed = seed + i;
        config.nodes_listen = true;
        config.n_coordinators = 1 + (uint32_t)(i % 2);
        config.n_nodes = 2 + (uint32_t)(i % 3);
        config.n_ranks = 5;
        config.n_replicas = 1 + (uint32_t)(i % 2);
        config.loss_ppm = i % 3 ? 30000 : 0;
        config.delay_ms = 10;
        config.depth = 8;
        sim_start(&sim, &config);
        cr_assert(sim_run_to_step(&sim, 6, 300000), "seed %lu", (unsigned long)config.seed);
        for (uint32_t k = 0; k < config.n_coordinators; k++)
            sim_kill_coordinator(&sim, k);
        cr_assert(sim_run(&sim, 600000, sim_finished));
        cr_assert(sim_logged(&sim, "its coordinators are silent"));
        runs_finish(&sim, 30);
    }
}

/* Nobody else listens, or nobody is left: the end comes in time and names all. */
Test(failures, the_last_coordinator_is_missed_in_time)
{
    struct sim_config config = runs_plain(30);
    uint64_t killed;
    struct sim sim;

    config.nodes_listen = true;
    runs_start(&sim, &config, 6);
    for (uint32_t k = 0; k < SIM_COORDINATORS; k++)
        sim_kill_coordinator(&sim, k);
    killed = sim.now_ms;
    cr_assert(sim_run(&sim, 60000, all_over));
    cr_assert(sim.now_ms - killed < 13000, "%lu ms", (unsigned long)(sim.now_ms - killed));
    for (uint32_t i = 0; i < sim.n_processes; i++)
        cr_assert(strstr(sim.processes[i].error.text, "no coordinator of") && strstr(sim.processes[i].error.text, " c0") &&
                      (strstr(sim.processes[i].error.text, " c1") || strstr(sim.processes[i].error.text, " c2")),
                  "%s", sim.processes[i].error.text);
    sim_stop(&sim);
}
