/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two state machines, node and coordinator, and everything between them and the sockets: events in, updates out.
 * All events go through one queue and one is handled a turn of the loop, so a machine is never entered twice.
 */
#ifndef POISE_SHELL_ROLES_H
#define POISE_SHELL_ROLES_H

#include <uv.h>

#include "daemon/core/coordinator.h"
#include "daemon/core/node.h"
#include "daemon/shell/config.h"
#include "daemon/shell/links.h"
#include "daemon/shell/listener.h"
#include "daemon/shell/local.h"
#include "daemon/shell/router.h"

struct roles_event;

struct roles_counters {
    uint64_t events;
    uint64_t passed;  /* messages between the roles of this process */
    uint64_t dropped; /* for lack of memory: they are asked for again */
};

struct roles {
    uv_loop_t *loop; /* NULL: not in use */
    struct node *node;
    struct coordinator *coordinator;
    struct router *router;
    struct local *local;
    struct links *links;
    struct listener *listener;
    bool allowed; /* endpoints beyond loopback */
    struct wire_id instance;
    uint32_t reach_port; /* where the coordinator here listens on all addresses; 0: others were told one that stays */
    uint32_t mode; /* of jobs without one of their own: what WELCOME says; the node tells a job's own after JOIN */
    struct roles_counters counters;
    bool has_inner;      /* some job of this node uses the coordinator of this process */
    uint64_t inner_link; /* the node's number of it */
    struct roles_event *first, **last; /* the queue */
    uint32_t n_queued;
    struct map outcomes; /* epoch (its low half) -> when its newest outcome was */
    struct map ends; /* session -> its end, an event made when it begins: that must not fail */
    struct roles_event *lingering; /* ends that wait for a last message, the oldest first */
    uv_idle_t turn;
    uv_timer_t node_timer, coordinator_timer, linger;
    uint32_t n_open;
    void (*closed)(struct roles *roles);
};

struct roles_sockets { /* kept; made after the roles, with the handlers below */
    struct router *router;
    struct local *local;
    struct links *links;
    struct listener *listener;
    struct coordinator_mark *mark; /* kept; NULL: none */
};

/* Makes the machines and starts. */
int roles_init(struct roles *roles, uv_loop_t *loop, const struct config *config, const struct roles_sockets *sockets,
               struct poise_err *err);

/* Planning that step killed the poised before this one. Before any message comes. */
void roles_poisoned(struct roles *roles, const struct coordinator_mark *what, const char *who);

struct router_handler roles_router_handler(struct roles *roles);
struct local_handler roles_local_handler(struct roles *roles);
struct links_handler roles_links_handler(struct roles *roles);
struct listener_handler roles_listener_handler(struct roles *roles);

/* Sets the mode of a group ("" all), or of all groups of a job, or of all jobs ("") that `uid` may change. Errors:
 * those of NODE_SET_MODE. */
int roles_set_mode(struct roles *roles, const char *job, const char *group, uint32_t mode, uint32_t uid,
                   struct poise_err *err);

/* Where nodes elsewhere reach the coordinator here; see listener_reach(). */
void roles_reach(struct roles *roles, const char *endpoint, uint32_t port);

/* How long ago the epoch's newest outcome was decided here, or the epoch began; 0 where it is not known. */
uint64_t roles_idle_ms(const struct roles *roles, struct wire_id epoch);

uint64_t roles_now_ms(void); /* the clock of both machines: monotonic */

/* Stops; nothing where it is not in use. closed may be NULL. roles_fini() frees the machines, after the loop has ended.
 * */
void roles_close(struct roles *roles, void (*closed)(struct roles *));
void roles_fini(struct roles *roles);

#endif
