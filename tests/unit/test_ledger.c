/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: what may be submitted when, and what is remembered how long. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "client/ledger.h"

#define FIRST 40u

static struct wire_message *meta(uint64_t step)
{
    struct wire_meta one = {.step = step, .n_samples = 3};
    struct wire_message msg = {.type = WIRE_META}, *copy;

    msg.meta.n_metas = 1;
    msg.meta.metas = &one;
    cr_assert_eq(wire_copy(&msg, &copy), 0);
    return copy;
}

static struct wire_message *outcome(uint64_t step, uint64_t plan)
{
    struct wire_message msg = {.type = WIRE_OUTCOME}, *copy;

    msg.outcome.step = step;
    msg.outcome.plan_id.lo = plan;
    cr_assert_eq(wire_copy(&msg, &copy), 0);
    return copy;
}

static struct ledger *fresh(uint32_t n_window)
{
    struct ledger *ledger;

    cr_assert_eq(ledger_new(FIRST, n_window, &ledger), 0);
    return ledger;
}

static int submit(struct ledger *ledger, uint64_t step)
{
    struct wire_message *msg = meta(step);
    struct poise_err err;
    int r = ledger_submit(ledger, msg, &err);

    if (r < 0)
        wire_free(msg);
    return r;
}

static int decide(struct ledger *ledger, uint64_t step, uint64_t plan)
{
    struct wire_message *msg = outcome(step, plan);
    struct poise_err err;
    int r = ledger_decide(ledger, msg, &err);

    if (r < 0)
        wire_free(msg);
    return r;
}

Test(ledger, free_takes_null)
{
    ledger_free(NULL);
}

Test(ledger, a_window_of_nothing_is_refused)
{
    struct ledger *ledger = NULL;

    cr_assert_eq(ledger_new(0, 0, &ledger), -EINVAL);
    cr_assert_null(ledger);
}

Test(ledger, steps_are_consecutive)
{
    struct ledger *ledger = fresh(8);

    cr_assert_eq(submit(ledger, FIRST + 1), -EINVAL);
    cr_assert_eq(submit(ledger, FIRST - 1), -EINVAL);
    cr_assert_eq(submit(ledger, FIRST), 0);
    cr_assert_eq(submit(ledger, FIRST), -EINVAL);
    cr_assert_eq(ledger_next_submit(ledger), FIRST + 1);
    ledger_free(ledger);
}

Test(ledger, submits_a_window_ahead_and_no_further)
{
    struct ledger *ledger = fresh(3);

    for (uint64_t step = FIRST; step < FIRST + 3; step++)
        cr_assert_eq(submit(ledger, step), 0);
    cr_assert(!ledger_may_submit(ledger));
    cr_assert_eq(submit(ledger, FIRST + 3), -EAGAIN);
    cr_assert_eq(decide(ledger, FIRST, 1), 0);
    cr_assert(ledger_may_submit(ledger));
    cr_assert_eq(submit(ledger, FIRST + 3), 0);
    ledger_free(ledger);
}

Test(ledger, a_step_is_kept_until_one_a_window_later_is_decided)
{
    enum { W = 3 };
    struct ledger *ledger = fresh(W);

    for (uint64_t t = 0; t < 20; t++) {
        cr_assert_eq(submit(ledger, FIRST + t), 0);
        cr_assert_eq(decide(ledger, FIRST + t, t), 0);
        for (uint64_t s = 0; s <= t; s++) {
            bool kept = s + W > t;

            cr_assert_eq(ledger_meta(ledger, FIRST + s) != NULL, kept, "step %lu after %lu", s, t);
            cr_assert_eq(ledger_outcome(ledger, FIRST + s) != NULL, kept);
        }
    }
    ledger_free(ledger);
}

Test(ledger, metadata_is_kept_after_it_was_answered)
{
    struct ledger *ledger = fresh(8);

    submit(ledger, FIRST);
    decide(ledger, FIRST, 5);
    cr_assert_eq(ledger_meta(ledger, FIRST)->meta.metas[0].step, FIRST);
    cr_assert_null(ledger_meta(ledger, FIRST + 1));
    cr_assert_null(ledger_meta(ledger, FIRST - 1));
    cr_assert_null(ledger_outcome(ledger, 0));
    ledger_free(ledger);
}

Test(ledger, outcomes_come_in_order_and_once)
{
    struct ledger *ledger = fresh(8);

    submit(ledger, FIRST);
    submit(ledger, FIRST + 1);
    cr_assert_eq(decide(ledger, FIRST + 1, 1), -EAGAIN);
    cr_assert_eq(decide(ledger, FIRST, 1), 0);
    cr_assert_eq(decide(ledger, FIRST, 1), -EALREADY);
    cr_assert_eq(decide(ledger, FIRST, 2), -EBADE);
    cr_assert_eq(ledger_outcome(ledger, FIRST)->outcome.plan_id.lo, 1);
    cr_assert_eq(ledger_next_decide(ledger), FIRST + 1);
    cr_assert_eq(decide(ledger, FIRST + 1, 3), 0);
    cr_assert_eq(decide(ledger, FIRST + 2, 3), -EINVAL, "nobody can have decided what this rank did not submit");
    ledger_free(ledger);
}

Test(ledger, only_metadata_and_outcomes_are_taken)
{
    struct wire_message pull = {.type = WIRE_PULL};
    struct ledger *ledger = fresh(8);
    struct poise_err err;

    cr_assert_eq(ledger_submit(ledger, &pull, &err), -EINVAL);
    cr_assert_eq(ledger_decide(ledger, &pull, &err), -EINVAL);
    cr_assert_neq(err.text[0], 0);
    ledger_free(ledger);
}
