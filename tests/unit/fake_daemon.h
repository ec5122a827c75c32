/* SPDX-License-Identifier: Apache-2.0 */
/* A poised that says what a test wants: both sockets, no state machine. Every function that cannot do what it says
 * fails the test. */
#ifndef POISE_TESTS_FAKE_DAEMON_H
#define POISE_TESTS_FAKE_DAEMON_H

#include "proto/local.h"

struct fake_daemon {
    char dir[64];
    int listener, local; /* local: the connection of the one process */
    void *context, *router;
    unsigned char id[256]; /* routing id of the process */
    size_t n_id;
};

void fake_start(struct fake_daemon *fake);
void fake_end(struct fake_daemon *fake);

void fake_accept(struct fake_daemon *fake); /* waits for a connection */
void fake_hang_up(struct fake_daemon *fake);
void fake_packet(struct fake_daemon *fake, const void *bytes, size_t n_bytes, int fd);
void fake_token(struct fake_daemon *fake);

/* Waits for a message of that type; others are dropped. Caller frees with wire_free(). */
struct wire_message *fake_expect(struct fake_daemon *fake, enum wire_type type);
void fake_say(struct fake_daemon *fake, const struct wire_message *msg);
void fake_say_bytes(struct fake_daemon *fake, const void *bytes, size_t n_bytes);
void fake_welcome(struct fake_daemon *fake);

#endif
