/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory is free. At a cgroup's limit fallocate on shared memory does not fail: it calls the OOM killer. So
 * whoever wants memory asks here first.
 */
#ifndef POISE_CLIENT_MEMORY_H
#define POISE_CLIENT_MEMORY_H

#include "poise.h"

struct memory_free {
    uint64_t bytes;  /* the least of MemAvailable and, for the own cgroup and each parent, limit - usage + inactive file
                      * pages (those are given back without cost; a loader fills them to the limit) */
    char limit[256]; /* what says so: "MemAvailable", or the path of the cgroup */
};

/* root: "" for this machine; tests give a folder that has proc/ and sys/ of their own. Cgroups that cannot be read do
 * not count. Errors: -ENOENT where not even MemAvailable can be read. */
int memory_free_read(const char *root, struct memory_free *ret_free, struct poise_err *err);

/* Fails with -ENOMEM where `bytes` for `what` ("send arena segment") are not free now: says needed, available and what
 * limits. Leaves MEMORY_RESERVE to the rest of the machine. Where nothing can be read it passes. */
int memory_check(uint64_t bytes, const char *what, struct poise_err *err);
#define MEMORY_RESERVE (64ull << 20) /* page tables, sockets and other processes live on it while we populate */

/* The default budget of a rank: a quarter of what is free, over the local ranks (0 is taken as 1). */
uint64_t memory_budget(const struct memory_free *mem, uint32_t n_local_ranks);

/* "3.2 GB" (powers of 1,024) for messages. Returns text. */
#define MEMORY_TEXT 24
const char *memory_format(uint64_t bytes, char text[MEMORY_TEXT]);

#endif
