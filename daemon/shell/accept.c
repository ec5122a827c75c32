/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libzmq accepts in a thread of its own and asks nobody. So this program has an accept4() of its own, which libzmq's
 * calls reach before libc's: it accepts, and ends at once what is above a limit, which libzmq takes for a connection
 * that went away. All other sockets of the process pass through.
 *
 * A user's connections are counted when they come. Nobody says here when they end, so who seems to be at the limit is
 * counted anew, at most every RECOUNT_MS: a descriptor is still one of his if it is a stream whose other end is his.
 */
#include "daemon/shell/accept.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"

#define USERS 64u        /* counted one by one; others, of which few are on one machine, share a place */
#define RESERVE 256u     /* descriptors for all else: processes' first connections, pidfds, status, links */
#define FDS_MAX (1u << 20)
#define RECOUNT_MS 50u

static struct {
    struct sockaddr_un at;
    uint32_t limit_fd, max_of_a_user, n_fds;
    uint32_t *place_of; /* [n_fds] 1 + place in users of who was accepted there; 0: nobody */
    struct user {
        uint32_t uid, n;
        uint64_t counted_ms;
    } users[USERS];
    uint32_t n_users;
    _Atomic(struct accept_guard *) guard;
    _Atomic uint64_t refused;
    _Atomic uint32_t refused_uid;
} state;

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint32_t place_of(uint32_t uid)
{
    uint32_t i = 0;
    while (i < state.n_users && state.users[i].uid != uid)
        i++;
    if (i == state.n_users && i < USERS)
        state.users[state.n_users++] = (struct user){.uid = uid};
    return i < USERS ? i : USERS - 1;
}

static bool is_stream_of(int fd, uint32_t uid)
{
    struct ucred who;
    int type;
    socklen_t n = sizeof who, n_type = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n_type) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == uid;
}

static void count_anew(uint32_t place)
{
    struct user *user = &state.users[place];
    user->counted_ms = now_ms();
    for (uint32_t fd = 0; fd < state.n_fds; fd++) {
        if (state.place_of[fd] != place + 1 || is_stream_of((int)fd, user->uid))
            continue;
        state.place_of[fd] = 0;
        user->n--;
    }
}

/* In ZeroMQ's thread, which is one. */
static bool admit(int fd)
{
    struct ucred who = {.uid = 0};
    socklen_t n = sizeof who;
    if ((uint32_t)fd >= state.limit_fd || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0) {
        atomic_store(&state.refused_uid, who.uid);
        return false;
    }
    if (state.place_of[fd]) /* that one has ended */
        state.users[state.place_of[fd] - 1].n--;
    state.place_of[fd] = 0;
    uint32_t place = place_of(who.uid);
    struct user *user = &state.users[place];
    if (user->n >= state.max_of_a_user && now_ms() >= user->counted_ms + RECOUNT_MS)
        count_anew(place);
    if (user->n >= state.max_of_a_user) {
        atomic_store(&state.refused_uid, who.uid);
        return false;
    }
    user->n++;
    state.place_of[fd] = place + 1;
    return true;
}

static bool is_guarded(const struct accept_guard *guard, int listener)
{
    struct sockaddr_un at = {.sun_family = AF_UNSPEC};
    socklen_t n = sizeof at;
    return guard && getsockname(listener, (struct sockaddr *)&at, &n) == 0 &&
           at.sun_family == AF_UNIX && strncmp(at.sun_path, state.at.sun_path, sizeof at.sun_path) == 0;
}

__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *address, socklen_t *n_address,
                                                   int flags)
{
    struct accept_guard *guard = atomic_load(&state.guard);
    int fd = (int)syscall(SYS_accept4, listener, address, n_address, flags);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        int code = errno;
        errno = is_guarded(guard, listener) ? ECONNABORTED : code; /* it stays in the backlog; libzmq would abort */
        return -1;
    }
    if (fd < 0 || !is_guarded(guard, listener) || admit(fd))
        return fd;
    close(fd);
    atomic_fetch_add(&state.refused, 1);
    uv_async_send(&guard->async);
    errno = ECONNABORTED;
    return -1;
}

static void on_refused(uv_async_t *async)
{
    (void)async;
    log_line(LOG_LINE_WARNING,
             "ZeroMQ connections of uid %u are refused: it has %u, or no file descriptor is left (%llu "
             "refused so far)",
             atomic_load(&state.refused_uid), state.max_of_a_user, (unsigned long long)atomic_load(&state.refused));
}

uint64_t accept_guard_refused(void)
{
    return atomic_load(&state.refused);
}

int accept_guard_init(struct accept_guard *guard, uv_loop_t *loop, const char *path, uint32_t max_of_a_user,
                      struct poise_err *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return err_set(err, -errno, "RLIMIT_NOFILE: %s", strerror(errno));
    state.n_fds = limit.rlim_cur < FDS_MAX ? (uint32_t)limit.rlim_cur : FDS_MAX;
    state.limit_fd = state.n_fds - (state.n_fds / 4 < RESERVE ? state.n_fds / 4 : RESERVE);
    state.max_of_a_user = max_of_a_user;
    state.at.sun_family = AF_UNIX;
    memcpy(state.at.sun_path, path, strnlen(path, sizeof state.at.sun_path - 1) + 1);
    state.place_of = calloc(state.n_fds, sizeof *state.place_of);
    if (!state.place_of)
        return err_set(err, -ENOMEM, "no memory to count connections");
    int rc = uv_async_init(loop, &guard->async, on_refused);
    if (rc < 0)
        return err_set(err, rc, "a wake-up: %s", uv_strerror(rc));
    guard->loop = loop;
    atomic_store(&state.guard, guard);
    return 0;
}

void accept_guard_close(struct accept_guard *guard)
{
    if (!guard->loop)
        return;
    guard->loop = NULL;
    atomic_store(&state.guard, NULL);
    uv_close((uv_handle_t *)&guard->async, NULL);
}

void accept_guard_fini(struct accept_guard *guard)
{
    (void)guard;
    free(state.place_of);
    state.place_of = NULL;
}
