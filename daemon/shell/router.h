/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ZeroMQ socket that processes talk to: SOCKET_DIR/poised.zmq, a ROUTER. A routing id means nothing until its HELLO
 * named the token of a session; from then on it is that session.
 */
#ifndef POISE_SHELL_ROUTER_H
#define POISE_SHELL_ROUTER_H

#include "daemon/shell/map.h"
#include "daemon/shell/zpoll.h"
#include "proto/wire.h"

struct router_counters {
    uint64_t received, received_bytes, sent, sent_bytes;
    uint64_t bad;        /* bytes that are no message, or none that a process may send */
    uint64_t unbound;    /* messages before a HELLO that was accepted */
    uint64_t refused;    /* HELLOs */
    uint64_t unroutable; /* to a process that is gone */
    uint64_t full;       /* to a process that does not read: dropped, it asks again */
};

struct router_handler {
    void *data;
    /* Which session a HELLO's token names; 0: none. */
    uint64_t (*find)(void *data, struct wire_id token);
    /* That session is bound and can be sent to. Errors: *err, and it is refused. */
    int (*bound)(void *data, uint64_t session, struct poise_err *err);
    /* A checked message of a bound session. Takes msg. */
    void (*message)(void *data, uint64_t session, struct wire_message *msg);
    /* Whether reading shall pause until a later turn of the loop. */
    bool (*busy)(void *data);
};

struct router {
    void *context, *socket;
    struct zpoll zpoll;
    struct router_handler handler;
    struct map session_of, id_of; /* routing id (as a number) <-> session */
    struct router_counters counters;
    char path[108];
    bool bound;
    void (*closed)(struct router *router);
};

/* Binds and starts. The caller holds the folder's lock: a stale socket file is replaced. */
int router_init(struct router *router, uv_loop_t *loop, const char *dir, const struct router_handler *handler,
                struct poise_err *err);

/* Encodes and sends; never blocks. Errors: -ENOTCONN the session is not bound; -EHOSTUNREACH its process is gone: end
 * the session; -EAGAIN it does not read: dropped; those of wire_encode(). */
int router_send(struct router *router, uint64_t session, const struct wire_message *msg, struct poise_err *err);

/* Whether it was bound. */
bool router_unbind(struct router *router, uint64_t session);

/* Closes; nothing where it is not in use. closed may be NULL. The context goes in router_fini(), after the loop has
 * ended. */
void router_close(struct router *router, void (*closed)(struct router *));
void router_fini(struct router *router);

#endif
