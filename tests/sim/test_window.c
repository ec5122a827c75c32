/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that says wrong step numbers: it can neither fill a coordinator nor push out the steps that the others are at, also
 * where the coordinator was restarted and knows nothing yet.
 */
#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/rules.h"
#include "tests/sim/cluster.h"

#define LIES 4000u
/* 16 steps of 4 ranks with 400 samples are about 1 MB; 4,000 kept messages would be 40 MB. */
#define ROOM (4u << 20)

static struct sim_config plain(void)
{
    return (struct sim_config){.seed = 3, .n_ranks = 4, .n_replicas = 1, .n_nodes = 2, .n_coordinators = 1, .n_steps = 30,
                               .max_samples = 400, .delay_ms = 3, .compute_ms = 40, .load_ms = 40, .depth = 8,
                               .first_step = 500};
}

static struct group_report report_of(const struct sim *sim)
{
    struct group_report *reports, first;
    uint32_t n;

    cr_assert_eq(coordinator_report(sim->coordinators[0].coordinator, sim->now_ms, &reports, &n), 0);
    cr_assert_eq(n, 1);
    first = reports[0];
    free(reports);
    return first;
}

/* A step that no rank may submit yet: just beyond, far off, and where numbers end. */
static uint64_t lie(const struct sim *sim, uint32_t i)
{
    uint64_t beyond = 500 + sim->processes[2].n_consumed + 3 * WIRE_WINDOW;

    return i % 3 == 0 ? beyond + i : i % 3 == 1 ? beyond + ((uint64_t)i << 40) : UINT64_MAX - i;
}

/* Rank 2's node says that it is at steps that nobody can be at, in metadata and in heartbeats. */
static void tell_lies(struct sim *sim, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct wire_heartbeat_epoch claim = {.epoch = sim->processes[2].epoch, .oldest_open = lie(sim, i)};
        struct wire_message beat = {.type = WIRE_HEARTBEAT, .heartbeat = {{9, 3}, 1, &claim}};

        if (i % 7 == 0)
            sim_inject(sim, 0, 1, &beat);
        sim_inject(sim, 0, 1, trainer_meta(sim, &sim->processes[2], lie(sim, i)));
    }
}

static void finish(struct sim *sim)
{
    cr_assert(sim_run(sim, 600000, sim_finished), "not finished: %s", sim->failure);
    for (uint32_t i = 0; i < sim->n_processes; i++)
        cr_assert(!sim->processes[i].over, "rank %u: %s", i, sim->processes[i].error.text);
    cr_assert_eq(sim->n_checked, 30);
    sim_stop(sim);
}

static bool all_running(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->n_processes; i++)
        if (!sim->processes[i].running)
            return false;
    return true;
}

/* The second coordinator runs the epoch, and has decided nothing. */
static bool is_claimed_again(const struct sim *sim)
{
    const char *first = sim->log ? strstr(sim->log, "coordinator 0: group qwen/dp: running after") : NULL;

    return first && strstr(first + 1, "coordinator 0: group qwen/dp: running after");
}

static void lies_at_step(uint64_t step, bool restarted)
{
    struct sim_config config = plain();
    struct sim sim;
    size_t before, after;

    sim_start(&sim, &config);
    cr_assert(sim_run(&sim, 60000, all_running) && sim_run_to_step(&sim, step, 60000));
    if (restarted) {
        sim_kill_coordinator(&sim, 0);
        sim_start_coordinator(&sim, 0);
        cr_assert(sim_run(&sim, 5000, is_claimed_again));
    }
    before = mallinfo2().uordblks;
    tell_lies(&sim, LIES);
    after = mallinfo2().uordblks;
    cr_assert_lt(after, before + ROOM, "%zu bytes more", after - before);
    cr_assert_geq(report_of(&sim).n_far + report_of(&sim).n_stale, LIES);
    finish(&sim);
}

Test(window, wrong_steps_neither_fill_a_coordinator_nor_stop_the_group, .timeout = 60)
{
    lies_at_step(5, false);
}

Test(window, nor_before_the_first_decision, .timeout = 60)
{
    lies_at_step(0, false);
}

Test(window, nor_after_a_restart, .timeout = 60)
{
    lies_at_step(12, true);
}

Test(window, without_the_rule_the_group_is_stuck, .timeout = 60)
{
    struct sim_config config = plain();
    struct sim sim;

    core_broken = 1u << RULE_WINDOW;
    sim_start(&sim, &config);
    sim.quiet = true;
    cr_assert(sim_run_to_step(&sim, 5, 60000));
    tell_lies(&sim, 10);
    cr_assert(!sim_run(&sim, 60000, sim_finished));
    sim_stop(&sim);
    core_broken = 0;
}
