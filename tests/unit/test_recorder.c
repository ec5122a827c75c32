/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder's file, without a group: what it refuses, where it stops, and that it never waits. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/recorder.h"
#include "proto/record.h"

#define N_RANKS 2u
#define N_SAMPLES 512u

static char folder[64], path[96];
static struct wire_join join = {.job = "j", .group = "dp", .n_ranks = N_RANKS, .n_replicas = 1, .first_step = 3};

static void begin(void)
{
    strcpy(folder, "/tmp/poise-recorder-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/record", folder);
}

static void end(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(recorder, .init = begin, .fini = end);

static struct recorder *opened(uint64_t max_bytes)
{
    struct recorder *recorder;
    struct poise_err err = {0};

    cr_assert_eq(recorder_new(path, max_bytes, &join, &recorder, &err), 0, "%s", err.text);
    return recorder;
}

static struct wire_message *metas_of(uint64_t step)
{
    static uint64_t numbers[N_SAMPLES];
    struct wire_meta metas[N_RANKS];
    struct wire_message msg = {.type = WIRE_META, .meta = {.n_metas = N_RANKS, .metas = metas}}, *copy;

    for (uint32_t i = 0; i < N_SAMPLES; i++)
        numbers[i] = UINT64_C(1) << 40 | i;
    for (uint32_t r = 0; r < N_RANKS; r++)
        metas[r] = (struct wire_meta){.step = step,
                                      .rank = r,
                                      .n_samples = N_SAMPLES,
                                      .n_phases = 1,
                                      .has_columns = true,
                                      .bytes = numbers,
                                      .loss_tokens = numbers,
                                      .length = numbers};
    cr_assert_eq(wire_copy(&msg, &copy), 0);
    return copy;
}

/* True: the metadata of another step is asked for. */
static bool give(struct recorder *recorder, uint64_t step)
{
    struct wire_outcome outcome = {.step = step, .plan_id = {step, 1}, .n_micro_batches = 1};
    uint64_t ask;

    recorder_outcome(recorder, &outcome, 1000);
    recorder_metas(recorder, metas_of(step));
    return recorder_turn(recorder, 1000, &ask);
}

struct seen {
    uint32_t n_steps, n_missing, n_end, n_full;
    uint64_t n_bytes;
    int rc; /* how reading ended */
};

static struct seen look(void)
{
    struct seen seen = {0};
    struct record_block block;
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(1 << 22);
    size_t at;

    cr_assert(file && bytes);
    seen.n_bytes = fread(bytes, 1, 1 << 22, file);
    fclose(file);
    cr_assert_eq(record_open(bytes, seen.n_bytes, &at, NULL), 0);
    while ((seen.rc = record_next(bytes, seen.n_bytes, &at, &block, NULL)) == 1) {
        seen.n_steps += block.kind == RECORD_STEP;
        seen.n_missing += block.kind == RECORD_MISSING;
        seen.n_end += block.kind == RECORD_END;
        seen.n_full += block.kind == RECORD_FULL;
    }
    free(bytes);
    return seen;
}

Test(recorder, steps_are_written_in_order_and_the_file_is_closed)
{
    struct recorder *recorder = opened(RECORDER_DEFAULT_BYTES);

    for (uint64_t step = 3; step < 13; step++)
        give(recorder, step);
    recorder_close(recorder, 5000);
    struct seen seen = look();
    cr_assert(seen.n_steps == 10 && seen.n_end == 1 && seen.n_missing == 0 && seen.rc == 0);
}

Test(recorder, lost_metadata_is_asked_for_and_then_given_up)
{
    struct recorder *recorder = opened(RECORDER_DEFAULT_BYTES);
    struct wire_outcome outcome = {.step = 3, .plan_id = {1, 1}, .n_micro_batches = 1};
    uint64_t ask = 0;

    recorder_outcome(recorder, &outcome, 1000);
    cr_assert_not(recorder_turn(recorder, 1010, &ask), "it has just come");
    cr_assert(recorder_waits(recorder, 1010, 100) && !recorder_waits(recorder, 1200, 100));
    cr_assert(recorder_turn(recorder, 1300, &ask) && ask == 3);
    cr_assert_not(recorder_turn(recorder, 1310, &ask), "at a limited rate");
    cr_assert(recorder_turn(recorder, 1600, &ask) && ask == 3);
    recorder_metas(recorder, metas_of(3));
    cr_assert_not(recorder_turn(recorder, 2000, &ask));
    cr_assert_not(recorder_waits(recorder, 2000, UINT64_MAX));

    outcome.step = 4; /* never comes; the others wait for it, then go on */
    recorder_outcome(recorder, &outcome, 2000);
    cr_assert_not(recorder_turn(recorder, 2001, &ask), "it may be on its way");
    for (uint64_t step = 5; step < 25; step++)
        cr_assert_eq(give(recorder, step), step == 5,
                     "asked for at once when a later one has come, then at a limited rate");
    recorder_close(recorder, 5000);
    struct seen seen = look();
    cr_assert(seen.n_steps == 21 && seen.n_missing == 1, "%u and %u", seen.n_steps, seen.n_missing);
}

Test(recorder, metadata_that_does_not_fit_is_dropped)
{
    struct recorder *recorder = opened(RECORDER_DEFAULT_BYTES);
    struct wire_message *wrong = metas_of(3);

    wrong->meta.metas[1].rank = 5;
    recorder_metas(recorder, wrong);
    wrong = metas_of(3);
    wrong->meta.n_metas = 1;
    recorder_metas(recorder, wrong);
    recorder_metas(recorder, metas_of(2));    /* before the first */
    recorder_metas(recorder, metas_of(1000)); /* far ahead */
    recorder_metas(recorder, metas_of(4));
    recorder_metas(recorder, metas_of(4)); /* twice */
    cr_assert_not(recorder_waits(recorder, 0, UINT64_MAX));
    recorder_close(recorder, 5000);
    cr_assert_eq(access(path, F_OK), -1, "nothing was recorded, so nothing is left");
}

Test(recorder, a_file_that_holds_something_is_refused)
{
    struct recorder *recorder = opened(RECORDER_DEFAULT_BYTES), *second;
    struct poise_err err;

    cr_assert_eq(recorder_new(path, RECORDER_DEFAULT_BYTES, &join, &second, &err), -EBUSY, "%s", err.text);
    cr_assert(strstr(err.text, path), "%s", err.text);
    give(recorder, 3);
    recorder_close(recorder, 5000);
    cr_assert_eq(recorder_new(path, RECORDER_DEFAULT_BYTES, &join, &second, &err), -EEXIST);
    cr_assert(strstr(err.text, path), "%s", err.text);
    cr_assert_eq(look().n_steps, 1, "and left as it was");
    cr_assert_eq(truncate(path, 0), 0); /* of a process that was killed before its first step */
    recorder = opened(RECORDER_DEFAULT_BYTES);
    give(recorder, 3);
    recorder_close(recorder, 5000);
    cr_assert_eq(look().n_steps, 1);
}

Test(recorder, a_path_that_cannot_be_written_is_named)
{
    struct recorder *recorder;
    struct poise_err err;

    cr_assert_eq(recorder_new("/nonexistent/record", RECORDER_DEFAULT_BYTES, &join, &recorder, &err), -ENOENT);
    cr_assert(strstr(err.text, "/nonexistent/record") && strstr(err.text, "No such file"), "%s", err.text);
    cr_assert_eq(recorder_new(folder, RECORDER_DEFAULT_BYTES, &join, &recorder, &err), -EISDIR);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_lt(recorder_new(path, RECORDER_DEFAULT_BYTES, &join, &recorder, &err), 0, "a pipe must not block");
}

/* The notice that the recorder's thread leaves: at most 30 s, also on a disk that is busy. Returns its severity. */
static uint32_t await_note(struct recorder *recorder, uint64_t *ret_step, char text[RECORDER_TEXT])
{
    const struct timespec pause = {.tv_nsec = 1000000}; /* between two looks */
    uint32_t severity = 0;

    for (int i = 0; i < 30000; i++) {
        if (recorder_note(recorder, &severity, ret_step, text))
            return severity;
        nanosleep(&pause, NULL);
    }
    cr_assert_fail("no notice came");
    return 0;
}

Test(recorder, the_limit_stops_it_with_one_notice_and_a_whole_file)
{
    struct recorder *recorder = opened(RECORDER_MIN_BYTES);
    char text[RECORDER_TEXT];
    uint32_t severity;
    uint64_t step;

    for (uint64_t s = 3; s < 103; s++)
        give(recorder, s);
    severity = await_note(recorder, &step, text);
    cr_assert(severity == POISE_WARNING && strstr(text, path) && strstr(text, "65536"), "%s", text);
    cr_assert_not(recorder_note(recorder, &severity, &step, text), "one notice");
    recorder_close(recorder, 5000);
    struct seen seen = look();
    cr_assert(seen.n_full == 1 && seen.rc == 0 && seen.n_bytes <= RECORDER_MIN_BYTES, "%d", (int)seen.n_bytes);
    cr_assert_eq(seen.n_steps, step - 3);
}

/* A limit of the kernel's on files stands in for a full disk: a write ends in the middle of a block. */
Test(recorder, a_full_disk_stops_it_and_leaves_whole_blocks)
{
    struct recorder *recorder = opened(RECORDER_DEFAULT_BYTES);
    struct rlimit limit = {100000, RLIM_INFINITY};
    char text[RECORDER_TEXT];
    uint32_t severity;
    uint64_t step;

    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (uint64_t s = 3; s < 103; s++)
        give(recorder, s);
    severity = await_note(recorder, &step, text);
    cr_assert(severity == POISE_ERROR && strstr(text, path) && strstr(text, "too large"), "%s", text);
    recorder_close(recorder, 5000);
    struct seen seen = look();
    cr_assert(seen.rc == 0 && seen.n_steps == step - 3 && seen.n_steps > 0, "%u steps, %d", seen.n_steps, seen.rc);
}
