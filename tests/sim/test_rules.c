/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of the protocol that look fussy, each with what happens without it. A run with a rule broken on purpose must fail in
 * the simulation; the same runs with the rule kept must pass. What finds nothing when a rule is broken tests nothing.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/cluster.h"

/* Coordinators and nodes die again and again under loss: the hardest weather for what ranks must remember. */
static bool survives(struct sim_config config, uint64_t limit_ms)
{
    struct sim sim;
    bool ok;

    sim_start(&sim, &config);
    sim.quiet = true;
    for (uint64_t k = 1; k < 8; k++) {
        uint32_t node = (uint32_t)(k % config.n_nodes);

        sim_run_to_step(&sim, 3 * k, limit_ms);
        for (uint32_t i = 0; i < config.n_coordinators; i++)
            sim_kill_coordinator(&sim, i);
        sim_kill_node(&sim, node);
        sim_run(&sim, 50 * k, sim_finished);
        for (uint32_t i = 0; i < config.n_coordinators; i++)
            sim_start_coordinator(&sim, i);
        sim_start_node(&sim, node);
    }
    ok = sim_run(&sim, limit_ms, sim_finished) && sim.n_failures == 0 && sim.n_checked == config.n_steps;
    sim_stop(&sim);
    return ok;
}

static struct sim_config stormy(uint64_t seed)
{
    return (struct sim_config){.seed = seed, .n_ranks = 4, .n_replicas = 1, .n_nodes = 3, .n_coordinators = 1,
                               .n_steps = 26, .max_samples = 5, .delay_ms = 40, .compute_ms = 30, .load_ms = 30,
                               .loss_ppm = 150000, .depth = 8};
}

static int count_survivors(struct sim_config (*config_of)(uint64_t), int n, uint64_t limit_ms)
{
    int n_ok = 0;

    for (int seed = 1; seed <= n; seed++)
        n_ok += survives(config_of((uint64_t)seed), limit_ms);
    return n_ok;
}

Test(rules, with_all_rules_kept_every_run_survives, .timeout = 60)
{
    cr_assert_eq(count_survivors(stormy, 25, 120000), 25);
}

/* "Resend what is unanswered": a coordinator that was restarted asks for a step that some ranks have decided. */
static struct sim_config answers_undecided(uint64_t seed)
{
    struct sim_config config = stormy(seed);

    config.answer_undecided = true;
    return config;
}

Test(rules, without_answers_for_decided_steps_runs_get_stuck, .timeout = 60)
{
    cr_assert_lt(count_survivors(answers_undecided, 25, 30000), 25);
}

/* Half of the nodes on one coordinator and half on the other: neither has all of a step. */
static struct sim_config splits(uint64_t seed)
{
    struct sim_config config = stormy(seed);

    config.n_coordinators = 2;
    config.one_coordinator = true;
    return config;
}

Test(rules, with_one_coordinator_a_node_nothing_is_decided, .timeout = 60)
{
    cr_assert_eq(count_survivors(splits, 3, 15000), 0);
}

static struct sim_config sends_to_both(uint64_t seed)
{
    struct sim_config config = stormy(seed);

    config.n_coordinators = 2;
    return config;
}

Test(rules, with_two_coordinators_a_node_every_run_survives, .timeout = 60)
{
    cr_assert_eq(count_survivors(sends_to_both, 12, 120000), 12);
}

/* A rank that says something else when it is asked again: two coordinators decide one step differently, or the daemons drop
 * the second word; with the first word gone the ranks are told of samples that they did not submit. */
static struct sim_config rewrites(uint64_t seed)
{
    struct sim_config config = stormy(seed);

    config.rewrite = true;
    config.max_samples = 9;
    return config;
}

Test(rules, metadata_that_changes_is_found, .timeout = 60)
{
    cr_assert_lt(count_survivors(rewrites, 25, 30000), 25);
}

/* A rank that forgets a step when s + W - 1 is decided, one too early: a rank that lags by the whole window still needs it. */
static struct sim_config forgets_early(uint64_t seed)
{
    struct sim_config config = stormy(seed);

    config.forget_early = true;
    return config;
}

Test(rules, a_step_forgotten_one_too_early_is_missed, .timeout = 60)
{
    cr_assert_lt(count_survivors(forgets_early, 25, 30000), 25);
}
