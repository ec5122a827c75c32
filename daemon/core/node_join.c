/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes come and go. A process that joins is told to the coordinators of its job in one MEMBERS message with all others
 * of the job here, again while any of them waits. One whose connection ends without a LEAVE has died: before the epoch it is
 * simply not named any more; in an epoch its death is told to everyone at once.
 *
 * A job is (uid, name, group): the kernel says the uid, so another user's job of the same name is another job.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/membership.h"
#include "daemon/core/node_state.h"
#include "daemon/planner/err.h"

#define NOBODY 65534u /* what every user is in a unit with PrivateUsers: jobs of all of them would be one */

/* ------------------------------------------------------------------------------------------------------------- sessions */

int node_on_session(struct node *node, uint64_t id, uint32_t uid, uint32_t pid)
{
    struct session **grown, *session;
    uint32_t at = node->n_sessions;

    if (node_session(node, id))
        return 0;
    if (node->n_sessions == node->cap_sessions) {
        grown = core_grow(node->sessions, node->cap_sessions * 2 + 8, sizeof *grown);
        if (!grown)
            return -ENOMEM;
        node->sessions = grown;
        node->cap_sessions = node->cap_sessions * 2 + 8;
    }
    session = core_alloc(1, sizeof *session);
    if (!session)
        return -ENOMEM;
    session->id = id;
    session->uid = uid;
    session->pid = pid;
    while (at > 0 && node->sessions[at - 1]->id > id)
        at--;
    memmove(&node->sessions[at + 1], &node->sessions[at], (node->n_sessions - at) * sizeof *node->sessions);
    node->sessions[at] = session;
    node->n_sessions++;
    return 0;
}

void session_detach(struct node *node, struct session *session)
{
    (void)node;
    if (session->epoch && session->epoch->locals[session->local].session == session) {
        session->epoch->locals[session->local].session = NULL;
        session->epoch->n_live--;
    }
    session->epoch = NULL;
}

static void remove_session(struct node *node, struct session *session)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < node->n_sessions; i++)
        if (node->sessions[i] != session)
            node->sessions[n++] = node->sessions[i];
    node->n_sessions = n;
    session_detach(node, session);
    if (session->job)
        session->job->n_sessions--;
    session->next_dead = node->dead_sessions;
    node->dead_sessions = session;
}

void session_abort(struct node *node, struct session *session, const struct wire_abort *abort)
{
    struct wire_message *msg = out_message(&node->out, WIRE_ABORT);

    msg->abort = *abort;
    out_send(&node->out, session->id, false, msg);
    if (abort->left)
        return; /* goes on until that step */
    if (session->state == SESSION_JOINING)
        session_turn(node, session, SESSION_OVER, abort->error.text);
}

static void refuse(struct node *node, struct session *session, const struct wire_join *join, const struct poise_err *err)
{
    struct wire_message *msg = out_message(&node->out, WIRE_REFUSED);

    memcpy(msg->refused.who.job, join->job, sizeof msg->refused.who.job);
    memcpy(msg->refused.who.group, join->group, sizeof msg->refused.who.group);
    msg->refused.who.rank = join->rank;
    msg->refused.who.replica = join->replica;
    msg->refused.who.incarnation = join->incarnation;
    msg->refused.error = *err;
    out_send(&node->out, session->id, false, msg);
    out_close(&node->out, session->id);
    node->refused++;
    out_log(&node->out, LOG_LEVEL_INFO, "node: rank %u (pid %u) of %s/%s refused: %.130s", join->rank, session->pid,
            join->job, join->group, err->text);
    session_turn(node, session, SESSION_OVER, err->text);
}

/* ----------------------------------------------------------------------------------------------------------------- jobs */

static struct job *add_job(struct node *node, const struct wire_join *join)
{
    struct job **grown, *job;

    if (node->n_jobs == node->cap_jobs) {
        grown = core_grow(node->jobs, node->cap_jobs * 2 + 4, sizeof *grown);
        if (!grown)
            return NULL;
        node->jobs = grown;
        node->cap_jobs = node->cap_jobs * 2 + 4;
    }
    job = core_alloc(1, sizeof *job);
    if (!job)
        return NULL;
    memcpy(job->job, join->job, sizeof job->job);
    memcpy(job->group, join->group, sizeof job->group);
    job->uid = join->uid;
    job->mode = node->config.mode;
    if (node_add_links(node, job, join->coordinators ? join->coordinators : "") < 0) {
        core_free(job);
        return NULL;
    }
    node->jobs[node->n_jobs++] = job;
    return job;
}

/* --------------------------------------------------------------------------------------------------------------- members */

static bool named(const struct session *session, const struct job *job)
{
    return session->job == job && (session->state == SESSION_JOINING || session->state == SESSION_RUNNING) &&
           !(session->epoch && session->epoch->state == LOCAL_ABORTED);
}

static void send_joins(struct node *node, struct job *job, uint64_t link, struct wire_join *joins, uint32_t n)
{
    struct wire_message *msg = out_message(&node->out, WIRE_MEMBERS);

    msg->members.instance = node->config.instance;
    memcpy(msg->members.name, node->config.name, sizeof msg->members.name);
    memcpy(msg->members.listen, node->config.listen, sizeof msg->members.listen);
    msg->members.n_joins = n;
    msg->members.joins = joins;
    for (uint32_t i = 0; i < job->n_links; i++)
        if ((link == UINT64_MAX || job->links[i] == link) && node->links[job->links[i]].secure == (joins == job->joins))
            out_send(&node->out, job->links[i], true, msg);
}

void node_send_members(struct node *node, struct job *job, uint64_t link)
{
    struct wire_join *bare = job->joins + job->cap_joins;
    uint32_t n = 0;

    for (uint32_t i = 0; i < node->n_sessions; i++) {
        const struct session *session = node->sessions[i];

        if (!named(session, job) || n == job->cap_joins)
            continue;
        job->joins[n] = session->join->join;
        job->joins[n].epoch = session->epoch ? session->epoch->id : (struct wire_id){0, 0};
        bare[n] = job->joins[n];
        memset(bare[n].payload_key, 0, sizeof bare[n].payload_key);
        n++;
    }
    job->members_ms = node->now_ms + node->config.heartbeat_ms;
    if (n == 0)
        return;
    send_joins(node, job, link, job->joins, n);
    send_joins(node, job, link, bare, n);
}

/* A process that waited is not there any more. The last one of a job cannot be told by leaving it out. */
static void withdraw(struct node *node, struct job *job, const struct wire_join *join)
{
    struct wire_message *msg = out_message(&node->out, WIRE_ABORT);

    memcpy(msg->abort.job, join->job, sizeof msg->abort.job);
    memcpy(msg->abort.group, join->group, sizeof msg->abort.group);
    msg->abort.rank = join->rank;
    msg->abort.replica = join->replica;
    err_set_at(&msg->abort.error, -ESHUTDOWN, join->rank, POISE_NONE, NULL, "rank %u is gone before the epoch began",
               join->rank);
    job_send_up(node, job, msg);
    node_send_members(node, job, UINT64_MAX);
}

/* ------------------------------------------------------------------------------------------------------------------ join */

/* Another process here with this rank and replica. */
static struct session *rival_of(const struct node *node, const struct job *job, const struct wire_join *join,
                                const struct session *self)
{
    for (uint32_t i = 0; job && i < node->n_sessions; i++) {
        struct session *other = node->sessions[i];

        if (other != self && other->job == job && other->join->join.rank == join->rank &&
            other->join->join.replica == join->replica &&
            (other->state == SESSION_JOINING || other->state == SESSION_RUNNING) &&
            !(other->epoch && other->epoch->state >= LOCAL_ENDED)) /* over: only its handle is still open */
            return other;
    }
    return NULL;
}

static void describe(const struct wire_join *old, const struct wire_join *by, struct poise_err *err)
{
    char who[48];

    err_set_at(err, -ESTALE, old->rank, POISE_NONE, NULL,
               "%s (pid %u) was opened again by pid %u on this node: one process a rank, the newest counts",
               member_name(old->rank, old->replica, old->n_replicas, who, sizeof who), old->pid, by->pid);
}

static void supersede(struct node *node, struct session *old, const struct wire_join *by, int order)
{
    struct local_epoch *epoch = old->epoch;
    struct wire_abort abort = {.rank = by->rank, .replica = by->replica};

    if (order == 0) { /* the same process on a new connection */
        session_turn(node, old, SESSION_OVER, "connected again");
        out_close(&node->out, old->id);
    } else {
        describe(&old->join->join, by, &abort.error);
        refuse(node, old, &old->join->join, &abort.error);
    }
    session_detach(node, old);
    abort.error.code = -ESHUTDOWN;
    if (order > 0 && epoch && epoch->state == LOCAL_RUNNING)
        local_epoch_end(node, epoch, &abort, true, NULL);
}

/* Memory for all that a join may need. *ret_epoch: NULL unless it names one; new if it is not in node->epochs. */
static int reserve(struct node *node, const struct wire_message *msg, struct job **job, struct local_epoch **ret_epoch,
                   struct wire_message **ret_join)
{
    struct wire_id id = msg->join.epoch;
    struct local_epoch *epoch = NULL;
    struct wire_join *joins;

    if (!*job)
        *job = add_job(node, &msg->join); /* without a session it is dropped at the next tick */
    if (!*job)
        return -ENOMEM;
    if ((*job)->n_sessions + 1 > (*job)->cap_joins) {
        joins = core_grow((*job)->joins, 2 * ((*job)->cap_joins * 2 + 4), sizeof *joins);
        if (!joins)
            return -ENOMEM;
        (*job)->joins = joins;
        (*job)->cap_joins = (*job)->cap_joins * 2 + 4;
    }
    if (!wire_id_none(id)) {
        epoch = node_epoch(node, id);
        if (!epoch && !(epoch = local_epoch_new(node, *job, &msg->join, id)))
            return -ENOMEM;
    }
    if ((epoch && local_epoch_reserve(epoch, epoch->n_locals + 1) < 0) || core_copy(msg, ret_join) < 0) {
        if (epoch && !node_epoch(node, id))
            local_epoch_free(epoch);
        return -ENOMEM;
    }
    *ret_epoch = epoch;
    return 0;
}

static void enter_epoch(struct node *node, struct session *session, struct local_epoch *epoch)
{
    if (!node_epoch(node, epoch->id)) {
        node->epochs[node->n_epochs++] = epoch;
        epoch->job->n_epochs++;
    }
    if (epoch->state == LOCAL_ABORTED) {
        session_abort(node, session, &epoch->abort);
        session_turn(node, session, SESSION_OVER, "its epoch was aborted");
        return;
    }
    local_epoch_attach(epoch, session);
    session_turn(node, session, SESSION_RUNNING, "it came back");
    if (epoch->state == LOCAL_LEAVING)
        session_abort(node, session, &epoch->abort);
}

static void send_mode(struct node *node, const struct session *session)
{
    struct wire_message *msg = out_message(&node->out, WIRE_MODE);

    if (session->epoch)
        msg->mode.epoch = session->epoch->id;
    msg->mode.mode = session->job->mode;
    out_send(&node->out, session->id, false, msg);
}

static int check(const struct node *node, const struct session *session, const struct wire_join *join,
                 struct poise_err *err)
{
    const struct local_epoch *epoch = wire_id_none(join->epoch) ? NULL : node_epoch(node, join->epoch);
    const struct job *job = node_job(node, session->uid, join->job, join->group);
    int r = membership_check(join, err);

    if (r == 0 && epoch && (epoch->job != job || epoch->n_ranks != join->n_ranks || epoch->n_replicas != join->n_replicas))
        r = err_set_at(err, -EPERM, join->rank, POISE_NONE, NULL, "rank %u names the epoch of another job", join->rank);
    if (r == 0 && !job && node->n_links + node_count_endpoints(join->coordinators) > NODE_LINKS)
        r = err_set_at(err, -ENOSPC, join->rank, POISE_NONE, NULL,
                       "rank %u names coordinators beyond the %u that this daemon connects to", join->rank, NODE_LINKS);

    if (r == 0 && session->uid == NOBODY)
        r = err_set_at(err, -EPERM, join->rank, POISE_NONE, NULL,
                       "rank %u has uid 65534: in a user namespace that hides uids all users would share their jobs",
                       join->rank);
    return r;
}

int node_on_join(struct node *node, struct session *session, const struct wire_message *msg)
{
    struct wire_message named_by_kernel = *msg, *join;
    struct local_epoch *epoch;
    struct session *rival;
    struct poise_err err;
    struct job *job;
    int order;

    if (session->state != SESSION_NEW)
        return 0;
    named_by_kernel.join.uid = session->uid;
    if (session->pid)
        named_by_kernel.join.pid = session->pid;
    if (check(node, session, &named_by_kernel.join, &err) < 0) {
        refuse(node, session, &named_by_kernel.join, &err);
        return 0;
    }
    job = node_job(node, session->uid, msg->join.job, msg->join.group);
    rival = rival_of(node, job, &msg->join, session);
    order = rival ? wire_incarnation_compare(&msg->join.incarnation, &rival->join->join.incarnation) : 0;
    if (order < 0) {
        describe(&named_by_kernel.join, &rival->join->join, &err);
        refuse(node, session, &named_by_kernel.join, &err);
        return 0;
    }
    if (reserve(node, &named_by_kernel, &job, &epoch, &join) < 0)
        return -ENOMEM;
    session->join = join;
    session->job = job;
    session->joined_ms = node->now_ms;
    job->n_sessions++;
    session_turn(node, session, SESSION_JOINING, "it joins");
    if (rival)
        supersede(node, rival, &join->join, order);
    if (epoch)
        enter_epoch(node, session, epoch);
    if (job->mode != node->config.mode)
        send_mode(node, session);
    node_send_members(node, job, UINT64_MAX);
    return 0;
}

/* --------------------------------------------------------------------------------------------------------------- leaving */

static void died(struct node *node, struct session *session)
{
    const struct wire_join *join = &session->join->join;
    struct local_epoch *epoch = session->epoch;
    struct wire_abort abort = {.rank = join->rank, .replica = join->replica};
    char who[48];

    member_name(join->rank, join->replica, join->n_replicas, who, sizeof who);
    out_log(&node->out, LOG_LEVEL_WARNING, "group %s: %s (pid %u) lost, aborting step %llu", epoch->label, who, join->pid,
            (unsigned long long)(epoch->first_step + epoch->highest_outcome));
    err_set_at(&abort.error, -ESHUTDOWN, join->rank, POISE_NONE, NULL,
               "job %s: %s (pid %u on %s) died; only release and close are left", join->job, who, join->pid,
               join->host[0] ? join->host : node->config.name);
    abort.step = epoch->first_step + epoch->highest_outcome;
    local_epoch_end(node, epoch, &abort, true, session);
}

void node_on_session_end(struct node *node, struct session *session)
{
    enum session_state state = session->state;

    if (state == SESSION_RUNNING && session->epoch && session->epoch->state != LOCAL_ABORTED)
        died(node, session);
    if (state == SESSION_JOINING) {
        session_turn(node, session, SESSION_OVER, "its connection ended");
        withdraw(node, session->job, &session->join->join);
    }
    remove_session(node, session);
}

static void leave_epoch(struct node *node, struct session *session, uint64_t submitted)
{
    const struct wire_join *join = &session->join->join;
    struct local_epoch *epoch = session->epoch;
    struct wire_abort abort = {.rank = join->rank, .replica = join->replica};
    char who[48];

    member_name(join->rank, join->replica, join->n_replicas, who, sizeof who);
    abort.left = submitted > 0;
    abort.step = epoch->first_step + submitted - (submitted > 0);
    if (submitted)
        err_set_at(&abort.error, -ESHUTDOWN, join->rank, POISE_NONE, NULL, "%s left after step %llu", who,
                   (unsigned long long)abort.step);
    else
        err_set_at(&abort.error, -ESHUTDOWN, join->rank, POISE_NONE, NULL, "%s left before its first step", who);
    local_epoch_end(node, epoch, &abort, true, session);
}

void node_on_leave(struct node *node, struct session *session, const struct wire_message *msg)
{
    if (session->state == SESSION_JOINING) {
        session_turn(node, session, SESSION_OVER, "it left");
        withdraw(node, session->job, &session->join->join);
        return;
    }
    if (session->state != SESSION_RUNNING || !session->epoch || !wire_id_is(msg->leave.epoch, session->epoch->id))
        return;
    session_turn(node, session, SESSION_OVER, "it left");
    if (!msg->leave.ended)
        leave_epoch(node, session, msg->leave.submitted);
    session_detach(node, session);
}

bool node_session_waits(const struct session *session)
{
    return session->state == SESSION_JOINING || (session->state == SESSION_RUNNING && !session->rostered &&
                                                 session->epoch && session->epoch->state != LOCAL_ABORTED);
}

/* Who of a group is missing, for the processes that wait for them. */
void node_on_forming(struct node *node, const struct wire_message *msg)
{
    const struct job *job = node_job(node, msg->forming.uid, msg->forming.job, msg->forming.group);
    struct wire_message *to = NULL;

    for (uint32_t i = 0; job && i < node->n_sessions; i++) {
        if (node->sessions[i]->job != job || !node_session_waits(node->sessions[i]))
            continue;
        if (!to) {
            to = out_message(&node->out, WIRE_FORMING);
            to->forming = msg->forming;
        }
        out_send(&node->out, node->sessions[i]->id, false, to);
    }
}

void node_on_refused(struct node *node, const struct wire_message *msg)
{
    const struct wire_join_name *who = &msg->refused.who;

    for (uint32_t i = 0; i < node->n_sessions; i++) {
        struct session *session = node->sessions[i];

        if (!session->join || session->join->join.rank != who->rank || session->join->join.replica != who->replica ||
            wire_incarnation_compare(&session->join->join.incarnation, &who->incarnation) != 0 ||
            strcmp(session->join->join.job, who->job) != 0 || strcmp(session->join->join.group, who->group) != 0 ||
            (session->state != SESSION_JOINING && session->state != SESSION_RUNNING))
            continue;
        refuse(node, session, &session->join->join, &msg->refused.error);
        session_detach(node, session);
        return;
    }
}
