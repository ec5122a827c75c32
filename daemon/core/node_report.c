/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others ask a node about its processes: who a session is, who its peers are, and the report for status.
 */
#include <errno.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/node_state.h"

uint32_t node_peers(const struct node *node, uint64_t session, uint64_t *sessions, uint32_t max)
{
    const struct session *self = node_session(node, session);
    const struct local_epoch *epoch = self ? self->epoch : NULL;
    uint32_t n = 0;

    if (!epoch || epoch->state == LOCAL_ABORTED)
        return 0;
    for (uint32_t i = 0; i < epoch->n_locals; i++) {
        const struct session *other = epoch->locals[i].session;

        if (!other || other == self || epoch->locals[i].replica != epoch->locals[self->local].replica)
            continue;
        if (n < max)
            sessions[n] = other->id;
        n++;
    }
    return n;
}

bool node_session_who(const struct node *node, uint64_t session, struct wire_join_name *ret_who, struct wire_id *ret_epoch)
{
    const struct session *self = node_session(node, session);
    const struct wire_join *join = self && self->join ? &self->join->join : NULL;

    if (!join)
        return false;
    memcpy(ret_who->job, join->job, sizeof ret_who->job);
    memcpy(ret_who->group, join->group, sizeof ret_who->group);
    ret_who->rank = join->rank;
    ret_who->replica = join->replica;
    ret_who->incarnation = join->incarnation;
    *ret_epoch = self->epoch ? self->epoch->id : (struct wire_id){0, 0};
    return true;
}

/* Ranks of this node, by replica 0, that are here and report what they compute; all: also those that do not. */
static uint32_t n_measuring(const struct local_epoch *epoch, bool all)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < epoch->n_locals; i++) {
        const struct local *local = &epoch->locals[i];

        n += local->session && local->replica == 0 && (all || local->session->last.compute_ns);
    }
    return n;
}

void node_audit(struct local_epoch *epoch, const struct wire_outcome *outcome)
{
    if (epoch->audit.report.every && outcome->kind == WIRE_OUTCOME_PLAN)
        audit_planned(&epoch->audit, outcome->step, outcome->totals.mode, n_measuring(epoch, false));
}

static void audit(struct local_epoch *epoch, const struct session *session, const struct wire_report *report)
{
    uint32_t n;

    if (!epoch || !epoch->audit.report.every || !wire_id_is(epoch->id, report->epoch) ||
        epoch->locals[session->local].replica != 0)
        return;
    audit_reported(&epoch->audit, report->report_step, report->compute_ns);
    n = audit_n_here(&epoch->audit, report->report_step);
    if (n * epoch->n_replicas >= epoch->n_live && n == n_measuring(epoch, true)) /* counting is for the last ones */
        audit_complete(&epoch->audit, report->report_step);
}

/* A report comes more often than a step is measured: a step's time is kept once. */
void node_on_report(struct session *session, const struct wire_report *report)
{
    bool other = !wire_id_is(session->last.epoch, report->epoch);
    bool known = !other && session->last.compute_ns && session->last.report_step == report->report_step;

    if (other) {
        memset(session->computed, 0, sizeof session->computed);
        session->n_computed = 0;
    }
    session->last = *report;
    if (report->compute_ns && known)
        session->n_computed--;
    if (report->compute_ns)
        session->computed[session->n_computed++ % NODE_COMPUTED] =
            (struct node_computed){report->report_step, report->compute_ns};
    if (report->compute_ns && !known)
        audit(session->epoch, session, report);
}

static const char *state_text(const struct session *session)
{
    if (session->state == SESSION_JOINING)
        return "joining";
    if (session->state == SESSION_OVER || (session->epoch && session->epoch->state >= LOCAL_ENDED))
        return "ended";
    return "running";
}

static void fill(const struct session *session, struct node_report_process *to)
{
    const struct wire_join *join = &session->join->join;

    memcpy(to->job, join->job, sizeof to->job);
    memcpy(to->group, join->group, sizeof to->group);
    to->rank = join->rank;
    to->replica = join->replica;
    to->n_ranks = join->n_ranks;
    to->n_replicas = join->n_replicas;
    to->pid = join->pid;
    to->uid = session->uid;
    to->state = state_text(session);
    to->mode = session->job->mode;
    if (session->epoch) {
        to->epoch = session->epoch->id;
        to->audit = session->epoch->audit.report;
    }
    to->decided = session->decided;
    to->last = session->last;
    memcpy(to->computed, session->computed, sizeof to->computed);
}

int node_report(const struct node *node, struct node_report *ret_report)
{
    struct node_report_process *processes = core_alloc(node->n_sessions, sizeof *processes);
    uint32_t n = 0;

    if (!processes)
        return -ENOMEM;
    for (uint32_t i = 0; i < node->n_sessions; i++)
        if (node->sessions[i]->join && node->sessions[i]->job)
            fill(node->sessions[i], &processes[n++]);
    memset(ret_report, 0, sizeof *ret_report);
    ret_report->instance = node->config.instance;
    memcpy(ret_report->name, node->config.name, sizeof ret_report->name);
    ret_report->messages = node->messages;
    ret_report->stale = node->stale;
    ret_report->refused = node->refused;
    ret_report->pulls = node->pulls;
    ret_report->n_processes = n;
    ret_report->processes = processes;
    return 0;
}
