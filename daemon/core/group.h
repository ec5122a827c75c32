/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One group at a coordinator: how its members gather, run an epoch and part. Flat: one state, one table (group.c),
 * every change logged once. join.c takes members in.
 */
#ifndef POISE_CORE_GROUP_H
#define POISE_CORE_GROUP_H

#include "coordinator.h"
#include "daemon/core/epoch.h"

enum group_state {
    GROUP_FORMING, /* some members are here */
    GROUP_RUNNING,
    GROUP_LEAVING, /* someone left in order: steps up to its last are still decided */
    GROUP_ENDED,   /* END was decided, or all have left */
    GROUP_ABORTED, /* the epoch, or the attempt to open one, failed */
    GROUP_N_STATES
};

enum group_change {
    GROUP_WHOLE,
    GROUP_LEAVE,
    GROUP_END,
    GROUP_ABORT,
    GROUP_GONE, /* no node speaks of the epoch any more */
    GROUP_JOIN
};

struct grave { /* a finished epoch: whoever still speaks of it is told why */
    struct wire_id epoch;
    struct wire_abort abort;
};
#define GROUP_POISONS 16u /* of the graves, the first are of epochs that killed a coordinator: no later end takes their
                           * place */
#define GROUP_GRAVES 256u /* a daemon that saw more jobs than that end answers UNKNOWN, and the asker's own timeout ends
                           * it */

struct group_env { /* of the event at hand */
    const struct coordinator_config *config;
    struct core_out *out;
    uint64_t now_ms, link;
    bool secure; /* of that link */
    struct grave *graves; /* [GROUP_GRAVES], from GROUP_POISONS on a ring */
    uint32_t *next_grave;
    struct epoch **dead;
};

struct group {
    char job[WIRE_JOB_BYTES], name[POISE_MAX_NAME];
    uint32_t uid;
    enum group_state state;
    uint64_t state_ms; /* since when */
    struct membership forming; /* wants a new epoch */
    struct membership claims;  /* says that it is in an epoch that is not known here */
    struct epoch *epoch;       /* running, leaving or ended */
    struct membership past;    /* members of what ended last: an incarnation joins at most one epoch */
    bool past_attempt;         /* past is an attempt to open: late members of it are told why it failed */
    struct poise_err over;     /* why past ended */
    uint64_t over_ms;
    uint64_t vote_ms; /* of claims that stay incomplete */
    struct group_report final; /* of the last epoch, when it ended; n_ranks 0: none */
    bool pending;     /* memory ran out while starting or deciding: try again at the next tick */
};

struct group *group_new(const struct wire_join *join, uint64_t now_ms); /* NULL: no memory */
void group_free(struct group *group);
const char *group_state_name(enum group_state state);

/* Changes the state as the table says; nothing if the table has no such change. Logs. */
void group_turn(struct group *group, const struct group_env *env, enum group_change change, const char *why);

/* Ends the running epoch, or the claims of `abort->epoch`, for good: everyone is told. */
void group_abort(struct group *group, const struct group_env *env, const struct wire_abort *abort);

/* ABORT from a node. */
void group_from_node(struct group *group, const struct group_env *env, const struct wire_abort *abort);

/* Starts an epoch if a set is whole, decides one step if one is complete, publishes a beacon if it did. */
void group_settle(struct group *group, const struct group_env *env);

/* Timers. Returns when to come back at the latest. */
uint64_t group_tick(struct group *group, const struct group_env *env);

/* The loop stood still: nobody was heard because nobody listened. */
void group_restart_timers(struct group *group, uint64_t now_ms);

/* The connection of a node ended. */
void group_link_down(struct group *group, uint64_t link);

/* Nothing left to remember. */
bool group_empty(const struct group *group);

uint32_t group_n_nodes(const struct group *group);

/* NULL: it is not known that this epoch is over. */
const struct grave *group_find_grave(const struct group_env *env, struct wire_id epoch);
void group_bury(const struct group_env *env, const struct wire_abort *abort);
void group_send_abort(const struct group_env *env, const struct membership *set, const struct wire_abort *abort);

/* For reports: report.c. */
void group_report_epoch(const struct epoch *epoch, uint64_t now_ms, struct group_report *to);
uint32_t coordinator_n_groups(const struct coordinator *coordinator);
const struct group *coordinator_group(const struct coordinator *coordinator, uint32_t i);

/* ----------------------------------------------------------------------------------------------------------- join.c */

struct group_node { /* who sent the MEMBERS */
    struct wire_id instance;
    const char *name;
    uint32_t serial; /* of this message */
    const char *listen; /* where its own coordinator is reached; "": nowhere */
};

/* The members of one node. -ENOMEM without effect. joins are all of this group. */
int group_members(struct group *group, const struct group_env *env, const struct group_node *from,
                  const struct wire_join *joins, uint32_t n_joins);

/* The attempt to open failed: all that are here, and the sender at hand, are told. */
void group_fail(struct group *group, const struct group_env *env, const struct poise_err *err);

#endif
