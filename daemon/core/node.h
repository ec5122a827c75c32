/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node role: admits local processes, gathers the metadata of a step of its ranks into one message to each
 * coordinator, hands slices to processes, and tells coordinators who died or left. Pure: every input is an event with
 * its time.
 */
#ifndef POISE_CORE_NODE_H
#define POISE_CORE_NODE_H

#include "daemon/core/audit.h"
#include "update.h"

struct node;

struct node_config {
    struct wire_id instance; /* random, new at every start */
    char name[POISE_MAX_NAME];
    char listen[WIRE_LISTEN_BYTES]; /* where the coordinator of this process is reached; "": nowhere. node_listen() */
    uint64_t heartbeat_ms;   /* 1,000 */
    uint64_t pull_delay_ms;  /* 20: after a beacon proved that an outcome exists */
    uint64_t silence_ms;     /* 2,000 without a beacon */
    uint64_t node_timeout_ms; /* 10,000 */
    uint32_t mode;           /* POISE_MODE_*: of jobs without one of their own */
};

enum node_event_kind {
    NODE_SESSION,      /* a process connected and said HELLO: session, uid, pid */
    NODE_SESSION_END,  /* its connection ended or it died: session */
    NODE_FROM_PROCESS, /* session, msg */
    NODE_FROM_COORDINATOR, /* link, msg (also beacons) */
    NODE_LINK_DOWN,    /* the shell has no connection to a coordinator, or lost it: link */
    NODE_SET_MODE,     /* poisectl mode: job ("" all), group ("" all), mode, uid of who asks (0 may all) */
    NODE_TICK,
    NODE_LINK_UP /* a connection to a coordinator is there: link */
};

struct node_event {
    uint64_t now_ms;
    enum node_event_kind kind;
    uint64_t session, link;
    uint32_t uid, pid, mode;
    const char *job, *group;
    const struct wire_message *msg; /* borrowed for the call */
    bool secure;     /* NODE_LINK_UP: nobody between can read: encrypted, or inside this host */
    const char *why; /* NODE_LINK_DOWN: what is known of the reason; NULL: nobody answers. Borrowed for the call */
};

int node_new(const struct node_config *config, struct node **ret_node);
void node_free(struct node *node);

/* One event. 0, -EACCES or -ENOENT for NODE_SET_MODE, or -ENOMEM (the event has no effect). *ret_update: valid until
 * the next call with this node. */
int node_step(struct node *node, const struct node_event *event, struct core_update *ret_update, struct poise_err *err);

/* Another address of this process's coordinator, from the next MEMBERS on. Copies. */
void node_listen(struct node *node, const char *endpoint);

/* The endpoint behind a link number that an update named: "" is the coordinator of this very process. Links are never
 * renumbered. NULL past the end. */
const char *node_link_endpoint(const struct node *node, uint64_t link);

/* The sessions that get a segment offered by `session`: members of its epoch on this node with its replica number, not
 * itself. Fills at most max, returns how many there are; 0 before the epoch began. */
uint32_t node_peers(const struct node *node, uint64_t session, uint64_t *sessions, uint32_t max);

/* Rank, replica, epoch and job of a session; false before JOIN. */
bool node_session_who(const struct node *node, uint64_t session, struct wire_join_name *ret_who,
                      struct wire_id *ret_epoch);

/* ---------------------------------------------------------------------------------------------------------- reports */

struct node_computed {
    uint64_t step, ns;
};
#define NODE_COMPUTED 8 /* ranks are at most a window apart, by default 4 steps: one that all reported is among these */

struct node_report_process {
    char job[WIRE_JOB_BYTES], group[POISE_MAX_NAME];
    uint32_t rank, replica, n_ranks, n_replicas, pid, uid;
    const char *state; /* "joining", "running", "ended" */
    uint32_t mode;
    struct wire_id epoch;
    uint64_t decided; /* steps whose outcome was handed to it, from first_step */
    struct wire_report last; /* its newest report */
    struct node_computed computed[NODE_COMPUTED]; /* its newest steps with a compute time, in no order; ns 0: none */
    struct audit_report audit; /* of its group, by this node's ranks */
};

struct node_report {
    struct wire_id instance;
    char name[POISE_MAX_NAME];
    uint64_t messages, stale, refused, pulls; /* counters since start */
    uint32_t n_processes;
    struct node_report_process *processes;
};

/* ret_report->processes: caller frees with free(). -ENOMEM. */
int node_report(const struct node *node, struct node_report *ret_report);

#endif
