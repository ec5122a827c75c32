/* SPDX-License-Identifier: Apache-2.0 */
/* One segment of shared memory: what its owner may do, what nobody else may, and what is left afterwards: nothing. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/segment.h"
#include "samples.h"

static struct segment make(uint64_t bytes, uint32_t flags)
{
    struct segment segment;
    struct poise_err err;

    cr_assert(segment_new("test", bytes, flags, &segment, &err) == 0, "%s", err.text);
    return segment;
}

Test(segment, is_there_zeroed_and_goes_without_a_trace)
{
    int n_fds = samples_n_fds();
    struct segment segment = make(10000, 0);
    const unsigned char *bytes = segment.base;

    cr_assert(segment.bytes >= 10000 && segment.bytes % 4096 == 0);
    for (uint64_t i = 0; i < segment.bytes; i++)
        cr_assert_eq(bytes[i], 0);
    memset(segment.base, 7, segment.bytes);
    segment_fini(&segment);
    segment_fini(&segment);
    cr_assert_eq(samples_n_fds(), n_fds);
}

Test(segment, a_peer_reads_what_the_owner_writes_later)
{
    int n_fds = samples_n_fds();
    struct segment segment = make(4096, 0);
    const void *base;
    struct poise_err err;

    cr_assert(segment_map(dup(segment.fd), segment.bytes, &base, &err) == 0, "%s", err.text);
    strcpy(segment.base, "later");
    cr_assert_str_eq((const char *)base, "later");
    segment_unmap(base, segment.bytes);
    segment_fini(&segment);
    cr_assert_eq(samples_n_fds(), n_fds);
}

/* Sealed with SHRINK, GROW and SEAL alone, a memfd was mapped writable by a peer and a hole punched: the owner read
 * zeros. */
Test(segment, a_peer_can_neither_write_nor_punch_nor_shrink)
{
    struct segment segment = make(8192, 0);

    cr_assert(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0) == MAP_FAILED && errno == EPERM);
    cr_assert(fallocate(segment.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0);
    cr_assert(ftruncate(segment.fd, 0) < 0);
    cr_assert(ftruncate(segment.fd, 1 << 20) < 0);
    cr_assert(pwrite(segment.fd, "x", 1, 0) < 0);
    cr_assert(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
    segment_fini(&segment);
}

Test(segment, an_unsealed_offer_is_refused)
{
    int n_fds = samples_n_fds(), fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const void *base = NULL;
    struct poise_err err;

    cr_assert(ftruncate(fd, 4096) == 0);
    cr_assert_eq(segment_map(dup(fd), 4096, &base, &err), -EPERM);
    cr_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
    cr_assert_eq(segment_map(dup(fd), 4096, &base, &err), -EPERM);
    cr_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    cr_assert_eq(segment_map(dup(fd), 8192, &base, &err), -EINVAL, "its owner lies about the size");
    cr_assert_eq(segment_map(dup(fd), 0, &base, &err), -EINVAL);
    cr_assert(base == NULL);
    cr_assert_eq(segment_map(fd, 4096, &base, &err), 0);
    segment_unmap(base, 4096);
    cr_assert_eq(samples_n_fds(), n_fds, "an offer's descriptor is closed, refused or not");
}

Test(segment, what_is_no_memfd_is_refused)
{
    int n_fds = samples_n_fds(), fds[2];
    const void *base;
    struct poise_err err;

    cr_assert(pipe(fds) == 0);
    cr_assert_eq(segment_map(fds[0], 4096, &base, &err), -EINVAL);
    cr_assert_eq(segment_map(fds[1], 4096, &base, &err), -EINVAL);
    cr_assert_eq(segment_map(open("/dev/zero", O_RDONLY), 4096, &base, &err), -EINVAL);
    cr_assert_eq(segment_map(open("/proc/self/exe", O_RDONLY), 4096, &base, &err), -EINVAL);
    cr_assert_eq(segment_map(-1, 4096, &base, &err), -EINVAL);
    cr_assert_eq(samples_n_fds(), n_fds);
}

Test(segment, memory_short_is_an_error_that_says_needed_and_available)
{
    int n_fds = samples_n_fds();
    struct segment segment = { .fd = -1 };
    struct poise_err err;

    cr_assert_eq(segment_new("poise-arena", 1ull << 46, 0, &segment, &err), -ENOMEM);
    cr_assert(strstr(err.text, "needs 64.0 TB") && strstr(err.text, "available"), "%s", err.text);
    cr_assert(segment.base == NULL && segment.fd == -1);
    cr_assert_eq(segment_new("poise-arena", 0, 0, &segment, &err), -EINVAL);
    cr_assert_eq(segment_new("poise-arena", UINT64_MAX, 0, &segment, &err), -EINVAL);
    cr_assert_eq(segment_new("poise-arena", 1ull << 62, SEGMENT_HUGE, &segment, &err), -ENOMEM);
    cr_assert_eq(samples_n_fds(), n_fds);
}

/* A container's /dev/shm has 64 MB: a memfd does not count against it. */
Test(segment, a_hundred_megabytes_work_where_dev_shm_is_small)
{
    struct segment segment = make(100ull << 20, 0);
    unsigned char *bytes = segment.base;

    bytes[0] = bytes[segment.bytes - 1] = 1;
    segment_fini(&segment);
}

Test(segment, huge_pages_that_are_not_there_fall_back)
{
    struct segment segment = make(3ull << 20, SEGMENT_HUGE);

    memset(segment.base, 1, segment.bytes);
    if (segment.huge)
        cr_assert_eq(segment.bytes % (2ull << 20), 0);
    segment_fini(&segment);
}

Test(segment, nothing_is_mapped_in_a_child)
{
    struct segment segment = make(4096, 0);
    const void *base;
    pid_t pid;
    int status;

    cr_assert_eq(segment_map(dup(segment.fd), segment.bytes, &base, NULL), 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        bool mapped = samples_readable(segment.base) || samples_readable(base);
        int fd = segment.fd;

        segment_child(&segment);
        _exit(mapped ? 1 : fcntl(fd, F_GETFD) >= 0 ? 2 : 0);
    }
    cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0);
    cr_assert(samples_readable(segment.base) && samples_readable(base));
    segment_unmap(base, segment.bytes);
    segment_fini(&segment);
}

static void ignore(int number)
{
    (void)number;
}

/* A profiler's timer interrupts fallocate, which then has done nothing: in one piece it would never end. */
Test(segment, a_timer_s_signals_do_not_keep_a_large_segment_from_coming, .timeout = 60)
{
    struct sigaction action = { .sa_handler = ignore };
    struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { { 0, 0 }, { 0, 0 } };
    struct segment segment;

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    segment = make(200ull << 20, 0);
    setitimer(ITIMER_REAL, &never, NULL);
    segment_fini(&segment);
}

Test(segment, a_limit_of_file_sizes_is_an_error_and_not_sigxfsz)
{
    struct rlimit limit = { 1 << 20, 1 << 20 };
    struct segment segment = { .fd = -1 };
    struct poise_err err;

    fflush(NULL);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(segment_new("poise-arena", 2 << 20, 0, &segment, &err), -EFBIG);
    cr_assert(strstr(err.text, "ulimit -f"), "%s", err.text);
    segment = make(1 << 20, 0);
    segment_fini(&segment);
}
