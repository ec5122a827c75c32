/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where nodes of other processes reach this coordinator: a ROUTER for messages and a PUB for beacons, both bound to
 * every endpoint of `listen`. A node is known by the routing id that the ROUTER gave to its connection; that number is
 * the link of the coordinator's events.
 */
#ifndef POISE_SHELL_LISTENER_H
#define POISE_SHELL_LISTENER_H

#include <uv.h>

#include "daemon/shell/endpoint.h"
#include "daemon/shell/map.h"
#include "client/keys.h"
#include "daemon/shell/zpoll.h"
#include "daemon/shell/zwatch.h"
#include "proto/wire.h"

struct peer { /* a node that speaks to this coordinator */
    struct peer *next;
    uint64_t id;
    struct wire_id instance; /* none: it has not said yet */
    char name[POISE_MAX_NAME];
    uint64_t heard_ms, received, sent, dropped;
    char address[ZWATCH_ADDRESS]; /* where it connects from; "" of ipc */
    bool secure;                  /* nobody between can read: encrypted, or inside this host */
};

struct listener_handler {
    void *data;
    /* A checked message of a node, and whether nobody between can read what is sent to it. Takes msg. */
    void (*message)(void *data, uint64_t id, bool secure, struct wire_message *msg);
    /* The node is not there any more. */
    void (*gone)(void *data, uint64_t id);
    /* Whether reading shall pause until a later turn of the loop. */
    bool (*busy)(void *data);
};

struct listener_counters {
    uint64_t received, sent, beacons;
    uint64_t bad;        /* bytes that are no message, or none that a node may send */
    uint64_t unroutable; /* to a node that is gone */
    uint64_t full;       /* to a node that does not read: dropped, it asks again */
};

struct listener {
    uv_loop_t *loop; /* NULL: does not listen */
    void *router, *pub;
    struct zpoll zpoll;
    struct zwatch router_watch, pub_watch;
    const struct keys *keys; /* borrowed */
    uv_timer_t timer;
    struct listener_handler handler;
    uint64_t forget_ms; /* a node that is silent for so long is forgotten */
    struct endpoint endpoints[ENDPOINTS_MAX];
    uint32_t n_endpoints, n_bound;
    struct map peers; /* routing id -> struct peer */
    struct peer *first;
    uint32_t n_peers;
    struct listener_counters counters;
};

struct listener_config {
    void *context;
    const char *list; /* as endpoints_parse() takes it; "none": does nothing */
    bool allowed;     /* endpoints beyond loopback */
    const struct keys *keys; /* borrowed */
    uint64_t forget_ms;
};

/* Binds to the endpoints and starts. Errors name the endpoint. */
int listener_init(struct listener *listener, uv_loop_t *loop, const struct listener_config *config,
                  const struct listener_handler *handler, struct poise_err *err);

/* Where other nodes reach it, "" where it does not listen: its first endpoint, and where that is every address of this
 * host, the one of the interface, or of the default route. ret_port: not 0 where another address would do as well. */
void listener_reach(const struct listener *listener, const char *interface, char *ret_text, size_t n_text,
                    uint32_t *ret_port);

/* To the node of that link; never blocks. What cannot be sent is dropped. */
void listener_send(struct listener *listener, uint64_t id, const struct wire_message *msg);

/* A beacon to all nodes that have subscribed to its epoch. */
void listener_publish(struct listener *listener, const struct wire_message *msg);

/* Closes; nothing where it is not in use. listener_fini() frees, after the loop has ended and before the context
 * goes. */
void listener_close(struct listener *listener);
void listener_fini(struct listener *listener);

#endif
