/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes come by their first message and go when their connection does (ROUTER_MANDATORY says so when something is sent
 * to it) or when they are silent; neither proves anything about their processes, the coordinator has timers for that.
 * With keys every endpoint, on loopback and ipc as well, admits only who has the cluster's key. Without them whoever
 * reaches the endpoint may speak for any user: so it is on loopback, or an ipc socket that only this user and root may
 * open, unless the operator says otherwise.
 */
#include "daemon/shell/listener.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/address.h"
#include "daemon/planner/err.h"
#include "daemon/shell/curve.h"
#include "daemon/shell/log.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/zframe.h"

#define MESSAGES_A_TURN 64   /* then timers, other sockets and the state machines have their turn */
#define BACKLOG 1024         /* all nodes connect at once when a coordinator comes back */
#define HIGH_WATER 1000      /* messages to one node: W steps of some groups; only one that hangs gets there */
#define BEACON_HIGH_WATER 100 /* the newest says all; of several groups */
#define PING_MS 1000         /* ZeroMQ's heartbeats: TCP takes minutes to tell of a host that vanished */
#define PING_TIMEOUT_MS 5000
#define PEERS_MAX 16384      /* four times the nodes of the largest runs; strangers may not fill the memory */
#define LOOK_MS 1000         /* for silent nodes */

/* ------------------------------------------------------------------------------------------------------------ peers */

static struct peer *find(const struct listener *listener, uint64_t id)
{
    return (struct peer *)(uintptr_t)map_get(&listener->peers, id);
}

/* Where it is, from what ZeroMQ knows of the connection that the message came by: an address, and of an ipc endpoint
 * what the kernel says of the process, ":UID:GID:PID", before which libzmq may put "localhost" (TCP has numbers there).
 */
static void place(const struct listener *listener, struct peer *peer, zmq_msg_t *body)
{
    const char *address = zmq_msg_gets(body, "Peer-Address");
    bool is_ipc = !address || !*address || (address[0] == ':' && address[1] != ':') ||
                  strncmp(address, "localhost:", strlen("localhost:")) == 0;
    snprintf(peer->address, sizeof peer->address, "%s", is_ipc ? "" : zwatch_plain(address));
    peer->secure = listener->keys->set || is_ipc || address_is_loopback(peer->address);
}

static struct peer *add(struct listener *listener, uint64_t id)
{
    struct peer *peer = listener->n_peers < PEERS_MAX ? calloc(1, sizeof *peer) : NULL;
    if (!peer || map_put(&listener->peers, id, (uintptr_t)peer) < 0) {
        free(peer);
        log_line(LOG_LINE_ERROR, "no room for another node besides %u", listener->n_peers);
        return NULL;
    }
    peer->id = id;
    peer->next = listener->first;
    listener->first = peer;
    listener->n_peers++;
    return peer;
}

static void forget(struct listener *listener, struct peer *gone, const char *why)
{
    struct peer **at = &listener->first;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    map_remove(&listener->peers, gone->id);
    listener->n_peers--;
    if (gone->name[0])
        log_line(LOG_LINE_INFO, "node %s: %s", gone->name, why);
    listener->handler.gone(listener->handler.data, gone->id);
    free(gone);
}

static void name(struct peer *peer, const struct wire_message *msg)
{
    if (msg->type == WIRE_HEARTBEAT)
        peer->instance = msg->heartbeat.instance;
    if (msg->type != WIRE_MEMBERS)
        return;
    peer->instance = msg->members.instance;
    if (strcmp(peer->name, msg->members.name) == 0)
        return;
    memcpy(peer->name, msg->members.name, sizeof peer->name);
    log_line(LOG_LINE_INFO, "node %s: speaks to the coordinator of this poised", peer->name);
}

/* -------------------------------------------------------------------------------------------------------- receiving */

static bool from_node(enum wire_type type)
{
    return type == WIRE_MEMBERS || type == WIRE_HEARTBEAT || type == WIRE_META || type == WIRE_PULL ||
           type == WIRE_NEED || type == WIRE_ABORT;
}

static void bad(struct listener *listener, const char *why)
{
    listener->counters.bad++;
    log_line(LOG_LINE_WARNING, "bad message at a coordinator's endpoint, dropped: %s", why);
}

static void dispatch(struct listener *listener, zmq_msg_t *id_frame, zmq_msg_t *body)
{
    struct wire_message *msg;
    struct poise_err err;
    uint64_t id = zframe_id(id_frame);
    listener->counters.received++;
    if (!id) {
        bad(listener, "its sender chose its own routing id");
        return;
    }
    if (wire_decode(zmq_msg_data(body), zmq_msg_size(body), 0, &msg, &err) < 0) {
        bad(listener, err.text);
        return;
    }
    struct peer *peer = find(listener, id);
    if (!from_node(msg->type)) {
        err_set(&err, -EPROTO, "a node does not send %s", wire_type_name(msg->type));
        bad(listener, err.text);
    } else if (peer || (peer = add(listener, id))) {
        name(peer, msg);
        place(listener, peer, body);
        peer->heard_ms = roles_now_ms();
        peer->received++;
        listener->handler.message(listener->handler.data, id, peer->secure, msg);
        return;
    }
    wire_free(msg);
}

static bool receive(struct listener *listener)
{
    zmq_msg_t frames[2];
    zmq_msg_init(&frames[0]);
    zmq_msg_init(&frames[1]);
    int rc = zframe_receive(listener->router, frames, 2);
    if (rc > 0)
        dispatch(listener, &frames[0], &frames[1]);
    else if (rc < 0)
        bad(listener, "not one frame");
    zmq_msg_close(&frames[0]);
    zmq_msg_close(&frames[1]);
    return rc != 0;
}

static void on_readable(struct zpoll *zpoll)
{
    struct listener *listener = zpoll->data;
    for (int i = 0; i < MESSAGES_A_TURN && !listener->handler.busy(listener->handler.data); i++)
        if (!receive(listener))
            return;
}

static void on_timer(uv_timer_t *timer)
{
    struct listener *listener = timer->data;
    uint64_t now = roles_now_ms();
    for (struct peer *peer = listener->first, *next; peer; peer = next) {
        next = peer->next;
        if (now >= peer->heard_ms + listener->forget_ms)
            forget(listener, peer, "has no group with the coordinator of this poised any more, or is silent");
    }
}

/* ---------------------------------------------------------------------------------------------------------- sending */

void listener_send(struct listener *listener, uint64_t id, const struct wire_message *msg)
{
    struct peer *peer = listener->loop ? find(listener, id) : NULL;
    struct poise_err err = {0};
    size_t n_bytes = 0;
    if (!peer)
        return; /* it has just gone */
    int rc = zframe_send(listener->router, id, msg, &n_bytes, &err);
    peer->sent += rc == 0;
    peer->dropped += rc < 0;
    listener->counters.sent += rc == 0;
    listener->counters.full += rc == -EAGAIN;
    listener->counters.unroutable += rc == -EHOSTUNREACH;
    if (rc == -EHOSTUNREACH)
        forget(listener, peer, "its connection ended");
    else if (rc < 0)
        log_line(rc == -EAGAIN ? LOG_LINE_WARNING : LOG_LINE_ERROR, "node %s: not sent: %s", peer->name, err.text);
}

void listener_publish(struct listener *listener, const struct wire_message *msg)
{
    struct poise_err err = {0};
    if (!listener->loop)
        return;
    if (zframe_publish(listener->pub, msg->beacon.epoch, msg, &err) == 0)
        listener->counters.beacons++;
    else
        log_line(LOG_LINE_ERROR, "a beacon is not sent: %s", err.text);
}

/* ------------------------------------------------------------------------------------------------------------- life */

static int configure(void *s, bool is_router)
{
    int64_t max = WIRE_MAX_BYTES;
    int water = is_router ? HIGH_WATER : BEACON_HIGH_WATER;
    if (!zframe_set(s, ZMQ_LINGER, 0) || !zframe_set(s, ZMQ_IPV6, 1) || !zframe_set(s, ZMQ_BACKLOG, BACKLOG) ||
        !zframe_set(s, ZMQ_SNDHWM, water) || !zframe_set(s, ZMQ_RCVHWM, water) ||
        !zframe_set(s, ZMQ_HEARTBEAT_IVL, PING_MS) || !zframe_set(s, ZMQ_HEARTBEAT_TIMEOUT, PING_TIMEOUT_MS) ||
        (is_router && !zframe_set(s, ZMQ_ROUTER_MANDATORY, 1)) ||
        zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0)
        return -errno;
    return 0;
}

/* ZeroMQ replaces the file of an ipc endpoint, also one that another process listens on. */
static bool in_use(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    bool used = fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
    if (fd >= 0)
        close(fd);
    return used;
}

static int bind_one(void *socket, const char *text, bool is_ipc, struct poise_err *err)
{
    if (is_ipc && in_use(endpoint_path(text)))
        return err_set(err, -EADDRINUSE, "listen: %s: another process listens there", text);
    mode_t mask = umask(0177); /* of an ipc socket: this user and root */
    int rc = zmq_bind(socket, text) < 0 ? -errno : 0;
    umask(mask);
    if (rc == -EADDRINUSE)
        return err_set(err, rc, "listen: %s: another process listens there; listen = none where this poised shall not "
                                "coordinate for other nodes", text);
    return rc < 0 ? err_set(err, rc, "listen: %s: %s", text, zmq_strerror(-rc)) : 0;
}

static int bind_all(struct listener *listener, struct poise_err *err)
{
    for (uint32_t i = 0; i < listener->n_endpoints; i++) {
        const struct endpoint *e = &listener->endpoints[i];
        int rc = bind_one(listener->router, e->control, e->is_ipc, err);
        if (rc < 0)
            return rc;
        listener->n_bound = i + 1;
        rc = bind_one(listener->pub, e->beacon, e->is_ipc, err);
        if (rc < 0)
            return rc;
        log_line(LOG_LINE_INFO, "coordinator: listens on %s, beacons on %s, %s", e->control, e->beacon,
                 listener->keys->set ? "for nodes with its key" : "without keys");
    }
    return 0;
}

static int make_sockets(struct listener *listener, uv_loop_t *loop, void *context, struct poise_err *err)
{
    listener->router = zmq_socket(context, ZMQ_ROUTER);
    listener->pub = zmq_socket(context, ZMQ_PUB);
    if (!listener->router || !listener->pub)
        return err_set(err, -errno, "listen: no socket: %s", zmq_strerror(errno));
    int rc = configure(listener->router, true);
    if (rc == 0)
        rc = configure(listener->pub, false);
    if (rc == 0)
        rc = curve_serve(listener->router, listener->keys);
    if (rc == 0)
        rc = curve_serve(listener->pub, listener->keys);
    if (rc < 0)
        return err_set(err, rc, "listen: %s", zmq_strerror(-rc));
    bool keys = listener->keys->set;
    if ((rc = zwatch_init(&listener->router_watch, loop, context, listener->router, "router", keys, err)) < 0)
        return rc;
    return zwatch_init(&listener->pub_watch, loop, context, listener->pub, "pub", keys, err);
}

int listener_init(struct listener *listener, uv_loop_t *loop, const struct listener_config *config,
                  const struct listener_handler *handler, struct poise_err *err)
{
    *listener = (struct listener){.handler = *handler, .forget_ms = config->forget_ms, .keys = config->keys,
                                  .zpoll = {.data = listener}};
    if (strcmp(config->list, "none") == 0)
        return 0;
    int rc = endpoints_parse(config->list, ENDPOINT_LISTEN, config->allowed, listener->endpoints,
                             &listener->n_endpoints, err);
    if (rc < 0 || (rc = make_sockets(listener, loop, config->context, err)) < 0 || (rc = bind_all(listener, err)) < 0 ||
        (rc = zpoll_init(&listener->zpoll, loop, listener->router, on_readable, err)) < 0)
        return rc;
    uv_timer_init(loop, &listener->timer);
    listener->timer.data = listener;
    uv_timer_start(&listener->timer, on_timer, LOOK_MS, LOOK_MS);
    listener->loop = loop;
    return 0;
}

/* No route needs to exist for a cluster's own network, so any interface of the host is the last resort. */
static int any_address(const char *interface, char *address, size_t n_address)
{
    static const char far[] = "192.0.2.1"; /* of documentation: the default route leads there */
    struct poise_err err;
    if (interface)
        return endpoint_local_address(NULL, interface, address, n_address, &err);
    if (endpoint_local_address(far, NULL, address, n_address, &err) == 0)
        return 0;
    return endpoint_local_address(NULL, "^lo,docker,virbr,cni", address, n_address, &err);
}

void listener_reach(const struct listener *listener, const char *interface, char *ret_text, size_t n_text,
                    uint32_t *ret_port)
{
    const struct endpoint *e = &listener->endpoints[0];
    char address[ADDRESS_BYTES];
    *ret_text = 0;
    *ret_port = 0;
    if (!listener->n_endpoints)
        return;
    if (!e->is_any) {
        if (strlen(e->control) < n_text)
            strcpy(ret_text, e->control);
        return;
    }
    if (!interface)
        *ret_port = e->port;
    if (any_address(interface, address, sizeof address) == 0)
        snprintf(ret_text, n_text, "tcp://%s:%u", address, e->port);
}

void listener_close(struct listener *listener)
{
    zwatch_close(&listener->router_watch);
    zwatch_close(&listener->pub_watch);
    if (!listener->loop)
        return;
    listener->loop = NULL;
    uv_close((uv_handle_t *)&listener->timer, NULL);
    zpoll_close(&listener->zpoll, NULL);
}

void listener_fini(struct listener *listener)
{
    zwatch_fini(&listener->router_watch);
    zwatch_fini(&listener->pub_watch);
    if (listener->router)
        zmq_close(listener->router);
    if (listener->pub)
        zmq_close(listener->pub);
    for (uint32_t i = 0; i < listener->n_bound; i++) { /* libzmq leaves them in some versions */
        if (!listener->endpoints[i].is_ipc)
            continue;
        unlink(endpoint_path(listener->endpoints[i].control));
        unlink(endpoint_path(listener->endpoints[i].beacon));
    }
    for (struct peer *peer = listener->first, *next; peer; peer = next) {
        next = peer->next;
        free(peer);
    }
    map_free(&listener->peers);
    listener->first = NULL;
    listener->router = listener->pub = NULL;
    listener->n_bound = 0;
}
