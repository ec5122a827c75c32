/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what the kernel says of free memory: /proc/meminfo, and for the own cgroup and every parent its limit, usage
 * and the file pages that it can drop at once. Both cgroup versions may be mounted side by side; the mount table says
 * where, and which part of the hierarchy a container sees. Whatever cannot be read does not count: better a late error
 * than none to run.
 */
#include "client/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

/* Version 1 writes "no limit" as the largest number of pages in bytes: anything above is none. */
#define UNLIMITED (1ull << 60)

struct version { /* of cgroups: names of what we read */
    const char *limit, *usage, *inactive;
};

static const struct version V2 = { "memory.max", "memory.current", "inactive_file" };
static const struct version V1 = { "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file" };

/* Reads a file that holds one number; false where it is not there or is "max". */
static bool read_number(const char *folder, const char *name, uint64_t *ret_number)
{
    char path[PATH_MAX];
    unsigned long long number;
    FILE *file;
    int n;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return false;
    file = fopen(path, "re");
    if (!file)
        return false;
    n = fscanf(file, "%llu", &number);
    fclose(file);
    if (n != 1)
        return false;
    *ret_number = number;
    return true;
}

/* Reads `key` of a file of lines "key number"; colon and unit allowed. */
static bool read_key(const char *path, const char *key, uint64_t *ret_number)
{
    char line[256];
    size_t n = strlen(key);
    bool found = false;
    FILE *file = fopen(path, "re");

    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':')) {
            *ret_number = strtoull(line + n + 1, NULL, 10);
            found = true;
        }
    }
    fclose(file);
    return found;
}

/* One cgroup's folder: lowers *mem where it has less. */
static void take_cgroup(const char *folder, const struct version *version, struct memory_free *mem)
{
    char stat[PATH_MAX];
    uint64_t limit, usage, inactive = 0, bytes;

    if (!read_number(folder, version->limit, &limit) || limit >= UNLIMITED)
        return;
    if (!read_number(folder, version->usage, &usage))
        return;
    if (snprintf(stat, sizeof stat, "%s/memory.stat", folder) < (int)sizeof stat)
        read_key(stat, version->inactive, &inactive);
    if (inactive > usage)
        inactive = usage;
    usage -= inactive;
    bytes = limit > usage ? limit - usage : 0;
    if (bytes >= mem->bytes)
        return;
    mem->bytes = bytes;
    snprintf(mem->limit, sizeof mem->limit, "%.*s", (int)sizeof mem->limit - 1, folder);
}

/* The own cgroup in its hierarchy ("/a/b"): version 2 is the line "0::", version 1 the one that lists memory. */
static bool own_cgroup(const char *root, bool v2, char path[PATH_MAX])
{
    char name[PATH_MAX], line[PATH_MAX + 128];
    bool found = false;
    FILE *file;

    if (snprintf(name, sizeof name, "%s/proc/self/cgroup", root) >= (int)sizeof name)
        return false;
    file = fopen(name, "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *own, *end;

        own = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!own)
            continue;
        *own++ = 0;
        controllers++;
        end = strchr(own, '\n');
        if (end)
            *end = 0;
        if (v2)
            found = strncmp(line, "0:", 2) == 0 && *controllers == 0;
        else
            for (char *save = NULL, *c = strtok_r(controllers, ",", &save); c; c = strtok_r(NULL, ",", &save))
                found = found || strcmp(c, "memory") == 0;
        if (found && strlen(own) < PATH_MAX)
            strcpy(path, own);
    }
    fclose(file);
    return found;
}

/* Walks from the own cgroup up to the mount. mount_root: which part of the hierarchy is mounted there. */
static void take_hierarchy(const char *root, const char *mount, const char *mount_root, const struct version *version,
                           struct memory_free *mem)
{
    char own[PATH_MAX], folder[PATH_MAX];
    size_t n_mount, n_root = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const char *below = "";

    if (!own_cgroup(root, version == &V2, own))
        return;
    /* In a container without a cgroup namespace the path begins with the mount's root; else the mount itself is ours.
     * */
    if (strncmp(own, mount_root, n_root) == 0 && (own[n_root] == '/' || own[n_root] == 0) && !strstr(own, "/.."))
        below = own + n_root;
    if (snprintf(folder, sizeof folder, "%s%s%s", root, mount, below) >= (int)sizeof folder)
        return;
    n_mount = strlen(root) + strlen(mount);
    for (;;) {
        char *slash;

        take_cgroup(folder, version, mem);
        if (strlen(folder) <= n_mount)
            return;
        slash = strrchr(folder, '/');
        if (!slash || slash < folder + n_mount)
            return;
        *slash = 0;
    }
}

/* Every cgroup mount with a memory controller. A line of mountinfo: id parent dev ROOT MOUNT options ... - TYPE source
 * SUPER. */
static void take_cgroups(const char *root, struct memory_free *mem)
{
    char name[PATH_MAX], *line = NULL;
    size_t size = 0;
    FILE *file;

    if (snprintf(name, sizeof name, "%s/proc/self/mountinfo", root) >= (int)sizeof name)
        return;
    file = fopen(name, "re");
    if (!file)
        return;
    while (getline(&line, &size, file) > 0) {
        char *dash = strstr(line, " - "), *save = NULL, *mount_root, *mount, *type, *super;

        if (!dash)
            continue;
        *dash = 0;
        for (int i = 0; i < 3; i++)
            strtok_r(i ? NULL : line, " ", &save);
        mount_root = strtok_r(NULL, " ", &save);
        mount = strtok_r(NULL, " ", &save);
        type = strtok_r(dash + 3, " ", &save);
        if (!mount_root || !mount || !type)
            continue;
        strtok_r(NULL, " ", &save);
        super = strtok_r(NULL, " \n", &save);
        if (strcmp(type, "cgroup2") == 0)
            take_hierarchy(root, mount, mount_root, &V2, mem);
        else if (strcmp(type, "cgroup") == 0 && super && strstr(super, "memory"))
            take_hierarchy(root, mount, mount_root, &V1, mem);
    }
    free(line);
    fclose(file);
}

int memory_free_read(const char *root, struct memory_free *ret_free, struct poise_err *err)
{
    struct memory_free mem = { .limit = "MemAvailable" };
    char path[PATH_MAX];
    uint64_t kib;

    if (snprintf(path, sizeof path, "%s/proc/meminfo", root) >= (int)sizeof path ||
        !read_key(path, "MemAvailable", &kib))
        return err_set(err, -ENOENT, "%s/proc/meminfo does not tell MemAvailable: mount /proc", root);
    mem.bytes = kib << 10;
    take_cgroups(root, &mem);
    *ret_free = mem;
    return 0;
}

int memory_check(uint64_t bytes, const char *what, struct poise_err *err)
{
    char needed[MEMORY_TEXT], available[MEMORY_TEXT];
    struct memory_free mem;
    uint64_t usable;

    if (memory_free_read("", &mem, NULL) < 0)
        return 0;
    usable = mem.bytes > MEMORY_RESERVE ? mem.bytes - MEMORY_RESERVE : 0;
    if (bytes <= usable)
        return 0;
    return err_set(err, -ENOMEM, "%s: needs %s (%" PRIu64 " bytes), %s are available (%" PRIu64
                   " bytes, by %s): lower the batch or memory_budget, or give the job more memory", what,
                   memory_format(bytes, needed), bytes, memory_format(usable, available), usable, mem.limit);
}

uint64_t memory_budget(const struct memory_free *mem, uint32_t n_local_ranks)
{
    return mem->bytes / 4 / (n_local_ranks ? n_local_ranks : 1);
}

const char *memory_format(uint64_t bytes, char text[MEMORY_TEXT])
{
    static const char *const units[] = { "bytes", "KB", "MB", "GB", "TB", "PB", "EB" };
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    snprintf(text, MEMORY_TEXT, unit && value < 100 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}
