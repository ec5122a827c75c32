/* SPDX-License-Identifier: Apache-2.0 */
/* A node between its processes and its coordinators; each rule with a case. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/core_case.h"

static struct node *node;
static struct core_update up;
static uint64_t now;

static const struct wire_id EPOCH = {0xe, 0xe};

static void setup(void)
{
    struct node_config config = {.instance = {5, 5}, .name = "nodeA", .heartbeat_ms = 1000, .pull_delay_ms = 20,
                                 .silence_ms = 2000, .node_timeout_ms = 10000};

    now = 1000;
    cr_assert_eq(node_new(&config, &node), 0);
}

static void teardown(void)
{
    node_free(node);
}

TestSuite(node, .init = setup, .fini = teardown);

static int step(struct node_event event)
{
    struct poise_err err;

    event.now_ms = now;
    return node_step(node, &event, &up, &err);
}

static void from(uint64_t session, const struct wire_message *msg)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_FROM_PROCESS, .session = session, .msg = msg}), 0);
}

static void down(uint64_t link, const struct wire_message *msg)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_FROM_COORDINATOR, .link = link, .msg = msg}), 0);
}

static void tick(void)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_TICK}), 0);
}

static void end(uint64_t session)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_SESSION_END, .session = session}), 0);
}

static void open_session(uint64_t session, uint32_t uid)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_SESSION, .session = session, .uid = uid,
                                          .pid = 4000 + (uint32_t)session}), 0);
}

static struct wire_join joins[4]; /* by session - 1 */

/* Rank r of 3 on session r + 1. */
static void join(uint32_t rank, const char *coordinators)
{
    static char list[64];
    struct wire_message msg = {.type = WIRE_JOIN};

    strcpy(list, coordinators);
    case_join(&joins[rank], rank, 3, 0, 1);
    joins[rank].coordinators = list;
    msg.join = joins[rank];
    open_session(rank + 1, 1000);
    from(rank + 1, &msg);
}

static struct wire_message roster;
static struct wire_member roster_members[3];

/* Ranks 0 and 1 are here, 2 is elsewhere. */
static void send_roster(uint64_t link)
{
    memset(&roster, 0, sizeof roster);
    roster.type = WIRE_ROSTER;
    roster.roster.epoch = EPOCH;
    strcpy(roster.roster.job, "qwen");
    strcpy(roster.roster.group, "dp");
    roster.roster.uid = 1000;
    roster.roster.n_ranks = 3;
    roster.roster.n_replicas = 1;
    roster.roster.n_nodes = 2;
    roster.roster.n_members = 3;
    roster.roster.members = roster_members;
    for (uint32_t i = 0; i < 3; i++) {
        memset(&roster_members[i], 0, sizeof roster_members[i]);
        roster_members[i].rank = i;
        roster_members[i].node = i == 2;
        roster_members[i].incarnation = (struct wire_incarnation){0, 100 + i, 0};
    }
    down(link, &roster);
}

static void begin(const char *coordinators)
{
    join(0, coordinators);
    join(1, coordinators);
    send_roster(0);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
}

static struct case_meta meta;

static void submit(uint32_t rank, uint64_t number, uint64_t length)
{
    struct wire_message msg = {.type = WIRE_META};

    case_meta(&meta, rank, 0, number, LENGTHS(length));
    meta.meta.epoch = EPOCH;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta.meta;
    from(rank + 1, &msg);
}

static struct wire_message outcome;

static void send_outcome(uint64_t link, uint64_t number, uint64_t plan)
{
    static struct wire_slice slices[2];
    static uint32_t counts[2] = {0, 0};

    memset(&outcome, 0, sizeof outcome);
    outcome.type = WIRE_OUTCOME;
    outcome.outcome.epoch = EPOCH;
    outcome.outcome.step = number;
    outcome.outcome.plan_id.lo = plan;
    outcome.outcome.n_micro_batches = 1;
    outcome.outcome.n_slices = 2;
    outcome.outcome.slices = slices;
    for (uint32_t i = 0; i < 2; i++)
        slices[i] = (struct wire_slice){.rank = i, .count = &counts[i]};
    down(link, &outcome);
}

static void send_beacon(uint64_t link, uint64_t decided)
{
    struct wire_message msg = {.type = WIRE_BEACON};

    msg.beacon.epoch = EPOCH;
    msg.beacon.decided = decided;
    down(link, &msg);
}

static void ask(enum wire_type type, uint64_t to, uint64_t number, bool want_table)
{
    struct wire_message msg = {.type = type};

    msg.ask.epoch = EPOCH;
    msg.ask.step = number;
    msg.ask.want_table = want_table;
    if (type == WIRE_NEED)
        down(to, &msg);
    else
        from(to, &msg);
}

static void leave(uint64_t session, uint64_t submitted, bool ended)
{
    struct wire_message msg = {.type = WIRE_LEAVE};

    msg.leave.epoch = EPOCH;
    msg.leave.submitted = submitted;
    msg.leave.ended = ended;
    from(session, &msg);
}

static uint32_t count_up(enum wire_type type)
{
    uint32_t n = 0;

    for (uint32_t i = 0; case_sent(&up, type, i); i++)
        n += case_sent(&up, type, i)->up;
    return n;
}

/* --------------------------------------------------------------------------------------------------------------- joining */

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

static const char *refusal(void)
{
    const struct core_send *send = case_sent(&up, WIRE_REFUSED, 0);

    cr_assert_not_null(send);
    cr_assert_eq(up.n_closes, 1);
    cr_assert_eq(up.closes[0], send->to);
    return send->msg->refused.error.text;
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

/* ---------------------------------------------------------------------------------------------------------------- steps */

Test(node, metadata_goes_up_in_one_message_to_each_coordinator)
{
    begin("c0,c1");
    submit(0, 0, 5);
    cr_assert_eq(up.n_sends, 0);
    submit(1, 0, 6);
    cr_assert_eq(count_up(WIRE_META), 2);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.n_metas, 2);
    cr_assert_neq(case_sent(&up, WIRE_META, 0)->to, case_sent(&up, WIRE_META, 1)->to);
    submit(1, 0, 6);
    cr_assert_eq(up.n_sends, 0, "the same again");
    submit(1, 0, 7);
    cr_assert_eq(up.n_sends, 0);
    cr_assert(case_logged(&up, "changes its metadata"));
}

Test(node, metadata_of_a_stranger_is_dropped)
{
    struct wire_message msg = {.type = WIRE_META};
    struct node_report report;

    begin("");
    case_meta(&meta, 1, 0, 0, LENGTHS(5)); /* of rank 1, from rank 0's session */
    meta.meta.epoch = EPOCH;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta.meta;
    from(1, &msg);
    meta.meta.rank = 0;
    from(1, &msg);
    meta.meta.incarnation = joins[0].incarnation;
    meta.meta.epoch.lo++;
    from(1, &msg);
    msg.meta.n_metas = 0;
    from(1, &msg);
    cr_assert_eq(node_report(node, &report), 0);
    cr_assert_eq(report.stale, 4);
    cr_assert_eq(report.n_processes, 2);
    free(report.processes);
}

Test(node, parts_go_up_when_they_are_asked_for)
{
    begin("");
    submit(0, 0, 5);
    ask(WIRE_NEED, 0, 0, false);
    cr_assert_eq(count_up(WIRE_META), 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.n_metas, 1);
    cr_assert_eq(case_count(&up, WIRE_NEED), 1, "the other is asked");
    cr_assert_eq(case_sent(&up, WIRE_NEED, 0)->to, 2);
    submit(1, 0, 6);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.n_metas, 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.metas[0].rank, 1);
    ask(WIRE_NEED, 0, 9, false);
    cr_assert_eq(case_count(&up, WIRE_NEED), 2, "nothing of step 9 is here");
}

Test(node, once_asked_for_parts_do_not_wait_for_each_other)
{
    for (uint32_t rank = 0; rank < 3; rank++)
        join(rank, "");
    send_roster(0);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 3);
    ask(WIRE_NEED, 0, 0, false);
    submit(0, 0, 5);
    cr_assert_eq(up.n_sends, 0, "nothing of step 0 was here when it was asked for");
    ask(WIRE_NEED, 0, 0, false);
    submit(1, 0, 5);
    cr_assert_eq(count_up(WIRE_META), 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.metas[0].rank, 1);
}

Test(node, a_process_gets_the_merged_table_once_and_on_request)
{
    struct case_meta with_table;

    begin("");
    case_meta(&with_table, 0, 0, 0, NULL, 0);
    case_field(&with_table, "ids", "tokens");
    send_outcome(0, 0, 1);
    for (uint64_t number = 1; number < 3; number++) {
        outcome.outcome.step = number;
        outcome.outcome.table_hash = with_table.meta.table_hash;
        outcome.outcome.table = number == 1 ? &with_table.table : NULL;
        down(0, &outcome);
        cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
        cr_assert_eq(case_sent(&up, WIRE_OUTCOME, 0)->msg->outcome.table != NULL, number == 1);
    }
    ask(WIRE_PULL, 1, 2, true);
    cr_assert_not_null(case_sent(&up, WIRE_OUTCOME, 0)->msg->outcome.table);
}

Test(node, a_merged_table_that_is_not_here_is_asked_for)
{
    begin("");
    send_outcome(0, 0, 1);
    outcome.outcome.step = 1;
    outcome.outcome.table_hash = (struct wire_id){3, 3};
    down(0, &outcome);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
    cr_assert_eq(count_up(WIRE_PULL), 1);
    cr_assert(case_sent(&up, WIRE_PULL, 0)->msg->ask.want_table);
}

Test(node, a_table_is_asked_for_and_passed_on)
{
    struct wire_message msg = {.type = WIRE_META};

    begin("");
    submit(1, 0, 5);
    case_meta(&meta, 0, 0, 0, LENGTHS(5));
    case_field(&meta, "ids", "tokens");
    meta.meta.epoch = EPOCH;
    meta.meta.table = NULL;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta.meta;
    from(1, &msg);
    cr_assert_eq(count_up(WIRE_META), 1);
    ask(WIRE_NEED, 0, 0, true);
    cr_assert_eq(case_count(&up, WIRE_NEED), 1);
    cr_assert_eq(case_sent(&up, WIRE_NEED, 0)->to, 1);
    cr_assert(case_sent(&up, WIRE_NEED, 0)->msg->ask.want_table);
    meta.meta.table = &meta.table;
    from(1, &msg);
    cr_assert_eq(count_up(WIRE_META), 1);
    cr_assert_not_null(case_sent(&up, WIRE_META, 0)->msg->meta.metas[0].table);
}

Test(node, each_process_gets_the_slice_of_its_rank_and_the_first_outcome_counts)
{
    begin("c0,c1");
    send_outcome(1, 0, 42);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct core_send *send = case_sent(&up, WIRE_OUTCOME, i);

        cr_assert_eq(send->msg->outcome.n_slices, 1);
        cr_assert_eq(send->msg->outcome.slices[0].rank + 1, send->to);
    }
    send_outcome(0, 0, 42);
    cr_assert_eq(up.n_sends, 0);
    send_outcome(0, 0, 43);
    cr_assert_eq(up.n_sends, 0);
    cr_assert(case_logged(&up, "two coordinators disagree"));
}

Test(node, an_outcome_is_kept_for_who_asks_again)
{
    begin("");
    send_outcome(0, 0, 42);
    ask(WIRE_PULL, 2, 0, false);
    cr_assert_eq(up.n_sends, 1);
    cr_assert_eq(case_sent(&up, WIRE_OUTCOME, 0)->to, 2);
    ask(WIRE_PULL, 2, 1, false);
    cr_assert_eq(count_up(WIRE_PULL), 1);
    ask(WIRE_PULL, 3, 1, false);
    cr_assert_eq(up.n_sends, 0, "no such process");
}

Test(node, a_step_that_a_beacon_proves_is_asked_for_after_a_while)
{
    uint64_t heard = now;

    begin("c0,c1");
    submit(0, 0, 5);
    submit(1, 0, 5);
    send_beacon(1, 1);
    cr_assert_eq(up.n_sends, 0);
    cr_assert(up.next_ms >= heard + 20 && up.next_ms <= heard + 40, "in %lu ms", (unsigned long)(up.next_ms - heard));
    now = up.next_ms;
    tick();
    cr_assert_eq(case_count(&up, WIRE_PULL), 1);
    cr_assert_eq(case_sent(&up, WIRE_PULL, 0)->to, 1, "of the one that proved it");
    cr_assert_eq(up.next_ms, now + 100, "and again");
    send_outcome(1, 0, 42);
    now += 100;
    tick();
    cr_assert_eq(case_count(&up, WIRE_PULL), 0);
}

Test(node, an_outcome_that_comes_in_time_is_not_asked_for)
{
    begin("");
    send_beacon(0, 1);
    send_outcome(0, 0, 42);
    now += 50;
    tick();
    cr_assert_eq(case_count(&up, WIRE_PULL), 0);
}

Test(node, a_coordinator_that_takes_up_the_epoch_gets_what_is_open)
{
    begin("c0,c1");
    submit(0, 0, 5);
    submit(1, 0, 5);
    send_outcome(0, 0, 1);
    submit(0, 1, 5);
    send_roster(1);
    cr_assert_eq(count_up(WIRE_META), 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->to, 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.metas[0].step, 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 0, "the processes have it");
}

Test(node, who_does_not_know_the_epoch_is_told_its_members)
{
    struct wire_message msg = {.type = WIRE_UNKNOWN};

    begin("c0,c1");
    msg.unknown.epoch = EPOCH;
    down(1, &msg);
    cr_assert_eq(case_count(&up, WIRE_MEMBERS), 1);
    cr_assert_eq(case_sent(&up, WIRE_MEMBERS, 0)->to, 1);
    cr_assert(wire_id_is(case_sent(&up, WIRE_MEMBERS, 0)->msg->members.joins[0].epoch, EPOCH));
    down(1, &msg);
    cr_assert_eq(up.n_sends, 0, "not more often than every 200 ms");
    msg.unknown.epoch.lo++;
    now += 1000;
    down(1, &msg);
    cr_assert_eq(up.n_sends, 0);
}

Test(node, heartbeats_say_what_is_missing)
{
    const struct wire_heartbeat_epoch *beat;

    begin("");
    submit(0, 0, 5);
    now += 1000;
    tick();
    beat = &case_sent(&up, WIRE_HEARTBEAT, 0)->msg->heartbeat.epochs[0];
    cr_assert(beat->oldest_open == 0 && beat->n_missing == 1 && beat->missing[0] == 1);
    submit(1, 0, 5);
    send_outcome(0, 0, 42);
    now += 1000;
    tick();
    beat = &case_sent(&up, WIRE_HEARTBEAT, 0)->msg->heartbeat.epochs[0];
    cr_assert(beat->oldest_open == 1 && beat->n_missing == 2);
}

/* ----------------------------------------------------------------------------------------------------------------- ends */

Test(node, a_death_is_told_to_everyone_at_once)
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

Test(node, a_death_is_repeated_until_it_is_echoed)
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

Test(node, who_left_in_order_is_no_death)
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

Test(node, a_leave_is_repeated_until_its_step_or_an_earlier_one_is_echoed)
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

Test(node, who_leaves_without_a_step_ends_it)
{
    begin("");
    leave(2, 0, false);
    cr_assert(!case_sent(&up, WIRE_ABORT, 0)->msg->abort.left);
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "before its first step"));
}

Test(node, who_leaves_after_the_end_harms_nobody)
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

Test(node, silence_is_believed_when_every_coordinator_that_is_heard_says_so)
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

Test(node, who_has_all_it_can_get_needs_no_other_node)
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

Test(node, two_coordinators_that_say_so_suffice)
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

Test(node, a_coordinator_s_abort_is_passed_on_once)
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

Test(node, who_does_not_come_back_to_a_restarted_poised_is_named)
{
    come_back();
    for (int i = 0; i < 9; i++)
        cr_assert(!second_pass(), "after %d s", i);
    cr_assert(second_pass());
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "rank 1 did not come back to node nodeA"));
}

Test(node, who_comes_back_late_is_in_time)
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

Test(node, nobody_gets_into_another_job_s_epoch)
{
    struct wire_message msg = {.type = WIRE_JOIN};

    begin("");
    msg.join = joins[0];
    msg.join.epoch = EPOCH;
    open_session(8, 1001); /* another user who learnt the epoch's id */
    from(8, &msg);
    cr_assert(strstr(refusal(), "the epoch of another job"));
}

Test(node, coordinators_cannot_be_made_up_without_end)
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

Test(node, no_coordinator_for_ten_seconds_is_an_error_that_names_them)
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

Test(node, after_a_stall_coordinators_have_time_again)
{
    begin("");
    now += 60000;
    tick();
    cr_assert_eq(case_count(&up, WIRE_ABORT), 0);
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
