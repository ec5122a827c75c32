/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unix socket that processes connect to first: SOCKET_DIR/local.sock, SOCK_SEQPACKET. It gives each a session with
 * a secret token, learns from the kernel who it is and when it dies, and carries segments' descriptors between
 * processes.
 */
#ifndef POISE_SHELL_LOCAL_H
#define POISE_SHELL_LOCAL_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/shell/map.h"
#include "proto/local.h"

struct conn;

struct local_counters {
    uint64_t accepted, refused;
    uint64_t bad;       /* packets that ended their connection */
    uint64_t stray;     /* offers outside of an epoch that has begun */
    uint64_t forwarded; /* packets to peers */
    uint64_t overflows; /* connections ended because their process does not read */
};

struct local_handler {
    void *data;
    /* Once a session, however it ends (not in local_close()); no call of this module about it afterwards. */
    void (*ended)(void *data, uint64_t session, const char *why);
    /* Who a session is; false before it joined. */
    bool (*who)(void *data, uint64_t session, uint32_t *ret_rank, uint32_t *ret_replica, struct wire_id *ret_epoch);
    /* The sessions that get its segments; at most max of them. */
    uint32_t (*peers)(void *data, uint64_t session, uint64_t *sessions, uint32_t max);
};

struct local_config {
    const char *dir;      /* of the sockets */
    const char *zmq_path; /* told with the token */
    struct wire_id instance;
    uint32_t max_processes; /* half of them for one user at most, so that none shuts out the others */
};

struct local {
    uv_loop_t *loop; /* NULL: not in use */
    struct local_handler handler;
    struct local_counters counters;
    char path[108], zmq_path[108];
    struct wire_id instance;
    uint32_t max_processes, n_conns;
    int fd, spare_fd; /* the spare makes room to refuse somebody when descriptors are used up */
    uv_poll_t poll;
    uv_timer_t retry; /* sending again where descriptors in flight are limited */
    uint32_t n_open;
    bool closing;
    uint64_t last_session;
    struct map by_session; /* -> struct conn */
    struct conn *conns;    /* all, also those that are closing */
    uint64_t *scratch;     /* [scratch_places] sessions of peers */
    uint32_t scratch_places;
    void (*closed)(struct local *local);
};

/* Binds and listens. The caller holds the folder's lock: a stale socket file is replaced. Copies the config. */
int local_init(struct local *local, uv_loop_t *loop, const struct local_config *config,
               const struct local_handler *handler, struct poise_err *err);

/* The session of a token, 0: none. */
uint64_t local_find(const struct local *local, struct wire_id token);

/* What the kernel says of a session's process. False if it has ended. */
bool local_credentials(const struct local *local, uint64_t session, uint32_t *ret_uid, uint32_t *ret_pid);

/* Ends a session; why is for the log. The handler's ended() follows in the call. */
void local_end(struct local *local, uint64_t session, const char *why);

/* Closes the listener and all connections, removes the socket's file; nothing where it is not in use. closed may be
 * NULL. */
void local_close(struct local *local, void (*closed)(struct local *));

#endif
