/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl status: the daemon's report in words. It reads the JSON with a forgiving hand (a key that a daemon of
 * another version lacks is left out, never an error), and --json passes it on untouched.
 */
#include "client/ctl/http.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_SHOWN 16 /* lines of processes a group: more is for --json */
#define NODES_SHOWN 16

static int64_t number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value ? value : "?";
}

static void print_bytes(double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit = 0;

    for (; bytes >= 1000 && unit < 5; unit++)
        bytes /= 1000;
    printf(unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static void print_lengths(const json_t *before, const json_t *after)
{
    for (size_t i = 0; i < json_array_size(before) && i < json_array_size(after); i++)
        printf("%s%" JSON_INTEGER_FORMAT " -> %" JSON_INTEGER_FORMAT, i ? ", " : "",
               json_integer_value(json_array_get(before, i)), json_integer_value(json_array_get(after, i)));
}

static void print_predicted(const json_t *predicted)
{
    if (!json_is_object(predicted))
        return;
    printf("  predicted  largest/mean rank cost %.3f before, %.3f after (step in mode %s)\n",
           real(predicted, "imbalance_before"), real(predicted, "imbalance_after"), text(predicted, "mode"));
    printf("             %" PRId64 " of %" PRId64 " samples and ", number(predicted, "samples_moved"),
           number(predicted, "samples"));
    print_bytes(real(predicted, "bytes_moved"));
    printf(" of ");
    print_bytes(real(predicted, "bytes"));
    printf(" moved");
    if (real(predicted, "bytes_between_nodes") > 0) {
        printf(", of these ");
        print_bytes(real(predicted, "bytes_between_nodes"));
        printf(" between nodes");
    }
    printf("\n             largest micro-batch, length by phase: ");
    print_lengths(json_object_get(predicted, "length_micro_batch_before"),
                  json_object_get(predicted, "length_micro_batch_after"));
    printf("\n");
}

static void print_measured(const json_t *measured)
{
    if (json_is_object(measured))
        printf("  measured   compute of step %" PRId64 ": largest/mean %.3f (%.1f ms, %.1f ms) over %" PRId64
               " ranks here, slowest rank %" PRId64 "\n",
               number(measured, "step"), real(measured, "imbalance"), real(measured, "compute_ms_max"),
               real(measured, "compute_ms_mean"), number(measured, "ranks"),
               number(measured, "slowest"));
}

static double at(const json_t *interval, size_t i)
{
    return json_number_value(json_array_get(interval, i));
}

static void print_blocks(const char *what, const json_t *blocks)
{
    const json_t *interval = json_object_get(blocks, "interval_ms");

    printf("             %-16s ", what);
    if (!json_is_number(json_object_get(blocks, "measured_ms"))) {
        printf("not measured yet\n");
        return;
    }
    printf("%.1f ms a step", real(blocks, "measured_ms"));
    if (json_is_array(interval))
        printf(" (95 %%: %.1f to %.1f)", at(interval, 0), at(interval, 1));
    printf(", %" PRId64 " steps in %" PRId64 " blocks\n", number(blocks, "steps"), number(blocks, "blocks"));
}

/* As measured, of the option `audit`. */
static void print_audit(const json_t *audit)
{
    const json_t *interval = json_object_get(audit, "speedup_interval");

    if (!json_is_object(audit))
        return;
    printf("  audit      blocks of %" PRId64 " steps by turns, measured by the ranks here:\n", number(audit, "every"));
    print_blocks("balanced", json_object_get(audit, "balanced"));
    print_blocks("arrival order", json_object_get(audit, "arrival"));
    if (!json_is_number(json_object_get(audit, "measured_speedup")))
        return;
    printf("             measured speed-up %.3f", real(audit, "measured_speedup"));
    if (json_is_array(interval))
        printf(" (95 %%: %.3f to %.3f)", at(interval, 0), at(interval, 1));
    printf("\n");
}

static void print_waiting(const json_t *waiting)
{
    const json_t *ranks = json_object_get(waiting, "ranks"), *rank, *n;
    const char *cause;
    size_t i;

    if (number(waiting, "total") == 0)
        return;
    printf("  waits for  ");
    json_array_foreach(ranks, i, rank)
    {
        printf("%s%" JSON_INTEGER_FORMAT, i ? ", " : "rank ", json_integer_value(rank));
    }
    if (number(waiting, "total") > (int64_t)json_array_size(ranks))
        printf(" and %" PRId64 " more", number(waiting, "total") - (int64_t)json_array_size(ranks));
    printf(", for %.1f s", real(waiting, "ms") * 1e-3);
    json_object_foreach((json_t *)json_object_get(waiting, "for"), cause, n)
    {
        printf("; %" JSON_INTEGER_FORMAT " by the %s", json_integer_value(n), cause);
    }
    printf("\n");
}

/* What the daemon found behind the wait, where it is new enough to tell. */
static const char *cause(const json_t *p)
{
    return text(p, json_object_get(p, "cause") ? "cause" : "waiting_for");
}

static void print_process(const json_t *p)
{
    printf("  %4" PRId64 " %7" PRId64 " %8" PRId64 " %-8s %-6s %9" PRId64 " %9" PRId64 " %-18s %10.1f %10.1f %9.2f ",
           number(p, "rank"), number(p, "replica"), number(p, "pid"), text(p, "state"), text(p, "mode"),
           number(p, "submitted"), number(p, "delivered"), cause(p), real(p, "compute_ms"),
           real(p, "pipeline_ms"), real(p, "exposed_ms"));
    print_bytes(real(p, "arena_bytes"));
    printf(" of ");
    print_bytes(real(p, "budget_bytes"));
    printf(", %" PRId64 " verified", number(p, "samples_verified"));
    if (number(p, "samples_corrupt") > 0)
        printf(", %" PRId64 " CORRUPT", number(p, "samples_corrupt"));
    printf("\n");
}

static void print_processes(const json_t *processes)
{
    const json_t *process;
    size_t i;

    if (json_array_size(processes) == 0)
        return;
    printf("  %4s %7s %8s %-8s %-6s %9s %9s %-18s %10s %10s %9s %s\n", "rank", "replica", "pid", "state", "mode",
           "submitted", "delivered", "waits for", "compute ms", "pipeline", "exposed", "memory and samples");
    json_array_foreach(processes, i, process)
    {
        if (i < RANKS_SHOWN)
            print_process(process);
    }
    if (i > RANKS_SHOWN)
        printf("  ... and %zu more: --json shows all\n", i - RANKS_SHOWN);
}

static void print_group(const json_t *group)
{
    printf("\n%s/%s (uid %" PRId64 "): %s, mode %s, algorithm %s\n", text(group, "job"), text(group, "group"),
           number(group, "uid"), text(group, "state"), text(group, "mode"), text(group, "algorithm"));
    printf("  %s\n", text(group, "verdict"));
    if (json_is_string(json_object_get(group, "error")))
        printf("  error      %s\n", text(group, "error"));
    if (json_is_string(json_object_get(group, "payload")))
        printf("  payload between nodes: %s\n", text(group, "payload"));
    printf("  %" PRId64 " ranks x %" PRId64 " replicas on %" PRId64 " nodes, %" PRId64 " joined; step %" PRId64
           " is open, %" PRId64 " planned, %" PRId64 " errors\n",
           number(group, "ranks"), number(group, "replicas"), number(group, "nodes"), number(group, "joined"),
           number(group, "step"), number(group, "planned"), number(group, "errors"));
    print_waiting(json_object_get(group, "waiting"));
    print_predicted(json_object_get(group, "predicted"));
    print_measured(json_object_get(group, "measured"));
    print_audit(json_object_get(group, "audit"));
    print_processes(json_object_get(group, "processes"));
}

/* A daemon that tells nothing of encryption says nothing here. */
static const char *secure(const json_t *object)
{
    const json_t *value = json_object_get(object, "secure");

    return !json_is_boolean(value) ? "" : json_is_true(value) ? ", secure" : ", NOT encrypted";
}

static void print_link(const json_t *link)
{
    const json_t *age = json_object_get(link, "beacon_ms");

    printf("  coordinator %s: %s for %.1f s%s, ", text(link, "endpoint"), text(link, "state"),
           real(link, "state_ms") * 1e-3, secure(link));
    if (json_is_number(age))
        printf("newest beacon %.1f s ago", json_number_value(age) * 1e-3);
    else
        printf("no beacon yet");
    printf(", %" PRId64 " messages sent, %" PRId64 " received", number(link, "sent"), number(link, "received"));
    if (number(link, "dropped") > 0)
        printf(", %" PRId64 " dropped", number(link, "dropped"));
    if (number(link, "bad") > 0)
        printf(", %" PRId64 " BAD", number(link, "bad"));
    printf("\n");
}

/* Of the coordinator in this daemon, where it serves other nodes. */
static void print_listener(const json_t *coordinator)
{
    const json_t *endpoints = json_object_get(coordinator, "listen"), *endpoint, *node;
    size_t i;

    if (json_array_size(endpoints) == 0)
        return;
    printf("  listens at ");
    json_array_foreach(endpoints, i, endpoint) printf("%s%s", i ? ", " : "", json_string_value(endpoint));
    printf("%s\n", secure(coordinator));
    json_array_foreach(json_object_get(coordinator, "nodes"), i, node)
    {
        if (i < NODES_SHOWN)
            printf("  node       %s: heard %.1f s ago%s\n", text(node, "node"), real(node, "heard_ms") * 1e-3,
                   secure(node));
    }
    if (i > NODES_SHOWN)
        printf("  ... and %zu more nodes: --json shows all\n", i - NODES_SHOWN);
}

static void print_links(const json_t *report)
{
    const json_t *link;
    size_t i;

    json_array_foreach(json_object_get(report, "links"), i, link) print_link(link);
    print_listener(json_object_get(report, "coordinator"));
}

static void print_report(const json_t *report)
{
    const json_t *groups = json_object_get(report, "groups"), *group;
    size_t i;

    printf("poised %s, pid %" PRId64 ", node %s, up %.0f s, %" PRId64 " of %" PRId64 " processes, mode %s, in %s\n",
           text(report, "version"), number(report, "pid"), text(report, "node"), real(report, "uptime_ms") * 1e-3,
           number(report, "processes"), number(report, "max_processes"), text(report, "mode"),
           text(report, "socket_dir"));
    print_links(report);
    if (json_array_size(groups) == 0)
        printf("no group has come yet\n");
    json_array_foreach(groups, i, group) print_group(group);
}

int status_command(const struct ctl_command *command, int argc, char **argv)
{
    const char *dir = NULL;
    bool json = false;
    const struct ctl_option options[] = {
        {"socket-dir", CTL_STRING, &dir, "DIR", "poised's folder; default: $POISE_SOCKET_DIR, else /run/poise", 0, 0},
        {"json", CTL_FLAG, &json, NULL, "print the daemon's report as it is", 0, 0},
    };
    json_error_t error;
    json_t *report;
    char *body;
    long code;
    int status;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, NULL, 0, &status) != 0)
        return status;
    status = http_ask(command, ctl_socket_dir(dir), "/status", false, &code, &body);
    if (status != CTL_OK)
        return status;
    report = json_loads(body, 0, &error);
    if (code != 200)
        status = ctl_fail(command, CTL_FAILED, "poised answers with status %ld: %s", code, body);
    else if (!json_is_object(report))
        status = ctl_fail(command, CTL_FAILED, "poised's report is not what was expected: %s", error.text);
    else if (json)
        printf("%s\n", body);
    else
        print_report(report);
    json_decref(report);
    free(body);
    return status;
}
