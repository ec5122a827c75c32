/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pair for both roles: every poised is a node and may be a coordinator, a cluster's nodes are administered
 * together, and one file that is the same everywhere is what their tools copy well. The cost is that a node that is
 * taken over can play any other, which it could with two pairs as well, since both would have to lie on every node.
 *
 * A file that others may read is refused rather than used with a warning: its secret has to be taken for known.
 */
#include "client/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "daemon/planner/err.h"

#define FILE_MAX 4096 /* ours has 250; more is no key file */
#define MAKE_ONE "make one with: poisectl keygen FILE"

static int check_curve(struct poise_err *err)
{
    return zmq_has("curve") ? 0
                            : err_set(err, -EOPNOTSUPP,
                                      "this libzmq was built without CURVE: install one that was built with libsodium");
}

/* ---------------------------------------------------------------------------------------------------------- reading */

static int check_file(int fd, const char *path, struct poise_err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s: no file with keys; " MAKE_ONE, path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return err_set(err, -EPERM,
                       "%s: it belongs to uid %u: keys must belong to root or to uid %u that poised runs as "
                       "(chown)",
                       path, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 077)
        return err_set(err, -EPERM,
                       "%s: its mode is %04o, so others may have read it: make new keys with mode 0600, or, "
                       "if you are sure that nobody has, chmod 0600",
                       path, (unsigned)(st.st_mode & 07777));
    if (st.st_size > FILE_MAX)
        return err_set(err, -EINVAL, "%s: %lld bytes are no file with keys; " MAKE_ONE, path, (long long)st.st_size);
    return 0;
}

/* KEY = VALUE; a value has '=' and '#' of its own. */
static int take_line(char *line, struct keys *keys, const char *path, unsigned number, struct poise_err *err)
{
    char *value = strchr(line, '='), *to = NULL;
    size_t n;

    while (*line == ' ' || *line == '\t')
        line++;
    if (!*line || *line == '#')
        return 0;
    if (value) {
        *value++ = 0;
        value += strspn(value, " \t");
        n = strcspn(line, " \t");
        to = n == 6 && strncmp(line, "public", n) == 0   ? keys->public
             : n == 6 && strncmp(line, "secret", n) == 0 ? keys->secret
                                                         : NULL;
    }
    if (!to)
        return err_set(err, -EINVAL, "%s:%u: neither public = ... nor secret = ... nor a # comment; " MAKE_ONE, path,
                       number);
    n = strcspn(value, " \t\r");
    if (n != KEYS_TEXT - 1 || value[n + strspn(value + n, " \t\r")])
        return err_set(err, -EINVAL, "%s:%u: a key has 40 characters, this one %zu", path, number, n);
    if (*to)
        return err_set(err, -EINVAL, "%s:%u: a second key of that name", path, number);
    memcpy(to, value, n);
    return 0;
}

static int parse(char *text, struct keys *keys, const char *path, struct poise_err *err)
{
    unsigned number = 1;
    char *save = NULL;
    char proof[KEYS_TEXT];

    for (char *line = text; line; line = save, number++) {
        char *end = strchr(line, '\n');
        int rc;

        save = end ? end + 1 : NULL;
        if (end)
            *end = 0;
        rc = take_line(line, keys, path, number, err);
        if (rc < 0)
            return rc;
    }
    if (!keys->public[0] || !keys->secret[0])
        return err_set(err, -EINVAL, "%s: the %s key is missing; " MAKE_ONE, path,
                       keys->secret[0] ? "public" : "secret");
    if (zmq_curve_public(proof, keys->secret) < 0 || strcmp(proof, keys->public) != 0)
        return err_set(err, -EINVAL,
                       "%s: its public and secret key are no pair: copy the file whole, or make a new one", path);
    return 0;
}

int keys_read(const char *path, struct keys *ret_keys, struct poise_err *err)
{
    struct keys keys = {.set = true};
    char text[FILE_MAX + 1];
    size_t n = 0;
    int rc = check_curve(err), fd;

    if (rc < 0)
        return rc;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, -errno, "%s: %s%s", path, strerror(errno),
                       errno == ENOENT   ? "; " MAKE_ONE ", and copy it to all nodes"
                       : errno == EACCES ? ": it must belong to the user that poised runs as"
                                         : "");
    rc = check_file(fd, path, err);
    for (ssize_t got = 1; rc == 0 && got != 0 && n < FILE_MAX; n += (size_t)got) {
        got = read(fd, text + n, FILE_MAX - n);
        if (got < 0) {
            rc = err_set(err, -errno, "%s: %s", path, strerror(errno));
            break;
        }
    }
    close(fd);
    if (rc == 0) {
        text[n] = 0;
        rc = strlen(text) == n ? parse(text, &keys, path, err)
                               : err_set(err, -EINVAL, "%s: a zero byte in it; " MAKE_ONE, path);
    }
    explicit_bzero(text, sizeof text);
    if (rc == 0)
        *ret_keys = keys;
    explicit_bzero(&keys, sizeof keys);
    return rc;
}

/* ----------------------------------------------------------------------------------------------------------- making */

int keys_make(struct keys *ret_keys, struct poise_err *err)
{
    struct keys keys = {.set = true};
    int rc = check_curve(err);

    if (rc < 0)
        return rc;
    if (zmq_curve_keypair(keys.public, keys.secret) < 0)
        return err_set(err, -EIO, "no key could be made: %s", zmq_strerror(errno));
    *ret_keys = keys;
    return 0;
}

static int put(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);

        if (done < 0 && errno != EINTR)
            return -errno;
        if (done > 0) {
            text += done;
            n -= (size_t)done;
        }
    }
    return 0;
}

int keys_write(const char *path, const struct keys *keys, uint32_t uid, uint32_t gid, struct poise_err *err)
{
    char text[512];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), rc = 0;

    if (fd < 0 && errno == EEXIST)
        return err_set(err, -EEXIST, "%s exists, and nodes may use it: remove it first if it shall be replaced", path);
    if (fd < 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    snprintf(
        text, sizeof text,
        "# The key of a cluster of poised (poised.conf: keys = FILE). Secret: the same file on every node, mode 0600,\n"
        "# of the user that poised runs as or of root.\n"
        "public = %s\nsecret = %s\n",
        keys->public, keys->secret);
    if (uid != POISE_NONE && fchown(fd, uid, gid) < 0)
        rc = -errno;
    if (rc == 0 && fchmod(fd, 0600) < 0)
        rc = -errno;
    if (rc == 0)
        rc = put(fd, text, strlen(text));
    if (rc == 0 && fsync(fd) < 0 && errno != EINVAL)
        rc = -errno;
    if (close(fd) < 0 && rc == 0)
        rc = -errno;
    explicit_bzero(text, sizeof text);
    if (rc < 0) {
        unlink(path);
        return err_set(err, rc, "%s: %s", path, strerror(-rc));
    }
    return 0;
}
