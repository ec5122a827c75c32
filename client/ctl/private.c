/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poised's life: started with nothing of the machine's configuration (a system-wide one may listen on a port that is
 * taken), waited for until its sockets are there, and ended in order before its folder goes.
 */
#include "client/ctl/private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/planner/err.h"

#define READY_MS 20000 /* poised binds a few sockets: far less, also under sanitizers on a busy machine */
#define STOP_MS 5000   /* for poised to end in order: it waits for nobody */
#define LOG_NAME "poised.log"

bool private_gone(struct private_poised *poised, struct poise_err *err)
{
    char text[96];
    int status;

    if (poised->pid <= 0 || waitpid(poised->pid, &status, WNOHANG) != poised->pid)
        return false;
    err_set(err, -ECHILD, "poised (pid %d) %s", poised->pid, process_how_it_ended(status, text, sizeof text));
    poised->pid = 0;
    return true;
}

static int await_ready(struct private_poised *poised, int ready_fd, struct process_signals *signals,
                       struct poise_err *err)
{
    const uint64_t begin_ms = process_now_ms();
    char byte;

    for (;;) {
        const uint64_t ms = process_now_ms() - begin_ms;
        struct pollfd ready = {.fd = ready_fd, .events = POLLIN};

        if (signals->caught)
            return err_set(err, -EINTR, "ended by signal %d", signals->caught);
        if (poll(&ready, 1, 0) > 0 && read(ready_fd, &byte, 1) == 1)
            return 0;
        if (private_gone(poised, err))
            return -ECHILD;
        if (ms >= READY_MS)
            return err_set(err, -ETIMEDOUT, "poised is not ready after %d s", READY_MS / 1000);
        /* An end of the pipe without a byte is poised's: it is reaped in a moment. */
        process_await(signals, ready.revents & POLLHUP ? -1 : ready_fd,
                      ready.revents & POLLHUP ? 20 : (int)(READY_MS - ms));
    }
}

static int spawn(struct private_poised *poised, const char *binary, int ready_fd, int log_fd, struct poise_err *err)
{
    char *const argv[] = {(char *)binary, "--socket-dir", poised->dir, "--ready-fd", "3",
                          "--config",     "/dev/null",    NULL};
    const char *const env[] = {"NOTIFY_SOCKET", NULL, NULL}; /* systemd waits for another READY=1 than this one's */
    const struct process_start start = {.argv = argv,
                                        .pass_fd = ready_fd,
                                        .out_fd = log_fd >= 0 ? log_fd : 2,
                                        .err_fd = log_fd,
                                        .apart = true,
                                        .death_signal = SIGKILL,
                                        .env = env};
    pid_t pid = process_start(&start, err);

    if (pid < 0)
        return pid;
    poised->pid = pid;
    return 0;
}

static int start_poised(struct private_poised *poised, const char *binary, int log_fd, struct process_signals *signals,
                        struct poise_err *err)
{
    int fds[2], rc;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    rc = spawn(poised, binary, fds[1], log_fd, err);
    close(fds[1]);
    if (rc == 0)
        rc = await_ready(poised, fds[0], signals, err);
    close(fds[0]);
    return rc;
}

static void log_path(const struct private_poised *poised, char *path, size_t n_path)
{
    snprintf(path, n_path, "%s/" LOG_NAME, poised->dir);
}

int private_open_log(const struct private_poised *poised, struct poise_err *err)
{
    char log[sizeof poised->dir + sizeof LOG_NAME];
    int fd;

    log_path(poised, log, sizeof log);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return fd < 0 ? err_set(err, -errno, "%s: %s", log, strerror(errno)) : fd;
}

int private_start(struct private_poised *poised, const char *binary, const char *name, bool log_to_stderr,
                  struct process_signals *signals, struct poise_err *err)
{
    int log_fd = -1, rc = private_dir_make(poised, name, err);

    if (rc < 0)
        return rc;
    if (!log_to_stderr && (log_fd = private_open_log(poised, err)) < 0)
        return log_fd;
    rc = start_poised(poised, binary, log_fd, signals, err);
    if (log_fd >= 0)
        close(log_fd);
    return rc;
}

static int end_poised(struct private_poised *poised, struct process_signals *signals, struct poise_err *err)
{
    const uint64_t begin_ms = process_now_ms();
    int status = 0;
    char text[96];
    pid_t pid = poised->pid;

    kill(pid, SIGTERM);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (process_now_ms() - begin_ms >= STOP_MS)
            kill(pid, SIGKILL);
        process_await(signals, -1, signals->fd < 0 ? 5 : 100);
    }
    poised->pid = 0;
    if (status == 0)
        return 0;
    return err_set(err, -ECHILD, "poised (pid %d) %s when told to end", pid,
                   process_how_it_ended(status, text, sizeof text));
}

int private_stop(struct private_poised *poised, struct process_signals *signals, struct poise_err *err)
{
    int rc = poised->pid > 0 ? end_poised(poised, signals, err) : 0;

    if (rc < 0)
        private_print_log(poised);
    private_dir_remove(poised);
    return rc;
}

void private_print_log(const struct private_poised *poised)
{
    char log[sizeof poised->dir + sizeof LOG_NAME];

    log_path(poised, log, sizeof log);
    process_print_tail(log, "poised's log");
}
