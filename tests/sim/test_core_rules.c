/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule of the core is taken away in turn (daemon/core/rules.h): the weather that it is for must then show a loss, and with the
 * rule kept it must not. Rules that ranks keep are in test_rules.c, the window of steps in test_window.c.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/rules.h"
#include "tests/sim/cluster.h"

#define SEEDS 20

static struct sim_config plain(uint64_t seed)
{
    return (struct sim_config){.seed = seed, .n_ranks = 4, .n_replicas = 1, .n_nodes = 2, .n_coordinators = 1, .n_steps = 24,
                               .max_samples = 6, .delay_ms = 3, .compute_ms = 40, .load_ms = 40};
}

static bool well(struct sim *sim, uint64_t limit_ms, uint64_t n_steps)
{
    bool ok = sim_run(sim, limit_ms, sim_finished) && sim->n_failures == 0 && sim->n_checked == n_steps;

    for (uint32_t i = 0; ok && i < sim->n_processes; i++)
        ok = !sim->processes[i].over;
    sim_stop(sim);
    return ok;
}

static void begin(struct sim *sim, const struct sim_config *config)
{
    sim_start(sim, config);
    sim->quiet = true;
    sim_run(sim, 60000, sim_all_running);
}

/* Daemons die again and again, a third of the messages is lost. */
static bool storm(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;

    config.loss_ppm = 150000;
    config.delay_ms = 40;
    config.depth = 8;
    config.n_nodes = 3;
    begin(&sim, &config);
    for (uint64_t k = 1; k < 7; k++) {
        sim_run_to_step(&sim, 3 * k, 60000);
        sim_kill_coordinator(&sim, 0);
        sim_kill_node(&sim, (uint32_t)(k % 3));
        sim_run(&sim, 50 * k, sim_finished);
        sim_start_coordinator(&sim, 0);
        sim_start_node(&sim, (uint32_t)(k % 3));
    }
    return well(&sim, 60000, 24);
}

/* Nothing dies; what is lost must come again soon: a rank that waits asks only every 2 s. */
static bool drizzle(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;

    config.loss_ppm = 100000;
    config.depth = 1;
    config.compute_ms = config.load_ms = 1;
    config.n_steps = 60;
    begin(&sim, &config);
    return well(&sim, 45000, 60);
}

/* Someone submits its last step and is gone before the others, who load slowly, have submitted it. */
static bool someone_leaves(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;
    bool ok;

    config.leave_rank = (uint32_t)(seed % 4);
    config.leave_after = 9;
    config.leave_hasty = true;
    config.n_nodes = 4;
    config.load_ms = 300;
    begin(&sim, &config);
    ok = sim_run(&sim, 60000, sim_finished) && sim.n_failures == 0;
    for (uint32_t i = 0; i < 4; i++)
        ok &= !sim.processes[i].over && (i == config.leave_rank || sim.processes[i].n_consumed == 9);
    sim_stop(&sim);
    return ok;
}

/* Metadata of a step that says other payload, of a rank that has spoken (write-once), or of one that it is not. */
static bool forge(uint64_t seed, bool early)
{
    struct sim_config config = plain(seed);
    struct sim sim;

    config.n_nodes = 4;
    config.delay_ms = 0;
    config.load_ms = 200;
    begin(&sim, &config);
    for (int i = 0; i < 200 && !sim_finished(&sim) && !sim.n_failures; i++) {
        uint32_t rank = (uint32_t)sim_random(&sim, 4);
        const struct sim_process *p = &sim.processes[rank];
        uint64_t step = ledger_next_submit(p->ledger) - !early;
        const struct wire_message *msg;

        sim_run(&sim, 20, sim_finished);
        if (p->left || step >= config.n_steps || (!early && ledger_next_submit(p->ledger) == 0))
            continue;
        msg = trainer_meta(&sim, p, step);
        if (msg->meta.metas[0].n_samples == 0)
            continue;
        msg->meta.metas[0].bytes[0] += 4;
        msg->meta.metas[0].digest.lo ^= 1;
        msg->meta.metas[0].incarnation.random ^= early;
        sim_inject(&sim, 0, early ? (rank + 1) % 4 : rank, msg);
    }
    return well(&sim, 60000, 24);
}

static bool rewritten(uint64_t seed)
{
    return forge(seed, false);
}

static bool forged(uint64_t seed)
{
    return forge(seed, true);
}

/* A death of which the only word is lost. */
static bool death(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;
    bool ok;

    config.loss_ppm = 250000;
    config.n_nodes = 4;
    begin(&sim, &config);
    sim_run_to_step(&sim, 3, 200000);
    sim_kill_process(&sim, 2, 0);
    ok = sim_run(&sim, 8000, sim_all_over); /* before its node is silent for too long */
    sim_stop(&sim);
    return ok;
}

/* One of two coordinators cannot reach a node, which the other hears: nobody is dead. */
static bool cut(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;

    config.n_coordinators = 2;
    config.n_steps = 60;
    config.compute_ms = 600;
    begin(&sim, &config);
    sim_run_to_step(&sim, 3, 60000);
    sim.cut[0] = 1u << 1;
    return well(&sim, 300000, 60);
}

/* A coordinator that stood still for longer than a node may be silent, when the other has just died. */
static bool stood_still(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;

    config.n_coordinators = 2;
    config.n_steps = 60;
    config.compute_ms = 600;
    begin(&sim, &config);
    sim_run_to_step(&sim, 3, 60000);
    sim.coordinators[0].stalled = true;
    sim_run(&sim, 9500, sim_finished);
    sim_kill_coordinator(&sim, 1);
    sim_run(&sim, 4000, sim_finished);
    sim.coordinators[0].stalled = false;
    return well(&sim, 300000, 60);
}

/* An input that kills the planner: every coordinator dies of it once at most, and everybody is told. */
static bool poison(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;
    bool ok;

    config.n_coordinators = 1 + (uint32_t)(seed % 3);
    begin(&sim, &config);
    sim.fatal_step = 7;
    ok = sim_run(&sim, 60000, sim_all_over);
    for (uint32_t i = 0; i < config.n_coordinators; i++)
        ok &= sim.coordinators[i].n_deaths <= 1;
    for (uint32_t i = 0; i < sim.n_processes; i++)
        ok &= sim.processes[i].n_consumed <= 7 && strstr(sim.processes[i].error.text, "planning step 7 killed") != NULL;
    sim_stop(&sim);
    return ok;
}

/* A coordinator dies between its rosters: some members know of the epoch, the others wait for one. */
static bool half_begun(uint64_t seed)
{
    struct sim_config config = plain(seed);
    struct sim sim;

    config.n_nodes = 4;
    sim_start(&sim, &config);
    sim.quiet = true;
    for (int i = 0; i < 2000 && !sim_logged(&sim, "running after"); i++)
        sim_run(&sim, 1, sim_finished); /* rosters are on their way for 0 to 3 ms */
    sim.cut[0] = 1u << seed % 4; /* what is on its way arrives, what is sent again does not */
    sim_kill_coordinator(&sim, 0);
    sim_lose(&sim, (uint32_t)(seed % 4));
    sim_run(&sim, 100, sim_finished);
    sim.cut[0] = 0;
    sim_start_coordinator(&sim, 0);
    if (!sim_run(&sim, 8000, sim_all_running))
        sim_fail(&sim, "not all are in the epoch");
    return well(&sim, 60000, 24);
}

static const struct {
    enum core_rule rule;
    const char *name;
    bool (*run)(uint64_t seed);
} cases[] = {
    {RULE_SLOTS, "2 W steps", storm},
    {RULE_NEED, "a coordinator asks", storm},
    {RULE_PULL, "a node asks for what a beacon proves", drizzle},
    {RULE_LEAVE, "the last step of one who left", someone_leaves},
    {RULE_WRITE_ONCE, "write-once", rewritten},
    {RULE_INCARNATION, "incarnations", forged},
    {RULE_ECHO, "told until it is echoed", death},
    {RULE_VOTE, "all that are heard must say it", cut},
    {RULE_STALL, "who stood still accuses nobody", stood_still},
    {RULE_GUEST, "an epoch that is half begun", half_begun},
    {RULE_POISON, "not planned again", poison},
};

Test(core_rules, each_rule_is_missed_when_it_is_gone, .timeout = 300)
{
    uint32_t n_bad = 0;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int kept = 0, gone = 0;

        for (uint64_t seed = 1; seed <= SEEDS; seed++)
            kept += cases[i].run(seed);
        core_broken = 1u << cases[i].rule;
        for (uint64_t seed = 1; seed <= SEEDS; seed++)
            gone += cases[i].run(seed);
        core_broken = 0;
        printf("%-40s kept: %2d of %d runs well, taken away: %2d\n", cases[i].name, kept, SEEDS, gone);
        fflush(stdout);
        n_bad += kept != SEEDS || gone == SEEDS;
    }
    cr_assert_eq(n_bad, 0, "%u rules are kept and yet fail, or gone and not missed", n_bad);
}
