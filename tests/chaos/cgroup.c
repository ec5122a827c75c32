/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory cgroup for the trainers of each host, of either version, beside the driver's own: so that chaos can take
 * memory away from a running job. Where none may be made, that fault is left out.
 */
#include "tests/chaos/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define V1 "/sys/fs/cgroup/memory"
#define V2 "/sys/fs/cgroup"
#define SLACK_BYTES (48u << 20) /* above what is in use: less than a rank's budget, more than a few steps */

static bool write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    int fd;
    bool ok;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool is_v1(const struct chaos_host *host)
{
    return strncmp(host->cgroup, V1 "/", sizeof V1) == 0;
}

static bool make_group(struct chaos_host *host, const char *root)
{
    char name[160];

    snprintf(host->cgroup, sizeof host->cgroup, "%s/poise-chaos-%d-h%u", root, (int)getpid(), host->number);
    if (mkdir(host->cgroup, 0755) == 0) {
        snprintf(name, sizeof name, "%s/%s", host->cgroup, is_v1(host) ? "memory.limit_in_bytes" : "memory.max");
        if (access(name, W_OK) == 0)
            return true;
        rmdir(host->cgroup);
    }
    host->cgroup[0] = 0;
    return false;
}

void cgroup_new(struct chaos_host *host)
{
    if (!make_group(host, V1))
        make_group(host, V2);
}

void cgroup_enter(const struct chaos_host *host)
{
    if (host->cgroup[0])
        write_file(host->cgroup, "cgroup.procs", "0");
}

bool cgroup_squeeze(const struct chaos_host *host)
{
    char path[256], text[32];
    unsigned long long usage;
    FILE *file;
    int n;

    if (!host->cgroup[0])
        return false;
    snprintf(path, sizeof path, "%s/%s", host->cgroup, is_v1(host) ? "memory.usage_in_bytes" : "memory.current");
    file = fopen(path, "re");
    n = file ? fscanf(file, "%llu", &usage) : 0;
    if (file)
        fclose(file);
    if (n != 1)
        return false;
    snprintf(text, sizeof text, "%llu", usage + SLACK_BYTES);
    return write_file(host->cgroup, is_v1(host) ? "memory.limit_in_bytes" : "memory.max", text);
}

void cgroup_relax(const struct chaos_host *host)
{
    if (is_v1(host))
        write_file(host->cgroup, "memory.limit_in_bytes", "-1");
    else
        write_file(host->cgroup, "memory.max", "max");
}

bool cgroup_end(struct chaos_host *host)
{
    return !host->cgroup[0] || rmdir(host->cgroup) == 0;
}
