/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator role: one state machine a group (group.h) behind a table by job and group. Collects members until a
 * group is whole, collects the metadata of each step, computes its outcome, and sends to each node its slice. Pure.
 */
#ifndef POISE_CORE_COORDINATOR_H
#define POISE_CORE_COORDINATOR_H

#include "update.h"

struct coordinator;

/* What is planned right now, in memory that outlives the process; see poison.h. */
struct coordinator_mark {
    struct wire_id epoch;
    uint64_t step;
    uint64_t check; /* coordinator_mark_check() while it is being planned; 0: nothing is */
};
uint64_t coordinator_mark_check(const struct coordinator_mark *mark);

struct coordinator_config {
    struct wire_id instance;
    uint64_t beacon_ms;       /* 250 */
    uint64_t node_timeout_ms; /* 10,000 */
    uint64_t warn_ms;         /* 60,000: alive and slow is worth a line */
    uint64_t forget_ms;       /* 30,000: how long a failed attempt is told to late joiners */
    struct coordinator_mark *mark; /* borrowed; NULL: none */
};

enum coordinator_event_kind {
    COORDINATOR_FROM_NODE, /* link, msg */
    COORDINATOR_LINK_DOWN, /* the connection of a node ended: link (proof of nothing: starts its timer) */
    COORDINATOR_TICK,
    COORDINATOR_POISONED /* planning a step killed the daemon before this one: epoch, step, who (where and what it
                          * was) */
};

struct coordinator_event {
    uint64_t now_ms;
    enum coordinator_event_kind kind;
    uint64_t link; /* the shell's number of the node's connection */
    const struct wire_message *msg; /* borrowed for the call */
    bool secure; /* nobody else can read what that connection carries: encrypted, or inside this machine */
    struct wire_id epoch; /* COORDINATOR_POISONED */
    uint64_t step;
    const char *who;
};

int coordinator_new(const struct coordinator_config *config, struct coordinator **ret_coordinator);
void coordinator_free(struct coordinator *coordinator);

/* One event. 0 or -ENOMEM (the event has no effect). *ret_update: valid until the next call. */
int coordinator_step(struct coordinator *coordinator, const struct coordinator_event *event,
                     struct core_update *ret_update, struct poise_err *err);

/* ---------------------------------------------------------------------------------------------------------- reports */

struct group_report {
    char job[WIRE_JOB_BYTES], group[POISE_MAX_NAME];
    uint32_t uid;
    const char *state; /* "forming", "running", "ended", "aborted" */
    struct wire_id epoch;
    uint32_t n_ranks, n_replicas, n_nodes, n_joined;
    uint64_t first_step, decided;
    uint64_t planned, errors, samples, samples_moved, bytes, bytes_moved; /* sums over steps */
    uint64_t samples_dropped;
    struct poise_totals last; /* of the newest planned step */
    char algorithm[POISE_MAX_NAME];
    uint32_t n_waiting; /* ranks whose metadata of the oldest open step is missing; at most 16 are named */
    uint32_t waiting[16];
    uint64_t waiting_ms;
    char error[512]; /* of the abort */
    uint64_t n_stale, n_far, n_conflicts; /* metas refused: of other members or steps, beyond the window, of other
                                           * content */
    uint64_t bytes_between_nodes; /* of bytes_moved */
    const char *payload; /* how it goes between nodes: "curve", "plain"; NULL: it does not */
};

/* *ret_reports: caller frees with free(). -ENOMEM. */
int coordinator_report(const struct coordinator *coordinator, uint64_t now_ms, struct group_report **ret_reports,
                       uint32_t *ret_n_reports);

#endif
