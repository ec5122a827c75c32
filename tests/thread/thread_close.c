/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poise_close() while other threads wait in the handle: they return -ESHUTDOWN, and nobody touches the handle after it
 * is freed. Then the same where a peer leaves: its waits end, too, with the reason. Whether a thread waits already is
 * read from the handle itself.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "client/handle.h"
#include "rig.h"
#include "tests/system/daemon.h"

#define N_ROUNDS 6u

struct waiter {
    struct poise *p;
    uint64_t step;
    int rc;
    struct poise_err err;
};

static void *wait_next(void *context)
{
    struct waiter *w = context;
    const struct poise_batch *batch;

    w->rc = poise_next(w->p, 0, -1, &batch, &w->err);
    return NULL;
}

/* Nobody reads: after so many steps as may be ahead, submitting waits. */
static void *wait_submit(void *context)
{
    struct waiter *w = context;

    while ((w->rc = load_submit(w->p, w->step, 0, 3, 0, &w->err)) == 0)
        w->step++;
    return NULL;
}

static void until_waiting(struct poise *p, uint32_t n)
{
    for (;;) {
        pthread_mutex_lock(&p->lock);
        uint32_t n_waiting = p->n_waiting;
        pthread_mutex_unlock(&p->lock);
        if (n_waiting >= n)
            return;
        sched_yield();
    }
}

/* A group of one rank that has read step 0 and keeps it: its next step never comes, or its loader is too far ahead. */
static void close_beside(const char *dir, void *(*wait)(void *))
{
    struct waiter waiter = {.step = 1};
    const struct poise_batch *batch = NULL;
    struct poise_err err = {0};
    pthread_t thread;

    rig_open(dir, "alone", 1, &waiter.p);
    EXPECT(load_submit(waiter.p, 0, 0, 2, 0, &err) == 0, "%s", err.text);
    EXPECT(poise_next(waiter.p, 0, -1, &batch, &err) == 0 && batch->n_micro_batches == 1, "%s", err.text);
    rig_thread(&thread, wait, &waiter);
    until_waiting(waiter.p, 1);
    int rc = poise_close(waiter.p, &err);
    EXPECT(rc == 0, "close: %d %s", rc, err.text);
    rig_join(&thread, 1);
    EXPECT(waiter.rc == -ESHUTDOWN, "the thread that waited: %d %s", waiter.rc, waiter.err.text);
    load_check(batch, NULL);
    poise_release(batch);
}

static void *close_other(void *context)
{
    struct poise_err err;
    int rc = poise_close(context, &err);

    EXPECT(rc == 0, "close: %d %s", rc, err.text);
    return NULL;
}

/* Two ranks; the second leaves while the first waits for it. */
static void leave_beside(const char *dir)
{
    struct waiter read = {0}, write = {0};
    struct poise *handles[2];
    pthread_t threads[2], leaver;

    rig_open(dir, "two", 2, handles);
    read.p = write.p = handles[0];
    rig_thread(&threads[0], wait_next, &read);
    rig_thread(&threads[1], wait_submit, &write);
    until_waiting(handles[0], 2);
    rig_thread(&leaver, close_other, handles[1]);
    rig_join(&leaver, 1);
    rig_join(threads, 2);
    EXPECT(read.rc == -ESHUTDOWN && strstr(read.err.text, "rank 1"), "the reader: %d %s", read.rc, read.err.text);
    EXPECT(write.rc == -ESHUTDOWN && strstr(write.err.text, "rank 1"), "the producer: %d %s", write.rc, write.err.text);
    rig_close(handles, 1);
}

int main(void)
{
    struct test_daemon daemon;

    test_daemon_start(&daemon, NULL);
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        close_beside(daemon.dir, wait_submit);
        close_beside(daemon.dir, wait_next);
        leave_beside(daemon.dir);
    }
    test_daemon_end(&daemon);
    return 0;
}
