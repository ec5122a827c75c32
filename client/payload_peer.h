/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of a receiver to one sender: made when something is wanted, made again when it is lost, closed when it
 * was idle. It says HELLO on each new one and hears who answers; what is asked is payload_client.c's.
 */
#ifndef POISE_CLIENT_PAYLOAD_PEER_H
#define POISE_CLIENT_PAYLOAD_PEER_H

#include "client/payload_group.h"

enum payload_peer_state {
    PEER_CLOSED,
    PEER_CONNECTING, /* TCP and the handshake of ZeroMQ */
    PEER_HELLO,      /* HELLO is sent */
    PEER_UP          /* asks may be sent */
};

struct payload_peer {
    uint32_t rank;
    const char *address;
    enum payload_peer_state state;
    void *dealer, *monitor;
    int fd, monitor_fd;
    uint64_t state_ms, used_ms;
    uint64_t retry_ms, retry_delay_ms; /* PEER_CLOSED: not before */
    uint32_t generation;               /* of connections, for the monitor's name */
    char trouble[160];                 /* why the last one failed; "": it did not */
    bool told;                         /* in a notice, this trouble */
};

/* Begins to connect, if it is time. 0, -EAGAIN not yet, or a negative errno: no socket could be made (trouble says
 * why). */
int payload_peer_open(const struct payload_group *group, struct payload_peer *peer, uint64_t now_ms);

/* Closes; the next payload_peer_open() waits, longer each time. `why` as in printf, for trouble. */
void payload_peer_fail(struct payload_peer *peer, uint64_t now_ms, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void payload_peer_close(struct payload_peer *peer);

/* Reads what ZeroMQ tells of the connection; says HELLO; keeps the deadlines of connecting. True: something
 * happened. */
bool payload_peer_look(const struct payload_group *group, struct payload_peer *peer, uint64_t now_ms);

/* WELCOME came. */
void payload_peer_welcomed(const struct payload_group *group, struct payload_peer *peer,
                           const struct payload_message *welcome, uint64_t now_ms);

/* When payload_peer_open() or payload_peer_look() is due at the latest; UINT64_MAX: not by itself. */
uint64_t payload_peer_next_ms(const struct payload_peer *peer);

#endif
