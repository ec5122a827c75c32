/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports as JSON. Costs are in units of 1,024 FLOP, times in milliseconds, ids as 32 hexadecimal digits; what is
 * predicted stands under that word. The object:
 *
 *   version, wire_version, node, instance, pid, uptime_ms, socket_dir, mode, processes, max_processes, queued
 *   counters  {messages, events, bad_messages, ...}: since the start
 *   links     coordinators in other processes, and coordinator: nodes there; see status_links.c
 *   groups    [{job, group, uid, state ("forming", "running", "ended", "aborted"), verdict, mode, epoch, algorithm,
 *              ranks, replicas, nodes, joined, first_step, step (the lowest open one), decided, planned, errors,
 *              samples, samples_moved, samples_dropped, bytes, bytes_moved, bytes_between_nodes (of these),
 *              payload ("curve" or "plain": how it goes between nodes; null: it stays on its node), idle_ms (since the
 *              newest outcome),
 *              waiting   {ranks (the first 16), total, ms, for {loader, plan, shuffle, trainer: how many of them}}: who
 *                        holds the others up,
 *              predicted {samples, bytes, bytes_moved, bytes_between_nodes, samples_moved, cost_before, cost_after, cost_mean,
 *                        imbalance_before, imbalance_after, length_micro_batch_before, length_micro_batch_after,
 *                        lacking_before, lacking_after, mode} of the newest planned step, or null,
 *              measured  {step, ranks, slowest (rank), compute_ms_max, compute_ms_mean, imbalance}: what ranks of this
 *                        node reported of the newest step that all of them reported, or null,
 *              audit     of the group's option, or null; see status_audit.c,
 *              error     of an abort, or null,
 *              processes [{rank, replica, pid, uid, state, mode, decided, submitted, delivered, waiting_for, cause (in
 *                        words: "loader of rank 5" where its plan waits for that), compute_ms, pipeline_ms, exposed_ms,
 *                        arena_bytes, budget_bytes, samples_in, samples_out, samples_dropped, samples_verified,
 *                        samples_corrupt}]}]: those of this node
 */
#include "daemon/shell/accept.h"
#include "daemon/shell/report.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* jansson's integers are signed; totals saturate at 2^64 - 1. */
static json_int_t number(uint64_t value)
{
    return value > INT64_MAX ? INT64_MAX : (json_int_t)value;
}

static void set_number(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer(number(value)));
}

static void set_ms(json_t *object, const char *key, uint64_t ns)
{
    json_object_set_new(object, key, json_real((double)ns / 1e6));
}

static void set_text(json_t *object, const char *key, const char *text)
{
    json_t *string = json_string(text); /* NULL where text is no UTF-8 */
    json_object_set_new(object, key, string ? string : json_string("?"));
}

static void set_id(json_t *object, const char *key, struct wire_id id)
{
    char text[WIRE_ID_TEXT];
    json_object_set_new(object, key, wire_id_none(id) ? json_null() : json_string(wire_id_format(id, text)));
}

static json_t *numbers(const uint64_t *values, uint32_t n)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(number(values[i])));
    return array;
}

static json_t *ratio(uint64_t a, uint64_t b)
{
    return b ? json_real((double)a / (double)b) : json_null();
}

static json_t *process_json(const struct node_report_process *p, const struct report_waiting *waiting)
{
    char cause[REPORT_CAUSE];
    const struct wire_report *last = &p->last;
    json_t *o = json_object();
    set_number(o, "rank", p->rank);
    set_number(o, "replica", p->replica);
    set_number(o, "pid", p->pid);
    set_number(o, "uid", p->uid);
    set_text(o, "state", p->state);
    set_text(o, "mode", mode_name(p->mode));
    set_number(o, "decided", p->decided);
    set_number(o, "submitted", last->submitted);
    set_number(o, "delivered", last->step);
    set_text(o, "waiting_for", waiting_name(last->waiting));
    set_text(o, "cause", report_cause(p, waiting, cause));
    set_ms(o, "compute_ms", last->compute_ns);
    set_ms(o, "pipeline_ms", last->pipeline_ns);
    set_ms(o, "exposed_ms", last->exposed_ns);
    set_number(o, "arena_bytes", last->arena_bytes);
    set_number(o, "budget_bytes", last->budget_bytes);
    set_number(o, "samples_in", last->samples_in);
    set_number(o, "samples_out", last->samples_out);
    set_number(o, "samples_dropped", last->samples_dropped);
    set_number(o, "samples_verified", last->samples_verified);
    set_number(o, "samples_corrupt", last->samples_corrupt);
    return o;
}

static json_t *predicted_json(const struct group_report *g)
{
    const struct poise_totals *t = &g->last;
    if (!g->planned)
        return json_null();
    json_t *o = json_object();
    uint32_t n_phases = POISE_MAX_PHASES;
    while (n_phases > 0 && !t->length_micro_batch_before[n_phases - 1] && !t->length_micro_batch_after[n_phases - 1])
        n_phases--;
    set_number(o, "samples", t->n_samples);
    set_number(o, "samples_moved", t->samples_moved);
    set_number(o, "bytes", t->bytes);
    set_number(o, "bytes_moved", t->bytes_moved);
    set_number(o, "bytes_between_nodes", t->bytes_between_nodes);
    set_number(o, "cost_before", t->cost_before);
    set_number(o, "cost_after", t->cost_after);
    set_number(o, "cost_mean", t->cost_mean);
    json_object_set_new(o, "imbalance_before", ratio(t->cost_before, t->cost_mean));
    json_object_set_new(o, "imbalance_after", ratio(t->cost_after, t->cost_mean));
    json_object_set_new(o, "length_micro_batch_before", numbers(t->length_micro_batch_before, n_phases));
    json_object_set_new(o, "length_micro_batch_after", numbers(t->length_micro_batch_after, n_phases));
    set_number(o, "lacking_before", t->lacking_before);
    set_number(o, "lacking_after", t->lacking_after);
    set_text(o, "mode", mode_name(t->mode));
    return o;
}

static json_t *measured_json(const struct shell_report *r, const struct group_report *g)
{
    struct report_measured m = report_measured(r, g);
    if (m.n_ranks == 0)
        return json_null();
    json_t *o = json_object();
    set_number(o, "step", m.step);
    set_number(o, "ranks", m.n_ranks);
    set_number(o, "slowest", m.slowest);
    set_ms(o, "compute_ms_max", m.max_ns);
    json_object_set_new(o, "compute_ms_mean", json_real(m.sum_ns / m.n_ranks / 1e6));
    json_object_set_new(o, "imbalance", json_real((double)m.max_ns * m.n_ranks / m.sum_ns));
    return o;
}

static json_t *waiting_json(const struct report_waiting *waiting)
{
    json_t *o = json_object(), *ranks = json_array(), *by = json_object();
    for (uint32_t k = 0; k < waiting->n_named; k++)
        json_array_append_new(ranks, json_integer(waiting->ranks[k]));
    json_object_set_new(o, "ranks", ranks);
    set_number(o, "total", waiting->n);
    set_number(o, "ms", waiting->n ? waiting->ms : 0);
    for (uint32_t cause = 1; cause < 5; cause++)
        if (waiting->n_by[cause])
            set_number(by, waiting_name(cause), waiting->n_by[cause]);
    json_object_set_new(o, "for", by);
    return o;
}

/* The most cautious of its processes' modes here; before any, that of the last step. */
static uint32_t group_mode(const struct shell_report *r, const struct group_report *g)
{
    uint32_t mode = g->last.mode, n = 0;
    for (uint32_t i = 0; i < r->node.n_processes; i++) {
        const struct node_report_process *p = &r->node.processes[i];
        if (report_belongs(p, g) && (n++ == 0 || p->mode > mode))
            mode = p->mode;
    }
    return mode;
}

static void set_totals(json_t *o, const struct group_report *g)
{
    set_number(o, "first_step", g->first_step);
    set_number(o, "step", g->first_step + g->decided);
    set_number(o, "decided", g->decided);
    set_number(o, "planned", g->planned);
    set_number(o, "errors", g->errors);
    set_number(o, "samples", g->samples);
    set_number(o, "samples_moved", g->samples_moved);
    set_number(o, "samples_dropped", g->samples_dropped);
    set_number(o, "bytes", g->bytes);
    set_number(o, "bytes_moved", g->bytes_moved);
    set_number(o, "bytes_between_nodes", g->bytes_between_nodes);
    json_object_set_new(o, "payload", g->payload ? json_string(g->payload) : json_null());
}

static json_t *group_json(const struct shell_report *r, uint32_t i)
{
    const struct group_report *g = &r->groups[i];
    struct report_waiting waiting = report_waiting(r, g, r->idle_ms[i]);
    char line[768];
    json_t *o = json_object(), *processes = json_array();
    verdict(r, g, r->idle_ms[i], line, sizeof line);
    set_text(o, "job", g->job);
    set_text(o, "group", g->group);
    set_number(o, "uid", g->uid);
    set_text(o, "state", g->state);
    set_text(o, "verdict", line);
    set_text(o, "mode", mode_name(group_mode(r, g)));
    set_id(o, "epoch", g->epoch);
    set_text(o, "algorithm", g->algorithm);
    set_number(o, "ranks", g->n_ranks);
    set_number(o, "replicas", g->n_replicas);
    set_number(o, "nodes", g->n_nodes);
    set_number(o, "joined", g->n_joined);
    set_totals(o, g);
    set_number(o, "idle_ms", r->idle_ms[i]);
    json_object_set_new(o, "waiting", waiting_json(&waiting));
    json_object_set_new(o, "predicted", predicted_json(g));
    json_object_set_new(o, "measured", measured_json(r, g));
    status_audit(r, g, o);
    if (g->error[0])
        set_text(o, "error", g->error);
    else
        json_object_set_new(o, "error", json_null());
    for (uint32_t p = 0; p < r->node.n_processes; p++)
        if (report_belongs(&r->node.processes[p], g))
            json_array_append_new(processes, process_json(&r->node.processes[p], &waiting));
    json_object_set_new(o, "processes", processes);
    return o;
}

static json_t *counters_json(const struct shell_report *r)
{
    json_t *o = json_object();
    set_number(o, "messages_received", r->router.received);
    set_number(o, "messages_sent", r->router.sent);
    set_number(o, "bytes_received", r->router.received_bytes);
    set_number(o, "bytes_sent", r->router.sent_bytes);
    set_number(o, "messages_between_roles", r->roles.passed);
    set_number(o, "events", r->roles.events);
    set_number(o, "bad_messages", r->router.bad);
    set_number(o, "bad_packets", r->local.bad);
    set_number(o, "stale_messages", r->node.stale);
    set_number(o, "pulls", r->node.pulls);
    set_number(o, "refused_processes", r->local.refused + r->router.refused + r->node.refused);
    set_number(o, "refused_connections", accept_guard_refused());
    set_number(o, "unroutable", r->router.unroutable);
    set_number(o, "not_taken", r->router.full);
    set_number(o, "dropped", r->roles.dropped);
    set_number(o, "sessions", r->local.accepted);
    set_number(o, "segments_forwarded", r->local.forwarded);
    set_number(o, "segments_stray", r->local.stray);
    return o;
}

static json_t *status_object(const struct shell_report *r)
{
    json_t *o = json_object(), *groups = json_array();
    set_text(o, "version", POISE_VERSION);
    set_number(o, "wire_version", WIRE_VERSION);
    set_text(o, "node", r->node.name);
    set_id(o, "instance", r->node.instance);
    set_number(o, "pid", r->pid);
    set_number(o, "uptime_ms", r->uptime_ms);
    set_text(o, "socket_dir", r->socket_dir);
    set_text(o, "mode", mode_name(r->mode));
    set_number(o, "processes", r->n_connections);
    set_number(o, "max_processes", r->max_processes);
    set_number(o, "queued", r->n_queued);
    json_object_set_new(o, "counters", counters_json(r));
    status_links(r, o);
    for (uint32_t i = 0; i < r->n_groups; i++)
        json_array_append_new(groups, group_json(r, i));
    json_object_set_new(o, "groups", groups);
    return o;
}

char *status_json(const struct shell_report *report)
{
    json_t *object = status_object(report);
    char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    return text;
}
