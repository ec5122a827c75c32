/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `poisectl demo` shares with its trainers, in one memfd: the size and true cost of every sample, a barrier in the
 * place of a gradient sync, and what the trainers saw. A real trainer has none of this. Functions take a NULL board
 * where trainer runs on its own: sizes are made up, and nothing is written.
 */
#ifndef POISE_EXAMPLES_DEMO_BOARD_H
#define POISE_EXAMPLES_DEMO_BOARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/examples/payload.h"

struct board_sample { /* written by poisectl */
    struct payload_size size;
    uint64_t cost, bytes; /* the planner's cost; payload */
    double truth;         /* its true cost over the mean of a rank and step */
};

struct board_delivery { /* of one sample, written by who received it */
    _Atomic uint32_t count;
    uint32_t rank, micro_batch;
    uint32_t corrupt;
};

struct board_step {                   /* of one rank and step, written by that rank */
    _Atomic uint64_t end_ns;          /* rank 0's only: when the last rank came to the barrier */
    uint64_t wait_ns;                 /* inside poise_next */
    uint64_t pipeline_ns;             /* poise_stats: from the last rank's submission to all assembled */
    uint64_t cost_before, cost_after; /* as predicted; the same on every rank */
    uint32_t n_micro_batches, strays; /* samples that nobody sent */
    double weight;                    /* sum of weight_step x loss_tokens */
};

struct board_rank {         /* written by that rank */
    _Atomic uint32_t steps; /* done */
    _Atomic uint32_t failed;
    _Atomic uint64_t start_ns; /* rank 0's only: the same of the barrier before the first step */
    char text[512];            /* why it failed */
};

struct board_head {
    uint64_t bytes;                       /* of the whole board */
    uint32_t n_ranks, n_steps, n_samples; /* samples a rank and step */
    uint32_t noise_ppm;                   /* standard deviation of a rank's step */
    uint64_t seed;                        /* of the noise */
    double fixed_ns, variable_ns;         /* a step's compute: fixed, and times the sum of truths */
    pthread_barrier_t barrier;            /* of all trainers */
};

struct board { /* addresses in this process */
    struct board_head *head;
    struct board_rank *ranks;          /* [n_ranks] */
    struct board_step *steps;          /* [n_ranks][n_steps] */
    struct board_sample *samples;      /* [n_ranks][n_steps][n_samples] */
    struct board_delivery *deliveries; /* likewise */
};

/* poisectl: makes one, filled with zeros, with a barrier for n_ranks. *ret_fd: close() it. -errno. */
int board_new(uint32_t n_ranks, uint32_t n_steps, uint32_t n_samples, struct board *ret_board, int *ret_fd);
/* trainer: maps the one it inherited. -errno, -EINVAL where it is not one. */
int board_map(int fd, struct board *ret_board);
void board_fini(struct board *board);

uint64_t board_now_ns(void);

/* The place of a sample in samples and deliveries; it must exist. */
size_t board_at(const struct board *board, const struct payload_origin *origin);
struct payload_size board_size(const struct board *board, const struct payload_origin *origin);

/* How long the "computation" of a micro-batch takes on this rank. */
uint64_t board_compute_ns(const struct board *board, uint32_t rank, const struct poise_batch *batch);

/* Notes what came, and whether it was as sent: ok[batch->n_samples]. */
void board_deliver(struct board *board, uint32_t rank, const struct poise_batch *batch, const bool *ok);
void board_step_done(struct board *board, uint32_t rank, uint64_t step, uint64_t wait_ns,
                     const struct poise_stats *stats);
/* Wait for all ranks, before the first step and behind each. Return when the last one came: what follows begins then,
 * also on a rank that the kernel wakes late. */
uint64_t board_start(struct board *board);
uint64_t board_sync(struct board *board, uint64_t step);
void board_fail(struct board *board, uint32_t rank, const char *text);

#endif
