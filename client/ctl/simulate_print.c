/* SPDX-License-Identifier: Apache-2.0 */
/* The result as a table for people: what was read, what was simulated, a row an algorithm, what limits and what would
 * help. */
#include "client/ctl/simulate.h"

#include <inttypes.h>
#include <string.h>

const char *simulate_objective_name(uint32_t objective)
{
    static const char *const names[] = {"step", "microbatch", "pipeline"};

    return names[objective];
}

const char *simulate_count_name(uint32_t count)
{
    static const char *const names[] = {"equal", "bounded", "free"};

    return names[count];
}

static void print_data(const struct simulate *sim)
{
    const struct dataset *data = &sim->data;

    printf("%s: %" PRIu64 " samples (columns %s)\n", sim->path, sim->samples.n, data->columns);
    if (data->n_left_out)
        printf("  left out: %" PRIu64 " of %" PRIu64 " rows\n", data->n_left_out, data->n_read);
    for (uint32_t i = 0; i < data->n_reasons; i++) {
        const struct dataset_left_out *left = &data->left_out[i];
        printf("  %8" PRIu64 "  %s (line", left->n, left->reason);
        for (uint32_t k = 0; k < left->n && k < DATASET_LINES; k++)
            printf("%s %" PRIu64, k ? "," : left->n > 1 ? "s" : "", left->line[k]);
        printf("%s)\n", left->n > DATASET_LINES ? ", ..." : "");
    }
}

static void print_setup(const struct simulate *sim)
{
    const struct simulate_setup *setup = &sim->setup;
    const struct simulate_cost *cost = &sim->cost;

    printf("%u ranks x %u samples", setup->n_ranks, setup->per_rank);
    if (setup->micro_batch < setup->per_rank)
        printf(" in micro-batches of %u", setup->micro_batch);
    if (setup->n_nodes > 1)
        printf(", %u nodes", setup->n_nodes);
    printf("; objective %s", simulate_objective_name(setup->objective));
    if (setup->objective == POISE_OBJECTIVE_PIPELINE)
        printf(" of %u stages", setup->stages);
    printf(", count %s, tolerance %.4g %%\n", simulate_count_name(setup->count), setup->tolerance_ppm / 1e4);
    printf("cost %s%s:", cost->name, cost->by_default ? " (the default for such data)" : "");
    for (uint32_t p = 0; p < cost->n_phases; p++)
        printf("%s %s by %s", p ? "," : "", cost->phases[p].name, cost->unit[p]);
    if (!cost->tiles && (sim->data.kind == DATASET_IMAGE || sim->data.kind == DATASET_IMAGES))
        printf("; images of at most %.0fx28x28 pixels", (double)sim->rule.max_pixels / 784);
    printf("\n%u random global batches, seed %" PRIu64 "; the fixed part of a step is %.0f %% of a rank's mean\n\n",
           setup->n_batches, setup->seed, 100 * sim->fixed);
}

static void print_row(const struct simulate *sim, const struct simulate_result *result, int width)
{
    const uint32_t last = sim->cost.n_phases - 1;

    printf("%-*s", width, result->algorithm);
    if (result->error[0]) {
        printf("  not for this: %s\n", result->error);
        return;
    }
    printf("  %6.3f  %6.3f  %7.2f %%  %8.2fx  %6.1f %%  %5.1f %%  %9" PRIu64 "  %9" PRIu64 "  %6.1f  %6.1f  %9.3f\n",
           result->imbalance_before, result->imbalance_after, 100 * result->gap, simulate_speedup(result, sim->fixed),
           100 * result->moved, 100 * result->floor, result->length_before[last], result->length_after[last],
           (double)result->lacking_before / result->n, (double)result->lacking_after / result->n, result->plan_ms);
}

static void print_table(const struct simulate *sim)
{
    char text[40]; /* what the largest micro-batch is measured in */
    const bool step = sim->setup.objective == POISE_OBJECTIVE_STEP;
    int width = 9;

    snprintf(text, sizeof text, "%s, largest", sim->cost.unit[sim->cost.n_phases - 1]);
    for (uint32_t i = 0; i < sim->n_results; i++)
        if ((int)strlen(sim->result[i].algorithm) > width)
            width = (int)strlen(sim->result[i].algorithm);
    printf("%-*s  %-14s  %9s  %9s  %8s  %7s  %20s  %14s  %9s\n", width, "", step ? " largest/mean" : "  step/mean",
           "gap to", "predicted", "bytes", "least", text, "without phase", "planning");
    printf("%-*s  %6s  %6s  %9s  %9s  %8s  %7s  %9s  %9s  %6s  %6s  %9s\n", width, "algorithm", "before", "after",
           "the bound", "speed-up", "moved", "bytes", "before", "after", "before", "after", "ms");
    for (uint32_t i = 0; i < sim->n_results; i++)
        print_row(sim, &sim->result[i], width);
}

/* Wraps at 118 columns: as wide as the table. */
static void print_wrapped(const char *text)
{
    size_t column = 0;

    while (*text) {
        size_t n = strcspn(text, " ");
        if (column && column + 1 + n > 118) {
            putchar('\n');
            column = 0;
        } else if (column) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void print_helps(const struct simulate *sim)
{
    const struct simulate_advice *advice = &sim->advice;

    if (!advice->n_helps)
        return;
    printf("\nWhat a change would do, simulated with %s on %u batches (step time: a sample and device, predicted):\n",
           advice->chosen->algorithm, advice->n_batches);
    printf("  %-58s  %14s  %9s\n", "", sim->setup.objective == POISE_OBJECTIVE_STEP ? "largest/mean" : "step/mean",
           "step time");
    for (uint32_t i = 0; i < advice->n_helps; i++) {
        const struct simulate_help *help = &advice->help[i];
        printf("  %-58s  %14.3f  %+8.1f %%\n", help->title, help->imbalance_after, 100 * (help->time - 1));
    }
    printf("A list of sizes does not show the loader: if poisectl status says loader-bound, balancing cannot help.\n");
}

void simulate_print(const struct simulate *sim)
{
    print_data(sim);
    print_setup(sim);
    print_table(sim);
    printf("\n");
    print_wrapped(sim->advice.summary);
    print_helps(sim);
}
