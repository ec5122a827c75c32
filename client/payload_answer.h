/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One answer with payload: the frames of a message, most of which are memory of the arena itself. Internal to
 * payload_server.c.
 */
#ifndef POISE_CLIENT_PAYLOAD_ANSWER_H
#define POISE_CLIENT_PAYLOAD_ANSWER_H

#include <stdatomic.h>

#include "client/payload_socket.h"

struct answer_gauge { /* what is under way; lives until the ZeroMQ context has ended */
    _Atomic uint64_t bytes;
    uint64_t full; /* so many, and who sends waits */
    void (*landed)(void *context); /* called from ZeroMQ's threads where somebody may wait for it */
    void *context;
};

struct answer;

/* flying (may be NULL) counts the answer as long as any of its frames is under way. -ENOMEM. */
int answer_new(struct answer_gauge *gauge, atomic_uint *flying, struct answer **ret_answer);

/* Not sent. NULL is allowed. */
void answer_drop(struct answer *answer);

/* Bytes that stay where they are and do not change until the answer has landed; short ones are copied. -ENOMEM. */
int answer_add(struct answer *answer, const void *bytes, size_t n_bytes);

uint64_t answer_bytes(const struct answer *answer); /* so far */

/* Sends it behind id and header. Takes the answer in every case. 0 or a negative errno: nothing was sent. */
int answer_send(struct answer *answer, void *router, const void *id, size_t n_id, const struct payload_message *head);

#endif
