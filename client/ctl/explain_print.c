/* SPDX-License-Identifier: Apache-2.0 */
/* A step in words, and as JSON. 512 samples stay readable: they are grouped by way and reason, the costliest first. */
#include "client/ctl/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

#define FLOWS_SHOWN 16u
#define INDICES_SHOWN 6u

static const char *reason_words(uint32_t reason)
{
    const char *text = poise_reason_text(reason);
    const char *colon = text ? strstr(text, ": ") : NULL;

    return colon ? colon + 2 : text ? text : "unknown";
}

static void hex(const unsigned char id[16], char text[WIRE_ID_TEXT])
{
    for (int i = 0; i < 16; i++)
        snprintf(text + (size_t)i * 2, 3, "%02x", id[i]);
}

static void recorded_hex(struct wire_id id, char text[WIRE_ID_TEXT])
{
    unsigned char bytes[16];

    memcpy(bytes, &id.hi, 8);
    memcpy(bytes + 8, &id.lo, 8);
    hex(bytes, text);
}

static const char *bytes_text(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1000 && unit < 4) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static const char *version_words(const struct explain *e, char text[160])
{
    uint32_t recorded = e->rec->group->join.planner_version;

    if (recorded == PLANNER_VERSION)
        snprintf(text, 160, "the planner is of the same version (%u): this is a bug, or the record was changed",
                 recorded);
    else
        snprintf(text, 160,
                 "it was made by version %u of the planner, this is version %u: explain it with a poisectl of then",
                 recorded, PLANNER_VERSION);
    return text;
}

static void print_check(const struct explain *e)
{
    char id[WIRE_ID_TEXT], now[WIRE_ID_TEXT], why[160];

    recorded_hex(e->step.outcome->outcome.plan_id, id);
    hex(e->id, now);
    if (e->same)
        printf("Planned again from the recorded metadata: the same plan, %s.\n", id);
    else
        printf("Planned again it is ANOTHER plan (%s, delivered was %s): %s.\n", now, id, version_words(e, why));
}

static void print_quality(const struct explain *e)
{
    const struct poise_quality *q = &e->plan.quality;
    const char *algorithm = e->rec->options.algorithm;
    uint32_t mode = e->step.outcome->outcome.totals.mode;
    char moved[32], total[32], floor[32];

    if (mode != POISE_MODE_ON)
        printf("Mode %s: samples stayed where they came from. What %s would have done:\n", explain_mode(mode),
               *algorithm ? algorithm : poise_algorithm_name(0));
    printf(
        "Predicted step over the mean rank's cost: %.3fx in arrival order, %.3fx balanced; no plan can be below %.3fx\n"
        "(gap %.2f %%; asked for: %.4g %%). Fullest rank: %.3fx before, %.3fx after.\n",
        explain_ratio(e, (double)q->objective_before), explain_ratio(e, (double)q->objective_after),
        explain_ratio(e, (double)q->objective_bound),
        q->objective_bound ? 100 * ((double)q->objective_after / (double)q->objective_bound - 1) : 0,
        e->rec->options.tolerance_ppm / 1e4, explain_ratio(e, (double)q->rank_max_before),
        explain_ratio(e, (double)q->rank_max_after));
    printf("Moved: %u of %u samples, %s of %s (at least %s must, were samples divisible).\n", e->n_moved,
           e->step.columns.n_total, bytes_text(q->bytes_moved, moved), bytes_text(q->bytes_total, total),
           bytes_text(q->bytes_floor, floor));
}

static void print_reasons(const struct explain *e)
{
    printf("Why:\n");
    for (uint32_t r = 0; r < POISE_N_REASONS; r++)
        if (e->n_reason[r])
            printf("  %6u %s\n", e->n_reason[r], poise_reason_text(r));
}

static void print_indices(const struct explain *e, const struct explain_flow *flow)
{
    for (uint32_t i = 0; i < flow->n && i < INDICES_SHOWN; i++)
        printf("%s%u", i ? ", " : "", e->moved[flow->first + i] - e->step.columns.first[flow->from]);
    printf(flow->n > INDICES_SHOWN ? ", ..." : "");
}

static void print_flows(const struct explain *e)
{
    uint32_t shown = e->n_flows < FLOWS_SHOWN ? e->n_flows : FLOWS_SHOWN, rest = 0;
    char bytes[32];

    if (shown)
        printf("From where to where, the most cost first:\n");
    for (uint32_t f = 0; f < shown; f++) {
        const struct explain_flow *flow = &e->flows[f];

        printf("  rank %u -> rank %u: %u sample%s (", flow->from, flow->to, flow->n, flow->n > 1 ? "s" : "");
        print_indices(e, flow);
        printf("), %.3fx the mean, %s: %s\n", explain_ratio(e, flow->cost), bytes_text(flow->bytes, bytes),
               reason_words(flow->reason));
    }
    for (uint32_t f = shown; f < e->n_flows; f++)
        rest += e->flows[f].n;
    if (rest)
        printf("  and %u samples more on %u other ways; --rank R shows those of a rank\n", rest, e->n_flows - shown);
}

static void print_rank(const struct explain *e)
{
    const struct columns *c = &e->step.columns;
    char bytes[32];

    printf("Rank %u, sample by sample:\n", e->rank);
    for (uint32_t i = 0; i < c->n_total; i++) {
        uint32_t from = recorded_origin(&e->step, i), to = e->plan.rank[i];

        if (from != e->rank && to != e->rank)
            continue;
        printf("  sample %u of rank %u", i - c->first[from], from);
        if (e->step.by_rank[from]->tag)
            printf(" (tag %" PRIu64 ")", e->step.by_rank[from]->tag[i - c->first[from]]);
        printf(", %.4fx the mean, %s", explain_ratio(e, recorded_cost(&e->step, i)), bytes_text(c->bytes[i], bytes));
        if (from != to)
            printf(", to rank %u", to);
        printf(", micro-batch %u, row %u: %s\n", e->plan.micro_batch[i], e->plan.row[i],
               poise_reason_text(e->plan.reason[i]) ? poise_reason_text(e->plan.reason[i]) : "unknown");
    }
}

static void print_limits(const struct explain *e)
{
    const struct poise_quality *q = &e->plan.quality;

    if (e->n_limits == 0)
        printf("What limited it: %s.\n",
               (double)q->objective_after <=
                       (double)q->objective_bound * (1 + e->rec->options.tolerance_ppm / 1e6 + 1e-9)
                   ? "nothing; it is as good as was asked for"
                   : "the sizes of the samples themselves, as far as the planner found");
    else
        printf("What limited it:\n");
    for (uint32_t i = 0; i < e->n_limits; i++)
        printf("  %s\n", e->limits[i]);
}

static void print_unplanned(const struct explain *e)
{
    const struct wire_outcome *o = e->step.outcome ? &e->step.outcome->outcome : NULL;
    char id[WIRE_ID_TEXT];

    if (!o)
        printf("Neither its metadata nor its outcome could be recorded.\n");
    else if (o->kind == WIRE_OUTCOME_ERROR)
        printf("It was an error on all ranks: %s\n", o->error.text);
    else if (o->kind == WIRE_OUTCOME_END)
        printf("The data ended here.\n");
    else {
        recorded_hex(o->plan_id, id);
        printf("Its metadata was not recorded (it never came, or the disk was too slow). The plan was %s:\n"
               "%.3fx the mean rank's cost in arrival order, %.3fx as delivered, %" PRIu64 " of %" PRIu64
               " samples moved.\n",
               id, o->totals.cost_mean ? (double)o->totals.cost_before / (double)o->totals.cost_mean : 1,
               o->totals.cost_mean ? (double)o->totals.cost_after / (double)o->totals.cost_mean : 1,
               o->totals.samples_moved, o->totals.n_samples);
    }
}

void explain_print(const struct explain *e)
{
    const struct wire_join *join = &e->rec->group->join;

    printf("Step %" PRIu64 " of job %s, group %s: %u ranks", e->step.step, join->job, join->group, join->n_ranks);
    if (e->planned)
        printf(", %u samples in %u micro-batches a rank", e->step.columns.n_total, e->plan.n_micro_batches);
    printf("\n");
    if (!e->planned) {
        print_unplanned(e);
        return;
    }
    print_check(e);
    print_quality(e);
    print_reasons(e);
    if (e->rank == POISE_NONE)
        print_flows(e);
    else
        print_rank(e);
    print_limits(e);
}

void explain_print_line(const struct explain *e)
{
    const struct wire_outcome *o = e->step.outcome ? &e->step.outcome->outcome : NULL;

    printf("%10" PRIu64 "  ", e->step.step);
    if (e->planned)
        printf("%-8s %.3fx -> %.3fx         %u of %u samples%s\n", explain_mode(o->totals.mode),
               explain_ratio(e, (double)e->plan.quality.objective_before),
               explain_ratio(e, (double)e->plan.quality.objective_after), e->n_moved, e->step.columns.n_total,
               e->same ? "" : "; ANOTHER plan than was delivered");
    else if (!o)
        printf("not recorded\n");
    else if (o->kind == WIRE_OUTCOME_ERROR)
        printf("error: %.200s\n", o->error.text);
    else
        printf("%s\n", o->kind == WIRE_OUTCOME_END ? "end of the data" : "metadata not recorded");
}

/* -----------------------------------------------------------------------------------------------------------------
 * JSON */

static json_t *flows_json(const struct explain *e)
{
    json_t *list = json_array();

    for (uint32_t f = 0; f < e->n_flows; f++) {
        const struct explain_flow *flow = &e->flows[f];

        if (e->rank == POISE_NONE || flow->from == e->rank || flow->to == e->rank)
            json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:I, s:f, s:s}", "from", (json_int_t)flow->from,
                                                  "to", (json_int_t)flow->to, "samples", (json_int_t)flow->n, "bytes",
                                                  (json_int_t)flow->bytes, "cost_over_mean",
                                                  explain_ratio(e, flow->cost), "reason", reason_words(flow->reason)));
    }
    return list;
}

static json_t *samples_json(const struct explain *e)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < e->step.columns.n_total; i++) {
        uint32_t from = recorded_origin(&e->step, i);
        const char *reason = poise_reason_text(e->plan.reason[i]);

        if (from != e->rank && e->plan.rank[i] != e->rank)
            continue;
        json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:s}", "origin_rank", (json_int_t)from,
                                              "origin_index", (json_int_t)(i - e->step.columns.first[from]), "rank",
                                              (json_int_t)e->plan.rank[i], "micro_batch",
                                              (json_int_t)e->plan.micro_batch[i], "row", (json_int_t)e->plan.row[i],
                                              "cost_over_mean", explain_ratio(e, recorded_cost(&e->step, i)), "reason",
                                              reason ? reason : "unknown"));
    }
    return list;
}

static void add_plan(const struct explain *e, json_t *out)
{
    const struct poise_quality *q = &e->plan.quality;
    json_t *reasons = json_object(), *limits = json_array();
    char id[WIRE_ID_TEXT];

    hex(e->id, id);
    json_object_set_new(out, "planned_again", json_string(id));
    json_object_set_new(out, "same", json_boolean(e->same));
    json_object_set_new(out, "imbalance",
                        json_pack("{s:f, s:f, s:f}", "before", explain_ratio(e, (double)q->objective_before), "after",
                                  explain_ratio(e, (double)q->objective_after), "bound",
                                  explain_ratio(e, (double)q->objective_bound)));
    json_object_set_new(out, "samples", json_integer(e->step.columns.n_total));
    json_object_set_new(out, "samples_moved", json_integer(e->n_moved));
    json_object_set_new(out, "bytes", json_integer((json_int_t)q->bytes_total));
    json_object_set_new(out, "bytes_moved", json_integer((json_int_t)q->bytes_moved));
    json_object_set_new(out, "bytes_floor", json_integer((json_int_t)q->bytes_floor));
    for (uint32_t r = 0; r < POISE_N_REASONS; r++)
        if (e->n_reason[r])
            json_object_set_new(reasons, poise_reason_text(r), json_integer(e->n_reason[r]));
    json_object_set_new(out, "reasons", reasons);
    json_object_set_new(out, "flows", flows_json(e));
    if (e->rank != POISE_NONE)
        json_object_set_new(out, "rank_samples", samples_json(e));
    for (uint32_t i = 0; i < e->n_limits; i++)
        json_array_append_new(limits, json_string(e->limits[i]));
    json_object_set_new(out, "limits", limits);
}

int explain_print_json(const struct explain *e, struct poise_err *err)
{
    static const char *const kinds[] = {"plan", "error", "end"};
    const struct wire_join *join = &e->rec->group->join;
    const struct wire_outcome *o = e->step.outcome ? &e->step.outcome->outcome : NULL;
    json_t *out = json_pack("{s:s, s:s, s:I, s:I, s:s, s:b}", "job", join->job, "group", join->group, "ranks",
                            (json_int_t)join->n_ranks, "step", (json_int_t)e->step.step, "outcome",
                            o ? kinds[o->kind] : "unknown", "metadata", e->step.metas != NULL);
    char id[WIRE_ID_TEXT];

    if (!out)
        return err_set(err, -ENOMEM, "no memory for the answer");
    json_object_set_new(
        out, "planner_version",
        json_pack("{s:I, s:I}", "recorded", (json_int_t)join->planner_version, "here", (json_int_t)PLANNER_VERSION));
    if (o) {
        recorded_hex(o->plan_id, id);
        json_object_set_new(out, "mode", json_string(explain_mode(o->totals.mode)));
        json_object_set_new(out, "plan_id", json_string(id));
    }
    if (o && o->kind == WIRE_OUTCOME_ERROR)
        json_object_set_new(out, "error", json_string(o->error.text));
    if (e->planned)
        add_plan(e, out);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
    return 0;
}
