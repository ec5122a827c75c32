/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator of the tests of daemon/core/group.c and its like, with two nodes of one rank each: what these say in
 * one line each. Bodies in a header: a program has one such coordinator, and short names keep its cases readable.
 */
#ifndef POISE_TESTS_UNIT_GROUP_CASE_H
#define POISE_TESTS_UNIT_GROUP_CASE_H

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

static inline void setup(void)
{
    struct coordinator_config config = {
        .instance = {1, 1}, .beacon_ms = 250, .node_timeout_ms = 10000, .warn_ms = 60000, .forget_ms = 30000};

    now = 1000;
    cr_assert_eq(coordinator_new(&config, &c), 0);
}

static inline void teardown(void)
{
    coordinator_free(c);
}

static inline void feed(uint64_t link, const struct wire_message *msg)
{
    struct coordinator_event event = {.now_ms = now, .kind = COORDINATOR_FROM_NODE, .link = link, .msg = msg};
    struct poise_err err;

    cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
}

static inline void tick(void)
{
    struct coordinator_event event = {.now_ms = now, .kind = COORDINATOR_TICK};
    struct poise_err err;

    cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
}

/* Time passes as it does: a tick every 250 ms, heartbeats of the given links. */
static struct wire_id epoch;

static inline void beat(uint64_t link, uint64_t oldest_open, uint32_t n_missing)
{
    struct wire_heartbeat_epoch one = {.epoch = epoch, .oldest_open = oldest_open, .n_missing = n_missing};
    struct wire_message msg = {.type = WIRE_HEARTBEAT};

    msg.heartbeat.instance = (struct wire_id){link, link};
    msg.heartbeat.n_epochs = 1;
    msg.heartbeat.epochs = &one;
    feed(link, &msg);
}

static inline bool pass(uint64_t ms, bool a, bool b, const char *until)
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

static inline void members(uint64_t link, struct wire_join *joins, uint32_t n)
{
    struct wire_message msg = {.type = WIRE_MEMBERS};

    msg.members.instance = (struct wire_id){link, link};
    strcpy(msg.members.name, link == NODE_A ? "nodeA" : "nodeB");
    msg.members.n_joins = n;
    msg.members.joins = joins;
    feed(link, &msg);
}

/* Nothing else is sent than who is missing: n ranks, the first of them that one. */
static inline void only_told_of(uint32_t n, uint32_t first)
{
    const struct wire_forming *forming = &case_sent(&up, WIRE_FORMING, 0)->msg->forming;

    cr_assert_eq(up.n_sends, 1);
    cr_assert_eq(forming->missing_total, n);
    cr_assert_eq(forming->n_missing, n);
    cr_assert(forming->missing[0] == first && forming->missing_replica[0] == 0);
}

/* Ranks 0 and 1, one a node; the epoch runs. */
static struct wire_join joins[2];

static inline void form(void)
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

static inline void feed_meta(uint64_t link, struct case_meta *meta)
{
    struct wire_message msg = {.type = WIRE_META};

    meta->meta.epoch = epoch;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta->meta;
    feed(link, &msg);
}

static inline void decide(uint64_t step)
{
    case_meta(&metas[0], 0, 0, step, LENGTHS(100, 4));
    case_meta(&metas[1], 1, 0, step, LENGTHS(4, 100));
    feed_meta(NODE_A, &metas[0]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 0);
    feed_meta(NODE_B, &metas[1]);
    cr_assert_eq(case_count(&up, WIRE_OUTCOME), 2);
    cr_assert_eq(up.n_publishes, 1);
}

static inline const struct wire_message *ask(uint64_t link, enum wire_type type, uint64_t step, bool want_table)
{
    struct wire_message msg = {.type = WIRE_PULL};

    msg.ask.epoch = epoch;
    msg.ask.step = step;
    msg.ask.want_table = want_table;
    feed(link, &msg);
    return case_sent(&up, type, 0) ? case_sent(&up, type, 0)->msg : NULL;
}

static inline void abort_from(uint64_t link, uint32_t rank, bool left, uint64_t step)
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

static inline struct group_report report(void)
{
    struct group_report *reports, first = {0};
    uint32_t n;

    cr_assert_eq(coordinator_report(c, now, &reports, &n), 0);
    if (n)
        first = reports[0];
    free(reports);
    return first;
}

#endif
