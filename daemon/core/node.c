/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's events: each finds its process or epoch and lets node_join.c, node_epoch.c or node_steps.c act. Timers are few:
 * a heartbeat a second, MEMBERS again while a process waits, and questions for steps that a beacon proved.
 */
#include "node.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/node_state.h"
#include "daemon/planner/err.h"

int node_new(const struct node_config *config, struct node **ret_node)
{
    struct node *node = core_alloc(1, sizeof *node);

    if (!node)
        return -ENOMEM;
    node->config = *config;
    *ret_node = node;
    return 0;
}

static void session_free(struct session *session)
{
    wire_free(session->join);
    core_free(session);
}

static void job_free(struct job *job)
{
    core_free(job->joins);
    core_free(job);
}

static void bury_dead(struct node *node)
{
    wire_free(node->passed);
    node->passed = NULL;
    while (node->dead_sessions) {
        struct session *session = node->dead_sessions;

        node->dead_sessions = session->next_dead;
        session_free(session);
    }
    while (node->dead_epochs) {
        struct local_epoch *epoch = node->dead_epochs;

        node->dead_epochs = epoch->next_dead;
        local_epoch_free(epoch);
    }
}

void node_free(struct node *node)
{
    if (!node)
        return;
    bury_dead(node);
    for (uint32_t i = 0; i < node->n_sessions; i++)
        session_free(node->sessions[i]);
    for (uint32_t i = 0; i < node->n_epochs; i++)
        local_epoch_free(node->epochs[i]);
    for (uint32_t i = 0; i < node->n_jobs; i++)
        job_free(node->jobs[i]);
    for (uint32_t i = 0; i < node->n_links; i++)
        core_free(node->links[i].endpoint);
    core_free(node->sessions);
    core_free(node->epochs);
    core_free(node->jobs);
    core_free(node->links);
    core_free(node->beats);
    out_free(&node->out);
    core_free(node);
}

/* -------------------------------------------------------------------------------------------------------------- finding */

struct session *node_session(const struct node *node, uint64_t id)
{
    uint32_t low = 0, high = node->n_sessions;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (node->sessions[mid]->id == id)
            return node->sessions[mid];
        if (node->sessions[mid]->id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

struct local_epoch *node_epoch(const struct node *node, struct wire_id id)
{
    for (uint32_t i = 0; i < node->n_epochs; i++)
        if (wire_id_is(node->epochs[i]->id, id))
            return node->epochs[i];
    return NULL;
}

struct job *node_job(const struct node *node, uint32_t uid, const char *job, const char *group)
{
    for (uint32_t i = 0; i < node->n_jobs; i++)
        if (node->jobs[i]->uid == uid && strcmp(node->jobs[i]->job, job) == 0 &&
            strcmp(node->jobs[i]->group, group) == 0)
            return node->jobs[i];
    return NULL;
}

uint32_t job_link(const struct job *job, uint64_t link)
{
    for (uint32_t i = 0; i < job->n_links; i++)
        if (job->links[i] == link)
            return i;
    return POISE_NONE;
}

void job_send_up(struct node *node, const struct job *job, const struct wire_message *msg)
{
    for (uint32_t i = 0; i < job->n_links; i++)
        out_send(&node->out, job->links[i], true, msg);
}

static const struct {
    enum session_state from, to;
} turns[] = {{SESSION_NEW, SESSION_JOINING},   {SESSION_NEW, SESSION_OVER},     {SESSION_JOINING, SESSION_RUNNING},
             {SESSION_JOINING, SESSION_OVER}, {SESSION_RUNNING, SESSION_OVER}};

void session_turn(struct node *node, struct session *session, enum session_state to, const char *why)
{
    static const char *const names[SESSION_N_STATES] = {"connected", "joining", "running", "over"};

    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        if (turns[i].from != session->state || turns[i].to != to)
            continue;
        out_log(&node->out, LOG_LEVEL_DEBUG, "node: pid %u is %s: %.150s", session->pid, names[to], why);
        session->state = to;
        return;
    }
}

/* ------------------------------------------------------------------------------------------------------------- messages */

static int from_process(struct node *node, struct session *session, const struct wire_message *msg)
{
    switch (msg->type) {
    case WIRE_JOIN:
        return node_on_join(node, session, msg);
    case WIRE_META:
        return node_on_meta(node, session, msg);
    case WIRE_PULL:
        node_on_pull(node, session, msg);
        return 0;
    case WIRE_NEED:
        node_on_record_need(node, session, msg);
        return 0;
    case WIRE_LEAVE:
        node_on_leave(node, session, msg);
        return 0;
    case WIRE_REPORT:
        node_on_report(session, &msg->report);
        return 0;
    default:
        out_log(&node->out, LOG_LEVEL_DEBUG, "node: %s of pid %u ignored", wire_type_name(msg->type), session->pid);
        return 0;
    }
}

/* A coordinator that does not know an epoch of this node, which is perhaps over here. */
static void on_unknown(struct node *node, uint64_t link, const struct wire_message *msg)
{
    struct local_epoch *epoch = node_epoch(node, msg->unknown.epoch);
    uint32_t index = epoch ? job_link(epoch->job, link) : POISE_NONE;

    if (index == POISE_NONE)
        return;
    if (epoch->tell_up && epoch->state == LOCAL_ABORTED)
        epoch->links[index].echoed = true; /* what it does not know it need not end */
    if (epoch->state == LOCAL_ABORTED || node->now_ms < epoch->links[index].members_ms)
        return;
    epoch->links[index].members_ms = node->now_ms + NODE_MEMBERS_MS;
    node_send_members(node, epoch->job, link);
}

static int from_coordinator(struct node *node, uint64_t link, const struct wire_message *msg)
{
    if (link >= node->n_links)
        return 0;
    node->links[link].heard_ms = node->now_ms;
    node->links[link].down_ms = 0;
    switch (msg->type) {
    case WIRE_ROSTER:
        return node_on_roster(node, link, msg);
    case WIRE_OUTCOME:
        return node_on_outcome(node, msg);
    case WIRE_ABORT:
        node_on_abort(node, link, msg);
        return 0;
    case WIRE_REFUSED:
        node_on_refused(node, msg);
        return 0;
    case WIRE_NEED:
        node_on_need(node, link, msg);
        return 0;
    case WIRE_META:
        return node_on_record(node, msg);
    case WIRE_UNKNOWN:
        on_unknown(node, link, msg);
        return 0;
    case WIRE_FORMING:
        node_on_forming(node, msg);
        return 0;
    case WIRE_BEACON:
        node_on_beacon(node, link, msg);
        return 0;
    default:
        out_log(&node->out, LOG_LEVEL_DEBUG, "node: %s of a coordinator ignored", wire_type_name(msg->type));
        return 0;
    }
}

static int set_mode(struct node *node, const struct node_event *event, struct poise_err *err)
{
    uint32_t n_named = 0, n_set = 0;

    for (uint32_t i = 0; i < node->n_jobs; i++) {
        struct job *job = node->jobs[i];

        if ((event->job[0] && strcmp(event->job, job->job) != 0) ||
            (event->group[0] && strcmp(event->group, job->group) != 0))
            continue;
        n_named++;
        if (event->uid != 0 && event->uid != job->uid)
            continue;
        n_set++;
        job->mode = event->mode;
        out_log(&node->out, LOG_LEVEL_INFO, "group %s/%s: mode %u, asked for by uid %u", job->job, job->group, event->mode,
                event->uid);
        for (uint32_t j = 0; j < node->n_sessions; j++) {
            struct session *session = node->sessions[j];
            struct wire_message *msg;

            if (session->job != job)
                continue;
            msg = out_message(&node->out, WIRE_MODE);
            msg->mode.mode = event->mode;
            if (session->epoch)
                msg->mode.epoch = session->epoch->id;
            out_send(&node->out, session->id, false, msg);
        }
    }
    if (n_set)
        return 0;
    if (n_named)
        return err_set(err, -EACCES, "the job belongs to another user: only that user and root may change its mode");
    return err_set(err, -ENOENT, "no job %s group %s on this node", event->job[0] ? event->job : "(any)",
                   event->group[0] ? event->group : "(any)");
}

/* --------------------------------------------------------------------------------------------------------------- timers */

static bool waits(const struct node *node, const struct job *job)
{
    for (uint32_t i = 0; i < node->n_sessions; i++)
        if (node->sessions[i]->job == job && node_session_waits(node->sessions[i]))
            return true;
    return false;
}

static void tick_jobs(struct node *node)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < node->n_jobs; i++) {
        struct job *job = node->jobs[i];

        if (job->n_sessions == 0 && job->n_epochs == 0) {
            job_free(job);
            continue;
        }
        node->jobs[n++] = job;
        node_check_links(node, job);
        if (node->now_ms >= job->members_ms && waits(node, job))
            node_send_members(node, job, UINT64_MAX);
    }
    node->n_jobs = n;
}

/* To each coordinator: the epochs that it works for. Memory was reserved in prepare(). */
static void heartbeat(struct node *node)
{
    struct wire_heartbeat_epoch *beats = node->beats;

    if (node->now_ms < node->beat_ms)
        return;
    node->beat_ms = node->now_ms + node->config.heartbeat_ms;
    for (uint32_t link = 0; link < node->n_links; link++) {
        uint32_t n = 0;
        struct wire_message *msg;

        for (uint32_t i = 0; i < node->n_epochs; i++) {
            const struct local_epoch *epoch = node->epochs[i];

            if (epoch->state == LOCAL_ABORTED || !epoch->n_live || job_link(epoch->job, link) == POISE_NONE)
                continue;
            local_epoch_beat(epoch, &beats[n++]);
        }
        if (n == 0)
            continue;
        msg = out_message(&node->out, WIRE_HEARTBEAT);
        msg->heartbeat.instance = node->config.instance;
        msg->heartbeat.n_epochs = n;
        msg->heartbeat.epochs = beats;
        out_send(&node->out, link, true, msg);
        beats += n;
    }
}

static void tick(struct node *node)
{
    node_tick_epochs(node); /* before beat_ms moves on: it repeats what coordinators must be told */
    heartbeat(node);
    tick_jobs(node);
}

/* The loop stood still: coordinators were not heard because nobody listened. */
static void notice_stall(struct node *node)
{
    if (!node->expected_ms || node->now_ms <= node->expected_ms + 4 * node->config.heartbeat_ms)
        return;
    for (uint32_t i = 0; i < node->n_links; i++)
        node->links[i].heard_ms = node->now_ms;
    for (uint32_t i = 0; i < node->n_epochs; i++)
        node->epochs[i]->awaited_ms = node->now_ms;
}

static void set_next(struct node *node)
{
    uint64_t next = UINT64_MAX;

    if (node->n_epochs || node->n_jobs)
        next = node->beat_ms > node->now_ms ? node->beat_ms : node->now_ms + node->config.heartbeat_ms;
    for (uint32_t i = 0; i < node->n_epochs; i++) {
        uint64_t at = node->epochs[i]->state == LOCAL_ABORTED ? next : local_epoch_next_ms(node, node->epochs[i]);

        next = at < next ? at : next;
    }
    for (uint32_t i = 0; i < node->n_jobs; i++)
        if (node->jobs[i]->members_ms > node->now_ms && node->jobs[i]->members_ms < next)
            next = node->jobs[i]->members_ms;
    node->expected_ms = next == UINT64_MAX ? 0 : next;
    node->out.up.next_ms = next;
}

/* ---------------------------------------------------------------------------------------------------------------- public */

/* Room for whatever an event may send; see out.h. */
static int prepare(struct node *node, const struct node_event *event)
{
    uint32_t links = node->n_links + NODE_MAX_LINKS, jobs = node->n_jobs + 1, epochs = node->n_epochs + 1;
    uint32_t messages = 16 + 2 * node->n_sessions, sends = 64 + 4 * node->n_sessions + 4 * links;
    uint32_t n_beats = (node->n_links + NODE_ASKED * node->n_epochs) * node->n_epochs; /* a tick may add links */
    struct wire_heartbeat_epoch *beats;

    if (event->kind == NODE_TICK) {
        messages += links + 2 * jobs + epochs * (WIRE_WINDOW + 2);
        sends += links * (1 + jobs + epochs * (WIRE_WINDOW + 2));
    } else {
        messages += NODE_SLOTS + (event->kind == NODE_LINK_UP ? 2 * jobs : 0);
        sends += NODE_SLOTS + links * 4 + jobs;
    }
    if (event->kind == NODE_TICK && n_beats > node->cap_beats) {
        beats = core_grow(node->beats, n_beats, sizeof *beats);
        if (!beats)
            return -ENOMEM;
        node->beats = beats;
        node->cap_beats = n_beats;
    }
    return out_prepare(&node->out, messages, sends, node->n_sessions + 1, 0);
}

/* Now that it is known that nobody else reads what goes there, the payload keys that were left out follow at once. */
static void link_up(struct node *node, uint32_t link, bool secure)
{
    bool news = secure && !node->links[link].secure;

    node->links[link].down_ms = 0;
    if (strncmp(node->links[link].endpoint, "tcp://", 6) == 0) /* others are inside this machine whatever the shell says */
        node->links[link].secure = secure;
    for (uint32_t i = 0; news && i < node->n_jobs; i++)
        if (job_link(node->jobs[i], link) != POISE_NONE && waits(node, node->jobs[i]))
            node_send_members(node, node->jobs[i], link);
}

static int dispatch(struct node *node, const struct node_event *event, struct poise_err *err)
{
    struct session *session = node_session(node, event->session);

    switch (event->kind) {
    case NODE_SESSION:
        return node_on_session(node, event->session, event->uid, event->pid);
    case NODE_SESSION_END:
        if (session)
            node_on_session_end(node, session);
        return 0;
    case NODE_FROM_PROCESS:
        node->messages++;
        return session ? from_process(node, session, event->msg) : 0;
    case NODE_FROM_COORDINATOR:
        node->messages++;
        return from_coordinator(node, event->link, event->msg);
    case NODE_LINK_DOWN:
        if (event->link < node->n_links)
            node_link_down(node, &node->links[event->link], event->why);
        return 0;
    case NODE_LINK_UP:
        if (event->link < node->n_links)
            link_up(node, (uint32_t)event->link, event->secure);
        return 0;
    case NODE_SET_MODE:
        return set_mode(node, event, err);
    case NODE_TICK:
        tick(node);
        return 0;
    }
    return 0;
}

int node_step(struct node *node, const struct node_event *event, struct core_update *ret_update, struct poise_err *err)
{
    int r;

    bury_dead(node);
    node->now_ms = event->now_ms;
    r = prepare(node, event);
    if (r == 0) {
        notice_stall(node);
        r = dispatch(node, event, err);
    }
    if (r < 0) {
        out_clear(&node->out);
        *ret_update = node->out.up;
        return r == -ENOMEM ? err_set(err, r, "the node has no memory for an event") : r;
    }
    set_next(node);
    *ret_update = node->out.up;
    return 0;
}

void node_listen(struct node *node, const char *endpoint)
{
    snprintf(node->config.listen, sizeof node->config.listen, "%s", endpoint);
}

const char *node_link_endpoint(const struct node *node, uint64_t link)
{
    return link < node->n_links ? node->links[link].endpoint : NULL;
}
