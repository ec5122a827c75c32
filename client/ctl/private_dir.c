/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes the private folder however its owner ends, kill -9 included: a child in a session of its own that waits for
 * the end of a pipe whose other end only the owner has. (poised and others die with the owner by PR_SET_PDEATHSIG.)
 */
#include "client/ctl/private.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/planner/err.h"

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

/* The folder's name, short enough for sockets in it. */
static void choose_name(struct private_poised *poised, const char *name)
{
    const char *tmp = getenv("TMPDIR");
    size_t n = strlen(name) + sizeof "/poise--XXXXXX";

    if (!tmp || !*tmp || strlen(tmp) + n > sizeof poised->dir || strlen(tmp) + n + SOCKET_NAME_ROOM > 108)
        tmp = "/tmp"; /* a socket's path has 108 bytes */
    snprintf(poised->dir, sizeof poised->dir, "%s/poise-%.16s-XXXXXX", tmp, name);
}

int private_dir_make(struct private_poised *poised, const char *name, struct poise_err *err)
{
    int fds[2];

    *poised = PRIVATE_POISED_NONE;
    choose_name(poised, name);
    if (!mkdtemp(poised->dir)) {
        int rc = err_set(err, -errno, "no folder %s can be made: %s", poised->dir, strerror(errno));
        poised->dir[0] = 0;
        return rc;
    }
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    fflush(NULL);
    poised->guard = fork();
    if (poised->guard == 0) {
        close(fds[1]);
        guard(fds[0], poised->dir);
    }
    close(fds[0]);
    if (poised->guard < 0) {
        poised->guard = 0;
        close(fds[1]);
        return err_set(err, -errno, "no process can be started: %s", strerror(errno));
    }
    poised->guard_fd = fds[1];
    return 0;
}

void private_dir_remove(struct private_poised *poised)
{
    if (poised->guard > 0) {
        close(poised->guard_fd);
        while (waitpid(poised->guard, NULL, 0) < 0 && errno == EINTR)
            continue;
    } else if (poised->dir[0]) {
        remove_tree(poised->dir);
    }
    *poised = PRIVATE_POISED_NONE;
}
