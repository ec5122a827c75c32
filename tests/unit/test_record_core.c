/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemons do for a record: the coordinator sends rank 0's node the metadata of all ranks, the node passes it
 * on. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "tests/unit/core_case.h"

#define LINK 1u

static struct coordinator *c;
static struct core_update up;
static struct wire_option *list;
static uint32_t n_list;
static struct wire_id epoch;
static uint64_t now;

static void feed(const struct wire_message *msg)
{
    struct coordinator_event event = {.now_ms = now, .kind = COORDINATOR_FROM_NODE, .link = LINK, .msg = msg};

    cr_assert_eq(coordinator_step(c, &event, &up, NULL), 0);
}

/* Two ranks on one node. */
static void form(bool record)
{
    struct coordinator_config config = {
        .instance = {1, 1}, .beacon_ms = 250, .node_timeout_ms = 10000, .warn_ms = 60000, .forget_ms = 30000};
    struct wire_message msg = {.type = WIRE_MEMBERS};
    struct wire_join joins[2];
    struct options options;

    now = 1000;
    cr_assert_eq(coordinator_new(&config, &c), 0);
    case_options(&options);
    options.record = record;
    cr_assert_eq(options_write(&options, &list, &n_list, NULL), 0);
    for (uint32_t r = 0; r < 2; r++) {
        case_join(&joins[r], r, 2, 0, 1);
        joins[r].options = list;
        joins[r].n_options = n_list;
        joins[r].sync_set = 5 + r;
    }
    msg.members.instance = (struct wire_id){9, 9};
    strcpy(msg.members.name, "a");
    msg.members.n_joins = 2;
    msg.members.joins = joins;
    feed(&msg);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 1);
    epoch = case_sent(&up, WIRE_ROSTER, 0)->msg->roster.epoch;
}

static void done(void)
{
    coordinator_free(c);
    options_free(list, n_list);
}

TestSuite(record_core, .fini = done);

/* Both ranks' metadata of a step; they declare the same field. */
static void submit(uint64_t step)
{
    static struct case_meta cases[2];
    struct wire_meta metas[2];
    struct wire_message msg = {.type = WIRE_META, .meta = {.n_metas = 2, .metas = metas}};

    case_meta(&cases[0], 0, 0, step, LENGTHS(9, 1));
    case_meta(&cases[1], 1, 0, step, LENGTHS(1, 1));
    for (uint32_t r = 0; r < 2; r++) {
        case_field(&cases[r], "ids", "tokens");
        cases[r].meta.tag = cases[r].tags;
        metas[r] = cases[r].meta;
        metas[r].epoch = epoch;
    }
    feed(&msg);
}

static void need(uint64_t step)
{
    struct wire_message msg = {.type = WIRE_NEED, .ask = {.epoch = epoch, .step = step}};

    feed(&msg);
}

Test(record_core, the_metadata_of_all_ranks_follows_the_outcome)
{
    const struct wire_meta *metas;

    form(true);
    submit(0);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 1);
    cr_assert_eq(case_count(&up, WIRE_META), 1);
    cr_assert_eq(up.sends[up.n_sends - 1].msg->type, WIRE_META, "training waits for outcomes, not for records");
    metas = case_sent(&up, WIRE_META, 0)->msg->meta.metas;
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.n_metas, 2);
    cr_assert(metas[0].rank == 0 && metas[1].rank == 1 && metas[0].length[0] == 9 && metas[1].tag);
    cr_assert(metas[0].sync_set == 5 && metas[1].sync_set == 6 && metas[1].node == 0);
    cr_assert(metas[0].table && !metas[1].table, "each table once");
}

Test(record_core, what_was_lost_is_sent_again)
{
    form(true);
    for (uint64_t step = 0; step < 10; step++)
        submit(step);
    need(3);
    cr_assert_eq(case_count(&up, WIRE_META), 1);
    cr_assert_eq(case_sent(&up, WIRE_META, 0)->msg->meta.metas[0].step, 3);
    cr_assert(case_sent(&up, WIRE_META, 0)->msg->meta.metas[0].table);
    need(10); /* undecided: the ranks are asked */
    cr_assert_eq(case_count(&up, WIRE_META), 0);
    cr_assert_eq(case_count(&up, WIRE_NEED), 1);
}

Test(record_core, a_group_that_does_not_ask_gets_none)
{
    form(false);
    submit(0);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 1);
    cr_assert_eq(case_count(&up, WIRE_META), 0);
    need(0);
    cr_assert_eq(up.n_sends, 0);
}

/* At every allocation that may fail the step is undecided, or decided and recorded. */
Test(record_core, no_memory_has_no_effect)
{
    form(true);
    for (int64_t n = 0; n < 200; n++) {
        static struct case_meta cases[2];
        struct wire_meta metas[2];
        struct wire_message msg = {.type = WIRE_META, .meta = {.n_metas = 2, .metas = metas}};
        struct coordinator_event event = {.now_ms = now, .kind = COORDINATOR_FROM_NODE, .link = LINK, .msg = &msg};
        struct coordinator_event tick = {.now_ms = now, .kind = COORDINATOR_TICK};

        for (uint32_t r = 0; r < 2; r++) {
            case_meta(&cases[r], r, 0, (uint64_t)n, LENGTHS(9, 1));
            metas[r] = cases[r].meta;
            metas[r].epoch = epoch;
        }
        core_fault.countdown = n % 40;
        coordinator_step(c, &event, &up, NULL);
        core_fault.countdown = -1;
        if (case_count(&up, WIRE_OUTCOME) == 0) {
            cr_assert_eq(case_count(&up, WIRE_META), 0);
            cr_assert_eq(coordinator_step(c, &event, &up, NULL), 0);
            if (case_count(&up, WIRE_OUTCOME) == 0)
                cr_assert_eq(coordinator_step(c, &tick, &up, NULL), 0);
        }
        cr_assert_eq(case_count(&up, WIRE_OUTCOME), 1, "allocation %d", (int)n);
        cr_assert_eq(case_count(&up, WIRE_META), 1, "allocation %d", (int)n);
    }
}

/* ----------------------------------------------------------------------------------------------------------- the node
 */

Test(record_core, the_node_passes_it_to_rank_0_and_its_questions_up)
{
    struct node_config config = {.instance = {5, 5},
                                 .name = "a",
                                 .heartbeat_ms = 1000,
                                 .pull_delay_ms = 20,
                                 .silence_ms = 2000,
                                 .node_timeout_ms = 10000};
    struct wire_message join = {.type = WIRE_JOIN}, roster = {.type = WIRE_ROSTER}, need = {.type = WIRE_NEED};
    struct wire_member members[2] = {0};
    struct wire_meta metas[2] = {{.epoch = {7, 7}}, {.epoch = {7, 7}, .rank = 1}};
    struct wire_message meta = {.type = WIRE_META, .meta = {.n_metas = 2, .metas = metas}};
    struct node_event event = {.now_ms = 1000};
    struct node *node;

    form(false); /* for done() */
    cr_assert_eq(node_new(&config, &node), 0);
    for (uint32_t r = 0; r < 2; r++) {
        event =
            (struct node_event){.now_ms = 1000, .kind = NODE_SESSION, .session = 10 + r, .uid = 1000, .pid = 50 + r};
        cr_assert_eq(node_step(node, &event, &up, NULL), 0);
        case_join(&join.join, r, 2, 0, 1);
        event = (struct node_event){.now_ms = 1000, .kind = NODE_FROM_PROCESS, .session = 10 + r, .msg = &join};
        cr_assert_eq(node_step(node, &event, &up, NULL), 0);
        members[r] = (struct wire_member){.rank = r, .incarnation = join.join.incarnation};
    }
    roster.roster = (struct wire_roster){.epoch = {7, 7},
                                         .job = "qwen",
                                         .group = "dp",
                                         .uid = 1000,
                                         .n_ranks = 2,
                                         .n_replicas = 1,
                                         .n_nodes = 1,
                                         .n_members = 2,
                                         .members = members};
    event = (struct node_event){.now_ms = 1000, .kind = NODE_FROM_COORDINATOR, .msg = &roster};
    cr_assert_eq(node_step(node, &event, &up, NULL), 0);

    event.msg = &meta;
    cr_assert_eq(node_step(node, &event, &up, NULL), 0);
    cr_assert(case_count(&up, WIRE_META) == 1 && up.n_sends == 1 && up.sends[0].to == 10 && !up.sends[0].up);
    metas[0].epoch.hi = 8; /* of no epoch here */
    cr_assert_eq(node_step(node, &event, &up, NULL), 0);
    cr_assert_eq(up.n_sends, 0);

    need.ask.epoch = (struct wire_id){7, 7};
    event = (struct node_event){.now_ms = 1000, .kind = NODE_FROM_PROCESS, .session = 10, .msg = &need};
    cr_assert_eq(node_step(node, &event, &up, NULL), 0);
    cr_assert(case_count(&up, WIRE_NEED) == 1 && up.sends[0].up);
    event.session = 11; /* rank 1 records nothing */
    cr_assert_eq(node_step(node, &event, &up, NULL), 0);
    cr_assert_eq(up.n_sends, 0);
    node_free(node);
}
