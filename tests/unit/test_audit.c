/* SPDX-License-Identifier: Apache-2.0 */
/* What an audit counts: blocks by the mean of their steps, pairs of neighbours, and nothing that is not known whole. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "daemon/core/audit.h"
#include "daemon/shell/report.h"
#include "poise.h"

#define RANKS 3

static uint32_t mode_of(uint64_t step, uint64_t every)
{
    return step / every % 2 ? POISE_MODE_SHADOW : POISE_MODE_ON;
}

/* A step whose slowest rank takes ns. */
static void tell(struct audit *audit, uint64_t step, uint64_t ns)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        audit_reported(audit, step, rank == step % RANKS ? ns : ns / 2);
    cr_assert_eq(audit_n_here(audit, step), RANKS);
    audit_complete(audit, step);
    cr_assert_eq(audit_n_here(audit, step), 0);
}

static void run(struct audit *audit, uint64_t first, uint64_t n, uint64_t (*ns_of)(uint64_t step))
{
    for (uint64_t step = first; step < first + n; step++) {
        audit_planned(audit, step, mode_of(step, audit->report.every), RANKS);
        tell(audit, step, ns_of(step));
    }
}

/* Balanced blocks of 4 take 90, 100, 110, 100 in the mean of their steps; arrival blocks half more; block 0 is slow. */
static uint64_t usual(uint64_t step)
{
    static const uint64_t block_ns[] = {90, 100, 110};
    uint64_t pair = step / 8, ns = pair == 0 ? 1000 : block_ns[pair % 3], wave = step % 2 ? 10 : 0;

    return (step / 4 % 2 ? ns * 3 / 2 : ns) - 5 + wave;
}

static void near(double value, double right)
{
    cr_assert(fabs(value - right) <= 1e-9 * fabs(right), "%.12g instead of %.12g", value, right);
}

Test(audit, blocks_count_by_their_mean_but_the_first)
{
    struct audit audit;

    audit_init(&audit, 4);
    run(&audit, 0, 33, usual); /* 8 blocks are over, the first does not count */
    cr_assert_eq(audit.report.balanced_ns.n, 3);
    cr_assert_eq(audit.report.arrival_ns.n, 4);
    cr_assert_eq(audit.report.balanced_steps, 12);
    cr_assert_eq(audit.report.arrival_steps, 16);
    near(audit.report.balanced_ns.mean, (100 + 110 + 90) / 3.0);
    near(audit.report.arrival_ns.mean, (1500 + 150 + 165 + 135) / 4.0);
    cr_assert_eq(audit.report.speedup.n, 3);
    near(audit.report.speedup.mean, 1.5); /* although blocks drift */
    cr_assert_lt(audit.report.speedup.deviations, 1e-20);

    struct report_interval interval = report_interval(&audit.report.balanced_ns);
    cr_assert(interval.known);
    near(interval.high - interval.mean, 4.303 * 10 / sqrt(3)); /* Student's t for 2 degrees of freedom */
    near(interval.mean - interval.low, 4.303 * 10 / sqrt(3));
}

Test(audit, an_interval_takes_two_values_and_is_not_below_zero)
{
    struct audit_tally tally = {.n = 1, .mean = 5};

    cr_assert(!report_interval(&tally).known);
    tally = (struct audit_tally){.n = 2, .mean = 5, .deviations = 50};
    cr_assert(report_interval(&tally).known);
    cr_assert_eq(report_interval(&tally).low, 0);
    tally = (struct audit_tally){.n = 101, .mean = 5, .deviations = 100};
    near(report_interval(&tally).high, 5 + (1.96 + 2.3722 / 100) * 1 / sqrt(101));
    cr_assert_lt(fabs((1.96 + 2.3722 / 100) - 1.984), 1e-3); /* of a printed table */
}

/* A resumed run begins inside of a block. */
static uint64_t hundred(uint64_t step)
{
    return step / 4 % 2 ? 120 : 100;
}

Test(audit, a_run_may_begin_anywhere)
{
    struct audit audit;

    audit_init(&audit, 4);
    run(&audit, 1000006, 20, hundred); /* the second half of an arrival block, then 4 whole ones and a begun one */
    cr_assert_eq(audit.report.balanced_ns.n, 2);
    cr_assert_eq(audit.report.arrival_ns.n, 2);
    near(audit.report.speedup.mean, 1.2);
}

Test(audit, a_step_that_a_rank_did_not_report_is_left_out)
{
    struct audit audit;

    audit_init(&audit, 2);
    run(&audit, 0, 2, hundred);
    for (uint64_t step = 2; step < 80; step++) {
        audit_planned(&audit, step, mode_of(step, 2), RANKS);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            if (step % 2 == 0 || rank != 1) /* rank 1 tells of every other one */
                audit_reported(&audit, step, step % 2 == 0 ? 100 : 1000000);
    }
    /* Steps are counted when their place in the ring is needed; those of the last 32 are still awaited. */
    cr_assert_gt(audit.report.balanced_ns.n, 8);
    cr_assert_eq(audit.report.balanced_steps, audit.report.balanced_ns.n);
    near(audit.report.balanced_ns.mean, 100);
    near(audit.report.arrival_ns.mean, 100);
}

Test(audit, a_block_in_which_the_mode_was_switched_is_left_out)
{
    struct audit audit;

    audit_init(&audit, 2);
    for (uint64_t step = 0; step < 17; step++) {
        audit_planned(&audit, step, step == 5 || step == 8 ? POISE_MODE_OFF : mode_of(step, 2), RANKS);
        tell(&audit, step, 100);
    }
    cr_assert_eq(audit.report.balanced_ns.n, 1); /* of the blocks 0, 2, 4 and 6: 0 warms up, 2 and 4 are mixed */
    cr_assert_eq(audit.report.arrival_ns.n, 4);
    cr_assert_eq(audit.report.speedup.n, 1);
}

Test(audit, late_doubled_and_unknown_steps_change_nothing)
{
    struct audit audit, before;

    audit_init(&audit, 1);
    run(&audit, 0, 50, hundred);
    before = audit;
    audit_reported(&audit, 3, 1);
    audit_reported(&audit, 1000, 1);
    audit_complete(&audit, 3);
    audit_planned(&audit, 49, POISE_MODE_ON, RANKS); /* an outcome that comes again after all have told */
    audit_complete(&audit, 49);
    cr_assert_eq(memcmp(&audit, &before, sizeof audit), 0);

    audit_init(&audit, 0);
    audit_planned(&audit, 1, POISE_MODE_ON, RANKS);
    audit_reported(&audit, 1, 5);
    cr_assert_eq(audit_n_here(&audit, 1), 0);
}
