/* SPDX-License-Identifier: Apache-2.0 */
/* A group at a coordinator: how it decides, what it is asked, what it does not know; each rule with a case. */
#include "tests/unit/group_case.h"

TestSuite(group_steps, .init = setup, .fini = teardown);

Test(group_steps, decides_when_all_metadata_is_in)
{
    const struct wire_outcome *outcome;

    form();
    decide(0);
    outcome = &case_sent(&up, WIRE_OUTCOME, 0)->msg->outcome;
    cr_assert_eq(outcome->kind, WIRE_OUTCOME_PLAN);
    cr_assert_eq(outcome->n_slices, 1, "a node gets the slices of its ranks");
    cr_assert_eq(outcome->slices[0].rank, 0);
    cr_assert_eq(up.publishes[0]->beacon.decided, 1);
    cr_assert(wire_id_is(up.publishes[0]->beacon.plan_id[0], outcome->plan_id));
    cr_assert_eq(report().decided, 1);
    cr_assert_eq(report().samples, 4);
}

Test(group_steps, steps_are_decided_in_any_order)
{
    form();
    decide(3);
    cr_assert_eq(up.publishes[0]->beacon.decided, 4);
    decide(1);
    cr_assert_eq(up.publishes[0]->beacon.decided, 4);
    cr_assert(wire_id_none(up.publishes[0]->beacon.plan_id[0]));
    cr_assert(!wire_id_none(up.publishes[0]->beacon.plan_id[1]));
}

Test(group_steps, a_second_word_is_dropped_and_the_same_word_is_nothing)
{
    form();
    case_meta(&metas[0], 0, 0, 0, LENGTHS(100, 4));
    feed_meta(NODE_A, &metas[0]);
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(up.n_logs, 0);
    case_meta(&metas[0], 0, 0, 0, LENGTHS(100, 5));
    feed_meta(NODE_A, &metas[0]);
    cr_assert(case_logged(&up, "rank 0 changes its metadata of step 0"));
    case_meta(&metas[1], 1, 0, 0, LENGTHS(1));
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_sent(&up, WIRE_OUTCOME, 0)->msg->outcome.totals.loss_tokens, 105, "the first word counts");
    feed_meta(NODE_A, &metas[0]);
    cr_assert(case_logged(&up, "changes its metadata"), "after the decision too");
}

Test(group_steps, metadata_of_another_incarnation_is_refused)
{
    form();
    case_meta(&metas[0], 0, 0, 0, LENGTHS(100, 4));
    metas[0].meta.incarnation.opened_ns--;
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    case_meta(&metas[1], 1, 0, 0, LENGTHS(1));
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 0);
}

Test(group_steps, an_outcome_is_told_again_on_request)
{
    const struct wire_message *msg;

    form();
    decide(0);
    msg = ask(NODE_B, WIRE_OUTCOME, 0, false);
    cr_assert_not_null(msg);
    cr_assert_eq(msg->outcome.slices[0].rank, 1);
    cr_assert_eq(up.n_sends, 1);
    for (uint64_t step = 1; step < 17; step++)
        decide(step);
    cr_assert_null(ask(NODE_B, WIRE_OUTCOME, 0, false), "two windows are kept");
    cr_assert_not_null(ask(NODE_B, WIRE_OUTCOME, 1, false));
}

Test(group_steps, what_is_missing_is_asked_for_where_it_is_missing_and_not_too_often)
{
    form();
    case_meta(&metas[0], 0, 0, 0, LENGTHS(100, 4));
    feed_meta(NODE_A, &metas[0]);
    cr_assert_not_null(ask(NODE_A, WIRE_NEED, 0, false));
    cr_assert_eq(up.n_sends, 1);
    cr_assert_eq(up.sends[0].to, NODE_B);
    now += 100;
    cr_assert_null(ask(NODE_A, WIRE_NEED, 0, false));
    now += 100;
    cr_assert_not_null(ask(NODE_A, WIRE_NEED, 0, false));
    cr_assert_not_null(ask(NODE_A, WIRE_NEED, 1, false), "nothing of step 1 is here");
    cr_assert_eq(up.n_sends, 2);
}

Test(group_steps, a_question_does_not_push_steps_out)
{
    form();
    decide(0);
    ask(NODE_A, WIRE_NEED, UINT64_MAX - 3, false);
    cr_assert_not_null(ask(NODE_B, WIRE_OUTCOME, 0, false));
}

Test(group_steps, a_heartbeat_shows_what_was_lost)
{
    form();
    beat(NODE_A, 0, 1);
    cr_assert_eq(up.n_sends, 0, "its rank has not submitted");
    beat(NODE_A, 0, 0);
    cr_assert_eq(case_count(&up, WIRE_NEED), 2);
}

Test(group_steps, tables_are_asked_for_and_merged_and_told_when_they_change)
{
    const struct wire_outcome *outcome;

    form();
    case_meta(&metas[0], 0, 0, 0, LENGTHS(10, 4));
    case_field(&metas[0], "ids", "tokens");
    metas[0].meta.table = NULL; /* its message with the table was lost */
    case_meta(&metas[1], 1, 0, 0, LENGTHS(4));
    feed_meta(NODE_A, &metas[0]);
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 0);
    cr_assert_eq(case_count(&up, WIRE_NEED), 1);
    cr_assert(case_sent(&up, WIRE_NEED, 0)->msg->ask.want_table);
    cr_assert_eq(case_sent(&up, WIRE_NEED, 0)->to, NODE_A);
    metas[0].meta.table = &metas[0].table;
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
    outcome = &case_sent(&up, WIRE_OUTCOME, 1)->msg->outcome;
    cr_assert_not_null(outcome->table);
    cr_assert_eq(outcome->table->n_fields, 1);
    for (uint64_t step = 1; step < 3; step++) {
        case_meta(&metas[0], 0, 0, step, LENGTHS(10, 4));
        case_field(&metas[0], "ids", "tokens");
        metas[0].meta.table = NULL;
        case_meta(&metas[1], 1, 0, step, LENGTHS(4));
        feed_meta(NODE_A, &metas[0]);
        feed_meta(NODE_B, &metas[1]);
        cr_assert_null(case_sent(&up, WIRE_OUTCOME, 0)->msg->outcome.table, "it did not change");
    }
    cr_assert_not_null(ask(NODE_B, WIRE_OUTCOME, 2, true)->outcome.table);
}

Test(group_steps, a_slow_rank_is_worth_one_line)
{
    form();
    case_meta(&metas[0], 0, 0, 0, LENGTHS(10, 4));
    feed_meta(NODE_A, &metas[0]);
    now -= now % 250;
    cr_assert(pass(61000, true, true, "step 0 waits"));
    cr_assert(case_logged(&up, "for rank 1"));
    cr_assert(!pass(61000, true, true, "step 0 waits"));
    cr_assert_eq(report().n_waiting, 1);
    cr_assert_eq(report().waiting[0], 1);
}

Test(group_steps, ranks_that_submit_the_same_are_named_once)
{
    uint32_t n = 0;

    form();
    for (uint64_t step = 0; step < 6; step++) {
        case_meta(&metas[0], 0, 0, step, LENGTHS(10, 4));
        case_meta(&metas[1], 1, 0, step, LENGTHS(10, 4));
        metas[0].tags[0] = metas[1].tags[0] = 5;
        metas[0].tags[1] = metas[1].tags[1] = 6;
        case_seal(&metas[0]);
        case_seal(&metas[1]);
        feed_meta(NODE_A, &metas[0]);
        feed_meta(NODE_B, &metas[1]);
        n += case_logged(&up, "ranks 0 and 1 submit the same samples");
    }
    cr_assert_eq(n, 1);
}

/* ----------------------------------------------------------------------------------------------------- what is not known */

Test(group_steps, an_unknown_epoch_is_asked_for_and_run_when_all_claim_it)
{
    form();
    decide(0);
    teardown(); /* the coordinator is restarted */
    setup();
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(case_count(&up, WIRE_UNKNOWN), 1);
    cr_assert_null(ask(NODE_B, WIRE_OUTCOME, 0, false));
    cr_assert_eq(case_count(&up, WIRE_UNKNOWN), 1);
    joins[0].epoch = joins[1].epoch = epoch;
    members(NODE_A, &joins[0], 1);
    beat(NODE_B, 1, 0);
    cr_assert_eq(case_count(&up, WIRE_UNKNOWN), 1, "the other has not claimed it yet");
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
    cr_assert(wire_id_is(case_sent(&up, WIRE_ROSTER, 0)->msg->roster.epoch, epoch));
    cr_assert_not_null(ask(NODE_B, WIRE_NEED, 0, false));
    feed_meta(NODE_A, &metas[0]);
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
}

Test(group_steps, a_claim_that_is_not_the_hash_does_not_run)
{
    form();
    teardown();
    setup();
    epoch.lo ^= 1;
    joins[0].epoch = joins[1].epoch = epoch;
    members(NODE_A, &joins[0], 1);
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 0);
}

Test(group_steps, claims_that_stay_incomplete_name_who_is_missing)
{
    bool told = false;

    form();
    teardown();
    setup();
    joins[0].epoch = epoch;
    for (uint64_t end = now + 12000; now < end && !told;) {
        members(NODE_A, &joins[0], 1);
        now += 250;
        tick();
        told = case_count(&up, WIRE_ABORT) > 0;
    }
    cr_assert(told);
    cr_assert_eq(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.code, -EHOSTDOWN);
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "rank 1 did not come back"));
}

Test(group_steps, a_restarted_poised_takes_its_place)
{
    form();
    decide(0);
    joins[1].epoch = epoch;
    members(7, &joins[1], 1); /* another instance, another link */
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 1);
    cr_assert_not_null(ask(7, WIRE_OUTCOME, 0, false));
    cr_assert_eq(up.sends[0].to, 7);
    cr_assert_eq(up.sends[0].msg->outcome.slices[0].rank, 1);
    beat(7, 1, 1);
    cr_assert_eq(up.n_sends, 0, "its heartbeats are known");
    beat(NODE_B, 1, 1);
    cr_assert_eq(case_count(&up, WIRE_UNKNOWN), 1, "those of the old one are not");
}
