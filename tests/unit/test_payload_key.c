/* SPDX-License-Identifier: Apache-2.0 */
/* The key of an epoch's payload goes where nobody else reads it, and nowhere else; addresses go to all. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/options.h"
#include "tests/unit/core_case.h"

static const uint8_t KEY[WIRE_KEY_BYTES] = {1, 2, 3};
static struct core_update up;
static struct poise_err err;
static uint64_t now = 1000;

/* ------------------------------------------------------------------------------------------------------------- node */

static struct node *node;

static void node_feed(struct node_event event)
{
    event.now_ms = now;
    cr_assert_eq(node_step(node, &event, &up, &err), 0);
}

/* MEMBERS to that link in the newest update; NULL: none. */
static const struct wire_join *told(uint64_t link)
{
    for (uint32_t i = 0; i < case_count(&up, WIRE_MEMBERS); i++) {
        const struct core_send *sent = case_sent(&up, WIRE_MEMBERS, i);
        if (sent->up && sent->to == link)
            return &sent->msg->members.joins[0];
    }
    return NULL;
}

static void join_node(void)
{
    static char list[] = "ipc:///run/head,tcp://10.0.0.1:5,tcp://10.0.0.2:5";
    struct node_config config = {.instance = {5, 5}, .name = "nodeA", .heartbeat_ms = 1000, .pull_delay_ms = 20,
                                 .silence_ms = 2000, .node_timeout_ms = 10000};
    struct wire_message msg = {.type = WIRE_JOIN};

    cr_assert_eq(node_new(&config, &node), 0);
    case_join(&msg.join, 0, 2, 0, 1);
    msg.join.coordinators = list;
    strcpy(msg.join.payload, "tcp://10.0.0.7:4000");
    memcpy(msg.join.payload_key, KEY, sizeof KEY);
    node_feed((struct node_event){.kind = NODE_SESSION, .session = 1, .uid = 1000, .pid = 4000});
    node_feed((struct node_event){.kind = NODE_FROM_PROCESS, .session = 1, .msg = &msg});
}

Test(payload_key, a_node_tells_it_over_secure_links_only)
{
    join_node();
    for (uint64_t link = 0; link < 3; link++) {
        cr_assert(told(link), "link %d", (int)link);
        cr_assert_str_eq(told(link)->payload, "tcp://10.0.0.7:4000");
        cr_assert_eq(wire_key_there(told(link)->payload_key), link == 0, "link %d", (int)link);
    }
    cr_assert_eq(memcmp(told(0)->payload_key, KEY, sizeof KEY), 0);
    node_free(node);
}

Test(payload_key, a_node_tells_it_as_soon_as_a_link_is_known_to_be_secure)
{
    join_node();
    node_feed((struct node_event){.kind = NODE_LINK_UP, .link = 1, .secure = false});
    cr_assert_null(told(1));
    node_feed((struct node_event){.kind = NODE_LINK_UP, .link = 1, .secure = true});
    cr_assert(told(1) && memcmp(told(1)->payload_key, KEY, sizeof KEY) == 0);
    cr_assert(!told(0) && !told(2));
    now += 1000;
    node_feed((struct node_event){.kind = NODE_TICK}); /* again while it waits: to each what it may know */
    cr_assert(wire_key_there(told(1)->payload_key) && !wire_key_there(told(2)->payload_key));
    node_feed((struct node_event){.kind = NODE_LINK_UP, .link = 1, .secure = false}); /* another daemon, without keys */
    now += 1000;
    node_feed((struct node_event){.kind = NODE_TICK});
    cr_assert(told(1) && !wire_key_there(told(1)->payload_key));
    node_free(node);
}

/* ------------------------------------------------------------------------------------------------------ coordinator */

static struct coordinator *c;
static struct wire_join joins[2];

static void begin(uint32_t payload)
{
    struct coordinator_config config = {.instance = {1, 1}, .beacon_ms = 250, .node_timeout_ms = 10000, .warn_ms = 60000,
                                        .forget_ms = 30000};
    struct options options;
    struct wire_option *list;
    uint32_t n;

    case_options(&options);
    options.payload = payload;
    cr_assert_eq(options_write(&options, &list, &n, &err), 0);
    cr_assert_eq(coordinator_new(&config, &c), 0);
    for (uint32_t r = 0; r < 2; r++) {
        case_join(&joins[r], r, 2, 0, 1);
        joins[r].options = list;
        joins[r].n_options = n;
        snprintf(joins[r].payload, sizeof joins[r].payload, "tcp://10.0.0.%u:%u", 7 + r, 4000 + r);
    }
    memcpy(joins[0].payload_key, KEY, sizeof KEY);
}

static void end(void)
{
    coordinator_free(c);
    options_free(joins[0].options, joins[0].n_options);
}

/* Link and node 1 + r say that rank r is there; node 1 says both where `both`. */
static void members(uint32_t r, bool secure, bool both)
{
    struct wire_message msg = {.type = WIRE_MEMBERS};
    struct coordinator_event event = {.now_ms = now++, .kind = COORDINATOR_FROM_NODE, .link = 1 + r, .msg = &msg,
                                      .secure = secure};

    msg.members.instance = (struct wire_id){1 + r, 1};
    snprintf(msg.members.name, sizeof msg.members.name, "node%u", 1 + r);
    msg.members.n_joins = both ? 2 : 1;
    msg.members.joins = &joins[r];
    cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
}

static const struct wire_roster *roster_to(uint64_t link)
{
    for (uint32_t i = 0; i < case_count(&up, WIRE_ROSTER); i++)
        if (case_sent(&up, WIRE_ROSTER, i)->to == link)
            return &case_sent(&up, WIRE_ROSTER, i)->msg->roster;
    return NULL;
}

Test(payload_key, the_roster_brings_it_and_all_addresses)
{
    begin(OPTIONS_PAYLOAD_CURVE);
    members(0, true, false);
    members(1, true, false);
    for (uint64_t link = 1; link <= 2; link++) {
        const struct wire_roster *roster = roster_to(link);
        cr_assert(roster && roster->payload_key && memcmp(roster->payload_key, KEY, sizeof KEY) == 0);
        cr_assert_str_eq(roster->members[0].payload, "tcp://10.0.0.7:4000");
        cr_assert_str_eq(roster->members[1].payload, "tcp://10.0.0.8:4001");
    }
    members(1, false, false); /* the node is back on a connection that others read */
    cr_assert(roster_to(2) && !roster_to(2)->payload_key);
    end();
}

Test(payload_key, a_group_whose_key_cannot_travel_is_refused_as_a_whole)
{
    begin(OPTIONS_PAYLOAD_CURVE);
    members(0, true, false);
    members(1, false, false);
    cr_assert_null(roster_to(1));
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct poise_err *why = &case_sent(&up, WIRE_ABORT, i)->msg->abort.error;
        cr_assert_eq(why->code, -ENOKEY);
        cr_assert(strstr(why->text, "node2") && strstr(why->text, "poisectl keygen") &&
                      strstr(why->text, "payload=plain"),
                  "%s", why->text);
    }
    end();
}

Test(payload_key, it_is_waited_for_where_it_may_come)
{
    begin(OPTIONS_PAYLOAD_CURVE);
    memset(joins[0].payload_key, 0, sizeof KEY);
    members(0, true, false);
    members(1, true, false);
    cr_assert(!roster_to(1) && case_count(&up, WIRE_ABORT) == 0);
    memcpy(joins[0].payload_key, KEY, sizeof KEY); /* rank 0's node has found out that it may say it */
    members(0, true, false);
    cr_assert(roster_to(1) && roster_to(1)->payload_key && roster_to(2) && roster_to(2)->payload_key);
    end();
}

Test(payload_key, what_others_may_have_read_is_no_key)
{
    begin(OPTIONS_PAYLOAD_CURVE);
    members(0, false, false); /* a node that says it where it must not */
    members(1, true, false);
    cr_assert_eq(case_count(&up, WIRE_ABORT), 2);
    cr_assert(strstr(case_sent(&up, WIRE_ABORT, 0)->msg->abort.error.text, "node1"));
    end();
}

Test(payload_key, plain_payload_needs_none)
{
    begin(OPTIONS_PAYLOAD_PLAIN);
    members(0, false, false);
    members(1, false, false);
    cr_assert(roster_to(1) && !roster_to(1)->payload_key && roster_to(2) && !roster_to(2)->payload_key);
    end();
}

Test(payload_key, a_group_on_one_node_needs_none)
{
    begin(OPTIONS_PAYLOAD_CURVE);
    members(0, false, true);
    cr_assert(roster_to(1) && !roster_to(1)->payload_key);
    end();
}

/* Replicas exchange with their own number only: each of these stays on its node. */
Test(payload_key, replicas_that_each_have_a_node_need_none)
{
    struct wire_join four[4];

    begin(OPTIONS_PAYLOAD_CURVE);
    for (uint32_t i = 0; i < 4; i++) { /* [replica][rank] */
        case_join(&four[i], i % 2, 2, i / 2, 2);
        four[i].options = joins[0].options;
        four[i].n_options = joins[0].n_options;
        strcpy(four[i].payload, "tcp://10.0.0.9:1");
    }
    for (uint32_t k = 0; k < 2; k++) {
        joins[0] = four[2 * k];
        joins[1] = four[2 * k + 1];
        struct wire_message msg = {.type = WIRE_MEMBERS};
        struct coordinator_event event = {.now_ms = now++, .kind = COORDINATOR_FROM_NODE, .link = 1 + k, .msg = &msg};
        msg.members.instance = (struct wire_id){1 + k, 1};
        msg.members.n_joins = 2;
        msg.members.joins = joins;
        cr_assert_eq(coordinator_step(c, &event, &up, &err), 0);
    }
    cr_assert(roster_to(1) && !roster_to(1)->payload_key);
    end();
}
