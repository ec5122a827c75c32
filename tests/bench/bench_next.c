/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer waits in poise_next() when data is ready in time: first the pipeline is measured, one step after the
 * other; then a loader submits ahead, and every rank computes (sleeps) twice the pipeline's 99th percentile a step and
 * meets the others at its end. Samples are described but not written anew, so that loading takes no processor from what
 * is measured.
 *
 *     bench_next [--quick] [--ranks N] [--steps N]
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/host.h"

#define PER_RANK 8u
#define MICRO_BATCH 2u
#define N_MICRO_BATCHES (PER_RANK / MICRO_BATCH)
#define ROWS 440u     /* patches of a sample: 1.0 MB */
#define COLUMNS 1176u
#define ROW_BYTES (COLUMNS * 2u)

#define WARM_STEPS 24u /* the library verifies hashes in the first 20; memory is made in the first few */
#define PIPELINE_STEPS 40u
#define FIRST_STEP (WARM_STEPS + PIPELINE_STEPS) /* of the second part */
#define SKIPPED_STEPS 4u                         /* of the second part: the loader gets ahead */
#define MOST_STEPS 2000u
#define COMPUTE_FACTOR 2.0
#define LATE_US 100 /* what the 99th percentile should stay below */

struct next_board { /* a file of its own */
    pthread_barrier_t barrier;
    uint64_t compute_ns; /* of a step, written by the driver between the parts */
    uint32_t n_steps;    /* of the second part */
    uint64_t pipeline_ns[BENCH_MAX_RANKS][PIPELINE_STEPS];
    uint32_t next_ns[BENCH_MAX_RANKS][MOST_STEPS][N_MICRO_BATCHES];
};

struct rank {
    struct bench_board *board;
    struct next_board *next;
    uint32_t rank;
    struct poise *poise;
};

static struct next_board *map_next(const char *board_path, bool create)
{
    char path[300];
    int fd;
    void *next = MAP_FAILED;

    snprintf(path, sizeof path, "%s.next", board_path);
    fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd >= 0 && (!create || ftruncate(fd, sizeof(struct next_board)) == 0))
        next = mmap(NULL, sizeof(struct next_board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (fd >= 0)
        close(fd);
    return next == MAP_FAILED ? NULL : next;
}

/* ----------------------------------------------------------------------------------------------------------- a rank */

static int open_handle(struct rank *r, struct poise_err *err)
{
    static const struct poise_field field = {.name = "pixels", .dtype = POISE_BF16, .n_dims = 2,
                                             .shape = {-1, COLUMNS}};
    struct poise_options opt = {.size = sizeof opt, .job = "bench-next", .rank = r->rank, .n_ranks = r->board->n_ranks,
                                .cost = "length", .micro_batch_size = MICRO_BATCH, .socket_dir = r->board->socket_dir,
                                .algorithm = "greedy", .open_timeout_ms = 60000, .peer_timeout_ms = 60000};
    int rc = poise_open(&opt, &r->poise, err);

    return rc < 0 ? rc : poise_declare(r->poise, &field, 1, sizeof field, err);
}

static int submit(struct rank *r, uint64_t step, struct poise_err *err)
{
    struct poise_value values[PER_RANK];
    struct poise_sample samples[PER_RANK] = {0};
    int64_t length[PER_RANK];

    for (uint32_t i = 0; i < PER_RANK; i++) {
        void *memory;
        int rc = poise_alloc(r->poise, ROWS * ROW_BYTES, -1, &memory, err);

        if (rc < 0)
            return rc;
        /* Samples of one size would all stay: the planner is told that every second rank has larger ones. */
        length[i] = 100 + (int64_t)((step * 64 + i) * 2654435761u % 4093u) + (r->rank % 2 ? 4000 : 0);
        values[i] = (struct poise_value){.field = "pixels", .data = memory, .n_dims = 2, .shape = {ROWS, COLUMNS}};
        samples[i] = (struct poise_sample){.tag = i, .length = &length[i], .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                           .n_values = 1, .values = &values[i], .value_size = sizeof *values};
    }
    return poise_submit(r->poise, step, samples, PER_RANK, sizeof *samples, -1, err);
}

static void sleep_until(uint64_t deadline_ns)
{
    const struct timespec deadline = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
        continue;
}

/* All micro-batches of a step; ret_ns (may be NULL): what each poise_next() took. */
static int read_step(struct rank *r, uint64_t compute_ns, uint32_t *ret_ns, struct poise_err *err)
{
    for (uint32_t b = 0; b < N_MICRO_BATCHES; b++) {
        const struct poise_batch *batch;
        uint64_t begin_ns = bench_now_ns(), end_ns;
        int rc = poise_next(r->poise, 0, -1, &batch, err);

        if (rc < 0)
            return rc;
        end_ns = bench_now_ns();
        if (ret_ns)
            ret_ns[b] = end_ns - begin_ns < UINT32_MAX ? (uint32_t)(end_ns - begin_ns) : UINT32_MAX;
        if (compute_ns)
            sleep_until(end_ns + compute_ns / N_MICRO_BATCHES);
        poise_release(batch);
    }
    return 0;
}

static int measure_pipeline(struct rank *r, struct poise_err *err)
{
    int rc = open_handle(r, err);

    for (uint64_t step = 0; rc == 0 && step < FIRST_STEP; step++) {
        struct poise_stats stats;

        rc = submit(r, step, err);
        if (rc == 0)
            rc = read_step(r, 0, NULL, err);
        /* The engine counts a step right after handing it over; behind the barrier the others have theirs, too. */
        pthread_barrier_wait(&r->next->barrier);
        poise_stats(r->poise, &stats, sizeof stats);
        if (step >= WARM_STEPS)
            r->next->pipeline_ns[r->rank][step - WARM_STEPS] = stats.pipeline_ns_last;
    }
    return rc;
}

static void *load(void *arg)
{
    struct rank *r = arg;
    struct poise_err err;
    int rc = 0;

    for (uint64_t step = 0; rc == 0 && step < r->next->n_steps; step++)
        rc = submit(r, FIRST_STEP + step, &err);
    if (rc < 0 && rc != -EINTR)
        crew_fail(r->board, CREW_POISE, r->rank, &err);
    return NULL;
}

static int measure_next(struct rank *r, struct poise_err *err)
{
    pthread_t loader;
    int rc = 0;

    if (pthread_create(&loader, NULL, load, r) != 0)
        return -EAGAIN;
    for (uint32_t step = 0; rc == 0 && step < r->next->n_steps; step++) {
        rc = read_step(r, r->next->compute_ns, r->next->next_ns[r->rank][step], err);
        pthread_barrier_wait(&r->next->barrier); /* the gradient sync */
    }
    if (rc < 0)
        poise_interrupt(r->poise);
    pthread_join(loader, NULL);
    return rc;
}

static int prepare(void *context, uint32_t turn, struct poise_err *err)
{
    (void)context, (void)turn, (void)err;
    return 0;
}

static int work(void *context, uint32_t turn, struct poise_err *err)
{
    return turn == 1 ? measure_pipeline(context, err) : measure_next(context, err);
}

static int finish(void *context, uint32_t turn, struct crew_rank *mine, struct poise_err *err)
{
    (void)context, (void)turn, (void)mine, (void)err;
    return 0;
}

static int be_rank(char **argv)
{
    static const struct crew_work does = {prepare, work, finish};
    struct rank r = {.board = bench_board_map(argv[3], false), .next = map_next(argv[3], false),
                     .rank = (uint32_t)strtoul(argv[2], NULL, 10)};
    int status;

    if (!r.board || !r.next)
        return 2;
    status = crew_serve(r.board, CREW_POISE, r.rank, &does, &r);
    poise_close(r.poise, NULL);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- the driver */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double at(const double *sorted, size_t n, double q)
{
    size_t i = (size_t)(q * (double)n);

    return n ? sorted[i < n ? i : n - 1] : 0;
}

struct figures {
    double pipeline_p50_ms, pipeline_p99_ms, compute_ms;
    size_t n;
    double p50_us, p90_us, p99_us, p999_us, max_us;
    double late[N_MICRO_BATCHES]; /* share of a step's first, second ... calls that took more than LATE_US */
};

static void pipeline_figures(const struct bench_board *board, struct next_board *next, struct figures *f)
{
    double ms[BENCH_MAX_RANKS * PIPELINE_STEPS];
    size_t n = 0;

    for (uint32_t r = 0; r < board->n_ranks; r++)
        for (uint32_t s = 0; s < PIPELINE_STEPS; s++)
            ms[n++] = (double)next->pipeline_ns[r][s] * 1e-6;
    qsort(ms, n, sizeof *ms, by_value);
    f->pipeline_p50_ms = at(ms, n, 0.5);
    f->pipeline_p99_ms = at(ms, n, 0.99);
    f->compute_ms = COMPUTE_FACTOR * f->pipeline_p99_ms;
    next->compute_ns = (uint64_t)(f->compute_ms * 1e6);
}

static int next_figures(const struct bench_board *board, const struct next_board *next, struct figures *f)
{
    const uint32_t n_steps = board->n_ranks * (next->n_steps - SKIPPED_STEPS);
    double *us = malloc((size_t)n_steps * N_MICRO_BATCHES * sizeof *us);
    size_t n = 0;

    if (!us)
        return -1;
    for (uint32_t r = 0; r < board->n_ranks; r++)
        for (uint32_t s = SKIPPED_STEPS; s < next->n_steps; s++)
            for (uint32_t b = 0; b < N_MICRO_BATCHES; b++) {
                us[n++] = next->next_ns[r][s][b] * 1e-3;
                f->late[b] += us[n - 1] > LATE_US ? 1.0 / n_steps : 0;
            }
    qsort(us, n, sizeof *us, by_value);
    f->n = n;
    f->p50_us = at(us, n, 0.5);
    f->p90_us = at(us, n, 0.9);
    f->p99_us = at(us, n, 0.99);
    f->p999_us = at(us, n, 0.999);
    f->max_us = us[n - 1];
    free(us);
    return 0;
}

static int print(const struct bench_board *board, const struct figures *f)
{
    const char *path = getenv("BENCH_JSON");
    FILE *json;

    printf("poise_next() with data due in time: %u ranks x %u samples of 1.0 MB, compute %.1f ms a step = %.0f x the\n"
           "pipeline's p99 (p50 %.1f ms, p99 %.1f ms), a barrier after each step; %zu calls.\n\n", board->n_ranks,
           PER_RANK, f->compute_ms, COMPUTE_FACTOR, f->pipeline_p50_ms, f->pipeline_p99_ms, f->n);
    printf("%10s %10s %10s %10s %10s   over %d us: a step's 1st, 2nd ... call\n", "p50 us", "p90 us", "p99 us",
           "p99.9 us", "max us", LATE_US);
    printf("%10.1f %10.1f %10.1f %10.1f %10.1f  ", f->p50_us, f->p90_us, f->p99_us, f->p999_us, f->max_us);
    for (uint32_t b = 0; b < N_MICRO_BATCHES; b++)
        printf(" %.1f%%", f->late[b] * 100);
    printf("\n");
    if (!path || !*path)
        return 0;
    json = fopen(path, "we");
    if (!json)
        return -1;
    fprintf(json, "{\"ranks\": %u, \"calls\": %zu, \"pipeline_ms\": {\"p50\": %.3f, \"p99\": %.3f}, "
            "\"compute_ms\": %.3f, "
            "\"next_us\": {\"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f, \"p99_9\": %.2f, \"max\": %.2f}, \"late\": [",
            board->n_ranks, f->n, f->pipeline_p50_ms, f->pipeline_p99_ms, f->compute_ms, f->p50_us, f->p90_us,
            f->p99_us,
            f->p999_us, f->max_us);
    for (uint32_t b = 0; b < N_MICRO_BATCHES; b++)
        fprintf(json, "%s%.4f", b ? ", " : "", f->late[b]);
    fprintf(json, "]}\n");
    return fclose(json) == 0 ? 0 : -1;
}

static int run(struct host *host, struct bench_board *board, struct next_board *next, char *path)
{
    char self[] = "/proc/self/exe", mark[] = "--rank", number[16], why[700] = "no process";
    char *argv[] = {self, mark, number, path, NULL};
    struct figures f = {0};
    int rc = 0;

    for (uint32_t r = 0; rc == 0 && r < board->n_ranks; r++) {
        snprintf(number, sizeof number, "%u", r);
        rc = host_spawn(host, CREW_POISE, argv, false);
    }
    if (rc == 0)
        rc = host_turn(host, board, CREW_POISE, why);
    if (rc == 0) {
        pipeline_figures(board, next, &f);
        rc = host_turn(host, board, CREW_POISE, why);
    }
    if (rc < 0)
        fprintf(stderr, "bench_next: %s\n", why);
    else
        rc = next_figures(board, next, &f) == 0 ? print(board, &f) : -1;
    host_dismiss(host, board);
    return rc;
}

static int run_all(struct host *host, uint32_t n_ranks, uint32_t n_steps)
{
    char path[256];
    pthread_barrierattr_t attr;
    struct bench_board *board;
    struct next_board *next;

    snprintf(path, sizeof path, "%s/board", host->poised.dir);
    board = bench_board_map(path, true);
    next = map_next(path, true);
    if (!board || !next)
        return -1;
    board->driver = getpid();
    board->n_ranks = n_ranks;
    snprintf(board->socket_dir, sizeof board->socket_dir, "%s", host->poised.dir);
    next->n_steps = n_steps;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&next->barrier, &attr, n_ranks);
    pthread_barrierattr_destroy(&attr);
    return run(host, board, next, path);
}

int main(int argc, char **argv)
{
    uint32_t n_ranks = 4, n_steps = 300;
    struct host host = {0};
    int rc;

    if (argc == 4 && !strcmp(argv[1], "--rank"))
        return be_rank(argv);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick"))
            n_steps = 24;
        else if (!strcmp(argv[i], "--ranks") && i + 1 < argc)
            n_ranks = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--steps") && i + 1 < argc)
            n_steps = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            return fprintf(stderr, "usage: bench_next [--quick] [--ranks N] [--steps N]\n"), 2;
    }
    if (n_ranks < 1 || n_ranks > BENCH_MAX_RANKS || n_steps <= SKIPPED_STEPS || n_steps > MOST_STEPS)
        return fprintf(stderr, "bench_next: 1 to %d ranks, %u to %u steps\n", BENCH_MAX_RANKS, SKIPPED_STEPS + 1,
                       MOST_STEPS), 2;
    host_apart();
    rc = host_start(&host);
    if (rc == 0)
        rc = run_all(&host, n_ranks, n_steps);
    host_stop(&host);
    return rc == 0 ? 0 : 1;
}
