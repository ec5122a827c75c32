/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whoever started poised how it is: systemd through NOTIFY_SOCKET, tests and tools through --ready-fd. */
#ifndef POISE_SHELL_NOTIFY_H
#define POISE_SHELL_NOTIFY_H

#include <uv.h>

#include "poise.h"

struct notify {
    uv_loop_t *loop;  /* NULL: not in use */
    uv_timer_t timer; /* the watchdog's */
    int fd;           /* -1: nobody listens */
    int ready_fd;     /* -1: none */
    void (*closed)(struct notify *notify);
};

/* ready_fd: CONFIG_NO_FD or a descriptor, which is taken. Errors: -EBADF naming it, -EINVAL a NOTIFY_SOCKET that is no
 * address. */
int notify_init(struct notify *notify, uv_loop_t *loop, uint64_t ready_fd, struct poise_err *err);

void notify_ready(struct notify *notify, const char *status); /* all sockets are bound */
void notify_stopping(struct notify *notify);

/* closed (may be NULL) is called once nothing of *notify is in use; never for one that was not. */
void notify_close(struct notify *notify, void (*closed)(struct notify *));

#endif
