/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and mapping memfds. The order matters: compare with free memory, reserve every page with fallocate (a hole
 * would be a SIGBUS in the middle of a copy), map writable, and only then seal: F_SEAL_FUTURE_WRITE leaves the owner's
 * mapping as the only writable one for ever, without it a peer could punch holes. Pages come from the NUMA node of the
 * calling thread.
 */
#include "client/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/memory.h"
#include "daemon/planner/err.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_BYTES (2ull << 20) /* the size that MFD_HUGETLB takes by default on x86 and arm64 with 4 KB pages */
#define RESERVE_BYTES HUGE_BYTES /* at a time; about half a millisecond */
#define SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return bytes > UINT64_MAX - to ? UINT64_MAX : (bytes + to - 1) / to * to;
}

/* MFD_NOEXEC_SEAL is refused by older kernels, so it is tried first and left out then. */
static int create(const char *name, unsigned flags)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | flags);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    return fd < 0 ? -errno : fd;
}

/* In small steps: a signal ends fallocate without any progress, so a profiler's timer could keep a large one from ever
 * ending. */
static int reserve(int fd, uint64_t bytes)
{
    struct rlimit limit;

    /* Above this limit the kernel does not only fail: it sends SIGXFSZ, which kills. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return -EFBIG;
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = bytes - at < RESERVE_BYTES ? bytes - at : RESERVE_BYTES;

        if (fallocate(fd, 0, (off_t)at, (off_t)n) == 0)
            at += n;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

/* Maps writable with all page table entries there, so that no step meets a fault. */
static int map_own(int fd, uint64_t bytes, void **ret_base)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED)
        return -errno;
    if (madvise(base, bytes, MADV_DONTFORK) < 0) {
        int rc = -errno;

        munmap(base, bytes);
        return rc;
    }
    /* A wish: the pages are there, only their entries may come later. MAP_POPULATE would not make them writable. */
    madvise(base, bytes, MADV_POPULATE_WRITE);
    *ret_base = base;
    return 0;
}

/* A segment of exactly `bytes`; -errno, nothing left behind. */
static int make(const char *name, uint64_t bytes, unsigned flags, struct segment *ret_segment)
{
    void *base = NULL;
    int fd = create(name, flags), rc;

    if (fd < 0)
        return fd;
    rc = reserve(fd, bytes);
    if (rc < 0)
        goto fail;
    rc = map_own(fd, bytes, &base);
    if (rc < 0)
        goto fail;
    if (fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        rc = errno == EINVAL ? -ENOSYS : -errno;
        munmap(base, bytes);
        goto fail;
    }
    *ret_segment = (struct segment){ .base = base, .bytes = bytes, .fd = fd, .huge = flags & MFD_HUGETLB };
    return 0;
fail:
    close(fd);
    return rc;
}

int segment_new(const char *name, uint64_t bytes, uint32_t flags, struct segment *ret_segment, struct poise_err *err)
{
    char size[MEMORY_TEXT];
    uint64_t paged = round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    int rc;

    if (bytes == 0 || paged > INT64_MAX)
        return err_set(err, -EINVAL, "%s: a segment of %" PRIu64 " bytes cannot be made", name, bytes);
    /* Reserved huge pages are not counted as available: no check, fallocate says ENOSPC where they do not suffice. */
    if ((flags & SEGMENT_HUGE) && paged < INT64_MAX / 2 &&
        make(name, round_up(bytes, HUGE_BYTES), MFD_HUGETLB, ret_segment) == 0)
        return 0;
    rc = memory_check(paged, name, err);
    if (rc < 0)
        return rc;
    rc = make(name, paged, 0, ret_segment);
    if (rc == -ENOSYS)
        return err_set(err, rc,
                       "%s: this kernel cannot seal shared memory (memfd_create, F_SEAL_FUTURE_WRITE): Linux 5.1 or "
                       "later is needed", name);
    if (rc == -ENOSPC || rc == -ENOMEM)
        return err_set(err, -ENOMEM, "%s: needs %s (%" PRIu64 " bytes), the kernel has not so much shared memory left: "
                       "lower the batch or memory_budget", name, memory_format(paged, size), paged);
    if (rc == -EFBIG)
        return err_set(err, rc,
                       "%s: %s are above the limit of file sizes, which counts for shared memory: raise ulimit -f",
                       name, memory_format(paged, size));
    if (rc < 0)
        return err_set(err, rc, "%s: no segment of %s: %s", name, memory_format(paged, size), strerror(-rc));
    return 0;
}

void segment_fini(struct segment *segment)
{
    if (segment->base) {
        munmap(segment->base, segment->bytes);
        close(segment->fd);
    }
    *segment = (struct segment){ .fd = -1 };
}

void segment_child(struct segment *segment)
{
    if (segment->base && segment->fd >= 0)
        close(segment->fd);
    segment->base = NULL;
    segment->fd = -1;
}

/* Whether an offered descriptor can be read for ever without a fault. */
static int check_offer(int fd, uint64_t bytes, struct poise_err *err)
{
    struct stat st;
    int seals;

    if (fstat(fd, &st) < 0)
        return err_set(err, -errno, "an offered segment cannot be looked at: %s", strerror(errno));
    seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(st.st_mode) || seals < 0)
        return err_set(err, -EINVAL, "an offered segment is no memfd");
    if ((seals & F_SEAL_SHRINK) == 0 || (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) == 0)
        return err_set(err, -EPERM, "an offered segment is not sealed against shrinking and writing (seals 0x%x)",
                       seals);
    if (bytes == 0 || (uint64_t)st.st_size != bytes)
        return err_set(err, -EINVAL, "an offered segment has %" PRIu64 " bytes, its owner says %" PRIu64,
                       (uint64_t)st.st_size, bytes);
    return 0;
}

int segment_map(int fd, uint64_t bytes, const void **ret_base, struct poise_err *err)
{
    void *base = NULL;
    int rc;

    if (fd < 0)
        return err_set(err, -EINVAL, "an offer of a segment came without a descriptor");
    rc = check_offer(fd, bytes, err);
    if (rc == 0) {
        base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (base == MAP_FAILED) {
            rc = err_set(err, -errno, "a peer's segment of %" PRIu64 " bytes cannot be mapped: %s", bytes,
                         strerror(errno));
        } else {
            madvise(base, bytes, MADV_DONTFORK);
            *ret_base = base;
        }
    }
    close(fd);
    return rc;
}

void segment_unmap(const void *base, uint64_t bytes)
{
    if (base)
        munmap((void *)base, bytes);
}
