/* SPDX-License-Identifier: Apache-2.0 */
/* poise_plan() across the ABI: structs of other sizes, arrays of larger elements, and that it is the planner behind it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/planner/planner.h"

static const uint32_t n_samples[2] = {2, 2};
static const uint64_t length[4] = {100, 4, 4, 100};
static const struct poise_phase phase = {.name = "text", .quadratic = 1, .passes = 1};
static uint32_t rank[4], micro_batch[4], row[4];

static struct poise_plan_request request(void)
{
    return (struct poise_plan_request){.size = sizeof(struct poise_plan_request),
                                       .n_ranks = 2,
                                       .n_phases = 1,
                                       .n_samples = n_samples,
                                       .length = length,
                                       .phases = &phase,
                                       .phase_size = sizeof phase,
                                       .micro_batch_size = 1};
}

static struct poise_plan plan_(void)
{
    return (struct poise_plan){.size = sizeof(struct poise_plan), .rank = rank, .micro_batch = micro_batch, .row = row};
}

static void refused(const struct poise_plan_request *req, struct poise_plan *plan, int code, const char *text)
{
    struct poise_err err = {0};

    cr_assert_eq(poise_plan(req, plan, &err), code, "%s", err.text);
    cr_assert(strstr(err.text, text), "\"%s\" does not say %s", err.text, text);
    cr_assert_eq(poise_plan(req, plan, NULL), code);
}

Test(plan_sizes, it_is_the_planner)
{
    struct poise_plan_request req = request();
    struct poise_plan a = plan_(), b = plan_();

    cr_assert_eq(poise_plan(&req, &a, NULL), 0);
    cr_assert_eq(plan_make(&req, &b, NULL), 0);
    cr_assert_arr_eq(a.plan_id, b.plan_id, sizeof a.plan_id);
    cr_assert_eq(a.quality.rank_max_after, 10016);
    cr_assert_eq(a.quality.bytes_moved, 0);
    cr_assert_eq(a.size, sizeof a);
}

Test(plan_sizes, bad_sizes_are_named)
{
    struct poise_plan_request req = request();
    struct poise_plan plan = plan_();

    refused(NULL, &plan, -EINVAL, "req is NULL");
    refused(&req, NULL, -EINVAL, "plan is NULL");
    req.size = 8;
    refused(&req, &plan, -EINVAL, "struct poise_plan_request");
    req = request();
    plan.size = 0;
    refused(&req, &plan, -EINVAL, "struct poise_plan");
    plan = plan_();
    req.phase_size = 0;
    refused(&req, &plan, -EINVAL, "struct poise_phase");
    req = request();
    req.phases = NULL;
    refused(&req, &plan, -EINVAL, "phases is NULL");
    req.n_phases = POISE_MAX_PHASES + 1;
    refused(&req, &plan, -EINVAL, "n_phases is 9");
    req = request();
    req.n_pads = 1;
    refused(&req, &plan, -EINVAL, "pads is NULL");
    req.n_pads = POISE_MAX_FIELDS + 1;
    refused(&req, &plan, -EINVAL, "n_pads is 257");
}

/* A program with a newer header. */
Test(plan_sizes, larger_structs_with_zeros)
{
    struct {
        struct poise_plan_request req;
        uint64_t later;
    } req = {.req = request()};
    struct {
        struct poise_plan plan;
        uint64_t later;
    } plan = {.plan = plan_()};
    struct {
        struct poise_phase phase;
        uint64_t later;
    } phases[1] = {{.phase = phase}};

    req.req.size = sizeof req;
    req.req.phases = &phases[0].phase;
    req.req.phase_size = sizeof phases[0];
    plan.plan.size = sizeof plan;
    cr_assert_eq(poise_plan(&req.req, &plan.plan, NULL), 0);
    cr_assert_eq(plan.plan.size, sizeof plan);
    cr_assert_eq(plan.plan.quality.rank_max_after, 10016);
    phases[0].later = 1;
    refused(&req.req, &plan.plan, -E2BIG, "struct poise_phase");
    phases[0].later = 0;
    req.later = 1;
    refused(&req.req, &plan.plan, -E2BIG, "struct poise_plan_request");
}
