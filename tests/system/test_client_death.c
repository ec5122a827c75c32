/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths: of ranks, of poised, of trust in what arrived. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "rig.h"

TestSuite(client_death, .init = rig_begin, .fini = rig_end);

static uint32_t always_6(uint64_t step, uint32_t rank)
{
    (void)step, (void)rank;
    return 6;
}

/* -------------------------------------------------------------------------------------------------------- of a rank */

enum { FLAG_READY, FLAG_DEAD, FLAG_READ, FLAG_TIME_LOW, FLAG_TIME_HIGH };

/* A group that works: one step. */
static void one_step(const struct poise_options *opt, struct board *b)
{
    struct poise *p = rank_open(opt);
    struct poise_err err;

    load_declare(p, 0);
    EXPECT(load_submit(p, 0, opt->rank, 6, 0, &err) == 0, "%s", err.text);
    load_read(p, 0, 0, b);
    rank_close(p);
}

/* Rank 1 is killed after step 0; the others wait for step 1. */
static int victim_or_witness(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "victim");
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch = NULL;
    struct poise_err err = {0};

    load_declare(p, 0);
    EXPECT(load_submit(p, 0, c->rank, 6, 0, &err) == 0, "%s", err.text);
    load_read(p, 0, 0, NULL);
    board_raise(c->board, FLAG_READY);
    if (c->rank == 1)
        for (;;)
            pause();
    EXPECT(load_submit(p, 1, c->rank, 6, 0, &err) == 0, "%s", err.text);
    int rc = poise_next(p, 0, -1, &batch, &err);
    uint64_t at = rig_now_ms(), killed = c->board->flag[FLAG_TIME_LOW] | (uint64_t)c->board->flag[FLAG_TIME_HIGH] << 32;
    EXPECT(rc == -ESHUTDOWN, "%d %s", rc, err.text);
    EXPECT(strstr(err.text, "rank 1") && strstr(err.text, "died"), "%s", err.text);
    EXPECT(killed && at - killed < 1000 * RIG_SLOWER, "it took %d ms", (int)(at - killed));
    EXPECT(err.step == 0, "the last step delivered is said to be %d", (int)err.step);
    EXPECT(load_submit(p, 2, c->rank, 6, 0, &err) == -ESHUTDOWN, "%s", err.text);
    EXPECT(poise_next(p, 0, -1, &batch, &err) == -ESHUTDOWN, "%s", err.text);
    at = rig_now_ms();
    rank_close(p);
    EXPECT(rig_now_ms() - at < 2000 * RIG_SLOWER, "close took %d ms", (int)(rig_now_ms() - at));

    board_raise(c->board, FLAG_READ);
    opt.attempt = 1; /* the group forms again, with a new rank 1 */
    one_step(&opt, c->board);
    return 0;
}

static int reborn(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "victim");

    opt.attempt = 1;
    one_step(&opt, c->board);
    return 0;
}

Test(client_death, a_killed_rank_is_named_everywhere_within_a_second)
{
    pid_t pid[3];
    struct rank_context context = {.n_ranks = 3, .dir = rig.daemon.dir, .board = rig.board};

    for (uint32_t r = 0; r < 3; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, victim_or_witness);
    }
    board_wait(rig.board, FLAG_READY, 3);
    uint64_t at = rig_now_ms();
    rig.board->flag[FLAG_TIME_LOW] = (uint32_t)at;
    rig.board->flag[FLAG_TIME_HIGH] = (uint32_t)(at >> 32);
    cr_assert_eq(kill(pid[1], SIGKILL), 0);
    cr_assert_eq(rank_wait(pid[1]), -SIGKILL);
    board_wait(rig.board, FLAG_READ, 2);
    context.rank = 1;
    pid[1] = rank_start(&context, reborn);
    for (uint32_t r = 0; r < 3; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    board_check(rig.board, 0, 3, always_6);
}

/* ------------------------------------------------------------------------------------------------- of any, any time */

#define N_MORTAL 30

static int mortal(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, c->arg);
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch;
    struct poise_err err = {0};
    int rc = 0;

    load_declare(p, 0);
    for (uint64_t step = 0; step < N_MORTAL && rc == 0; step++) {
        rc = load_submit(p, step, c->rank, 6, 0, &err);
        for (bool last = false; rc == 0 && !last;) {
            rc = poise_next(p, 0, -1, &batch, &err);
            if (rc < 0)
                break;
            load_check(batch, NULL);
            last = batch->micro_batch + 1 == batch->n_micro_batches;
            poise_release(batch);
        }
        board_raise(c->board, FLAG_READ);
    }
    EXPECT(rc == 0 || (rc == -ESHUTDOWN && strstr(err.text, "rank ")), "%d %s", rc, err.text);
    rank_close(p);
    return 0;
}

Test(client_death, a_rank_killed_at_any_point_leaves_no_other_hanging)
{
    for (uint32_t round = 0; round < 8; round++) {
        char job[32];
        snprintf(job, sizeof job, "mortal-%u", round);
        struct rank_context context = {.n_ranks = 4, .dir = rig.daemon.dir, .board = rig.board, .arg = job};
        pid_t pid[4];
        rig.board->flag[FLAG_READ] = 0;
        for (uint32_t r = 0; r < 4; r++) {
            context.rank = r;
            pid[r] = rank_start(&context, mortal);
        }
        board_wait(rig.board, FLAG_READ, 1 + 7 * round); /* all have opened */
        kill(pid[round % 4], SIGKILL);
        for (uint32_t r = 0; r < 4; r++) {
            int status = rank_wait(pid[r]);
            cr_assert(status == 0 || (r == round % 4 && status == -SIGKILL), "round %u: rank %u ended with %d", round,
                      r, status);
        }
    }
}

/* A worker that the rank forked still lives: its copy of the connection must not hide the death. */
static int victim_with_child(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "worker");
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch = NULL;
    struct poise_err err = {0};

    if (c->rank == 1) {
        if (fork() == 0) {
            board_raise(c->board, FLAG_READY);
            board_wait(c->board, FLAG_READ, 1);
            _exit(0);
        }
        for (;;)
            pause();
    }
    EXPECT(poise_submit(p, 0, NULL, 0, 0, -1, &err) == 0, "%s", err.text);
    int rc = poise_next(p, 0, 10000, &batch, &err);
    EXPECT(rc == -ESHUTDOWN && strstr(err.text, "rank 1"), "%d %s", rc, err.text);
    board_raise(c->board, FLAG_READ);
    rank_close(p);
    return 0;
}

Test(client_death, a_death_is_seen_although_children_live)
{
    pid_t pid[2];
    struct rank_context context = {.n_ranks = 2, .dir = rig.daemon.dir, .board = rig.board};

    for (uint32_t r = 0; r < 2; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, victim_with_child);
    }
    board_wait(rig.board, FLAG_READY, 1);
    cr_assert_eq(kill(pid[1], SIGKILL), 0);
    cr_assert_eq(rank_wait(pid[1]), -SIGKILL);
    cr_assert_eq(rank_wait(pid[0]), 0);
}

/* -------------------------------------------------------------------------------------------------------- of poised */

#define N_STEPS 40

static int run_on(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "restart");
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        int rc = load_submit(p, step, c->rank, 6, step % 2 ? LOAD_IN_ARENA : 0, &err);
        EXPECT(rc == 0, "submit of step %d: %d %s", (int)step, rc, err.text);
        if (step > 0)
            load_read(p, 0, step - 1, c->board); /* one ahead */
        if (c->rank == 0)
            board_raise(c->board, FLAG_READ);
    }
    load_read(p, 0, N_STEPS - 1, c->board);
    rank_close(p);
    return 0;
}

/* Killed at several points of a run; every sample still comes exactly once. */
Test(client_death, a_killed_and_restarted_poised_loses_nothing)
{
    struct rank_context context = {.n_ranks = 3, .dir = rig.daemon.dir, .board = rig.board};
    pid_t pid[3];

    for (uint32_t r = 0; r < 3; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, run_on);
    }
    for (uint32_t at = 5; at <= 35; at += 10) {
        board_wait(rig.board, FLAG_READ, at);
        test_daemon_kill(&rig.daemon);
        test_daemon_restart(&rig.daemon, NULL);
    }
    for (uint32_t r = 0; r < 3; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    for (uint64_t step = 0; step < N_STEPS; step++)
        board_check(rig.board, step, 3, always_6);
}

/* Alive and slow is waited for. */
Test(client_death, a_stopped_poised_is_a_pause)
{
    struct rank_context context = {.n_ranks = 3, .dir = rig.daemon.dir, .board = rig.board};
    const struct timespec while_ = {.tv_nsec = 300000000};
    pid_t pid[3];

    for (uint32_t r = 0; r < 3; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, run_on);
    }
    board_wait(rig.board, FLAG_READ, 8);
    cr_assert_eq(kill(rig.daemon.pid, SIGSTOP), 0);
    nanosleep(&while_, NULL);
    cr_assert_eq(kill(rig.daemon.pid, SIGCONT), 0);
    for (uint32_t r = 0; r < 3; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    for (uint64_t step = 0; step < N_STEPS; step++)
        board_check(rig.board, step, 3, always_6);
}

static int lose_daemon(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "gone");
    opt.node_timeout_ms = 500;
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch = NULL;
    struct poise_err err = {0};
    struct poise_note note;

    load_declare(p, 0);
    EXPECT(load_submit(p, 0, c->rank, 6, 0, &err) == 0, "%s", err.text);
    load_read(p, 0, 0, NULL);
    board_raise(c->board, FLAG_READY);
    board_wait(c->board, FLAG_DEAD, 1);
    EXPECT(load_submit(p, 1, c->rank, 6, 0, &err) == 0, "%s", err.text);
    uint64_t at = rig_now_ms();
    int rc = poise_next(p, 0, -1, &batch, &err);
    EXPECT(rc == -ESHUTDOWN && strstr(err.text, "node_timeout_ms"), "%d %s", rc, err.text);
    EXPECT(rig_now_ms() - at < 3000 * RIG_SLOWER, "it took %d ms", (int)(rig_now_ms() - at));
    EXPECT(poise_notice(p, &note, sizeof note) == 1 && strstr(note.text, "lost"), "no notice of the loss");
    at = rig_now_ms();
    rank_close(p);
    EXPECT(rig_now_ms() - at < 2000 * RIG_SLOWER, "close took %d ms", (int)(rig_now_ms() - at));
    return 0;
}

Test(client_death, a_poised_that_stays_away_is_an_error_after_node_timeout)
{
    struct rank_context context = {.n_ranks = 2, .dir = rig.daemon.dir, .board = rig.board};
    pid_t pid[2];

    for (uint32_t r = 0; r < 2; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, lose_daemon);
    }
    board_wait(rig.board, FLAG_READY, 2);
    test_daemon_kill(&rig.daemon);
    board_raise(rig.board, FLAG_DEAD);
    for (uint32_t r = 0; r < 2; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    test_daemon_restart(&rig.daemon, NULL);
}

/* A trainer that exits while its poised is absent exits at once. */
static int close_without(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "exit");
    struct poise *p = rank_open(&opt);
    struct poise_err err = {0};

    load_declare(p, 0);
    board_raise(c->board, FLAG_READY);
    board_wait(c->board, FLAG_DEAD, 1);
    EXPECT(load_submit(p, 0, c->rank, 6, 0, &err) == 0, "%s", err.text);
    uint64_t at = rig_now_ms();
    rank_close(p);
    EXPECT(rig_now_ms() - at < 2000 * RIG_SLOWER, "close took %d ms", (int)(rig_now_ms() - at));
    return 0;
}

Test(client_death, an_exit_without_poised_is_immediate)
{
    struct rank_context context = {.n_ranks = 2, .dir = rig.daemon.dir, .board = rig.board};
    pid_t pid[2];

    for (uint32_t r = 0; r < 2; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, close_without);
    }
    board_wait(rig.board, FLAG_READY, 2);
    test_daemon_kill(&rig.daemon);
    board_raise(rig.board, FLAG_DEAD);
    for (uint32_t r = 0; r < 2; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    test_daemon_restart(&rig.daemon, NULL);
}

/* --------------------------------------------------------------------------------------------------------- of trust */

/* Rank 0 writes to what it has submitted, before anybody could read it. */
static int spoil(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "spoil");
    struct poise *p = rank_open(&opt);
    static const int64_t length[2] = {0, 10};
    struct poise_value value = {.field = "caption", .n_dims = 1, .shape = {100}};
    struct poise_sample sample = {.length = length,
                                  .loss_tokens = 1,
                                  .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                  .n_values = 1,
                                  .values = &value,
                                  .value_size = sizeof value};
    const struct poise_batch *batch;
    struct poise_err err = {0};
    void *data;
    bool named = false;
    int rc = 0;

    load_declare(p, LOAD_TEXT_ONLY);
    if (c->rank != 0)
        board_wait(c->board, FLAG_READY, 1);
    EXPECT(poise_alloc(p, 100, -1, &data, &err) == 0, "%s", err.text);
    memset(data, 7, 100);
    value.data = data;
    EXPECT(poise_submit(p, 0, &sample, 1, sizeof sample, -1, &err) == 0, "%s", err.text);
    if (c->rank == 0) {
        memset(data, 8, 100);
        board_raise(c->board, FLAG_READY);
    }
    for (uint64_t step = 0; rc != -ESHUTDOWN; step++) {
        rc = step == 0 ? 0 : poise_submit(p, step, NULL, 0, 0, -1, &err);
        while (rc == 0 && (rc = poise_next(p, 0, -1, &batch, &err)) == 0) {
            bool last = batch->micro_batch + 1 == batch->n_micro_batches;
            poise_release(batch);
            if (last)
                break;
        }
        if (rc < 0)
            named |= strstr(err.text, "sample 0 of rank 0") != NULL;
        rc = rc == -EBADMSG ? 0 : rc;
        EXPECT(rc == 0 || rc == -ESHUTDOWN, "%d %s", rc, err.text);
    }
    EXPECT(named, "rank %u never heard of the sample", c->rank);
    struct poise_stats stats;
    poise_stats(p, &stats, sizeof stats);
    atomic_fetch_add(&c->board->flag[FLAG_DEAD], (uint32_t)stats.samples_corrupt);
    rank_close(p);
    return 0;
}

Test(client_death, a_sample_that_changed_after_submit_stops_every_rank)
{
    ranks_run(3, rig.daemon.dir, rig.board, spoil, NULL);
    cr_assert_eq(rig.board->flag[FLAG_DEAD], 1, "%u ranks saw it", rig.board->flag[FLAG_DEAD]);
}
