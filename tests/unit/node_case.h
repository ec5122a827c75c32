/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node of the tests of daemon/core/node*.c, between its processes and its coordinators: what these say in one line
 * each. Bodies in a header: a program has one such node, and short names keep its cases readable.
 */
#ifndef POISE_TESTS_UNIT_NODE_CASE_H
#define POISE_TESTS_UNIT_NODE_CASE_H

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

static inline void setup(void)
{
    struct node_config config = {.instance = {5, 5}, .name = "nodeA", .heartbeat_ms = 1000, .pull_delay_ms = 20,
                                 .silence_ms = 2000, .node_timeout_ms = 10000};

    now = 1000;
    cr_assert_eq(node_new(&config, &node), 0);
}

static inline void teardown(void)
{
    node_free(node);
}

static inline int step(struct node_event event)
{
    struct poise_err err;

    event.now_ms = now;
    return node_step(node, &event, &up, &err);
}

static inline void from(uint64_t session, const struct wire_message *msg)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_FROM_PROCESS, .session = session, .msg = msg}), 0);
}

static inline void down(uint64_t link, const struct wire_message *msg)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_FROM_COORDINATOR, .link = link, .msg = msg}), 0);
}

static inline void tick(void)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_TICK}), 0);
}

static inline void end(uint64_t session)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_SESSION_END, .session = session}), 0);
}

static inline void open_session(uint64_t session, uint32_t uid)
{
    cr_assert_eq(step((struct node_event){.kind = NODE_SESSION, .session = session, .uid = uid,
                                          .pid = 4000 + (uint32_t)session}), 0);
}

static struct wire_join joins[4]; /* by session - 1 */

/* Rank r of 3 on session r + 1. */
static inline void join(uint32_t rank, const char *coordinators)
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
static inline void send_roster(uint64_t link)
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

static inline void begin(const char *coordinators)
{
    join(0, coordinators);
    join(1, coordinators);
    send_roster(0);
    cr_assert_eq(case_count(&up, WIRE_ROSTER), 2);
}

static struct case_meta meta;

static inline void submit(uint32_t rank, uint64_t number, uint64_t length)
{
    struct wire_message msg = {.type = WIRE_META};

    case_meta(&meta, rank, 0, number, LENGTHS(length));
    meta.meta.epoch = EPOCH;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta.meta;
    from(rank + 1, &msg);
}

static struct wire_message outcome;

static inline void send_outcome(uint64_t link, uint64_t number, uint64_t plan)
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

static inline void send_beacon(uint64_t link, uint64_t decided)
{
    struct wire_message msg = {.type = WIRE_BEACON};

    msg.beacon.epoch = EPOCH;
    msg.beacon.decided = decided;
    down(link, &msg);
}

static inline void ask(enum wire_type type, uint64_t to, uint64_t number, bool want_table)
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

static inline void leave(uint64_t session, uint64_t submitted, bool ended)
{
    struct wire_message msg = {.type = WIRE_LEAVE};

    msg.leave.epoch = EPOCH;
    msg.leave.submitted = submitted;
    msg.leave.ended = ended;
    from(session, &msg);
}

static inline uint32_t count_up(enum wire_type type)
{
    uint32_t n = 0;

    for (uint32_t i = 0; case_sent(&up, type, i); i++)
        n += case_sent(&up, type, i)->up;
    return n;
}

static inline const char *refusal(void)
{
    const struct core_send *send = case_sent(&up, WIRE_REFUSED, 0);

    cr_assert_not_null(send);
    cr_assert_eq(up.n_closes, 1);
    cr_assert_eq(up.closes[0], send->to);
    return send->msg->refused.error.text;
}

#endif
