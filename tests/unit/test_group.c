/* SPDX-License-Identifier: Apache-2.0 */
/* A group at a coordinator: how it forms, decides, is asked, and ends; each rule with a case. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/core_case.h"

#define NODE_A 1u /* links of two nodes */
#define NODE_B 2u

static struct coordinator *c;
static struct core_update up;
static uint64_t now;

static void setup(void)
{
    struct coordinator_config config = {.instance = {1, 1}, .beacon_ms = 250, .node_timeout_ms = 10000, .warn_ms = 60000,
                                        .forget_ms = 30000};

    now = 1000;
    cr_assert_eq(coordinator_new(&config, &c), 0);
}

static void teardown(void)
{
    coordinator_free(c);
}

TestSuite(group, .init = setup, .fini = teardown);

static void feed(uint64_t link, const struct wire_message *msg)
{
    struct coordinator_event event = {.now_ms = now, .kind = COORDINATOR_FROM_NODE, .link = link, .msg = msg};
    struct poise_err err;

    cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
}

static void tick(void)
{
    struct coordinator_event event = {.now_ms = now, .kind = COORDINATOR_TICK};
    struct poise_err err;

    cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
}

/* Time passes as it does: a tick every 250 ms, heartbeats of the given links. */
static struct wire_id epoch;

static void beat(uint64_t link, uint64_t oldest_open, uint32_t n_missing)
{
    struct wire_heartbeat_epoch one = {.epoch = epoch, .oldest_open = oldest_open, .n_missing = n_missing};
    struct wire_message msg = {.type = WIRE_HEARTBEAT};

    msg.heartbeat.instance = (struct wire_id){link, link};
    msg.heartbeat.n_epochs = 1;
    msg.heartbeat.epochs = &one;
    feed(link, &msg);
}

static bool pass(uint64_t ms, bool a, bool b, const char *until)
{
    for (uint64_t end = now + ms; now < end;) {
        now += 250;
        tick();
        if (until && case_logged(&up, until))
            return true;
        if (a && now % 1000 == 0)
            beat(NODE_A, 0, 1);
        if (b && now % 1000 == 0)
            beat(NODE_B, 0, 1);
    }
    return false;
}

static void members(uint64_t link, struct wire_join *joins, uint32_t n)
{
    struct wire_message msg = {.type = WIRE_MEMBERS};

    msg.members.instance = (struct wire_id){link, link};
    strcpy(msg.members.name, link == NODE_A ? "nodeA" : "nodeB");
    msg.members.n_joins = n;
    msg.members.joins = joins;
    feed(link, &msg);
}

/* Nothing else is sent than who is missing: n ranks, the first of them that one. */
static void only_told_of(uint32_t n, uint32_t first)
{
    const struct wire_forming *forming = &case_sent(&up, WIRE_FORMING, 0)->msg->forming;

    cr_assert_eq(up.n_sends, 1);
    cr_assert_eq(forming->missing_total, n);
    cr_assert_eq(forming->n_missing, n);
    cr_assert(forming->missing[0] == first && forming->missing_replica[0] == 0);
}

/* Ranks 0 and 1, one a node; the epoch runs. */
static struct wire_join joins[2];

static void form(void)
{
    case_join(&joins[0], 0, 2, 0, 1);
    case_join(&joins[1], 1, 2, 0, 1);
    members(NODE_A, &joins[0], 1);
    only_told_of(1, 1);
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
    epoch = case_sent(&up, WIRE_ROSTER, 0)->msg->roster.epoch;
    cr_assert(!wire_id_none(epoch));
}

static struct case_meta metas[2];

static void feed_meta(uint64_t link, struct case_meta *meta)
{
    struct wire_message msg = {.type = WIRE_META};

    meta->meta.epoch = epoch;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta->meta;
    feed(link, &msg);
}

static void decide(uint64_t step)
{
    case_meta(&metas[0], 0, 0, step, LENGTHS(100, 4));
    case_meta(&metas[1], 1, 0, step, LENGTHS(4, 100));
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 0);
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
    cr_assert_eq(up.n_publishes, 1);
}

static const struct wire_message *ask(uint64_t link, enum wire_type type, uint64_t step, bool want_table)
{
    struct wire_message msg = {.type = WIRE_PULL};

    msg.ask.epoch = epoch;
    msg.ask.step = step;
    msg.ask.want_table = want_table;
    feed(link, &msg);
    return case_sent(&up, type, 0) ? case_sent(&up, type, 0)->msg : NULL;
}

static void abort_from(uint64_t link, uint32_t rank, bool left, uint64_t step)
{
    struct wire_message msg = {.type = WIRE_ABORT};

    msg.abort.epoch = epoch;
    msg.abort.rank = rank;
    msg.abort.left = left;
    msg.abort.step = step;
    msg.abort.error.code = -ESHUTDOWN;
    strcpy(msg.abort.error.text, left ? "rank 1 left" : "rank 1 died");
    feed(link, &msg);
}

static struct group_report report(void)
{
    struct group_report *reports, first = {0};
    uint32_t n;

    cr_assert_eq(coordinator_report(c, now, &reports, &n), 0);
    if (n)
        first = reports[0];
    free(reports);
    return first;
}

/* -------------------------------------------------------------------------------------------------------------- forming */

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

/* ---------------------------------------------------------------------------------------------------------------- steps */

Test(group, decides_when_all_metadata_is_in)
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

Test(group, steps_are_decided_in_any_order)
{
    form();
    decide(3);
    cr_assert_eq(up.publishes[0]->beacon.decided, 4);
    decide(1);
    cr_assert_eq(up.publishes[0]->beacon.decided, 4);
    cr_assert(wire_id_none(up.publishes[0]->beacon.plan_id[0]));
    cr_assert(!wire_id_none(up.publishes[0]->beacon.plan_id[1]));
}

Test(group, a_second_word_is_dropped_and_the_same_word_is_nothing)
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

Test(group, metadata_of_another_incarnation_is_refused)
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

Test(group, an_outcome_is_told_again_on_request)
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

Test(group, what_is_missing_is_asked_for_where_it_is_missing_and_not_too_often)
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

Test(group, a_question_does_not_push_steps_out)
{
    form();
    decide(0);
    ask(NODE_A, WIRE_NEED, UINT64_MAX - 3, false);
    cr_assert_not_null(ask(NODE_B, WIRE_OUTCOME, 0, false));
}

Test(group, a_heartbeat_shows_what_was_lost)
{
    form();
    beat(NODE_A, 0, 1);
    cr_assert_eq(up.n_sends, 0, "its rank has not submitted");
    beat(NODE_A, 0, 0);
    cr_assert_eq(case_count(&up, WIRE_NEED), 2);
}

Test(group, tables_are_asked_for_and_merged_and_told_when_they_change)
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

Test(group, a_slow_rank_is_worth_one_line)
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

Test(group, ranks_that_submit_the_same_are_named_once)
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

Test(group, an_unknown_epoch_is_asked_for_and_run_when_all_claim_it)
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

Test(group, a_claim_that_is_not_the_hash_does_not_run)
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

Test(group, claims_that_stay_incomplete_name_who_is_missing)
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

Test(group, a_restarted_poised_takes_its_place)
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

/* ----------------------------------------------------------------------------------------------------------------- ends */

Test(group, a_death_ends_it_for_all_and_for_the_late)
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

Test(group, what_was_counted_is_told_after_the_end_too)
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

Test(group, an_epoch_that_nobody_speaks_of_is_forgotten_but_not_ended)
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

Test(group, a_higher_incarnation_is_proof_that_the_epoch_is_over)
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

Test(group, a_lower_incarnation_is_refused_and_harmless)
{
    form();
    joins[1].incarnation.opened_ns--;
    members(NODE_B, &joins[1], 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert_str_eq(report().state, "running");
}

Test(group, who_does_not_belong_does_not_disturb)
{
    struct wire_join other;

    form();
    case_join(&other, 2, 4, 0, 1);
    members(NODE_B, &other, 1);
    cr_assert_eq(case_count(&up, WIRE_REFUSED), 1);
    cr_assert_str_eq(report().state, "running");
}

Test(group, steps_up_to_a_leave_are_still_decided)
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

Test(group, leaving_after_the_end_harms_nobody)
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

Test(group, a_node_whose_processes_have_left_is_not_silent)
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

Test(group, a_leave_reaches_those_who_wait_for_a_claim_to_be_whole)
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

Test(group, a_silent_node_is_said_to_be_silent_and_nothing_more)
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

Test(group, a_poised_without_the_processes_is_silent_too)
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

Test(group, after_a_stall_everyone_has_time_again)
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

Test(group, a_lost_connection_proves_nothing)
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
