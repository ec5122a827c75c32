/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a step: errors that every rank hears alike, ends, modes, plans without payload, replicas. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

TestSuite(client_flow, .init = rig_begin, .fini = rig_end);

/* The next of this iterator must be that error, with these words. */
static void expect_next(struct poise *p, uint32_t iterator, int code, const char *first, const char *second)
{
    const struct poise_batch *batch = NULL;
    struct poise_err err = {0};
    int rc = poise_next(p, iterator, -1, &batch, &err);

    EXPECT(rc == code && err.code == code, "%d (%d) instead of %d: %s", rc, err.code, code, err.text);
    EXPECT(batch == NULL, "a batch came with an error");
    EXPECT(strstr(err.text, first) && strstr(err.text, second), "\"%s\" does not say \"%s\" and \"%s\"", err.text,
           first, second);
}

/* ----------------------------------------------------------------------------------------------------------- schema */

/* A rank whose whole batch is text: its samples go to ranks that have images and back. */
static int text_only(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "text-only");
    struct poise *p = rank_open(&opt);
    uint32_t flags = c->rank == 1 ? LOAD_TEXT_ONLY : 0;

    load_declare(p, flags);
    for (uint64_t step = 0; step < 6; step++) {
        rig_submit(p, step, c->rank, 5, flags);
        const struct poise_batch *batch;
        struct poise_err err;
        for (bool last = false; !last;) {
            EXPECT(poise_next(p, 0, -1, &batch, &err) == 0, "%s", err.text);
            EXPECT(batch->n_fields == 6, "%u fields", batch->n_fields);
            const struct poise_tensor *pixels = poise_batch_field(batch, "pixels");
            EXPECT(pixels && pixels->dtype == POISE_BF16 && pixels->n_dims == 2 && pixels->shape[1] == 8, "pixels");
            load_check(batch, c->board);
            last = batch->micro_batch + 1 == batch->n_micro_batches;
            poise_release(batch);
        }
    }
    rank_close(p);
    return 0;
}

static uint32_t always_5(uint64_t step, uint32_t rank)
{
    (void)step, (void)rank;
    return 5;
}

Test(client_flow, a_rank_that_never_saw_a_field_gets_zero_rows_of_it)
{
    ranks_run(3, rig.daemon.dir, rig.board, text_only, NULL);
    for (uint64_t step = 0; step < 6; step++)
        board_check(rig.board, step, 3, always_5);
}

static int dtype_differs(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "dtype");
    struct poise *p = rank_open(&opt);
    struct poise_field field = {.name = "x",
                                .dtype = c->rank == 2 ? POISE_F32 : POISE_BF16,
                                .assembly = POISE_CONCAT,
                                .n_dims = 1,
                                .shape = {-1}};
    struct poise_err err;

    EXPECT(poise_declare(p, &field, 1, sizeof field, &err) == 0, "%s", err.text);
    EXPECT(poise_submit(p, 0, NULL, 0, 0, -1, &err) == 0, "%s", err.text);
    expect_next(p, 0, -EBADMSG, "float32", "bfloat16");
    rank_close(p);
    return 0;
}

Test(client_flow, a_dtype_that_differs_is_the_same_error_on_all_ranks)
{
    ranks_run(3, rig.daemon.dir, rig.board, dtype_differs, NULL);
}

/* -------------------------------------------------------------------------------------------------------- bad steps */

static int loader_raises(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "raises");
    opt.n_iterators = 2;
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    for (uint64_t step = 0; step < 5; step++) {
        if (step == 2 && c->rank == 1)
            EXPECT(poise_fail(p, step, "cannot decode cat.jpg", -1, &err) == 0, "%s", err.text);
        else
            rig_submit(p, step, c->rank, 5, 0);
        for (uint32_t iterator = 0; iterator < 2; iterator++) {
            if (step == 2)
                expect_next(p, iterator, -EBADMSG, "rank 1", "cannot decode cat.jpg");
            else
                load_read(p, iterator, step, iterator == 0 ? c->board : NULL);
        }
    }
    struct poise_stats stats;
    poise_stats(p, &stats, sizeof stats);
    EXPECT(stats.samples_dropped == (c->rank == 1 ? 0 : 5), "%d dropped", (int)stats.samples_dropped);
    rank_close(p);
    return 0;
}

Test(client_flow, a_loader_that_raises_ends_its_step_only_and_every_iterator_hears_once)
{
    ranks_run(3, rig.daemon.dir, rig.board, loader_raises, NULL);
    for (uint64_t step = 0; step < 5; step++) {
        if (step != 2)
            board_check(rig.board, step, 3, always_5);
    }
}

/* Refused at submit, answered with poise_fail: nothing has moved, every rank is told. */
static int rows_mismatch(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "rows");
    struct poise *p = rank_open(&opt);
    const int64_t length[2] = {4, 1}, grid[3] = {1, 2, 2};
    static const uint16_t pixels[5 * 8];
    struct poise_value values[2] = {
        {.field = "grid", .data = grid, .n_dims = 2, .shape = {1, 3}},
        {.field = "pixels", .data = pixels, .n_dims = 2, .shape = {c->rank == 0 ? 5 : 4, 8}}};
    struct poise_sample sample = {.length = length,
                                  .loss_tokens = 1,
                                  .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                  .n_values = 2,
                                  .values = values,
                                  .value_size = sizeof *values};
    struct poise_err err = {0};

    load_declare(p, 0);
    int rc = poise_submit(p, 0, &sample, 1, sizeof sample, -1, &err);
    if (c->rank == 0) {
        EXPECT(rc == -EINVAL && err.sample == 0 && strcmp(err.field, "pixels") == 0, "%d %s %s", rc, err.field,
               err.text);
        EXPECT(poise_fail(p, 0, err.text, -1, NULL) == 0, "fail");
    } else {
        EXPECT(rc == 0, "%s", err.text);
    }
    expect_next(p, 0, -EBADMSG, "rank 0", "pixels");
    rank_close(p);
    return 0;
}

Test(client_flow, rows_that_do_not_match_the_grid_are_named_on_all_ranks)
{
    ranks_run(3, rig.daemon.dir, rig.board, rows_mismatch, NULL);
}

static int wrong_order(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "order");
    opt.first_step = 10;
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch;
    struct poise_err err;

    load_declare(p, 0);
    EXPECT(load_submit(p, 11, c->rank, 1, 0, &err) == -EINVAL && strstr(err.text, "10 is next"), "%s", err.text);
    EXPECT(poise_next(p, 0, 0, &batch, &err) == -ETIMEDOUT && strstr(err.text, "this rank has not submitted"), "%s",
           err.text);
    EXPECT(poise_next(p, 1, 0, &batch, &err) == -EINVAL && strstr(err.text, "iterator 1"), "%s", err.text);
    for (uint64_t step = 10; step < 13; step++)
        rig_submit(p, step, c->rank, 1, 0);
    EXPECT(load_submit(p, 10, c->rank, 1, 0, &err) == -EALREADY, "%s", err.text);
    EXPECT(poise_submit(p, 13, NULL, 0, 0, 0, &err) == -ETIMEDOUT && strstr(err.text, "prefetch_depth"), "%s",
           err.text);
    EXPECT(poise_report(p, 13, 1, &err) == -EINVAL && poise_report(p, 12, 1, &err) == 0, "report");
    board_raise(c->board, 1);
    board_wait(c->board, 1, 2);
    for (uint64_t step = 10; step < 13; step++)
        load_read(p, 0, step, NULL);
    board_raise(c->board, 0);
    board_wait(c->board, 0, 2);
    rank_close(p);
    return 0;
}

Test(client_flow, steps_are_consecutive_and_waits_say_what_for)
{
    ranks_run(2, rig.daemon.dir, rig.board, wrong_order, NULL);
}

/* ------------------------------------------------------------------------------------------------------------- ends */

static int stop_first(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "stop");
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    for (uint64_t step = 0; step < 3; step++) {
        rig_submit(p, step, c->rank, 5, 0);
        load_read(p, 0, step, c->board);
    }
    if (c->rank == 0)
        EXPECT(poise_end(p, 3, -1, &err) == 0 && poise_end(p, 3, -1, &err) == 0, "%s", err.text);
    else
        rig_submit(p, 3, c->rank, 5, 0);
    expect_next(p, 0, -ENODATA, "ended", "step 3");
    expect_next(p, 0, -ENODATA, "ended", "step 3");
    EXPECT(load_submit(p, 4, c->rank, 1, 0, &err) < 0, "a step beyond the end was taken");
    EXPECT(poise_end(p, 4, -1, &err) == 0, "%s", err.text);
    struct poise_stats stats;
    poise_stats(p, &stats, sizeof stats);
    EXPECT(stats.samples_dropped == (c->rank == 0 ? 0 : 5), "%d dropped", (int)stats.samples_dropped);
    rank_close(p);
    return 0;
}

Test(client_flow, the_first_rank_that_ends_ends_all)
{
    ranks_run(3, rig.daemon.dir, rig.board, stop_first, NULL);
    for (uint64_t step = 0; step < 3; step++)
        board_check(rig.board, step, 3, always_5);
}

#define LAST_OF(rank) (2 + 2 * (uint64_t)(rank)) /* rank 0 has 2 steps, rank 1 has 4 ... */

static uint32_t until_last(uint64_t step, uint32_t rank)
{
    return step < LAST_OF(rank) ? 6 : 0;
}

static int go_on(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "continue");
    opt.end = POISE_END_CONTINUE;
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch;
    struct poise_err err;
    uint32_t later = 0;

    load_declare(p, 0);
    for (uint64_t step = 0;; step++) {
        if (step < LAST_OF(c->rank))
            rig_submit(p, step, c->rank, 6, 0);
        else if (step == LAST_OF(c->rank))
            EXPECT(poise_end(p, step, -1, &err) == 0, "%s", err.text);
        if (step == LAST_OF(c->n_ranks - 1))
            break;
        uint32_t n = load_read(p, 0, step, c->board);
        later += step >= LAST_OF(c->rank) ? n : 0;
    }
    EXPECT(poise_next(p, 0, -1, &batch, &err) == -ENODATA, "%s", err.text);
    EXPECT(c->rank > 0 || later > 0, "rank 0 got nothing of what others went on with");
    rank_close(p);
    return 0;
}

Test(client_flow, a_rank_that_ended_helps_those_that_go_on)
{
    ranks_run(3, rig.daemon.dir, rig.board, go_on, NULL);
    for (uint64_t step = 0; step < LAST_OF(2); step++)
        board_check(rig.board, step, 3, until_last);
}

static int leave(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "leave");
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    for (uint64_t step = 0; step < 3; step++) {
        rig_submit(p, step, c->rank, 5, 0);
        load_read(p, 0, step, c->board);
    }
    if (c->rank != 2) {
        int rc = load_submit(p, 3, c->rank, 5, 0, &err);
        EXPECT(rc == 0 || rc == -ESHUTDOWN, "%s", err.text);
        expect_next(p, 0, -ESHUTDOWN, "rank 2", "left after step 2");
        EXPECT(poise_submit(p, 3 + (rc == 0), NULL, 0, 0, -1, &err) == -ESHUTDOWN, "%s", err.text);
    }
    rank_close(p);
    return 0;
}

Test(client_flow, a_rank_that_leaves_is_named_with_its_last_step)
{
    ranks_run(3, rig.daemon.dir, rig.board, leave, NULL);
    for (uint64_t step = 0; step < 3; step++)
        board_check(rig.board, step, 3, always_5);
}

/* ------------------------------------------------------------------------------------------------------- variations */

/* poisectl mode: from some step on, for all ranks the same. */
static int change_mode(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "mode");
    struct poise *p = rank_open(&opt);
    struct poise_err err;
    uint32_t mode = POISE_MODE_ON;
    uint64_t step = 0;

    load_declare(p, 0);
    for (; step < 2000 && mode == POISE_MODE_ON; step++) {
        rig_submit(p, step, c->rank, 5, 0);
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            mode = b->totals->mode;
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
        board_raise(c->board, 0);
    }
    EXPECT(mode == POISE_MODE_OFF, "the mode stayed %u", mode);
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&c->board->flag[1], &none, (uint32_t)step))
        EXPECT(none == step, "it changed at step %u here and %u there", (unsigned)step, none);
    rank_close(p);
    return 0;
}

Test(client_flow, a_mode_set_at_run_time_holds_for_all_ranks_from_the_same_step)
{
    struct rank_context context = {.n_ranks = 2, .dir = rig.daemon.dir, .board = rig.board};
    pid_t pid[2];
    char *body = NULL;

    for (context.rank = 0; context.rank < 2; context.rank++)
        pid[context.rank] = rank_start(&context, change_mode);
    board_wait(rig.board, 0, 4);
    cr_assert_eq(test_daemon_http(&rig.daemon, true, "/mode?job=mode&group=dp&mode=off", &body), 200, "%s", body);
    free(body);
    cr_assert_eq(rank_wait(pid[0]), 0);
    cr_assert_eq(rank_wait(pid[1]), 0);
}

static int plan_only(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "plan-only");
    opt.flags = POISE_PLAN_ONLY;
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    for (uint64_t step = 0; step < 20; step++) {
        struct poise_sample samples[4];
        int64_t length[4][2];
        for (uint32_t i = 0; i < 4; i++) {
            length[i][0] = 0;
            length[i][1] = 1 + 100 * c->rank + i;
            samples[i] = (struct poise_sample){.tag = 10 * c->rank + i,
                                               .length = length[i],
                                               .loss_tokens = 1,
                                               .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                               .bytes = 1000};
        }
        EXPECT(poise_submit(p, step, samples, 4, sizeof *samples, -1, &err) == 0, "%s", err.text);
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            EXPECT(b->n_fields == 0 && b->mapping->n_out == 4, "%u fields", b->n_fields);
            for (uint32_t i = 0; i < b->n_samples; i++) {
                const struct poise_row *row = &b->rows[i];
                EXPECT(row->origin_rank != c->rank || row->tag == 10 * c->rank + row->origin_index, "tag");
                atomic_fetch_add(&c->board->got[step][row->origin_rank][row->origin_index], 1);
            }
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
    }
    rank_close(p);
    return 0;
}

static uint32_t always_4(uint64_t step, uint32_t rank)
{
    (void)step, (void)rank;
    return 4;
}

Test(client_flow, a_plan_only_group_gets_mappings)
{
    ranks_run(3, rig.daemon.dir, rig.board, plan_only, NULL);
    for (uint64_t step = 0; step < 20; step++) {
        for (uint32_t r = 0; r < 3; r++)
            for (uint32_t i = 0; i < RANKS_SAMPLES; i++)
                cr_assert_eq(rig.board->got[step][r][i], i < always_4(step, r));
    }
}

/* Shadow and off deliver arrival order. */
static int arrival_order(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "arrival");
    opt.mode = *(const uint32_t *)c->arg;
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    for (uint64_t step = 0; step < 4; step++) {
        rig_submit(p, step, c->rank, 5, 0);
        for (uint32_t at = 0; at < 5;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            EXPECT(b->totals->mode == opt.mode, "mode %u", b->totals->mode);
            for (uint32_t i = 0; i < b->n_samples; i++, at++)
                EXPECT(b->rows[i].origin_rank == c->rank && b->rows[i].origin_index == at, "row %u", i);
            load_check(b, NULL);
            poise_release(b);
        }
    }
    rank_close(p);
    return 0;
}

Test(client_flow, shadow_and_off_deliver_arrival_order)
{
    const uint32_t shadow = POISE_MODE_SHADOW, off = POISE_MODE_OFF;

    ranks_run(3, rig.daemon.dir, rig.board, arrival_order, &shadow);
    ranks_run(3, rig.daemon.dir, rig.board, arrival_order, &off);
}

/* Two tensor-parallel peers opened as ranks of their own. */
static int twins(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "twins");
    struct poise *p = rank_open(&opt);
    struct poise_note note;
    bool warned = false;

    load_declare(p, 0);
    for (uint64_t step = 0; step < 5; step++) {
        rig_submit(p, step, c->rank < 2 ? 0 : c->rank, 5, 0);
        const struct poise_batch *b;
        struct poise_err err;
        for (bool last = false; !last;) {
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
    }
    while (poise_notice(p, &note, sizeof note) == 1)
        warned |= strstr(note.text, "ranks 0 and 1") || strstr(note.text, "ranks 1 and 0");
    rank_close(p);
    EXPECT(warned == (c->rank < 2), "rank %u: %d", c->rank, warned);
    return 0;
}

Test(client_flow, ranks_that_submit_the_same_are_warned_of)
{
    ranks_run(3, rig.daemon.dir, rig.board, twins, NULL);
}

/* --------------------------------------------------------------------------------------------------------- replicas */

/* Replica 1 is a later pipeline stage: same samples, fields of text alone. Micro-batches must be the same. */
static int replica(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "replicas");
    opt.n_replicas = 2;
    struct poise *p = rank_open(&opt);
    struct poise_field caption = {
        .name = "caption", .dtype = POISE_BYTES, .assembly = POISE_OPAQUE, .n_dims = 1, .shape = {-1}};
    struct poise_field extra = {
        .name = "extra", .dtype = POISE_U8, .assembly = POISE_CONCAT, .n_dims = 1, .shape = {-1}};
    struct poise_err err;

    EXPECT(poise_declare(p, &caption, 1, sizeof caption, &err) == 0, "%s", err.text);
    if (c->replica == 0)
        EXPECT(poise_declare(p, &extra, 1, sizeof extra, &err) == 0, "%s", err.text);
    for (uint64_t step = 0; step < 8; step++) {
        struct poise_value values[4][2];
        struct poise_sample samples[4];
        int64_t length[4][2];
        char text[4][16];
        for (uint32_t i = 0; i < 4; i++) {
            length[i][0] = 0;
            length[i][1] = (int64_t)(1 + (step * 37 + c->rank * 11 + i * 5) % 50);
            snprintf(text[i], sizeof text[i], "%u.%u.%u", (unsigned)step, c->rank, i);
            values[i][0] = (struct poise_value){.field = "caption", .data = text[i], .n_dims = 1, .shape = {8}};
            values[i][1] = (struct poise_value){.field = "extra", .data = text[i], .n_dims = 1, .shape = {3}};
            samples[i] = (struct poise_sample){.tag = i,
                                               .length = length[i],
                                               .loss_tokens = 2,
                                               .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                               .n_values = c->replica == 0 ? 2 : 1,
                                               .values = values[i],
                                               .value_size = sizeof values[i][0]};
        }
        if (step == 5 && c->rank == 1 && c->replica == 1)
            samples[2].tag = 99; /* its loader is out of step with its peer's */
        EXPECT(poise_submit(p, step, samples, 4, sizeof *samples, -1, &err) == 0, "%s", err.text);
        if (step == 5) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == -EBADMSG, "a digest that differs passed");
            EXPECT(strstr(err.text, "rank 1") && strstr(err.text, "replica"), "%s", err.text);
            continue;
        }
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            EXPECT(b->n_fields == 2, "%u fields", b->n_fields);
            for (uint32_t i = 0; i < b->n_samples; i++) {
                const struct poise_tensor *v = &b->values[i * 2];
                snprintf(text[0], sizeof text[0], "%u.%u.%u", (unsigned)step, b->rows[i].origin_rank,
                         b->rows[i].origin_index);
                EXPECT(v->bytes == 8 && strcmp(v->data, text[0]) == 0, "%s instead of %s", (char *)v->data, text[0]);
                EXPECT(b->values[i * 2 + 1].bytes == (c->replica == 0 ? 3 : 0), "extra");
                atomic_fetch_add(&c->board->got[step][b->rows[i].origin_rank][b->rows[i].origin_index], 1);
            }
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
    }
    rank_close(p);
    return 0;
}

Test(client_flow, replicas_see_the_same_and_a_differing_one_is_named)
{
    pid_t pid[6];

    for (uint32_t i = 0; i < 6; i++) {
        struct rank_context context = {
            .rank = i / 2, .replica = i % 2, .n_ranks = 3, .dir = rig.daemon.dir, .board = rig.board};
        pid[i] = rank_start(&context, replica);
    }
    for (uint32_t i = 0; i < 6; i++)
        cr_expect_eq(rank_wait(pid[i]), 0, "process %u", i);
    for (uint64_t step = 0; step < 8; step++) {
        for (uint32_t r = 0; r < 3; r++)
            for (uint32_t i = 0; i < 4; i++)
                cr_assert_eq(rig.board->got[step][r][i], step == 5 ? 0 : 2, "step %d", (int)step);
    }
}
