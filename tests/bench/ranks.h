/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of bench_shuffle; each serves its crew until it is over and returns its exit status. */
#ifndef POISE_BENCH_RANKS_H
#define POISE_BENCH_RANKS_H

#include "tests/bench/crew.h"

/* A training process: submits samples built in memory of poise_alloc(), takes all micro-batches. */
int poise_rank(struct bench_board *board, uint32_t rank);

/* Copies as many bytes as the plan brings to this rank, from memory shared with the next rank into its own. shared_fd:
 * BENCH_SETS x n_ranks areas of area_bytes. */
int copy_rank(struct bench_board *board, uint32_t rank, int shared_fd, uint64_t area_bytes);

#endif
