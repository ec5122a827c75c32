/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session begins with a HELLO whose token names a connection of local.sock, and ends with either connection or the
 * process. Its end is the one event that must reach the node, so the event is made when the session begins.
 *
 * A process that leaves in order says LEAVE over ZeroMQ and then closes both connections, which are not ordered among
 * each other: its end waits LINGER_MS for that last message, or a rank that left would be taken for one that died.
 */
#include "daemon/shell/sessions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/address.h"
#include "daemon/planner/err.h"
#include "daemon/shell/endpoint.h"
#include "daemon/shell/log.h"

#define LINGER_MS 50 /* ZeroMQ's thread needs far less, deaths are to be told in less than a second */
#define QUEUE_BUSY 256u /* above it the router stops reading; the roles' own messages are few */

static struct roles_event *end_of(const struct roles *roles, uint64_t session)
{
    return (struct roles_event *)(uintptr_t)map_get(&roles->ends, session);
}

void sessions_end(struct roles *roles, uint64_t session, const char *why)
{
    struct roles_event *end = end_of(roles, session);
    if (end)
        end->said_leave = true; /* what it may still say does not matter */
    local_end(roles->local, session, why);
}

static uint64_t on_find(void *data, struct wire_id token)
{
    return local_find(((struct roles *)data)->local, token);
}

/* Tells the node of a session's end. */
static void push_end(struct roles *roles, struct roles_event *end)
{
    map_remove(&roles->ends, end->session);
    router_unbind(roles->router, end->session);
    roles_push(roles, end);
}

static void on_linger(uv_timer_t *timer)
{
    struct roles *roles = timer->data;
    uint64_t now = roles_now_ms();
    while (roles->lingering && roles->lingering->until_ms <= now) {
        struct roles_event *end = roles->lingering;
        roles->lingering = end->next;
        push_end(roles, end);
    }
    roles_set_timer(timer, on_linger, roles->lingering ? roles->lingering->until_ms : UINT64_MAX);
}

/* Those of a process that comes again end before its new session begins. pid 0: of a pid namespace that is not ours. */
static void end_lingering_of(struct roles *roles, uint32_t uid, uint32_t pid)
{
    if (pid == 0)
        return;
    for (struct roles_event **at = &roles->lingering; *at;) {
        struct roles_event *end = *at;
        if (end->uid != uid || end->pid != pid) {
            at = &end->next;
            continue;
        }
        *at = end->next;
        push_end(roles, end);
    }
}

static int on_bound(void *data, uint64_t session, struct poise_err *err)
{
    struct roles *roles = data;
    struct wire_message welcome = {.type = WIRE_WELCOME, .welcome = {WIRE_VERSION, roles->instance, roles->mode}};
    struct roles_event *begin = calloc(1, sizeof *begin), *end = calloc(1, sizeof *end);
    uint32_t uid, pid;
    if (!begin || !end || !local_credentials(roles->local, session, &uid, &pid) ||
        map_put(&roles->ends, session, (uintptr_t)end) < 0) {
        free(begin);
        free(end);
        return err_set(err, -ENOMEM, "no memory for another session");
    }
    *begin = (struct roles_event){.kind = NODE_SESSION, .session = session, .uid = uid, .pid = pid};
    *end = (struct roles_event){.kind = NODE_SESSION_END, .session = session, .uid = uid, .pid = pid};
    end_lingering_of(roles, uid, pid);
    roles_push(roles, begin);
    roles_send(roles, session, &welcome);
    return 0;
}

/* Before the node remembers the endpoints: a bad one would be waited for until a deadline. True: it was refused. */
static bool refuse_join(struct roles *roles, uint64_t session, const struct wire_join *join)
{
    struct wire_message msg = {.type = WIRE_REFUSED};
    struct poise_err why;
    if (!join->coordinators || !join->coordinators[0])
        return false;
    int rc = endpoints_parse(join->coordinators, ENDPOINT_CONNECT, roles->allowed, NULL, NULL, &why);
    if (rc == 0)
        return false;
    msg.refused.who.rank = join->rank;
    msg.refused.who.replica = join->replica;
    memcpy(msg.refused.who.job, join->job, sizeof join->job);
    memcpy(msg.refused.who.group, join->group, sizeof join->group);
    msg.refused.who.incarnation = join->incarnation;
    err_set_at(&msg.refused.error, rc, join->rank, POISE_NONE, NULL, "job %.60s: coordinators: %.400s", join->job,
               why.text);
    log_line(LOG_LINE_ERROR, "%s", msg.refused.error.text);
    roles_send(roles, session, &msg);
    sessions_end(roles, session, "its coordinators cannot be used");
    return true;
}

static void on_message(void *data, uint64_t session, struct wire_message *msg)
{
    struct roles *roles = data;
    struct roles_event *end = end_of(roles, session);
    if (msg->type == WIRE_JOIN && refuse_join(roles, session, &msg->join)) {
        wire_free(msg);
        return;
    }
    bool leaves = msg->type == WIRE_LEAVE;
    roles_push_message(roles, NODE_FROM_PROCESS, session, msg);
    if (!leaves || !end)
        return;
    end->said_leave = true;
    for (struct roles_event **at = &roles->lingering; *at; at = &(*at)->next) {
        if (*at == end) { /* this is what it waited for */
            *at = end->next;
            push_end(roles, end);
            return;
        }
    }
}

static void on_ended(void *data, uint64_t session, const char *why)
{
    struct roles *roles = data;
    struct roles_event *end = end_of(roles, session), **at = &roles->lingering;
    (void)why; /* local has logged it */
    if (!end)
        return; /* it never said HELLO */
    if (end->said_leave) {
        push_end(roles, end);
        return;
    }
    while (*at)
        at = &(*at)->next;
    *at = end;
    end->next = NULL;
    end->until_ms = roles_now_ms() + LINGER_MS;
    roles_set_timer(&roles->linger, on_linger, roles->lingering->until_ms);
}

static bool on_busy(void *data)
{
    return ((struct roles *)data)->n_queued >= QUEUE_BUSY;
}

static bool on_who(void *data, uint64_t session, uint32_t *ret_rank, uint32_t *ret_replica, struct wire_id *ret_epoch)
{
    struct roles *roles = data;
    struct wire_join_name who;
    if (!node_session_who(roles->node, session, &who, ret_epoch))
        return false;
    *ret_rank = who.rank;
    *ret_replica = who.replica;
    return true;
}

static uint32_t on_peers(void *data, uint64_t session, uint64_t *sessions, uint32_t max)
{
    return node_peers(((struct roles *)data)->node, session, sessions, max);
}

struct router_handler roles_router_handler(struct roles *roles)
{
    return (struct router_handler){roles, on_find, on_bound, on_message, on_busy};
}

struct local_handler roles_local_handler(struct roles *roles)
{
    return (struct local_handler){roles, on_ended, on_who, on_peers};
}

/* ------------------------------------------------------------------------------------------------ other daemons */

static void on_coordinator(void *data, uint64_t number, struct wire_message *msg)
{
    roles_push_message(data, NODE_FROM_COORDINATOR, number, msg);
}

/* What a coordinator answers to, other nodes of the cluster can reach. */
static void note_address(struct roles *roles, const struct links_change *change)
{
    char host[WIRE_LISTEN_BYTES - 16], text[WIRE_LISTEN_BYTES];
    if (!change->up || !roles->reach_port)
        return;
    snprintf(host, sizeof host, "%s", change->local);
    char *colon = strrchr(host, ':');
    if (!colon)
        return;
    *colon = 0;
    if (address_is_loopback(host))
        return;
    snprintf(text, sizeof text, "tcp://%s:%u", host, roles->reach_port);
    roles_reach(roles, text, 0); /* the first says where the cluster's network is */
}

static void on_link(void *data, uint64_t number, const struct links_change *change)
{
    note_address(data, change);
    roles_push_change(data, number, change);
}

static void on_node(void *data, uint64_t id, bool secure, struct wire_message *msg)
{
    roles_push_up(data, id, secure, msg);
}

static void on_node_gone(void *data, uint64_t id)
{
    roles_push_gone(data, id);
}

struct links_handler roles_links_handler(struct roles *roles)
{
    return (struct links_handler){roles, on_coordinator, on_link, on_busy};
}

struct listener_handler roles_listener_handler(struct roles *roles)
{
    return (struct listener_handler){roles, on_node, on_node_gone, on_busy};
}

void sessions_free(struct roles *roles)
{
    for (uint32_t i = 0; i < roles->ends.n_places; i++)
        free((void *)(uintptr_t)roles->ends.entries[i].value);
    map_free(&roles->ends);
    roles->lingering = NULL;
}
