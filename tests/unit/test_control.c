/* SPDX-License-Identifier: Apache-2.0 */
/* The control segment: one writer, many readers, never half an entry. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "client/control.h"
#include "samples.h"

static struct control make(uint32_t rank, uint32_t n)
{
    struct control control;
    struct poise_err err;

    cr_assert(control_new(rank, n, &control, &err) == 0, "%s", err.text);
    return control;
}

Test(control, a_step_is_read_as_it_was_published)
{
    struct control control = make(2, 4);
    struct control_view view = control_own(&control);
    struct control_place place = { .segment = 3, .generation = 7, .offset = 1ull << 40, .bytes = 5, .n_samples = 9 };
    struct control_place read = { .segment = 77 };

    cr_assert_eq(control_read(view, 0, &read), -EAGAIN);
    cr_assert_eq(read.segment, 77, "untouched on failure");
    for (uint64_t step = 0; step < 100; step++) {
        place.offset = step;
        control_publish(&control, step, &place);
        cr_assert_eq(control_read(view, step, &read), 0);
        cr_assert(read.segment == 3 && read.generation == 7 && read.offset == step && read.bytes == 5 &&
                  read.n_samples == 9);
        cr_assert_eq(control_read(view, step + 1, &read), -EAGAIN);
        if (step >= CONTROL_STEPS)
            cr_assert_eq(control_read(view, step - CONTROL_STEPS, &read), -ESTALE);
        if (step > 0)
            cr_assert_eq(control_read(view, step - 1, &read), 0);
    }
    control_fini(&control);
}

Test(control, a_resumed_job_begins_at_a_late_step)
{
    struct control control = make(0, 1);
    struct control_place place = { .n_samples = 1 }, read;

    control_publish(&control, 1000003, &place);
    cr_assert_eq(control_read(control_own(&control), 1000003, &read), 0);
    cr_assert_eq(control_read(control_own(&control), 1000002, &read), -EAGAIN);
    control_set_done(&control, 1000003, 0);
    cr_assert(control_is_done(control_own(&control), 1000003, 0));
    control_fini(&control);
}

Test(control, done_is_by_step_and_peer)
{
    struct control control = make(1, 3);
    struct control_view view = control_own(&control);

    control_set_done(&control, 5, 2);
    cr_assert(control_is_done(view, 5, 2));
    cr_assert(!control_is_done(view, 5, 1));
    cr_assert(!control_is_done(view, 6, 2));
    cr_assert(!control_is_done(view, 5 + CONTROL_STEPS, 2), "an old mark does not count for a step 32 later");
    control_set_done(&control, 5 + CONTROL_STEPS, 2);
    cr_assert(control_is_done(view, 5 + CONTROL_STEPS, 2) && control_is_done(view, 5, 2));
    control_set_done(&control, 5, 3);
    cr_assert(!control_is_done(view, 5, 3), "out of range is ignored");
    control_fini(&control);
}

Test(control, a_view_is_checked)
{
    struct control control = make(1, 3);
    struct control_view view;
    struct poise_err err;
    unsigned char copy[sizeof(uint64_t) * 3 * CONTROL_STEPS + 64 * (CONTROL_STEPS + 1)];

    memcpy(copy, control.segment.base, sizeof copy);
    cr_assert(control_view(copy, sizeof copy, 1, 3, &view, &err) == 0, "%s", err.text);
    cr_assert_eq(control_view(copy, sizeof copy - 1, 1, 3, &view, &err), -EINVAL);
    cr_assert_eq(control_view(copy, 0, 1, 3, &view, &err), -EINVAL);
    cr_assert_eq(control_view(copy, sizeof copy, 1, 4, &view, &err), -EINVAL);
    cr_assert_eq(control_view(copy, sizeof copy, 2, 3, &view, &err), -EINVAL);
    cr_assert(strstr(err.text, "says rank 1 of 3"), "%s", err.text);
    for (int i = 0; i < 16; i++) {
        copy[i] ^= 0x41;
        cr_assert_eq(control_view(copy, sizeof copy, 1, 3, &view, &err), -EINVAL);
        copy[i] ^= 0x41;
    }
    control_fini(&control);
    cr_assert_eq(control_new(0, 0, &control, &err), -EINVAL);
    cr_assert_eq(control_new(0, UINT32_MAX, &control, &err), -EINVAL);
}

#define N_STEPS 200000u

static _Atomic uint64_t newest;

static void *publish(void *arg)
{
    struct control *control = arg;

    for (uint64_t step = 1; step <= N_STEPS; step++) {
        struct control_place place = { .segment = (uint32_t)step, .generation = (uint32_t)step, .offset = step,
                                       .bytes = step, .n_samples = (uint32_t)step, .published_ns = step };

        control_publish(control, step, &place);
        atomic_store_explicit(&newest, step, memory_order_relaxed);
    }
    return NULL;
}

/* Reads the entry that is about to be replaced, so that the two meet in it as often as can be. */
Test(control, a_reader_beside_the_writer_never_sees_half_an_entry)
{
    struct control control = make(0, 1);
    struct control_view view;
    struct control_place place;
    const void *base;
    pthread_t thread;
    uint64_t step = 0;

    cr_assert_eq(segment_map(dup(control.segment.fd), control.segment.bytes, &base, NULL), 0);
    cr_assert_eq(control_view(base, control.segment.bytes, 0, 1, &view, NULL), 0);
    cr_assert_eq(pthread_create(&thread, NULL, publish, &control), 0);
    while (step < N_STEPS) {
        uint64_t oldest;
        int rc;

        step = atomic_load_explicit(&newest, memory_order_relaxed);
        oldest = step > CONTROL_STEPS ? step - CONTROL_STEPS + 1 : step;
        rc = control_read(view, oldest, &place);
        cr_assert(rc == 0 || rc == -ESTALE || rc == -EAGAIN);
        if (rc == 0)
            cr_assert(place.offset == oldest && place.bytes == oldest && place.segment == (uint32_t)oldest &&
                      place.generation == (uint32_t)oldest && place.n_samples == (uint32_t)oldest &&
                      place.published_ns == oldest);
    }
    pthread_join(thread, NULL);
    cr_assert_eq(control_read(view, N_STEPS, &place), 0);
    segment_unmap(base, control.segment.bytes);
    control_fini(&control);
}
