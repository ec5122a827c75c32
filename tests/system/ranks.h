/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training processes for tests of the client: real processes, a loader whose every byte follows from (step, rank,
 * index), and a board in shared memory where each process notes what it got, so that the test sees that every sample
 * came exactly once.
 */
#ifndef POISE_TESTS_SYSTEM_RANKS_H
#define POISE_TESTS_SYSTEM_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include "poise.h"

#define RANKS_MAX     16
#define RANKS_STEPS   64
#define RANKS_SAMPLES 64 /* of a rank's step */

/* In a training process: ends it with status 1 and a line on standard error. */
#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: process %d: %s: ", __FILE__, __LINE__, (int)getpid(), #condition);                 \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

struct board { /* shared by the test and its processes; zero at the start */
    _Atomic uint32_t got[RANKS_STEPS][RANKS_MAX][RANKS_SAMPLES]; /* how often sample index of rank was delivered */
    _Atomic uint64_t weight_ppb[RANKS_STEPS]; /* sums over all ranks of weight_step x loss tokens, times 10^9 */
    _Atomic uint64_t arrival_ppb[RANKS_STEPS];
    _Atomic uint32_t flag[8]; /* the test's own */
};
struct board *board_new(void);
void board_free(struct board *board);

/* Waits until the flag is at least n, at most 30 s, else aborts. */
void board_wait(struct board *board, uint32_t flag, uint32_t n);
void board_raise(struct board *board, uint32_t flag);

struct ranks {
    uint32_t n;
    pid_t pid[RANKS_MAX];
};

struct rank_context {
    uint32_t rank, replica, n_ranks;
    const char *dir; /* of the sockets */
    struct board *board;
    const void *arg;
};

/* Starts a process that calls run() and ends with its result. */
pid_t rank_start(const struct rank_context *context, int (*run)(const struct rank_context *));

/* Exit status, or -signal. */
int rank_wait(pid_t pid);

/* n processes; all must end with 0. */
void ranks_run(uint32_t n, const char *dir, struct board *board, int (*run)(const struct rank_context *),
               const void *arg);

/* Options of a test's group: two phases, micro_batch_size 2, count free, timeouts in seconds. */
struct poise_options rank_options(const struct rank_context *context, const char *job);

/* Opens or ends the process. */
struct poise *rank_open(const struct poise_options *opt);
void rank_close(struct poise *p); /* must be 0 */

/* ----------------------------------------------------------------------------------------------------------- loader */

struct load; /* a step's samples of a rank */

#define LOAD_TEXT_ONLY 1u /* no sample has an image, and the fields of images are not declared */
#define LOAD_IN_ARENA  2u /* payload is built in memory of poise_alloc */

/* Declares the fields. */
void load_declare(struct poise *p, uint32_t flags);

/* Submits n samples of (step, rank). Returns what poise_submit returned. */
int load_submit(struct poise *p, uint64_t step, uint32_t rank, uint32_t n, uint32_t flags, struct poise_err *err);

/* Checks every byte of a batch and notes its samples on the board (NULL: does not). */
void load_check(const struct poise_batch *batch, struct board *board);

/* Reads all micro-batches of a step, checks and releases them. Returns the samples. */
uint32_t load_read(struct poise *p, uint32_t iterator, uint64_t step, struct board *board);

/* How many samples rank has in step when numbers vary: 0 to 7. */
uint32_t load_uneven(uint64_t step, uint32_t rank);

/* In the test: every sample of the step came exactly once, and the weights add up to 1. */
void board_check(const struct board *board, uint64_t step, uint32_t n_ranks,
                 uint32_t (*n_of)(uint64_t step, uint32_t rank));

#endif
