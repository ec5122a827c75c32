/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs under ThreadSanitizer share. Criterion cannot start under it, so these are plain programs: EXPECT()
 * ends them with status 1, and the loader of the system tests (tests/system/load.c) checks every byte.
 */
#ifndef POISE_TESTS_THREAD_RIG_H
#define POISE_TESTS_THREAD_RIG_H

#include <pthread.h>

#include "tests/system/ranks.h"

/* a thread that runs; after some minutes the program ends itself: nothing here takes that long. */
void rig_thread(pthread_t *thread, void *(*run)(void *), void *context);
void rig_join(const pthread_t *threads, uint32_t n);

/* Options of rank `rank` of `n`: two phases as the loader's samples have, two iterators, 4 MB of memory. */
struct poise_options rig_options(const char *dir, const char *job, uint32_t rank, uint32_t n);

/*
 * Opens all ranks of a group in this process, each in a thread of its own, as each waits for the others, and declares
 * the loader's fields.
 */
void rig_open(const char *dir, const char *job, uint32_t n, struct poise **ret_handles);

/* Closes them, each in a thread of its own; every one must return 0, or -EINTR: the last poise_interrupt() may
 * have found nobody waiting. */
void rig_close(struct poise **handles, uint32_t n);

#endif
