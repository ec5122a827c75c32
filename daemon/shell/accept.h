/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many ZeroMQ connections this process takes at the socket that everybody on the machine may connect to: so many of
 * one user, and none that would use up the file descriptors. libzmq has no such limit, and aborts the process when an
 * accept at a unix socket finds no descriptor left.
 */
#ifndef POISE_SHELL_ACCEPT_H
#define POISE_SHELL_ACCEPT_H

#include <uv.h>

#include "poise.h"

struct accept_guard {
    uv_loop_t *loop; /* NULL: not in use */
    uv_async_t async;
};

/* Guards connections to the unix socket at that path. One guard a process. */
int accept_guard_init(struct accept_guard *guard, uv_loop_t *loop, const char *path, uint32_t max_of_a_user,
                      struct poise_err *err);

/* Connections that were refused since the start. */
uint64_t accept_guard_refused(void);

/* Closes; nothing where it is not in use. accept_guard_fini() frees, when nobody accepts any more. */
void accept_guard_close(struct accept_guard *guard);
void accept_guard_fini(struct accept_guard *guard);

#endif
