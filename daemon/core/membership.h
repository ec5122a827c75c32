/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of processes that becomes an epoch when it is whole: those that want to form a new one, or those that claim to be in
 * one that this coordinator does not know (it was restarted). Indexed by rank * n_replicas + replica.
 */
#ifndef POISE_CORE_MEMBERSHIP_H
#define POISE_CORE_MEMBERSHIP_H

#include "proto/wire.h"

struct member {
    struct wire_join join; /* its options are the reference's: they are equal; coordinators is "" */
    uint32_t node;         /* index in nodes; after membership_number() the node's number */
    uint32_t seen;         /* serial of the MEMBERS that named it last */
    uint64_t heard_ms;     /* when that was */
    bool guest; /* in a claim: it wants a new epoch, and may be one of this one whose roster was lost (join.c) */
};

struct member_node {
    struct wire_id instance;
    char name[POISE_MAX_NAME];
    char listen[WIRE_LISTEN_BYTES]; /* where its own coordinator is reached; "": nowhere */
    uint64_t link;
    bool linked;       /* link may be sent to */
    bool secure;       /* and nobody else reads it */
    uint64_t alive_ms; /* any message of it */
    uint64_t heard_ms; /* a message that names this epoch */
    struct wire_id told; /* hash of the merged table that it has */
};

struct membership {
    struct wire_id claim; /* none: forms a new epoch */
    uint32_t n_ranks, n_replicas;
    uint32_t n_here;
    struct member **members; /* [n_ranks * n_replicas], NULL: not here; NULL: no set */
    struct wire_message *reference; /* JOIN whose options hold for all */
    uint32_t n_nodes, cap_nodes;
    struct member_node *nodes;
    uint64_t since_ms;
    uint32_t max_attempt;
    bool leaving; /* of a claim: leave says who is not going to claim it, and until which step the others go on */
    struct wire_abort leave;
};

void membership_clear(struct membership *set);

/* What is wrong with a join by itself: -EINVAL, -EPROTONOSUPPORT with a text. */
int membership_check(const struct wire_join *join, struct poise_err *err);

/* Room for one more of this shape. -ENOMEM without effect. An empty set takes its shape and options from the join. */
int membership_open(struct membership *set, const struct wire_join *join, uint64_t now_ms);

/* Does it fit the set? -EINVAL naming both processes and values. */
int membership_fits(const struct membership *set, const struct wire_join *join, struct poise_err *err);

/* NULL: not here, or out of range. */
struct member *membership_find(const struct membership *set, uint32_t rank, uint32_t replica);

/* The node of that instance, added if new; POISE_NONE when there is no memory. Links it. */
uint32_t membership_node(struct membership *set, struct wire_id instance, const char *name, uint64_t link, uint64_t now_ms);

/* Puts a member in (takes it; frees one that it replaces). Its place must be in range. */
void membership_put(struct membership *set, struct member *member);
void membership_drop(struct membership *set, uint32_t rank, uint32_t replica);

/* Drops the members of a node that its newest MEMBERS did not name. Returns how many. */
uint32_t membership_retain(struct membership *set, uint32_t node, uint32_t seen);

/* Drops members not heard of since a time. Returns how many. */
uint32_t membership_expire(struct membership *set, uint64_t since_ms);

/* Drops those that do not claim themselves. */
void membership_drop_guests(struct membership *set);

bool membership_whole(const struct membership *set);

/* Numbers the nodes of a whole set in the order of the lowest (rank, replica) that they host, drops empty ones, and
 * computes the epoch's id. -ENOMEM without effect. */
int membership_number(struct membership *set, struct wire_id *ret_epoch);

/* The lowest (rank, replica) that is not here, as text "rank 3" or "rank 3 replica 1". */
const char *membership_missing(const struct membership *set, char *text, size_t n_text);

/* "rank 3" or, in a group with replicas, "rank 3 replica 1" */
const char *member_name(uint32_t rank, uint32_t replica, uint32_t n_replicas, char *text, size_t n_text);

#endif
