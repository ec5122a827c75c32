/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that the status socket shows, as plain structs: gathered in status.c, written by status_json.c and
 * status_metrics.c. */
#ifndef POISE_SHELL_REPORT_H
#define POISE_SHELL_REPORT_H

#include <stdio.h>

#include "daemon/core/coordinator.h"
#include "daemon/core/node.h"
#include "daemon/shell/local.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/router.h"

struct shell_report {
    uint32_t pid;
    uint64_t uptime_ms;
    const char *socket_dir;
    uint32_t mode; /* POISE_MODE_* of jobs that were not told another */
    uint32_t n_connections, max_processes, n_queued;
    struct router_counters router;
    struct local_counters local;
    struct roles_counters roles;
    struct link_report *links; /* [n_links] to coordinators elsewhere */
    uint32_t n_links;
    const struct listener *listener; /* and its peers: nodes elsewhere */
    uint64_t now_ms;
    struct node_report node;
    struct group_report *groups;
    uint64_t *idle_ms; /* [n_groups] since the newest outcome */
    uint32_t n_groups;
};

/* Whether a process belongs to a group's report: by uid, job, group, and by epoch where both have one. */
bool report_belongs(const struct node_report_process *process, const struct group_report *group);

#define REPORT_NAMED 16
struct report_waiting { /* ranks that hold the others up: not joined yet, or the oldest open step not submitted */
    uint32_t ranks[REPORT_NAMED];
    uint32_t n_named, n;
    uint32_t n_by[5]; /* of n: by what they say they wait for, WIRE_WAIT_* */
    uint64_t ms;      /* for how long already */
};

/* n is 0 where nobody holds anybody up; ranks that all compute are no reason to wait. idle_ms: since the newest
 * outcome. */
struct report_waiting report_waiting(const struct shell_report *report, const struct group_report *group,
                                     uint64_t idle_ms);

struct report_measured { /* the newest step that all ranks of this node that measure have told of */
    uint64_t step;
    uint32_t n_ranks; /* 0: none */
    uint32_t slowest; /* rank */
    uint64_t max_ns;
    double sum_ns;
};
struct report_measured report_measured(const struct shell_report *report, const struct group_report *group);

/* What this node measured of a group's audit; NULL: it has none, or no process here. */
const struct audit_report *report_audit(const struct shell_report *report, const struct group_report *group);

struct report_interval {
    double mean;
    bool known; /* the interval of 95 %: it takes two values */
    double low, high;
};
struct report_interval report_interval(const struct audit_tally *tally);

/* What a process waits for, with the cause behind it: "loader of rank 5" where the plan of its step waits for that. */
#define REPORT_CAUSE 64
const char *report_cause(const struct node_report_process *process, const struct report_waiting *waiting,
                         char text[REPORT_CAUSE]);

/*
 * One line that says how a group is and what to do about it: "loader-bound on rank 17: balancing cannot help". Pure: of
 * several things that are true it names the one that holds the group up. idle_ms: since its newest outcome.
 */
void verdict(const struct shell_report *report, const struct group_report *group, uint64_t idle_ms, char *text,
             size_t n_text);

/* The JSON of /status; the keys are documented in status_json.c. NULL: no memory. Caller frees with free(). */
char *status_json(const struct shell_report *report);

/* The Prometheus text of /metrics. NULL: no memory. Caller frees with free(). */
char *status_metrics(const struct shell_report *report);

/* Of status_metrics(): the start of a line, "poise_NAME{job=...,group=...,uid=..."; and the series of this node's
 * ranks. */
void metrics_labels(FILE *out, const char *name, const char *job, const char *group, uint32_t uid);
void metrics_ranks(FILE *out, const struct shell_report *report);

/* Adds "links" and "coordinator" to the object of status_json(). */
struct json_t;
void status_links(const struct shell_report *report, struct json_t *object);

/* Adds "audit" to a group's object; its series. */
void status_audit(const struct shell_report *report, const struct group_report *group, struct json_t *object);
void metrics_audit(FILE *out, const struct shell_report *report);

/* Of two groups with the same labels only one may be shown. */
bool metrics_shown(const struct shell_report *report, uint32_t group);

const char *link_state_name(enum link_state state);
const char *mode_name(uint32_t mode);          /* "on" */
bool mode_read(const char *text, uint32_t *ret_mode);
const char *waiting_name(uint32_t waiting);    /* WIRE_WAIT_*: "loader" */

#endif
