/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of ranks on other nodes, pulled over TCP from rank to rank. Made at open, as its address goes into the JOIN;
 * what costs anything (ZeroMQ, its threads) comes with the roster, and only in a group that spans nodes. The engine's
 * thread alone calls, but for the first two and the last.
 */
#ifndef POISE_CLIENT_TRANSPORT_TCP_H
#define POISE_CLIENT_TRANSPORT_TCP_H

#include <poll.h>

#include "client/payload_client.h"
#include "client/payload_server.h"
#include "client/settings.h"
#include "client/transport.h"

#define TRANSPORT_TCP_MAX_FDS (3u + 2u * PAYLOAD_MAX_PEERS)

struct poise;
struct transport_tcp;

/* Whether a group with these settings may span nodes. */
bool transport_tcp_wanted(const struct settings *settings);

/* Descriptors that it may need, at most. */
uint32_t transport_tcp_n_fds(const struct settings *settings);

/* Says in a JOIN what the others must know: the address and, of rank 0, the key. */
void transport_tcp_join(const struct transport_tcp *tcp, struct wire_join *join);

/*
 * Takes a port, before the JOIN, which tells its address. That this host has no
 * address which others reach is an error only when the group turns out to span nodes. Errors: -ENOTSUP, -ENOMEM.
 */
int transport_tcp_new(struct poise *p, struct transport_tcp **ret_tcp, struct poise_err *err);

/* The roster says that peers are on other nodes: serves from now on. Errors: -EOPNOTSUPP says who serves nowhere,
 * -ENOKEY, -EPROTO, -ENOMEM, -EMFILE. */
int transport_tcp_start(struct transport_tcp *tcp, const struct wire_roster *roster, struct poise_err *err);

struct transport *transport_tcp_transport(struct transport_tcp *tcp);

/* Whether that rank is on another node. False before the start. */
bool transport_tcp_has(const struct transport_tcp *tcp, uint32_t rank);

/* Answers whose bytes lie in that step's memory, and are not sent yet. */
bool transport_tcp_flies(const struct transport_tcp *tcp, uint64_t step);

/* True: something happened, call again before sleeping. */
bool transport_tcp_turn(struct transport_tcp *tcp);
uint32_t transport_tcp_poll(const struct transport_tcp *tcp, struct pollfd fds[TRANSPORT_TCP_MAX_FDS]);
uint64_t transport_tcp_next_ms(const struct transport_tcp *tcp, uint64_t now_ms);

/* Every sender has heard what this rank is done with. */
bool transport_tcp_is_idle(const struct transport_tcp *tcp);

/* That rank left. */
void transport_tcp_forget(struct transport_tcp *tcp, uint32_t rank);

/* Ends all connections. NULL is allowed. The arena must still be there. */
void transport_tcp_free(struct transport_tcp *tcp);

/* In the child of a fork: closes the port. Async-signal-safe. */
void transport_tcp_child(struct transport_tcp *tcp);

#endif
