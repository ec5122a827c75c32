/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a benchmark shares with its processes, in one mapped file: the samples, and for each crew (processes that do the
 * same work at the same time) whose turn it is and what the last turn took. Only one crew works at a time; the others
 * sleep, so that all can live side by side and take turns: noise of the machine then meets all alike.
 */
#ifndef POISE_BENCH_CREW_H
#define POISE_BENCH_CREW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/examples/payload.h"

#define BENCH_MAX_RANKS 8
#define BENCH_MAX_SAMPLES 4096 /* of a step, all ranks */
#define BENCH_SETS 3           /* buffers that copying and MPI go round, as the library goes round its segments */

enum { CREW_POISE, CREW_COPY, CREW_MPI, N_CREWS };

struct bench_sample { /* of every step the same */
    struct payload_size size;
    int64_t length;  /* what the planner balances */
    uint64_t bytes;  /* payload_bytes() */
    uint32_t rank;   /* where the plan puts it, and its position there: poise's crew writes them in its first turn */
    uint32_t place;
};

struct crew_rank { /* of the last turn, written by that rank */
    uint64_t begin_ns, end_ns;
    uint64_t cpu_ns;     /* of the process, between the two */
    uint64_t shuffle_ns;  /* poise: from the outcome's arrival to all assembled */
    uint64_t pipeline_ns; /* poise: from the last rank's submission to the same */
};

struct crew {
    _Atomic uint32_t turn; /* counts up; UINT32_MAX: go home */
    _Atomic uint32_t arrived, go, n_done;
    _Atomic uint32_t failed;
    char text[600]; /* why the first one failed */
    struct crew_rank ranks[BENCH_MAX_RANKS];
};

struct bench_board {
    int32_t driver; /* pid: who loses it goes home */
    uint32_t n_ranks, per_rank, micro_batch;
    uint32_t warm_turns;   /* at first, in which contents are checked and poise verifies hashes */
    uint32_t verify_every; /* poise, then */
    char algorithm[64], job[64], socket_dir[512];
    struct bench_sample samples[BENCH_MAX_SAMPLES]; /* [n_ranks][per_rank] */
    struct crew crews[N_CREWS];
};

/* What a rank of a crew does in a turn: 0, or a negative errno and a text. */
struct crew_work {
    int (*prepare)(void *context, uint32_t turn, struct poise_err *err); /* not measured; each counts from 1 */
    int (*work)(void *context, uint32_t turn, struct poise_err *err);    /* measured, begun by all ranks at once */
    int (*finish)(void *context, uint32_t turn, struct crew_rank *rank, struct poise_err *err); /* not measured */
};

uint64_t bench_now_ns(void);

/* Maps the file of that name; create: makes it, zeroed. NULL: errno. */
struct bench_board *bench_board_map(const char *path, bool create);

/* Takes part until the driver says that it is over, or dies. 0, or 1 after a failure, which is written to the crew. */
int crew_serve(struct bench_board *board, int crew, uint32_t rank, const struct crew_work *work, void *context);
void crew_fail(struct bench_board *board, int crew, uint32_t rank, const struct poise_err *err);

/* The driver's side. One look: true when the turn is done by all (or one failed); waits at most about 100 ms. */
void crew_begin(struct bench_board *board, int crew);
bool crew_done(struct bench_board *board, int crew);
void crew_dismiss(struct bench_board *board, int crew);

/* Private memory with all pages there, large ones if the system has them: what the library takes, too. NULL: none. */
void *bench_memory(uint64_t bytes);

/* Of this rank's samples as the plan has them, in delivered order: indices in board->samples; returns how many. */
uint32_t bench_received(const struct bench_board *board, uint32_t rank, uint32_t *ret_order);
/* Bytes of a rank's own samples, and of those that it receives. */
uint64_t bench_own_bytes(const struct bench_board *board, uint32_t rank);
uint64_t bench_received_bytes(const struct bench_board *board, uint32_t rank);
/* Builds the samples of a rank one after the other. samples, payloads: [per_rank], NULL where only the bytes count. */
void bench_build(const struct bench_board *board, uint32_t rank, uint64_t step, void *const *memory);

#endif
