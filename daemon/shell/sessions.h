/* SPDX-License-Identifier: Apache-2.0 */
/* Part of roles.c, in a file of its own: what the sockets call, and how a session begins and ends. And what roles.c
 * lends to it. */
#ifndef POISE_SHELL_SESSIONS_H
#define POISE_SHELL_SESSIONS_H

#include "daemon/shell/roles.h"

struct roles_event {
    struct roles_event *next;
    bool to_coordinator;
    enum node_event_kind kind; /* to the node */
    uint64_t session, link;
    uint32_t uid, pid;
    struct wire_message *msg; /* owned */
    bool said_leave;          /* NODE_SESSION_END: nothing more is to come */
    bool secure;              /* struct node_event, struct coordinator_event */
    const char *why;          /* struct node_event; static */
    uint64_t until_ms;        /* of one that lingers */
};

/* Ends a session from this side. */
void sessions_end(struct roles *roles, uint64_t session, const char *why);

void sessions_free(struct roles *roles);

/* In roles.c. Takes the event. */
void roles_push(struct roles *roles, struct roles_event *event);

/* To the node, which says itself what is secure. Takes msg, in every case. */
void roles_push_message(struct roles *roles, enum node_event_kind kind, uint64_t from, struct wire_message *msg);

/* To the coordinator, from a node. Takes msg, in every case. */
void roles_push_up(struct roles *roles, uint64_t link, bool secure, struct wire_message *msg);

/* A connection to a coordinator is there or is not. */
void roles_push_change(struct roles *roles, uint64_t link, const struct links_change *change);

/* The connection of a node to this coordinator ended. */
void roles_push_gone(struct roles *roles, uint64_t link);

/* To a process; ends its session where it is gone. */
void roles_send(struct roles *roles, uint64_t session, const struct wire_message *msg);

/* At that time of roles_now_ms(); UINT64_MAX stops it. */
void roles_set_timer(uv_timer_t *timer, uv_timer_cb callback, uint64_t at_ms);

#endif
