/* SPDX-License-Identifier: Apache-2.0 */
/* poised at the end of its descriptors on the status socket: it neither spins nor forgets who comes later. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/system/daemon.h"

#define N_WAITING 200 /* more than the limit has room for */
#define LOOK_MS 1000

static int ask_status(const struct test_daemon *daemon)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/status.sock", daemon->dir);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0) {
        close(fd);
        return -1; /* the queue of those that wait is full, too */
    }
    return fd;
}

/* Processor time of the process so far. */
static double cpu_ms(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");

    cr_assert(file && fgets(text, sizeof text, file));
    fclose(file);
    cr_assert_eq(sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system),
                 2);
    return (double)(user + system) * 1000 / (double)sysconf(_SC_CLK_TCK);
}

Test(limits, status_without_descriptors_does_not_spin)
{
    struct test_daemon daemon;
    struct rlimit few = {80, 80};
    int fds[N_WAITING], n = 0;
    char *body;

    test_daemon_start(&daemon, NULL);
    cr_assert_eq(prlimit(daemon.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (n = 0; n < N_WAITING && (fds[n] = ask_status(&daemon)) >= 0;)
        n++;
    cr_assert_gt(n, 20);
    poll(NULL, 0, 100); /* not waiting for anything: what is measured is the time after */
    double before = cpu_ms(daemon.pid);
    poll(NULL, 0, LOOK_MS);
    double used = cpu_ms(daemon.pid) - before;
    cr_assert_lt(used, LOOK_MS / 4, "%.0f ms of %d", used, LOOK_MS);
    while (n > 0)
        close(fds[--n]);
    cr_assert_eq(test_daemon_http(&daemon, false, "/healthz", &body), 200);
    free(body);
    test_daemon_end(&daemon);
}
