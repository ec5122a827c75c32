/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive memory as the engine and the trainer's threads use it: one thread reserves and fills, others read and
 * release, each part by two holders, and the last parts only after receive_close(). A part that is recycled too early
 * is a race on its bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "client/receive.h"
#include "rig.h"

#define N_STEPS   400u
#define N_PARTS   3u
#define N_HOLDERS 2u
#define N_QUEUE   8u
#define BUDGET    (256u << 10)

struct queue { /* a reader's: slots in step order */
    struct receive_slot *slots[N_QUEUE];
    atomic_uint put, taken;
};

struct reader {
    struct queue queue;
    atomic_bool *closed;
};

static void push(struct queue *queue, struct receive_slot *slot)
{
    while (atomic_load(&queue->put) - atomic_load(&queue->taken) == N_QUEUE)
        sched_yield();
    queue->slots[atomic_load(&queue->put) % N_QUEUE] = slot;
    atomic_fetch_add(&queue->put, 1);
}

static void check(const struct receive_slot *slot)
{
    for (uint32_t part = 0; part < N_PARTS; part++)
        for (uint64_t i = 0; i < slot->parts[part].bytes; i += 97)
            EXPECT(((const unsigned char *)slot->parts[part].data)[i] == (unsigned char)slot->step, "step %d part %u",
                   (int)slot->step, part);
}

static void *read_out(void *context)
{
    struct reader *reader = context;

    for (uint32_t step = 1; step <= N_STEPS; step++) {
        while (atomic_load(&reader->queue.put) < step)
            sched_yield();
        struct receive_slot *slot = reader->queue.slots[(step - 1) % N_QUEUE];
        while (step == N_STEPS && !atomic_load(reader->closed))
            sched_yield();
        check(slot);
        for (uint32_t part = 0; part < N_PARTS; part++)
            receive_release(slot, part);
        atomic_fetch_add(&reader->queue.taken, 1);
    }
    return NULL;
}

static struct receive_slot *reserve(struct receive *receive, uint64_t step)
{
    const uint64_t bytes[N_PARTS] = {4096 + step * 7, 100, 20000};
    struct receive_slot *slot = NULL;
    struct receive_stats stats;
    struct poise_err err;
    int rc;

    while ((rc = receive_reserve(receive, step, bytes, N_PARTS, N_HOLDERS, &slot, &err)) == -EAGAIN)
        receive_stats(receive, &stats);
    EXPECT(rc == 0, "step %d: %s", (int)step, err.text);
    for (uint32_t part = 0; part < N_PARTS; part++)
        memset(slot->parts[part].data, (int)step, slot->parts[part].bytes);
    return slot;
}

static void run(uint32_t flags)
{
    static struct reader readers[N_HOLDERS];
    pthread_t threads[N_HOLDERS];
    struct receive *receive;
    atomic_bool closed = false;

    memset(readers, 0, sizeof readers);
    EXPECT(receive_new(BUDGET, flags, &receive, NULL) == 0, "no pool");
    for (uint32_t i = 0; i < N_HOLDERS; i++) {
        readers[i].closed = &closed;
        rig_thread(&threads[i], read_out, &readers[i]);
    }
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        struct receive_slot *slot = reserve(receive, step);
        if (step % 50 == 0)
            receive_set_budget(receive, BUDGET + step * 64);
        for (uint32_t i = 0; i < N_HOLDERS; i++)
            push(&readers[i].queue, slot);
    }
    receive_close(receive);
    atomic_store(&closed, true);
    rig_join(threads, N_HOLDERS);
}

int main(void)
{
    run(0);
    run(POISE_DEBUG_SLOTS);
    return 0;
}
