/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection lives from accept to the end of its socket or of its process, whichever is seen first: a child that
 * inherited the socket keeps it open after its parent's death, so the pidfd is watched too. The kernel gives the pidfd
 * (SO_PEERPIDFD, Linux 6.5); on older ones the process sends its own, because pids mean nothing across pid namespaces.
 *
 * Segments' descriptors pass through: a parcel holds one until the last receiver has it. A receiver that does not read
 * has a bounded queue; above it the process is taken for broken and its session ends, since a segment that silently
 * never comes would hang its peers.
 */
#include "daemon/shell/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define PACKETS_A_TURN 64
#define MAX_FDS 8       /* room for more than any packet may bring, so that too many are seen and closed */
#define QUEUE_MAX 4096u /* 18 segments of each of 200 peers */
#define RETRY_MS 20

struct parcel {
    uint32_t refs;
    int fd; /* -1: none */
    struct local_message msg;
};

static void parcel_drop(struct parcel *parcel)
{
    if (--parcel->refs)
        return;
    if (parcel->fd >= 0)
        close(parcel->fd);
    free(parcel);
}

/* ---------------------------------------------------------------------------------------------------------- sending */

static int send_packet(int socket, const struct local_message *msg, int fd)
{
    struct iovec iov = {.iov_base = (void *)msg, .iov_len = sizeof *msg};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static struct local_message message(uint32_t type, struct wire_id instance)
{
    return (struct local_message){.magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = type, .instance = instance};
}

void conn_refuse(int fd, struct wire_id instance, const char *why)
{
    struct local_message msg = message(LOCAL_REFUSED, instance);
    size_t n = strnlen(why, sizeof msg.text - 1);
    memcpy(msg.text, why, n);
    if (send_packet(fd, &msg, -1) < 0)
        return; /* it does not read; the end of the connection says enough */
}

/* For faults of the process: it is told, so that it does not come again. An end without words means: try again. */
static void refuse(struct conn *conn, const char *why)
{
    if (conn->ending)
        return;
    log_line(LOG_LINE_WARNING, "session %llu (pid %u, uid %u) is refused: %s", (unsigned long long)conn->session,
             conn->pid, conn->uid, why);
    conn_refuse(conn->fd, conn->local->instance, why);
    conn_end(conn, why);
}

static void on_event(uv_poll_t *poll, int status, int events);

static void watch(struct conn *conn, bool writable)
{
    uv_poll_start(&conn->poll, UV_READABLE | (writable ? UV_WRITABLE : 0), on_event);
}

static int enqueue(struct conn *conn, struct parcel *parcel)
{
    if (conn->queue_count == QUEUE_MAX)
        return -ENOBUFS;
    if (conn->queue_count == conn->queue_places) {
        uint32_t places = conn->queue_places ? conn->queue_places * 2 : 16;
        struct parcel **queue = calloc(places, sizeof(*queue));
        if (!queue)
            return -ENOMEM;
        for (uint32_t i = 0; i < conn->queue_count; i++)
            queue[i] = conn->queue[(conn->queue_first + i) % conn->queue_places];
        free(conn->queue);
        conn->queue = queue;
        conn->queue_places = places;
        conn->queue_first = 0;
    }
    conn->queue[(conn->queue_first + conn->queue_count++) % conn->queue_places] = parcel;
    parcel->refs++;
    return 0;
}

static void on_retry(uv_timer_t *timer)
{
    struct local *local = timer->data;
    for (struct conn *conn = local->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->queue_count && !conn->ending)
            conn_flush(conn);
    }
}

void conn_flush(struct conn *conn)
{
    while (conn->queue_count) {
        struct parcel *parcel = conn->queue[conn->queue_first];
        int rc = send_packet(conn->fd, &parcel->msg, parcel->fd);
        if (rc == -ETOOMANYREFS || rc == -ENOBUFS || rc == -ENOMEM) { /* the socket would say that it is writable */
            watch(conn, false);
            uv_timer_start(&conn->local->retry, on_retry, RETRY_MS, 0);
            return;
        }
        if (rc == -EAGAIN) {
            watch(conn, true);
            return;
        }
        if (rc < 0) {
            conn_end(conn, "its connection ended");
            return;
        }
        conn->local->counters.forwarded++;
        conn->queue_first = (conn->queue_first + 1) % conn->queue_places;
        conn->queue_count--;
        parcel_drop(parcel);
    }
    watch(conn, false);
}

static void deliver(struct conn *conn, struct parcel *parcel)
{
    bool was_empty = conn->queue_count == 0;
    if (conn->ending)
        return;
    if (enqueue(conn, parcel) < 0) {
        conn->local->counters.overflows++;
        refuse(conn, "it does not read its peers' segments");
    } else if (was_empty) {
        conn_flush(conn);
    }
}

/* ------------------------------------------------------------------------------------------------------------ death */

static void on_death(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    conn_end(poll->data, "its process ended");
}

/* Takes pidfd. */
static int watch_death(struct conn *conn, int pidfd)
{
    int rc = uv_poll_init(conn->local->loop, &conn->death, pidfd);
    if (rc < 0) {
        close(pidfd);
        return rc;
    }
    conn->death.data = conn;
    conn->n_open++;
    conn->pidfd = pidfd;
    return uv_poll_start(&conn->death, UV_READABLE, on_death);
}

/* Takes fd. The kernel's own pidfd is the better witness where there is one. */
static int take_pidfd(struct conn *conn, int fd)
{
    if (conn->pidfd >= 0) {
        close(fd);
        return 0;
    }
    if (syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) < 0 && errno == EBADF) { /* signal 0: only looks */
        close(fd);
        return -EBADF;
    }
    return watch_death(conn, fd);
}

/* -------------------------------------------------------------------------------------------------------- receiving */

/* Makes the parcel; takes fd. */
static struct parcel *parcel_new(const struct conn *conn, const struct local_message *msg, int fd, uint32_t rank,
                                 uint32_t replica)
{
    struct parcel *parcel = malloc(sizeof *parcel);
    if (!parcel) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    *parcel = (struct parcel){.refs = 1, .fd = fd, .msg = message(msg->type, conn->local->instance)};
    parcel->msg.kind = msg->kind;
    parcel->msg.segment = msg->segment;
    parcel->msg.generation = msg->generation;
    parcel->msg.bytes = msg->bytes;
    parcel->msg.epoch = msg->epoch;
    parcel->msg.rank = rank;
    parcel->msg.replica = replica;
    return parcel;
}

/* An offer or its end goes to the peers. Takes fd. */
static int forward(struct conn *conn, const struct local_message *msg, int fd)
{
    struct local *local = conn->local;
    uint32_t rank, replica;
    struct wire_id epoch;
    if (!local->handler.who(local->handler.data, conn->session, &rank, &replica, &epoch) || wire_id_none(epoch) ||
        !wire_id_is(epoch, msg->epoch)) {
        local->counters.stray++;
        log_line(LOG_LINE_DEBUG, "session %llu: a segment of an epoch that it is not in, dropped",
                 (unsigned long long)conn->session);
        if (fd >= 0)
            close(fd);
        return 0;
    }
    struct parcel *parcel = parcel_new(conn, msg, fd, rank, replica);
    if (!parcel)
        return -ENOMEM;
    uint32_t n = local->handler.peers(local->handler.data, conn->session, local->scratch, local->scratch_places);
    for (uint32_t i = 0; i < n && i < local->scratch_places; i++) {
        struct conn *peer = (struct conn *)(uintptr_t)map_get(&local->by_session, local->scratch[i]);
        if (peer && peer != conn)
            deliver(peer, parcel);
    }
    parcel_drop(parcel);
    return 0;
}

static void close_all(const int *fds, uint32_t n_fds)
{
    for (uint32_t i = 0; i < n_fds; i++)
        close(fds[i]);
}

/* Takes the descriptors. */
static void packet(struct conn *conn, const void *bytes, size_t n_bytes, const int *fds, uint32_t n_fds)
{
    struct poise_err err;
    struct local_message msg;
    int rc = local_check(bytes, n_bytes, n_fds, true, &err);
    if (rc < 0 || n_fds > 1) {
        close_all(fds, n_fds);
        conn->local->counters.bad++;
        refuse(conn, rc < 0 ? err.text : "more than one descriptor in a packet");
        return;
    }
    memcpy(&msg, bytes, sizeof msg);
    int fd = n_fds ? fds[0] : -1;
    rc = msg.type == LOCAL_PIDFD ? take_pidfd(conn, fd) : forward(conn, &msg, fd);
    if (rc < 0)
        refuse(conn, rc == -ENOMEM ? "no memory for its packet" : "its pidfd is none");
}

static uint32_t take_fds(struct msghdr *m, int fds[MAX_FDS])
{
    uint32_t n_fds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        uint32_t n = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < n && n_fds < MAX_FDS; i++)
            memcpy(&fds[n_fds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    return n_fds;
}

/* False: nothing more to read now, or the connection is ending. */
static bool receive(struct conn *conn)
{
    union {
        struct local_message msg;
        char bytes[sizeof(struct local_message) + 1]; /* one more, so that a longer packet is seen */
    } buffer;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &buffer, .iov_len = sizeof buffer.bytes};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fds[MAX_FDS];
    ssize_t n = recvmsg(conn->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (n <= 0) {
        conn_end(conn, "its connection ended");
        return false;
    }
    uint32_t n_fds = take_fds(&m, fds);
    if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        close_all(fds, n_fds);
        conn->local->counters.bad++;
        refuse(conn, "its packet is too long");
    } else {
        packet(conn, &buffer, (size_t)n, fds, n_fds);
    }
    return !conn->ending;
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct conn *conn = poll->data;
    if (status < 0) {
        conn_end(conn, "its connection failed");
        return;
    }
    if (events & UV_WRITABLE)
        conn_flush(conn);
    for (int i = 0; i < PACKETS_A_TURN && !conn->ending && (events & UV_READABLE); i++)
        if (!receive(conn))
            return;
}

/* ------------------------------------------------------------------------------------------------------------- life */

static void conn_maybe_closed(struct conn *conn)
{
    if (conn->n_open)
        return;
    while (conn->queue_count) {
        parcel_drop(conn->queue[conn->queue_first]);
        conn->queue_first = (conn->queue_first + 1) % conn->queue_places;
        conn->queue_count--;
    }
    free(conn->queue);
    if (conn->pidfd >= 0)
        close(conn->pidfd);
    close(conn->fd);
    local_conn_closed(conn);
}

static void on_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    conn->n_open--;
    conn_maybe_closed(conn);
}

void conn_end(struct conn *conn, const char *why)
{
    struct local *local = conn->local;
    if (conn->ending)
        return;
    conn->ending = true;
    map_remove(&local->by_session, conn->session);
    uv_poll_stop(&conn->poll);
    uv_close((uv_handle_t *)&conn->poll, on_closed);
    if (conn->pidfd >= 0) {
        uv_poll_stop(&conn->death);
        uv_close((uv_handle_t *)&conn->death, on_closed);
    }
    if (!local->closing) {
        shutdown(conn->fd, SHUT_RDWR); /* now, not when the handles are closed */
        log_line(LOG_LINE_DEBUG, "session %llu (pid %u, uid %u) ends: %s", (unsigned long long)conn->session, conn->pid,
                 conn->uid, why);
        local->handler.ended(local->handler.data, conn->session, why);
    }
}

static int greet(struct conn *conn)
{
    struct local_message msg = message(LOCAL_TOKEN, conn->local->instance);
    msg.token = conn->token;
    memcpy(msg.text, conn->local->zmq_path, sizeof conn->local->zmq_path);
    return send_packet(conn->fd, &msg, -1);
}

static void link_conn(struct conn *conn)
{
    struct local *local = conn->local;
    conn->next = local->conns;
    if (conn->next)
        conn->next->prev = conn;
    local->conns = conn;
    local->n_conns++;
}

int conn_new(struct local *local, int fd, uint32_t uid, uint32_t pid, struct poise_err *err)
{
    int pidfd = -1, rc = -ENOMEM;
    socklen_t n = sizeof pidfd;
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        goto fail;
    *conn = (struct conn){.local = local, .session = local->last_session + 1, .uid = uid, .pid = pid, .fd = fd,
                          .pidfd = -1};
    if (getrandom(&conn->token, sizeof conn->token, 0) != sizeof conn->token) {
        rc = -EIO;
        goto fail;
    }
    if ((rc = map_put(&local->by_session, conn->session, (uintptr_t)conn)) < 0)
        goto fail;
    if ((rc = uv_poll_init(local->loop, &conn->poll, fd)) < 0) {
        map_remove(&local->by_session, conn->session);
        goto fail;
    }
    conn->poll.data = conn;
    conn->n_open = 1;
    local->last_session++;
    local->counters.accepted++;
    link_conn(conn);
    watch(conn, false);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0 && watch_death(conn, pidfd) < 0)
        conn_end(conn, "its pidfd cannot be watched");
    else if (greet(conn) < 0)
        conn_end(conn, "its connection ended");
    return 0;
fail:
    free(conn);
    close(fd);
    return err_set(err, rc, "a connection could not be served: %s", strerror(-rc));
}
