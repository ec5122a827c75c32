/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A running epoch at a coordinator: its members and nodes (epoch.c) and the window of its steps (steps.c). It knows
 * nothing of how it came to be or ends; group.c does.
 */
#ifndef POISE_CORE_EPOCH_H
#define POISE_CORE_EPOCH_H

#include "daemon/core/coordinator.h"
#include "daemon/core/membership.h"
#include "daemon/core/out.h"
#include "daemon/core/outcome.h"

/* 2 W: while the fastest rank has decided a, it submits up to a + W, and the slowest still needs a - W + 1. */
#define EPOCH_SLOTS (2u * WIRE_WINDOW)
/* A step's missing metadata is asked for again after so long: longer than an answer takes, much shorter than the 2 s
 * after which a rank that waits asks again. */
#define EPOCH_NEED_MS 200u

struct epoch_slot {
    bool used;
    uint64_t step;
    uint32_t n_here;
    uint8_t *here;           /* [n_members] */
    struct wire_id *digests; /* [n_members] of those that are here; write-once is checked after the decision too */
    const struct wire_meta **metas; /* [n_members], into kept; NULL once decided */
    struct wire_message **kept;     /* META messages, until decided */
    uint32_t n_kept, cap_kept;
    uint64_t since_ms; /* of its first metadata */
    uint64_t need_ms;  /* when NEED was sent last; 0: never */
    bool warned;
    struct outcome *outcome;        /* NULL: undecided */
    struct wire_slice *node_slices; /* of all nodes, by epoch->node_first */
    struct wire_meta *record;       /* [n_ranks], into kept: once decided, where the option `record` asks; else NULL */
};

/* Steps that were refused because they are beyond the window (window.c): at most 2 W from the lowest on. */
struct epoch_far {
    uint64_t low;
    uint32_t n;
    bool news; /* one was refused since it was asked for */
    uint64_t asked_ms;
};

struct epoch {
    struct wire_listen listens[WIRE_MAX_LISTENS]; /* of the roster */
    struct wire_id id;
    char label[WIRE_JOB_BYTES + POISE_MAX_NAME]; /* job/group, for messages */
    struct membership set;
    uint32_t n_ranks, n_replicas, n_members, n_nodes;
    uint64_t first_step;
    struct options options;
    uint32_t *node, *sync_set; /* [n_ranks] of replica 0 */
    uint32_t *node_first;      /* [n_nodes + 1] into node_ranks */
    uint32_t *node_ranks;      /* ranks of which a node hosts a process, ascending */
    struct wire_message roster;
    struct wire_member *roster_members;
    struct wire_message bare_roster; /* without the payload key, for nodes whose connection is not secure */
    uint8_t payload_key[WIRE_KEY_BYTES];
    struct tables tables;
    struct schema *schema; /* of the newest step; shared with its outcomes */
    struct epoch_slot slots[EPOCH_SLOTS];
    uint64_t decided; /* highest decided step + 1, counted from first_step */
    uint64_t highest; /* highest step that metadata came for + 1, counted likewise */
    bool leaving;     /* leave holds who left in order; steps above leave.step are dropped */
    uint32_t n_twins; /* of the first steps, how many had twins: in every one is no accident */
    bool ended;       /* a step's outcome was END */
    struct wire_abort leave;
    uint64_t asked_step, asked_ms; /* the newest NEED for a step of which nothing is here */
    uint64_t next_beacon_ms, vote_ms;
    uint32_t beat_serial; /* of the message whose heartbeat was taken last: one each */
    uint64_t heard_ms; /* any node spoke of this epoch */
    /* sums for reports */
    uint64_t planned, errors, samples, samples_moved, bytes, bytes_moved, samples_dropped, conflicts, stale;
    uint64_t bytes_between_nodes; /* of bytes_moved */
    struct poise_totals last;
    uint64_t *reached; /* [n_members] steps that a member is known to have submitted */
    struct epoch_far far;
    uint64_t n_far; /* metas beyond the window, refused */
    struct epoch *next_dead; /* freed at the coordinator's next event: sends may still point into it */
};

/* Takes the whole set (it is empty afterwards). Errors: -ENOMEM without effect; -EINVAL options that no plan can
 * follow. */
int epoch_new(struct membership *set, uint64_t now_ms, struct epoch **ret_epoch, struct poise_err *err);
void epoch_free(struct epoch *epoch);

/* The node behind a link; NULL if none of this epoch. */
struct member_node *epoch_node_by_link(struct epoch *epoch, uint64_t link);
struct member_node *epoch_node_by_instance(struct epoch *epoch, struct wire_id instance);

/* Whether payload goes between nodes. */
bool epoch_moves_payload(const struct epoch *epoch);

/* Whether the key that the payload needs may go to every node. 0, -EAGAIN it is not here yet, -ENOKEY says whose
 * connection is in the way and what to do. */
int epoch_check_key(const struct epoch *epoch, struct poise_err *err);

/* The roster, to one node or to every one that can be reached: with the payload key only where the connection is
 * secure. */
void epoch_send_roster(const struct epoch *epoch, struct core_out *out, uint64_t link);
void epoch_send_rosters(const struct epoch *epoch, struct core_out *out);

/* To every node that can be reached. */
void epoch_send_all(const struct epoch *epoch, struct core_out *out, const struct wire_message *msg);

/* The first open step: lowest undecided one above all decided. */
uint64_t epoch_oldest_open(const struct epoch *epoch);

/* Ranks whose metadata of the first open step is missing: fills at most max, returns how many there are. */
uint32_t epoch_missing(const struct epoch *epoch, uint32_t *ranks, uint32_t max);

void epoch_beacon(const struct epoch *epoch, struct wire_id instance, struct wire_message *msg);

/* ------------------------------------------------------------------------------------------------------------ steps */

void epoch_steps_free(struct epoch *epoch);

/* Metadata from a node. 0 or -ENOMEM without effect. Conflicts, stale and far-off ones are counted and dropped. */
int epoch_meta(struct epoch *epoch, const struct wire_message *msg, uint64_t link, uint64_t now_ms,
               struct core_out *out);

/* Decides the lowest step that is complete, if any: sends the outcome, keeps it. The mark (may be NULL) is set
 * meanwhile. 1: decided one, 0: none is complete, -ENOMEM without effect. */
int epoch_decide(struct epoch *epoch, struct coordinator_mark *mark, uint64_t now_ms, struct core_out *out);

/* Answers a node that asks for a step's outcome, or asks for what is missing of it. */
void epoch_pull(struct epoch *epoch, struct member_node *node, uint64_t step, bool want_table, uint64_t now_ms,
                struct core_out *out);

/* The same for the metadata of all ranks, which rank 0 records. */
void epoch_need_record(struct epoch *epoch, struct member_node *node, uint64_t step, uint64_t now_ms,
                       struct core_out *out);

/* Asks the nodes that host processes whose metadata of an open step, or whose field table, is missing. */
void epoch_need(struct epoch *epoch, uint64_t step, uint64_t now_ms, struct core_out *out);

/* Samples whose metadata is here and whose step is undecided. */
uint64_t epoch_n_open(const struct epoch *epoch);

/* ----------------------------------------------------------------------------------------------------------- window */

enum epoch_place {
    EPOCH_PAST, /* nobody needs it any more, or it never gets an outcome */
    EPOCH_HERE, /* may be held, now or by letting older ones go */
    EPOCH_FAR   /* beyond what a rank may submit, as far as is known here */
};
enum epoch_place epoch_place(const struct epoch *epoch, uint64_t step);

/* What a node's word proves of its own members. node may be NULL: not known, so nothing. */
void epoch_reached_meta(struct epoch *epoch, const struct member_node *node, uint32_t member, uint64_t step);
void epoch_reached_beat(struct epoch *epoch, const struct member_node *node, const struct wire_heartbeat_epoch *beat);

/* Remembers a refused step; asks for the lowest of them. True: ask again at once. */
void epoch_far(struct epoch *epoch, uint64_t step);
bool epoch_ask_far(struct epoch *epoch, uint64_t now_ms, struct core_out *out);

/* ------------------------------------------------------------------------------------------------------------ twins */

/* Two ranks that said the very same of a step with samples: tensor-parallel peers that were taken for data-parallel
 * ranks would swap copies of one sample. False: none, or no memory to look. */
bool epoch_twins(const struct epoch *epoch, const struct epoch_slot *slot, uint32_t *ret_a, uint32_t *ret_b);

/* NULL: not in the window, or nothing of it came. */
struct epoch_slot *epoch_find(const struct epoch *epoch, uint64_t step);

#endif
