/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asking half of payload between nodes: pulls a step's entries, then its bytes, from each rank on another node that
 * the plan takes samples from, with bounded credit, and says DONE. Lost connections are made again and what is missing
 * is asked for again; an answer counts once, for the ask that it names. Not thread-safe; knows nothing of struct poise.
 */
#ifndef POISE_CLIENT_PAYLOAD_CLIENT_H
#define POISE_CLIENT_PAYLOAD_CLIENT_H

#include <poll.h>

#include "client/payload_group.h"
#include "client/transport.h"

#define PAYLOAD_MAX_PEERS  256u        /* connections to senders at a time */
#define PAYLOAD_PEER_ASKS  8u          /* of one sender, on their way at a time, */
#define PAYLOAD_PEER_BYTES (4u << 20)  /* and their bytes: four pieces hide the round trip of a fast link */
#define PAYLOAD_ALL_BYTES  (64u << 20) /* of all senders: what ZeroMQ may hold of them before this rank has read it */

struct payload_client;

/* Borrows the group. */
int payload_client_new(const struct payload_group *group, struct payload_client **ret_client, struct poise_err *err);
void payload_client_free(struct payload_client *client);

/* As struct transport_calls. */
int payload_client_entries(struct payload_client *client, const struct transport_step *step, struct source *source,
                           struct poise_err *err);
int payload_client_fetch(struct payload_client *client, const struct transport_step *step, struct source *source,
                         struct poise_err *err);
void payload_client_done(struct payload_client *client, uint64_t step, uint32_t rank);
void payload_client_close(struct payload_client *client, struct source *source);
const char *payload_client_waits_for(struct payload_client *client, const struct source *source,
                                     char text[TRANSPORT_WAIT_TEXT]);

/* That rank is no sender any more, and hears nothing any more. */
void payload_client_forget(struct payload_client *client, uint32_t rank);

/* Whether every DONE was heard. */
bool payload_client_is_idle(const struct payload_client *client);

/* Reads, connects, sends. Never blocks. True: something happened, so call again before sleeping. */
bool payload_client_turn(struct payload_client *client, uint64_t now_ms);

/* Descriptors to poll for reading; at most max. Returns how many. */
uint32_t payload_client_poll(const struct payload_client *client, struct pollfd *fds, uint32_t max);

/* When payload_client_turn() is due at the latest. */
uint64_t payload_client_next_ms(const struct payload_client *client, uint64_t now_ms);

struct payload_client_stats {
    uint64_t bytes;     /* of payload that came */
    uint64_t asks, again; /* sent; of these, for what was asked before */
    uint64_t bad;       /* messages that are none, or answer nothing that was asked */
    uint64_t most_bytes; /* that were on their way at a time */
    uint32_t n_open;    /* connections */
};
void payload_client_stats(const struct payload_client *client, struct payload_client_stats *ret_stats);

#endif
