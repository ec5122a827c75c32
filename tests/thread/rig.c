/* SPDX-License-Identifier: Apache-2.0 */
/* See rig.h. */
#include "rig.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM_SECONDS 100 /* a program that hangs ends itself; far above what any takes on a busy machine */

void rig_thread(pthread_t *thread, void *(*run)(void *), void *context)
{
    alarm(PROGRAM_SECONDS);
    int rc = pthread_create(thread, NULL, run, context);

    EXPECT(rc == 0, "pthread_create: %s", strerror(rc));
}

void rig_join(const pthread_t *threads, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0, "thread %u", i);
}

static const struct poise_phase phases[2] = {{.name = "vision", .linear = 10, .passes = 3},
                                             {.name = "text", .linear = 4, .quadratic = 1, .passes = 3}};

struct poise_options rig_options(const char *dir, const char *job, uint32_t rank, uint32_t n)
{
    return (struct poise_options){.size = sizeof(struct poise_options),
                                  .job = job,
                                  .rank = rank,
                                  .n_ranks = n,
                                  .socket_dir = dir,
                                  .phases = phases,
                                  .phase_size = sizeof *phases,
                                  .n_phases = 2,
                                  .count = POISE_COUNT_FREE,
                                  .micro_batch_size = 2,
                                  .n_iterators = 2,
                                  .memory_budget = 4 << 20,
                                  .open_timeout_ms = 20000,
                                  .daemon_timeout_ms = 20000,
                                  .node_timeout_ms = 20000,
                                  .peer_timeout_ms = 20000,
                                  .close_timeout_ms = 20000};
}

struct one { /* rank */
    struct poise_options options;
    struct poise *handle;
};

static void *open_one(void *context)
{
    struct one *one = context;
    struct poise_err err = {0};
    int rc = poise_open(&one->options, &one->handle, &err);

    EXPECT(rc == 0, "rank %u: %d %s", one->options.rank, rc, err.text);
    load_declare(one->handle, 0);
    return NULL;
}

static void *close_one(void *context)
{
    struct one *one = context;
    struct poise_err err = {0};
    int rc = poise_close(one->handle, &err);

    EXPECT(rc == 0 || rc == -EINTR, "close: %d %s", rc, err.text);
    return NULL;
}

void rig_open(const char *dir, const char *job, uint32_t n, struct poise **ret_handles)
{
    struct one ones[RANKS_MAX];
    pthread_t threads[RANKS_MAX];

    for (uint32_t r = 0; r < n; r++) {
        ones[r] = (struct one){.options = rig_options(dir, job, r, n)};
        rig_thread(&threads[r], open_one, &ones[r]);
    }
    rig_join(threads, n);
    for (uint32_t r = 0; r < n; r++)
        ret_handles[r] = ones[r].handle;
}

void rig_close(struct poise **handles, uint32_t n)
{
    struct one ones[RANKS_MAX];
    pthread_t threads[RANKS_MAX];

    for (uint32_t r = 0; r < n; r++) {
        ones[r] = (struct one){.handle = handles[r]};
        rig_thread(&threads[r], close_one, &ones[r]);
    }
    rig_join(threads, n);
}
