/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of sd_notify(3) is a datagram to the socket that NOTIFY_SOCKET names; written out here it needs no
 * library, works the same on machines without systemd, and can be tested. READY=1 is sent only after every socket is
 * bound. WATCHDOG=1 comes from a timer of the event loop, so a loop that hangs is seen.
 */
#include "daemon/shell/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/shell/config.h"

static int open_socket(const char *path, struct poise_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || n >= sizeof addr.sun_path)
        return err_set(err, -EINVAL, "environment NOTIFY_SOCKET: '%s' is no unix socket's address", path);
    memcpy(addr.sun_path, path, n);
    if (path[0] == '@')
        addr.sun_path[0] = 0; /* an abstract address */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0) {
        int code = -errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, code, "environment NOTIFY_SOCKET: %s: %s", path, strerror(-code));
    }
    return fd;
}

static void tell(struct notify *notify, const char *text)
{
    if (notify->fd >= 0 && send(notify->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return; /* whoever started us is gone or slow; serving goes on */
}

static void on_timer(uv_timer_t *timer)
{
    tell(timer->data, "WATCHDOG=1");
}

/* Half of the time that systemd allows, as it advises; 0: no watchdog, or one of another process. */
static uint64_t watchdog_ms(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    unsigned long long us = strtoull(usec, NULL, 10);
    return us ? (us / 2000 ? us / 2000 : 1) : 0;
}

int notify_init(struct notify *notify, uv_loop_t *loop, uint64_t ready_fd, struct poise_err *err)
{
    *notify = (struct notify){.fd = -1, .ready_fd = -1};
    if (ready_fd != CONFIG_NO_FD) {
        if (fcntl((int)ready_fd, F_GETFD) < 0 || fcntl((int)ready_fd, F_SETFD, FD_CLOEXEC) < 0)
            return err_set(err, -EBADF, "--ready-fd %d: no such open descriptor", (int)ready_fd);
        notify->ready_fd = (int)ready_fd;
    }
    const char *path = getenv("NOTIFY_SOCKET");
    if (path && *path && (notify->fd = open_socket(path, err)) < 0)
        return notify->fd;
    uv_timer_init(loop, &notify->timer);
    notify->timer.data = notify;
    notify->loop = loop;
    return 0;
}

void notify_ready(struct notify *notify, const char *status)
{
    char text[256];
    snprintf(text, sizeof text, "READY=1\nSTATUS=%s", status);
    tell(notify, text);
    uint64_t ms = notify->fd >= 0 ? watchdog_ms() : 0;
    if (ms)
        uv_timer_start(&notify->timer, on_timer, ms, ms);
    if (notify->ready_fd < 0)
        return;
    if (write(notify->ready_fd, "\n", 1) < 0)
        tell(notify, "STATUS=serving; nobody reads --ready-fd");
    close(notify->ready_fd);
    notify->ready_fd = -1;
}

void notify_stopping(struct notify *notify)
{
    tell(notify, "STOPPING=1");
}

static void on_closed(uv_handle_t *handle)
{
    struct notify *notify = handle->data;
    if (notify->fd >= 0)
        close(notify->fd);
    if (notify->ready_fd >= 0)
        close(notify->ready_fd);
    notify->loop = NULL;
    if (notify->closed)
        notify->closed(notify);
}

void notify_close(struct notify *notify, void (*closed)(struct notify *))
{
    if (!notify->loop)
        return;
    notify->closed = closed;
    uv_close((uv_handle_t *)&notify->timer, on_closed);
}
