/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control segments of a sender and two receivers, all on one mapping each, so that ThreadSanitizer sees both ends:
 * payload is plain memory, written before control_publish(), read after control_read(), and overwritten only when both
 * receivers said control_set_done(). Any order that is too weak is a race on the payload.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "client/control.h"
#include "rig.h"

#define N_STEPS     3000u
#define N_RECEIVERS 2u
#define N_SLOTS     4u /* fewer than entries, so that payload is recycled as soon as it may be */
#define N_WORDS     16u

struct shared {
    struct control sender, receiver[N_RECEIVERS]; /* ranks 0, and 1 ... */
    uint64_t payload[N_SLOTS][N_WORDS];           /* the sender's arena */
};

struct end {
    struct shared *shared;
    uint32_t rank;
};

static bool all_done(struct shared *s, uint64_t step)
{
    for (uint32_t r = 0; r < N_RECEIVERS; r++)
        if (!control_is_done(control_own(&s->receiver[r]), step, 0))
            return false;
    return true;
}

static void *send(void *context)
{
    struct shared *s = context;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        struct control_place place = {.segment = 1, .generation = 1, .offset = step % N_SLOTS, .bytes = N_WORDS * 8};
        while (step >= N_SLOTS && !all_done(s, step - N_SLOTS))
            sched_yield();
        for (uint32_t i = 0; i < N_WORDS; i++)
            s->payload[step % N_SLOTS][i] = step * N_WORDS + i;
        control_publish(&s->sender, step, &place);
    }
    return NULL;
}

static void *receive(void *context)
{
    const struct end *end = context;
    struct shared *s = end->shared;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        struct control_place place;
        int rc;
        while ((rc = control_read(control_own(&s->sender), step, &place)) == -EAGAIN)
            sched_yield();
        EXPECT(rc == 0 && place.offset == step % N_SLOTS, "step %d: %d", (int)step, rc);
        for (uint32_t i = 0; i < N_WORDS; i++)
            EXPECT(s->payload[place.offset][i] == step * N_WORDS + i, "step %d word %u", (int)step, i);
        control_set_done(&s->receiver[end->rank - 1], step, 0);
    }
    return NULL;
}

/* Reads entries while they are replaced: there every member may change under the reader's hands. */
static void *stray(void *context)
{
    struct shared *s = context;
    struct control_place place;

    for (uint64_t step = 0; step < N_STEPS;) {
        int rc = control_read(control_own(&s->sender), step, &place);
        EXPECT(rc == 0 || rc == -EAGAIN || rc == -ESTALE, "step %d: %d", (int)step, rc);
        step += rc != -EAGAIN;
    }
    return NULL;
}

int main(void)
{
    static struct shared shared;
    struct end ends[N_RECEIVERS];
    pthread_t threads[N_RECEIVERS + 2];
    struct poise_err err;

    EXPECT(control_new(0, N_RECEIVERS + 1, &shared.sender, &err) == 0, "%s", err.text);
    for (uint32_t r = 0; r < N_RECEIVERS; r++) {
        EXPECT(control_new(r + 1, N_RECEIVERS + 1, &shared.receiver[r], &err) == 0, "%s", err.text);
        ends[r] = (struct end){&shared, r + 1};
        rig_thread(&threads[r], receive, &ends[r]);
    }
    rig_thread(&threads[N_RECEIVERS], stray, &shared);
    rig_thread(&threads[N_RECEIVERS + 1], send, &shared);
    rig_join(threads, N_RECEIVERS + 2);
    for (uint32_t r = 0; r < N_RECEIVERS; r++)
        control_fini(&shared.receiver[r]);
    control_fini(&shared.sender);
    return 0;
}
