/* SPDX-License-Identifier: Apache-2.0 */
/* Receive memory: room for a whole step in step order, recycled by the last release alone, alive until then. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/receive.h"
#include "samples.h"

#define MB (1ull << 20)

static struct receive *make(uint64_t budget, uint32_t flags)
{
    struct receive *receive;

    cr_assert_eq(receive_new(budget, flags, &receive, NULL), 0);
    return receive;
}

static struct receive_slot *reserve(struct receive *receive, uint64_t step, uint64_t a, uint64_t b)
{
    struct receive_slot *slot = NULL;
    struct poise_err err;
    uint64_t parts[] = { a, b };

    cr_assert(receive_reserve(receive, step, parts, 2, 1, &slot, &err) == 0, "%s", err.text);
    return slot;
}

static int try_reserve(struct receive *receive, uint64_t step, uint64_t bytes, struct poise_err *err)
{
    struct receive_slot *slot = NULL;
    int rc = receive_reserve(receive, step, &bytes, 1, 1, &slot, err);

    if (rc == 0)
        receive_release(slot, 0);
    return rc;
}

static struct receive_stats stats_of(struct receive *receive)
{
    struct receive_stats stats;

    receive_stats(receive, &stats);
    return stats;
}

Test(receive, parts_are_apart_and_aligned)
{
    struct receive *receive = make(16 * MB, 0);
    struct receive_slot *slot = reserve(receive, 7, 100, 5000);

    cr_assert(slot->step == 7 && slot->n_parts == 2 && slot->parts[1].bytes == 5000);
    cr_assert((uintptr_t)slot->parts[0].data % 64 == 0 && (uintptr_t)slot->parts[1].data % 64 == 0);
    cr_assert((char *)slot->parts[1].data >= (char *)slot->parts[0].data + 100);
    memset(slot->parts[1].data, 1, 5000);
    receive_release(slot, 1);
    receive_release(slot, 0);
    receive_close(receive);
    receive_close(NULL);
}

Test(receive, steps_without_bytes_or_parts)
{
    struct receive *receive = make(16 * MB, 0);
    struct receive_slot *slot = reserve(receive, 0, 0, 0), *none = (void *)1;

    cr_assert(slot->parts[0].data == NULL && slot->parts[1].data == NULL);
    cr_assert_eq(stats_of(receive).n_held, 1);
    receive_release(slot, 0);
    receive_release(slot, 1);
    cr_assert_eq(receive_reserve(receive, 1, NULL, 0, 1, &none, NULL), 0);
    cr_assert(none == NULL);
    cr_assert_eq(stats_of(receive).n_held, 0);
    cr_assert_eq(stats_of(receive).bytes, 0);
    receive_close(receive);
}

Test(receive, steps_come_in_order)
{
    struct receive *receive = make(16 * MB, 0);
    struct poise_err err;

    cr_assert_eq(try_reserve(receive, 5, 10, &err), 0);
    cr_assert_eq(try_reserve(receive, 5, 10, &err), -EINVAL);
    cr_assert_eq(try_reserve(receive, 4, 10, &err), -EINVAL);
    cr_assert_eq(try_reserve(receive, 6, 10, &err), 0);
    receive_close(receive);
}

/* A trainer holds earlier batches (gradient accumulation lists, look-ahead): their bytes do not change until released.
 * */
Test(receive, a_held_batch_is_never_recycled)
{
    struct receive *receive = make(64 * MB, 0);
    struct receive_slot *held = reserve(receive, 0, MB, MB), *slot;

    memset(held->parts[0].data, 0x77, MB);
    receive_release(held, 1);
    for (uint64_t step = 1; step < 40; step++) {
        slot = reserve(receive, step, MB, MB);
        memset(slot->parts[0].data, (int)step, MB);
        memset(slot->parts[1].data, (int)step, MB);
        receive_release(slot, 0);
        receive_release(slot, 1);
    }
    for (uint64_t i = 0; i < MB; i++)
        cr_assert_eq(((unsigned char *)held->parts[0].data)[i], 0x77);
    cr_assert_eq(stats_of(receive).n_held, 1);
    cr_assert_eq(stats_of(receive).oldest_step, 0);
    cr_assert(stats_of(receive).n_blocks <= 3);
    receive_release(held, 0);
    cr_assert_eq(stats_of(receive).n_held, 0);
    receive_close(receive);
}

Test(receive, blocks_are_recycled_not_made_again)
{
    struct receive *receive = make(256 * MB, 0);
    struct receive_slot *slots[3] = { NULL };
    uint64_t bytes = 0;

    for (uint64_t step = 0; step < 30; step++) {
        if (slots[step % 3]) {
            receive_release(slots[step % 3], 0);
            receive_release(slots[step % 3], 1);
        }
        slots[step % 3] = reserve(receive, step, 4 * MB, 4 * MB + step % 7 * 1000);
        if (step == 10)
            bytes = stats_of(receive).bytes;
    }
    cr_assert_eq(stats_of(receive).bytes, bytes);
    cr_assert_eq(stats_of(receive).n_blocks, 3);
    for (int i = 0; i < 3; i++) {
        receive_release(slots[i], 0);
        receive_release(slots[i], 1);
    }
    receive_close(receive);
}

Test(receive, full_is_again_and_too_large_says_needed_and_available)
{
    struct receive *receive = make(20 * MB, 0);
    struct receive_slot *a, *b;
    struct poise_err err;

    cr_assert_eq(try_reserve(receive, 0, 21 * MB, &err), -ENOMEM);
    cr_assert(strstr(err.text, "needs 21.0 MB") && strstr(err.text, "20.0 MB are available"), "%s", err.text);
    cr_assert_eq(try_reserve(receive, 0, UINT64_MAX, &err), -ENOMEM);
    a = reserve(receive, 0, 5 * MB, 5 * MB);
    b = reserve(receive, 1, 5 * MB, 5 * MB); /* two of the largest fit */
    cr_assert_eq(stats_of(receive).slots, 2);
    cr_assert_eq(try_reserve(receive, 2, MB, &err), -EAGAIN);
    cr_assert(strstr(err.text, "batches of 2 steps are held"), "%s", err.text);
    cr_assert_eq(try_reserve(receive, 2, 21 * MB, &err), -ENOMEM, "a release would not help");
    receive_release(a, 0);
    cr_assert_eq(try_reserve(receive, 2, MB, &err), -EAGAIN, "half a step is no room");
    receive_release(a, 1);
    cr_assert_eq(try_reserve(receive, 2, 10 * MB, &err), 0, "after failures the step is still the next");
    receive_release(b, 1);
    receive_release(b, 0);
    receive_close(receive);
}

Test(receive, memory_short_is_an_error)
{
    struct receive *receive = make(1ull << 50, 0);
    struct receive_slot *held;
    struct poise_err err;

    cr_assert_eq(try_reserve(receive, 0, 1ull << 46, &err), -ENOBUFS, "nothing is held: the caller may try again");
    cr_assert_eq(err.code, -ENOBUFS);
    cr_assert(strstr(err.text, "needs 64.0 TB") && strstr(err.text, "available"), "%s", err.text);
    held = reserve(receive, 0, MB, MB);
    cr_assert_eq(try_reserve(receive, 1, 1ull << 46, &err), -EAGAIN, "what is held may do when it is given back");
    receive_release(held, 0);
    receive_release(held, 1);
    cr_assert_eq(try_reserve(receive, 2, MB, &err), 0);
    receive_close(receive);
}

Test(receive, several_iterators_hold_a_part)
{
    struct receive *receive = make(16 * MB, 0);
    struct receive_slot *slot;
    uint64_t bytes = 100;

    cr_assert_eq(receive_reserve(receive, 0, &bytes, 1, 2, &slot, NULL), 0);
    receive_hold(slot, 0);
    receive_release(slot, 0);
    receive_release(slot, 0);
    cr_assert_eq(stats_of(receive).n_held, 1);
    receive_release(slot, 0);
    cr_assert_eq(stats_of(receive).n_held, 0);
    cr_assert_eq(receive_reserve(receive, 1, &bytes, 1, 0, &slot, NULL), -EINVAL);
    receive_close(receive);
}

Test(receive, a_batch_outlives_close)
{
    struct receive *receive = make(16 * MB, 0);
    struct receive_slot *a = reserve(receive, 0, 100, 100), *b = reserve(receive, 1, 100, 100);
    unsigned char *data = a->parts[0].data;

    memset(data, 5, 100);
    receive_close(receive);
    receive_release(b, 0);
    receive_release(b, 1);
    receive_release(a, 1);
    cr_assert_eq(data[99], 5);
    cr_assert(samples_readable(data));
    receive_release(a, 0);
    cr_assert(!samples_readable(data), "the last release gives the memory back");
}

Test(receive, debug_slots_make_a_use_after_release_fault)
{
    struct receive *receive = make(16 * MB, POISE_DEBUG_SLOTS);
    struct receive_slot *slot = reserve(receive, 0, 100, 100), *next;
    unsigned char *a = slot->parts[0].data, *b = slot->parts[1].data;

    receive_hold(slot, 0);
    receive_release(slot, 0);
    cr_assert(samples_readable(a), "still held");
    receive_release(slot, 0);
    cr_assert(!samples_readable(a));
    cr_assert(samples_readable(b), "the other micro-batch is not released");
    receive_release(slot, 1);
    cr_assert(!samples_readable(b));
    next = reserve(receive, 1, 100, 100);
    cr_assert(samples_readable(next->parts[0].data));
    memset(next->parts[1].data, 1, 100);
    receive_release(next, 0);
    receive_release(next, 1);
    receive_close(receive);
}

Test(receive, nothing_is_mapped_in_a_child)
{
    struct receive *receive = make(16 * MB, 0);
    struct receive_slot *slot = reserve(receive, 0, 4096, 0);
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(samples_readable(slot->parts[0].data));
    cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    receive_release(slot, 0);
    receive_release(slot, 1);
    receive_close(receive);
}

/* The engine reserves; two trainer threads release; the handle is closed in between. */
#define N_STEPS 300u

struct hand_over {
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct receive_slot *slots[N_STEPS];
    uint32_t n;
};

static void *release_odd_or_even(void *arg, uint32_t part)
{
    struct hand_over *hand = arg;

    for (uint32_t i = 0; i < N_STEPS; i++) {
        struct receive_slot *slot;

        pthread_mutex_lock(&hand->lock);
        while (hand->n <= i)
            pthread_cond_wait(&hand->change, &hand->lock);
        slot = hand->slots[i];
        pthread_mutex_unlock(&hand->lock);
        for (uint64_t k = 0; k < 1000; k++)
            cr_assert_eq(((unsigned char *)slot->parts[part].data)[k], (unsigned char)(i + part));
        receive_release(slot, part);
        pthread_mutex_lock(&hand->lock);
        pthread_cond_broadcast(&hand->change);
        pthread_mutex_unlock(&hand->lock);
    }
    return NULL;
}

static void *release_first(void *arg)
{
    return release_odd_or_even(arg, 0);
}

static void *release_second(void *arg)
{
    return release_odd_or_even(arg, 1);
}

Test(receive, threads_release_while_the_engine_reserves_and_closes)
{
    static struct hand_over hand = { .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };
    struct receive *receive = make(64 * 1024, 0);
    pthread_t threads[2];
    uint64_t parts[] = { 5000, 6000 };

    cr_assert_eq(pthread_create(&threads[0], NULL, release_first, &hand), 0);
    cr_assert_eq(pthread_create(&threads[1], NULL, release_second, &hand), 0);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        struct receive_slot *slot;
        int rc;

        pthread_mutex_lock(&hand.lock);
        while ((rc = receive_reserve(receive, i, parts, 2, 1, &slot, NULL)) == -EAGAIN)
            pthread_cond_wait(&hand.change, &hand.lock);
        pthread_mutex_unlock(&hand.lock);
        cr_assert_eq(rc, 0);
        memset(slot->parts[0].data, (int)i, 5000);
        memset(slot->parts[1].data, (int)i + 1, 6000);
        pthread_mutex_lock(&hand.lock);
        hand.slots[hand.n++] = slot;
        pthread_cond_broadcast(&hand.change);
        pthread_mutex_unlock(&hand.lock);
    }
    receive_close(receive);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}
