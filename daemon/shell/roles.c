/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeds the pure machines and does what their updates say. A message from one role to the other is copied into the
 * queue: an update's memory lives only until the machine's next step. A message that cannot be delivered is dropped,
 * since every one of them is asked for again; only a session's end must not be lost. Sessions are in sessions.c.
 */
#include "daemon/shell/roles.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"
#include "daemon/shell/sessions.h"

#define OUTCOMES_MAX 1024u /* epochs remembered for status; then all are forgotten, which only delays a verdict */

uint64_t roles_now_ms(void)
{
    return uv_hrtime() / 1000000;
}

/* ------------------------------------------------------------------------------------------------------------ queue */

static void on_turn(uv_idle_t *turn);

void roles_push(struct roles *roles, struct roles_event *event)
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

/* Takes event.msg, in every case. An event without one is about a connection: silence tells the same, later. */
static void push_copy(struct roles *roles, struct roles_event event)
{
    struct roles_event *queued = calloc(1, sizeof *queued);
    if (queued) {
        *queued = event;
        roles_push(roles, queued);
    } else if (event.msg) {
        roles->counters.dropped++;
        log_line(LOG_LINE_ERROR, "no memory for a message, dropped");
        wire_free(event.msg);
    }
}

void roles_push_message(struct roles *roles, enum node_event_kind kind, uint64_t from, struct wire_message *msg)
{
    push_copy(roles, (struct roles_event){.kind = kind, .session = from, .link = from, .msg = msg});
}

void roles_push_up(struct roles *roles, uint64_t link, bool secure, struct wire_message *msg)
{
    push_copy(roles, (struct roles_event){.to_coordinator = true, .link = link, .secure = secure, .msg = msg});
}

void roles_push_change(struct roles *roles, uint64_t link, const struct links_change *change)
{
    push_copy(roles, (struct roles_event){.kind = change->up ? NODE_LINK_UP : NODE_LINK_DOWN, .link = link,
                                          .secure = change->secure, .why = change->why});
}

void roles_push_gone(struct roles *roles, uint64_t link)
{
    push_copy(roles, (struct roles_event){.to_coordinator = true, .link = link});
}

/* Between the roles of this process: nobody else can read it. */
static void pass(struct roles *roles, bool to_coordinator, uint64_t link, const struct wire_message *msg)
{
    struct wire_message *copy;
    roles->counters.passed++;
    if (wire_copy(msg, &copy) < 0) {
        roles->counters.dropped++;
        log_line(LOG_LINE_ERROR, "no memory for a message, dropped");
    } else if (to_coordinator) {
        roles_push_up(roles, link, true, copy);
    } else {
        roles_push_message(roles, NODE_FROM_COORDINATOR, link, copy);
    }
}

/* ---------------------------------------------------------------------------------------------------------- updates */

void roles_send(struct roles *roles, uint64_t session, const struct wire_message *msg)
{
    struct poise_err err = {0};
    int rc = router_send(roles->router, session, msg, &err);
    if (rc == -EHOSTUNREACH)
        sessions_end(roles, session, "its ZeroMQ connection ended");
    else if (rc == -ENOTCONN)
        log_line(LOG_LINE_DEBUG, "%s", err.text); /* it has just ended */
    else if (rc < 0)
        log_line(rc == -EAGAIN ? LOG_LINE_WARNING : LOG_LINE_ERROR, "session %llu: not sent: %s",
                 (unsigned long long)session, err.text);
}

static void send_up(struct roles *roles, uint64_t link, const struct wire_message *msg)
{
    const char *endpoint = node_link_endpoint(roles->node, link);
    if (!endpoint)
        return;
    if (*endpoint) {
        links_send(roles->links, link, endpoint, msg);
        return;
    }
    roles->has_inner = true;
    roles->inner_link = link;
    pass(roles, true, link, msg);
}

/* The routing ids of nodes elsewhere never equal the number of a link here. */
static void send_down(struct roles *roles, uint64_t to, const struct wire_message *msg)
{
    if (roles->has_inner && to == roles->inner_link)
        pass(roles, false, to, msg);
    else
        listener_send(roles->listener, to, msg);
}

static void publish(struct roles *roles, const struct wire_message *msg)
{
    if (roles->has_inner)
        pass(roles, false, roles->inner_link, msg);
    listener_publish(roles->listener, msg);
}

void roles_set_timer(uv_timer_t *timer, uv_timer_cb callback, uint64_t next_ms)
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
            roles_send(roles, up->sends[i].to, up->sends[i].msg);
    }
    for (uint32_t i = 0; i < up->n_closes; i++)
        sessions_end(roles, up->closes[i], "poised ended its session");
    roles_set_timer(&roles->node_timer, on_node_timer, up->next_ms);
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
        send_down(roles, up->sends[i].to, up->sends[i].msg);
    }
    for (uint32_t i = 0; i < up->n_publishes; i++)
        publish(roles, up->publishes[i]);
    roles_set_timer(&roles->coordinator_timer, on_coordinator_timer, up->next_ms);
}

/* ------------------------------------------------------------------------------------------------------------ steps */

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
    struct poise_err err = {0};
    if (step_node(roles, &event, &err) < 0)
        roles_set_timer(timer, on_node_timer, roles_now_ms() + 100); /* no memory: again soon */
}

static void on_coordinator_timer(uv_timer_t *timer)
{
    struct roles *roles = timer->data;
    struct coordinator_event event = {.kind = COORDINATOR_TICK};
    struct poise_err err = {0};
    if (step_coordinator(roles, &event, &err) < 0)
        roles_set_timer(timer, on_coordinator_timer, roles_now_ms() + 100);
}

/* What a process says once and nobody asks for again. */
static bool is_first(const struct roles_event *event)
{
    return event->kind == NODE_SESSION || (event->kind == NODE_FROM_PROCESS && event->msg->type == WIRE_JOIN);
}

static void on_turn(uv_idle_t *turn)
{
    struct roles *roles = turn->data;
    struct roles_event *queued = pop(roles);
    struct poise_err err = {0};
    int rc;
    if (queued->to_coordinator) {
        struct coordinator_event event = {.kind = queued->msg ? COORDINATOR_FROM_NODE : COORDINATOR_LINK_DOWN,
                                          .link = queued->link, .msg = queued->msg, .secure = queued->secure};
        rc = step_coordinator(roles, &event, &err);
    } else {
        struct node_event event = {.kind = queued->kind, .session = queued->session, .link = queued->link,
                                   .uid = queued->uid, .pid = queued->pid, .msg = queued->msg, .secure = queued->secure,
                                   .why = queued->why};
        rc = step_node(roles, &event, &err);
    }
    if (rc < 0 && !queued->to_coordinator && queued->kind == NODE_SESSION_END) {
        roles_push(roles, queued); /* no memory; it must come through */
        return;
    }
    if (rc < 0) {
        roles->counters.dropped++;
        log_line(LOG_LINE_ERROR, "%s dropped: %s", queued->msg ? wire_type_name(queued->msg->type) : "an event",
                 err.text);
    }
    if (rc < 0 && !queued->to_coordinator && is_first(queued))
        sessions_end(roles, queued->session, "no memory for it"); /* it comes again; else it would wait for nothing */
    event_free(queued);
}

int roles_set_mode(struct roles *roles, const char *job, const char *group, uint32_t mode, uint32_t uid,
                   struct poise_err *err)
{
    struct node_event event = {.kind = NODE_SET_MODE, .job = job, .group = group, .mode = mode, .uid = uid};
    return step_node(roles, &event, err);
}

void roles_reach(struct roles *roles, const char *endpoint, uint32_t port)
{
    roles->reach_port = port;
    node_listen(roles->node, endpoint);
    if (*endpoint)
        log_line(LOG_LINE_INFO, "coordinator: others are told that it is at %s", endpoint);
}

/* ------------------------------------------------------------------------------------------------------------- life */

static int make_machines(struct roles *roles, const struct config *c, struct coordinator_mark *mark)
{
    struct node_config node = {.instance = roles->instance, .heartbeat_ms = c->heartbeat_ms,
                               .pull_delay_ms = c->pull_delay_ms,
                               .silence_ms = c->silence_ms, .node_timeout_ms = c->node_timeout_ms, .mode = c->mode};
    struct coordinator_config coordinator = {.instance = roles->instance, .beacon_ms = c->beacon_ms,
                                             .warn_ms = c->warn_ms,
                                             .node_timeout_ms = c->node_timeout_ms, .forget_ms = c->forget_ms,
                                             .mark = mark};
    memcpy(node.name, c->node_name, sizeof node.name);
    int rc = node_new(&node, &roles->node);
    return rc < 0 ? rc : coordinator_new(&coordinator, &roles->coordinator);
}

int roles_init(struct roles *roles, uv_loop_t *loop, const struct config *config, const struct roles_sockets *sockets,
               struct poise_err *err)
{
    *roles = (struct roles){.router = sockets->router, .local = sockets->local, .links = sockets->links,
                            .listener = sockets->listener, .allowed = config_beyond_loopback(config),
                            .mode = config->mode};
    roles->last = &roles->first;
    if (getrandom(&roles->instance, sizeof roles->instance, 0) != sizeof roles->instance)
        return err_set(err, -errno, "getrandom: %s", strerror(errno));
    int rc = make_machines(roles, config, sockets->mark);
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

void roles_poisoned(struct roles *roles, const struct coordinator_mark *what, const char *who)
{
    struct coordinator_event event = {
        .kind = COORDINATOR_POISONED, .epoch = what->epoch, .step = what->step, .who = who};
    struct poise_err err = {0};
    if (step_coordinator(roles, &event, &err) < 0)
        log_line(LOG_LINE_ERROR, "%s", err.text);
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
    sessions_free(roles);
    map_free(&roles->outcomes);
    roles->first = NULL;
    coordinator_free(roles->coordinator);
    node_free(roles->node);
}
