/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ROUTER facts that shaped this: it drops what it cannot route and says success unless ROUTER_MANDATORY is set; with
 * ROUTER_HANDOVER another user can take an id and receive its messages, so it stays off; ids chosen by a peer are
 * refused, only those that the ROUTER assigns (a zero byte and four bytes) can be bound. Bytes that are no message are
 * counted and dropped: they cannot be answered in a way that their sender would understand.
 */
#include "daemon/shell/router.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"
#include "daemon/shell/zframe.h"

#define SOCKETS 4096 /* of the context that links share: each of 256 has two sockets with a pair for the monitor */
#define MESSAGES_A_TURN 64     /* then timers, other sockets and the state machines have their turn */
#define HELLO_MAX_BYTES 4096   /* what somebody unknown may make us parse; a HELLO has about 40 */
#define HELLO_BUDGET 65536
#define BACKLOG 1024           /* a node's ranks connect at once */
#define HANDSHAKE_MS 10000     /* a connection that says nothing is ended: it takes a moment, also on a busy machine */
#define HIGH_WATER 1000        /* messages to one process: W steps make about 20, so only a stopped one gets there */

static int configure(void *socket)
{
    int64_t max = WIRE_MAX_BYTES;
    if (!zframe_set(socket, ZMQ_LINGER, 0) || !zframe_set(socket, ZMQ_ROUTER_MANDATORY, 1) ||
        !zframe_set(socket, ZMQ_SNDHWM, HIGH_WATER) || !zframe_set(socket, ZMQ_RCVHWM, HIGH_WATER) ||
        !zframe_set(socket, ZMQ_BACKLOG, BACKLOG) || !zframe_set(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) || zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0)
        return -errno;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- sending */

static int send_to_id(struct router *router, uint64_t id, const struct wire_message *msg, struct poise_err *err)
{
    size_t n_bytes = 0;
    int rc = zframe_send(router->socket, id, msg, &n_bytes, err);
    router->counters.sent += rc == 0;
    router->counters.sent_bytes += n_bytes;
    router->counters.full += rc == -EAGAIN;
    router->counters.unroutable += rc == -EHOSTUNREACH;
    return rc;
}

int router_send(struct router *router, uint64_t session, const struct wire_message *msg, struct poise_err *err)
{
    uint64_t id = map_get(&router->id_of, session);
    if (!id)
        return err_set(err, -ENOTCONN, "%s: session %llu has not said HELLO", wire_type_name(msg->type),
                       (unsigned long long)session);
    return send_to_id(router, id, msg, err);
}

static void refuse(struct router *router, uint64_t id, const struct poise_err *why)
{
    struct wire_message msg = {.type = WIRE_REFUSED, .refused = {.who = {.rank = POISE_NONE}, .error = *why}};
    struct poise_err err;
    router->counters.refused++;
    log_line(LOG_LINE_WARNING, "a process was refused: %s", why->text);
    if (send_to_id(router, id, &msg, &err) < 0)
        log_line(LOG_LINE_DEBUG, "and could not be told: %s", err.text);
}

/* -------------------------------------------------------------------------------------------------------- receiving */

static bool from_process(enum wire_type type)
{
    return type == WIRE_JOIN || type == WIRE_META || type == WIRE_PULL || type == WIRE_NEED || type == WIRE_LEAVE ||
           type == WIRE_REPORT;
}

static void bad(struct router *router, uint64_t session, const char *why)
{
    router->counters.bad++;
    log_line(LOG_LINE_WARNING, "bad message from %s %llu, dropped: %s", session ? "session" : "somebody unknown",
             (unsigned long long)session, why);
}

static int bind_session(struct router *router, uint64_t id, uint64_t session)
{
    if (map_put(&router->session_of, id, session) < 0)
        return -ENOMEM;
    if (map_put(&router->id_of, session, id) < 0) {
        map_remove(&router->session_of, id);
        return -ENOMEM;
    }
    return 0;
}

bool router_unbind(struct router *router, uint64_t session)
{
    uint64_t id = map_get(&router->id_of, session);
    if (!id)
        return false;
    map_remove(&router->id_of, session);
    map_remove(&router->session_of, id);
    return true;
}

static void hello(struct router *router, uint64_t id, const struct wire_message *msg)
{
    struct poise_err err;
    if (msg->hello.wire_version != WIRE_VERSION) {
        err_set(&err, -EPROTONOSUPPORT, "it has wire version %u, this poised %u: install the same version of both",
                msg->hello.wire_version, WIRE_VERSION);
        refuse(router, id, &err);
        return;
    }
    uint64_t session = router->handler.find(router->handler.data, msg->hello.token);
    int rc;
    if (!session)
        rc = err_set(&err, -EACCES, "its token is none of this poised: it ended its session, or poised was restarted");
    else if (map_get(&router->id_of, session))
        rc = err_set(&err, -EEXIST, "its token is in use by another connection");
    else if ((rc = bind_session(router, id, session)) < 0)
        err_set(&err, rc, "no memory for another session");
    else if ((rc = router->handler.bound(router->handler.data, session, &err)) < 0)
        router_unbind(router, session);
    if (rc < 0)
        refuse(router, id, &err);
}

/* From somebody who has not said HELLO, or not a right one. */
static void first_message(struct router *router, uint64_t id, const void *bytes, size_t n_bytes)
{
    struct wire_message *msg;
    struct poise_err err;
    router->counters.unbound++;
    if (n_bytes > HELLO_MAX_BYTES) {
        bad(router, 0, "longer than any HELLO");
        return;
    }
    int rc = wire_decode(bytes, n_bytes, HELLO_BUDGET, &msg, &err);
    if (rc == -EPROTONOSUPPORT)
        refuse(router, id, &err);
    if (rc < 0) {
        bad(router, 0, err.text);
        return;
    }
    /* Anything else is dropped without an answer: after a restart of poised, libzmq connects again by itself and
     * delivers what was queued for the one before; a refusal would reach a process that is about to say HELLO anew. */
    if (msg->type == WIRE_HELLO)
        hello(router, id, msg);
    else
        log_line(LOG_LINE_INFO, "%s before HELLO, dropped", wire_type_name(msg->type));
    wire_free(msg);
}

static void message(struct router *router, uint64_t session, const void *bytes, size_t n_bytes)
{
    struct wire_message *msg;
    struct poise_err err;
    if (wire_decode(bytes, n_bytes, 0, &msg, &err) < 0) {
        bad(router, session, err.text);
        return;
    }
    if (!from_process(msg->type)) {
        err_set(&err, -EPROTO, "a process may not send %s", wire_type_name(msg->type));
        bad(router, session, err.text);
        wire_free(msg);
        return;
    }
    router->handler.message(router->handler.data, session, msg);
}

static void dispatch(struct router *router, zmq_msg_t *id_frame, zmq_msg_t *body)
{
    uint64_t id = zframe_id(id_frame);
    uint64_t session = id ? map_get(&router->session_of, id) : 0;
    router->counters.received++;
    router->counters.received_bytes += zmq_msg_size(body);
    if (!id)
        bad(router, 0, "it chose its own routing id");
    else if (session)
        message(router, session, zmq_msg_data(body), zmq_msg_size(body));
    else
        first_message(router, id, zmq_msg_data(body), zmq_msg_size(body));
}

/* One message of whatever number of frames. False where there is none. */
static bool receive(struct router *router)
{
    zmq_msg_t frames[2];
    zmq_msg_init(&frames[0]);
    zmq_msg_init(&frames[1]);
    int rc = zframe_receive(router->socket, frames, 2);
    if (rc > 0)
        dispatch(router, &frames[0], &frames[1]);
    else if (rc < 0)
        bad(router, 0, "not one frame");
    zmq_msg_close(&frames[0]);
    zmq_msg_close(&frames[1]);
    return rc != 0;
}

static void on_readable(struct zpoll *zpoll)
{
    struct router *router = zpoll->data;
    for (int i = 0; i < MESSAGES_A_TURN && !router->handler.busy(router->handler.data); i++)
        if (!receive(router))
            return;
}

/* ------------------------------------------------------------------------------------------------------------- life */

int router_init(struct router *router, uv_loop_t *loop, const char *dir, const struct router_handler *handler,
                struct poise_err *err)
{
    char endpoint[128];
    *router = (struct router){.handler = *handler, .zpoll = {.data = router}};
    snprintf(router->path, sizeof router->path, "%s/poised.zmq", dir);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", router->path);
    router->context = zmq_ctx_new();
    if (router->context)
        zmq_ctx_set(router->context, ZMQ_MAX_SOCKETS, SOCKETS);
    router->socket = router->context ? zmq_socket(router->context, ZMQ_ROUTER) : NULL;
    if (!router->socket || configure(router->socket) < 0 || zmq_bind(router->socket, endpoint) < 0)
        return err_set(err, -errno, "%s: %s", endpoint, zmq_strerror(errno));
    router->bound = true;
    if (chmod(router->path, 0666) < 0)
        return err_set(err, -errno, "%s: chmod: %s", router->path, strerror(errno));
    return zpoll_init(&router->zpoll, loop, router->socket, on_readable, err);
}

static void on_closed(struct zpoll *zpoll)
{
    struct router *router = zpoll->data;
    if (router->closed)
        router->closed(router);
}

void router_close(struct router *router, void (*closed)(struct router *))
{
    router->closed = closed;
    zpoll_close(&router->zpoll, on_closed);
}

void router_fini(struct router *router)
{
    if (router->socket)
        zmq_close(router->socket);
    if (router->context)
        zmq_ctx_term(router->context);
    if (router->bound)
        unlink(router->path); /* libzmq leaves it in some versions */
    router->bound = false;
    map_free(&router->session_of);
    map_free(&router->id_of);
    router->socket = router->context = NULL;
}
