/* SPDX-License-Identifier: Apache-2.0 */
/* Send memory: what is handed out, when it is full, what is recycled, and what peers are told. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/arena.h"
#include "samples.h"

#define MB (1ull << 20)

static struct arena *make(uint64_t budget)
{
    struct arena *arena;

    cr_assert_eq(arena_new(budget, 0, &arena, NULL), 0);
    return arena;
}

static void *get(struct arena *arena, uint64_t bytes)
{
    struct poise_err err;
    void *data = NULL;

    cr_assert(arena_alloc(arena, bytes, &data, &err) == 0, "%s", err.text);
    return data;
}

static struct arena_stats stats_of(const struct arena *arena)
{
    struct arena_stats stats;

    arena_stats(arena, &stats);
    return stats;
}

Test(arena, hands_out_aligned_memory_that_does_not_overlap)
{
    struct arena *arena = make(64 * MB);
    unsigned char *a = get(arena, 100), *b = get(arena, 0), *c = get(arena, 1);

    cr_assert((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0 && (uintptr_t)c % 64 == 0);
    cr_assert(b >= a + 100 && c > b);
    memset(a, 1, 100);
    arena_free(arena);
    arena_free(NULL);
}

Test(arena, knows_its_own_memory)
{
    struct arena *arena = make(64 * MB);
    unsigned char *a = get(arena, 1000), other[16];
    const void *base;
    struct arena_place place;
    uint64_t bytes;

    cr_assert(arena_find(arena, a + 10, 900, &place));
    cr_assert(arena_lookup(arena, place.segment, place.generation, &base, &bytes));
    cr_assert((const unsigned char *)base + place.offset == a + 10);
    cr_assert(!arena_find(arena, a + 10, 2000, &place), "past what was handed out");
    cr_assert(!arena_find(arena, a, UINT64_MAX, &place));
    cr_assert(!arena_find(arena, other, sizeof other, &place));
    cr_assert(!arena_find(arena, NULL, 1, &place));
    cr_assert(!arena_find(arena, a, 0, &place));
    cr_assert(!arena_lookup(arena, place.segment, place.generation + 1, &base, &bytes));
    cr_assert(!arena_lookup(arena, 99, 1, &base, &bytes));
    cr_assert_eq(arena_commit(arena, 5, NULL), 0);
    cr_assert(!arena_find(arena, a, 100, &place), "a submitted step's memory is not the next one's");
    cr_assert(arena_lookup(arena, 0, 1, &base, &bytes));
    arena_free(arena);
}

Test(arena, a_steady_job_makes_no_segment_after_its_first_steps)
{
    struct arena *arena = make(256 * MB);
    uint64_t bytes = 0;
    uint32_t n = 0;

    for (uint64_t step = 0; step < 50; step++) {
        for (int i = 0; i < 8; i++)
            memset(get(arena, MB), (int)step, MB);
        cr_assert_eq(arena_commit(arena, step, NULL), 0);
        if (step >= 2)
            arena_done(arena, step - 2);
        if (step == 5) {
            bytes = stats_of(arena).bytes;
            n = stats_of(arena).n_segments;
        }
    }
    cr_assert_eq(stats_of(arena).bytes, bytes);
    cr_assert_eq(stats_of(arena).n_segments, n);
    cr_assert(n <= 4, "%u", n);
    cr_assert_eq(stats_of(arena).n_in_flight, 2);
    arena_free(arena);
}

/* Making a segment touches cold memory, so steps of all sizes, with a long tail, must soon live on what is there. */
static uint32_t segments_made(uint64_t budget, uint64_t unit)
{
    struct arena *arena = make(budget);
    struct arena_change change;
    uint64_t seed = 77, oldest = 0;
    uint32_t n_made = 0;

    for (uint64_t step = 0; step < 300; step++) {
        for (int i = 0; i < 8; i++) {
            uint64_t bytes = samples_below(&seed, unit) << samples_below(&seed, 4);
            void *data;
            int rc;

            while ((rc = arena_alloc(arena, bytes, &data, NULL)) == -EAGAIN)
                arena_done(arena, oldest++);
            cr_assert_eq(rc, 0);
        }
        cr_assert_eq(arena_commit(arena, step, NULL), 0);
        while (arena_next_change(arena, &change))
            n_made += change.offer;
        while (oldest + 3 <= step)
            arena_done(arena, oldest++);
    }
    arena_free(arena);
    return n_made;
}

Test(arena, batches_of_uneven_sizes_do_not_make_new_segments_for_ever)
{
    uint32_t ample = segments_made(64 * MB, 40000), tight = segments_made(6 * MB, 40000);

    cr_assert(ample <= 12 && tight <= 24, "%u with room, %u without", ample, tight);
}

Test(arena, two_of_the_largest_step_fit_where_the_budget_allows)
{
    struct arena *arena = make(20 * MB);
    void *data;

    for (uint64_t step = 0; step < 20; step++) {
        get(arena, 10 * MB);
        cr_assert_eq(arena_commit(arena, step, NULL), 0);
        if (step >= 1) {
            struct poise_err err;

            cr_assert_eq(arena_alloc(arena, MB, &data, &err), -EAGAIN, "step %" PRIu64, step);
            cr_assert(strstr(err.text, "2 older steps"), "%s", err.text);
            arena_done(arena, step - 1);
        }
        cr_assert(stats_of(arena).bytes <= 20 * MB);
    }
    cr_assert_eq(stats_of(arena).slots, 2);
    arena_free(arena);
}

Test(arena, a_step_above_the_budget_says_needed_and_available)
{
    struct arena *arena = make(20 * MB);
    struct poise_err err;
    void *data = NULL;

    cr_assert_eq(arena_alloc(arena, 30 * MB, &data, &err), -ENOMEM);
    cr_assert(strstr(err.text, "needs 30.0 MB") && strstr(err.text, "20.0 MB are available"), "%s", err.text);
    cr_assert_eq(arena_alloc(arena, UINT64_MAX, &data, &err), -ENOMEM);
    cr_assert_eq(arena_alloc(arena, INT64_MAX / 4, &data, &err), -ENOMEM);
    cr_assert(data == NULL);
    cr_assert_eq(arena_alloc(arena, 20 * MB, &data, &err), 0, "all of the budget is fine");
    cr_assert_eq(arena_alloc(arena, 1 * MB, &data, &err), -ENOMEM, "nothing is in flight that could give room");
    arena_discard(arena);
    get(arena, 15 * MB);
    cr_assert_eq(arena_commit(arena, 0, NULL), 0);
    cr_assert_eq(arena_alloc(arena, 30 * MB, &data, &err), -ENOMEM, "waiting would not help");
    cr_assert_eq(arena_alloc(arena, 15 * MB, &data, &err), -EAGAIN);
    arena_done(arena, 0);
    cr_assert_eq(arena_alloc(arena, 15 * MB, &data, &err), 0);
    arena_free(arena);
}

Test(arena, a_step_that_fits_but_for_the_segments_it_has_begun_says_so)
{
    struct arena *arena = make(20 * MB);
    struct poise_err err;
    void *data;

    get(arena, 12 * MB);
    cr_assert_eq(arena_commit(arena, 0, NULL), 0);
    arena_done(arena, 0);
    get(arena, 2 * MB);
    cr_assert_eq(arena_alloc(arena, 12 * MB, &data, &err), -ENOMEM);
    cr_assert(strstr(err.text, "needs 14.0 MB") && strstr(err.text, "begun segments of 12.0 MB"), "%s", err.text);
    arena_discard(arena);
    get(arena, 12 * MB);
    get(arena, 2 * MB);
    arena_free(arena);
}

Test(arena, memory_short_while_it_grows_is_an_error)
{
    struct arena *arena = make(1ull << 50);
    struct poise_err err;
    void *data = NULL;

    get(arena, MB);
    cr_assert_eq(arena_alloc(arena, 1ull << 46, &data, &err), -ENOMEM);
    cr_assert(strstr(err.text, "needs 64.0 TB") && strstr(err.text, "available"), "%s", err.text);
    cr_assert(data == NULL);
    get(arena, MB);
    arena_free(arena);
}

Test(arena, discard_gives_all_of_it_back)
{
    struct arena *arena = make(64 * MB);
    void *first = get(arena, 3 * MB);

    get(arena, 20 * MB);
    arena_discard(arena);
    cr_assert_eq(stats_of(arena).pending, 0);
    cr_assert(get(arena, 3 * MB) == first);
    arena_free(arena);
}

Test(arena, steps_may_be_done_in_any_order_and_twice)
{
    struct arena *arena = make(64 * MB);

    for (uint64_t step = 10; step < 14; step++) {
        if (step != 12)
            get(arena, 100);
        cr_assert_eq(arena_commit(arena, step, NULL), 0, "also an empty one");
    }
    cr_assert_eq(arena_commit(arena, 11, NULL), -EEXIST);
    arena_done(arena, 13);
    arena_done(arena, 13);
    arena_done(arena, 12);
    arena_done(arena, 99);
    cr_assert_eq(stats_of(arena).n_in_flight, 2);
    arena_done(arena, 10);
    arena_done(arena, 11);
    cr_assert_eq(stats_of(arena).n_in_flight, 0);
    for (uint64_t step = 0; step < ARENA_MAX_STEPS; step++)
        cr_assert_eq(arena_commit(arena, step, NULL), 0);
    cr_assert_eq(arena_may_commit(arena, 99, NULL), -EAGAIN);
    cr_assert_eq(arena_commit(arena, 99, NULL), -EAGAIN);
    arena_free(arena);
}

Test(arena, segments_that_steps_have_outgrown_are_retracted_before_their_number_is_offered_again)
{
    struct arena *arena = make(200 * MB);
    struct arena_change change;
    uint32_t generation[16] = { 0 }, n_retracted = 0;
    bool live[16] = { false };

    for (uint64_t step = 0; step < 12; step++) {
        get(arena, (step + 1) * 4 * MB);
        cr_assert_eq(arena_commit(arena, step, NULL), 0);
        while (arena_next_change(arena, &change)) {
            cr_assert(change.segment < 16);
            if (change.offer) {
                cr_assert(!live[change.segment] && change.generation > generation[change.segment] && change.fd >= 0);
                generation[change.segment] = change.generation;
            } else {
                cr_assert(live[change.segment] && change.generation == generation[change.segment]);
                n_retracted++;
            }
            live[change.segment] = change.offer;
        }
        if (step >= 1)
            arena_done(arena, step - 1);
        cr_assert(stats_of(arena).bytes <= 200 * MB);
    }
    cr_assert(n_retracted > 0);
    arena_free(arena);
}

Test(arena, offers_everything_again_when_the_daemon_comes_back)
{
    struct arena *arena = make(64 * MB);
    struct arena_change a, b;

    get(arena, MB);
    cr_assert(arena_next_change(arena, &a) && a.offer);
    cr_assert(!arena_next_change(arena, &b));
    arena_offer_again(arena);
    cr_assert(arena_next_change(arena, &b) && b.offer && b.segment == a.segment && b.generation == a.generation);
    cr_assert(!arena_next_change(arena, &b));
    arena_free(arena);
}

Test(arena, leaves_no_descriptor)
{
    int n_fds = samples_n_fds();
    struct arena *arena = make(64 * MB);

    get(arena, 10 * MB);
    cr_assert_eq(arena_commit(arena, 0, NULL), 0);
    get(arena, 30 * MB);
    cr_assert(samples_n_fds() > n_fds);
    arena_free(arena);
    cr_assert_eq(samples_n_fds(), n_fds);
}

Test(arena, a_child_of_fork_holds_nothing_of_it)
{
    int n_fds = samples_n_fds(), status;
    struct arena *arena = make(64 * MB);
    unsigned char *data = get(arena, 10 * MB);
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        bool mapped = samples_readable(data);

        arena_child(arena);
        _exit(mapped ? 1 : samples_n_fds() != n_fds ? 2 : 0);
    }
    cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0);
    cr_assert(samples_readable(data));
    arena_free(arena);
}

/* A model of what is alive: every piece of memory keeps its own byte until its step is done. */
struct piece {
    unsigned char *data, mark;
    uint64_t bytes, step;
};

#define PENDING UINT64_MAX
#define MAX_PIECES 512

static void forget(struct piece *pieces, uint32_t *n, uint64_t step)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < *n; i++) {
        for (uint64_t at = 0; at < pieces[i].bytes; at += 997)
            cr_assert_eq(pieces[i].data[at], pieces[i].mark);
        if (pieces[i].step != step)
            pieces[kept++] = pieces[i];
    }
    *n = kept;
}

Test(arena, random_use_never_overlaps_and_never_exceeds_the_budget)
{
    uint64_t seed = samples_seed("arena"), step = 0, oldest = 0, n_full = 0, n_none = 0;
    struct arena *arena = make(2 * MB);
    struct piece pieces[MAX_PIECES];
    uint32_t n = 0;

    for (int i = 0; i < 4000; i++) {
        uint64_t what = samples_below(&seed, 10), bytes = samples_below(&seed, i % 97 == 0 ? MB : 60000);
        void *data;
        int rc;

        if (what < 6 && n < MAX_PIECES) {
            rc = arena_alloc(arena, bytes, &data, NULL);
            cr_assert(rc == 0 || rc == -EAGAIN || rc == -ENOMEM);
            n_full += rc == -EAGAIN;
            n_none += rc == -ENOMEM;
            if (rc == 0) {
                pieces[n] = (struct piece){ data, (unsigned char)samples_random(&seed), bytes, PENDING };
                memset(data, pieces[n].mark, bytes);
                n++;
            } else if (rc == -EAGAIN) {
                cr_assert(oldest < step);
                arena_done(arena, oldest);
                forget(pieces, &n, oldest++);
            } else {
                arena_discard(arena);
                forget(pieces, &n, PENDING);
            }
        } else if (what < 8 && step - oldest < 8) {
            cr_assert_eq(arena_commit(arena, step, NULL), 0);
            for (uint32_t k = 0; k < n; k++)
                if (pieces[k].step == PENDING)
                    pieces[k].step = step;
            step++;
        } else if (oldest < step) {
            arena_done(arena, oldest);
            forget(pieces, &n, oldest++);
        }
        cr_assert(stats_of(arena).bytes <= 2 * MB && stats_of(arena).n_segments <= 16);
    }
    cr_assert(n_full > 0, "the test must reach the limit: %" PRIu64 " full, %" PRIu64 " none", n_full, n_none);
    arena_free(arena);
}
