/* SPDX-License-Identifier: Apache-2.0 */
/* ZeroMQ sockets for payload, and what it tells of their connections. */
#ifndef POISE_CLIENT_PAYLOAD_SOCKET_H
#define POISE_CLIENT_PAYLOAD_SOCKET_H

#include <zmq.h>

#include "client/payload_key.h"
#include "client/payload_wire.h"

/* A ROUTER that serves (server), or a DEALER that asks. key NULL: not encrypted. 0 or a negative errno. */
int payload_socket_new(void *zmq, bool server, const struct payload_key *key, void **ret_socket);

int payload_socket_fd(void *socket); /* its ZMQ_FD; -1 */

struct payload_event {
    uint16_t event; /* ZMQ_EVENT_* */
    uint32_t value;
};

/* A socket that tells what happens to the connections of another one. `name` is unique in the context. */
int payload_monitor_new(void *zmq, void *socket, const char *name, int events, void **ret_monitor);
void payload_monitor_free(void *socket, void *monitor); /* before the socket is closed. monitor may be NULL */
bool payload_monitor_next(void *monitor, struct payload_event *ret_event);

/* A frame that is there. 1, 0 none, or a negative errno. The frame is to be closed only after 1. */
int payload_receive(void *socket, zmq_msg_t *ret_frame);

/* Throws the rest of a message away. */
void payload_drain(void *socket, zmq_msg_t *last);

/* One frame with header and items. 0, or a negative errno (-EAGAIN, -EHOSTUNREACH). */
int payload_send(void *socket, const void *id, size_t n_id, const struct payload_message *msg);

#endif
