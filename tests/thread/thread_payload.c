/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload between nodes under ThreadSanitizer: two ranks of one process, each under a poised of its own, so that what they
 * exchange goes over TCP, encrypted and not, through ZeroMQ's threads on both sides; the loader, the reader and who releases are
 * threads too.
 */
#include <errno.h>
#include <string.h>

#include "rig.h"
#include "tests/system/daemon.h"

#define N_RANKS 2u
#define N_STEPS 30u

struct use {
    struct poise_options options;
    struct poise *p;
    pthread_t submits;
    uint64_t bytes_remote;
};

static void *submit(void *context)
{
    struct use *use = context;
    struct poise_err err;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        int rc = load_submit(use->p, step, use->options.rank, 6, step % 2 ? LOAD_IN_ARENA : 0, &err);
        EXPECT(rc == 0, "submit: %d %s", rc, err.text);
    }
    return NULL;
}

static void *release(void *batch)
{
    load_check(batch, NULL);
    poise_release(batch);
    return NULL;
}

static void *train(void *context)
{
    struct use *use = context;
    struct poise_stats stats;
    struct poise_err err = {0};
    int rc = poise_open(&use->options, &use->p, &err);

    EXPECT(rc == 0, "open: %d %s", rc, err.text);
    load_declare(use->p, 0);
    rig_thread(&use->submits, submit, use);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (bool last = false; !last;) {
            const struct poise_batch *batch;
            pthread_t releases;
            rc = poise_next(use->p, 0, -1, &batch, &err);
            EXPECT(rc == 0, "next: %d %s", rc, err.text);
            last = batch->micro_batch + 1 == batch->n_micro_batches;
            rig_thread(&releases, release, (void *)(uintptr_t)batch);
            rig_join(&releases, 1);
        }
    }
    rig_join(&use->submits, 1);
    poise_stats(use->p, &stats, sizeof stats);
    use->bytes_remote = stats.bytes_remote;
    rc = poise_close(use->p, &err);
    EXPECT(rc == 0, "close: %d %s", rc, err.text);
    return NULL;
}

int main(void)
{
    struct test_daemon nodes[N_RANKS];
    struct use uses[N_RANKS];
    pthread_t threads[N_RANKS];
    char endpoint[256];
    static const char *const second[] = {"--node-name", "n2", NULL};
    const char *first[] = {"--listen", endpoint, "--node-name", "n1", NULL};

    test_daemon_start(&nodes[1], second);
    snprintf(endpoint, sizeof endpoint, "ipc:///%s/head", nodes[1].dir + 1);
    test_daemon_start(&nodes[0], first);
    for (int plain = 0; plain < 2; plain++) {
        for (uint32_t r = 0; r < N_RANKS; r++) {
            uses[r] = (struct use){.options = rig_options(nodes[r].dir, plain ? "plain" : "curve", r, N_RANKS)};
            uses[r].options.coordinators = endpoint;
            uses[r].options.payload = plain ? "plain" : "curve";
            uses[r].options.n_iterators = 1;
            rig_thread(&threads[r], train, &uses[r]);
        }
        rig_join(threads, N_RANKS);
        EXPECT(uses[0].bytes_remote + uses[1].bytes_remote > 0, "nothing went from node to node");
    }
    test_daemon_end(&nodes[0]);
    test_daemon_end(&nodes[1]);
    return 0;
}
