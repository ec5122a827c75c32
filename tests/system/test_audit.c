/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An audit on a real daemon: blocks come by turns in the trainers, and status, metrics and poisectl show what they
 * reported of their steps, which is made up here and so is known.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

#define RANKS 2
#define EVERY 2u
#define STEPS 60u    /* enough that those of the last blocks, which are still awaited, are not missed */
#define READ 0       /* flags of the board: steps read by all, */
#define HAVE_SEEN 1  /* the test has seen what it came for */

TestSuite(audit_system, .init = rig_begin, .fini = rig_end);

/* A balanced step takes 100 and 102 ms by turns of blocks, one in arrival order half more; rank 0 is fast. */
static uint64_t compute_ns(uint64_t step, uint32_t rank, bool balanced)
{
    uint64_t ns = 100000000 + (step / EVERY % 4 / 2) * 2000000;

    return (balanced ? ns : ns * 3 / 2) / (rank == 0 ? 3 : 1);
}

static int train(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "audited");
    struct poise_err err;

    opt.audit = EVERY;
    struct poise *p = rank_open(&opt);
    load_declare(p, 0);
    for (uint64_t step = 0; step < STEPS; step++) {
        EXPECT(load_submit(p, step, c->rank, 4, 0, &err) == 0, "%s", err.text);
        for (bool last = false; !last;) {
            const struct poise_batch *batch;
            uint32_t mode = step / EVERY % 2 ? POISE_MODE_SHADOW : POISE_MODE_ON;

            EXPECT(poise_next(p, 0, -1, &batch, &err) == 0, "%s", err.text);
            EXPECT(batch->totals->mode == mode, "step %d came in mode %u", (int)step, batch->totals->mode);
            for (uint32_t i = 0; i < batch->n_samples && mode == POISE_MODE_SHADOW; i++)
                EXPECT(batch->rows[i].origin_rank == c->rank, "step %d was not delivered as it arrived", (int)step);
            load_check(batch, c->board);
            last = batch->micro_batch + 1 == batch->n_micro_batches;
            poise_release(batch);
        }
        EXPECT(poise_report(p, step, compute_ns(step, c->rank, step / EVERY % 2 == 0), &err) == 0, "%s", err.text);
    }
    board_raise(c->board, READ);
    board_wait(c->board, HAVE_SEEN, 1);
    rank_close(p);
    return 0;
}

/* The group's audit as soon as it has so many pairs of blocks. */
static json_t *await_audit(int n_pairs)
{
    for (int i = 0; i < 600; i++) {
        char *body = NULL;
        json_t *report, *audit;

        cr_assert_eq(test_daemon_http(&rig.daemon, false, "/status", &body), 200);
        report = json_loads(body, 0, NULL);
        free(body);
        audit = json_incref(json_object_get(json_array_get(json_object_get(report, "groups"), 0), "audit"));
        json_decref(report);
        if (json_integer_value(json_object_get(audit, "pairs")) >= n_pairs)
            return audit;
        json_decref(audit);
        usleep(50000); /* between two looks, at most 30 s of them */
    }
    cr_assert_fail("status does not show %d pairs of blocks", n_pairs);
    return NULL;
}

static double value(const json_t *object, const char *key)
{
    cr_assert(json_is_number(json_object_get(object, key)), "%s is no number", key);
    return json_number_value(json_object_get(object, key));
}

static void check_blocks(const json_t *blocks, double low, double high)
{
    const json_t *interval = json_object_get(blocks, "interval_ms");
    double from = json_number_value(json_array_get(interval, 0)), to = json_number_value(json_array_get(interval, 1));
    double mean = value(blocks, "measured_ms");

    cr_assert(mean >= low && mean <= high, "%g ms are not from %g to %g", mean, low, high);
    cr_assert_eq(json_array_size(interval), 2);
    cr_assert(from < mean && mean < to && from > low - 10 && to < high + 10, "%g to %g around %g", from, to, mean);
    cr_assert_gt(value(blocks, "blocks"), 4);
    cr_assert_eq(value(blocks, "steps"), EVERY * value(blocks, "blocks"));
}

/* A line of /metrics; the series has the labels of the group. */
static double metric(const char *text, const char *name)
{
    char start[120];
    const char *line;

    snprintf(start, sizeof start, "\npoise_group_%s{job=\"audited\"", name);
    line = strstr(text, start);
    cr_assert(line, "no %s in the metrics", name);
    return strtod(strchr(line + 1, ' '), NULL);
}

static void run_ctl(const char *words)
{
    char program[512], line[700], out[4096] = "";
    FILE *pipe;

    snprintf(line, sizeof line, "%s status --socket-dir %s", test_program("poisectl", program), rig.daemon.dir);
    pipe = popen(line, "r");
    cr_assert(pipe);
    out[fread(out, 1, sizeof out - 1, pipe)] = 0;
    cr_assert_eq(pclose(pipe), 0);
    cr_assert(strstr(out, words), "poisectl does not show \"%s\": %s", words, out);
}

Test(audit_system, blocks_alternate_and_status_shows_what_was_measured)
{
    struct rank_context context = {.n_ranks = RANKS, .dir = rig.daemon.dir, .board = rig.board};
    pid_t pid[RANKS];
    json_t *audit;
    char *text = NULL;

    for (context.rank = 0; context.rank < RANKS; context.rank++)
        pid[context.rank] = rank_start(&context, train);
    board_wait(rig.board, READ, RANKS);
    audit = await_audit(5);
    cr_assert_eq(value(audit, "every"), EVERY);
    check_blocks(json_object_get(audit, "balanced"), 100, 102);
    check_blocks(json_object_get(audit, "arrival"), 150, 153);
    cr_assert_lt(value(audit, "measured_speedup"), 1.5000001); /* neighbours share what they take by turns */
    cr_assert_gt(value(audit, "measured_speedup"), 1.4999999);
    cr_assert_eq(json_array_size(json_object_get(audit, "speedup_interval")), 2);
    json_decref(audit);

    cr_assert_eq(test_daemon_http(&rig.daemon, false, "/metrics", &text), 200);
    cr_assert(metric(text, "audit_balanced_seconds") < 0.1021 && metric(text, "audit_arrival_seconds") > 0.1499);
    cr_assert(metric(text, "audit_balanced_seconds_low") <= metric(text, "audit_balanced_seconds"));
    cr_assert(metric(text, "audit_speedup_high") >= metric(text, "audit_speedup_low"));
    free(text);
    run_ctl("audit      blocks of 2 steps by turns");
    run_ctl("measured speed-up 1.500 (95 %: 1.500 to 1.500)");

    board_raise(rig.board, HAVE_SEEN);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        cr_assert_eq(rank_wait(pid[rank]), 0);
}

static int differ(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "unlike");
    struct poise *p;
    struct poise_err err;

    opt.audit = 10 * c->rank;
    EXPECT(poise_open(&opt, &p, &err) == -EINVAL, "opened");
    EXPECT(strstr(err.text, "audit is"), "%s", err.text);
    return 0;
}

Test(audit_system, ranks_that_do_not_agree_on_it_do_not_open)
{
    ranks_run(RANKS, rig.daemon.dir, rig.board, differ, NULL);
}
