/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board of the demo. Every entry has one writer: a rank writes its own steps; a delivery is counted atomically and
 * then belongs to whoever counted first, so a sample that came twice is seen and nothing is torn. poisectl reads when
 * the trainers have ended.
 */
#include "client/examples/demo_board.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LONE_NS_PER_TOKEN 1000.0 /* without a board: a few milliseconds a micro-batch */
#define NOISE_LIMIT 3.0          /* standard deviations: no step takes negative time */

static void place(struct board *board)
{
    const size_t n = (size_t)board->head->n_ranks * board->head->n_steps;

    board->ranks = (struct board_rank *)(board->head + 1);
    board->steps = (struct board_step *)(board->ranks + board->head->n_ranks);
    board->samples = (struct board_sample *)(board->steps + n);
    board->deliveries = (struct board_delivery *)(board->samples + n * board->head->n_samples);
}

static uint64_t bytes_of(uint32_t n_ranks, uint32_t n_steps, uint32_t n_samples)
{
    const uint64_t n = (uint64_t)n_ranks * n_steps;

    return sizeof(struct board_head) + n_ranks * sizeof(struct board_rank) + n * sizeof(struct board_step) +
           n * n_samples * (sizeof(struct board_sample) + sizeof(struct board_delivery));
}

static int make_barrier(struct board_head *head)
{
    pthread_barrierattr_t attr;
    int rc = pthread_barrierattr_init(&attr);

    if (rc == 0)
        rc = pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (rc == 0)
        rc = pthread_barrier_init(&head->barrier, &attr, head->n_ranks);
    return -rc;
}

int board_new(uint32_t n_ranks, uint32_t n_steps, uint32_t n_samples, struct board *ret_board, int *ret_fd)
{
    const uint64_t bytes = bytes_of(n_ranks, n_steps, n_samples);
    struct board board;
    int fd = memfd_create("poise-demo", MFD_CLOEXEC), rc;

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) < 0) {
        rc = -errno;
        goto fail;
    }
    board.head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board.head == MAP_FAILED) {
        rc = -errno;
        goto fail;
    }
    *board.head = (struct board_head){.bytes = bytes, .n_ranks = n_ranks, .n_steps = n_steps, .n_samples = n_samples};
    place(&board);
    rc = make_barrier(board.head);
    if (rc < 0) {
        munmap(board.head, bytes);
        goto fail;
    }
    *ret_board = board;
    *ret_fd = fd;
    return 0;
fail:
    close(fd);
    return rc;
}

int board_map(int fd, struct board *ret_board)
{
    struct stat stat;
    struct board board;

    if (fstat(fd, &stat) < 0)
        return -errno;
    if (stat.st_size < (off_t)sizeof *board.head)
        return -EINVAL;
    board.head = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board.head == MAP_FAILED)
        return -errno;
    if (board.head->bytes != (uint64_t)stat.st_size) {
        munmap(board.head, (size_t)stat.st_size);
        return -EINVAL;
    }
    place(&board);
    *ret_board = board;
    return 0;
}

void board_fini(struct board *board)
{
    if (board->head)
        munmap(board->head, board->head->bytes);
    board->head = NULL;
}

uint64_t board_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool known(const struct board *board, const struct payload_origin *origin)
{
    return origin->rank < board->head->n_ranks && origin->step < board->head->n_steps &&
           origin->index < board->head->n_samples;
}

size_t board_at(const struct board *board, const struct payload_origin *origin)
{
    return (origin->rank * (size_t)board->head->n_steps + origin->step) * board->head->n_samples + origin->index;
}

struct payload_size board_size(const struct board *board, const struct payload_origin *origin)
{
    if (!board)
        return payload_any_size(origin);
    return known(board, origin) ? board->samples[board_at(board, origin)].size : (struct payload_size){0};
}

/* The same for a rank and step in every run: the sum of twelve uniform numbers is close enough to a normal one. */
static double noise(const struct board_head *head, uint32_t rank, uint64_t step)
{
    double sum = -6;

    for (uint32_t i = 0; i < 12; i++) {
        const struct payload_origin at = {rank, i + 1, head->seed + step};
        sum += (double)(payload_tag(&at) >> 11) / 9007199254740992.0; /* 2^53 */
    }
    return 1 + fmax(-NOISE_LIMIT, fmin(NOISE_LIMIT, sum)) * head->noise_ppm * 1e-6;
}

uint64_t board_compute_ns(const struct board *board, uint32_t rank, const struct poise_batch *batch)
{
    double truth = 0, tokens = 0;

    for (uint32_t s = 0; s < batch->n_samples; s++) {
        const struct payload_origin origin = {batch->rows[s].origin_rank, batch->rows[s].origin_index, batch->step};
        const struct payload_size size = board_size(board, &origin);
        tokens += (double)payload_tokens(&size);
        if (board && known(board, &origin))
            truth += board->samples[board_at(board, &origin)].truth;
    }
    if (!board)
        return (uint64_t)(tokens * LONE_NS_PER_TOKEN);
    return (uint64_t)((board->head->fixed_ns / batch->n_micro_batches + board->head->variable_ns * truth) *
                      noise(board->head, rank, batch->step));
}

void board_deliver(struct board *board, uint32_t rank, const struct poise_batch *batch, const bool *ok)
{
    struct board_step *step;

    if (!board || batch->step >= board->head->n_steps)
        return;
    step = &board->steps[(size_t)rank * board->head->n_steps + batch->step];
    for (uint32_t s = 0; s < batch->n_samples; s++) {
        const struct payload_origin origin = {batch->rows[s].origin_rank, batch->rows[s].origin_index, batch->step};
        struct board_delivery *delivery;
        if (!known(board, &origin)) {
            step->strays++;
            continue;
        }
        delivery = &board->deliveries[board_at(board, &origin)];
        step->weight += batch->rows[s].weight_step * (double)batch->rows[s].loss_tokens;
        if (atomic_fetch_add(&delivery->count, 1) > 0)
            continue;
        delivery->rank = rank;
        delivery->micro_batch = batch->micro_batch;
        delivery->corrupt = !ok[s];
    }
    step->n_micro_batches = batch->n_micro_batches;
    step->cost_before = batch->totals->cost_before;
    step->cost_after = batch->totals->cost_after;
}

static uint64_t meet(struct board *board, _Atomic uint64_t *last_ns)
{
    uint64_t now_ns = board_now_ns(), seen_ns = atomic_load(last_ns);

    while (seen_ns < now_ns && !atomic_compare_exchange_weak(last_ns, &seen_ns, now_ns))
        continue;
    pthread_barrier_wait(&board->head->barrier);
    return atomic_load(last_ns);
}

uint64_t board_start(struct board *board)
{
    return board ? meet(board, &board->ranks[0].start_ns) : board_now_ns();
}

uint64_t board_sync(struct board *board, uint64_t step)
{
    return board && step < board->head->n_steps ? meet(board, &board->steps[step].end_ns) : board_now_ns();
}

void board_step_done(struct board *board, uint32_t rank, uint64_t step, uint64_t wait_ns,
                     const struct poise_stats *stats)
{
    struct board_step *done;

    if (!board || step >= board->head->n_steps)
        return;
    done = &board->steps[(size_t)rank * board->head->n_steps + step];
    done->wait_ns = wait_ns;
    done->pipeline_ns = stats->pipeline_ns_last;
    atomic_store(&board->ranks[rank].steps, (uint32_t)step + 1);
}

void board_fail(struct board *board, uint32_t rank, const char *text)
{
    if (!board || atomic_load(&board->ranks[rank].failed)) /* the first failure is the cause of the next */
        return;
    snprintf(board->ranks[rank].text, sizeof board->ranks[rank].text, "%s", text);
    atomic_store(&board->ranks[rank].failed, 1);
}
