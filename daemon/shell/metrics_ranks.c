/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Series of single ranks for Prometheus: only of processes of this node, so that a group of a thousand ranks gives
 * every node's server its own few. A rank that came back is there twice for a while; the later one counts, as a series
 * must not be doubled.
 */
#include "daemon/shell/report.h"

#include <stdlib.h>
#include <string.h>

struct series {
    const char *name, *type, *help;
    double (*value)(const struct wire_report *);
};

static double step(const struct wire_report *w) { return (double)w->step; }
static double submitted(const struct wire_report *w) { return (double)w->submitted; }
static double compute(const struct wire_report *w) { return (double)w->compute_ns * 1e-9; }
static double pipeline(const struct wire_report *w) { return (double)w->pipeline_ns * 1e-9; }
static double exposed(const struct wire_report *w) { return (double)w->exposed_ns * 1e-9; }
static double arena(const struct wire_report *w) { return (double)w->arena_bytes; }
static double budget(const struct wire_report *w) { return (double)w->budget_bytes; }
static double samples_in(const struct wire_report *w) { return (double)w->samples_in; }
static double samples_out(const struct wire_report *w) { return (double)w->samples_out; }
static double dropped(const struct wire_report *w) { return (double)w->samples_dropped; }
static double verified(const struct wire_report *w) { return (double)w->samples_verified; }
static double corrupt(const struct wire_report *w) { return (double)w->samples_corrupt; }

static const struct series of_ranks[] = {
    {"step", "gauge", "The step that the trainer got last.", step},
    {"steps_submitted_total", "counter", "Steps submitted.", submitted},
    {"compute_seconds", "gauge", "Compute of the newest step that the trainer reported.", compute},
    {"pipeline_seconds", "gauge", "From the submission of the newest step to its batches being ready.", pipeline},
    {"exposed_wait_seconds", "gauge", "How long the trainer waited for its newest step.", exposed},
    {"arena_bytes", "gauge", "Shared memory in use.", arena},
    {"budget_bytes", "gauge", "Shared memory that may be in use.", budget},
    {"samples_submitted_total", "counter", "Samples that the loader gave.", samples_in},
    {"samples_delivered_total", "counter", "Samples that the trainer got.", samples_out},
    {"samples_dropped_total", "counter", "Samples of steps that ended in an error or after the data's end.", dropped},
    {"samples_verified_total", "counter", "Samples whose bytes were compared with their hash.", verified},
    {"samples_corrupt_total", "counter", "Samples whose bytes were not what was submitted.", corrupt},
};

static bool is_same(const struct node_report_process *a, const struct node_report_process *b)
{
    return a->rank == b->rank && a->replica == b->replica && a->uid == b->uid && strcmp(a->job, b->job) == 0 &&
           strcmp(a->group, b->group) == 0;
}

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP poise_rank_%s %s\n# TYPE poise_rank_%s %s\n", name, help, name, type);
}

/* Leaves the braces open. */
static void labels(FILE *out, const char *name, const struct node_report_process *p)
{
    char whole[64];
    snprintf(whole, sizeof whole, "rank_%s", name);
    metrics_labels(out, whole, p->job, p->group, p->uid);
    fprintf(out, ",rank=\"%u\",replica=\"%u\"", p->rank, p->replica);
}

/* A 1 for what it waits for and a 0 for the others: a series that comes and goes is hard to ask for. */
static void write_waiting(FILE *out, const struct node_report *node, const bool *shown)
{
    head(out, "waiting", "gauge", "Whether the rank waits for this cause.");
    for (uint32_t i = 0; i < node->n_processes; i++) {
        for (uint32_t cause = WIRE_WAIT_LOADER; shown[i] && cause <= WIRE_WAIT_TRAINER; cause++) {
            labels(out, "waiting", &node->processes[i]);
            fprintf(out, ",cause=\"%s\"} %d\n", waiting_name(cause), node->processes[i].last.waiting == cause);
        }
    }
}

void metrics_ranks(FILE *out, const struct shell_report *report)
{
    const struct node_report *node = &report->node;
    bool *shown = calloc(node->n_processes + 1, sizeof *shown);
    if (!shown) /* the daemon's own series are worth more than none */
        return;
    for (uint32_t i = 0; i < node->n_processes; i++) {
        shown[i] = true;
        for (uint32_t k = i + 1; shown[i] && k < node->n_processes; k++)
            shown[i] = !is_same(&node->processes[i], &node->processes[k]);
    }
    for (size_t s = 0; s < sizeof of_ranks / sizeof *of_ranks; s++) {
        head(out, of_ranks[s].name, of_ranks[s].type, of_ranks[s].help);
        for (uint32_t i = 0; i < node->n_processes; i++) {
            if (!shown[i])
                continue;
            labels(out, of_ranks[s].name, &node->processes[i]);
            fprintf(out, "} %.17g\n", of_ranks[s].value(&node->processes[i].last));
        }
    }
    write_waiting(out, node, shown);
    free(shown);
}
