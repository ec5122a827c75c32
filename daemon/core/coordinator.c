/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator: finds the group that a message is about and lets it act. It keeps no truth: what it forgot or never knew
 * it asks for (UNKNOWN, NEED), so it may be killed at any time, and several may work on one group without knowing of each
 * other.
 */
#include "coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/group.h"
#include "daemon/core/mem.h"
#include "daemon/core/poison.h"
#include "daemon/planner/err.h"

struct coordinator {
    struct coordinator_config config;
    struct group **groups;
    uint32_t n_groups, cap_groups;
    struct grave graves[GROUP_GRAVES];
    uint32_t next_grave, n_poisons;
    uint32_t serial; /* of MEMBERS and HEARTBEAT messages */
    uint64_t last_ms;
    bool stepped;
    struct epoch *dead; /* ended in the last event: its update may still point into them */
    struct core_out out;
};

int coordinator_new(const struct coordinator_config *config, struct coordinator **ret_coordinator)
{
    struct coordinator *coordinator = core_alloc(1, sizeof *coordinator);

    if (!coordinator)
        return -ENOMEM;
    coordinator->config = *config;
    *ret_coordinator = coordinator;
    return 0;
}

static void bury_dead(struct coordinator *coordinator)
{
    while (coordinator->dead) {
        struct epoch *epoch = coordinator->dead;

        coordinator->dead = epoch->next_dead;
        epoch_free(epoch);
    }
}

void coordinator_free(struct coordinator *coordinator)
{
    if (!coordinator)
        return;
    for (uint32_t i = 0; i < coordinator->n_groups; i++)
        group_free(coordinator->groups[i]);
    core_free(coordinator->groups);
    bury_dead(coordinator);
    out_free(&coordinator->out);
    core_free(coordinator);
}

/* -------------------------------------------------------------------------------------------------------------- finding */

static struct group *find_group(const struct coordinator *c, const struct wire_join *join)
{
    for (uint32_t i = 0; i < c->n_groups; i++)
        if (c->groups[i]->uid == join->uid && strcmp(c->groups[i]->job, join->job) == 0 &&
            strcmp(c->groups[i]->name, join->group) == 0)
            return c->groups[i];
    return NULL;
}

static struct group *find_epoch(const struct coordinator *c, struct wire_id epoch)
{
    for (uint32_t i = 0; i < c->n_groups; i++)
        if (c->groups[i]->epoch && wire_id_is(c->groups[i]->epoch->id, epoch))
            return c->groups[i];
    return NULL;
}

static struct group *find_claim(const struct coordinator *c, struct wire_id epoch)
{
    for (uint32_t i = 0; i < c->n_groups; i++)
        if (c->groups[i]->claims.members && wire_id_is(c->groups[i]->claims.claim, epoch))
            return c->groups[i];
    return NULL;
}

static int add_group(struct coordinator *c, const struct wire_join *join, uint64_t now_ms, struct group **ret_group)
{
    struct group **grown, *group;

    if (c->n_groups == c->cap_groups) {
        grown = core_grow(c->groups, c->cap_groups * 2 + 8, sizeof *grown);
        if (!grown)
            return -ENOMEM;
        c->groups = grown;
        c->cap_groups = c->cap_groups * 2 + 8;
    }
    group = group_new(join, now_ms);
    if (!group)
        return -ENOMEM;
    c->groups[c->n_groups++] = group;
    *ret_group = group;
    return 0;
}

/* Nothing is kept of a group that nobody speaks of. */
static void drop_empty(struct coordinator *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_groups; i++) {
        if (group_empty(c->groups[i]))
            group_free(c->groups[i]);
        else
            c->groups[n++] = c->groups[i];
    }
    c->n_groups = n;
}

/* ------------------------------------------------------------------------------------------------------------- messages */

/* An epoch that does not run here: it is over, or its members are asked for. */
static void answer_unknown(const struct group_env *env, struct wire_id epoch)
{
    const struct grave *grave = group_find_grave(env, epoch);
    struct wire_message *msg;

    if (grave) {
        msg = out_message(env->out, WIRE_ABORT);
        msg->abort = grave->abort;
        out_send(env->out, env->link, false, msg);
        return;
    }
    msg = out_message(env->out, WIRE_UNKNOWN);
    msg->unknown.epoch = epoch;
    out_send(env->out, env->link, false, msg);
}

/* The node behind the event's link, which spoke of this epoch. */
static struct member_node *hear(struct epoch *epoch, const struct group_env *env)
{
    struct member_node *node = epoch_node_by_link(epoch, env->link);

    epoch->heard_ms = env->now_ms;
    if (node)
        node->alive_ms = node->heard_ms = env->now_ms;
    return node;
}

static int on_members(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    struct wire_join *joins = msg->members.joins;
    struct group_node from = {msg->members.instance, msg->members.name, ++c->serial, msg->members.listen};
    uint32_t n_joins = msg->members.n_joins;
    struct group *group;
    int r;

    for (uint32_t i = 1; i < n_joins; i++) /* one group a message; what a confused node adds is dropped */
        if (joins[i].uid != joins[0].uid || strcmp(joins[i].job, joins[0].job) != 0 ||
            strcmp(joins[i].group, joins[0].group) != 0)
            n_joins = i;
    if (n_joins == 0)
        return 0;
    group = find_group(c, &joins[0]);
    if (!group) {
        r = add_group(c, &joins[0], env->now_ms, &group);
        if (r < 0)
            return r;
    }
    r = group_members(group, env, &from, joins, n_joins);
    if (r == 0)
        group_settle(group, env);
    return r;
}

static int on_meta(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    struct group *group;
    int r;

    if (msg->meta.n_metas == 0)
        return 0;
    group = find_epoch(c, msg->meta.metas[0].epoch);
    if (!group) {
        if (!find_claim(c, msg->meta.metas[0].epoch)) /* a claim is asked for with each heartbeat already */
            answer_unknown(env, msg->meta.metas[0].epoch);
        return 0;
    }
    r = epoch_meta(group->epoch, msg, env->link, env->now_ms, env->out);
    if (r < 0)
        return r;
    if (!hear(group->epoch, env))
        answer_unknown(env, group->epoch->id); /* whose link is this? */
    group_settle(group, env);
    return 0;
}

static void on_pull(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    struct group *group = find_epoch(c, msg->ask.epoch);
    struct member_node *node = group ? hear(group->epoch, env) : NULL;

    if (node)
        epoch_pull(group->epoch, node, msg->ask.step, msg->ask.want_table, env->now_ms, env->out);
    else if (group || !find_claim(c, msg->ask.epoch))
        answer_unknown(env, msg->ask.epoch);
}

/* From rank 0, which lacks what it records of a step. */
static void on_need(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    struct group *group = find_epoch(c, msg->ask.epoch);
    struct member_node *node = group ? hear(group->epoch, env) : NULL;

    if (node)
        epoch_need_record(group->epoch, node, msg->ask.step, env->now_ms, env->out);
}

/* Forming members that died or left before the epoch began: the node's next MEMBERS says so too, unless it was the last. */
static void drop_forming(struct coordinator *c, const struct group_env *env, const struct wire_abort *abort)
{
    for (uint32_t i = 0; i < c->n_groups; i++) {
        struct membership *set = &c->groups[i]->forming;
        struct member *member = membership_find(set, abort->rank, abort->replica);

        if (member && strcmp(c->groups[i]->job, abort->job) == 0 && strcmp(c->groups[i]->name, abort->group) == 0 &&
            set->nodes[member->node].linked && set->nodes[member->node].link == env->link)
            membership_drop(set, abort->rank, abort->replica);
        set = &c->groups[i]->claims;
        member = membership_find(set, abort->rank, abort->replica);
        if (member && member->guest && strcmp(c->groups[i]->job, abort->job) == 0 &&
            strcmp(c->groups[i]->name, abort->group) == 0 && set->nodes[member->node].linked &&
            set->nodes[member->node].link == env->link)
            membership_drop(set, abort->rank, abort->replica);
    }
}

static void on_abort(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    struct group *group;

    if (wire_id_none(msg->abort.epoch)) {
        drop_forming(c, env, &msg->abort);
        return;
    }
    group = find_epoch(c, msg->abort.epoch);
    if (group)
        hear(group->epoch, env);
    else
        group = find_claim(c, msg->abort.epoch);
    if (group)
        group_from_node(group, env, &msg->abort);
    else
        answer_unknown(env, msg->abort.epoch);
}

/* A node whose oldest open step is complete there, and not here: its message was lost. */
static void recover(struct epoch *epoch, const struct group_env *env, const struct wire_heartbeat_epoch *beat)
{
    if (beat->n_missing == 0 && beat->oldest_open >= epoch->first_step)
        epoch_need(epoch, beat->oldest_open, env->now_ms, env->out);
}

static void on_heartbeat(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    const struct wire_heartbeat *beat = &msg->heartbeat;

    c->serial++;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        struct epoch *epoch = c->groups[i]->epoch;
        struct member_node *node = epoch ? epoch_node_by_instance(epoch, beat->instance) : NULL;

        if (node)
            node->alive_ms = env->now_ms;
    }
    for (uint32_t i = 0; i < beat->n_epochs; i++) {
        struct group *group = find_epoch(c, beat->epochs[i].epoch);
        struct member_node *node = group ? epoch_node_by_instance(group->epoch, beat->instance) : NULL;

        if (!node) {
            answer_unknown(env, beat->epochs[i].epoch);
            continue;
        }
        if (group->epoch->beat_serial == c->serial)
            continue; /* named twice in one message: the update has room for one answer */
        group->epoch->beat_serial = c->serial;
        node->link = env->link;
        node->linked = true;
        node->secure = env->secure;
        node->heard_ms = group->epoch->heard_ms = env->now_ms;
        if (group->epoch->leaving) { /* it may have missed that */
            struct wire_message *leave = out_message(env->out, WIRE_ABORT);

            leave->abort = group->epoch->leave;
            out_send(env->out, env->link, false, leave);
        }
        epoch_reached_beat(group->epoch, node, &beat->epochs[i]);
        recover(group->epoch, env, &beat->epochs[i]);
    }
}

static int on_message(struct coordinator *c, const struct group_env *env, const struct wire_message *msg)
{
    switch (msg->type) {
    case WIRE_MEMBERS:
        return on_members(c, env, msg);
    case WIRE_META:
        return on_meta(c, env, msg);
    case WIRE_PULL:
        on_pull(c, env, msg);
        return 0;
    case WIRE_NEED:
        on_need(c, env, msg);
        return 0;
    case WIRE_ABORT:
        on_abort(c, env, msg);
        return 0;
    case WIRE_HEARTBEAT:
        on_heartbeat(c, env, msg);
        return 0;
    default:
        out_log(env->out, LOG_LEVEL_DEBUG, "coordinator: %s of a node ignored", wire_type_name(msg->type));
        return 0;
    }
}

/* At the start of a daemon, so nothing of that epoch is here yet. */
static void on_poisoned(struct coordinator *c, const struct group_env *env, const struct coordinator_event *event)
{
    struct grave *grave = &c->graves[c->n_poisons++ % GROUP_POISONS];

    if (!RULE_HOLDS(RULE_POISON))
        return;
    grave->epoch = event->epoch;
    grave->abort = poison_abort(event->epoch, event->step, event->who);
    out_log(env->out, LOG_LEVEL_ERROR, "coordinator: %.230s", grave->abort.error.text);
}

static void tick(struct coordinator *c, const struct group_env *env)
{
    bool settled = false;

    for (uint32_t i = 0; i < c->n_groups; i++) {
        if (c->groups[i]->pending && !settled) { /* one a tick: the update has room for one group's outcomes */
            settled = true;
            group_settle(c->groups[i], env);
        }
        group_tick(c->groups[i], env);
    }
    drop_empty(c);
}

/* ---------------------------------------------------------------------------------------------------------------- public */

/* Room for whatever an event may send; see out.h. */
static int prepare(struct coordinator *c, const struct coordinator_event *event)
{
    const struct wire_message *msg = event->kind == COORDINATOR_FROM_NODE ? event->msg : NULL;
    uint32_t n_items = 0, largest = 0, nodes = 0;

    if (msg && msg->type == WIRE_MEMBERS)
        n_items = msg->members.n_joins;
    else if (msg && msg->type == WIRE_HEARTBEAT)
        n_items = msg->heartbeat.n_epochs;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        uint32_t n = group_n_nodes(c->groups[i]);

        nodes += n;
        largest = n > largest ? n : largest;
    }
    return out_prepare(&c->out, largest + 4 * n_items + 7 * c->n_groups + 16,
                       6 * nodes + (4 + largest) * (n_items ? 1 : 0) + 4 * n_items + nodes * (n_items ? 1 : 0) + 16, 0,
                       2 * c->n_groups + 2);
}

static void notice_stall(struct coordinator *c, const struct group_env *env)
{
    /* Every tick comes within beacon_ms; five of them without any event means that nobody was listening. */
    if (RULE_HOLDS(RULE_STALL) && c->stepped && c->n_groups && env->now_ms > c->last_ms + 5 * c->config.beacon_ms) {
        out_log(env->out, LOG_LEVEL_WARNING, "coordinator: this daemon stood still for %llu ms, restarting all timers",
                (unsigned long long)(env->now_ms - c->last_ms));
        for (uint32_t i = 0; i < c->n_groups; i++)
            group_restart_timers(c->groups[i], env->now_ms);
    }
    c->stepped = true;
    c->last_ms = env->now_ms;
}

static void set_next(struct coordinator *c, uint64_t now_ms)
{
    for (uint32_t i = 0; i < c->n_groups; i++) {
        uint64_t next = c->groups[i]->pending ? now_ms : now_ms + c->config.beacon_ms;

        if (c->groups[i]->epoch && c->groups[i]->epoch->next_beacon_ms < next)
            next = c->groups[i]->epoch->next_beacon_ms;
        if (next < c->out.up.next_ms)
            c->out.up.next_ms = next;
    }
}

int coordinator_step(struct coordinator *c, const struct coordinator_event *event, struct core_update *ret_update,
                     struct poise_err *err)
{
    struct group_env env = {.config = &c->config,
                            .out = &c->out,
                            .now_ms = event->now_ms,
                            .link = event->kind == COORDINATOR_TICK ? UINT64_MAX : event->link,
                            .secure = event->secure,
                            .graves = c->graves,
                            .next_grave = &c->next_grave,
                            .dead = &c->dead};
    int r;

    bury_dead(c);
    r = prepare(c, event);
    if (r == 0) {
        notice_stall(c, &env);
        if (event->kind == COORDINATOR_FROM_NODE)
            r = on_message(c, &env, event->msg);
        else if (event->kind == COORDINATOR_TICK)
            tick(c, &env);
        else if (event->kind == COORDINATOR_POISONED)
            on_poisoned(c, &env, event);
        else
            for (uint32_t i = 0; i < c->n_groups; i++)
                group_link_down(c->groups[i], event->link);
    }
    if (r < 0) {
        out_clear(&c->out);
        *ret_update = c->out.up;
        return err_set(err, r, "the coordinator has no memory for an event");
    }
    set_next(c, event->now_ms);
    *ret_update = c->out.up;
    return 0;
}

uint32_t coordinator_n_groups(const struct coordinator *c)
{
    return c->n_groups;
}

const struct group *coordinator_group(const struct coordinator *c, uint32_t i)
{
    return c->groups[i];
}
