/* SPDX-License-Identifier: Apache-2.0 */
/* A group at a coordinator: how it forms and shows that it is there; each rule with a case. */
#include "tests/unit/group_case.h"

TestSuite(group, .init = setup, .fini = teardown);

Test(group, forms_when_all_are_there)
{
    const struct wire_roster *roster;

    form();
    roster = &case_sent(&up, WIRE_ROSTER, 0)->msg->roster;
    cr_assert_eq(roster->n_members, 2);
    cr_assert_eq(roster->n_nodes, 2);
    cr_assert_eq(roster->members[0].node, 0);
    cr_assert_eq(roster->members[1].node, 1);
    cr_assert_str_eq(report().state, "running");
}

Test(group, nodes_are_numbered_by_their_lowest_member_whatever_comes_first)
{
    const struct wire_roster *roster;

    case_join(&joins[0], 0, 2, 0, 1);
    case_join(&joins[1], 1, 2, 0, 1);
    members(NODE_B, &joins[1], 1);
    members(NODE_A, &joins[0], 1);
    roster = &case_sent(&up, WIRE_ROSTER, 0)->msg->roster;
    cr_assert_eq(roster->members[0].node, 0);
    cr_assert_eq(roster->members[1].node, 1);
    epoch = roster->epoch;
    teardown();
    setup();
    {
        struct wire_id other = epoch;

        form();
        cr_assert(wire_id_is(other, epoch), "every coordinator computes the same epoch");
    }
}

Test(group, members_told_again_get_the_roster_again)
{
    form();
    members(NODE_A, &joins[0], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 1);
    cr_assert_eq(case_sent(&up, WIRE_ROSTER, 0)->to, NODE_A);
}

static void expect_failure(const char *text)
{
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_abort *abort = &case_sent(&up, WIRE_ABORT, i)->msg->abort;

        cr_assert(wire_id_none(abort->epoch));
        cr_assert(strstr(abort->error.text, text), "%s", abort->error.text);
    }
    cr_assert_neq(case_sent(&up, WIRE_ABORT, 0)->to, case_sent(&up, WIRE_ABORT, 1)->to);
    cr_assert_str_eq(report().state, "aborted");
}

static void two_joins(void)
{
    case_join(&joins[0], 0, 2, 0, 1);
    case_join(&joins[1], 1, 2, 0, 1);
    members(NODE_A, &joins[0], 1);
}

Test(group, options_that_differ_fail_for_all)
{
    two_joins();
    case_join_size(&joins[1], 4);
    expect_failure("micro_batch_size is 2 on rank 0 and 4 on rank 1");
}

Test(group, sizes_that_differ_fail_for_all)
{
    two_joins();
    joins[1].n_ranks = 3;
    expect_failure("n_ranks is 2 on rank 0 and 3 on rank 1");
}

Test(group, first_steps_that_differ_fail_for_all)
{
    two_joins();
    joins[1].first_step = 100;
    expect_failure("first_step is 0 on rank 0 and 100 on rank 1");
}

/* Else half of a job would wait at one coordinator for the other half at another. */
Test(group, coordinators_that_differ_fail_for_all)
{
    static char others[] = "tcp://a,tcp://b";

    two_joins();
    joins[1].coordinators = others;
    expect_failure("rank 1 names the coordinators \"tcp://a,tcp://b\", rank 0 \"\"");
}

Test(group, the_late_are_told_why_and_a_second_try_is_a_new_one)
{
    struct wire_join late;

    case_join(&joins[0], 0, 3, 0, 1);
    case_join(&joins[1], 1, 3, 0, 1);
    case_join(&late, 2, 3, 0, 1);
    members(NODE_A, &joins[0], 1);
    case_join_size(&joins[1], 4);
    members(NODE_B, &joins[1], 1);
    now += 5000;
    members(NODE_B, &late, 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert(strstr(case_sent(&up, WIRE_REFUSED, 0)->msg->refused.error.text, "micro_batch_size"));
    /* The same processes again get the same answer; opened anew, they form a group. */
    members(NODE_A, &joins[0], 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    joins[0].incarnation.opened_ns += 1000;
    members(NODE_A, &joins[0], 1);
    only_told_of(2, 1);
    joins[1].incarnation.opened_ns += 1000;
    late.incarnation.opened_ns += 1000;
    case_join_size(&joins[1], 2);
    {
        struct wire_join both[2] = {joins[1], late};

        members(NODE_B, both, 2);
    }
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
}

Test(group, a_failed_attempt_is_forgotten)
{
    struct wire_join late;

    two_joins();
    case_join_size(&joins[1], 4);
    members(NODE_B, &joins[1], 1);
    pass(31000, false, false, NULL);
    case_join(&late, 1, 2, 0, 1);
    late.incarnation.random = 77;
    members(NODE_B, &late, 1);
    only_told_of(1, 0); /* a new attempt */
}

Test(group, a_higher_incarnation_supersedes_while_forming)
{
    struct wire_join again;

    two_joins();
    again = joins[0];
    again.incarnation.opened_ns++;
    again.pid = 99;
    members(NODE_B, &again, 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert_eq(case_sent(&up, WIRE_REFUSED, 0)->to, NODE_A);
    cr_assert(strstr(case_sent(&up, WIRE_REFUSED, 0)->msg->refused.error.text, "rank 0 (pid 4200 on h) was opened again by pid 99"));
    members(NODE_A, &joins[0], 1); /* it does not give up */
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert_eq(case_sent(&up, WIRE_REFUSED, 0)->to, NODE_A);
}

Test(group, a_member_that_its_node_does_not_name_any_more_is_gone)
{
    struct wire_join three[3];

    for (uint32_t i = 0; i < 3; i++)
        case_join(&three[i], i, 3, 0, 1);
    members(NODE_A, three, 2);
    members(NODE_A, three, 1);
    members(NODE_B, &three[2], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 0);
    members(NODE_A, three, 2);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
}

Test(group, the_last_member_of_a_node_is_taken_back_by_name)
{
    struct wire_message msg = {.type = WIRE_ABORT};

    two_joins();
    strcpy(msg.abort.job, "qwen");
    strcpy(msg.abort.group, "dp");
    feed(NODE_A, &msg);
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 0);
}

Test(group, a_forming_member_not_heard_of_is_forgotten)
{
    two_joins();
    pass(11000, false, false, NULL);
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 0);
}

Test(group, ranks_out_of_range_are_refused)
{
    case_join(&joins[0], 5, 2, 0, 1);
    members(NODE_A, &joins[0], 1);
    cr_assert(strstr(case_sent(&up, WIRE_REFUSED, 0)->msg->refused.error.text, "rank 5 is out of range"));
    case_join(&joins[0], 0, 2, 3, 1);
    members(NODE_A, &joins[0], 1);
    cr_assert(strstr(case_sent(&up, WIRE_REFUSED, 0)->msg->refused.error.text, "replica 3 is out of range"));
    case_join(&joins[0], 0, 1u << 20, 0, 1u << 20);
    members(NODE_A, &joins[0], 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
}

Test(group, another_user_s_job_of_the_same_name_is_another_job)
{
    two_joins();
    joins[1].uid = 1001;
    members(NODE_B, &joins[1], 1);
    only_told_of(1, 0);
}

Test(group, messages_that_no_node_sends_are_ignored)
{
    for (uint32_t type = WIRE_HELLO; type < WIRE_N_TYPES; type++) {
        struct wire_message msg = {.type = type};

        feed(NODE_A, &msg);
    }
    cr_assert_null(report().state);
}

Test(group, a_beacon_every_250_ms)
{
    uint32_t n = 0;

    form();
    for (int i = 0; i < 8; i++) {
        cr_assert_leq(up.next_ms, now + 250);
        now += 250;
        tick();
        n += up.n_publishes;
        cr_assert_eq(up.publishes[0]->beacon.missing_total, 2);
    }
    cr_assert_eq(n, 8);
}
