/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the shell that need no socket: the map against a plain array, the folder's lock, the log's limits, verdicts,
 * JSON, metrics. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/shell/lock.h"
#include "daemon/shell/log.h"
#include "daemon/shell/map.h"
#include "daemon/shell/report.h"

Test(map, equals_a_plain_array_under_random_use)
{
    uint64_t truth[512] = {0};
    struct map map = {0};
    unsigned seed = (unsigned)time(NULL);
    fprintf(stderr, "seed %u\n", seed);
    srand(seed);
    cr_assert_eq(map_get(&map, 1), 0);
    map_remove(&map, 1);
    for (int i = 0; i < 50000; i++) {
        uint64_t slot = (uint64_t)(rand() % 512), key = (slot + 1) << (slot % 3 * 20);
        if (rand() % 3) {
            truth[slot] = (uint64_t)rand() + 1;
            cr_assert_eq(map_put(&map, key, truth[slot]), 0);
        } else {
            truth[slot] = 0;
            map_remove(&map, key);
        }
        uint64_t other = (uint64_t)(rand() % 512);
        cr_assert_eq(map_get(&map, (other + 1) << (other % 3 * 20)), truth[other]);
    }
    for (uint64_t slot = 0; slot < 512; slot++)
        cr_assert_eq(map_get(&map, (slot + 1) << (slot % 3 * 20)), truth[slot]);
    map_free(&map);
    cr_assert_eq(map_get(&map, 1), 0);
}

Test(lock, one_holder_a_folder_and_nothing_stays)
{
    char dir[] = "/tmp/poise-lock-XXXXXX", sub[64], pid[32];
    struct lock first = {0}, second = {0};
    struct poise_err err;
    cr_assert(mkdtemp(dir));
    snprintf(sub, sizeof sub, "%s/run", dir);
    lock_release(&first); /* not held: nothing */
    cr_assert_eq(lock_take(&first, sub, &err), 0);
    cr_assert_eq(lock_take(&second, sub, &err), -EEXIST);
    snprintf(pid, sizeof pid, "(pid %d)", (int)getpid());
    cr_assert(strstr(err.text, pid) && strstr(err.text, sub), "%s", err.text);
    cr_assert_not(second.held);
    lock_release(&first);
    cr_assert_eq(lock_take(&second, sub, &err), 0);
    lock_release(&second);
    cr_assert_eq(rmdir(sub), 0, "empty again");
    cr_assert_eq(rmdir(dir), 0);
}

/* -------------------------------------------------------------------------------------------------------------- log */

/* Standard error becomes a pipe; what was written is in text afterwards. */
static int old_stderr, pipe_out;

static void capture(void)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_geq(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20), 0);
    cr_assert_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    old_stderr = dup(2);
    dup2(ends[1], 2);
    close(ends[1]);
    pipe_out = ends[0];
}

static uint32_t captured(const char *part, char *text, size_t n_text)
{
    ssize_t n = read(pipe_out, text, n_text - 1);
    uint32_t count = 0;
    dup2(old_stderr, 2);
    close(old_stderr);
    close(pipe_out);
    text[n > 0 ? n : 0] = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        count++;
    return count;
}

Test(log, repeats_are_limited_and_counted)
{
    static char text[200000];
    log_init(LOG_LINE_INFO);
    capture();
    for (int i = 0; i < 350; i++)
        log_line(LOG_LINE_WARNING, "rank %d sent nonsense", i);
    log_line(LOG_LINE_INFO, "something else");
    log_line(LOG_LINE_DEBUG, "not asked for");
    log_flush();
    cr_assert_eq(captured("warning: rank", text, sizeof text), 100);
    cr_assert(strstr(text, "250 more lines like: rank 349 sent nonsense"), "%s", text);
    cr_assert(strstr(text, "info: something else"));
    cr_assert_not(strstr(text, "not asked for"));
}

Test(log, bytes_of_others_stay_one_line)
{
    static char text[4096];
    log_init(LOG_LINE_INFO);
    capture();
    log_line(LOG_LINE_INFO, "job %s", "a\nb\x1b[2Jc\xc3\xa4");
    cr_assert_eq(captured("\n", text, sizeof text), 1);
    cr_assert(strstr(text, "job a?b?[2Jc\xc3\xa4\n"), "%s", text);
}

Test(log, a_pipe_that_nobody_reads_does_not_block)
{
    static char text[4096];
    log_init(LOG_LINE_DEBUG);
    capture();
    for (int i = 0; i < 40000; i++) /* far more than the pipe holds */
        log_line(LOG_LINE_DEBUG, "line %d", i);
    cr_assert_gt(captured("line", text, sizeof text), 0);
}

/* --------------------------------------------------------------------------------------------------------- verdicts */

static struct group_report group_of(const char *state)
{
    struct group_report g = {.state = state, .uid = 7, .n_ranks = 20, .n_replicas = 1, .n_nodes = 1, .n_joined = 20,
                             .epoch = {1, 2}, .first_step = 100, .decided = 5, .planned = 5, .bytes = 1000,
                             .bytes_moved = 125};
    strcpy(g.job, "qwen");
    strcpy(g.group, "dp");
    g.last = (struct poise_totals){.n_samples = 10, .cost_before = 1500, .cost_after = 1010, .cost_mean = 1000,
                                   .samples_moved = 3};
    return g;
}

static struct node_report_process process_of(uint32_t rank, struct wire_id epoch, uint32_t waiting)
{
    struct node_report_process p = {.rank = rank, .uid = 7, .n_ranks = 20, .n_replicas = 1, .state = "running",
                                    .epoch = epoch, .last = {.waiting = waiting}};
    strcpy(p.job, "qwen");
    strcpy(p.group, "dp");
    return p;
}

static void assert_verdict_after(uint64_t idle_ms, const struct shell_report *report, const struct group_report *group,
                                 const char *text)
{
    char line[768];
    verdict(report, group, idle_ms, line, sizeof line);
    cr_assert_str_eq(line, text);
    char shortest[9];
    verdict(report, group, idle_ms, shortest, sizeof shortest);
    cr_assert_eq(strncmp(shortest, text, 8), 0, "cut to fit");
}

static void assert_verdict(const struct shell_report *report, const struct group_report *group, const char *text)
{
    assert_verdict_after(0, report, group, text);
}

Test(verdict, a_group_that_forms_names_who_did_not_come)
{
    struct group_report g = group_of("forming");
    struct shell_report r = {0};
    g.n_joined = 18;
    g.n_waiting = 2;
    g.waiting[0] = 2;
    g.waiting[1] = 5;
    assert_verdict(&r, &g, "waiting for ranks 2, 5 to join");
    g.n_waiting = 17;
    for (uint32_t i = 0; i < 16; i++)
        g.waiting[i] = i;
    assert_verdict(&r, &g, "waiting for ranks 0, 1, 2, 3, 4, 5, 6, 7 and 9 more to join");
    g.n_waiting = 1;
    assert_verdict(&r, &g, "waiting for rank 0 to join");
}

Test(verdict, a_loader_that_holds_all_up_is_named)
{
    static const char running[] =
        "running: predicted largest/mean rank cost 1.500 to 1.010, moving 12.5 % of the bytes";
    struct group_report g = group_of("running");
    struct node_report_process p[20];
    struct shell_report r = {.node = {.n_processes = 20, .processes = p}};
    for (uint32_t rank = 0; rank < 20; rank++) {
        p[rank] = process_of(rank, g.epoch, rank == 17 ? WIRE_WAIT_LOADER : WIRE_WAIT_PLAN);
        p[rank].last.submitted = rank == 17 ? 5 : 6;
    }
    g.n_waiting = 20; /* the node sends all together, so the coordinator has nothing of the step */
    assert_verdict_after(2500, &r, &g,
                         "loader-bound on rank 17: balancing cannot help (step 105 not submitted for 2.5 s)");
    p[17].last.waiting = WIRE_WAIT_SHUFFLE;
    assert_verdict_after(2500, &r, &g, "waiting for rank 17 (step 105 not submitted for 2.5 s)");
    p[17].last.waiting = WIRE_WAIT_TRAINER;
    assert_verdict_after(2500, &r, &g, "waiting for the trainer of rank 17 (step 105 not submitted for 2.5 s)");
    assert_verdict_after(20, &r, &g, running); /* normal */
    for (uint32_t rank = 0; rank < 20; rank++)
        p[rank] = process_of(rank, g.epoch, WIRE_WAIT_TRAINER), p[rank].last.submitted = 5;
    assert_verdict_after(2500, &r, &g, running); /* all compute */
    for (uint32_t rank = 0; rank < 20; rank++)
        p[rank].last.waiting = WIRE_WAIT_LOADER;
    assert_verdict_after(2500, &r, &g,
                         "loader-bound on all ranks: balancing cannot help (step 105 not submitted for 2.5 s)");
    r.node.n_processes = 0; /* ranks of another node, which the coordinator names */
    g.n_waiting = 1;
    g.waiting[0] = 3;
    assert_verdict_after(2500, &r, &g, "waiting for rank 3 (step 105 not submitted for 2.5 s)");
}

Test(verdict, corrupt_samples_come_before_all_else)
{
    struct group_report g = group_of("aborted");
    struct node_report_process p = process_of(1, g.epoch, WIRE_WAIT_LOADER);
    struct shell_report r = {.node = {.n_processes = 1, .processes = &p}};
    p.last.samples_corrupt = 2;
    assert_verdict(&r, &g, "2 corrupt samples: memory or transport of this node cannot be trusted");
}

Test(verdict, modes_ends_and_nothing_to_do)
{
    struct shell_report r = {0};
    struct group_report g = group_of("running");
    g.last.mode = POISE_MODE_SHADOW;
    assert_verdict(&r, &g,
                   "running: shadow: a plan would take largest/mean rank cost 1.500 to 1.010, "
                   "moving 12.5 % of the bytes");
    g.last.mode = POISE_MODE_OFF;
    assert_verdict(&r, &g, "running: off: every rank keeps its own samples");
    g.planned = 0;
    assert_verdict(&r, &g, "running: no step planned yet");
    g = group_of("aborted");
    strcpy(g.error, "rank 2 died");
    assert_verdict(&r, &g, "aborted: rank 2 died");
    g = group_of("ended");
    g.last.cost_mean = 0;
    assert_verdict(&r, &g, "ended: samples cost nothing: there is nothing to balance");
}

/* -------------------------------------------------------------------------------------------------------- documents */

Test(status, json_is_valid_whatever_names_hold)
{
    struct group_report g = group_of("running");
    struct node_report_process p = process_of(1, g.epoch, 99);
    strcpy(g.job, "a\"b\\c\n\xc3\xa4");
    strcpy(p.job, g.job);
    g.error[0] = '\xff'; /* no UTF-8 */
    g.last.cost_after = UINT64_MAX;
    p.last.compute_ns = 3000000;
    uint64_t idle_ms[1] = {3};
    struct shell_report r = {.socket_dir = "/run/poise", .node = {.n_processes = 1, .processes = &p}, .groups = &g,
                             .n_groups = 1, .idle_ms = idle_ms};
    json_error_t error;
    char *text = status_json(&r);
    json_t *json = json_loads(text, 0, &error), *group = json_array_get(json_object_get(json, "groups"), 0);
    cr_assert(json, "%s", error.text);
    cr_assert_str_eq(json_string_value(json_object_get(group, "job")), g.job);
    cr_assert_eq(json_array_size(json_object_get(group, "processes")), 1);
    cr_assert_eq(json_integer_value(json_object_get(group, "step")), 105);
    json_t *measured = json_object_get(group, "measured");
    cr_assert_float_eq(json_real_value(json_object_get(measured, "compute_ms_max")), 3.0, 1e-9);
    json_decref(json);
    free(text);
}

Test(status, measured_is_of_the_newest_step_that_all_told_of)
{
    struct group_report g = group_of("running");
    struct node_report_process p[3];
    struct shell_report r = {.node = {.n_processes = 3, .processes = p}, .groups = &g, .n_groups = 1};
    cr_assert_eq(report_measured(&(struct shell_report){0}, &g).n_ranks, 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        p[rank] = process_of(rank, g.epoch, WIRE_WAIT_NOTHING);
        p[rank].last.report_step = 8 + rank; /* a window apart */
        p[rank].last.compute_ns = 1000;
        p[rank].computed[1] = (struct node_computed){7, 200 + 100 * rank};
        p[rank].computed[2] = (struct node_computed){6, 5000};
    }
    struct report_measured m = report_measured(&r, &g); /* nobody but rank 0 told of 8 */
    cr_assert_eq(m.step, 7);
    cr_assert_eq(m.n_ranks, 3);
    cr_assert_eq(m.slowest, 2);
    cr_assert_eq(m.max_ns, 400);
    cr_assert_float_eq(m.sum_ns, 900, 1e-9);
    for (uint32_t rank = 1; rank < 3; rank++)
        p[rank].computed[0] = (struct node_computed){8, 500};
    cr_assert_eq(report_measured(&r, &g).step, 8);
    memset(p[1].computed, 0, sizeof p[1].computed);
    cr_assert_eq(report_measured(&r, &g).n_ranks, 0); /* no step in common */
    p[1].last.compute_ns = 0;                         /* its trainer does not measure */
    cr_assert_eq(report_measured(&r, &g).n_ranks, 2);
}

Test(status, a_plan_that_waits_for_a_peer_s_loader_names_it)
{
    struct group_report g = group_of("running");
    struct node_report_process p = process_of(1, g.epoch, WIRE_WAIT_PLAN);
    struct report_waiting waiting = {.ranks = {5}, .n_named = 1, .n = 1, .n_by = {[WIRE_WAIT_LOADER] = 1}};
    char text[REPORT_CAUSE];
    cr_assert_str_eq(report_cause(&p, &waiting, text), "loader of rank 5");
    waiting.n = waiting.n_by[WIRE_WAIT_LOADER] = 3;
    cr_assert_str_eq(report_cause(&p, &waiting, text), "loader of rank 5 and 2 more");
    waiting.n_by[WIRE_WAIT_LOADER] = 2; /* of a rank elsewhere nobody knows why */
    cr_assert_str_eq(report_cause(&p, &waiting, text), "rank 5 and 2 more");
    waiting.n = 0;
    cr_assert_str_eq(report_cause(&p, &waiting, text), "plan");
    p.last.waiting = WIRE_WAIT_SHUFFLE;
    cr_assert_str_eq(report_cause(&p, &waiting, text), "shuffle");
}

Test(status, metrics_escape_labels_and_show_a_group_once)
{
    struct group_report g[2] = {group_of("aborted"), group_of("running")};
    strcpy(g[0].job, "a\"b\\c\nd");
    strcpy(g[1].job, g[0].job);
    g[1].decided = 6;
    struct shell_report r = {.groups = g, .n_groups = 2};
    char *text = status_metrics(&r);
    const char *line = "\npoise_group_steps_decided_total{job=\"a\\\"b\\\\c\\nd\",group=\"dp\",uid=\"7\"} 6\n";
    cr_assert(strstr(text, line), "%s", text);
    cr_assert_not(strstr(strstr(text, line) + strlen(line), "poise_group_steps_decided_total{"));
    cr_assert(strstr(text, "poise_group_imbalance_before{"));
    free(text);
}
