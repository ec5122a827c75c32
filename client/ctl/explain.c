/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl explain: why did this sample go there? Finds the step in a record, plans it again with the planner that this
 * poisectl is linked with, checks that the plan is the one that was delivered, and says in words what moved and why.
 */
#include "client/ctl/explain.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

static int read_number(const char *option, const char *text, uint64_t max, uint64_t *ret_value, struct poise_err *err)
{
    char *end;

    errno = 0;
    *ret_value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || *ret_value > max)
        return err_set(err, -EINVAL, "--%s %.40s: must be a whole number of at most %" PRIu64, option, text, max);
    return 0;
}

/* 1 and the block; or 0, with the steps that there are. */
static int find_step(struct recorded *rec, uint64_t step, struct record_block *ret_block, uint64_t ret_range[2])
{
    uint64_t n = 0;

    while (recorded_next(rec, ret_block)) {
        if (ret_block->step == step)
            return 1;
        if (n++ == 0)
            ret_range[0] = ret_block->step;
        ret_range[1] = ret_block->step;
    }
    if (n == 0)
        ret_range[0] = ret_range[1] = UINT64_MAX;
    return 0;
}

static int show_step(struct explain *e, const struct record_block *block, struct poise_err *err)
{
    int rc = recorded_step_make(e->rec, block, &e->step, err);

    if (rc == 0 && e->step.columns.n_samples)
        rc = explain_make(e, err);
    if (rc == 0 && e->json)
        rc = explain_print_json(e, err);
    else if (rc == 0)
        explain_print(e);
    return rc;
}

/* The exit status: 1 where a plan is another one than was recorded. */
static int one_step(struct recorded *rec, uint64_t step, uint32_t rank, bool json, bool *ret_same,
                    struct poise_err *err)
{
    struct explain explain = {.rec = rec, .rank = rank, .json = json};
    struct record_block block;
    uint64_t range[2];
    int rc;

    if (!find_step(rec, step, &block, range)) {
        if (range[0] == UINT64_MAX)
            return err_set(err, -ENOENT, "%.200s holds no step%s%s", rec->path, *rec->end ? ": " : "", rec->end);
        return err_set(err, -ENOENT, "%.200s has steps %" PRIu64 " to %" PRIu64 ", not %" PRIu64 "%s%s", rec->path,
                       range[0], range[1], step, *rec->end ? "; " : "", rec->end);
    }
    rc = show_step(&explain, &block, err);
    *ret_same = !explain.planned || explain.same;
    explain_free(&explain);
    return rc;
}

static json_t *line_json(const struct explain *e)
{
    const struct wire_outcome *o = e->step.outcome ? &e->step.outcome->outcome : NULL;
    json_t *line = json_pack("{s:I, s:s}", "step", (json_int_t)e->step.step, "outcome",
                             !o                              ? "unknown"
                             : o->kind == WIRE_OUTCOME_PLAN  ? "plan"
                             : o->kind == WIRE_OUTCOME_ERROR ? "error"
                                                             : "end");

    json_object_set_new(line, "metadata", json_boolean(e->step.metas != NULL));
    if (!e->planned)
        return line;
    json_object_set_new(line, "same", json_boolean(e->same));
    json_object_set_new(line, "mode", json_string(explain_mode(o->totals.mode)));
    json_object_set_new(line, "before", json_real(explain_ratio(e, (double)e->plan.quality.objective_before)));
    json_object_set_new(line, "after", json_real(explain_ratio(e, (double)e->plan.quality.objective_after)));
    json_object_set_new(line, "moved", json_integer(e->n_moved));
    return line;
}

/* A line a step. */
static int all_steps(struct recorded *rec, bool json, bool *ret_same, struct poise_err *err)
{
    const struct wire_join *join = &rec->group->join;
    json_t *list = json ? json_array() : NULL;
    struct record_block block;
    int rc = 0;

    *ret_same = true;
    if (!json)
        printf("%s: job %s, group %s, %u ranks\n%10s  %-8s %-24s %s\n", rec->path, join->job, join->group,
               join->n_ranks, "step", "mode", "step over the mean rank", "moved");
    while (rc == 0 && recorded_next(rec, &block)) {
        struct explain explain = {.rec = rec, .rank = POISE_NONE};

        rc = recorded_step_make(rec, &block, &explain.step, err);
        if (rc == 0 && explain.step.columns.n_samples)
            rc = explain_make(&explain, err);
        if (rc == 0 && json)
            json_array_append_new(list, line_json(&explain));
        else if (rc == 0)
            explain_print_line(&explain);
        *ret_same &= !explain.planned || explain.same;
        explain_free(&explain);
    }
    if (rc == 0 && json) {
        json_t *out = json_pack("{s:s, s:s, s:i, s:s, s:o}", "job", join->job, "group", join->group, "ranks",
                                (int)join->n_ranks, "incomplete", rec->end, "steps", list);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(out);
    } else {
        json_decref(list);
    }
    if (rc == 0 && !json && *rec->end)
        printf("%s\n", rec->end);
    return rc;
}

int explain_command(const struct ctl_command *command, int argc, char **argv)
{
    const char *step_text = NULL, *rank_text = NULL, *words[1];
    bool json = false, same = true;
    const struct ctl_option options[] = {
        {"step", CTL_STRING, &step_text, "S", "this step; else a line for each", 0, 0},
        {"rank", CTL_STRING, &rank_text, "R", "each sample that comes from or goes to this rank", 0, 0},
        {"json", CTL_FLAG, &json, NULL, "one JSON object", 0, 0},
    };
    struct poise_err err = {0};
    struct recorded rec = {0};
    uint64_t step = 0, rank = POISE_NONE;
    int status, rc = 0;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, words, 1, &status) != 0)
        return status;
    if (rank_text && !step_text)
        return ctl_fail(command, CTL_BAD_INPUT, "--rank needs --step");
    if (step_text)
        rc = read_number("step", step_text, UINT64_MAX - 1, &step, &err);
    if (rc == 0 && rank_text)
        rc = read_number("rank", rank_text, WIRE_MAX_RANKS, &rank, &err);
    if (rc == 0)
        rc = recorded_open(words[0], &rec, &err);
    if (rc == 0 && rank_text && rank >= rec.group->join.n_ranks)
        rc = err_set(&err, -EINVAL, "--rank %" PRIu64 ": the record has ranks 0 to %u", rank,
                     rec.group->join.n_ranks - 1);
    if (rc == 0)
        rc = step_text ? one_step(&rec, step, (uint32_t)rank, json, &same, &err) : all_steps(&rec, json, &same, &err);
    recorded_close(&rec);
    if (rc < 0)
        return ctl_fail(command, rc == -ENOMEM ? CTL_FAILED : CTL_BAD_INPUT, "%s", err.text);
    return same ? CTL_OK : CTL_FAILED;
}
