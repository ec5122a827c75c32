/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What would help further, each simulated on the same samples with the chosen algorithm rather than argued:
 * accumulating over more samples, smaller images, context parallelism, encoding images apart from their samples, free
 * counts, no caps. What changes nothing for these data or this setup is left out.
 *
 * Times are predicted step times a sample and device, relative to the chosen plan's. The fixed part of a step is taken
 * to grow with its samples, so that accumulation is not praised for what it saves elsewhere.
 */
#include "client/ctl/simulate_helps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

#define MOST_WORK 2000000u /* samples planned a help: a few seconds at most; fewer batches are taken above */
#define LEAST_BATCHES 5u   /* below, the means say nothing */
#define LEAST_PIXELS (16u * 28u * 28u) /* halving a limit below that shows nothing of an image */

static struct simulate_tally tally(const struct simulate_result *result)
{
    return (struct simulate_tally){result->mean_cost, result->before_cost, result->after_cost, result->moved};
}

void simulate_help_add(struct simulate *sim, const struct simulate_tally *base, const struct simulate_tally *with,
                       double devices, double scale, const char *key, const char *title, const char *note)
{
    struct simulate_help *help = &sim->advice.help[sim->advice.n_helps];
    const double part = sim->fixed * base->mean;

    if (sim->advice.n_helps == SIMULATE_HELPS || with->mean <= 0)
        return;
    sim->advice.n_helps++;
    help->key = key;
    snprintf(help->title, sizeof help->title, "%s", title);
    snprintf(help->note, sizeof help->note, "%s", note);
    help->imbalance_before = with->before / with->mean;
    help->imbalance_after = with->after / with->mean;
    help->time = (part + with->after / devices / scale) / (part + base->after);
    help->moved = with->moved;
}

/* Runs a setup; 0 and *ret_done false where the algorithm cannot. */
static int run(const struct simulate_setup *setup, struct simulate_tally *ret_tally, bool *ret_done,
               struct poise_err *err)
{
    struct simulate_result result;
    int rc = simulate_run(setup, &result, err);

    *ret_done = false;
    if (rc < 0)
        return rc;
    if (!result.error[0]) {
        *ret_tally = tally(&result);
        *ret_done = true;
    }
    simulate_result_free(&result);
    return 0;
}

static int help_accumulate(struct simulate *sim, struct simulate_setup setup, const struct simulate_tally *base,
                           uint32_t times, struct poise_err *err)
{
    struct simulate_tally with;
    char title[96];
    bool done;
    int rc;

    if ((uint64_t)setup.n_ranks * setup.per_rank * times > UINT32_MAX / 16)
        return 0;
    setup.per_rank *= times;
    if ((rc = run(&setup, &with, &done, err)) < 0 || !done)
        return rc;
    snprintf(title, sizeof title, "Accumulate %ux: %u samples a rank and step", times, setup.per_rank);
    simulate_help_add(
        sim, base, &with, 1, times, times == 2 ? "accumulate_2x" : "accumulate_4x", title,
        "large samples are averaged over more; the global batch grows, so the learning rate may have to follow");
    return 0;
}

static int help_pixels(struct simulate *sim, struct simulate_setup setup, const struct simulate_tally *base,
                       struct poise_err *err)
{
    struct dataset_rule rule = sim->rule;
    struct simulate_samples samples;
    struct simulate_tally with;
    char title[96];
    bool done;
    int rc;

    if (sim->data.kind != DATASET_IMAGE && sim->data.kind != DATASET_IMAGES && sim->data.kind != DATASET_VIDEO)
        return 0;
    if ((sim->cost.tiles && (rule.max_tiles < 2 || sim->data.kind == DATASET_VIDEO)) ||
        rule.max_pixels / 2 < LEAST_PIXELS)
        return 0;
    rule.max_pixels /= 2;
    rule.max_tiles /= 2;
    if ((rc = simulate_samples_make(&sim->data, &sim->cost, &rule, NULL, &samples, err)) < 0)
        return rc;
    setup.samples = &samples;
    rc = run(&setup, &with, &done, err);
    simulate_samples_free(&samples);
    if (rc < 0 || !done)
        return rc;
    if (sim->cost.tiles)
        snprintf(title, sizeof title, "At most %u tiles an image instead of %u", rule.max_tiles, sim->rule.max_tiles);
    else
        snprintf(title, sizeof title, "max_pixels %.0fx28x28 instead of %.0fx28x28", (double)rule.max_pixels / 784,
                 (double)sim->rule.max_pixels / 784);
    simulate_help_add(sim, base, &with, 1, 1, "max_pixels", title,
                      "less is computed, and the model sees less: check accuracy on small print");
    return 0;
}

/* Two devices share each rank's samples: half as many ranks, twice as fast. */
static int help_context(struct simulate *sim, struct simulate_setup setup, const struct simulate_tally *base,
                        struct poise_err *err)
{
    struct simulate_tally with;
    bool done;
    int rc;

    if (setup.n_ranks < 4 || setup.n_ranks % 2)
        return 0;
    setup.n_ranks /= 2;
    setup.per_rank *= 2;
    setup.n_nodes = setup.n_nodes > setup.n_ranks ? setup.n_ranks : setup.n_nodes;
    if (sim->setup.micro_batch == sim->setup.per_rank)
        setup.micro_batch = setup.per_rank;
    if ((rc = run(&setup, &with, &done, err)) < 0 || !done)
        return rc;
    simulate_help_add(sim, base, &with, 2, 1, "context_parallel_2", "Context parallelism over 2 devices",
                      "one sample is shared by two devices; its own communication is not counted here");
    return 0;
}

static int help_free_count(struct simulate *sim, struct simulate_setup setup, const struct simulate_tally *base,
                           struct poise_err *err)
{
    struct simulate_tally with;
    bool done;
    int rc;

    if (setup.count == POISE_COUNT_FREE)
        return 0;
    setup.count = POISE_COUNT_FREE;
    if ((rc = run(&setup, &with, &done, err)) < 0 || !done)
        return rc;
    simulate_help_add(sim, base, &with, 1, 1, "count_free", "Free numbers of samples a rank (--count free)",
                      "the loss must be normalised by the whole step: poise gives each sample its weight");
    return 0;
}

static int help_no_caps(struct simulate *sim, struct simulate_setup setup, const struct simulate_tally *base,
                        struct poise_err *err)
{
    struct simulate_result result;
    struct simulate_tally with;
    const uint32_t last = sim->cost.n_phases - 1;
    char note[160];
    int rc;

    setup.no_caps = true;
    if ((rc = simulate_run(&setup, &result, err)) < 0)
        return rc;
    with = tally(&result);
    snprintf(note, sizeof note, "the largest micro-batch may then hold %.0f %s instead of %.0f: memory must allow it",
             (double)result.length_after[last], sim->cost.unit[last], (double)sim->advice.chosen->length_after[last]);
    /* Without caps hardly faster: they are not what limits. */
    if (!result.error[0] && with.after < base->after * 0.995)
        simulate_help_add(sim, base, &with, 1, 1, "no_caps", "Without the caps on tokens (those of arrival order)",
                          note);
    simulate_result_free(&result);
    return 0;
}

/* Exchange inside each node alone: consecutive parts of the very same batches. */
static int help_scope(struct simulate *sim, struct simulate_setup setup, const struct simulate_tally *base,
                      struct poise_err *err)
{
    const uint32_t nodes = setup.n_nodes, n_batches = setup.n_batches;
    struct simulate_result result;
    struct simulate_tally with = {0};
    int rc;

    if (nodes < 2 || setup.n_ranks % nodes || setup.objective == POISE_OBJECTIVE_MICROBATCH)
        return 0;
    setup.n_ranks /= nodes;
    setup.n_nodes = 1;
    setup.n_batches *= nodes;
    if ((rc = simulate_run(&setup, &result, err)) < 0)
        return rc;
    for (uint32_t b = 0; !result.error[0] && b < n_batches; b++) {
        double before = 0, after = 0;
        for (uint32_t i = b * nodes; i < (b + 1) * nodes; i++) {
            before = result.batch[i].before > before ? result.batch[i].before : before;
            after = result.batch[i].after > after ? result.batch[i].after : after;
        }
        with.before += before / n_batches;
        with.after += after / n_batches;
    }
    with.mean = result.mean_cost;
    with.moved = result.moved;
    if (!result.error[0])
        simulate_help_add(sim, base, &with, 1, 1, "within_nodes", "Exchange inside each node only",
                          "nothing crosses the network; the scope limits what can be evened out");
    simulate_result_free(&result);
    return 0;
}

int simulate_help_all(struct simulate *sim, struct poise_err *err)
{
    struct simulate_setup setup = sim->setup;
    struct simulate_tally base;
    bool done;
    int rc;

    setup.algorithm = sim->advice.chosen->algorithm;
    if ((uint64_t)setup.n_ranks * setup.per_rank * setup.n_batches > MOST_WORK) {
        uint32_t n = MOST_WORK / (setup.n_ranks * setup.per_rank);
        n = n < LEAST_BATCHES ? LEAST_BATCHES : n;
        setup.n_batches = n < setup.n_batches ? n : setup.n_batches;
    }
    sim->advice.n_batches = setup.n_batches;
    if ((rc = run(&setup, &base, &done, err)) < 0 || !done)
        return rc;
    rc = help_accumulate(sim, setup, &base, 2, err);
    if (rc == 0)
        rc = help_accumulate(sim, setup, &base, 4, err);
    if (rc == 0)
        rc = help_pixels(sim, setup, &base, err);
    if (rc == 0)
        rc = help_context(sim, setup, &base, err);
    if (rc == 0)
        rc = simulate_help_images(sim, &setup, &base, err);
    if (rc == 0)
        rc = help_free_count(sim, setup, &base, err);
    if (rc == 0)
        rc = help_no_caps(sim, setup, &base, err);
    if (rc == 0)
        rc = help_scope(sim, setup, &base, err);
    return rc;
}
