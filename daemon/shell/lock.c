/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two daemons on one folder would steal each other's sockets, so the first takes a flock() on DIR/poised.lock: the
 * kernel lets go of it when the process ends, however it ends. Only its holder may replace socket files that a killed
 * predecessor left. The file goes away in an orderly end; since a second daemon may have opened it just before, whoever
 * gets the lock checks that the file still stands in the folder, and starts over if it does not.
 */
#include "daemon/shell/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/planner/err.h"

static void lock_path(const struct lock *lock, char path[LOCK_DIR_BYTES + 16])
{
    snprintf(path, LOCK_DIR_BYTES + 16, "%s/poised.lock", lock->dir);
}

static int make_dir(struct lock *lock, const char *dir, struct poise_err *err)
{
    char absolute[PATH_MAX];
    struct stat st;
    if (mkdir(dir, 0755) < 0 && errno != EEXIST)
        return err_set(err, -errno, "socket folder %s cannot be made: %s%s", dir, strerror(errno),
                       errno == EACCES ? "; run as root or choose another --socket-dir"
                                       : "; choose another --socket-dir");
    if (stat(dir, &st) < 0 || !realpath(dir, absolute))
        return err_set(err, -errno, "socket folder %s: %s; choose another --socket-dir", dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, "socket folder %s is not a folder; choose another --socket-dir", dir);
    if (access(absolute, W_OK | X_OK) < 0)
        return err_set(err, -errno, "socket folder %s may not be written by uid %u: %s", dir, (unsigned)geteuid(),
                       strerror(errno));
    if (strlen(absolute) >= sizeof lock->dir)
        return err_set(err, -ENAMETOOLONG, "socket folder %s is longer than %zu bytes, the room of a socket's address",
                       absolute, sizeof lock->dir - 1);
    strcpy(lock->dir, absolute);
    return 0;
}

static int refuse(const struct lock *lock, int fd, struct poise_err *err)
{
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    return err_set(err, -EEXIST,
                   "another poised (pid %ld) serves %s and goes on: stop it first or choose another --socket-dir",
                   pid, lock->dir);
}

/* 1: the file was removed between open and lock, try again. */
static int try_lock(struct lock *lock, const char *path, struct poise_err *err)
{
    struct stat mine, there;
    char text[32];
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644), rc;
    if (fd < 0)
        return err_set(err, -errno, "%s cannot be opened: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        rc = errno == EWOULDBLOCK ? refuse(lock, fd, err)
                                  : err_set(err, -errno, "%s: flock: %s", path, strerror(errno));
        goto fail;
    }
    rc = 1;
    if (fstat(fd, &mine) < 0 || stat(path, &there) < 0 || mine.st_ino != there.st_ino || mine.st_dev != there.st_dev)
        goto fail;
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n) {
        rc = err_set(err, errno ? -errno : -EIO, "%s cannot be written: %s", path, strerror(errno));
        goto fail;
    }
    lock->fd = fd;
    lock->held = true;
    return 0;
fail:
    close(fd);
    return rc;
}

int lock_take(struct lock *lock, const char *dir, struct poise_err *err)
{
    char path[LOCK_DIR_BYTES + 16];
    lock->held = false;
    int rc = make_dir(lock, dir, err);
    if (rc < 0)
        return rc;
    lock_path(lock, path);
    for (int tries = 0; tries < 100; tries++)
        if ((rc = try_lock(lock, path, err)) <= 0)
            return rc;
    return err_set(err, -EAGAIN, "%s: its file keeps disappearing: something removes it", path);
}

void lock_release(struct lock *lock)
{
    char path[LOCK_DIR_BYTES + 16];
    if (!lock->held)
        return;
    lock_path(lock, path);
    unlink(path);
    close(lock->fd);
    lock->held = false;
}
