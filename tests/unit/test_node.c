/* SPDX-License-Identifier: Apache-2.0 */
/* A node: how processes come to it and into an epoch, and its mode; each rule with a case. */
#include "tests/unit/node_case.h"

TestSuite(node, .init = setup, .fini = teardown);

Test(node, a_join_is_told_to_every_coordinator)
{
    const struct wire_message *msg;

    join(0, "tcp://a:1,tcp://b:2");
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 2);
    cr_assert_str_eq(node_link_endpoint(node, 0), "tcp://a:1");
    cr_assert_str_eq(node_link_endpoint(node, 1), "tcp://b:2");
    cr_assert_null(node_link_endpoint(node, 2));
    msg = case_sent(&up, WIRE_MEMBERS, 0)->msg;
    cr_assert_eq(msg->members.n_joins, 1);
    cr_assert_eq(msg->members.joins[0].uid, 1000, "the kernel's word");
    cr_assert_eq(msg->members.joins[0].pid, 4001);
    join(1, "tcp://a:1,tcp://b:2");
    cr_assert_eq(case_sent(&up, WIRE_MEMBERS, 0)->msg->members.n_joins, 2);
    cr_assert_null(node_link_endpoint(node, 2));
}

Test(node, no_coordinators_means_the_local_one)
{
    join(0, "");
    cr_assert_str_eq(node_link_endpoint(node, 0), "");
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 1);
}

Test(node, members_are_told_again_while_one_waits)
{
    join(0, "");
    cr_assert_leq(up.next_ms, now + 1000);
    now += 1000;
    tick();
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 1);
    join(1, "");
    send_roster(0);
    now += 1000;
    tick();
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 0);
    cr_assert_eq(case_count(&up, WIRE_HEARTBEAT), 1);
}

Test(node, what_cannot_be_is_refused_at_once)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    case_join(&msg.join, 7, 3, 0, 1);
    open_session(9, 1000);
    from(9, &msg);
    cr_assert(strstr(refusal(), "rank 7 is out of range"));
    case_join(&msg.join, 0, 3, 0, 1);
    msg.join.wire_version = 99;
    open_session(10, 1000);
    from(10, &msg);
    cr_assert(strstr(refusal(), "wire version 99"));
    case_join(&msg.join, 0, 3, 0, 1);
    open_session(11, 65534);
    from(11, &msg);
    cr_assert(strstr(refusal(), "65534"));
}

Test(node, the_newer_of_two_processes_of_a_rank_stays)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    join(0, "");
    msg.join = joins[0];
    msg.join.incarnation.opened_ns++;
    open_session(8, 1000);
    from(8, &msg);
    cr_assert(strstr(refusal(), "rank 0 (pid 4001) was opened again by pid 4008"));
    cr_assert_eq(up.closes[0], 1);
    msg.join.incarnation.opened_ns -= 2;
    open_session(9, 1000);
    from(9, &msg);
    refusal();
    cr_assert_eq(up.closes[0], 9);
}

Test(node, the_same_process_on_a_new_connection_takes_over)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    begin("");
    msg.join = joins[0];
    msg.join.epoch = EPOCH;
    open_session(8, 1000);
    from(8, &msg);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 0);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
    end(1);
    cr_assert_eq(up.n_sends, 0, "the old connection means nothing any more");
    submit(1, 0, 5);
    case_meta(&meta, 0, 0, 0, LENGTHS(3));
    meta.meta.epoch = EPOCH;
    msg.type = WIRE_META;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta.meta;
    from(8, &msg);
    cr_assert_eq(count_up(WIRE_META), 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.n_metas, 2);
}

Test(node, users_do_not_meet)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    begin("");
    msg.join = joins[0];
    open_session(8, 1001);
    from(8, &msg);
    cr_assert_eq(case_sent(&up, WIRE_MEMBERS, 0)->msg->members.n_joins, 1);
    cr_assert_eq(case_sent(&up, WIRE_MEMBERS, 0)->msg->members.joins[0].uid, 1001);
    cr_assert_eq(node_peers(node, 8, NULL, 0), 0);
    send_roster(0);
    for (uint32_t i = 0; case_sent(&up, WIRE_ROSTER, i); i++)
        cr_assert_neq(case_sent(&up, WIRE_ROSTER, i)->to, 8);
}

Test(node, a_failed_attempt_is_told_to_those_who_wait)
{
    struct wire_message msg = {.type = WIRE_ABORT};

    join(0, "");
    join(1, "");
    strcpy(msg.abort.job, "qwen");
    strcpy(msg.abort.group, "dp");
    msg.abort.error.code = -EINVAL;
    down(0, &msg);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    now += 1000;
    tick();
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 0);
    end(1);
    end(2);
    cr_assert_eq(up.n_sends, 0);
}

Test(node, who_goes_before_the_epoch_is_only_named_no_more)
{
    join(0, "");
    join(1, "");
    end(1);
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 1);
    cr_assert_eq(case_sent(&up, WIRE_MEMBERS, 0)->msg->members.n_joins, 1);
    end(2);
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 0);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 1);
    cr_assert(wire_id_none(case_sent(&up, WIRE_ABORT, 0)->msg->abort.epoch));
}

Test(node, a_roster_that_counts_on_the_dead_is_objected_to)
{
    join(0, "");
    send_roster(0);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 1);
    cr_assert_eq(count_up(WIRE_ABORT), 1);
    cr_assert_eq(case_sent(&up, WIRE_ABORT, 0)->msg->abort.rank, 1);
    cr_assert(wire_id_is(case_sent(&up, WIRE_ABORT, 0)->msg->abort.epoch, EPOCH));
}

Test(node, a_second_epoch_for_a_process_is_objected_to)
{
    begin("");
    roster.roster.epoch.lo++;
    down(0, &roster);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 0);
    cr_assert_eq(count_up(WIRE_ABORT), 1);
    cr_assert_eq(case_sent(&up, WIRE_ABORT, 0)->msg->abort.epoch.lo, EPOCH.lo + 1);
}

Test(node, peers_are_those_of_the_epoch_with_the_replica_number)
{
    struct wire_join_name who;
    struct wire_id epoch;
    uint64_t sessions[4];

    join(0, "");
    cr_assert(node_session_who(node, 1, &who, &epoch));
    cr_assert(wire_id_none(epoch));
    cr_assert_eq(node_peers(node, 1, sessions, 4), 0);
    join(1, "");
    send_roster(0);
    cr_assert_eq(node_peers(node, 1, sessions, 4), 1);
    cr_assert_eq(sessions[0], 2);
    cr_assert(node_session_who(node, 2, &who, &epoch));
    cr_assert(wire_id_is(epoch, EPOCH));
    cr_assert_eq(who.rank, 1);
    cr_assert(!node_session_who(node, 77, &who, &epoch));
}

/* ----------------------------------------------------------------------------------------------------------------- mode */

static int set_mode(const char *job, uint32_t mode, uint32_t uid)
{
    return step((struct node_event){.kind = NODE_SET_MODE, .job = job, .group = "", .mode = mode, .uid = uid});
}

Test(node, the_mode_is_set_by_the_owner_or_root)
{
    cr_assert_eq(set_mode("", POISE_MODE_OFF, 0), -ENOENT);
    begin("");
    cr_assert_eq(set_mode("qwen", POISE_MODE_OFF, 1001), -EACCES);
    cr_assert_eq(up.n_sends, 0);
    cr_assert_eq(set_mode("other", POISE_MODE_OFF, 1000), -ENOENT);
    cr_assert_eq(set_mode("qwen", POISE_MODE_OFF, 1000), 0);
    cr_assert_eq(case_count(&up, WIRE_MODE), 2);
    cr_assert_eq(case_sent(&up, WIRE_MODE, 0)->msg->mode.mode, POISE_MODE_OFF);
    cr_assert_eq(set_mode("", POISE_MODE_SHADOW, 0), 0);
    cr_assert_eq(case_count(&up, WIRE_MODE), 2);
    join(2, "");
    cr_assert_eq(case_count(&up, WIRE_MODE), 1, "who comes later is told");
}

Test(node, messages_that_nobody_sends_are_ignored)
{
    begin("");
    for (uint32_t type = WIRE_HELLO; type < WIRE_N_TYPES; type++) {
        struct wire_message msg = {.type = type};

        from(1, &msg);
        from(77, &msg);
        down(0, &msg);
        down(55, &msg);
    }
    submit(0, 0, 5);
    submit(1, 0, 5);
    cr_assert_eq(count_up(WIRE_META), 1, "and did no harm");
}
