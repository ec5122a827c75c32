/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ZeroMQ socket inside a libuv loop. ZMQ_FD is edge-triggered and says only that ZMQ_EVENTS may have changed, so the
 * state is asked for before the loop sleeps (prepare) and after it woke (check); while there is input, an idle handle
 * keeps the loop from sleeping. So a callback that leaves messages unread is called again in the next turn.
 */
#ifndef POISE_SHELL_ZPOLL_H
#define POISE_SHELL_ZPOLL_H

#include <stdbool.h>
#include <uv.h>

#include "poise.h"

struct zpoll {
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    uv_poll_t poll;
    uint32_t n_open; /* handles whose close has not come back */
    void *socket;
    void (*readable)(struct zpoll *zpoll); /* at most once a loop turn, while there is input */
    void (*closed)(struct zpoll *zpoll);
    void *data; /* the owner's */
};

/* Starts. Borrows socket until closed. One zpoll a socket: two poll handles on one descriptor abort. */
int zpoll_init(struct zpoll *zpoll, uv_loop_t *loop, void *socket, void (*readable)(struct zpoll *),
               struct poise_err *err);

/* Only after closed() may the socket be closed. Nothing where it is not in use. */
void zpoll_close(struct zpoll *zpoll, void (*closed)(struct zpoll *));

#endif
