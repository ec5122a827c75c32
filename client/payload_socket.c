/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How these sockets differ from ZeroMQ's defaults, each for a reason below. Connections that end are not made again by
 * ZeroMQ: a new one needs a new HELLO, and what was asked on the old one must be asked again, so payload_peer.c makes a
 * new socket. Queues are bounded by what receivers may ask for at a time, not by high-water marks, which would drop.
 */
#include "client/payload_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BACKLOG    1024 /* all ranks connect within a moment when the first step goes out */
#define HIGH_WATER 1000 /* messages of one connection: far above what credit allows, so only a liar gets there */
/* TCP alone would notice a host that vanished after a quarter of an hour. A ping makes something unacknowledged,
 * and after TCP_MAXRT_MS the kernel gives up; a link that is only slow acknowledges in time, whatever is queued in
 * front of the ping. So the answer to the ping itself may take as long as a piece on the slowest link that is of
 * any use. */
#define PING_MS         2000
#define PING_TIMEOUT_MS 60000
#define TCP_MAXRT_MS    15000
#define CONNECT_MS      5000  /* a host that does not even refuse */
#define HANDSHAKE_MS    10000 /* the peer's engine answers it within a turn; a stopped process is tried again */

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

int payload_socket_new(void *zmq, bool server, const struct payload_key *key, void **ret_socket)
{
    int64_t max = server ? PAYLOAD_ASK_BYTES : PAYLOAD_PIECE_BYTES + PAYLOAD_ENTRY_BYTES + PAYLOAD_HEADER_BYTES;
    void *s = zmq_socket(zmq, server ? ZMQ_ROUTER : ZMQ_DEALER);
    int rc;

    if (!s)
        return -errno;
    if (set_int(s, ZMQ_LINGER, 0) < 0 || set_int(s, ZMQ_IPV6, 1) < 0 || set_int(s, ZMQ_SNDHWM, HIGH_WATER) < 0 ||
        set_int(s, ZMQ_RCVHWM, HIGH_WATER) < 0 || zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0 ||
        set_int(s, ZMQ_HEARTBEAT_IVL, PING_MS) < 0 || set_int(s, ZMQ_HEARTBEAT_TIMEOUT, PING_TIMEOUT_MS) < 0 ||
        set_int(s, ZMQ_TCP_MAXRT, TCP_MAXRT_MS) < 0 || set_int(s, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) < 0 ||
        (server ? set_int(s, ZMQ_ROUTER_MANDATORY, 1) < 0 || set_int(s, ZMQ_BACKLOG, BACKLOG) < 0
                : set_int(s, ZMQ_RECONNECT_IVL, -1) < 0 || set_int(s, ZMQ_CONNECT_TIMEOUT, CONNECT_MS) < 0)) {
        rc = -errno;
        zmq_close(s);
        return rc;
    }
    rc = key ? payload_key_use(s, key, server) : 0;
    if (rc < 0)
        zmq_close(s);
    else
        *ret_socket = s;
    return rc;
}

int payload_socket_fd(void *socket)
{
    int fd = -1;
    size_t n = sizeof fd;

    return socket && zmq_getsockopt(socket, ZMQ_FD, &fd, &n) == 0 ? fd : -1;
}

int payload_monitor_new(void *zmq, void *socket, const char *name, int events, void **ret_monitor)
{
    void *monitor;
    int rc;

    if (zmq_socket_monitor(socket, name, events) < 0)
        return -errno;
    monitor = zmq_socket(zmq, ZMQ_PAIR);
    if (monitor && set_int(monitor, ZMQ_LINGER, 0) == 0 && zmq_connect(monitor, name) == 0) {
        *ret_monitor = monitor;
        return 0;
    }
    rc = -errno;
    payload_monitor_free(socket, monitor);
    return rc;
}

void payload_monitor_free(void *socket, void *monitor)
{
    zmq_socket_monitor(socket, NULL, 0);
    if (monitor)
        zmq_close(monitor);
}

bool payload_monitor_next(void *monitor, struct payload_event *ret_event)
{
    zmq_msg_t frame;

    if (payload_receive(monitor, &frame) <= 0)
        return false;
    *ret_event = (struct payload_event){0};
    if (zmq_msg_size(&frame) >= 6) {
        memcpy(&ret_event->event, zmq_msg_data(&frame), sizeof ret_event->event);
        memcpy(&ret_event->value, (const char *)zmq_msg_data(&frame) + 2, sizeof ret_event->value);
    }
    payload_drain(monitor, &frame); /* the address */
    zmq_msg_close(&frame);
    return true;
}

int payload_receive(void *socket, zmq_msg_t *ret_frame)
{
    int rc;

    zmq_msg_init(ret_frame);
    do
        rc = zmq_msg_recv(ret_frame, socket, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc >= 0)
        return 1;
    rc = errno == EAGAIN ? 0 : -errno;
    zmq_msg_close(ret_frame);
    return rc;
}

void payload_drain(void *socket, zmq_msg_t *last)
{
    bool more = zmq_msg_more(last);
    zmq_msg_t frame;

    while (more && payload_receive(socket, &frame) > 0) {
        more = zmq_msg_more(&frame);
        zmq_msg_close(&frame);
    }
}

int payload_send(void *socket, const void *id, size_t n_id, const struct payload_message *msg)
{
    size_t n_bytes = payload_wire_bytes(msg);
    zmq_msg_t frame;
    int rc;

    if (zmq_msg_init_size(&frame, n_bytes) < 0)
        return -ENOMEM;
    payload_wire_encode(msg, zmq_msg_data(&frame));
    rc = id && zmq_send(socket, id, n_id, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0 ? -errno : 0;
    if (rc == 0 && zmq_msg_send(&frame, socket, ZMQ_DONTWAIT) < 0)
        rc = -errno;
    if (rc < 0)
        zmq_msg_close(&frame);
    return rc;
}
