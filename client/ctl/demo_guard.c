/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes the demo's directory however poisectl ends, kill -9 included: a child in a session of its own that waits for
 * the end of a pipe whose other end only poisectl has. (poised and the trainers die with poisectl by PR_SET_PDEATHSIG.)
 */
#include "client/ctl/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOCKET_NAME_ROOM 40 /* of the 108 bytes of a socket's path: more than poised's longest name in its directory */
#define TRIES 200           /* with 10 ms each: poised may still be dying, and make a file meanwhile */

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *where)
{
    (void)stat;
    (void)flag;
    (void)where;
    return remove(path) < 0 && errno != ENOENT ? -1 : 0;
}

static void remove_tree(const char *dir)
{
    for (int i = 0; i < TRIES; i++) {
        if (nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0 || access(dir, F_OK) < 0)
            return;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
}

static _Noreturn void guard(int fd, const char *dir)
{
    sigset_t all;
    char byte;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    if (dup2(fd, 0) == 0) { /* and nothing else: who reads poisectl's output must see its end */
        close_range(1, ~0u, 0);
        while (read(0, &byte, 1) < 0 && errno == EINTR)
            continue;
    }
    remove_tree(dir);
    _exit(0);
}

int demo_guard_start(struct demo *demo)
{
    const char *tmp = getenv("TMPDIR");
    int fds[2];

    if (!tmp || !*tmp || strlen(tmp) + sizeof "/poise-demo-XXXXXX" > sizeof demo->dir ||
        strlen(tmp) + sizeof "/poise-demo-XXXXXX" + SOCKET_NAME_ROOM > 108)
        tmp = "/tmp"; /* a socket's path has 108 bytes */
    snprintf(demo->dir, sizeof demo->dir, "%.60s/poise-demo-XXXXXX", tmp);
    if (!mkdtemp(demo->dir)) {
        int rc = ctl_fail(demo->command, CTL_FAILED, "no directory %s can be made: %s", demo->dir, strerror(errno));
        demo->dir[0] = 0;
        return rc;
    }
    if (pipe2(fds, O_CLOEXEC) < 0)
        return ctl_fail(demo->command, CTL_FAILED, "no pipe: %s", strerror(errno));
    fflush(NULL);
    demo->guard = fork();
    if (demo->guard == 0) {
        close(fds[1]);
        guard(fds[0], demo->dir);
    }
    close(fds[0]);
    if (demo->guard < 0) {
        demo->guard = 0;
        close(fds[1]);
        return ctl_fail(demo->command, CTL_FAILED, "no process can be started: %s", strerror(errno));
    }
    demo->guard_fd = fds[1];
    return CTL_OK;
}

void demo_guard_end(struct demo *demo)
{
    if (demo->guard > 0) {
        close(demo->guard_fd);
        while (waitpid(demo->guard, NULL, 0) < 0 && errno == EINTR)
            continue;
    } else if (demo->dir[0]) {
        remove_tree(demo->dir);
    }
    demo->guard = 0;
    demo->guard_fd = -1;
    demo->dir[0] = 0;
}
