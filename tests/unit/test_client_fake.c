/* SPDX-License-Identifier: Apache-2.0 */
/* A whole handle against a poised that loses, doubles, reorders and lies. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fake_daemon.h"
#include "poise.h"
#include "proto/schema.h"

static struct fake_daemon fake;
static struct poise *p;
static const struct wire_id epoch = {7, 7};
static struct wire_join join;

static void begin(void)
{
    fake_start(&fake);
}

static void end(void)
{
    fake_end(&fake);
}

TestSuite(client_fake, .init = begin, .fini = end);

static void *open_(void *arg)
{
    struct poise_options opt = {.size = sizeof opt,
                                .job = "j",
                                .n_ranks = 1,
                                .cost = "length",
                                .socket_dir = fake.dir,
                                .memory_budget = 4 << 20,
                                .peer_timeout_ms = 10000,
                                .close_timeout_ms = 2000};
    struct poise_err *err = arg;

    if (poise_open(&opt, &p, err) < 0)
        p = NULL;
    return NULL;
}

static void shake_hands(void)
{
    fake_accept(&fake);
    fake_token(&fake);
    wire_free(fake_expect(&fake, WIRE_HELLO));
    fake_welcome(&fake);
    struct wire_message *msg = fake_expect(&fake, WIRE_JOIN);
    join = msg->join;
    join.coordinators = NULL;
    join.options = NULL;
    wire_free(msg);
}

static void say_roster(void)
{
    struct wire_member member = {.incarnation = join.incarnation, .host = "h"};
    struct wire_message msg = {.type = WIRE_ROSTER,
                               .roster = {.epoch = epoch,
                                          .job = "j",
                                          .group = "dp",
                                          .n_ranks = 1,
                                          .n_replicas = 1,
                                          .n_nodes = 1,
                                          .n_members = 1,
                                          .members = &member}};

    fake_say(&fake, &msg);
}

static const struct poise_field field = {
    .name = "x", .dtype = POISE_U8, .assembly = POISE_CONCAT, .n_dims = 1, .shape = {-1}};

/* Opens and declares. */
static void come_up(void)
{
    struct poise_err err = {0};
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, open_, &err), 0);
    shake_hands();
    say_roster();
    pthread_join(thread, NULL);
    cr_assert_not_null(p, "%s", err.text);
    cr_assert_eq(poise_declare(p, &field, 1, sizeof field, &err), 0, "%s", err.text);
}

static void submit(uint64_t step)
{
    static const int64_t length = 3;
    const struct poise_value value = {.field = "x", .data = "abc", .n_dims = 1, .shape = {3}};
    const struct poise_sample sample = {.tag = step,
                                        .length = &length,
                                        .loss_tokens = 3,
                                        .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                        .n_values = 1,
                                        .values = &value,
                                        .value_size = sizeof value};
    struct poise_err err = {0};

    cr_assert_eq(poise_submit(p, step, &sample, 1, sizeof sample, -1, &err), 0, "%s", err.text);
}

/* The outcome of a step as it should be; tests spoil it. */
static struct spoiled {
    struct wire_message msg;
    struct wire_slice slice;
    struct wire_table table;
    struct wire_field field;
    uint32_t in_rank, in_index, count[2], out_rank, out_micro_batch, out_row, out_place;
    uint64_t in_bytes;
} spoiled;

static struct wire_outcome *outcome(uint64_t step)
{
    struct poise_err err;
    struct spoiled *s = &spoiled;

    *s = (struct spoiled){.count = {1, 0}, .in_bytes = 3};
    cr_assert_eq(schema_field(&field, &s->field, &err), 0, "%s", err.text);
    s->table = (struct wire_table){.n_fields = 1, .fields = &s->field};
    s->slice = (struct wire_slice){.n_in = 1,
                                   .n_out = 1,
                                   .in_rank = &s->in_rank,
                                   .in_index = &s->in_index,
                                   .in_bytes = &s->in_bytes,
                                   .count = s->count,
                                   .out_rank = &s->out_rank,
                                   .out_micro_batch = &s->out_micro_batch,
                                   .out_row = &s->out_row,
                                   .out_place = &s->out_place};
    s->msg = (struct wire_message){.type = WIRE_OUTCOME,
                                   .outcome = {.epoch = epoch,
                                               .step = step,
                                               .kind = WIRE_OUTCOME_PLAN,
                                               .plan_id = {1, step + 1},
                                               .n_micro_batches = 1,
                                               .totals = {.n_samples = 1, .loss_tokens = 3, .arrival_micro_batches = 1},
                                               .table_hash = schema_hash(&s->table),
                                               .table = &s->table,
                                               .n_slices = 1,
                                               .slices = &s->slice}};
    return &s->msg.outcome;
}

static void expect_batch(uint64_t step)
{
    const struct poise_batch *batch;
    struct poise_err err = {0};

    cr_assert_eq(poise_next(p, 0, -1, &batch, &err), 0, "%s", err.text);
    cr_assert_eq(batch->step, step);
    cr_assert_eq(batch->n_samples, 1);
    cr_assert_eq(batch->rows[0].tag, step);
    cr_assert_float_eq(batch->rows[0].weight_step * 3, 1, 1e-12);
    cr_assert_eq(batch->fields[0].bytes, 3);
    cr_assert(memcmp(batch->fields[0].data, "abc", 3) == 0);
    poise_release(batch);
}

static void expect_end(int code, const char *text)
{
    const struct poise_batch *batch;
    struct poise_err err = {0};
    int rc = poise_next(p, 0, -1, &batch, &err);

    cr_assert_eq(rc, code, "%d %s", rc, err.text);
    cr_assert(strstr(err.text, text), "\"%s\" does not say %s", err.text, text);
}

static void close_(void)
{
    struct poise_err err = {0};

    cr_assert_eq(poise_close(p, &err), 0, "%s", err.text);
}

Test(client_fake, a_step_by_hand)
{
    come_up();
    submit(0);
    struct wire_message *msg = fake_expect(&fake, WIRE_META);
    cr_assert_not_null(msg->meta.metas[0].table);
    cr_assert_eq(msg->meta.metas[0].bytes[0], 3);
    wire_free(msg);
    outcome(0);
    fake_say(&fake, &spoiled.msg);
    expect_batch(0);
    submit(1);
    msg = fake_expect(&fake, WIRE_META);
    cr_assert_null(msg->meta.metas[0].table); /* it did not change */
    wire_free(msg);
    outcome(1)->table = NULL;
    fake_say(&fake, &spoiled.msg);
    expect_batch(1);
    close_();
    msg = fake_expect(&fake, WIRE_LEAVE);
    cr_assert_eq(msg->leave.submitted, 2);
    cr_assert(!msg->leave.ended);
    wire_free(msg);
}

Test(client_fake, doubled_and_reordered_outcomes)
{
    come_up();
    submit(0);
    submit(1);
    outcome(1);
    fake_say(&fake, &spoiled.msg);
    struct wire_message *msg = fake_expect(&fake, WIRE_PULL);
    cr_assert_eq(msg->ask.step, 0);
    wire_free(msg);
    outcome(0);
    fake_say(&fake, &spoiled.msg);
    fake_say(&fake, &spoiled.msg);
    expect_batch(0);
    msg = fake_expect(&fake, WIRE_PULL);
    wire_free(msg);
    outcome(1);
    fake_say(&fake, &spoiled.msg);
    expect_batch(1);
    outcome(5); /* of a step that was never submitted */
    fake_say(&fake, &spoiled.msg);
    outcome(0)->epoch.lo = 8; /* of another epoch */
    fake_say(&fake, &spoiled.msg);
    submit(2);
    outcome(2);
    fake_say(&fake, &spoiled.msg);
    expect_batch(2);
    close_();
}

Test(client_fake, a_merged_table_that_is_not_here_is_asked_for)
{
    come_up();
    submit(0);
    outcome(0)->table = NULL;
    fake_say(&fake, &spoiled.msg);
    struct wire_message *msg;
    for (;;) {
        msg = fake_expect(&fake, WIRE_PULL);
        bool asked = msg->ask.step == 0 && msg->ask.want_table;
        wire_free(msg);
        if (asked)
            break;
    }
    outcome(0);
    fake_say(&fake, &spoiled.msg);
    expect_batch(0);
    close_();
}

Test(client_fake, metadata_is_said_again_when_asked_for)
{
    struct wire_message need = {.type = WIRE_NEED, .ask = {.epoch = epoch, .step = 3, .want_table = true}};

    come_up();
    submit(0);
    wire_free(fake_expect(&fake, WIRE_META));
    fake_say(&fake, &need); /* of a step that was never submitted */
    need.ask.step = 0;
    fake_say(&fake, &need);
    struct wire_message *msg = fake_expect(&fake, WIRE_META);
    cr_assert_eq(msg->meta.metas[0].step, 0);
    cr_assert_not_null(msg->meta.metas[0].table);
    wire_free(msg);
    outcome(0);
    fake_say(&fake, &spoiled.msg);
    expect_batch(0);
    fake_say(&fake, &need); /* decided, but kept: another coordinator may lack it */
    wire_free(fake_expect(&fake, WIRE_META));
    close_();
}

/* A program built with a newer header passes larger structs: fine where what is beyond is 0. */
Test(client_fake, samples_of_other_headers)
{
    static const int64_t length = 3;
    struct {
        struct poise_value value;
        uint64_t later;
    } values[2] = {{.value = {.field = "x", .data = "abc", .n_dims = 1, .shape = {3}}}};
    struct {
        struct poise_sample sample;
        uint64_t later;
    } samples[2];
    struct poise_err err = {0};

    come_up();
    memset(samples, 0, sizeof samples);
    for (int i = 0; i < 2; i++)
        samples[i].sample = (struct poise_sample){.length = &length,
                                                  .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                                  .n_values = 1,
                                                  .values = &values[0].value,
                                                  .value_size = sizeof values[0]};
    cr_assert_eq(poise_submit(p, 0, &samples[0].sample, 2, 0, -1, &err), -EINVAL);
    cr_assert(strstr(err.text, "struct poise_sample"), "%s", err.text);
    cr_assert_eq(poise_submit(p, 0, NULL, 2, sizeof samples[0], -1, &err), -EINVAL);
    values[0].later = 1;
    cr_assert_eq(poise_submit(p, 0, &samples[0].sample, 2, sizeof samples[0], -1, &err), -E2BIG);
    cr_assert(strstr(err.text, "struct poise_value"), "%s", err.text);
    values[0].later = 0;
    samples[1].later = 1;
    cr_assert_eq(poise_submit(p, 0, &samples[0].sample, 2, sizeof samples[0], -1, &err), -E2BIG);
    samples[1].later = 0;
    samples[1].sample.values = NULL;
    cr_assert_eq(poise_submit(p, 0, &samples[0].sample, 2, sizeof samples[0], -1, &err), -EINVAL);
    cr_assert_eq(err.sample, 1);
    samples[1].sample.values = &values[0].value;
    cr_assert_eq(poise_submit(p, 0, &samples[0].sample, 2, sizeof samples[0], -1, &err), 0, "%s", err.text);
    struct wire_message *msg = fake_expect(&fake, WIRE_META);
    cr_assert_eq(msg->meta.metas[0].n_samples, 2);
    wire_free(msg);
    poise_hurry(p); /* close would wait for the outcome */
    cr_assert_eq(poise_close(p, &err), 0, "%s", err.text);
}

/* Another poised, as it seems: everything is said again. */
Test(client_fake, a_lost_connection_is_made_again_and_everything_said_again)
{
    come_up();
    submit(0);
    wire_free(fake_expect(&fake, WIRE_META));
    fake_hang_up(&fake);
    submit(1);
    shake_hands();
    cr_assert(wire_id_is(join.epoch, epoch));
    say_roster();
    for (uint64_t step = 0; step < 2; step++) {
        struct wire_message *msg = fake_expect(&fake, WIRE_META);
        cr_assert_eq(msg->meta.metas[0].step, step);
        cr_assert_not_null(msg->meta.metas[0].table);
        wire_free(msg);
    }
    wire_free(fake_expect(&fake, WIRE_PULL));
    for (uint64_t step = 0; step < 2; step++) {
        outcome(step);
        fake_say(&fake, &spoiled.msg);
        expect_batch(step);
    }
    close_();
}

/* A plan that does not fit ends the epoch here, and everybody is told by a bad step. */
static void expect_refused(const char *text)
{
    fake_say(&fake, &spoiled.msg);
    expect_end(-ESHUTDOWN, text);
    struct wire_message *msg;
    for (bool bad = false; !bad; wire_free(msg)) {
        msg = fake_expect(&fake, WIRE_META);
        bad = msg->meta.metas[0].kind == WIRE_META_BAD;
        if (bad)
            cr_assert(strstr(msg->meta.metas[0].error.text, text), "%s", msg->meta.metas[0].error.text);
    }
    wire_free(fake_expect(&fake, WIRE_LEAVE));
    close_();
}

#define REFUSED(name, spoil, text)                                                                                     \
    Test(client_fake, name)                                                                                            \
    {                                                                                                                  \
        come_up();                                                                                                     \
        submit(0);                                                                                                     \
        outcome(0);                                                                                                    \
        spoil;                                                                                                         \
        expect_refused(text);                                                                                          \
    }

REFUSED(a_plan_without_its_slice, spoiled.slice.rank = 1, "slice")
REFUSED(a_plan_that_places_other_samples, spoiled.slice.n_out = 0, "another number")
REFUSED(a_plan_from_nowhere, spoiled.in_rank = 9, "sender")
REFUSED(a_plan_of_a_sample_that_there_is_not, spoiled.in_index = 9, "only 1")
REFUSED(a_plan_of_other_bytes, spoiled.in_bytes = 4, "the plan says 4")

Test(client_fake, two_outcomes_of_one_step)
{
    come_up();
    submit(0);
    outcome(0);
    fake_say(&fake, &spoiled.msg);
    expect_batch(0);
    outcome(0)->plan_id.hi = 99;
    expect_refused("two outcomes");
}

Test(client_fake, superseded_by_a_newer_process)
{
    struct wire_message no = {
        .type = WIRE_REFUSED,
        .refused = {.who = {.job = "j", .group = "dp"}, .error = {.code = -ESTALE, .text = "pid 5 is newer"}}};

    come_up();
    submit(0);
    fake_say(&fake, &no);
    expect_end(-ESHUTDOWN, "pid 5 is newer");
    close_();
}

Test(client_fake, refused_at_open)
{
    struct wire_message no = {
        .type = WIRE_REFUSED,
        .refused = {.who = {.job = "j", .group = "dp"}, .error = {.code = -EINVAL, .text = "no such thing"}}};
    struct poise_err err = {0};
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, open_, &err), 0);
    shake_hands();
    fake_say(&fake, &no);
    pthread_join(thread, NULL);
    cr_assert_null(p);
    cr_assert_eq(err.code, -EINVAL);
    cr_assert_str_eq(err.text, "no such thing");
}
