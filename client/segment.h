/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One segment of shared memory: an anonymous memfd, all its pages there, mapped writable by its owner and sealed so
 * that nobody else can write, shrink or punch it. Not in the child of a fork, no name that could be left behind.
 */
#ifndef POISE_CLIENT_SEGMENT_H
#define POISE_CLIENT_SEGMENT_H

#include <stdbool.h>

#include "poise.h"

struct segment {
    void *base;     /* NULL: none */
    uint64_t bytes; /* a multiple of the page size */
    int fd;         /* the owner's, kept so that it can be offered again; -1: none */
    bool huge;      /* has huge pages */
};

#define SEGMENT_HUGE 1u /* flags: try reserved huge pages; where there are none, ordinary ones (see `huge`) */

/*
 * Makes one of at least `bytes` (rounded up to pages). `name` shows in /proc/PID/maps. Blocks while the kernel clears
 * the pages (about 3 GB a second). *ret_segment: segment_fini(). Errors: -ENOMEM (says needed and available), -EMFILE,
 * -EINVAL 0 bytes, -ENOSYS a kernel without memfd or F_SEAL_FUTURE_WRITE (before 5.1).
 */
int segment_new(const char *name, uint64_t bytes, uint32_t flags, struct segment *ret_segment, struct poise_err *err);

/* Unmaps, closes, and makes it none. */
void segment_fini(struct segment *segment);

/* In the child of a fork: closes the descriptor (the mapping is not there). Async-signal-safe. */
void segment_child(struct segment *segment);

/*
 * Maps somebody else's segment read-only, populated, not for children of a fork. Takes fd always: it is closed on
 * return, with success or without. `bytes` is what its owner claims. Errors: -EPERM it is not sealed against shrinking
 * and writing (an access could fault later), -EINVAL its size differs or it is no memfd, -ENOMEM. *ret_base: caller
 * unmaps with segment_unmap().
 */
int segment_map(int fd, uint64_t bytes, const void **ret_base, struct poise_err *err);
void segment_unmap(const void *base, uint64_t bytes);

#endif
