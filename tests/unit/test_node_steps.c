/* SPDX-License-Identifier: Apache-2.0 */
/* A node and its steps: metadata up, outcomes down, what is asked for again; each rule with a case. */
#include "tests/unit/node_case.h"

TestSuite(node_steps, .init = setup, .fini = teardown);

Test(node_steps, metadata_goes_up_in_one_message_to_each_coordinator)
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

Test(node_steps, metadata_of_a_stranger_is_dropped)
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

Test(node_steps, parts_go_up_when_they_are_asked_for)
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

Test(node_steps, once_asked_for_parts_do_not_wait_for_each_other)
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

Test(node_steps, a_process_gets_the_merged_table_once_and_on_request)
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

Test(node_steps, a_merged_table_that_is_not_here_is_asked_for)
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

Test(node_steps, a_table_is_asked_for_and_passed_on)
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

Test(node_steps, each_process_gets_the_slice_of_its_rank_and_the_first_outcome_counts)
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

Test(node_steps, an_outcome_is_kept_for_who_asks_again)
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

Test(node_steps, a_step_that_a_beacon_proves_is_asked_for_after_a_while)
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

Test(node_steps, an_outcome_that_comes_in_time_is_not_asked_for)
{
    begin("");
    send_beacon(0, 1);
    send_outcome(0, 0, 42);
    now += 50;
    tick();
    cr_assert_eq(case_count(&up, WIRE_PULL), 0);
}

Test(node_steps, a_coordinator_that_takes_up_the_epoch_gets_what_is_open)
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

Test(node_steps, who_does_not_know_the_epoch_is_told_its_members)
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

Test(node_steps, heartbeats_say_what_is_missing)
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
