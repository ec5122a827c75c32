/* SPDX-License-Identifier: Apache-2.0 */
/* Signals as events of the loop: SIGTERM and SIGINT end the daemon in order, SIGHUP reloads what can be reloaded. */
#ifndef POISE_SHELL_SIGNALS_H
#define POISE_SHELL_SIGNALS_H

#include <uv.h>

#include "poise.h"

struct signals {
    uv_loop_t *loop; /* NULL: not in use */
    uv_signal_t term, interrupt, hangup;
    void *data; /* for the callbacks */
    void (*end)(void *data, const char *name);
    void (*reload)(void *data);
    uint32_t n_open;
    void (*closed)(struct signals *signals);
};

/* SIGPIPE is ignored from here on. */
int signals_init(struct signals *signals, uv_loop_t *loop, void (*end)(void *, const char *), void (*reload)(void *),
                 void *data, struct poise_err *err);

/* Nothing where it is not in use. closed may be NULL. */
void signals_close(struct signals *signals, void (*closed)(struct signals *));

#endif
