/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeds the pure machines and does what their updates say. A message from one role to the other is copied into the queue:
 * an update's memory lives only until the machine's next step. A message that cannot be delivered is dropped, since
 * every one of them is asked for again; a session's end is the one event that must not be lost, so its memory is taken when
 * the session begins.
 *
 * A process that leaves in order says LEAVE over ZeroMQ and then closes both connections, which are not ordered among each
 * other: its end waits LINGER_MS for that last message, or a rank that left would be taken for one that died.
 */
#include "daemon/shell/roles.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"

#define LINGER_MS 50 /* ZeroMQ's thread needs far less, deaths are to be told in less than a second */
#define OUTCOMES_MAX 1024u /* epochs remembered for status; then all are forgotten, which only delays a verdict */
#define QUEUE_BUSY 256u /* above it the router stops reading; the roles' own messages are few */

struct roles_event {
    struct roles_event *next;
    bool to_coordinator;
    enum node_event_kind kind; /* to the node */
    uint64_t session, link;
    uint32_t uid, pid;
    struct wire_message *msg; /* owned */
    bool said_leave;          /* NODE_SESSION_END: nothing more is to come */
    uint64_t until_ms;        /* of one that lingers */
};

uint64_t roles_now_ms(void)
{
    return uv_hrtime() / 1000000;
}

/* ---------------------------------------------------------------------------------------------------------------- queue */

static void on_turn(uv_idle_t *turn);

static void push(struct roles *roles, struct roles_event *event)
{
    event->next = NULL;
    *roles->last = event;
    roles->last = &event->next;
    if (roles->n_queued++ == 0)
        uv_idle_start(&roles->turn, on_turn);
}

static struct roles_event *pop(struct roles *roles)
{
    struct roles_event *event = roles->first;
    roles->first = event->next;
    if (!roles->first)
        roles->last = &roles->first;
    if (--roles->n_queued == 0)
        uv_idle_stop(&roles->turn);
    return event;
}

static void event_free(struct roles_event *event)
{
    wire_free(event->msg);
    free(event);
}

/* Takes msg, in every case. */
static void push_message(struct roles *roles, bool to_coordinator, enum node_event_kind kind, uint64_t from,
                         struct wire_message *msg)
{
    struct roles_event *event = msg ? calloc(1, sizeof *event) : NULL;
    if (!event) {
        roles->counters.dropped++;
        log_line(LOG_LINE_ERROR, "no memory for a message, dropped");
        wire_free(msg);
        return;
    }
    event->to_coordinator = to_coordinator;
    event->kind = kind;
    event->msg = msg;
    event->session = event->link = from;
    push(roles, event);
}

static void pass(struct roles *roles, bool to_coordinator, uint64_t link, const struct wire_message *msg)
{
    struct wire_message *copy = NULL;
    if (wire_copy(msg, &copy) < 0)
        copy = NULL;
    roles->counters.passed++;
    push_message(roles, to_coordinator, NODE_FROM_COORDINATOR, link, copy);
}

/* --------------------------------------------------------------------------------------------------------------- updates */

static struct roles_event *end_of(const struct roles *roles, uint64_t session)
{
    return (struct roles_event *)(uintptr_t)map_get(&roles->ends, session);
}

/* Ends a session from this side. */
static void end_session(struct roles *roles, uint64_t session, const char *why)
{
    struct roles_event *end = end_of(roles, session);
    if (end)
        end->said_leave = true; /* what it may still say does not matter */
    local_end(roles->local, session, why);
}

static void send_to_process(struct roles *roles, uint64_t session, const struct wire_message *msg)
{
    struct poise_err err;
    int rc = router_send(roles->router, session, msg, &err);
    if (rc == -EHOSTUNREACH)
        end_session(roles, session, "its ZeroMQ connection ended");
    else if (rc == -ENOTCONN)
        log_line(LOG_LINE_DEBUG, "%s", err.text); /* it has just ended */
    else if (rc < 0)
        log_line(rc == -EAGAIN ? LOG_LINE_WARNING : LOG_LINE_ERROR, "session %llu: not sent: %s",
                 (unsigned long long)session, err.text);
}

/* Only jobs of this process's coordinator are let in, see refuse_join(). */
static void send_up(struct roles *roles, uint64_t link, const struct wire_message *msg)
{
    const char *endpoint = node_link_endpoint(roles->node, link);
    if (endpoint && !*endpoint) {
        roles->inner_link = link;
        pass(roles, true, link, msg);
    } else {
        log_line(LOG_LINE_ERROR, "%s to coordinator %s dropped: there is no way there", wire_type_name(msg->type),
                 endpoint ? endpoint : "(none)");
    }
}

static void set_timer(uv_timer_t *timer, uv_timer_cb callback, uint64_t next_ms)
{
    uint64_t now = roles_now_ms();
    if (next_ms == UINT64_MAX) {
        uv_timer_stop(timer);
        return;
    }
    uv_update_time(timer->loop); /* else the delay counts from the beginning of this turn */
    uv_timer_start(timer, callback, next_ms > now ? next_ms - now : 1, 0);
}

static void write_logs(const struct core_update *up)
{
    for (uint32_t i = 0; i < up->n_logs; i++)
        log_line(up->logs[i].level, "%s", up->logs[i].text);
}

static void on_node_timer(uv_timer_t *timer);
static void on_coordinator_timer(uv_timer_t *timer);

static void apply_node(struct roles *roles, const struct core_update *up)
{
    write_logs(up);
    for (uint32_t i = 0; i < up->n_sends; i++) {
        if (up->sends[i].up)
            send_up(roles, up->sends[i].to, up->sends[i].msg);
        else
            send_to_process(roles, up->sends[i].to, up->sends[i].msg);
    }
    for (uint32_t i = 0; i < up->n_closes; i++)
        end_session(roles, up->closes[i], "poised ended its session");
    set_timer(&roles->node_timer, on_node_timer, up->next_ms);
}

/* For status: the machines do not tell how long a group has been at its step. */
static void note_outcome(struct roles *roles, const struct wire_message *msg)
{
    struct wire_id epoch = msg->type == WIRE_OUTCOME ? msg->outcome.epoch : msg->roster.epoch;
    if (msg->type != WIRE_OUTCOME && msg->type != WIRE_ROSTER)
        return;
    if (roles->outcomes.n_used >= OUTCOMES_MAX)
        map_free(&roles->outcomes);
    if (map_put(&roles->outcomes, epoch.lo | 1, roles_now_ms()) < 0)
        return;
}

uint64_t roles_idle_ms(const struct roles *roles, struct wire_id epoch)
{
    uint64_t at = map_get(&roles->outcomes, epoch.lo | 1);
    return at ? roles_now_ms() - at : 0;
}

static void apply_coordinator(struct roles *roles, const struct core_update *up)
{
    write_logs(up);
    for (uint32_t i = 0; i < up->n_sends; i++) {
        note_outcome(roles, up->sends[i].msg);
        pass(roles, false, up->sends[i].to, up->sends[i].msg);
    }
    for (uint32_t i = 0; i < up->n_publishes; i++)
        pass(roles, false, roles->inner_link, up->publishes[i]);
    set_timer(&roles->coordinator_timer, on_coordinator_timer, up->next_ms);
}

/* ---------------------------------------------------------------------------------------------------------------- steps */

static int step_node(struct roles *roles, struct node_event *event, struct poise_err *err)
{
    struct core_update up = {0};
    event->now_ms = roles_now_ms();
    roles->counters.events++;
    int rc = node_step(roles->node, event, &up, err);
    if (rc == 0)
        apply_node(roles, &up);
    return rc;
}

static int step_coordinator(struct roles *roles, struct coordinator_event *event, struct poise_err *err)
{
    struct core_update up = {0};
    event->now_ms = roles_now_ms();
    roles->counters.events++;
    int rc = coordinator_step(roles->coordinator, event, &up, err);
    if (rc == 0)
        apply_coordinator(roles, &up);
    return rc;
}

static void on_node_timer(uv_timer_t *timer)
{
    struct roles *roles = timer->data;
    struct node_event event = {.kind = NODE_TICK};
    struct poise_err err;
    if (step_node(roles, &event, &err) < 0)
        set_timer(timer, on_node_timer, roles_now_ms() + 100); /* no memory: again soon */
}

static void on_coordinator_timer(uv_timer_t *timer)
{
    struct roles *roles = timer->data;
    struct coordinator_event event = {.kind = COORDINATOR_TICK};
    struct poise_err err;
    if (step_coordinator(roles, &event, &err) < 0)
        set_timer(timer, on_coordinator_timer, roles_now_ms() + 100);
}

static void on_turn(uv_idle_t *turn)
{
    struct roles *roles = turn->data;
    struct roles_event *queued = pop(roles);
    struct poise_err err;
    int rc;
    if (queued->to_coordinator) {
        struct coordinator_event event = {.kind = COORDINATOR_FROM_NODE, .link = queued->link, .msg = queued->msg};
        rc = step_coordinator(roles, &event, &err);
    } else {
        struct node_event event = {.kind = queued->kind, .session = queued->session, .link = queued->link,
                                   .uid = queued->uid, .pid = queued->pid, .msg = queued->msg};
        rc = step_node(roles, &event, &err);
    }
    if (rc < 0 && !queued->to_coordinator && queued->kind == NODE_SESSION_END) {
        push(roles, queued); /* no memory; it must come through */
        return;
    }
    if (rc < 0) {
        roles->counters.dropped++;
        log_line(LOG_LINE_ERROR, "%s dropped: %s", queued->msg ? wire_type_name(queued->msg->type) : "a new session", err.text);
    }
    event_free(queued);
}

int roles_set_mode(struct roles *roles, const char *job, const char *group, uint32_t mode, uint32_t uid, struct poise_err *err)
{
    struct node_event event = {.kind = NODE_SET_MODE, .job = job, .group = group, .mode = mode, .uid = uid};
    return step_node(roles, &event, err);
}

/* -------------------------------------------------------------------------------------------- what the sockets call */

static uint64_t on_find(void *data, struct wire_id token)
{
    return local_find(((struct roles *)data)->local, token);
}

/* Tells the node of a session's end. */
static void push_end(struct roles *roles, struct roles_event *end)
{
    map_remove(&roles->ends, end->session);
    router_unbind(roles->router, end->session);
    push(roles, end);
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
    set_timer(timer, on_linger, roles->lingering ? roles->lingering->until_ms : UINT64_MAX);
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
    push(roles, begin);
    send_to_process(roles, session, &welcome);
    return 0;
}

/* A job that names coordinators elsewhere would wait for them until its deadline. */
static void refuse_join(struct roles *roles, uint64_t session, const struct wire_join *join)
{
    struct wire_message msg = {.type = WIRE_REFUSED, .refused = {.who = {.rank = join->rank, .replica = join->replica}}};
    memcpy(msg.refused.who.job, join->job, sizeof join->job);
    memcpy(msg.refused.who.group, join->group, sizeof join->group);
    msg.refused.who.incarnation = join->incarnation;
    err_set_at(&msg.refused.error, -EOPNOTSUPP, join->rank, POISE_NONE, NULL,
               "job %.60s names coordinators %.200s: this poised coordinates on its own machine only; name none", join->job,
               join->coordinators);
    log_line(LOG_LINE_ERROR, "%s", msg.refused.error.text);
    send_to_process(roles, session, &msg);
    end_session(roles, session, "it names coordinators");
}

static void on_message(void *data, uint64_t session, struct wire_message *msg)
{
    struct roles *roles = data;
    struct roles_event *end = end_of(roles, session);
    if (msg->type == WIRE_JOIN && msg->join.coordinators && msg->join.coordinators[0]) {
        refuse_join(roles, session, &msg->join);
        wire_free(msg);
        return;
    }
    bool leaves = msg->type == WIRE_LEAVE;
    push_message(roles, false, NODE_FROM_PROCESS, session, msg);
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
    set_timer(&roles->linger, on_linger, roles->lingering->until_ms);
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

/* ----------------------------------------------------------------------------------------------------------------- life */

static int make_machines(struct roles *roles, const struct config *c)
{
    struct node_config node = {.instance = roles->instance, .heartbeat_ms = c->heartbeat_ms, .pull_delay_ms = c->pull_delay_ms,
                               .silence_ms = c->silence_ms, .node_timeout_ms = c->node_timeout_ms, .mode = c->mode};
    struct coordinator_config coordinator = {.instance = roles->instance, .beacon_ms = c->beacon_ms, .warn_ms = c->warn_ms,
                                             .node_timeout_ms = c->node_timeout_ms, .forget_ms = c->forget_ms};
    memcpy(node.name, c->node_name, sizeof node.name);
    int rc = node_new(&node, &roles->node);
    return rc < 0 ? rc : coordinator_new(&coordinator, &roles->coordinator);
}

int roles_init(struct roles *roles, uv_loop_t *loop, const struct config *config, struct router *router, struct local *local,
               struct poise_err *err)
{
    *roles = (struct roles){.router = router, .local = local, .mode = config->mode};
    roles->last = &roles->first;
    if (getrandom(&roles->instance, sizeof roles->instance, 0) != sizeof roles->instance)
        return err_set(err, -errno, "getrandom: %s", strerror(errno));
    int rc = make_machines(roles, config);
    if (rc < 0)
        return err_set(err, rc, "no memory for the state machines");
    uv_idle_init(loop, &roles->turn);
    uv_timer_init(loop, &roles->node_timer);
    uv_timer_init(loop, &roles->coordinator_timer);
    uv_timer_init(loop, &roles->linger);
    roles->turn.data = roles->node_timer.data = roles->coordinator_timer.data = roles->linger.data = roles;
    roles->n_open = 4;
    roles->loop = loop;
    return 0;
}

static void roles_maybe_closed(struct roles *roles)
{
    if (roles->n_open == 0 && roles->closed)
        roles->closed(roles);
}

static void on_closed(uv_handle_t *handle)
{
    struct roles *roles = handle->data;
    roles->n_open--;
    roles_maybe_closed(roles);
}

void roles_close(struct roles *roles, void (*closed)(struct roles *))
{
    if (!roles->loop)
        return;
    roles->loop = NULL;
    roles->closed = closed;
    uv_close((uv_handle_t *)&roles->turn, on_closed);
    uv_close((uv_handle_t *)&roles->node_timer, on_closed);
    uv_close((uv_handle_t *)&roles->coordinator_timer, on_closed);
    uv_close((uv_handle_t *)&roles->linger, on_closed);
}

void roles_fini(struct roles *roles)
{
    for (struct roles_event *event = roles->first, *next; event; event = next) {
        next = event->next;
        event_free(event);
    }
    for (uint32_t i = 0; i < roles->ends.n_places; i++)
        free((void *)(uintptr_t)roles->ends.entries[i].value);
    map_free(&roles->ends);
    map_free(&roles->outcomes);
    roles->first = roles->lingering = NULL;
    coordinator_free(roles->coordinator);
    node_free(roles->node);
}
