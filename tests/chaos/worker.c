/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer under chaos: loads samples whose every byte follows from (step, rank, index), checks every byte it gets,
 * notes each on the board, and syncs with the others after each step, as a gradient would. It ends in order at the
 * board's last step, or with CHAOS_EXIT_ABORTED and the library's text when the epoch was aborted; what else goes wrong
 * it says on the board.
 */
#include "tests/chaos/chaos.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "poise.h"

#define COMPUTE_NS 3000000 /* of a step: the pipeline works ahead in it */
#define SHORT_NS 100000000 /* memory was short: again after this, */
#define SHORT_TIMES 300    /* at most so often in all */
#define SYNC_NS 300000     /* between two looks at who is there */

struct worker {
    struct poise *poise;
    struct chaos_board *board;
    struct chaos_rank *me;
    uint32_t rank;
    struct { /* what poise_next() said while the others were waited for */
        bool there;
        int rc;
        const struct poise_batch *batch;
        struct poise_err err;
    } ahead;
    struct poise_options options;
    struct poise_err load_error; /* why the loader ended, */
    _Atomic int load_rc;         /* if not 0 */
};

uint64_t chaos_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t chaos_mix(uint64_t a, uint64_t b) /* splitmix64's finaliser, twice */
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b;

    for (int i = 0; i < 2; i++) {
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

uint32_t chaos_n_samples(const struct chaos_board *board, uint64_t step, uint32_t rank)
{
    return (uint32_t)(chaos_mix(chaos_mix(board->seed, step), rank) % (CHAOS_SAMPLES + 1));
}

bool chaos_is_bad(const struct chaos_board *board, uint64_t step, uint32_t *ret_rank)
{
    const uint64_t x = chaos_mix(board->seed + 1, step);

    *ret_rank = (uint32_t)(x / 64 % board->n_ranks);
    return x % 64 == 7;
}

/* Mostly small, sometimes above a megabyte of pixels, sometimes text alone. */
struct payload_size chaos_size(const struct payload_origin *origin)
{
    struct payload_size size = payload_any_size(origin);
    const uint64_t x = chaos_mix(payload_tag(origin), 1);

    if (x % 5 == 0) {
        size.grid_h = size.grid_w = 0;
    } else if (x % 5 != 1) {
        size.grid_h = 2 + 2 * (x / 8 % 3);
        size.grid_w = 2 + 2 * (x / 32 % 3);
    }
    size.prompt_tokens = size.grid_h * size.grid_w / 4 + 2 + (uint32_t)(x / 128 % 50);
    return size;
}

static void __attribute__((format(printf, 2, 3))) complain(struct worker *w, const char *format, ...)
{
    va_list args;

    if (atomic_exchange(&w->me->attempt.complained, 1))
        return;
    va_start(args, format);
    vsnprintf(w->me->attempt.complaint, sizeof w->me->attempt.complaint, format, args);
    va_end(args);
}

static int aborted(struct worker *w, const struct poise_err *err)
{
    w->me->attempt.error_code = err->code;
    snprintf(w->me->attempt.error, sizeof w->me->attempt.error, "%s", err->text);
    atomic_store(&w->me->attempt.error_ms, chaos_now_ms());
    return -1;
}

/* --------------------------------------------------------------------------------------------------------- loading */

static int load_step(struct worker *w, uint64_t step, struct poise_err *err)
{
    struct payload payloads[CHAOS_SAMPLES];
    struct poise_sample samples[CHAOS_SAMPLES];
    const uint32_t n = chaos_n_samples(w->board, step, w->rank);
    uint32_t bad_rank;
    int rc;

    if (chaos_is_bad(w->board, step, &bad_rank) && bad_rank == w->rank)
        return poise_fail(w->poise, step, "this sample is bad on purpose", -1, err);
    for (uint32_t i = 0; i < n; i++) {
        const struct payload_origin origin = {w->rank, i, step};
        const struct payload_size size = chaos_size(&origin);
        void *memory;

        rc = poise_alloc(w->poise, payload_bytes(&size), -1, &memory, err);
        if (rc < 0)
            return rc;
        payload_build(&origin, &size, memory, &payloads[i], &samples[i]);
    }
    rc = poise_submit(w->poise, step, samples, n, sizeof *samples, -1, err);
    if (rc == 0)
        atomic_fetch_add(&w->me->attempt.samples_in, n);
    return rc;
}

static void *load(void *arg)
{
    struct worker *w = arg;
    struct poise_err err = {0};
    int rc = 0, n_short = 0;
    uint64_t step = w->options.first_step;

    while (rc == 0 && step < atomic_load(&w->board->end_step)) {
        rc = load_step(w, step, &err);
        if (rc == 0) {
            step++;
        } else if (rc == -ENOMEM && ++n_short < SHORT_TIMES) { /* nothing has happened: it may be called again */
            poise_discard(w->poise, NULL);
            nanosleep(&(struct timespec){0, SHORT_NS}, NULL);
            rc = 0;
        }
    }
    if (rc == 0)
        rc = poise_end(w->poise, step, -1, &err);
    if (rc < 0 && rc != -EINTR && rc != -ESHUTDOWN && rc != -ENODATA) {
        complain(w, "rank %u cannot submit step %llu: %s", w->rank, (unsigned long long)step, err.text);
        poise_interrupt(w->poise);
    }
    w->load_error = err;
    atomic_store(&w->load_rc, rc);
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- training */

static void check(struct worker *w, const struct poise_batch *batch)
{
    struct payload_size *sizes = calloc(batch->n_samples + 1, sizeof *sizes);
    bool *ok = calloc(batch->n_samples + 1, sizeof *ok);

    if (!sizes || !ok)
        abort();
    for (uint32_t s = 0; s < batch->n_samples; s++) {
        const struct payload_origin origin = {batch->rows[s].origin_rank, batch->rows[s].origin_index, batch->step};
        sizes[s] = chaos_size(&origin);
    }
    payload_check(batch, sizes, ok);
    for (uint32_t s = 0; s < batch->n_samples; s++) {
        const struct poise_row *row = &batch->rows[s];
        if (row->origin_rank >= w->board->n_ranks ||
            row->origin_index >= chaos_n_samples(w->board, batch->step, row->origin_rank)) {
            atomic_fetch_add(&w->me->attempt.strays, 1);
            continue;
        }
        atomic_fetch_add(&w->board->came[batch->step % CHAOS_WINDOW][row->origin_rank][row->origin_index], 1);
        if (!ok[s]) {
            atomic_fetch_add(&w->me->attempt.corrupt, 1);
            complain(w, "rank %u: step %llu: sample %u of rank %u is not as it was sent", w->rank,
                     (unsigned long long)batch->step, row->origin_index, row->origin_rank);
        }
    }
    atomic_fetch_add(&w->me->attempt.samples_out, batch->n_samples);
    free(sizes);
    free(ok);
}

/* The next batch, taken ahead or now; notes how long it took where that is long. */
static int take(struct worker *w, uint64_t step, const struct poise_batch **ret_batch, struct poise_err *err)
{
    const uint64_t from_ms = chaos_now_ms();
    uint64_t ms;
    int rc;

    if (w->ahead.there) {
        w->ahead.there = false;
        *ret_batch = w->ahead.batch;
        *err = w->ahead.err;
        return w->ahead.rc;
    }
    rc = poise_next(w->poise, 0, -1, ret_batch, err);
    ms = chaos_now_ms() - from_ms;
    if (ms >= CHAOS_PAUSE_MS && rc == 0) {
        const uint32_t i = atomic_load(&w->me->n_pauses);
        if (i < CHAOS_PAUSES) {
            w->me->pauses[i] = (struct chaos_pause){from_ms, ms, step};
            atomic_store(&w->me->n_pauses, i + 1);
        }
    }
    return rc;
}

/* -ENODATA: the end. */
static int train_step(struct worker *w, uint64_t step, struct poise_err *err)
{
    uint32_t bad_rank;

    for (bool last = false; !last;) {
        const struct poise_batch *batch;
        const int rc = take(w, step, &batch, err);

        if (rc == -EBADMSG && chaos_is_bad(w->board, step, &bad_rank) && err->rank == bad_rank) {
            atomic_fetch_add(&w->me->attempt.step_errors, 1);
            return 0;
        }
        if (rc < 0)
            return rc;
        if (batch->step != step)
            complain(w, "rank %u: got step %llu in place of step %llu", w->rank, (unsigned long long)batch->step,
                     (unsigned long long)step);
        check(w, batch);
        last = batch->micro_batch + 1 == batch->n_micro_batches;
        poise_release(batch);
    }
    nanosleep(&(struct timespec){0, COMPUTE_NS}, NULL);
    return 0;
}

/* Waits until all ranks are past the step. An abort is seen by asking for the next batch meanwhile, which is kept; when
 * that is there, by the loader. */
static int sync_ranks(struct worker *w, uint64_t step, struct poise_err *err)
{
    atomic_store(&w->me->attempt.done, step + 1);
    for (uint32_t r = 0; r < w->board->n_ranks;) {
        if (atomic_load(&w->board->ranks[r].attempt.done) > step) {
            r++;
            continue;
        }
        if (!w->ahead.there) {
            w->ahead.rc = poise_next(w->poise, 0, 0, &w->ahead.batch, &w->ahead.err);
            w->ahead.there = w->ahead.rc != -ETIMEDOUT && w->ahead.rc != -ENOMEM;
        }
        if (w->ahead.there && (w->ahead.rc == -ESHUTDOWN || w->ahead.rc == -EINTR)) {
            *err = w->ahead.err;
            return w->ahead.rc;
        }
        if (atomic_load(&w->load_rc) == -ESHUTDOWN) {
            *err = w->load_error;
            return -ESHUTDOWN;
        }
        nanosleep(&(struct timespec){0, SYNC_NS}, NULL);
    }
    return 0;
}

static int train(struct worker *w)
{
    struct poise_err err = {0};
    int rc = 0;

    for (uint64_t step = w->options.first_step; rc == 0; step++) {
        rc = train_step(w, step, &err);
        if (rc == 0)
            rc = sync_ranks(w, step, &err);
    }
    if (rc == -ENODATA)
        return 0;
    return aborted(w, &err);
}

static int run(struct worker *w)
{
    struct poise_err err;
    pthread_t loader;
    int rc;

    if (poise_open(&w->options, &w->poise, &err) < 0)
        return aborted(w, &err);
    if (poise_declare(w->poise, payload_fields, PAYLOAD_FIELDS, sizeof *payload_fields, &err) < 0 ||
        pthread_create(&loader, NULL, load, w) != 0) {
        complain(w, "rank %u cannot start: %s", w->rank, err.text);
        poise_close(w->poise, NULL);
        return 1;
    }
    rc = train(w);
    if (rc < 0)
        poise_interrupt(w->poise);
    pthread_join(loader, NULL);
    if (w->ahead.there && w->ahead.rc == 0)
        poise_release(w->ahead.batch);
    if (rc == 0 && poise_close(w->poise, &err) < 0) {
        complain(w, "rank %u cannot close: %s", w->rank, err.text);
        return 1;
    }
    if (rc < 0)
        poise_close(w->poise, NULL);
    atomic_store(&w->me->attempt.left, rc == 0);
    return rc < 0 ? CHAOS_EXIT_ABORTED : 0;
}

int chaos_worker(int argc, char **argv)
{
    struct worker w = {.options = {.size = sizeof w.options, .cost = PAYLOAD_COST, .micro_batch_size = 2}};

    if (argc != 7)
        return 2;
    w.board = mmap(NULL, sizeof *w.board, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
    if (w.board == MAP_FAILED)
        return 2;
    w.rank = w.options.rank = (uint32_t)atoi(argv[3]);
    w.me = &w.board->ranks[w.rank];
    w.options.n_ranks = w.board->n_ranks;
    w.options.job = argv[4];
    w.options.attempt = (uint32_t)atoi(argv[5]);
    w.options.first_step = strtoull(argv[6], NULL, 10);
    w.options.count = POISE_COUNT_FREE;
    w.options.verify_every = 1;
    w.options.memory_budget = 64u << 20;
    w.options.open_timeout_ms = 60000;
    w.options.peer_timeout_ms = 120000;
    atomic_store(&w.me->attempt.done, w.options.first_step);
    return run(&w);
}
