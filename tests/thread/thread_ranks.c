/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three ranks in one process on a poised of their own, each handle used from as many threads as the contract allows at
 * once: one submits, two read an iterator each, two release what these read, one looks (stats, notices, report) and one
 * interrupts. Halfway poised is killed and started again. Every sample must come once and as it was.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "tests/system/daemon.h"

#define N_RANKS     3u
#define N_STEPS     24u
#define KILL_STEP   10u
#define N_ITERATORS 2u
#define N_RELEASERS 2u
#define N_QUEUE     4u
#define N_THREADS   (1 + N_ITERATORS + N_RELEASERS + 2)

struct use { /* of a handle */
    struct poise *p;
    uint32_t rank;
    atomic_bool over; /* the readers have read all */
    _Atomic uint64_t n_samples, n_steps;
    atomic_uint n_reading;
    pthread_mutex_t lock; /* of what was read and not released */
    pthread_cond_t cond;
    const struct poise_batch *queue[N_QUEUE];
    uint32_t n_queue;
    const struct poise_batch *kept; /* released after the handle is closed */
};

struct reader {
    struct use *use;
    uint32_t iterator;
};

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Rank 0 is not interrupted, so its loader may build in the arena, where a wait is not tried again. */
static void *submit(void *context)
{
    struct use *use = context;
    uint32_t flags = use->rank == 0 ? LOAD_IN_ARENA : 0;
    struct poise_err err;
    int rc;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        do
            rc = load_submit(use->p, step, use->rank, load_uneven(step, use->rank), flags, &err);
        while (rc == -EINTR);
        EXPECT(rc == 0, "submit of step %d: %d %s", (int)step, rc, err.text);
    }
    do
        rc = poise_end(use->p, N_STEPS, -1, &err);
    while (rc == -EINTR);
    EXPECT(rc == 0, "end: %d %s", rc, err.text);
    return NULL;
}

static void give(struct use *use, const struct poise_batch *batch)
{
    pthread_mutex_lock(&use->lock);
    while (use->n_queue == N_QUEUE)
        pthread_cond_wait(&use->cond, &use->lock);
    use->queue[use->n_queue++] = batch;
    pthread_cond_broadcast(&use->cond);
    pthread_mutex_unlock(&use->lock);
}

static void *read_all(void *context)
{
    struct reader *reader = context;
    struct use *use = reader->use;
    const struct poise_batch *batch;
    struct poise_err err;
    int rc;

    while ((rc = poise_next(use->p, reader->iterator, -1, &batch, &err)) != -ENODATA) {
        if (rc == -EINTR)
            continue;
        EXPECT(rc == 0, "next: %d %s", rc, err.text);
        load_check(batch, NULL);
        if (reader->iterator == 0) {
            atomic_fetch_add(&use->n_samples, batch->n_samples);
            atomic_store(&use->n_steps, batch->step + 1);
        }
        if (reader->iterator == 1 && !use->kept)
            use->kept = batch;
        else
            give(use, batch);
    }
    if (atomic_fetch_sub(&use->n_reading, 1) == 1)
        atomic_store(&use->over, true);
    pthread_cond_broadcast(&use->cond);
    return NULL;
}

static void *release(void *context)
{
    struct use *use = context;

    for (;;) {
        pthread_mutex_lock(&use->lock);
        while (use->n_queue == 0 && !atomic_load(&use->over))
            pthread_cond_wait(&use->cond, &use->lock);
        const struct poise_batch *batch = use->n_queue ? use->queue[--use->n_queue] : NULL;
        pthread_cond_broadcast(&use->cond);
        pthread_mutex_unlock(&use->lock);
        if (!batch)
            return NULL;
        load_check(batch, NULL);
        poise_release(batch);
    }
}

static void *look(void *context)
{
    struct use *use = context;
    struct poise_stats stats;
    struct poise_note note;

    while (!atomic_load(&use->over)) {
        EXPECT(poise_stats(use->p, &stats, sizeof stats) == 0, "stats");
        EXPECT(stats.samples_corrupt == 0, "corrupt samples");
        if (stats.steps_submitted)
            poise_report(use->p, stats.steps_submitted - 1, 1000, NULL);
        while (poise_notice(use->p, &note, sizeof note) == 1)
            continue;
        pause_ms(1);
    }
    return NULL;
}

static void *interrupt(void *context)
{
    struct use *use = context;

    while (!atomic_load(&use->over)) {
        if (use->rank > 0)
            poise_interrupt(use->p);
        pause_ms(7);
    }
    return NULL;
}

static void start(struct use *use, struct reader readers[N_ITERATORS], pthread_t threads[N_THREADS])
{
    uint32_t n = 0;

    pthread_mutex_init(&use->lock, NULL);
    pthread_cond_init(&use->cond, NULL);
    atomic_store(&use->n_reading, N_ITERATORS);
    rig_thread(&threads[n++], submit, use);
    for (uint32_t i = 0; i < N_ITERATORS; i++) {
        readers[i] = (struct reader){use, i};
        rig_thread(&threads[n++], read_all, &readers[i]);
    }
    for (uint32_t i = 0; i < N_RELEASERS; i++)
        rig_thread(&threads[n++], release, use);
    rig_thread(&threads[n++], look, use);
    rig_thread(&threads[n++], interrupt, use);
}

int main(void)
{
    static struct use uses[N_RANKS];
    struct reader readers[N_RANKS][N_ITERATORS];
    pthread_t threads[N_RANKS][N_THREADS];
    struct poise *handles[N_RANKS];
    struct test_daemon daemon;
    uint64_t n_in = 0, n_out = 0;

    test_daemon_start(&daemon, NULL);
    rig_open(daemon.dir, "ranks", N_RANKS, handles);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        uses[r].p = handles[r];
        uses[r].rank = r;
        start(&uses[r], readers[r], threads[r]);
    }
    while (atomic_load(&uses[0].n_steps) < KILL_STEP)
        pause_ms(2);
    test_daemon_kill(&daemon);
    test_daemon_restart(&daemon, NULL);
    for (uint32_t r = 0; r < N_RANKS; r++)
        rig_join(threads[r], N_THREADS);
    rig_close(handles, N_RANKS);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        load_check(uses[r].kept, NULL);
        poise_release(uses[r].kept);
        n_out += atomic_load(&uses[r].n_samples);
        for (uint64_t step = 0; step < N_STEPS; step++)
            n_in += load_uneven(step, r);
    }
    EXPECT(n_in == n_out, "%d samples in, %d out", (int)n_in, (int)n_out);
    test_daemon_end(&daemon);
    return 0;
}
