/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded step, planned again. What limited the plan is found by asking the planner for the same step without one
 * rule at a time: the rule whose absence makes a better plan is what limited it.
 */
#include "client/ctl/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

#define WORTH 0.005 /* of the objective: a rule that costs less than half a percent limits nothing worth a line */

const char *explain_mode(uint32_t mode)
{
    static const char *const names[] = {"on", "shadow", "off"};

    return mode < 3 ? names[mode] : "?";
}

double explain_ratio(const struct explain *explain, double cost)
{
    double mean = (double)explain->plan.quality.rank_mean;

    return mean > 0 ? cost / mean : 1;
}

/* ----------------------------------------------------------------------------------------------------------------
 * flows */

static const struct explain *sorted; /* qsort has no argument of its own; this program has one thread */

static int by_flow(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    uint32_t x[4] = {recorded_origin(&sorted->step, i), sorted->plan.rank[i], sorted->plan.reason[i], i};
    uint32_t y[4] = {recorded_origin(&sorted->step, k), sorted->plan.rank[k], sorted->plan.reason[k], k};

    for (int n = 0; n < 4; n++)
        if (x[n] != y[n])
            return x[n] < y[n] ? -1 : 1;
    return 0;
}

static int by_cost(const void *a, const void *b)
{
    const struct explain_flow *x = a, *y = b;

    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int make_flows(struct explain *e, struct poise_err *err)
{
    uint32_t n = e->step.columns.n_total;

    e->moved = calloc((size_t)n + 1, sizeof *e->moved);
    e->flows = calloc((size_t)n + 1, sizeof *e->flows);
    if (!e->moved || !e->flows)
        return err_set(err, -ENOMEM, "no memory for %u samples", n);
    for (uint32_t i = 0; i < n; i++) {
        e->n_reason[e->plan.reason[i] < POISE_N_REASONS ? e->plan.reason[i] : 0]++;
        if (e->plan.rank[i] != recorded_origin(&e->step, i))
            e->moved[e->n_moved++] = i;
    }
    sorted = e;
    qsort(e->moved, e->n_moved, sizeof *e->moved, by_flow);
    for (uint32_t m = 0; m < e->n_moved; m++) {
        uint32_t i = e->moved[m], from = recorded_origin(&e->step, i);
        struct explain_flow *flow = e->n_flows ? &e->flows[e->n_flows - 1] : NULL;

        if (!flow || flow->from != from || flow->to != e->plan.rank[i] || flow->reason != e->plan.reason[i]) {
            flow = &e->flows[e->n_flows++];
            *flow = (struct explain_flow){.from = from, .to = e->plan.rank[i], .reason = e->plan.reason[i], .first = m};
        }
        flow->n++;
        flow->bytes += e->step.columns.bytes[i];
        flow->cost += recorded_cost(&e->step, i);
    }
    qsort(e->flows, e->n_flows, sizeof *e->flows, by_cost);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------
 * limits */

static void add_limit(struct explain *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_limit(struct explain *e, const char *format, ...)
{
    va_list args;

    if (e->n_limits == EXPLAIN_LIMITS)
        return;
    va_start(args, format);
    vsnprintf(e->limits[e->n_limits++], sizeof e->limits[0], format, args);
    va_end(args);
}

/* The objective of the same step under another request; 0: it cannot be planned. */
static double objective_of(const struct explain *e, const struct poise_plan_request *req)
{
    struct poise_plan plan;
    double objective = 0;

    if (recorded_plan_new(&e->step, &plan, NULL) < 0)
        return 0;
    if (plan_make(req, &plan, NULL) == 0)
        objective = (double)plan.quality.objective_after;
    recorded_plan_free(&plan);
    return objective;
}

static void try_without(struct explain *e, const struct poise_plan_request *req, const char *what)
{
    double now = (double)e->plan.quality.objective_after, without = objective_of(e, req);

    if (without > 0 && without < now * (1 - WORTH))
        add_limit(e, "%s: without, the step would be %.3fx the mean, not %.3fx", what, explain_ratio(e, without),
                  explain_ratio(e, now));
}

static void find_giant(struct explain *e)
{
    uint32_t n = e->step.columns.n_total, largest = 0;
    double cost = 0;

    for (uint32_t i = 0; i < n; i++) {
        double this = recorded_cost(&e->step, i);

        if (this > cost) {
            cost = this;
            largest = i;
        }
    }
    if (n && explain_ratio(e, cost) > 1) {
        uint32_t rank = recorded_origin(&e->step, largest);

        add_limit(
            e, "one giant sample: sample %u of rank %u alone costs %.2fx the mean rank, so no plan can be below that",
            largest - e->step.columns.first[rank], rank, explain_ratio(e, cost));
    }
}

static void find_limits(struct explain *e)
{
    static const uint64_t no_caps[POISE_MAX_PHASES] = {POISE_NO_CAP, POISE_NO_CAP, POISE_NO_CAP, POISE_NO_CAP,
                                                       POISE_NO_CAP, POISE_NO_CAP, POISE_NO_CAP, POISE_NO_CAP};
    const struct poise_quality *q = &e->plan.quality;
    struct poise_plan_request req = e->step.columns.req;

    find_giant(e);
    if (q->oversize)
        add_limit(e, "%" PRIu64 " samples alone are above a cap: each has a micro-batch of its own", q->oversize);
    if ((double)q->objective_after <= (double)q->objective_bound * (1 + req.tolerance_ppm / 1e6 + 1e-9))
        return; /* as good as was asked for */
    if (req.count != POISE_COUNT_FREE) {
        req.count = POISE_COUNT_FREE;
        try_without(e, &req,
                    e->step.columns.req.count == POISE_COUNT_EQUAL
                        ? "count equal: every rank keeps its number of samples"
                        : "count bounded: numbers of samples differ by at most one");
        req.count = e->step.columns.req.count;
    }
    req.cap_bytes_rank = POISE_NO_CAP;
    req.cap_length_rank = req.cap_length_micro_batch = no_caps;
    req.cap_samples_rank = req.cap_samples_micro_batch = 0;
    try_without(e, &req,
                "caps: no micro-batch longer and no rank with more bytes than in arrival order, or as the options say");
    req = e->step.columns.req;
    if (req.unit) {
        req.unit = NULL;
        try_without(e, &req, "units: samples that stay together");
    }
}

/* -----------------------------------------------------------------------------------------------------------------
 * plan */

int explain_make(struct explain *e, struct poise_err *err)
{
    const struct poise_plan_request *req = &e->step.columns.req;
    const struct wire_outcome *outcome = &e->step.outcome->outcome;
    struct poise_plan arrival = {0};
    struct wire_id id;
    int rc = recorded_plan_new(&e->step, &e->plan, err);

    if (rc == 0)
        rc = plan_make(req, &e->plan, err);
    if (rc < 0)
        return rc;
    memcpy(e->id, e->plan.plan_id, sizeof e->id);
    if (outcome->totals.mode != POISE_MODE_ON) {
        rc = recorded_plan_new(&e->step, &arrival, err);
        if (rc == 0)
            rc = plan_arrival(req, &arrival, err);
        memcpy(e->id, arrival.plan_id, sizeof e->id);
        recorded_plan_free(&arrival);
    }
    if (rc == 0)
        rc = make_flows(e, err);
    if (rc < 0)
        return rc;
    memcpy(&id.hi, e->id, 8); /* as outcome.c puts it */
    memcpy(&id.lo, e->id + 8, 8);
    e->same = wire_id_is(id, outcome->plan_id);
    find_limits(e);
    e->planned = true;
    return 0;
}

void explain_free(struct explain *e)
{
    recorded_plan_free(&e->plan);
    recorded_step_free(&e->step);
    free(e->moved);
    free(e->flows);
    e->moved = NULL;
    e->flows = NULL;
}
