/* SPDX-License-Identifier: Apache-2.0 */
/* See the header for why four handles watch one socket. */
#include "daemon/shell/zpoll.h"

#include <errno.h>
#include <zmq.h>

#include "daemon/planner/err.h"

static bool has_input(const struct zpoll *zpoll)
{
    int events = 0;
    size_t n = sizeof events;
    return zmq_getsockopt(zpoll->socket, ZMQ_EVENTS, &events, &n) == 0 && (events & ZMQ_POLLIN);
}

static void on_idle(uv_idle_t *idle)
{
    (void)idle; /* being active is all: the loop does not sleep */
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)poll, (void)status, (void)events; /* only wakes the loop: the check below asks */
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct zpoll *zpoll = prepare->data;
    if (has_input(zpoll))
        uv_idle_start(&zpoll->idle, on_idle);
}

static void on_check(uv_check_t *check)
{
    struct zpoll *zpoll = check->data;
    uv_idle_stop(&zpoll->idle);
    if (has_input(zpoll))
        zpoll->readable(zpoll);
}

int zpoll_init(struct zpoll *zpoll, uv_loop_t *loop, void *socket, void (*readable)(struct zpoll *),
               struct poise_err *err)
{
    int fd;
    size_t n = sizeof fd;
    *zpoll = (struct zpoll){.socket = socket, .readable = readable, .data = zpoll->data};
    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &n) < 0)
        return err_set(err, -errno, "ZMQ_FD: %s", zmq_strerror(errno));
    int rc = uv_poll_init(loop, &zpoll->poll, fd);
    if (rc < 0)
        return err_set(err, rc, "watching a ZeroMQ socket: %s", uv_strerror(rc));
    uv_prepare_init(loop, &zpoll->prepare);
    uv_check_init(loop, &zpoll->check);
    uv_idle_init(loop, &zpoll->idle);
    zpoll->poll.data = zpoll->prepare.data = zpoll->check.data = zpoll->idle.data = zpoll;
    zpoll->n_open = 4;
    uv_poll_start(&zpoll->poll, UV_READABLE, on_poll);
    uv_prepare_start(&zpoll->prepare, on_prepare);
    uv_check_start(&zpoll->check, on_check);
    return 0;
}

static void zpoll_maybe_closed(struct zpoll *zpoll)
{
    if (zpoll->n_open == 0 && zpoll->closed)
        zpoll->closed(zpoll);
}

static void on_closed(uv_handle_t *handle)
{
    struct zpoll *zpoll = handle->data;
    zpoll->n_open--;
    zpoll_maybe_closed(zpoll);
}

void zpoll_close(struct zpoll *zpoll, void (*closed)(struct zpoll *))
{
    if (zpoll->n_open == 0)
        return;
    zpoll->closed = closed;
    uv_poll_stop(&zpoll->poll);
    uv_close((uv_handle_t *)&zpoll->poll, on_closed);
    uv_close((uv_handle_t *)&zpoll->prepare, on_closed);
    uv_close((uv_handle_t *)&zpoll->check, on_closed);
    uv_close((uv_handle_t *)&zpoll->idle, on_closed);
}
