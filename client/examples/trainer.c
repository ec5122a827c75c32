/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer on poise, from opening to closing: the tutorial of libpoise in C.
 *
 *   poised --socket-dir /tmp/p &
 *   for r in 0 1 2 3; do trainer --rank $r --ranks 4 --socket-dir /tmp/p & done; wait
 *
 * What makes it a poise trainer is load(), which submits what this rank has loaded, steps ahead and in a thread of its
 * own, and train(), which takes what this rank shall compute. Between the two, poise decides who computes what, and
 * moves the samples. Here an image is made up (payload.c) and computing is sleeping; a real trainer has its loader and its
 * model there, and keeps the rest. board_*() is how `poisectl demo` looks on (demo_board.c): leave it out.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/examples/demo_board.h"
#include "client/examples/payload.h"
#include "poise.h"

struct trainer {
    struct poise *poise;
    struct poise_options options;
    uint64_t n_steps;
    uint32_t n_samples;  /* this rank loads so many a step */
    uint64_t cycle;      /* sizes come again after so many steps; 0: never */
    struct board *board; /* NULL: nobody looks on */
    struct board board_memory;
};

static struct payload_size size_of(struct trainer *t, struct payload_origin origin)
{
    if (t->cycle)
        origin.step %= t->cycle;
    return board_size(t->board, &origin);
}

static int fail(struct trainer *t, const char *what, const struct poise_err *err)
{
    char text[640];

    snprintf(text, sizeof text, "%s: %s", what, err->text);
    board_fail(t->board, t->options.rank, text);
    if (!t->board)
        fprintf(stderr, "trainer: rank %u: %s\n", t->options.rank, text);
    return -1;
}

/* --------------------------------------------------------------------------------------------------------- loading */

/*
 * One step's samples. They are built where poise reads them, in memory from poise_alloc(): submitting copies nothing,
 * and a rank on the same node copies them straight into its own micro-batch. poise_alloc() waits while none is free.
 */
static int load_step(struct trainer *t, uint64_t step, struct payload *payloads, struct poise_sample *samples,
                     struct poise_err *err)
{
    int rc;

    for (uint32_t i = 0; i < t->n_samples; i++) {
        const struct payload_origin origin = {t->options.rank, i, step};
        const struct payload_size size = size_of(t, origin);
        void *memory;

        rc = poise_alloc(t->poise, payload_bytes(&size), -1, &memory, err);
        if (rc < 0)
            return rc;
        payload_build(&origin, &size, memory, &payloads[i], &samples[i]);
    }
    rc = poise_submit(t->poise, step, samples, t->n_samples, sizeof *samples, -1, err);
    if (rc == -EINVAL || rc == -ERANGE) { /* a bad sample: tell all ranks, drop the step on all of them, go on */
        poise_discard(t->poise, NULL);
        rc = poise_fail(t->poise, step, err->text, -1, err);
    }
    return rc;
}

/*
 * The loader's thread runs as far ahead as poise lets it: poise_submit() waits when enough steps are under way. When
 * the data has ended, poise_end() says so to all ranks, and their poise_next() returns -ENODATA behind the last step.
 */
static void *load(void *arg)
{
    struct trainer *t = arg;
    struct payload *payloads = calloc(t->n_samples + 1, sizeof *payloads);
    struct poise_sample *samples = calloc(t->n_samples + 1, sizeof *samples);
    struct poise_err err = {.code = -ENOMEM, .text = "no memory for the samples' table"};
    int rc = payloads && samples ? 0 : -ENOMEM;

    /* Loading must not take the processor from train(), which is about to feed the accelerator, when both can run. */
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
    for (uint64_t step = 0; rc == 0 && step < t->n_steps; step++)
        rc = load_step(t, step, payloads, samples, &err);
    if (rc == 0)
        rc = poise_end(t->poise, t->n_steps, -1, &err);
    if (rc < 0 && rc != -EINTR && rc != -ESHUTDOWN) { /* those two are reported by poise_next() as well */
        fail(t, "loading", &err);
        poise_interrupt(t->poise); /* train() must not wait for what never comes */
    }
    free(payloads);
    free(samples);
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- training */

static void sleep_until(uint64_t deadline_ns)
{
    const struct timespec deadline = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
        continue;
}

/*
 * In the place of forward and backward: looks at every byte of the micro-batch, then sleeps until the computation would
 * be done. With a loss that is a sum over tokens, multiply each by its row's weight_step: the gradient is then the same
 * whichever rank computes a sample.
 */
static int compute(struct trainer *t, const struct poise_batch *batch, uint64_t deadline_ns)
{
    struct payload_size *sizes = calloc(batch->n_samples + 1, sizeof *sizes);
    bool *ok = calloc(batch->n_samples + 1, sizeof *ok);
    uint32_t n_wrong = 0;

    if (sizes && ok) {
        for (uint32_t s = 0; s < batch->n_samples; s++) {
            const struct payload_origin origin = {batch->rows[s].origin_rank, batch->rows[s].origin_index, batch->step};
            sizes[s] = size_of(t, origin);
        }
        n_wrong = payload_check(batch, sizes, ok);
        board_deliver(t->board, t->options.rank, batch, ok);
    }
    if (n_wrong > 0 && !t->board)
        fprintf(stderr, "trainer: rank %u: step %llu: %u samples are not as they were sent\n", t->options.rank,
                (unsigned long long)batch->step, n_wrong);
    free(ok);
    free(sizes);
    sleep_until(deadline_ns);
    return sizes && ok && (n_wrong == 0 || t->board) ? 0 : -1;
}

/*
 * All micro-batches of a step, in order; the last one says that it is. A batch is this rank's until it is released: a
 * pipeline schedule may hold several. 0, or what poise_next() returned; -EIO where a batch was bad.
 */
static int train_step(struct trainer *t, uint64_t begin_ns, uint64_t *ret_step, uint64_t *ret_wait_ns,
                      struct poise_err *err)
{
    uint64_t deadline_ns = begin_ns, wait_ns = 0, compute_ns = 0;

    for (bool last = false; !last;) {
        const uint64_t asked_ns = board_now_ns();
        const struct poise_batch *batch;
        uint64_t now_ns, this_ns;
        int rc = poise_next(t->poise, 0, -1, &batch, err);

        if (rc < 0)
            return rc;
        now_ns = board_now_ns();
        wait_ns += now_ns - asked_ns;
        this_ns = board_compute_ns(t->board, t->options.rank, batch);
        compute_ns += this_ns;
        deadline_ns = (now_ns - asked_ns > 1000000 ? now_ns : deadline_ns) + this_ns; /* late wake-ups do not add up */
        rc = compute(t, batch, deadline_ns);
        *ret_step = batch->step;
        last = batch->micro_batch + 1 == batch->n_micro_batches;
        poise_release(batch);
        if (rc < 0) {
            snprintf(err->text, sizeof err->text, "step %llu did not arrive as it was sent",
                     (unsigned long long)*ret_step);
            return -EIO;
        }
    }
    *ret_wait_ns = wait_ns;
    return poise_report(t->poise, *ret_step, compute_ns, err); /* status then shows measured imbalance, too */
}

static void print_notices(struct trainer *t)
{
    struct poise_note note;

    while (poise_notice(t->poise, &note, sizeof note) == 1)
        if (note.severity <= POISE_WARNING)
            fprintf(stderr, "trainer: rank %u: step %llu: %s\n", t->options.rank, (unsigned long long)note.step,
                    note.text);
}

static int train(struct trainer *t)
{
    struct poise_err err = {0};
    uint64_t step, wait_ns, begin_ns = board_start(t->board);

    for (;;) {
        struct poise_stats stats = {0};
        int rc = train_step(t, begin_ns, &step, &wait_ns, &err);

        if (rc == -ENODATA)
            return 0;
        if (rc == -EBADMSG) { /* some rank's input was bad: that step is dropped on all ranks alike, the next goes on */
            fprintf(stderr, "trainer: rank %u: step dropped: %s\n", t->options.rank, err.text);
            continue;
        }
        if (rc < 0)
            return fail(t, "training", &err);
        poise_stats(t->poise, &stats, sizeof stats);
        board_step_done(t->board, t->options.rank, step, wait_ns, &stats);
        begin_ns = board_sync(t->board, step); /* the gradient sync: every rank waits for the slowest */
        print_notices(t);
    }
}

/* Over all ranks, what is delivered is what was submitted; only steps that are errors on all ranks are dropped. */
static void print_totals(const struct trainer *t)
{
    struct poise_stats stats = {0};

    poise_stats(t->poise, &stats, sizeof stats);
    printf("rank %u: %llu steps, %llu samples in, %llu out, %llu dropped\n", t->options.rank,
           (unsigned long long)stats.steps_delivered, (unsigned long long)stats.samples_in,
           (unsigned long long)stats.samples_out, (unsigned long long)stats.samples_dropped);
}

static int run(struct trainer *t)
{
    struct poise_err err = {0};
    pthread_t loader;
    int rc;

    if (poise_open(&t->options, &t->poise, &err) < 0)
        return fail(t, "opening", &err);
    if (poise_declare(t->poise, payload_fields, PAYLOAD_FIELDS, sizeof *payload_fields, &err) < 0) {
        rc = fail(t, "declaring fields", &err);
    } else if (pthread_create(&loader, NULL, load, t) != 0) {
        snprintf(err.text, sizeof err.text, "no thread for the loader");
        rc = fail(t, "starting", &err);
    } else {
        rc = train(t);
        if (rc < 0)
            poise_interrupt(t->poise); /* ends the loader's wait */
        pthread_join(loader, NULL);
        if (!t->board)
            print_totals(t);
    }
    if (poise_close(t->poise, &err) < 0 && rc == 0)
        rc = fail(t, "closing", &err);
    return rc;
}

/* --------------------------------------------------------------------------------------------------------- options */

static const char usage[] =
    "trainer --rank R --ranks N [--steps 10] [--per-rank 8] [--micro-batch 2] [--mode on|shadow|off]\n"
    "        [--algorithm NAME] [--job NAME] [--socket-dir DIR] [--timeout-ms MS] [--depth STEPS] [--cycle STEPS]\n"
    "        [--board FD]\n";

static const struct option long_options[] = {
    {"rank", 1, NULL, 'r'},      {"ranks", 1, NULL, 'n'}, {"steps", 1, NULL, 's'},      {"per-rank", 1, NULL, 'p'},
    {"micro-batch", 1, NULL, 'm'}, {"mode", 1, NULL, 'o'},  {"algorithm", 1, NULL, 'a'},  {"job", 1, NULL, 'j'},
    {"socket-dir", 1, NULL, 'd'}, {"timeout-ms", 1, NULL, 't'}, {"depth", 1, NULL, 'D'}, {"cycle", 1, NULL, 'c'},
    {"board", 1, NULL, 'b'},
    {NULL, 0, NULL, 0},
};

static int set_option(struct trainer *t, int option, const char *text)
{
    const unsigned long number = text ? strtoul(text, NULL, 10) : 0;

    switch (option) {
    case 'r': t->options.rank = (uint32_t)number; return 0;
    case 'n': t->options.n_ranks = (uint32_t)number; return 0;
    case 's': t->n_steps = number; return 0;
    case 'p': t->n_samples = (uint32_t)number; return 0;
    case 'm': t->options.micro_batch_size = (uint32_t)number; return 0;
    case 'a': t->options.algorithm = text; return 0;
    case 'c': t->cycle = number; return 0;
    case 'D': t->options.prefetch_depth = (uint32_t)number; return 0;
    case 'j': t->options.job = text; return 0;
    case 'd': t->options.socket_dir = text; return 0;
    case 't': t->options.open_timeout_ms = t->options.peer_timeout_ms = (int64_t)number; return 0;
    case 'o':
        t->options.mode = !strcmp(text, "off") ? POISE_MODE_OFF : POISE_MODE_ON;
        t->options.mode = !strcmp(text, "shadow") ? POISE_MODE_SHADOW : t->options.mode;
        return 0;
    case 'b':
        t->board = &t->board_memory;
        return board_map((int)number, t->board);
    default: return -EINVAL;
    }
}

int main(int argc, char **argv)
{
    struct trainer t = {.n_steps = 10,
                        .n_samples = 8,
                        .options = {.size = sizeof t.options, .job = "example", .cost = PAYLOAD_COST}};
    int rc, option;

    t.options.micro_batch_size = 2;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
        if (set_option(&t, option, optarg) < 0) {
            fputs(usage, stderr);
            return 2;
        }
    rc = run(&t);
    board_fini(&t.board_memory);
    return rc < 0 ? 1 : 0;
}
