/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listens, asks the kernel who comes, and keeps the table of sessions; what happens on a connection is in conn.c.
 * Numbers of sessions are never used twice. When descriptors are used up a spare one is given up for a moment, so that
 * whoever comes is refused instead of waking the loop for ever.
 */
#include "daemon/shell/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/shell/conn.h"
#include "daemon/shell/log.h"

#define ACCEPTS_A_TURN 64
#define BACKLOG 1024     /* a node's ranks come at once */
#define UID_NOBODY 65534 /* what the kernel shows for users that it cannot map here */

static struct conn *find(const struct local *local, uint64_t session)
{
    return (struct conn *)(uintptr_t)map_get(&local->by_session, session);
}

static uint32_t connections_of(const struct local *local, uint32_t uid)
{
    uint32_t n = 0;
    for (const struct conn *conn = local->conns; conn; conn = conn->next)
        n += conn->uid == uid;
    return n;
}

/* Room for the sessions of as many peers as there are connections. */
static int reserve_scratch(struct local *local)
{
    if (local->n_conns < local->scratch_places)
        return 0;
    uint32_t places = local->scratch_places ? local->scratch_places * 2 : 64;
    uint64_t *scratch = realloc(local->scratch, places * sizeof *scratch);
    if (!scratch)
        return -ENOMEM;
    local->scratch = scratch;
    local->scratch_places = places;
    return 0;
}

/* NULL: welcome. */
static const char *reason_to_refuse(struct local *local, const struct ucred *who)
{
    if (who->uid == UID_NOBODY)
        return "its user shows as 65534 (nobody), as all users do that the kernel cannot map: use no user namespace, "
               "and no PrivateUsers in poised's unit";
    if (local->n_conns >= local->max_processes)
        return "too many processes: raise max-processes of poised";
    if (connections_of(local, who->uid) >= (local->max_processes + 1) / 2)
        return "its user has half of max-processes of poised already";
    return reserve_scratch(local) < 0 ? "no memory for another process" : NULL;
}

static void welcome(struct local *local, int fd)
{
    struct ucred who;
    struct poise_err err;
    socklen_t n = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0) {
        close(fd);
        return;
    }
    const char *why = reason_to_refuse(local, &who);
    if (why) {
        local->counters.refused++;
        log_line(LOG_LINE_WARNING, "pid %d of uid %u refused: %s", (int)who.pid, (unsigned)who.uid, why);
        conn_refuse(fd, local->instance, why);
        close(fd);
    } else if (conn_new(local, fd, who.uid, (uint32_t)who.pid, &err) < 0) {
        log_line(LOG_LINE_ERROR, "%s", err.text);
    }
}

static void shed(struct local *local)
{
    if (local->spare_fd >= 0)
        close(local->spare_fd);
    int fd = accept4(local->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        conn_refuse(fd, local->instance, "poised has no file descriptor left: raise its LimitNOFILE");
        close(fd);
    }
    local->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    local->counters.refused++;
    log_line(LOG_LINE_ERROR, "no file descriptor left for another process: raise LimitNOFILE of poised");
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct local *local = poll->data;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(local->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            welcome(local, fd);
        else if (errno == EMFILE || errno == ENFILE)
            shed(local);
        else if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

static int listen_at(struct local *local, struct poise_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path, local->path, sizeof addr.sun_path);
    local->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (local->fd < 0)
        return err_set(err, -errno, "socket: %s", strerror(errno));
    unlink(local->path);
    if (bind(local->fd, (struct sockaddr *)&addr, sizeof addr) < 0 || chmod(local->path, 0666) < 0 ||
        listen(local->fd, BACKLOG) < 0)
        return err_set(err, -errno, "%s: %s", local->path, strerror(errno));
    return 0;
}

static void release(struct local *local)
{
    if (local->fd >= 0) {
        unlink(local->path);
        close(local->fd);
    }
    if (local->spare_fd >= 0)
        close(local->spare_fd);
    map_free(&local->by_session);
    free(local->scratch);
    local->scratch = NULL;
    local->fd = local->spare_fd = -1;
    local->loop = NULL;
}

int local_init(struct local *local, uv_loop_t *loop, const struct local_config *config,
               const struct local_handler *handler, struct poise_err *err)
{
    *local = (struct local){.handler = *handler, .instance = config->instance, .max_processes = config->max_processes,
                            .fd = -1, .spare_fd = -1};
    snprintf(local->path, sizeof local->path, "%s/local.sock", config->dir);
    snprintf(local->zmq_path, sizeof local->zmq_path, "%s", config->zmq_path);
    local->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int rc = listen_at(local, err);
    if (rc == 0 && (rc = uv_poll_init(loop, &local->poll, local->fd)) < 0)
        err_set(err, rc, "%s: %s", local->path, uv_strerror(rc));
    if (rc < 0) {
        release(local);
        return rc;
    }
    uv_timer_init(loop, &local->retry);
    local->poll.data = local->retry.data = local;
    local->n_open = 2;
    local->loop = loop;
    uv_poll_start(&local->poll, UV_READABLE, on_connection);
    return 0;
}

uint64_t local_find(const struct local *local, struct wire_id token)
{
    for (const struct conn *conn = local->conns; conn; conn = conn->next)
        if (!conn->ending && wire_id_is(conn->token, token))
            return conn->session;
    return 0;
}

bool local_credentials(const struct local *local, uint64_t session, uint32_t *ret_uid, uint32_t *ret_pid)
{
    const struct conn *conn = find(local, session);
    if (!conn)
        return false;
    *ret_uid = conn->uid;
    *ret_pid = conn->pid;
    return true;
}

void local_end(struct local *local, uint64_t session, const char *why)
{
    struct conn *conn = find(local, session);
    if (conn)
        conn_end(conn, why);
}

static void local_maybe_closed(struct local *local)
{
    if (local->n_open || local->conns)
        return;
    release(local);
    if (local->closed)
        local->closed(local);
}

void local_conn_closed(struct conn *conn)
{
    struct local *local = conn->local;
    *(conn->prev ? &conn->prev->next : &local->conns) = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    local->n_conns--;
    free(conn);
    if (local->closing)
        local_maybe_closed(local);
}

static void on_closed(uv_handle_t *handle)
{
    struct local *local = handle->data;
    local->n_open--;
    local_maybe_closed(local);
}

void local_close(struct local *local, void (*closed)(struct local *))
{
    if (!local->loop || local->closing)
        return;
    local->closing = true;
    local->closed = closed;
    uv_poll_stop(&local->poll);
    uv_close((uv_handle_t *)&local->poll, on_closed);
    uv_close((uv_handle_t *)&local->retry, on_closed);
    for (struct conn *conn = local->conns; conn; conn = conn->next)
        conn_end(conn, "poised ends");
}
