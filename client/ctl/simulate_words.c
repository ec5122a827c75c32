/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result in plain words: whether to balance, with what, what still limits, and the one change that would help most.
 * Predicted is called predicted.
 */
#include "client/ctl/simulate.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define WORTH_IT 1.02 /* below this, the noise of a real run hides the gain */
#define NEAR 1.03     /* a slowest rank nearer to the mean than that needs no further help */
#define HELPS 0.98    /* a change that makes steps shorter than that is worth a sentence */

static void say(struct simulate *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct simulate *sim, const char *format, ...)
{
    char *text = sim->advice.summary;
    size_t n = strlen(text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + n, sizeof sim->advice.summary - n, format, args);
    va_end(args);
}

static const char *load_name(const struct simulate *sim)
{
    return sim->setup.objective == POISE_OBJECTIVE_STEP ? "the slowest rank has" : "the step takes";
}

static const struct simulate_help *find_help(const struct simulate *sim, const char *key)
{
    for (uint32_t i = 0; i < sim->advice.n_helps; i++)
        if (!strcmp(sim->advice.help[i].key, key))
            return &sim->advice.help[i];
    return NULL;
}

/* Whether a change takes away at least half of what a perfect step is missed by. */
static bool cures(const struct simulate *sim, const char *key)
{
    const struct simulate_help *help = find_help(sim, key);

    return help && help->imbalance_after - 1 < (sim->advice.chosen->imbalance_after - 1) / 2;
}

static void say_limits(struct simulate *sim)
{
    const struct simulate_limits *limits = &sim->advice.limits;
    const struct simulate_result *chosen = sim->advice.chosen;

    if (chosen->imbalance_after < NEAR)
        return;
    if (limits->n_giant)
        say(sim,
            " What limits: in %u of %u batches one sample alone costs more than a rank's whole share, %.2f times it on "
            "average and %.2f at most; no exchange of whole samples can undo that.",
            limits->n_giant, chosen->n, limits->giant_mean, limits->giant_most);
    else if (cures(sim, "count_free"))
        say(sim, " What limits: every rank keeps its number of samples.");
    else if (cures(sim, "no_caps"))
        say(sim, " What limits: no micro-batch and no rank may hold more than the fullest of arrival order does.");
    else if (limits->bound > NEAR)
        say(sim, " What limits: no plan at all is below %.3f times the mean for this objective.", limits->bound);
    else
        say(sim,
            " What limits: so few samples a %s divide no more evenly; the plan stays %.1f %% above the lower bound.",
            sim->setup.objective == POISE_OBJECTIVE_STEP ? "rank" : "micro-batch", 100 * chosen->gap);
}

static const struct simulate_help *best_help(const struct simulate *sim)
{
    const struct simulate_help *best = NULL;

    for (uint32_t i = 0; i < sim->advice.n_helps; i++) {
        const struct simulate_help *help = &sim->advice.help[i];
        /* Smaller images make every step shorter, balanced or not: no cure for imbalance. */
        if (strcmp(help->key, "max_pixels") != 0 && help->time < HELPS && (!best || help->time < best->time))
            best = help;
    }
    return best;
}

/* Of the last phase, which is the language model where there is one: what fills memory. */
static void say_memory(struct simulate *sim)
{
    const struct simulate_result *chosen = sim->advice.chosen;
    const uint32_t last = sim->cost.n_phases - 1;

    if (chosen->length_before[last] == 0)
        return;
    if (chosen->length_before[last] == chosen->length_after[last])
        say(sim, " The largest micro-batch holds %" PRIu64 " %s, as before.", chosen->length_after[last],
            sim->cost.unit[last]);
    else
        say(sim, " The largest micro-batch holds %" PRIu64 " %s instead of %" PRIu64 ".", chosen->length_after[last],
            sim->cost.unit[last], chosen->length_before[last]);
}

void simulate_words(struct simulate *sim)
{
    const struct simulate_result *chosen = sim->advice.chosen;
    const struct simulate_help *help = best_help(sim);

    sim->advice.summary[0] = 0;
    if (!chosen) {
        say(sim, "No algorithm that could be advised was simulated: name one with --algorithm, as least_move.");
        return;
    }
    if (sim->advice.speedup < WORTH_IT && chosen->imbalance_after < NEAR) {
        say(sim,
            "Leave these data as they are: in arrival order %s %.3f times the mean already, and balancing would make a "
            "step %.2f times as fast at best (predicted).",
            load_name(sim), chosen->imbalance_before, sim->advice.speedup);
    } else if (sim->advice.speedup < WORTH_IT) {
        say(sim,
            "Exchanging samples alone does next to nothing here: %s %.2f times the mean in arrival order and %.2f "
            "after.",
            load_name(sim), chosen->imbalance_before, chosen->imbalance_after);
    } else {
        say(sim,
            "Choose %s: %s %.2f times the mean in arrival order and %.3f after; steps become %.2f times as fast "
            "(predicted, with a fixed part of %.0f %%). %.1f %% of the bytes change rank; the least that can do is "
            "%.1f %%.",
            chosen->algorithm, load_name(sim), chosen->imbalance_before, chosen->imbalance_after, sim->advice.speedup,
            100 * sim->fixed, 100 * chosen->moved, 100 * chosen->floor);
        say_memory(sim);
    }
    say_limits(sim);
    if (help && chosen->imbalance_after >= NEAR)
        say(sim, " What would help most: \"%s\" brings it to %.3f and makes steps another %.2f times as fast.",
            help->title, help->imbalance_after, 1 / help->time);
}
