/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the algorithms to take, and what keeps the result from being perfect. Among those that come within the
 * tolerance (and half a percent, which nobody could measure) of the fastest predicted step, the one that moves the
 * fewest bytes: that much the user has called good enough, and it is not worth network traffic.
 */
#include "client/ctl/simulate.h"

#include <string.h>

#define ALIKE 0.005 /* step times nearer than that, and the tolerance, are called equal */

bool simulate_is_comparison(const char *algorithm)
{
    return !strncmp(algorithm, "post_", 5) || !strcmp(algorithm, "karmarkar_karp");
}

static bool may_choose(const struct simulate_result *result)
{
    return !result->error[0] && strcmp(result->algorithm, "identity") != 0 &&
           !simulate_is_comparison(result->algorithm);
}

static const struct simulate_result *choose(const struct simulate *sim)
{
    const struct simulate_result *chosen = NULL;
    const double alike = 1 + ALIKE + sim->setup.tolerance_ppm / 1e6;
    double best = 0;

    for (uint32_t i = 0; i < sim->n_results; i++) {
        double speedup = simulate_speedup(&sim->result[i], sim->fixed);
        if (may_choose(&sim->result[i]) && speedup > best)
            best = speedup;
    }
    for (uint32_t i = 0; i < sim->n_results; i++) {
        const struct simulate_result *result = &sim->result[i];
        if (may_choose(result) && simulate_speedup(result, sim->fixed) * alike >= best &&
            (!chosen || result->moved < chosen->moved - 1e-9))
            chosen = result;
    }
    return chosen;
}

/* Every algorithm saw the same batches, so any row tells what the batches are like. */
static const struct simulate_result *any_row(const struct simulate *sim)
{
    for (uint32_t i = 0; i < sim->n_results; i++)
        if (!sim->result[i].error[0])
            return &sim->result[i];
    return NULL;
}

static void find_limits(const struct simulate_result *result, struct simulate_limits *limits)
{
    for (uint32_t i = 0; i < result->n; i++) {
        const struct simulate_batch *batch = &result->batch[i];
        double giant = batch->mean > 0 ? batch->largest / batch->mean : 0;
        limits->bound += (batch->mean > 0 ? batch->bound / batch->mean : 1) / result->n;
        limits->largest_mean += giant / result->n;
        if (giant <= 1)
            continue;
        limits->n_giant++;
        limits->giant_mean += giant;
        if (giant > limits->giant_most)
            limits->giant_most = giant;
    }
    if (limits->n_giant)
        limits->giant_mean /= limits->n_giant;
}

/* The batch whose imbalance is nearest to the mean: a typical one for the picture. */
static uint32_t typical_batch(const struct simulate_result *result)
{
    uint32_t best = 0;
    double nearest = -1;

    for (uint32_t i = 0; i < result->n; i++) {
        const struct simulate_batch *batch = &result->batch[i];
        double off = batch->mean > 0 ? batch->rank_before / batch->mean - result->rank_before : 0;
        off = off < 0 ? -off : off;
        if (nearest < 0 || off < nearest) {
            nearest = off;
            best = i;
        }
    }
    return best;
}

int simulate_advise(struct simulate *sim, struct poise_err *err)
{
    struct simulate_advice *advice = &sim->advice;
    const struct simulate_result *row = any_row(sim);
    struct simulate_setup setup = sim->setup;
    int rc = 0;

    advice->chosen = choose(sim);
    if (row)
        find_limits(row, &advice->limits);
    if (advice->chosen) {
        advice->speedup = simulate_speedup(advice->chosen, sim->fixed);
        setup.algorithm = advice->chosen->algorithm;
        rc = simulate_loads_make(&setup, typical_batch(advice->chosen), &sim->loads, err);
    }
    if (rc == 0 && advice->chosen)
        rc = simulate_help_all(sim, err);
    if (rc == 0)
        simulate_words(sim);
    return rc;
}
