/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine as a rank finds it: kernel features that the library cannot do without (they are tried, as a sandbox may
 * refuse what the kernel has), limits of this process, which a rank inherits from the same shell, and memory.
 */
#include "client/ctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "client/memory.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

#define MEMORY_LITTLE (1ull << 30)   /* a budget of a quarter of less holds few images */
#define FILES_FEW 1024               /* a rank needs a few dozen and one a peer; loaders and frameworks take hundreds */
#define FILES_NONE 128
#define SEGMENT_LITTLE (64ull << 20) /* about the smallest arena of use */

/* ----------------------------------------------------------------------------------------------------------- kernel */

static void check_kernel(struct doctor *doctor)
{
    struct utsname name;

    if (uname(&name) == 0)
        doctor_say(doctor, "kernel", DOCTOR_OK, NULL, "%s %s on %s", name.sysname, name.release, name.machine);
}

/* What is wrong with a sealed segment; NULL: nothing. The owner's mapping must go on writing, nobody else may begin. */
static const char *try_seals(int fd, size_t bytes)
{
    char *own, *other;

    if (ftruncate(fd, (off_t)bytes) < 0)
        return "its size cannot be set";
    own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (own == MAP_FAILED)
        return "it cannot be mapped";
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        munmap(own, bytes);
        return "F_SEAL_FUTURE_WRITE is refused";
    }
    memset(own, 'p', bytes);
    munmap(own, bytes);
    other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (other != MAP_FAILED) {
        munmap(other, bytes);
        return "it can be mapped writable in spite of F_SEAL_FUTURE_WRITE";
    }
    if (pwrite(fd, "q", 1, 0) == 1)
        return "it can be written in spite of F_SEAL_FUTURE_WRITE";
    other = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (other == MAP_FAILED)
        return "it cannot be mapped read-only once it is sealed";
    const bool same = other[bytes - 1] == 'p';
    munmap(other, bytes);
    return same ? NULL : "a reader does not see what was written";
}

static void check_seals(struct doctor *doctor)
{
    const char *wrong;
    int fd = memfd_create("poise doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0) {
        doctor_say(doctor, "memfd", DOCTOR_FAIL, "allow memfd_create (seccomp of the container?)", "memfd_create: %s",
                   strerror(errno));
        return;
    }
    wrong = try_seals(fd, (size_t)sysconf(_SC_PAGESIZE));
    close(fd);
    if (wrong)
        doctor_say(doctor, "memfd", DOCTOR_FAIL, "Linux 5.1 or later is needed, without a sandbox in its place",
                   "a shared segment: %s", wrong);
    else
        doctor_say(doctor, "memfd", DOCTOR_OK, NULL, "segments can be sealed: peers read, only the owner writes");
}

static void check_pidfd(struct doctor *doctor)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd < 0) {
        doctor_say(doctor, "pidfd", DOCTOR_WARN, "Linux 5.3 or later, or allow pidfd_open in the container's seccomp",
                   "pidfd_open: %s: poised sees a death only by the end of its connection", strerror(errno));
        return;
    }
    close(fd);
    doctor_say(doctor, "pidfd", DOCTOR_OK, NULL, "poised sees at once that a process died");
}

/* ----------------------------------------------------------------------------------------------------------- limits */

static void check_files(struct doctor *doctor)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    const bool few = limit.rlim_cur < FILES_FEW;
    doctor_say(doctor, "descriptors",
               limit.rlim_cur < FILES_NONE ? DOCTOR_FAIL : few ? DOCTOR_WARN : DOCTOR_OK,
               few ? "ulimit -n 65536, or LimitNOFILE= of the unit that starts the job" : NULL,
               "%llu open files (hard limit %llu)", (unsigned long long)limit.rlim_cur,
               (unsigned long long)limit.rlim_max);
}

static void check_file_size(struct doctor *doctor)
{
    static const char todo[] = "ulimit -f unlimited: it also limits shared memory, and to be above it kills";
    char text[MEMORY_TEXT];
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY)
        doctor_say(doctor, "file size", DOCTOR_OK, NULL, "no limit on the size of a segment");
    else
        doctor_say(doctor, "file size", limit.rlim_cur < SEGMENT_LITTLE ? DOCTOR_FAIL : DOCTOR_WARN, todo,
                   "a segment has at most %s (RLIMIT_FSIZE)", memory_format(limit.rlim_cur, text));
}

/* ----------------------------------------------------------------------------------------------------------- memory */

static void check_memory(struct doctor *doctor)
{
    char free_text[MEMORY_TEXT], budget[MEMORY_TEXT];
    struct memory_free mem;
    struct poise_err err = {0};

    if (memory_free_read("", &mem, &err) < 0) {
        doctor_say(doctor, "memory", DOCTOR_WARN, "mount /proc in the container", "%s", err.text);
        return;
    }
    const bool little = mem.bytes < MEMORY_LITTLE, cgroup = strcmp(mem.limit, "MemAvailable") != 0;
    doctor_say(doctor, "memory", mem.bytes <= MEMORY_RESERVE ? DOCTOR_FAIL : little ? DOCTOR_WARN : DOCTOR_OK,
               little ? "free memory, raise the job's limit, or set memory_budget" : NULL,
               "%s are free; ranks here share %s by default", memory_format(mem.bytes, free_text),
               memory_format(memory_budget(&mem, 1), budget));
    doctor_say(doctor, "cgroup", DOCTOR_OK, NULL, cgroup ? "the memory of %s is what limits" :
               "no cgroup leaves less than the machine has (%s)", mem.limit);
}

/* The first line of a file of the kernel; false where it is not there. */
static bool read_line(const char *path, char *text, int n_text)
{
    FILE *file = fopen(path, "re");
    bool is_read = file && fgets(text, n_text, file);

    if (file)
        fclose(file);
    if (is_read)
        text[strcspn(text, "\n")] = 0;
    return is_read;
}

static void check_huge_pages(struct doctor *doctor)
{
    char shared[256], own[256], reserved[64];

    if (!read_line("/sys/kernel/mm/transparent_hugepage/enabled", own, sizeof own) ||
        !read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared, sizeof shared)) {
        doctor_say(doctor, "huge pages", DOCTOR_OK, NULL, "the kernel has none: copies take somewhat longer");
        return;
    }
    if (!read_line("/proc/sys/vm/nr_hugepages", reserved, sizeof reserved))
        strcpy(reserved, "0");
    const bool never = strstr(own, "[never]") != NULL;
    doctor_say(doctor, "huge pages", never ? DOCTOR_WARN : DOCTOR_OK,
               never ? "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled: it costs only speed" : NULL,
               "transparent: %s; of shared memory: %s; reserved: %s", own, shared, reserved);
}

/* ------------------------------------------------------------------------------------------------------------ cores */

/* Of the cgroup that a container sees as its root; elsewhere the file is not there. 0: no limit. */
static double cpu_quota(void)
{
    double quota, period;
    char text[128];

    if (!read_line("/sys/fs/cgroup/cpu.max", text, sizeof text) || sscanf(text, "%lf %lf", &quota, &period) != 2)
        return 0;
    return period > 0 ? quota / period : 0;
}

static void check_cores(struct doctor *doctor)
{
    const double quota = cpu_quota();
    cpu_set_t *set = CPU_ALLOC(16384);
    long n = sysconf(_SC_NPROCESSORS_ONLN), may = n;
    static const char todo[] = "give the job more cores: each rank has a thread beside its trainer, and poised its own";

    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(16384), set) == 0)
        may = CPU_COUNT_S(CPU_ALLOC_SIZE(16384), set);
    CPU_FREE(set);
    const bool few = may < 2 || (quota > 0 && quota < 2);
    if (quota > 0)
        doctor_say(doctor, "cores", few ? DOCTOR_WARN : DOCTOR_OK, few ? todo : NULL,
                   "%ld of %ld cores, and time of %.1f by the cgroup", may, n, quota);
    else
        doctor_say(doctor, "cores", few ? DOCTOR_WARN : DOCTOR_OK, few ? todo : NULL, "%ld of %ld cores", may, n);
}

void doctor_machine(struct doctor *doctor)
{
    check_kernel(doctor);
    check_seals(doctor);
    check_pidfd(doctor);
    check_files(doctor);
    check_file_size(doctor);
    check_memory(doctor);
    check_huge_pages(doctor);
    check_cores(doctor);
}
