/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's answer: a table for people, one object for scripts. Predicted is called predicted, measured measured. */
#include "client/ctl/demo.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/algorithm.h" /* the default's name */

const char *demo_algorithm_name(const struct demo_run *run)
{
    if (!strcmp(run->mode, "off"))
        return "identity"; /* nothing is planned, every sample stays */
    return run->algorithm ? run->algorithm : algorithm_find(NULL, NULL)->name;
}

static void sum_samples(const struct demo_figures *figures, uint32_t n_runs, struct demo_figures *ret_sum)
{
    *ret_sum = (struct demo_figures){0};
    for (uint32_t i = 0; i < n_runs; i++) {
        ret_sum->samples_in += figures[i].samples_in;
        ret_sum->samples_out += figures[i].samples_out;
        ret_sum->lost += figures[i].lost;
        ret_sum->doubled += figures[i].doubled;
        ret_sum->corrupt += figures[i].corrupt;
    }
}

static void print_run(const struct demo_run *run, const struct demo_figures *figures, const struct demo_figures *off)
{
    printf("%-28s %6.3f %11.3f", run->title, figures->step_imbalance, figures->microbatch_imbalance);
    if (figures == off)
        printf(" %11s", "-");
    else
        printf(" %11.1f", off->step_ms / figures->predicted_speedup);
    printf(" %9.1f %11.2f %9.2f", figures->step_ms, figures->predicted_speedup, off->step_ms / figures->step_ms);
    printf(" %7.1f %% %10llu %10llu %8.0f %8.0f\n", figures->bytes_moved_fraction * 100,
           (unsigned long long)figures->tokens_micro_batch, (unsigned long long)figures->without_image,
           figures->wait_p50_us, figures->wait_p99_us);
}

static void print_set_up(const struct demo *demo, double seconds)
{
    const struct demo_data *data = &demo->data;

    printf("\n%llu ranks x %llu samples x %llu steps, micro-batch %llu, cost " PAYLOAD_COST ", %.0f s in all\n",
           (unsigned long long)demo->opt.ranks, (unsigned long long)demo->opt.per_rank,
           (unsigned long long)demo->opt.steps, (unsigned long long)demo->opt.micro_batch, seconds);
    printf(
        "%s: %u rows used, left out: %u with a side under 28 pixels, %u with a ratio above 200, %u without numbers\n",
        demo->opt.data, data->n_rows, data->n_small, data->n_thin, data->n_bad);
    if (demo->pipeline_p99_ns)
        printf("compute: %.1f ms a rank and step in the mean, %.1f x the pipeline's measured p99 of %.1f ms%s\n",
               demo->mean_ns * 1e-6, demo->mean_ns / (double)demo->pipeline_p99_ns,
               (double)demo->pipeline_p99_ns * 1e-6,
               demo->mean_ns < 1.99 * (double)demo->pipeline_p99_ns ? ": this machine is busy, waits may show" : "");
    else
        printf("compute: %.1f ms a rank and step in the mean, as asked for\n", demo->mean_ns * 1e-6);
    printf("truth: %s\n\n", demo->exact
                                ? "exactly the planner's cost"
                                : "the planner's coefficients are off by up to 20 %, 5 % noise a rank and step, a "
                                  "fixed part of 25 % of the mean step");
}

void demo_report_table(const struct demo *demo, const struct demo_run *runs, const struct demo_figures *figures,
                       uint32_t n_runs, double seconds)
{
    struct demo_figures sum;

    print_set_up(demo, seconds);
    printf("%-28s %18s %21s %21s %9s %21s %17s\n", "", "largest/mean cost", "step time, ms", "speed-up", "bytes",
           "micro-batch", "wait in next, us");
    printf("%-28s %6s %11s %11s %9s %11s %9s %9s %10s %10s %8s %8s\n", "", "step", "micro-batch", "predicted",
           "measured", "predicted", "measured", "moved", "tokens", "no image", "p50", "p99");
    for (uint32_t i = 0; i < n_runs; i++)
        print_run(&runs[i], &figures[i], &figures[0]);
    printf("%-28s %6.3f %11.3f %11.1f %9s %11.2f\n\n", "perfectly balanced", 1.0, 1.0, figures[0].ideal_ms, "-",
           figures[0].step_ms / figures[0].ideal_ms);
    printf("Cost is the planner's, of the samples that arrived, the mean of all steps; by micro-batch, all ranks meet\n"
           "at each. Tokens: of the largest micro-batch. No image: micro-batches without one. Times and waits begin\n"
           "with step %u: the first ones fill the pipeline and touch new memory. Wait: all of a step's poise_next.\n"
           "Shadow predicts what on would do, and moves nothing.\n\n",
           demo_first_timed((uint32_t)demo->opt.steps));
    sum_samples(figures, n_runs, &sum);
    printf("samples: %llu in, %llu out, %llu lost, %llu doubled, %llu corrupt; every byte was verified\n",
           (unsigned long long)sum.samples_in, (unsigned long long)sum.samples_out, (unsigned long long)sum.lost,
           (unsigned long long)sum.doubled, (unsigned long long)sum.corrupt);
}

static double rounded(double value, double unit)
{
    return round(value / unit) * unit;
}

static json_t *run_json(const struct demo_run *run, const struct demo_figures *figures, const struct demo_figures *off)
{
    return json_pack(
        "{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f}}", "algorithm", demo_algorithm_name(run), "mode",
        run->mode, "step_imbalance", rounded(figures->step_imbalance, 1e-6), "microbatch_imbalance",
        rounded(figures->microbatch_imbalance, 1e-6), "step_time_ms", rounded(figures->step_ms, 1e-3),
        "ideal_step_time_ms", rounded(figures->ideal_ms, 1e-3), "speedup",
        rounded(off->step_ms / figures->step_ms, 1e-6), "predicted_speedup", rounded(figures->predicted_speedup, 1e-6),
        "bytes_moved_fraction", rounded(figures->bytes_moved_fraction, 1e-6), "exposed_wait_us", "p50",
        rounded(figures->wait_p50_us, 0.1), "p99", rounded(figures->wait_p99_us, 0.1));
}

void demo_report_json(const struct demo *demo, const struct demo_run *runs, const struct demo_figures *figures,
                      uint32_t n_runs)
{
    struct demo_figures sum;
    json_t *list = json_array(), *out;

    sum_samples(figures, n_runs, &sum);
    for (uint32_t i = 0; i < n_runs; i++)
        json_array_append_new(list, run_json(&runs[i], &figures[i], &figures[0]));
    out = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "ranks", (json_int_t)demo->opt.ranks, "steps",
                    (json_int_t)demo->opt.steps, "samples_in", (json_int_t)sum.samples_in, "samples_out",
                    (json_int_t)sum.samples_out, "lost", (json_int_t)sum.lost, "doubled", (json_int_t)sum.doubled,
                    "corrupt", (json_int_t)sum.corrupt, "runs", list);
    json_dumpf(out, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(out);
}
