/* SPDX-License-Identifier: Apache-2.0 */
/* A group at a coordinator: how it ends; each rule with a case. */
#include "tests/unit/group_case.h"

TestSuite(group_ends, .init = setup, .fini = teardown);

Test(group_ends, a_death_ends_it_for_all_and_for_the_late)
{
    form();
    decide(0);
    abort_from(NODE_B, 1, false, 0);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    cr_assert(case_logged(&up, "group qwen/dp: aborting step 1: rank 1 died"));
    cr_assert_str_eq(report().state, "aborted");
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1, "who still speaks of it is told");
    beat(NODE_A, 1, 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1);
    joins[0].epoch = epoch;
    members(NODE_A, &joins[0], 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1);
    joins[0].epoch = (struct wire_id){0, 0};
    members(NODE_A, &joins[0], 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1, "an incarnation joins at most one epoch");
    joins[0].incarnation.random++;
    joins[1].incarnation.random++;
    members(NODE_A, &joins[0], 1);
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
}

Test(group_ends, what_was_counted_is_told_after_the_end_too)
{
    form();
    decide(0);
    case_meta(&metas[0], 0, 0, 1, LENGTHS(100, 4, 3));
    feed_meta(NODE_A, &metas[0]);
    abort_from(NODE_B, 1, false, 0);
    cr_assert_str_eq(report().state, "aborted");
    cr_assert_str_eq(report().error, "rank 1 died");
    cr_assert_eq(report().samples, 4);
    cr_assert_eq(report().samples_dropped, 3, "those of the step that was open");
}

Test(group_ends, an_epoch_that_nobody_speaks_of_is_forgotten_but_not_ended)
{
    form();
    decide(0);
    now -= now % 250;
    pass(31000, false, false, NULL);
    cr_assert_null(report().state);
    beat(NODE_A, 1, 1); /* it was this coordinator that was cut off */
    cr_assert_eq(case_count(&up, WIRE_UNKNOWN), 1);
    joins[0].epoch = joins[1].epoch = epoch;
    members(NODE_A, &joins[0], 1);
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
    cr_assert_str_eq(report().state, "running");
}

Test(group_ends, a_higher_incarnation_is_proof_that_the_epoch_is_over)
{
    form();
    joins[1].incarnation.attempt++;
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "rank 1 (pid 4210 on h) was opened again"));
    joins[0].incarnation.attempt++;
    members(NODE_A, &joins[0], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
}

Test(group_ends, a_lower_incarnation_is_refused_and_harmless)
{
    form();
    joins[1].incarnation.opened_ns--;
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert_str_eq(report().state, "running");
}

Test(group_ends, who_does_not_belong_does_not_disturb)
{
    struct wire_join other;

    form();
    case_join(&other, 2, 4, 0, 1);
    members(NODE_B, &other, 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert_str_eq(report().state, "running");
}

Test(group_ends, steps_up_to_a_leave_are_still_decided)
{
    form();
    decide(0);
    abort_from(NODE_B, 1, true, 2);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    cr_assert(case_sent(&up, WIRE_ABORT, 0)->msg->abort.left);
    cr_assert_eq(case_sent(&up, WIRE_ABORT, 0)->msg->abort.step, 2);
    abort_from(NODE_A, 0, true, 2);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1, "only its sender hears that it is known");
    beat(NODE_A, 1, 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1, "a node that missed it");
    decide(1);
    decide(2);
    case_meta(&metas[0], 0, 0, 3, LENGTHS(100, 4));
    case_meta(&metas[1], 1, 0, 3, LENGTHS(100, 4));
    feed_meta(NODE_A, &metas[0]);
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 0);
    cr_assert_str_eq(report().state, "ended");
    cr_assert_str_eq(report().error, "rank 1 left");
    abort_from(NODE_A, 0, true, 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2, "an earlier one is news");
}

static void end(uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++) {
        case_meta(&metas[i], i, 0, step, LENGTHS(1));
        metas[i].meta.kind = WIRE_META_END;
        metas[i].meta.n_samples = 0;
        case_seal(&metas[i]);
        feed_meta(i ? NODE_B : NODE_A, &metas[i]);
    }
}

Test(group_ends, leaving_after_the_end_harms_nobody)
{
    form();
    end(0);
    cr_assert_eq(case_sent(&up, WIRE_OUTCOME, 0)->msg->outcome.kind, WIRE_OUTCOME_END);
    cr_assert_str_eq(report().state, "ended");
    abort_from(NODE_A, 0, true, 0);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1, "only its sender hears that it is known");
    cr_assert_eq(up.sends[0].to, NODE_A);
    cr_assert_not_null(ask(NODE_B, WIRE_OUTCOME, 0, false));
    pass(70000, false, false, NULL);
    cr_assert_null(report().state, "forgotten");
    beat(NODE_A, 1, 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1, "but for its grave");
}

Test(group_ends, a_node_whose_processes_have_left_is_not_silent)
{
    struct wire_message msg = {.type = WIRE_HEARTBEAT};

    form();
    abort_from(NODE_B, 1, true, 5);
    now -= now % 250;
    for (int i = 0; i < 15; i++) { /* node B is alive and has nothing to say of this epoch */
        cr_assert(!pass(1000, true, false, "silent"));
        msg.heartbeat.instance = (struct wire_id){NODE_B, NODE_B};
        feed(NODE_B, &msg);
    }
    cr_assert(pass(12000, true, false, "silent"), "now it is gone, and step 5 may never come");
}

Test(group_ends, a_leave_reaches_those_who_wait_for_a_claim_to_be_whole)
{
    form();
    teardown();
    setup();
    joins[0].epoch = epoch;
    members(NODE_A, &joins[0], 1);
    abort_from(NODE_B, 1, true, 5);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    cr_assert(case_sent(&up, WIRE_ABORT, 0)->msg->abort.left);
}

Test(group_ends, a_silent_node_is_said_to_be_silent_and_nothing_more)
{
    form();
    now -= now % 250;
    cr_assert(!pass(9000, true, false, "silent"));
    cr_assert(pass(3000, true, false, "the poised of node nodeB (rank 1) is silent"));
    cr_assert_eq(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.code, -EHOSTDOWN);
    cr_assert_str_eq(report().state, "running");
    decide(0); /* it was only slow */
    cr_assert(!pass(5000, true, true, "silent"));
}

Test(group_ends, a_poised_without_the_processes_is_silent_too)
{
    struct wire_message msg = {.type = WIRE_HEARTBEAT};

    form();
    now -= now % 250;
    for (int i = 0; i < 11; i++) {
        pass(1000, true, false, NULL);
        msg.heartbeat.instance = (struct wire_id){NODE_B, NODE_B};
        feed(NODE_B, &msg);
    }
    cr_assert(pass(2000, true, false, "silent"));
}

Test(group_ends, after_a_stall_everyone_has_time_again)
{
    form();
    now += 30000; /* nobody turned the loop */
    tick();
    cr_assert(case_logged(&up, "stood still"));
    cr_assert_eq(up.n_sends, 0);
    now -= now % 250;
    cr_assert(!pass(9000, false, false, "silent"));
    cr_assert(pass(2000, false, false, "silent"));
}

Test(group_ends, a_lost_connection_proves_nothing)
{
    struct coordinator_event event = {.kind = COORDINATOR_LINK_DOWN, .link = NODE_B};
    struct poise_err err;

    form();
    event.now_ms = now;
    cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
    cr_assert_eq(up.n_sends, 0);
    case_meta(&metas[0], 0, 0, 0, LENGTHS(100, 4));
    case_meta(&metas[1], 1, 0, 0, LENGTHS(4, 100));
    feed_meta(NODE_A, &metas[0]);
    feed_meta(7, &metas[1]); /* back on another link */
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 1);
    cr_assert_eq(case_count(&up, WIRE_UNKNOWN), 1, "whose link is that?");
    beat(NODE_B, 0, 0);
    cr_assert_not_null(ask(NODE_B, WIRE_OUTCOME, 0, false));
}
