/* SPDX-License-Identifier: Apache-2.0 */
/* One process's connection to local.sock: part of local.c, in a file of its own. */
#ifndef POISE_SHELL_CONN_H
#define POISE_SHELL_CONN_H

#include "daemon/shell/local.h"

struct parcel;

struct conn {
    struct local *local;
    struct conn *next, *prev;
    uint64_t session;
    struct wire_id token;
    uint32_t uid, pid;
    int fd, pidfd; /* pidfd -1: not known yet */
    uv_poll_t poll, death;
    uint32_t n_open; /* handles whose close has not come back */
    bool ending;
    struct parcel **queue; /* [queue_places] a ring of what the process did not take yet */
    uint32_t queue_first, queue_count, queue_places;
};

/* Takes fd, in every case. Sends the token. Errors: the connection is closed. */
int conn_new(struct local *local, int fd, uint32_t uid, uint32_t pid, struct poise_err *err);

/* Closes, and calls the handler's ended() unless the whole of local closes. */
void conn_end(struct conn *conn, const char *why);

/* Sends what is queued. */
void conn_flush(struct conn *conn);

/* Tells somebody who has no connection yet why there will be none. */
void conn_refuse(int fd, struct wire_id instance, const char *why);

/* In local.c: a connection's memory may go. */
void local_conn_closed(struct conn *conn);

#endif
