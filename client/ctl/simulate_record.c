/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl simulate on a record: each recorded step is a batch, with its own ranks, counts, micro-batches, caps and
 * cost, and is planned with every algorithm that is asked for. Nothing is drawn at random: it is what would have been.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/recorded.h"
#include "client/ctl/simulate_options.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

struct totals { /* of one algorithm; means are over the steps that it planned */
    const char *name;
    uint32_t n;
    char error[200]; /* of the first step that it could not plan */
    double before, after, worst, gap, moved, floor;
};

static double ratio(double a, double b, double otherwise)
{
    return b > 0 ? a / b : otherwise;
}

static void add_step(struct totals *t, const struct poise_quality *q)
{
    double after = ratio((double)q->objective_after, (double)q->rank_mean, 1);

    t->n++;
    t->before += ratio((double)q->objective_before, (double)q->rank_mean, 1);
    t->after += after;
    t->worst = after > t->worst ? after : t->worst;
    t->gap += ratio((double)q->objective_after, (double)q->objective_bound, 1) - 1;
    t->moved += ratio((double)q->bytes_moved, (double)q->bytes_total, 0);
    t->floor += ratio((double)q->bytes_floor, (double)q->bytes_total, 0);
}

static int plan_all(const struct recorded_step *step, struct totals *all, uint32_t n, struct poise_err *err)
{
    struct poise_plan_request req = step->columns.req;
    struct poise_plan plan;
    int rc = recorded_plan_new(step, &plan, err);

    if (rc < 0)
        return rc;
    for (uint32_t a = 0; rc == 0 && a < n; a++) {
        struct poise_err why;

        req.algorithm = all[a].name;
        rc = plan_make(&req, &plan, &why);
        if (rc == 0)
            add_step(&all[a], &plan.quality);
        else if (rc == -ENOMEM)
            *err = why;
        else if (!all[a].error[0])
            snprintf(all[a].error, sizeof all[a].error, "step %llu: %.150s", (unsigned long long)step->step, why.text);
        rc = rc == -ENOMEM ? rc : 0;
    }
    recorded_plan_free(&plan);
    return rc;
}

static int run(struct recorded *rec, struct totals *all, uint32_t n, uint32_t *ret_n_steps, struct poise_err *err)
{
    struct record_block block;
    int rc = 0;

    *ret_n_steps = 0;
    while (rc == 0 && recorded_next(rec, &block)) {
        struct recorded_step step;

        rc = recorded_step_make(rec, &block, &step, err);
        if (rc < 0)
            break;
        if (step.columns.n_total) {
            rc = plan_all(&step, all, n, err);
            ++*ret_n_steps;
        }
        recorded_step_free(&step);
    }
    if (rc == 0 && *ret_n_steps == 0)
        rc = err_set(err, -ENODATA, "%.200s has no step with samples%s%s", rec->path, *rec->end ? ": " : "", rec->end);
    return rc;
}

static void print(const struct recorded *rec, const struct totals *all, uint32_t n, uint32_t n_steps)
{
    const struct wire_join *join = &rec->group->join;

    printf("%s: %u recorded steps of job %s, group %s, %u ranks; predicted step over the mean rank's cost:\n\n",
           rec->path, n_steps, join->job, join->group, join->n_ranks);
    printf("%-42s %8s %8s %8s %8s %8s %8s\n", "algorithm", "before", "after", "worst", "gap %", "moved %", "floor %");
    for (uint32_t a = 0; a < n; a++) {
        const struct totals *t = &all[a];

        if (t->n)
            printf("%-42s %8.3f %8.3f %8.3f %8.2f %8.1f %8.1f\n", t->name, t->before / t->n, t->after / t->n, t->worst,
                   100 * t->gap / t->n, 100 * t->moved / t->n, 100 * t->floor / t->n);
        if (t->error[0])
            printf("%-42s %s%s\n", t->n ? "" : t->name, t->n ? "not all steps: " : "not for this: ", t->error);
    }
    if (*rec->end)
        printf("\n%s\n", rec->end);
}

static void print_json(const struct recorded *rec, const struct totals *all, uint32_t n, uint32_t n_steps)
{
    const struct wire_join *join = &rec->group->join;
    json_t *list = json_array();
    json_t *out = json_pack("{s:s, s:s, s:I, s:I, s:s}", "job", join->job, "group", join->group, "ranks",
                            (json_int_t)join->n_ranks, "steps", (json_int_t)n_steps, "incomplete", rec->end);

    for (uint32_t a = 0; a < n; a++) {
        const struct totals *t = &all[a];
        double d = t->n ? t->n : 1;

        json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "algorithm", t->name,
                                              "steps", (json_int_t)t->n, "imbalance_before", t->before / d,
                                              "imbalance_after", t->after / d, "imbalance_worst", t->worst, "gap",
                                              t->gap / d, "bytes_moved_fraction", t->moved / d, "bytes_floor_fraction",
                                              t->floor / d, "error", t->error));
    }
    json_object_set_new(out, "algorithms", list);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
}

int simulate_record(const struct ctl_command *command, const char *path, const char *algorithms, bool json)
{
    struct totals all[SIMULATE_ALGORITHMS] = {{0}};
    const char *names[SIMULATE_ALGORITHMS];
    struct recorded rec = {0};
    struct poise_err err = {0};
    char copy[1024];
    uint32_t n = 0, n_steps = 0;
    int rc = simulate_options_algorithms(algorithms, copy, sizeof copy, names, &n, &err);

    for (uint32_t a = 0; a < n; a++)
        all[a].name = names[a];
    if (rc == 0)
        rc = recorded_open(path, &rec, &err);
    if (rc == 0)
        rc = run(&rec, all, n, &n_steps, &err);
    if (rc == 0 && json)
        print_json(&rec, all, n, n_steps);
    else if (rc == 0)
        print(&rec, all, n, n_steps);
    recorded_close(&rec);
    return rc < 0 ? ctl_fail(command, rc == -ENOMEM ? CTL_FAILED : CTL_BAD_INPUT, "%s", err.text) : CTL_OK;
}
