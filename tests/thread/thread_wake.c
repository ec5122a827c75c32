/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a wake: threads that release batches ring it while its owner drains, closes and drops it, in every order;
 * the last one frees it. A ring on a closed descriptor would show as a byte in the pipe that took its number.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "client/wake.h"
#include "rig.h"

#define N_ROUNDS  60u
#define N_RINGERS 3u
#define N_RINGS   40u

static void *ring(void *context)
{
    struct wake *wake = context;

    for (uint32_t i = 0; i < N_RINGS; i++) {
        wake_ring(wake);
        if (i % 16 == 0)
            sched_yield();
    }
    wake_unref(wake);
    return NULL;
}

static void round_of(uint32_t n_drains)
{
    pthread_t threads[N_RINGERS];
    struct wake *wake;
    struct poise_err err;
    int fds[2], old;

    EXPECT(wake_new(&wake, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < N_RINGERS; i++)
        rig_thread(&threads[i], ring, wake_ref(wake));
    for (uint32_t i = 0; i < n_drains; i++) {
        wake_drain(wake);
        wake_signal(wake);
    }
    old = wake_fd(wake);
    wake_close(wake);
    wake_unref(wake);
    EXPECT(pipe(fds) == 0, "pipe"); /* the lowest free numbers: one of them was the wake's */
    EXPECT(fds[0] == old || fds[1] == old, "%d is neither %d nor %d", old, fds[0], fds[1]);
    rig_join(threads, N_RINGERS);
    close(fds[1]);
    char byte;
    EXPECT(read(fds[0], &byte, 1) == 0, "a ring went into somebody else's descriptor");
    close(fds[0]);
}

int main(void)
{
    for (uint32_t i = 0; i < N_ROUNDS; i++)
        round_of(i);
    return 0;
}
