/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as ZeroMQ frames: one frame of wire bytes, on a ROUTER after the frame of the routing id. Never blocks. */
#ifndef POISE_SHELL_ZFRAME_H
#define POISE_SHELL_ZFRAME_H

#include <stdbool.h>
#include <zmq.h>

#include "proto/wire.h"

/* Makes the counter of a routing id a number that is never 0, and never one of the node's links. */
#define ZFRAME_ID_FLAG (1ull << 32)

/* Of a routing id that the ROUTER assigned; 0: a peer chose it, and it is not to be trusted. */
uint64_t zframe_id(zmq_msg_t *frame);

/* Encodes and sends; id 0: no routing frame. Errors: those of wire_encode(); -EAGAIN the other end does not read;
 * -EHOSTUNREACH it is gone. */
int zframe_send(void *socket, uint64_t id, const struct wire_message *msg, size_t *ret_bytes, struct poise_err *err);

/* The same behind a frame with an epoch's topic, for those who subscribed to it. */
int zframe_publish(void *socket, struct wire_id epoch, const struct wire_message *msg, struct poise_err *err);

/* What an epoch's beacons are published under. */
#define ZFRAME_TOPIC_BYTES 16
void zframe_topic(struct wire_id epoch, uint8_t topic[ZFRAME_TOPIC_BYTES]);

/* One message of n_frames frames, into initialised frames. 1: came; 0: none is there; -EPROTO it had another number and
 * is dropped. */
int zframe_receive(void *socket, zmq_msg_t *frames, uint32_t n_frames);

/* Sets an option that takes an int; false with errno set. */
bool zframe_set(void *socket, int option, int value);

#endif
