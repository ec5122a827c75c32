/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory is free, read from a folder that looks like a machine. */
#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/memory.h"

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/poise-memory-XXXXXX");
    cr_assert(mkdtemp(root) != NULL);
}

static void remove_root(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", root);
    cr_assert(system(command) == 0);
}

TestSuite(memory, .init = make_root, .fini = remove_root);

/* Writes a file below root, folders included. */
static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    file = fopen(path, "w");
    cr_assert(file != NULL, "%s", path);
    fputs(text, file);
    fclose(file);
}

static struct memory_free read_free(void)
{
    struct memory_free mem;
    struct poise_err err;

    cr_assert(memory_free_read(root, &mem, &err) == 0, "%s", err.text);
    return mem;
}

#define MEMINFO "MemTotal:       2000000 kB\nMemFree:         500000 kB\nMemAvailable:   1000000 kB\n"
#define MOUNT_V2 "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
#define MOUNT_V1                                                                                                       \
    "30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"                                                      \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"

Test(memory, without_cgroups_it_is_what_is_available)
{
    put("proc/meminfo", MEMINFO);
    cr_assert_eq(read_free().bytes, 1000000ull << 10);
    cr_assert_str_eq(read_free().limit, "MemAvailable");
}

Test(memory, no_proc_is_an_error)
{
    struct memory_free mem;
    struct poise_err err;

    cr_assert_eq(memory_free_read(root, &mem, &err), -ENOENT);
    cr_assert(strstr(err.text, "MemAvailable"));
}

Test(memory, the_tightest_parent_counts)
{
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/user.slice/job\n");
    put("proc/self/mountinfo", MOUNT_V2);
    put("sys/fs/cgroup/user.slice/memory.max", "100000000\n");
    put("sys/fs/cgroup/user.slice/memory.current", "90000000\n");
    put("sys/fs/cgroup/user.slice/job/memory.max", "50000000\n");
    put("sys/fs/cgroup/user.slice/job/memory.current", "1000000\n");
    cr_assert_eq(read_free().bytes, 10000000);
    cr_assert(strstr(read_free().limit, "/sys/fs/cgroup/user.slice") != NULL);
    cr_assert(strstr(read_free().limit, "job") == NULL);
}

Test(memory, file_pages_that_a_loader_read_are_free)
{
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/job\n");
    put("proc/self/mountinfo", MOUNT_V2);
    put("sys/fs/cgroup/job/memory.max", "100000000\n");
    put("sys/fs/cgroup/job/memory.current", "100000000\n");
    put("sys/fs/cgroup/job/memory.stat", "anon 10\ninactive_anon 5\nactive_file 7\ninactive_file 60000000\n");
    cr_assert_eq(read_free().bytes, 60000000);
}

Test(memory, a_cgroup_without_limit_does_not_count)
{
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/job\n");
    put("proc/self/mountinfo", MOUNT_V2);
    put("sys/fs/cgroup/job/memory.max", "max\n");
    put("sys/fs/cgroup/job/memory.current", "100000000\n");
    cr_assert_str_eq(read_free().limit, "MemAvailable");
}

Test(memory, version_one)
{
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n");
    put("proc/self/mountinfo", MOUNT_V1);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "80000000\n");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "30000000\n");
    put("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 5000000\n");
    cr_assert_eq(read_free().bytes, 55000000);
}

Test(memory, a_container_sees_its_part_of_the_hierarchy)
{
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "4:memory:/docker/0123\n");
    put("proc/self/mountinfo", "35 31 0:32 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "64000000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
    cr_assert_eq(read_free().bytes, 60000000);
}

Test(memory, usage_above_the_limit_is_zero_free)
{
    put("proc/meminfo", MEMINFO);
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", MOUNT_V2);
    put("sys/fs/cgroup/memory.max", "100\n");
    put("sys/fs/cgroup/memory.current", "200\n");
    cr_assert_eq(read_free().bytes, 0);
}

Test(memory, the_budget_is_a_quarter_over_the_local_ranks)
{
    struct memory_free mem = { .bytes = 8ull << 30 };

    cr_assert_eq(memory_budget(&mem, 8), 256ull << 20);
    cr_assert_eq(memory_budget(&mem, 1), 2ull << 30);
    cr_assert_eq(memory_budget(&mem, 0), 2ull << 30);
}

Test(memory, too_much_is_refused_with_needed_and_available)
{
    struct poise_err err;

    cr_assert_eq(memory_check(1ull << 50, "send arena", &err), -ENOMEM);
    cr_assert(strstr(err.text, "send arena: needs 1.0 PB (1125899906842624 bytes)"), "%s", err.text);
    cr_assert(strstr(err.text, "are available"), "%s", err.text);
    cr_assert_eq(memory_check(4096, "send arena", &err), 0);
}

Test(memory, sizes_in_words)
{
    char text[MEMORY_TEXT];

    cr_assert_str_eq(memory_format(0, text), "0 bytes");
    cr_assert_str_eq(memory_format(1023, text), "1023 bytes");
    cr_assert_str_eq(memory_format(1536, text), "1.5 KB");
    cr_assert_str_eq(memory_format(200ull << 20, text), "200 MB");
    cr_assert_str_eq(memory_format(UINT64_MAX, text), "16.0 EB");
}
