/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the report beside its destination and renames it, so that a reader never sees half of it and a full disk
 * leaves the older one alone. A destination that is no regular file (a pipe, /dev/stdout) is written to directly:
 * renaming would replace the device.
 */
#include "client/ctl/report.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/planner/err.h"

/* Where the bytes go: through a symbolic link to what it names. target: [PATH_MAX]. */
static int find_target(const char *path, char *target, bool *ret_direct, struct poise_err *err)
{
    struct stat st;

    *ret_direct = false;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return err_set(err, -EISDIR, "--report %s is a directory: give a file name", path);
        *ret_direct = !S_ISREG(st.st_mode);
        if (realpath(path, target))
            return 0;
    }
    if (strlen(path) >= PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "--report: the path is longer than %d", PATH_MAX);
    strcpy(target, path);
    return 0;
}

static void find_directory(const char *target, char *directory)
{
    char *slash;

    strcpy(directory, target);
    slash = strrchr(directory, '/');
    if (!slash)
        strcpy(directory, ".");
    else if (slash == directory)
        directory[1] = 0;
    else
        *slash = 0;
}

int report_check(const char *path, struct poise_err *err)
{
    char target[PATH_MAX], directory[PATH_MAX];
    bool direct;
    int rc = find_target(path, target, &direct, err);

    if (rc < 0 || direct)
        return rc;
    if (!*path)
        return err_set(err, -EINVAL, "--report: the file name is empty");
    find_directory(target, directory);
    if (access(directory, W_OK | X_OK) != 0)
        return err_set(err, -errno, "--report %s: its directory %s cannot be written to: %s", path, directory,
                       strerror(errno));
    return 0;
}

/* Renders into memory first: what remains to fail is writing bytes. */
static int render(const struct simulate *sim, char **ret_text, size_t *ret_n, struct poise_err *err)
{
    FILE *out = open_memstream(ret_text, ret_n);
    bool bad;

    if (!out)
        return err_set(err, -ENOMEM, "no memory for the report");
    report_html(out, sim);
    bad = ferror(out);
    if (fclose(out) != 0 || bad) {
        free(*ret_text);
        return err_set(err, -ENOMEM, "no memory for the report");
    }
    return 0;
}

static int write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);
        if (done < 0 && errno != EINTR)
            return -errno;
        text += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

static int write_direct(const char *path, const char *text, size_t n, struct poise_err *err)
{
    FILE *out = fopen(path, "we");
    int rc = out ? write_all(fileno(out), text, n) : -errno;

    if (out)
        fclose(out);
    return rc < 0 ? err_set(err, rc, "--report %s cannot be written: %s", path, strerror(-rc)) : 0;
}

/* The mode of a new file, as open() would give it. */
static mode_t new_mode(const char *target)
{
    struct stat st;
    mode_t mask = umask(0);

    umask(mask);
    return stat(target, &st) == 0 ? st.st_mode & 0777 : 0666 & ~mask;
}

static int write_and_rename(const char *path, const char *target, const char *text, size_t n, struct poise_err *err)
{
    char temporary[PATH_MAX + 8];
    int rc, fd;

    snprintf(temporary, sizeof temporary, "%s.XXXXXX", target);
    fd = mkstemp(temporary);
    if (fd < 0)
        return err_set(err, -errno, "--report %s cannot be written: %s", path, strerror(errno));
    rc = write_all(fd, text, n);
    if (rc == 0 && (fchmod(fd, new_mode(target)) != 0 || fsync(fd) != 0))
        rc = -errno;
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(temporary, target) != 0)
        rc = -errno;
    if (rc == 0)
        return 0;
    unlink(temporary);
    return err_set(err, rc, "--report %s cannot be written: %s", path, strerror(-rc));
}

int report_write(const char *path, const struct simulate *sim, struct poise_err *err)
{
    char target[PATH_MAX], *text = NULL;
    size_t n = 0;
    bool direct;
    int rc = find_target(path, target, &direct, err);

    if (rc == 0)
        rc = render(sim, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = direct ? write_direct(path, text, n, err) : write_and_rename(path, target, text, n, err);
    free(text);
    return rc;
}
