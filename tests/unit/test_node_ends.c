/* SPDX-License-Identifier: Apache-2.0 */
/* A node when something ends: deaths, leaves, silence, restarts of its poised; each rule with a case. */
#include "tests/unit/node_case.h"

TestSuite(node_ends, .init = setup, .fini = teardown);

Test(node_ends, a_death_is_told_to_everyone_at_once)
{
    const struct wire_abort *abort;

    begin("c0,c1");
    end(2);
    cr_assert_eq(count_up(WIRE_ABORT), 2);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 3);
    abort = &case_sent(&up, WIRE_ABORT, 0)->msg->abort;
    cr_assert(!abort->left);
    cr_assert_eq(abort->rank, 1);
    cr_assert_str_eq(abort->error.text, "job qwen: rank 1 (pid 4002 on h) died; only release and close are left");
    cr_assert(case_logged(&up, "group qwen/dp: rank 1 (pid 4002) lost, aborting step 0"));
    submit(0, 0, 5);
    cr_assert_eq(up.n_sends, 0);
    end(1);
    cr_assert_eq(up.n_sends, 0);
}

Test(node_ends, a_death_is_repeated_until_it_is_echoed)
{
    struct wire_message echo = {.type = WIRE_ABORT};

    begin("c0,c1");
    end(2);
    echo.abort = case_sent(&up, WIRE_ABORT, 0)->msg->abort;
    down(0, &echo);
    now += 1000;
    tick();
    cr_assert_eq(count_up(WIRE_ABORT), 1);
    cr_assert_eq(case_sent(&up, WIRE_ABORT, 0)->to, 1);
    down(1, &echo);
    now += 1000;
    tick();
    cr_assert_eq(count_up(WIRE_ABORT), 0);
}

Test(node_ends, who_left_in_order_is_no_death)
{
    const struct wire_abort *abort;

    begin("");
    leave(2, 3, false);
    cr_assert_eq(count_up(WIRE_ABORT), 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2, "to rank 0 and up");
    abort = &case_sent(&up, WIRE_ABORT, 0)->msg->abort;
    cr_assert(abort->left);
    cr_assert_eq(abort->step, 2);
    cr_assert_str_eq(abort->error.text, "rank 1 left after step 2");
    end(2);
    cr_assert_eq(up.n_sends, 0);
    submit(0, 2, 5);
    cr_assert_eq(count_up(WIRE_META), 1, "it took part in step 2");
    submit(0, 3, 5);
    cr_assert_eq(up.n_sends, 0);
    leave(1, 3, false);
    cr_assert_eq(up.n_sends, 0, "known");
}

Test(node_ends, a_leave_is_repeated_until_its_step_or_an_earlier_one_is_echoed)
{
    struct wire_message echo = {.type = WIRE_ABORT};

    begin("");
    leave(2, 3, false);
    echo.abort = case_sent(&up, WIRE_ABORT, 0)->msg->abort;
    echo.abort.step = 5; /* of someone who left later */
    down(0, &echo);
    cr_assert_eq(up.n_sends, 0);
    now += 1000;
    tick();
    cr_assert_eq(count_up(WIRE_ABORT), 1);
    echo.abort.step = 1;
    down(0, &echo);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1, "news for the process that is left");
    now += 1000;
    tick();
    cr_assert_eq(count_up(WIRE_ABORT), 0);
}

Test(node_ends, who_leaves_without_a_step_ends_it)
{
    begin("");
    leave(2, 0, false);
    cr_assert(!case_sent(&up, WIRE_ABORT, 0)->msg->abort.left);
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "before its first step"));
}

Test(node_ends, who_leaves_after_the_end_harms_nobody)
{
    begin("");
    send_outcome(0, 0, 1);
    outcome.outcome.kind = WIRE_OUTCOME_END;
    outcome.outcome.step = 1;
    outcome.outcome.n_slices = 0;
    down(0, &outcome);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
    leave(2, 2, true);
    end(2);
    cr_assert_eq(up.n_sends, 0);
    leave(1, 2, false); /* it closes before it reads the end */
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
}

Test(node_ends, silence_is_believed_when_every_coordinator_that_is_heard_says_so)
{
    struct wire_message vote = {.type = WIRE_ABORT};

    begin("c0,c1");
    vote.abort.epoch = EPOCH;
    vote.abort.error.code = -EHOSTDOWN;
    strcpy(vote.abort.error.text, "the poised of node x is silent");
    send_beacon(1, 0);
    down(0, &vote);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0, "c1 is heard and does not say so");
    now += 1900;
    down(0, &vote);
    cr_assert_eq(up.n_sends, 0);
    now += 200;
    down(0, &vote);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 4, "c1 is not heard any more");
    cr_assert_neq(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.code, -EHOSTDOWN);
}

Test(node_ends, who_has_all_it_can_get_needs_no_other_node)
{
    struct wire_message vote = {.type = WIRE_ABORT};

    begin("");
    vote.abort.epoch = EPOCH;
    vote.abort.error.code = -EHOSTDOWN;
    leave(2, 1, false);
    send_outcome(0, 0, 42);
    down(0, &vote);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
    now += 30000;
    tick();
    now += 30000;
    tick();
    cr_assert_eq(case_count(&up, WIRE_ABORT) - count_up(WIRE_ABORT), 0);
}

Test(node_ends, two_coordinators_that_say_so_suffice)
{
    struct wire_message vote = {.type = WIRE_ABORT};

    begin("c0,c1");
    vote.abort.epoch = EPOCH;
    vote.abort.error.code = -EHOSTDOWN;
    send_beacon(0, 0);
    send_beacon(1, 0);
    down(0, &vote);
    now += 3000; /* too long ago */
    send_beacon(0, 0);
    down(1, &vote);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
    down(0, &vote);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 4);
}

Test(node_ends, a_coordinator_s_abort_is_passed_on_once)
{
    struct wire_message msg = {.type = WIRE_ABORT};

    begin("");
    msg.abort.epoch = EPOCH;
    msg.abort.error.code = -ESHUTDOWN;
    strcpy(msg.abort.error.text, "rank 2 died");
    down(0, &msg);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    down(0, &msg);
    cr_assert_eq(up.n_sends, 0);
    msg.abort.epoch.lo++;
    down(0, &msg);
    cr_assert_eq(up.n_sends, 0);
}

/* This poised is new: rank 0 says which epoch it is in, and the roster counts rank 1 to this node too. */
static void come_back(void)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    case_join(&joins[0], 0, 3, 0, 1);
    msg.join = joins[0];
    msg.join.epoch = EPOCH;
    open_session(1, 1000);
    from(1, &msg);
    cr_assert(wire_id_is(case_sent(&up, WIRE_MEMBERS, 0)->msg->members.joins[0].epoch, EPOCH));
    send_roster(0);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
}

static bool second_pass(void)
{
    now += 1000;
    send_beacon(0, 0);
    tick();
    return case_count(&up, WIRE_ABORT) > 0;
}

Test(node_ends, who_does_not_come_back_to_a_restarted_poised_is_named)
{
    come_back();
    for (int i = 0; i < 9; i++)
        cr_assert(!second_pass(), "after %d s", i);
    cr_assert(second_pass());
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "rank 1 did not come back to node nodeA"));
}

Test(node_ends, who_comes_back_late_is_in_time)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    come_back();
    for (int i = 0; i < 8; i++)
        cr_assert(!second_pass());
    case_join(&joins[1], 1, 3, 0, 1);
    msg.join = joins[1];
    msg.join.epoch = EPOCH;
    open_session(2, 1000);
    from(2, &msg);
    for (int i = 0; i < 8; i++)
        cr_assert(!second_pass());
    submit(0, 4, 5);
    submit(1, 4, 5);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.n_metas, 2);
}

/* Sessions that get the roster by this event, as bits. */
static uint32_t rostered(void)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; case_sent(&up, WIRE_ROSTER, i); i++)
        bits |= 1u << case_sent(&up, WIRE_ROSTER, i)->to;
    return bits;
}

/*
 * A step hung on memory that was not offered: what rank 0 offered to a poised that had just been restarted was lost to rank
 * 1, which came back after it, and rank 0 was not told to offer again, since its roster had come from the coordinator
 * elsewhere already.
 */
Test(node_ends, one_that_comes_back_makes_all_here_offer_again)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    come_back();
    cr_assert_eq(rostered(), 1u << 1);
    send_roster(0);
    cr_assert_eq(rostered(), 0, "it has it");
    case_join(&joins[1], 1, 3, 0, 1);
    msg.join = joins[1];
    msg.join.epoch = EPOCH;
    open_session(2, 1000);
    from(2, &msg);
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 1, "the coordinator is asked for it");
    send_roster(0);
    cr_assert_eq(rostered(), 1u << 1 | 1u << 2);
    send_roster(0);
    cr_assert_eq(rostered(), 0, "nobody is new");
}

Test(node_ends, nobody_gets_into_another_job_s_epoch)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    begin("");
    msg.join = joins[0];
    msg.join.epoch = EPOCH;
    open_session(8, 1001); /* another user who learnt the epoch's id */
    from(8, &msg);
    cr_assert(strstr(refusal(), "the epoch of another job"));
}

Test(node_ends, coordinators_cannot_be_made_up_without_end)
{
    struct wire_message msg = {.type = WIRE_JOIN};
    uint32_t n_refused = 0;
    char endpoint[40];

    for (uint32_t i = 0; i < 300; i++) {
        case_join(&msg.join, 0, 1, 0, 1);
        snprintf(msg.join.job, sizeof msg.join.job, "job%u", i);
        snprintf(endpoint, sizeof endpoint, "tcp://h%u:1", i);
        msg.join.coordinators = endpoint;
        open_session(100 + i, 1000);
        from(100 + i, &msg);
        n_refused += case_count(&up, WIRE_REFUSED);
    }
    cr_assert_eq(n_refused, 300 - 256);
}

Test(node_ends, no_coordinator_for_ten_seconds_is_an_error_that_names_them)
{
    begin("tcp://a:1,tcp://b:2");
    for (int i = 0; i < 9; i++) {
        now += 1000;
        tick();
        cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
    }
    now += 1001;
    tick();
    cr_assert_geq(case_count(&up, WIRE_ABORT), 2);
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "tcp://a:1 tcp://b:2"));
}

Test(node_ends, after_a_stall_coordinators_have_time_again)
{
    begin("");
    now += 60000;
    tick();
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
}
