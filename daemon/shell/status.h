/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP on the unix socket SOCKET_DIR/status.sock: GET /status (JSON), /metrics (Prometheus), /healthz; POST
 * /mode?job=JOB&group=GROUP&mode=on|shadow|off by root or the job's user. Inside the event loop, without a thread.
 */
#ifndef POISE_SHELL_STATUS_H
#define POISE_SHELL_STATUS_H

#include <uv.h>

#include "daemon/shell/report.h"

struct MHD_Daemon;

struct status_sources { /* kept */
    const struct config *config;
    const char *socket_dir;
    struct roles *roles;
    const struct router *router;
    const struct local *local;
    const struct links *links;
    const struct listener *listener;
};

struct status {
    uv_loop_t *loop; /* NULL: not in use */
    struct status_sources sources;
    struct MHD_Daemon *http;
    uint64_t started_ms;
    char path[108];
    uv_poll_t poll;
    uv_timer_t timer;
    uint32_t n_open;
    void (*closed)(struct status *status);
};

/* Binds and starts. The caller holds the folder's lock: a stale socket file is replaced. */
int status_init(struct status *status, uv_loop_t *loop, const struct status_sources *sources, struct poise_err *err);

/* Ends all connections, removes the socket's file; nothing where it is not in use. closed may be NULL. */
void status_close(struct status *status, void (*closed)(struct status *));

#endif
