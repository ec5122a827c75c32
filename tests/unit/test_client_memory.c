/* SPDX-License-Identifier: Apache-2.0 */
/* Out of memory in the client is an error, wherever it strikes. The allocator of this program fails on demand;
 * sanitizers bring their own, so there the tests only run the good case. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/features.h"
#include "client/handle.h"
#include "samples.h"

static _Thread_local int countdown = -1; /* allocations of this thread until one fails; -1: none does */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_FAIL true
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);

static bool fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}
#else
#define CAN_FAIL false
#endif

/* Calls try() with the first, second ... allocation failing until it succeeds; every failure must be -ENOMEM. */
static void fail_everywhere(int (*try_)(struct poise_err *err), int at_least)
{
    int rc = -ENOMEM, n = 0;

    for (; rc == -ENOMEM && n < 1000; n++) {
        struct poise_err err = {0};
        countdown = CAN_FAIL ? n : -1;
        rc = try_(&err);
        countdown = -1;
        cr_assert(rc == 0 || err.code == rc, "%d but %d in *err", rc, err.code);
        cr_assert(rc == 0 || err.text[0], "no text");
    }
    cr_assert_eq(rc, 0, "allocation %d: %d", n, rc);
    cr_assert(!CAN_FAIL || n > at_least, "only %d allocations failed", n - 1);
}

static struct settings settings(void)
{
    const struct poise_options opt = {
        .size = sizeof opt, .job = "j", .n_ranks = 4, .cost = "length", .flags = POISE_PLAN_ONLY};
    struct settings s;
    struct poise_err err;

    cr_assert_eq(settings_resolve(&opt, &s, &err), 0, "%s", err.text);
    return s;
}

static int resolve(struct poise_err *err)
{
    const struct poise_options opt = {.size = sizeof opt, .job = "j", .n_ranks = 4, .cost = "length"};
    struct settings s;
    int rc = settings_resolve(&opt, &s, err);

    if (rc == 0)
        settings_free(&s);
    return rc;
}

Test(client_memory, options)
{
    fail_everywhere(resolve, 1);
}

static int make_features(struct poise_err *err)
{
    static const int64_t length = 4;
    struct poise_sample samples[3] = {{.length = &length}, {.length = &length}, {.length = &length}};
    static const struct wire_table none;
    struct settings s = {.join = {.n_ranks = 1}, .plan_only = true};
    struct features f;

    s.options.n_phases = 1;
    s.options.phases[0] = (struct poise_phase){.name = "text", .linear = 1, .passes = 1};
    int rc = features_make(&s, &none, samples, 3, sizeof *samples, &f, err);
    if (rc == 0)
        features_fini(&f);
    return rc;
}

Test(client_memory, features)
{
    fail_everywhere(make_features, 1);
}

static int make_delivered(struct poise_err *err)
{
    uint32_t in_rank[2] = {0}, in_index[2] = {0, 1}, count[1] = {2};
    struct wire_slice slice = {.n_in = 2, .in_rank = in_rank, .in_index = in_index, .count = count};
    struct wire_outcome outcome = {.n_micro_batches = 1, .n_slices = 1, .slices = &slice};
    struct wire_field field = samples_field("x", POISE_U8, POISE_CONCAT, 0, 1, SHAPE(-1));
    struct wire_table table = {.n_fields = 1, .fields = &field};
    struct merged *merged;
    struct delivered *set;
    struct wake *wake;
    int rc = wake_new(&wake, err);

    if (rc < 0)
        return rc;
    rc = merged_new(&table, (struct wire_id){1, 1}, &merged, err);
    if (rc == 0) {
        rc = delivered_new(&outcome, merged, wake, 0, &set, err);
        if (rc == 0)
            delivered_unref(set);
        merged_unref(merged);
    }
    wake_unref(wake);
    return rc;
}

Test(client_memory, delivered)
{
    fail_everywhere(make_delivered, 3);
}

static int make_handle(struct poise_err *err)
{
    int saved = countdown;
    countdown = -1;
    struct settings s = settings();
    countdown = saved;
    struct poise *p;
    int rc = handle_new(&s, &p, err);

    if (rc == 0) {
        rc = shuffle_new(0, 4, &p->shuffle, err);
        handle_free(p);
    } else {
        settings_free(&s);
    }
    return rc;
}

Test(client_memory, handle)
{
    fail_everywhere(make_handle, 6);
}

/* Metadata: a step is submitted whole or not at all. */
static struct poise *submitter;

static int submit_end_(struct poise_err *err)
{
    uint64_t next = ledger_next_submit(submitter->ledger), submitted = submitter->stats.steps_submitted;
    struct poise_err why = {.code = -EBADMSG, .rank = 0, .sample = POISE_NONE, .text = "because"};

    pthread_mutex_lock(&submitter->lock);
    int rc = submit_bad(submitter, &why, err);
    pthread_mutex_unlock(&submitter->lock);
    cr_assert_eq(ledger_next_submit(submitter->ledger), next + (rc == 0));
    cr_assert_eq(submitter->stats.steps_submitted, submitted + (rc == 0));
    return rc;
}

Test(client_memory, submission)
{
    struct settings s = settings();

    cr_assert_eq(handle_new(&s, &submitter, NULL), 0);
    cr_assert_eq(ledger_new(0, WIRE_WINDOW, &submitter->ledger), 0);
    submitter->epoch = (struct wire_id){1, 1};
    fail_everywhere(submit_end_, 3);
    handle_free(submitter);
}
