/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key pair of an epoch's payload: rank 0 makes it, the roster brings its secret half to every process of the group,
 * and to nobody else. Each side of a connection proves that it has it (CURVE): a receiver by whom it encrypts to, a
 * sender by its own ZAP handler, which admits that very key.
 */
#ifndef POISE_CLIENT_PAYLOAD_KEY_H
#define POISE_CLIENT_PAYLOAD_KEY_H

#include <poll.h>
#include <stdbool.h>

#include "proto/wire.h"

struct payload_key {
    uint8_t secret[WIRE_KEY_BYTES], public[WIRE_KEY_BYTES];
};

/* -ENOTSUP: this libzmq was built without CURVE; says what to do. */
int payload_key_check(struct poise_err *err);

/* A new secret key. Errors: those of payload_key_check(). */
int payload_key_make(uint8_t ret_secret[WIRE_KEY_BYTES], struct poise_err *err);

/* Both halves. */
int payload_key_load(const uint8_t secret[WIRE_KEY_BYTES], struct payload_key *ret_key, struct poise_err *err);

/* Gives a socket the key, before it binds (server) or connects. 0 or a negative errno. */
int payload_key_use(void *socket, const struct payload_key *key, bool server);

struct payload_zap; /* answers who may connect, for all sockets of one ZeroMQ context */

int payload_zap_new(void *zmq, const struct payload_key *key, struct payload_zap **ret_zap, struct poise_err *err);
void payload_zap_free(struct payload_zap *zap); /* before the context ends. NULL is allowed */
int payload_zap_fd(const struct payload_zap *zap);

/* Answers what is asked. Returns how many were; *ret_refused (may be NULL) grows by those that have another key, the
 * last one's address goes to `from`. */
uint32_t payload_zap_turn(struct payload_zap *zap, uint64_t *ret_refused, char from[WIRE_ADDRESS_BYTES]);

#endif
