/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame: what a group of ranks does now, from two reports. Rates are differences over the daemon's own clock, so that
 * a slow answer distorts nothing; a group is the same one only by its epoch, as another run's counters begin anew.
 * Names come from users and lose their control characters here.
 */
#include "client/ctl/top.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_LINES 10  /* of a group without its ranks */
#define RANKS_LEAST 2u  /* a group with none would not show why it waits */

static int64_t number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Also U+0080 to U+009F, which are control characters of two bytes. */
static void put_text(FILE *out, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    for (const unsigned char *at = (const unsigned char *)(text ? text : "?"); *at; at++) {
        if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0)
            fputc('?', out), at++;
        else
            fputc(*at < ' ' || *at == 0x7f ? '?' : *at, out);
    }
}

static void put_bytes(FILE *out, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit = 0;

    for (; bytes >= 1000 && unit < 5; unit++)
        bytes /= 1000;
    fprintf(out, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static const json_t *same_group(const json_t *report, const json_t *group)
{
    static const char *const keys[] = {"job", "group", "uid", "epoch"};
    const json_t *other;
    size_t i;

    json_array_foreach(json_object_get(report, "groups"), i, other)
    {
        bool same = true;

        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            same = same && json_equal(json_object_get(group, keys[k]), json_object_get(other, keys[k]));
        if (same)
            return other;
    }
    return NULL;
}

/* A second, by the daemon's clock; negative where it is not known. */
static double rate(const json_t *before, const json_t *now, const char *key, double seconds)
{
    return before && seconds > 0 ? (real(now, key) - real(before, key)) / seconds : -1;
}

static void put_steps(FILE *out, const json_t *group, double steps_s)
{
    fprintf(out, "  steps       %" PRId64 " is open", number(group, "step"));
    if (steps_s >= 0)
        fprintf(out, ", %.1f steps/s", steps_s);
    fprintf(out, "; %" PRId64 " planned, %" PRId64 " errors, %" PRId64 " samples dropped\n", number(group, "planned"),
            number(group, "errors"), number(group, "samples_dropped"));
}

static void put_imbalance(FILE *out, const json_t *predicted, const json_t *measured)
{
    fputs("  imbalance   ", out);
    if (json_is_object(predicted))
        fprintf(out, "predicted %.3f before, %.3f after", real(predicted, "imbalance_before"),
                real(predicted, "imbalance_after"));
    else
        fputs("nothing planned yet", out);
    if (json_is_object(measured))
        fprintf(out, "; measured %.3f in step %" PRId64 ", slowest rank %" PRId64 " of %" PRId64 " here\n",
                real(measured, "imbalance"), number(measured, "step"), number(measured, "slowest"),
                number(measured, "ranks"));
    else
        fputs("; trainers here do not report their compute\n", out);
}

static void put_lengths(FILE *out, const json_t *predicted)
{
    const json_t *before = json_object_get(predicted, "length_micro_batch_before");
    const json_t *after = json_object_get(predicted, "length_micro_batch_after");

    if (json_array_size(before) == 0)
        return;
    fputs("  micro-batch largest length by phase: ", out);
    for (size_t i = 0; i < json_array_size(before); i++)
        fprintf(out, "%s%" JSON_INTEGER_FORMAT " -> %" JSON_INTEGER_FORMAT, i ? ", " : "",
                json_integer_value(json_array_get(before, i)), json_integer_value(json_array_get(after, i)));
    fputc('\n', out);
}

static void put_moved(FILE *out, const json_t *group, double moved_s)
{
    const double all = real(group, "bytes"), moved = real(group, "bytes_moved");

    fputs("  moved       ", out);
    if (moved_s >= 0) {
        put_bytes(out, moved_s);
        fputs("/s, ", out);
    }
    put_bytes(out, moved);
    fputs(" of ", out);
    put_bytes(out, all);
    fprintf(out, " since the start (%.1f %%)\n", all > 0 ? 100 * moved / all : 0.0);
}

static void put_waiting(FILE *out, const json_t *waiting)
{
    const json_t *rank, *n;
    const char *cause;
    size_t i;

    fputs("  waits for   ", out);
    if (number(waiting, "total") == 0) {
        fputs("nobody\n", out);
        return;
    }
    json_array_foreach(json_object_get(waiting, "ranks"), i, rank)
    {
        fprintf(out, "%s%" JSON_INTEGER_FORMAT, i ? ", " : "rank ", json_integer_value(rank));
    }
    if (number(waiting, "total") > (int64_t)i)
        fprintf(out, " and %" PRId64 " more", number(waiting, "total") - (int64_t)i);
    fprintf(out, ", for %.1f s", real(waiting, "ms") * 1e-3);
    json_object_foreach((json_t *)json_object_get(waiting, "for"), cause, n)
    {
        fprintf(out, "; %" JSON_INTEGER_FORMAT " by the %s", json_integer_value(n), cause);
    }
    fputc('\n', out);
}

/* Sums over the processes of this node. */
static void put_memory(FILE *out, const json_t *processes)
{
    double arena = 0, budget = 0, exposed = 0, most = 0;
    int64_t verified = 0, delivered = 0, corrupt = 0;
    const json_t *p;
    size_t i;

    json_array_foreach(processes, i, p)
    {
        arena += real(p, "arena_bytes");
        budget += real(p, "budget_bytes");
        exposed += real(p, "exposed_ms");
        most = real(p, "exposed_ms") > most ? real(p, "exposed_ms") : most;
        verified += number(p, "samples_verified");
        delivered += number(p, "samples_out");
        corrupt += number(p, "samples_corrupt");
    }
    if (i == 0)
        return;
    fprintf(out, "  exposed     wait of the newest step: %.3f ms in the mean, %.3f ms at most\n", exposed / (double)i,
            most);
    fputs("  memory      ", out);
    put_bytes(out, arena);
    fputs(" of ", out);
    put_bytes(out, budget);
    fprintf(out, " by %zu ranks here\n  verified    %" PRId64 " of %" PRId64 " samples, %" PRId64 " corrupt\n", i,
            verified, delivered, corrupt);
}

static void put_rank(FILE *out, const json_t *p)
{
    const char *key = json_object_get(p, "cause") ? "cause" : "waiting_for";
    char *cause = NULL;
    size_t n;
    FILE *text = open_memstream(&cause, &n);

    if (text) {
        put_text(text, p, key);
        fclose(text);
    }
    fprintf(out, "  %4" PRId64 " %7" PRId64 " %9" PRId64 " %9" PRId64 " %-20s %10.1f %10.2f %10.3f  ",
            number(p, "rank"), number(p, "replica"), number(p, "submitted"), number(p, "delivered"),
            cause ? cause : "?", real(p, "compute_ms"), real(p, "pipeline_ms"), real(p, "exposed_ms"));
    free(cause);
    put_bytes(out, real(p, "arena_bytes"));
    fputs(" of ", out);
    put_bytes(out, real(p, "budget_bytes"));
    fputc('\n', out);
}

static void put_ranks(FILE *out, const json_t *processes, size_t n_most)
{
    const json_t *process;
    size_t i;

    if (json_array_size(processes) == 0)
        return;
    fprintf(out, "  %4s %7s %9s %9s %-20s %10s %10s %10s  %s\n", "rank", "replica", "submitted", "delivered",
            "waits for", "compute ms", "pipeline", "exposed", "memory");
    json_array_foreach(processes, i, process)
    {
        if (i < n_most)
            put_rank(out, process);
    }
    if (i > n_most)
        fprintf(out, "  ... and %zu more ranks here\n", i - n_most);
}

static void put_group(FILE *out, const json_t *before, const json_t *group, double seconds, size_t n_ranks)
{
    fprintf(out, "\n%c", TOP_BOLD);
    put_text(out, group, "job");
    fputc('/', out);
    put_text(out, group, "group");
    fprintf(out, " (uid %" PRId64 "): ", number(group, "uid"));
    put_text(out, group, "state");
    fputs(", mode ", out);
    put_text(out, group, "mode");
    if (json_string_length(json_object_get(group, "algorithm")) > 0) { /* else the default's */
        fputs(", algorithm ", out);
        put_text(out, group, "algorithm");
    }
    fprintf(out, ", %" PRId64 " ranks x %" PRId64 " on %" PRId64 " nodes\n  ", number(group, "ranks"),
            number(group, "replicas"), number(group, "nodes"));
    put_text(out, group, "verdict");
    fputc('\n', out);
    put_steps(out, group, rate(before, group, "decided", seconds));
    put_imbalance(out, json_object_get(group, "predicted"), json_object_get(group, "measured"));
    put_lengths(out, json_object_get(group, "predicted"));
    put_moved(out, group, rate(before, group, "bytes_moved", seconds));
    put_waiting(out, json_object_get(group, "waiting"));
    put_memory(out, json_object_get(group, "processes"));
    put_ranks(out, json_object_get(group, "processes"), n_ranks);
}

static bool is_over(const json_t *group)
{
    const char *state = json_string_value(json_object_get(group, "state"));

    return state && (strcmp(state, "ended") == 0 || strcmp(state, "aborted") == 0);
}

/* Groups that run come first, as those below may not fit. */
static void put_groups(FILE *out, const json_t *before, const json_t *now, unsigned n_lines)
{
    const json_t *groups = json_object_get(now, "groups"), *group;
    const double seconds = before ? (real(now, "uptime_ms") - real(before, "uptime_ms")) * 1e-3 : 0;
    const size_t n = json_array_size(groups), heads = 2 + n * (GROUP_LINES + 2);
    size_t n_ranks = n && n_lines > heads ? (n_lines - heads) / n : 0, i;

    if (n_ranks < RANKS_LEAST)
        n_ranks = RANKS_LEAST;
    for (int over = 0; over < 2; over++) {
        json_array_foreach(groups, i, group)
        {
            if (is_over(group) == (over == 1))
                put_group(out, same_group(before, group), group, seconds, n_ranks);
        }
    }
    if (n == 0)
        fputs("\nno group has come yet\n", out);
}

char *top_frame(const json_t *before, const json_t *now, const char *dir, unsigned n_lines)
{
    char *text = NULL;
    size_t n_text;
    FILE *out = open_memstream(&text, &n_text);

    if (!out)
        return NULL;
    if (now) {
        fprintf(out, "%cpoised ", TOP_BOLD);
        put_text(out, now, "version");
        fputs(" on ", out);
        put_text(out, now, "node");
        fprintf(out, ", up %.0f s, %" PRId64 " of %" PRId64 " processes, mode ", real(now, "uptime_ms") * 1e-3,
                number(now, "processes"), number(now, "max_processes"));
        put_text(out, now, "mode");
        fputc('\n', out);
        put_groups(out, before, now, n_lines);
    } else {
        fprintf(out, "%cno poised answers: looking again in %s\n", TOP_BOLD, dir);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
