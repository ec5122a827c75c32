/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl simulate: what would balancing do for my data? Reads sizes, draws random global batches, plans each with
 * every algorithm, and says in numbers and words what to choose. No daemon, no clock but for planning times: the same
 * seed gives the same answer. Nothing is printed or written unless all of it is known.
 */
#include "client/ctl/simulate.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/recorded.h"
#include "client/ctl/report.h"
#include "client/ctl/simulate_options.h"
#include "daemon/planner/err.h"

static void progress(const struct simulate *sim, const char *what)
{
    if (sim->progress)
        fprintf(stderr, "\r\033[Ksimulating %s", what);
}

static void end_progress(const struct simulate *sim)
{
    if (sim->progress)
        fprintf(stderr, "\r\033[K");
}

static int read_data(struct simulate *sim, const struct simulate_words *words, struct poise_err *err)
{
    int rc = dataset_read(sim->path, words->columns, &sim->data, err);

    if (rc == 0)
        rc = simulate_cost_read(words->cost, &sim->data, &sim->cost, err);
    sim->rule.tiles = sim->cost.tiles;
    if (rc == 0)
        rc = simulate_samples_make(&sim->data, &sim->cost, &sim->rule, &sim->data, &sim->samples, err);
    sim->setup.samples = &sim->samples;
    sim->setup.cost = &sim->cost;
    return rc;
}

static int run_all(struct simulate *sim, const char *const names[], uint32_t n_names, struct poise_err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n_names; i++) {
        struct simulate_setup setup = sim->setup;
        setup.algorithm = names[i];
        progress(sim, names[i]);
        rc = simulate_run(&setup, &sim->result[i], err);
        sim->n_results += rc == 0;
    }
    progress(sim, "what would help");
    if (rc == 0)
        rc = simulate_advise(sim, err);
    end_progress(sim);
    return rc;
}

static bool any_done(const struct simulate *sim)
{
    for (uint32_t i = 0; i < sim->n_results; i++)
        if (!sim->result[i].error[0])
            return true;
    return false;
}

static void simulate_free(struct simulate *sim)
{
    for (uint32_t i = 0; i < sim->n_results; i++)
        simulate_result_free(&sim->result[i]);
    simulate_loads_free(&sim->loads);
    simulate_samples_free(&sim->samples);
    dataset_free(&sim->data);
}

static int simulate_all(struct simulate *sim, const struct simulate_words *words, struct poise_err *err)
{
    const char *names[SIMULATE_ALGORITHMS];
    char copy[1024];
    uint32_t n_names;
    int rc = simulate_options_read(words, sim, err);

    if (rc == 0)
        rc = simulate_options_algorithms(words->algorithm, copy, sizeof copy, names, &n_names, err);
    if (rc == 0 && words->report)
        rc = report_check(words->report, err);
    if (rc == 0)
        rc = read_data(sim, words, err);
    if (rc == 0)
        rc = run_all(sim, names, n_names, err);
    if (rc == 0 && !any_done(sim))
        rc = err_set(err, -EINVAL, "algorithm %s is not for this: %s", sim->result[0].algorithm, sim->result[0].error);
    return rc;
}

/* The report first: it may fail, and then nothing was printed. */
static int show(const struct simulate *sim, const struct simulate_words *words, struct poise_err *err)
{
    int rc = words->report ? report_write(words->report, sim, err) : 0;

    if (rc == 0 && words->json)
        rc = simulate_print_json(sim, err);
    else if (rc == 0)
        simulate_print(sim);
    if (rc == 0 && words->report)
        fprintf(stderr, "poisectl simulate: the report is in %s\n", words->report);
    return rc;
}

int simulate_command(const struct ctl_command *command, int argc, char **argv)
{
    struct simulate_words words = {.ranks = 8,
                                   .per_rank = 8,
                                   .stages = 1,
                                   .nodes = 1,
                                   .batches = 50,
                                   .seed = 1,
                                   .objective = "step",
                                   .count = "equal",
                                   .max_pixels = "1280x28x28",
                                   .tolerance = "1%",
                                   .fixed_fraction = "0.25"};
    const struct ctl_option options[] = {
        {"ranks", CTL_NUMBER, &words.ranks, "N", "data-parallel ranks", 1, 1u << 20},
        {"per-rank", CTL_NUMBER, &words.per_rank, "M", "samples of a rank and step", 1, 1u << 20},
        {"micro-batch", CTL_NUMBER, &words.micro_batch, "K", "samples of a micro-batch; 0: all of a step", 0, 1u << 20},
        {"objective", CTL_STRING, &words.objective, "WORD", "when ranks meet: step, microbatch or pipeline", 0, 0},
        {"stages", CTL_NUMBER, &words.stages, "S", "pipeline stages, for objective pipeline", 1, 4096},
        {"count", CTL_STRING, &words.count, "WORD", "samples of each rank: equal, bounded or free", 0, 0},
        {"cost", CTL_STRING, &words.cost, "COST", "a preset, or a,b,c for a x length + b x length^2 + c", 0, 0},
        {"max-pixels", CTL_STRING, &words.max_pixels, "AxBxC", "larger images are scaled down to it", 0, 0},
        {"algorithm", CTL_STRING, &words.algorithm, "A,B,...", "which to compare; all there are, unless named", 0, 0},
        {"tolerance", CTL_STRING, &words.tolerance, "T", "how far above the lower bound is good enough", 0, 0},
        {"nodes", CTL_NUMBER, &words.nodes, "N", "machines that the ranks are on, in equal parts", 1, 1u << 20},
        {"fixed-fraction", CTL_STRING, &words.fixed_fraction, "F", "part of a step that balancing cannot touch", 0, 0},
        {"batches", CTL_NUMBER, &words.batches, "N", "random global batches", 1, 100000},
        {"seed", CTL_NUMBER, &words.seed, "N", "of their random order", 0, UINT64_MAX},
        {"columns", CTL_STRING, &words.columns, "A=B,...", "columns of other names, as length=tokens", 0, 0},
        {"json", CTL_FLAG, &words.json, NULL, "one JSON object", 0, 0},
        {"report", CTL_STRING, &words.report, "FILE.html", "write a page with pictures", 0, 0},
    };
    struct simulate sim = {.command = command, .progress = isatty(STDERR_FILENO) == 1};
    struct poise_err err = {0};
    int status, rc;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, &sim.path, 1, &status) != 0)
        return status;
    if (recorded_is(sim.path))
        return words.report ? ctl_fail(command, CTL_BAD_INPUT, "--report is for CSV files; %s is a record", sim.path)
                            : simulate_record(command, sim.path, words.algorithm, words.json);
    rc = simulate_all(&sim, &words, &err);
    status = rc == -ENOMEM ? CTL_FAILED : CTL_BAD_INPUT; /* else the command line or the input is to blame */
    if (rc == 0) {
        rc = show(&sim, &words, &err);
        status = CTL_FAILED;
    }
    simulate_free(&sim);
    return rc < 0 ? ctl_fail(command, status, "%s", err.text) : CTL_OK;
}
