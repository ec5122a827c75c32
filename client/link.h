/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of a process to its poised: a SEQPACKET socket for what only that can carry, and a ZeroMQ DEALER for
 * messages. Connects, shakes hands, connects again when it is lost; never blocks. One thread (the engine) uses it.
 */
#ifndef POISE_CLIENT_LINK_H
#define POISE_CLIENT_LINK_H

#include <poll.h>

#include "proto/local.h"
#include "proto/wire.h"

struct link;

struct link_calls {                                                /* called from link_step() and link_drain() only */
    void (*up)(void *context, const struct wire_message *welcome); /* WELCOME came: the link carries messages */
    void (*down)(void *context, const char *why);                  /* it was up and is no more */
    void (*message)(void *context, struct wire_message *msg);      /* takes msg: wire_free() */
    void (*segment)(void *context, const struct local_message *what, int fd); /* OFFER (takes fd) or RETRACT (fd -1) */
};

#define LINK_N_FDS 2

/* calls, context: kept. socket_dir: copied. first_timeout_ms: how long the first connection may take. */
int link_new(const char *socket_dir, uint64_t first_timeout_ms, const struct link_calls *calls, void *context,
             struct link **ret_link, struct poise_err *err);

/* What to poll for; entries without a descriptor get -1. */
void link_poll(const struct link *link, struct pollfd fds[LINK_N_FDS]);

/* When to call link_step() at the latest. */
uint64_t link_next_ms(const struct link *link);

/*
 * Connects, reads packets, keeps deadlines. 0, or an error that is final: the first connection did not come about in
 * time
 * (-ECONNREFUSED, -EACCES, -ETIMEDOUT, -EPROTO), or poised refused this process (its code and text).
 */
int link_step(struct link *link, uint64_t now_ms, struct poise_err *err);

/* Reads messages until there are none; returns how many. ZMQ_FD tells of new ones only once: call before every sleep.
 */
uint32_t link_drain(struct link *link);

bool link_is_up(const struct link *link);

/* Why it is not up, in words; never NULL. */
const char *link_trouble(const struct link *link);

/* Sends; while the link is down messages are lost, as its user sends what counts again after `up`. -EAGAIN: down. */
int link_send(struct link *link, const struct wire_message *msg, struct poise_err *err);
int link_send_bytes(struct link *link, const void *bytes, size_t n_bytes);
int link_send_local(struct link *link, const struct local_message *what, int fd);

/* Ends the connection after what was sent has left, at most linger_ms; 0: at once. NULL is allowed. */
void link_free(struct link *link, int linger_ms);

/* In the child after fork(): closes the descriptors that poised watches. Async-signal-safe. */
void link_forked(struct link *link);

/* In calls->up(): what makes this connection one could not be sent. It is made anew at the next link_step(). */
void link_renew(struct link *link);

#endif
