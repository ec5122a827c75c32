/* SPDX-License-Identifier: Apache-2.0 */
/* Turns over futexes in a shared file: nobody spins while another crew is measured. See crew.h. */
#include "tests/bench/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OVER UINT32_MAX
#define LOOK_NS 100000000 /* between two looks whether others still live */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bench_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

struct bench_board *bench_board_map(const char *path, bool create)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    void *board = MAP_FAILED;

    if (fd < 0)
        return NULL;
    if (!create || ftruncate(fd, sizeof(struct bench_board)) == 0)
        board = mmap(NULL, sizeof(struct bench_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return board == MAP_FAILED ? NULL : board;
}

static void wait_change(_Atomic uint32_t *word, uint32_t seen)
{
    const struct timespec most = {.tv_nsec = LOOK_NS};

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

static void wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ----------------------------------------------------------------------------------------------------------- a rank */

static bool orphaned(const struct bench_board *board)
{
    return kill(board->driver, 0) < 0 && errno == ESRCH;
}

void crew_fail(struct bench_board *board, int crew, uint32_t rank, const struct poise_err *err)
{
    struct crew *c = &board->crews[crew];
    uint32_t none = 0;

    if (atomic_compare_exchange_strong(&c->failed, &none, 1)) {
        snprintf(c->text, sizeof c->text, "rank %u: %s", rank, err->text);
        atomic_store(&c->failed, 2);
        wake_all(&c->n_done);
    }
}

/* All ranks of the crew begin together. */
static void meet(struct bench_board *board, struct crew *c, uint32_t turn)
{
    if (atomic_fetch_add(&c->arrived, 1) + 1 == board->n_ranks) {
        atomic_store(&c->go, turn);
        wake_all(&c->go);
    }
    for (uint32_t seen = atomic_load(&c->go); seen != turn && !atomic_load(&c->failed); seen = atomic_load(&c->go)) {
        wait_change(&c->go, seen);
        if (orphaned(board))
            _exit(1);
    }
}

struct preparation {
    const struct crew_work *work;
    void *context;
    uint32_t turn;
    struct poise_err *err;
    int rc;
};

static void *prepare(void *arg)
{
    struct preparation *p = arg;

    p->rc = p->work->prepare(p->context, p->turn, p->err);
    return NULL;
}

/* By a thread of its own: schedulers put off who has just written megabytes, and who slept (as the library's thread
 * that copies has) comes first. So all that is measured has slept. */
static int prepare_apart(const struct crew_work *work, void *context, uint32_t turn, struct poise_err *err)
{
    struct preparation p = {work, context, turn, err, -EAGAIN};
    pthread_t thread;

    if (pthread_create(&thread, NULL, prepare, &p) != 0) {
        snprintf(err->text, sizeof err->text, "no thread to prepare with");
        return -EAGAIN;
    }
    pthread_join(thread, NULL);
    return p.rc;
}

static int take_turn(struct bench_board *board, struct crew *c, uint32_t rank, uint32_t turn,
                     const struct crew_work *work, void *context, struct poise_err *err)
{
    struct crew_rank *mine = &c->ranks[rank];
    uint64_t cpu_ns;
    int rc = prepare_apart(work, context, turn, err);

    if (rc < 0)
        return rc;
    meet(board, c, turn);
    mine->shuffle_ns = 0;
    cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    mine->begin_ns = bench_now_ns();
    rc = work->work(context, turn, err);
    mine->end_ns = bench_now_ns();
    mine->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
    return rc < 0 ? rc : work->finish(context, turn, mine, err);
}

int crew_serve(struct bench_board *board, int crew, uint32_t rank, const struct crew_work *work, void *context)
{
    struct crew *c = &board->crews[crew];
    struct poise_err err = {.text = "no reason told"};

    for (uint32_t done = 0;;) {
        uint32_t turn = atomic_load(&c->turn);
        if (turn == OVER)
            return 0;
        if (turn == done) {
            wait_change(&c->turn, turn);
            if (orphaned(board))
                return 1;
            continue;
        }
        done = turn;
        if (take_turn(board, c, rank, turn, work, context, &err) < 0) {
            crew_fail(board, crew, rank, &err);
            return 1;
        }
        if (atomic_fetch_add(&c->n_done, 1) + 1 == board->n_ranks)
            wake_all(&c->n_done);
    }
}

/* ------------------------------------------------------------------------------------------------------- the driver */

void crew_begin(struct bench_board *board, int crew)
{
    struct crew *c = &board->crews[crew];

    atomic_store(&c->arrived, 0);
    atomic_store(&c->n_done, 0);
    atomic_fetch_add(&c->turn, 1);
    wake_all(&c->turn);
}

bool crew_done(struct bench_board *board, int crew)
{
    struct crew *c = &board->crews[crew];
    uint32_t seen = atomic_load(&c->n_done);

    if (seen < board->n_ranks && atomic_load(&c->failed) != 2)
        wait_change(&c->n_done, seen);
    return atomic_load(&c->n_done) == board->n_ranks || atomic_load(&c->failed) == 2;
}

void crew_dismiss(struct bench_board *board, int crew)
{
    atomic_store(&board->crews[crew].turn, OVER);
    wake_all(&board->crews[crew].turn);
}

/* ------------------------------------------------------------------------------------------------------ the samples */

void *bench_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) < 0)
        memset(memory, 1, bytes);
    return memory;
}

uint32_t bench_received(const struct bench_board *board, uint32_t rank, uint32_t *ret_order)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < board->n_ranks * board->per_rank; s++)
        if (board->samples[s].rank == rank) {
            ret_order[board->samples[s].place] = s;
            n++;
        }
    return n;
}

uint64_t bench_own_bytes(const struct bench_board *board, uint32_t rank)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < board->per_rank; i++)
        bytes += board->samples[rank * board->per_rank + i].bytes;
    return bytes;
}

uint64_t bench_received_bytes(const struct bench_board *board, uint32_t rank)
{
    uint64_t bytes = 0;

    for (uint32_t s = 0; s < board->n_ranks * board->per_rank; s++)
        bytes += board->samples[s].rank == rank ? board->samples[s].bytes : 0;
    return bytes;
}

void bench_build(const struct bench_board *board, uint32_t rank, uint64_t step, void *const *memory)
{
    for (uint32_t i = 0; i < board->per_rank; i++) {
        const struct payload_origin origin = {rank, i, step};
        struct payload payload;
        struct poise_sample sample;

        payload_build(&origin, &board->samples[rank * board->per_rank + i].size, memory[i], &payload, &sample);
    }
}
