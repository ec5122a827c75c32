/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory in the core. A whole life of a group, node and coordinator wired together, is played once as it is and once
 * with the n-th allocation of each event failing, for every n: an event that fails has had no effect, so that when it is fed
 * again the processes get in the end exactly what they get with memory enough.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "tests/unit/core_case.h"

#define MAX_QUEUE 4096
#define LINK 3u

struct item {
    bool to_node;
    struct wire_message *msg;
};

static struct node *node;
static struct coordinator *coordinator;
static uint64_t now;
static bool faulty;
static uint32_t n_faults;
static struct item queue[MAX_QUEUE];
static uint32_t n_queue;
static struct wire_id epoch;
static char story[1 << 16]; /* what the processes were told, in order */

static void tell(uint64_t session, const struct wire_message *msg)
{
    char line[300];

    if (msg->type == WIRE_OUTCOME)
        snprintf(line, sizeof line, "%lu: OUTCOME %lu kind %u plan %lx in %u out %u table %d\n", (unsigned long)session,
                 (unsigned long)msg->outcome.step, msg->outcome.kind, (unsigned long)msg->outcome.plan_id.lo,
                 msg->outcome.n_slices ? msg->outcome.slices[0].n_in : 0,
                 msg->outcome.n_slices ? msg->outcome.slices[0].n_out : 0, msg->outcome.table != NULL);
    else if (msg->type == WIRE_ABORT)
        snprintf(line, sizeof line, "%lu: ABORT %d %.100s\n", (unsigned long)session, msg->abort.left,
                 msg->abort.error.text);
    else
        snprintf(line, sizeof line, "%lu: %s\n", (unsigned long)session, wire_type_name(msg->type));
    if (msg->type == WIRE_ROSTER)
        epoch = msg->roster.epoch;
    cr_assert_lt(strlen(story) + strlen(line), sizeof story);
    strcat(story, line);
}

static void enqueue(bool to_node, const struct wire_message *msg)
{
    struct item item = {.to_node = to_node};

    cr_assert_lt(n_queue, MAX_QUEUE);
    cr_assert_eq(wire_copy(msg, &item.msg), 0);
    queue[n_queue++] = item;
}

static void apply(const struct core_update *up, bool of_node)
{
    for (uint32_t i = 0; i < up->n_sends; i++) {
        if (of_node && !up->sends[i].up)
            tell(up->sends[i].to, up->sends[i].msg);
        else
            enqueue(!of_node, up->sends[i].msg);
    }
    for (uint32_t i = 0; i < up->n_publishes; i++)
        enqueue(true, up->publishes[i]);
}

static int step_node(struct node_event *event, struct core_update *up)
{
    struct poise_err err;

    event->now_ms = now;
    return node_step(node, event, up, &err);
}

static int step_coordinator(struct coordinator_event *event, struct core_update *up)
{
    struct poise_err err;

    event->now_ms = now;
    return coordinator_step(coordinator, event, up, &err);
}

/* Feeds an event until it succeeds, failing one allocation later each time. */
static void node_event(struct node_event event)
{
    struct core_update up;
    int r;

    for (int64_t k = 0;; k++) {
        core_fault.countdown = faulty ? k : -1;
        r = step_node(&event, &up);
        core_fault.countdown = -1;
        if (r != -ENOMEM)
            break;
        n_faults++;
        cr_assert_eq(up.n_sends + up.n_closes + up.n_publishes + up.n_logs, 0);
    }
    cr_assert_eq(r, 0);
    apply(&up, true);
}

/* Starting an epoch and deciding a step wait for memory: the event that made them possible stands, a tick tries again. So
 * ticks follow, each with a later allocation failing, until one has all it wants. */
static void coordinator_event(struct coordinator_event event)
{
    struct core_update up;
    bool hit = true;

    for (int64_t k = 0; hit; k++) {
        int r;

        core_fault.countdown = faulty ? k : -1;
        r = step_coordinator(&event, &up);
        hit = faulty && core_fault.countdown < 0;
        core_fault.countdown = -1;
        n_faults += hit;
        if (r == -ENOMEM) {
            cr_assert_eq(up.n_sends + up.n_closes + up.n_publishes + up.n_logs, 0);
            continue;
        }
        cr_assert_eq(r, 0);
        apply(&up, false);
        event = (struct coordinator_event){.kind = COORDINATOR_TICK};
    }
}

static void drain(void)
{
    for (uint32_t i = 0; i < n_queue; i++) {
        struct wire_message *msg = queue[i].msg;

        if (queue[i].to_node)
            node_event((struct node_event){.kind = NODE_FROM_COORDINATOR, .link = 0, .msg = msg});
        else
            coordinator_event((struct coordinator_event){.kind = COORDINATOR_FROM_NODE, .link = LINK, .msg = msg});
        wire_free(msg);
    }
    n_queue = 0;
}

/* A second of ticks: what had to wait for memory is done in them. */
static void settle(void)
{
    for (int i = 0; i < 4; i++) {
        drain();
        now += 250;
        coordinator_event((struct coordinator_event){.kind = COORDINATOR_TICK});
        drain();
        node_event((struct node_event){.kind = NODE_TICK});
        drain();
    }
}

static void process(uint64_t session, const struct wire_message *msg)
{
    node_event((struct node_event){.kind = NODE_FROM_PROCESS, .session = session, .msg = msg});
    settle();
}

static void submit(uint32_t rank, uint64_t step, uint32_t kind)
{
    static struct case_meta meta;
    struct wire_message msg = {.type = WIRE_META};

    case_meta(&meta, rank, 0, step, LENGTHS(100 * rank + step, 4, 7));
    if (step >= 2 || rank)
        case_field(&meta, "ids", "tokens");
    meta.meta.kind = kind;
    meta.meta.epoch = epoch;
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta.meta;
    process(rank + 1, &msg);
}

static void live(void)
{
    struct node_config node_config = {.instance = {5, 5}, .name = "a", .heartbeat_ms = 1000, .pull_delay_ms = 20,
                                      .silence_ms = 2000, .node_timeout_ms = 10000};
    struct coordinator_config config = {.instance = {1, 1}, .beacon_ms = 250, .node_timeout_ms = 10000, .warn_ms = 60000,
                                        .forget_ms = 30000};
    struct wire_message msg = {.type = WIRE_JOIN};

    now = 1000;
    story[0] = 0;
    cr_assert_eq(node_new(&node_config, &node), 0);
    cr_assert_eq(coordinator_new(&config, &coordinator), 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        case_join(&msg.join, rank, 3, 0, 1);
        node_event((struct node_event){.kind = NODE_SESSION, .session = rank + 1, .uid = 1000, .pid = 4000 + rank});
        process(rank + 1, &msg);
    }
    for (uint64_t step = 0; step < 5; step++)
        for (uint32_t rank = 0; rank < 3; rank++)
            submit(rank, step, step == 3 && rank == 1 ? WIRE_META_BAD : WIRE_META_SAMPLES);
    coordinator_free(coordinator); /* restarted: it learns the epoch from claims */
    cr_assert_eq(coordinator_new(&config, &coordinator), 0);
    settle();
    for (uint32_t rank = 0; rank < 3; rank++)
        submit(rank, 5, WIRE_META_SAMPLES);
    msg.type = WIRE_LEAVE;
    msg.leave.epoch = epoch;
    msg.leave.submitted = 6;
    msg.leave.ended = false;
    process(1, &msg);
    node_event((struct node_event){.kind = NODE_SESSION_END, .session = 2});
    settle();
    node_free(node);
    coordinator_free(coordinator);
}

Test(core_faults, an_event_that_fails_has_no_effect)
{
    static char good[sizeof story];

    live();
    memcpy(good, story, sizeof good);
    cr_assert(strstr(good, "3: ABORT 0 job qwen: rank 1"), "%s", good);
    cr_assert(strstr(good, "OUTCOME 5 kind 0"), "%s", good);
    faulty = true;
    live();
    printf("%u allocations failed\n", n_faults);
    cr_assert_gt(n_faults, 100);
    cr_assert_str_eq(story, good);
}

Test(core_faults, making_and_freeing)
{
    struct node_config config = {0};
    struct coordinator_config coordinator_config = {0};

    node_free(NULL);
    coordinator_free(NULL);
    core_fault.countdown = 0;
    cr_assert_eq(node_new(&config, &node), -ENOMEM);
    core_fault.countdown = 0;
    cr_assert_eq(coordinator_new(&coordinator_config, &coordinator), -ENOMEM);
    core_fault.countdown = -1;
}
