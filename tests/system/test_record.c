/* SPDX-License-Identifier: Apache-2.0 */
/* A group that records: every step is there and planned again to the same plan, whatever dies; trouble with the file
 * never stops the training. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "proto/record.h"
#include "rig.h"

#define N_RANKS 4
#define N_STEPS 10
#define N_LIMIT_STEPS 60

enum { FLAG_READ, FLAG_NOTES };

static char folder[64], path[96];

static void begin(void)
{
    strcpy(folder, "/tmp/poise-record-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/record", folder);
    rig_begin();
}

static void end(void)
{
    rig_end();
    unlink(path);
    rmdir(folder);
}

TestSuite(record, .init = begin, .fini = end);

/* ----------------------------------------------------------------------------------------------------------- training
 */

struct run {
    const char *job, *record;
    uint64_t n_steps, max_bytes;
    uint32_t n_samples, flags;
    uint32_t compute_ms; /* of a step: ranks that only pass samples on forget a step within milliseconds */
};

static int train(const struct rank_context *c)
{
    const struct run *run = c->arg;
    const struct timespec compute = {.tv_nsec = run->compute_ms * 1000000L};
    struct poise_options opt = rank_options(c, run->job);
    struct poise_note note;
    struct poise_err err;

    opt.record = run->record;
    opt.record_max_bytes = run->max_bytes;
    struct poise *p = rank_open(&opt);
    load_declare(p, run->flags);
    for (uint64_t step = 0; step < run->n_steps; step++) {
        EXPECT(load_submit(p, step, c->rank, run->n_samples, run->flags, &err) == 0, "step %d: %s", (int)step,
               err.text);
        if (step > 0)
            load_read(p, 0, step - 1, c->board);
        nanosleep(&compute, NULL);
        if (c->rank == 0)
            board_raise(c->board, FLAG_READ);
    }
    load_read(p, 0, run->n_steps - 1, c->board);
    while (poise_notice(p, &note, sizeof note) == 1)
        if (strstr(note.text, "record")) /* one, if any */
            board_raise(c->board, FLAG_NOTES);
    rank_close(p);
    return 0;
}

/* Steps that a run of poisectl explain finds planned again to the same plan; every one must be. */
static uint32_t count_same(void)
{
    char command[768], program[512], line[512];
    uint32_t n = 0;

    snprintf(command, sizeof command, "%s explain --json %s | tr '{' '\\n' | grep -c '\"same\":true'",
             test_program("poisectl", program), path);
    FILE *out = popen(command, "r");
    cr_assert(out && fgets(line, sizeof line, out));
    pclose(out);
    n = (uint32_t)atoi(line);
    snprintf(command, sizeof command, "%s explain %s >/dev/null", program, path);
    cr_assert_eq(system(command), 0, "another plan than was recorded");
    for (uint64_t step = 0; step < n; step++) {
        snprintf(command, sizeof command, "%s explain %s --step %u | grep -q 'the same plan'", program, path,
                 (unsigned)step);
        cr_assert_eq(system(command), 0, "step %u", (unsigned)step);
    }
    return n;
}

static bool explain_says(const char *arguments, const char *text)
{
    char command[1024], program[512];

    snprintf(command, sizeof command, "%s explain %s %s 2>&1 | grep -q -- '%s'", test_program("poisectl", program),
             path, arguments, text);
    return system(command) == 0;
}

/* -------------------------------------------------------------------------------------------------------------- tests
 */

Test(record, every_step_is_explained)
{
    struct run run = {.job = "record", .record = path, .n_steps = N_STEPS, .n_samples = 7};

    ranks_run(N_RANKS, rig.daemon.dir, rig.board, train, &run);
    cr_assert_eq(count_same(), N_STEPS);
    cr_assert(explain_says("--step 3 --rank 2", "sample 0 of rank 2"));
    cr_assert(explain_says("--step 3", "What limited it"));
    cr_assert(explain_says("--step 99", "has steps 0 to 9"));
    cr_assert(explain_says("--step 3 --rank 4", "ranks 0 to 3"));
    cr_assert_not(explain_says("", "did not close"));
}

Test(record, a_killed_poised_leaves_no_hole)
{
    struct run run = {.job = "killed", .record = path, .n_steps = 4 * N_STEPS, .n_samples = 7, .compute_ms = 10};
    struct rank_context context = {.n_ranks = N_RANKS, .dir = rig.daemon.dir, .board = rig.board, .arg = &run};
    pid_t pid[N_RANKS];

    for (uint32_t r = 0; r < N_RANKS; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, train);
    }
    for (uint32_t at = 5; at <= 25; at += 10) {
        board_wait(rig.board, FLAG_READ, at);
        test_daemon_kill(&rig.daemon);
        test_daemon_restart(&rig.daemon, NULL);
    }
    for (uint32_t r = 0; r < N_RANKS; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    cr_assert_eq(count_same(), 4 * N_STEPS);
}

static int train_shadow(const struct rank_context *c)
{
    setenv("POISE_RECORD", c->arg, 1);
    struct poise_options opt = rank_options(c, "shadow");
    struct poise_err err;

    opt.mode = POISE_MODE_SHADOW;
    opt.n_replicas = 2;
    struct poise *p = rank_open(&opt);
    load_declare(p, 0);
    EXPECT(load_submit(p, 0, c->rank, 7, 0, &err) == 0, "%s", err.text);
    load_read(p, 0, 0, NULL);
    EXPECT(poise_fail(p, 1, "no data", -1, &err) == 0, "%s", err.text);
    const struct poise_batch *batch;
    EXPECT(poise_next(p, 0, -1, &batch, &err) == -EBADMSG, "%s", err.text);
    rank_close(p);
    return 0;
}

/* What was not delivered, and a step that was an error; simulate plans the same steps. */
Test(record, shadow_replicas_and_errors_are_recorded)
{
    struct rank_context context = {.n_ranks = 2, .dir = rig.daemon.dir, .board = rig.board, .arg = path};
    char command[768], program[512];
    pid_t pid[4];

    for (uint32_t i = 0; i < 4; i++) {
        context.rank = i / 2;
        context.replica = i % 2;
        pid[i] = rank_start(&context, train_shadow);
    }
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(rank_wait(pid[i]), 0, "process %u", i);
    cr_assert_eq(count_same(), 1);
    cr_assert(explain_says("--step 0", "Mode shadow"));
    cr_assert(explain_says("--step 1", "no data"));
    snprintf(command, sizeof command, "%s simulate %s --algorithm greedy,identity | grep -q '1 recorded steps'",
             test_program("poisectl", program), path);
    cr_assert_eq(system(command), 0);
}

/* What kill -9 leaves: every length of the file is read as far as it is whole. */
Test(record, a_torn_file_is_read_to_its_last_whole_step)
{
    struct run run = {.job = "torn", .record = path, .n_steps = N_STEPS, .n_samples = 7};
    struct stat st;

    ranks_run(N_RANKS, rig.daemon.dir, rig.board, train, &run);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(truncate(path, st.st_size - RECORD_HEAD_BYTES - 5), 0); /* into the last step's block */
    cr_assert_eq(count_same(), N_STEPS - 1);
    cr_assert(explain_says("", "its writer was killed"));
    cr_assert(explain_says("--step 9", "has steps 0 to 8"));
}

Test(record, the_limit_ends_it_with_one_notice)
{
    struct run run = {.job = "limit",
                      .record = path,
                      .n_steps = N_LIMIT_STEPS,
                      .n_samples = 40,
                      .max_bytes = 65536,
                      .flags = LOAD_TEXT_ONLY};
    struct stat st;
    uint32_t n;

    ranks_run(N_RANKS, rig.daemon.dir, rig.board, train, &run);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_leq(st.st_size, 65536);
    cr_assert_eq(rig.board->flag[FLAG_NOTES], 1);
    n = count_same();
    cr_assert(n > 0 && n < N_LIMIT_STEPS, "%u steps", n);
    cr_assert(explain_says("", "at its limit"));
}

static int open_only(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "refused");
    struct poise_err err = {0};
    struct poise *p;

    opt.record = c->arg;
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc < 0 && strstr(err.text, (const char *)c->arg), "%d %s", rc, err.text);
    return 0;
}

Test(record, a_file_that_cannot_be_written_is_an_error_at_open)
{
    FILE *file = fopen(path, "w");

    cr_assert(file && fputs("mine", file) >= 0 && fclose(file) == 0);
    ranks_run(1, rig.daemon.dir, rig.board, open_only, path);
    ranks_run(1, rig.daemon.dir, rig.board, open_only, "/nonexistent/record");
    cr_assert(explain_says("", "not a record"));
}

static int open_differs(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "differs");
    struct poise_err err = {0};
    struct poise *p;

    opt.record = c->rank == 0 ? c->arg : NULL;
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc == -EINVAL && strstr(err.text, "record"), "%d %s", rc, err.text);
    return 0;
}

/* And a file that nothing was written to does not stay behind, where it would be in the way of the next attempt. */
Test(record, ranks_that_do_not_agree_on_it_are_named)
{
    ranks_run(2, rig.daemon.dir, rig.board, open_differs, path);
    cr_assert_eq(access(path, F_OK), -1);
}

Test(record, a_full_disk_stops_the_record_and_not_the_training)
{
    struct run run = {.job = "full", .n_steps = N_LIMIT_STEPS, .n_samples = 40, .flags = LOAD_TEXT_ONLY};
    uint32_t n;

    if (mount("tmpfs", folder, "tmpfs", 0, "size=64k") < 0)
        cr_skip_test("no tmpfs may be mounted here");
    run.record = path;
    ranks_run(N_RANKS, rig.daemon.dir, rig.board, train, &run);
    n = count_same();
    unlink(path);
    umount(folder);
    cr_assert(n > 0 && n < N_LIMIT_STEPS, "%u steps", n);
    cr_assert_eq(rig.board->flag[FLAG_NOTES], 1);
}
