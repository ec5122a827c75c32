/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl demo: the same steps unbalanced, in shadow, with the reference's algorithm and with the default, and what
 * they took. First a short run without computing, and with one step under way at a time so that none waits for another,
 * measures the pipeline; computing then takes twice its 99th percentile, so that data can be expected to be ready in
 * time. If any run fails, the demo does, with the reason.
 */
#include "client/ctl/demo.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALIBRATION_STEPS 18u
#define CALIBRATION_FIRST 6u /* the first ones touch new memory */
#define COMPUTE_FACTOR 2.0   /* times the pipeline's p99 */
#define COMPUTE_LEAST_NS 5e6 /* below, the sleeping itself is what is measured */
#define BUDGET_NS                                                                                                      \
    150e9            /* of the four runs: where other work disturbs the calibration, the demo is to end all the same */
#define SLOWEST 1.35 /* a step over the mean rank's compute, the mean of the four runs on image_text.csv */
#define FIXED_PART 0.25 /* of the mean step: what does not depend on the samples */
#define NOISE_PPM 50000
#define NOISE_SEED 1000003u
#define WEIGHT_ERROR 1e-9 /* of doubles added up */

#define REFERENCE_GLOBAL "post_global_balancing_greedy_without_pad"
#define REFERENCE_MBS "post_mbs_balancing_greedy_without_pad"

#define N_RUNS 4

static int find_binaries(struct demo *demo)
{
    char poised[sizeof demo->bin + 16];
    struct poise_err err;

    if (process_own_dir(demo->bin, sizeof demo->bin, &err) < 0)
        return ctl_fail(demo->command, CTL_FAILED, "%s", err.text);
    snprintf(poised, sizeof poised, "%s/poised", demo->bin);
    if (access(poised, X_OK) < 0)
        return ctl_fail(demo->command, CTL_FAILED, "%s: %s; the demo needs it beside poisectl: run make", poised,
                        strerror(errno));
    snprintf(demo->trainer, sizeof demo->trainer, "%s/../libexec/poise/trainer", demo->bin);
    if (access(demo->trainer, X_OK) == 0)
        return CTL_OK;
    snprintf(demo->trainer, sizeof demo->trainer, "%s/trainer", demo->bin);
    if (access(demo->trainer, X_OK) < 0)
        return ctl_fail(demo->command, CTL_FAILED,
                        "%s: %s; the demo needs it beside poisectl (run make) or in ../libexec/poise (make install)",
                        demo->trainer, strerror(errno));
    return CTL_OK;
}

/* --data, $POISE_DATA, or image_text.csv of the source tree or an installation. */
static int find_data(struct demo *demo, char path[PATH_MAX])
{
    static const char *const places[] = {"../share/poise", "../tests/data", "../../tests/data", "../../../tests/data"};
    const char *env = getenv("POISE_DATA");

    if (demo->opt.data)
        return CTL_OK;
    demo->opt.data = path;
    if (env && *env) {
        snprintf(path, PATH_MAX, "%s", env);
        return CTL_OK;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char tried[PATH_MAX + 64];
        snprintf(tried, sizeof tried, "%s/%s/image_text.csv", demo->bin, places[i]);
        if (access(tried, R_OK) == 0 && realpath(tried, path))
            return CTL_OK;
    }
    return ctl_fail(
        demo->command, CTL_FAILED,
        "image_text.csv is neither in ../tests/data nor in ../share/poise beside %s: give --data or set POISE_DATA",
        demo->bin);
}

static int check_options(struct demo *demo)
{
    const struct demo_options *opt = &demo->opt;
    char list[512] = "";

    demo->exact = !strcmp(opt->truth, "exact");
    if (!demo->exact && strcmp(opt->truth, "noisy"))
        return ctl_fail(demo->command, CTL_BAD_INPUT, "--truth %s: it must be noisy or exact", opt->truth);
    if (!opt->algorithm)
        return CTL_OK;
    for (uint32_t i = 0; poise_algorithm_name(i); i++) {
        if (!strcmp(poise_algorithm_name(i), opt->algorithm))
            return CTL_OK;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", poise_algorithm_name(i));
    }
    return ctl_fail(demo->command, CTL_BAD_INPUT, "--algorithm %s: there are %s", opt->algorithm, list);
}

/* One run on a board of its own. */
static int run_one(struct demo *demo, const struct demo_run *run, uint32_t first, struct demo_figures *ret_figures)
{
    struct poise_err err;
    struct board board;
    int fd, rc = board_new((uint32_t)demo->opt.ranks, run->n_steps, (uint32_t)demo->opt.per_rank, &board, &fd);

    if (rc < 0)
        return ctl_fail(demo->command, CTL_FAILED, "no memory for the samples' table: %s", strerror(-rc));
    board.head->seed = NOISE_SEED;
    board.head->noise_ppm = demo->exact ? 0 : NOISE_PPM;
    board.head->fixed_ns = demo->exact ? 0 : demo->mean_ns * FIXED_PART;
    board.head->variable_ns = demo->mean_ns - board.head->fixed_ns;
    rc = demo_data_deal(&demo->data, &board, &err);
    if (rc < 0)
        rc = ctl_fail(demo->command, CTL_FAILED, "%s", err.text);
    else
        rc = demo_run(demo, run, &board, fd);
    if (rc == CTL_OK)
        demo_figures(&board, first, ret_figures);
    board_fini(&board);
    close(fd);
    return rc;
}

static int check_run(const struct demo *demo, const struct demo_run *run, const struct demo_figures *figures)
{
    if (figures->lost || figures->doubled || figures->corrupt)
        return ctl_fail(demo->command, CTL_FAILED, "%s: %llu samples lost, %llu doubled, %llu corrupt", run->title,
                        (unsigned long long)figures->lost, (unsigned long long)figures->doubled,
                        (unsigned long long)figures->corrupt);
    if (figures->weight_error > WEIGHT_ERROR)
        return ctl_fail(demo->command, CTL_FAILED, "%s: the weights of a step do not add up to 1, but are off by %g",
                        run->title, figures->weight_error);
    return CTL_OK;
}

/* Twice the p99, but within the budget as long as that is twice the median: a pipeline that is disturbed now and then.
 */
static double compute_ns(const struct demo *demo, const struct demo_figures *figures)
{
    double budget_ns = BUDGET_NS / ((double)demo->opt.steps * N_RUNS * SLOWEST);

    budget_ns = fmax(budget_ns, (double)figures->pipeline_p50_ns * COMPUTE_FACTOR);
    return fmax(fmin((double)figures->pipeline_p99_ns * COMPUTE_FACTOR, budget_ns), COMPUTE_LEAST_NS);
}

static int calibrate(struct demo *demo)
{
    const struct demo_run run = {"calibration", demo->opt.algorithm, "on", 0, CALIBRATION_STEPS, "1"};
    struct demo_figures figures;
    int rc;

    if (demo->opt.compute_ms) {
        demo->mean_ns = (double)demo->opt.compute_ms * 1e6;
        return CTL_OK;
    }
    rc = run_one(demo, &run, CALIBRATION_FIRST, &figures);
    if (rc == CTL_OK)
        rc = check_run(demo, &run, &figures);
    if (rc != CTL_OK)
        return rc;
    demo->pipeline_p99_ns = figures.pipeline_p99_ns;
    demo->mean_ns = compute_ns(demo, &figures);
    fprintf(stderr, "the pipeline takes %.1f ms a step (p99): trainers compute %.1f ms in the mean\n",
            (double)demo->pipeline_p99_ns * 1e-6, demo->mean_ns * 1e-6);
    return CTL_OK;
}

static int run_all(struct demo *demo, const struct demo_run *runs, struct demo_figures *figures)
{
    int rc = demo_start(demo), status = CTL_OK;

    if (rc == CTL_OK)
        rc = calibrate(demo);
    for (uint32_t i = 0; rc == CTL_OK && i < N_RUNS; i++) {
        rc = run_one(demo, &runs[i], demo_first_timed(runs[i].n_steps), &figures[i]);
        if (rc == CTL_OK && check_run(demo, &runs[i], &figures[i]) != CTL_OK)
            status = CTL_FAILED; /* the table is printed all the same: it says where */
    }
    if (demo_stop(demo) != CTL_OK)
        status = CTL_FAILED;
    return rc == CTL_OK ? status : rc | 0x100; /* 0x100: there are no figures */
}

static int run_demo(struct demo *demo)
{
    const uint32_t n = (uint32_t)demo->opt.steps;
    const char *reference = demo->opt.per_rank % demo->opt.micro_batch == 0 ? REFERENCE_GLOBAL : REFERENCE_MBS;
    const struct demo_run runs[N_RUNS] = {
        {"unbalanced (off)", demo->opt.algorithm, "off", 1, n, "0"},
        {"shadow", demo->opt.algorithm, "shadow", 2, n, "0"},
        {"the reference's algorithm", reference, "on", 3, n, "0"},
        {demo->opt.algorithm ? demo->opt.algorithm : "poise's default", demo->opt.algorithm, "on", 4, n, "0"},
    };
    const uint64_t begin_ns = board_now_ns();
    struct demo_figures figures[N_RUNS];
    int status = run_all(demo, runs, figures);

    if (status & 0x100)
        return status & 0xff;
    if (demo->opt.json)
        demo_report_json(demo, runs, figures, N_RUNS);
    else
        demo_report_table(demo, runs, figures, N_RUNS, (double)(board_now_ns() - begin_ns) * 1e-9);
    return status;
}

int demo_command(const struct ctl_command *command, int argc, char **argv)
{
    struct demo demo = {.command = command,
                        .poised = PRIVATE_POISED_NONE,
                        .signals = {.fd = -1},
                        .terminal = isatty(STDERR_FILENO) == 1,
                        .opt = {.ranks = 8, .steps = 50, .per_rank = 8, .micro_batch = 2, .truth = "noisy"}};
    struct demo_options *opt = &demo.opt;
    const struct ctl_option options[] = {
        {"ranks", CTL_NUMBER, &opt->ranks, "N", "trainer processes", 1, 256},
        {"steps", CTL_NUMBER, &opt->steps, "N", "of each of the four runs", 1, 100000},
        {"per-rank", CTL_NUMBER, &opt->per_rank, "N", "samples that a rank loads a step", 1, 4096},
        {"micro-batch", CTL_NUMBER, &opt->micro_batch, "N", "samples of a micro-batch", 1, 4096},
        {"algorithm", CTL_STRING, &opt->algorithm, "NAME", "of shadow and the last run, in the default's place", 0, 0},
        {"data", CTL_STRING, &opt->data, "CSV", "sizes: columns width, height, and tokens; or POISE_DATA", 0, 0},
        {"truth", CTL_STRING, &opt->truth, "exact|noisy", "whether trainers take as long as the planner thinks", 0, 0},
        {"compute-ms", CTL_NUMBER, &opt->compute_ms, "MS", "mean compute a step; default: measured, 2 x the pipeline",
         1, 60000},
        {"json", CTL_FLAG, &opt->json, NULL, "print one JSON object", 0, 0},
    };
    char path[PATH_MAX];
    struct poise_err err;
    int status;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, NULL, 0, &status) != 0)
        return status;
    status = check_options(&demo);
    if (status == CTL_OK)
        status = find_binaries(&demo);
    if (status == CTL_OK)
        status = find_data(&demo, path);
    if (status != CTL_OK)
        return status;
    if (demo_data_read(opt->data, &demo.data, &err) < 0)
        return ctl_fail(command, CTL_BAD_INPUT, "%s", err.text);
    if (!demo.exact)
        demo_data_spoil(&demo.data);
    status = run_demo(&demo);
    demo_data_fini(&demo.data);
    if (demo.signals.caught)
        process_die_of(demo.signals.caught);
    return status;
}
