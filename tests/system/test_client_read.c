/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: several iterators, batches that are held, memory that they fill, several threads; and closing in the middle.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

TestSuite(client_read, .init = rig_begin, .fini = rig_end);

static int iterators(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "iterators");
    opt.n_iterators = 3;
    struct poise *p = rank_open(&opt);

    load_declare(p, 0);
    for (uint64_t step = 0; step < 6; step++) {
        rig_submit(p, step, c->rank, 6, 0);
        if (step == 0)
            continue;
        for (uint32_t iterator = 0; iterator < 3; iterator++) /* one step behind */
            load_read(p, iterator, step - 1, iterator == 2 ? c->board : NULL);
    }
    for (uint32_t iterator = 0; iterator < 3; iterator++)
        load_read(p, iterator, 5, iterator == 2 ? c->board : NULL);
    rank_close(p);
    return 0;
}

static uint32_t always_6(uint64_t step, uint32_t rank)
{
    (void)step, (void)rank;
    return 6;
}

Test(client_read, every_iterator_reads_every_micro_batch)
{
    ranks_run(2, rig.daemon.dir, rig.board, iterators, NULL);
    for (uint64_t step = 0; step < 6; step++)
        board_check(rig.board, step, 2, always_6);
}

#define HELD 6

/* Batches of several steps are held while others come and after the handle is closed. */
static int hold(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "hold");
    opt.flags = POISE_DEBUG_SLOTS;
    struct poise *p = rank_open(&opt);
    const struct poise_batch *held[HELD * 8];
    struct poise_err err;
    uint32_t n_held = 0;

    load_declare(p, 0);
    for (uint64_t step = 0; step < HELD; step++) {
        rig_submit(p, step, c->rank, 6, 0);
        for (bool last = false; !last; n_held++) {
            EXPECT(poise_next(p, 0, -1, &held[n_held], &err) == 0, "%s", err.text);
            last = held[n_held]->micro_batch + 1 == held[n_held]->n_micro_batches;
        }
        for (uint32_t i = 0; i < n_held; i++)
            load_check(held[i], NULL);
    }
    rank_close(p);
    for (uint32_t i = 0; i < n_held; i++) {
        load_check(held[i], c->board);
        poise_release(held[i]);
    }
    return 0;
}

Test(client_read, held_batches_do_not_change_until_released_also_after_close)
{
    ranks_run(2, rig.daemon.dir, rig.board, hold, NULL);
    for (uint64_t step = 0; step < HELD; step++)
        board_check(rig.board, step, 2, always_6);
}

static struct poise_sample big_sample(const void *data, int64_t bytes, struct poise_value *value)
{
    static const int64_t length[2] = {1, 1};

    *value = (struct poise_value){.field = "caption", .data = data, .n_dims = 1, .shape = {bytes}};
    return (struct poise_sample){.length = length,
                                 .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                 .n_values = 1,
                                 .values = value,
                                 .value_size = sizeof *value};
}

/* Budget 8 MB: halves of 4 MB, steps of 1.5 MB. Held batches fill the memory; the next says who holds what. */
static int fill_memory(const struct rank_context *c)
{
    enum { BYTES = 3 << 19 };
    struct poise_options opt = rank_options(c, "memory");
    opt.memory_budget = 8 << 20;
    opt.prefetch_depth = 7;
    struct poise *p = rank_open(&opt);
    char *data = calloc(1, 5 << 20);
    struct poise_value value;
    struct poise_sample sample = big_sample(data, BYTES, &value);
    const struct poise_batch *held[8], *batch;
    struct poise_err err = {0};
    uint32_t n = 0;
    int rc = 0;

    load_declare(p, LOAD_TEXT_ONLY);
    for (; n < 8 && rc == 0; n++) {
        rc = poise_submit(p, n, &sample, 1, sizeof sample, 2000, &err);
        EXPECT(rc == 0, "%s", err.text);
        rc = poise_next(p, 0, 1000, &held[n], &err);
    }
    EXPECT(rc == -ENOMEM && strstr(err.text, "release batches or raise memory_budget"), "%d %s", rc, err.text);
    EXPECT(n > 2, "only %u steps fit", n);
    for (uint32_t i = 0; i + 1 < n; i++)
        poise_release(held[i]);
    EXPECT(poise_next(p, 0, -1, &batch, &err) == 0, "%s", err.text);
    poise_release(batch);
    sample = big_sample(data, 5 << 20, &value);
    rc = poise_submit(p, n, &sample, 1, sizeof sample, -1, &err);
    EXPECT(rc == -ENOMEM && strstr(err.text, "1 samples take 5.0 MB") && strstr(err.text, "memory_budget"), "%d %s", rc,
           err.text);
    rank_close(p);
    free(data);
    return 0;
}

Test(client_read, memory_that_held_batches_fill_is_an_error_that_says_so)
{
    ranks_run(1, rig.daemon.dir, rig.board, fill_memory, NULL);
}

/* Rank 1 never reads, so step 2 stays in rank 0's arena; rank 0 does not wait for ever. Receive memory: two steps. */
static int close_early(const struct rank_context *c)
{
    enum { BYTES = 3 << 19 };
    struct poise_options opt = rank_options(c, "close");
    opt.memory_budget = 8 << 20;
    opt.prefetch_depth = 7;
    opt.mode = POISE_MODE_OFF;
    opt.close_timeout_ms = 300;
    opt.micro_batch_size = 1;
    struct poise *p = rank_open(&opt);
    char *data = calloc(1, BYTES);
    struct poise_value value;
    struct poise_sample sample = big_sample(data, BYTES, &value);
    struct poise_err err = {0};

    load_declare(p, LOAD_TEXT_ONLY);
    for (uint64_t step = 0; step < 3; step++)
        EXPECT(poise_submit(p, step, &sample, 1, sizeof sample, -1, &err) == 0, "%s", err.text);
    EXPECT(poise_submit(p, 3, NULL, 0, 0, -1, &err) == 0, "%s", err.text);
    int rc = poise_close(p, &err);
    free(data);
    EXPECT(rc == 0, "close drops what is not read and tells its senders so: %d %s", rc, err.text);
    return 0;
}

Test(client_read, closing_without_reading_keeps_no_sender_waiting)
{
    ranks_run(2, rig.daemon.dir, rig.board, close_early, NULL);
}

static int close_alone(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "close-alone");
    opt.close_timeout_ms = 200;
    struct poise *p = rank_open(&opt);
    struct poise_err err = {0};

    load_declare(p, 0);
    if (c->rank == 0) {
        EXPECT(load_submit(p, 0, c->rank, 3, 0, &err) == 0, "%s", err.text);
        const struct poise_batch *batch;
        int rc = poise_next(p, 0, 1500, &batch, &err);
        EXPECT(rc == -ETIMEDOUT && strstr(err.text, "rank 1 has not submitted it"), "%d %s", rc, err.text);
        rc = poise_close(p, &err);
        EXPECT(rc == -ETIMEDOUT && strstr(err.text, "step 0") && strstr(err.text, "close_timeout_ms"), "%d %s", rc,
               err.text);
        board_raise(c->board, 0);
    } else {
        board_wait(c->board, 0, 1);
        rank_close(p);
    }
    return 0;
}

Test(client_read, closing_does_not_wait_for_ever_for_a_peer_that_does_not_submit)
{
    ranks_run(2, rig.daemon.dir, rig.board, close_alone, NULL);
}

/* It reads nothing, and so may not submit for ever; the other one waits, and hears at its deadline for whom. */
static int take_nothing(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "take-nothing");
    struct poise_err err = {0};

    if (c->rank == 0)
        opt.peer_timeout_ms = 1500;
    struct poise *p = rank_open(&opt);
    load_declare(p, 0);
    for (uint64_t step = 0;; step++) {
        int rc = load_submit(p, step, c->rank, 3, 0, &err);
        if (c->rank == 1 && step >= opt.prefetch_depth + 1u) /* as far as it may be ahead of what it reads */
            break;
        EXPECT(rc == 0, "step %u: %d %s", (unsigned)step, rc, err.text);
        for (bool last = false; c->rank == 0 && !last;) {
            const struct poise_batch *batch;
            rc = poise_next(p, 0, -1, &batch, &err);
            if (rc == -ETIMEDOUT) {
                EXPECT(strstr(err.text, "rank 1 has not submitted it"), "%s", err.text);
                board_raise(c->board, 0);
                rank_close(p);
                return 0;
            }
            EXPECT(rc == 0, "%d %s", rc, err.text);
            last = batch->micro_batch + 1 == batch->n_micro_batches;
            poise_release(batch);
        }
    }
    board_wait(c->board, 0, 1);
    poise_hurry(p);
    poise_close(p, NULL);
    return 0;
}

Test(client_read, a_rank_that_stops_taking_is_named_at_the_deadline)
{
    ranks_run(2, rig.daemon.dir, rig.board, take_nothing, NULL);
}

/* One thread submits, two read an iterator each, a fourth releases. */
struct readers {
    struct poise *p;
    const struct rank_context *c;
    pthread_mutex_t lock;
    const struct poise_batch *queue[256];
    uint32_t n_queued, n_released;
};
#define N_THREAD_STEPS 20

static void *submit_all(void *arg)
{
    struct readers *r = arg;

    for (uint64_t step = 0; step < N_THREAD_STEPS; step++)
        rig_submit(r->p, step, r->c->rank, 6, step % 2 ? LOAD_IN_ARENA : 0);
    return NULL;
}

static void *read_all(struct readers *r, uint32_t iterator)
{
    for (uint64_t step = 0; step < N_THREAD_STEPS; step++) {
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            struct poise_err err;
            EXPECT(poise_next(r->p, iterator, -1, &b, &err) == 0, "%s", err.text);
            load_check(b, iterator ? NULL : r->c->board);
            last = b->micro_batch + 1 == b->n_micro_batches;
            pthread_mutex_lock(&r->lock);
            EXPECT(r->n_queued < 256, "the queue is full");
            r->queue[r->n_queued++] = b;
            pthread_mutex_unlock(&r->lock);
        }
    }
    return NULL;
}

static void *read_first(void *arg)
{
    return read_all(arg, 0);
}

static void *read_second(void *arg)
{
    return read_all(arg, 1);
}

static void *release_all(void *arg)
{
    struct readers *r = arg;

    while (r->n_released < 2 * 3 * N_THREAD_STEPS) {
        const struct poise_batch *b = NULL;
        pthread_mutex_lock(&r->lock);
        if (r->n_queued)
            b = r->queue[--r->n_queued];
        pthread_mutex_unlock(&r->lock);
        r->n_released += b != NULL;
        poise_release(b);
        sched_yield();
    }
    return NULL;
}

static int threads(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "threads");
    opt.n_iterators = 2;
    opt.count = POISE_COUNT_EQUAL;
    struct readers r = {.p = rank_open(&opt), .c = c, .lock = PTHREAD_MUTEX_INITIALIZER};
    void *(*const run[4])(void *) = {submit_all, read_first, read_second, release_all};
    pthread_t thread[4];

    load_declare(r.p, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, run[i], &r);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    rank_close(r.p);
    return 0;
}

Test(client_read, four_threads_share_a_handle)
{
    ranks_run(2, rig.daemon.dir, rig.board, threads, NULL);
    for (uint64_t step = 0; step < N_THREAD_STEPS; step++)
        board_check(rig.board, step, 2, always_6);
}

/* One sample is longer than the cap of a micro-batch. */
static int giant(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "giant");
    opt.cap_length_micro_batch[1] = 100;
    opt.cut = POISE_CUT_AS_NEEDED;
    struct poise *p = rank_open(&opt);
    struct poise_note note;
    struct poise_err err;
    uint32_t n_alone = 0, n_notes = 0;

    for (uint64_t step = 0; step < 3; step++) {
        const int64_t length[4][2] = {{0, c->rank == 0 ? 5000 : 40}, {0, 40}, {0, 40}, {0, 40}};
        struct poise_sample samples[4] = {0};
        for (uint32_t i = 0; i < 4; i++)
            samples[i] = (struct poise_sample){.length = length[i], .micro_batch = POISE_DEFAULT_MICRO_BATCH};
        EXPECT(poise_submit(p, step, samples, 4, sizeof *samples, -1, &err) == 0, "%s", err.text);
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            EXPECT(b->totals->oversize == 1, "%d", (int)b->totals->oversize);
            for (uint32_t i = 0; i < b->n_samples; i++)
                n_alone += b->rows[i].origin_rank == 0 && b->rows[i].origin_index == 0 && b->n_samples == 1;
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
    }
    atomic_fetch_add(&c->board->flag[0], n_alone);
    while (poise_notice(p, &note, sizeof note) == 1)
        n_notes += note.severity == POISE_WARNING && strstr(note.text, "exceed a cap") != NULL;
    EXPECT(n_notes == 1, "%u notices", n_notes);
    rank_close(p);
    return 0;
}

Test(client_read, a_sample_above_the_cap_is_alone_and_warned_of_once)
{
    ranks_run(2, rig.daemon.dir, rig.board, giant, NULL);
    cr_assert_eq(rig.board->flag[0], 3, "%u of 3", rig.board->flag[0]);
}
