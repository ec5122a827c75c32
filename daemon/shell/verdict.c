/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one line that a user reads first. What holds a group up is looked for in the order in which it would have to be
 * cured: members that never came, a rank whose metadata is missing (and why, if that rank told), and only then how well
 * balancing does. Waits below half a second are normal jitter between ranks and not worth a verdict.
 */
#include "daemon/shell/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WAIT_WORTH_MS 500
#define NAMED 8 /* ranks in a list; the rest is a number */

const char *mode_name(uint32_t mode)
{
    static const char *const names[] = {"on", "shadow", "off"};
    return mode < 3 ? names[mode] : "?";
}

bool mode_read(const char *text, uint32_t *ret_mode)
{
    for (uint32_t mode = 0; mode < 3; mode++) {
        if (strcmp(text, mode_name(mode)) == 0) {
            *ret_mode = mode;
            return true;
        }
    }
    return false;
}

const char *waiting_name(uint32_t waiting)
{
    static const char *const names[] = {"nothing", "loader", "plan", "shuffle", "trainer"};
    return waiting < 5 ? names[waiting] : "?";
}

bool report_belongs(const struct node_report_process *process, const struct group_report *group)
{
    return process->uid == group->uid && strcmp(process->job, group->job) == 0 &&
           strcmp(process->group, group->group) == 0 &&
           (wire_id_none(process->epoch) || wire_id_none(group->epoch) || wire_id_is(process->epoch, group->epoch));
}

struct line {
    char *text;
    size_t n_text, used;
};

static void __attribute__((format(printf, 2, 3))) add(struct line *line, const char *format, ...)
{
    va_list ap;
    if (line->used >= line->n_text)
        return;
    va_start(ap, format);
    int n = vsnprintf(line->text + line->used, line->n_text - line->used, format, ap);
    va_end(ap);
    line->used += n > 0 ? (size_t)n : 0;
}

/* "rank 5" or "ranks 2, 5 and 3 more". */
static void add_ranks(struct line *line, const uint32_t *ranks, uint32_t n_ranks, uint32_t n_all)
{
    uint32_t n_shown = n_ranks < NAMED ? n_ranks : NAMED;
    add(line, n_all == 1 ? "rank " : "ranks ");
    for (uint32_t i = 0; i < n_shown; i++)
        add(line, i ? ", %u" : "%u", ranks[i]);
    if (n_all > n_shown)
        add(line, " and %u more", n_all - n_shown);
}

/* What replica 0 of a rank of this node said of itself last; NULL: not here. */
static const struct wire_report *heard_of(const struct shell_report *report, const struct group_report *group,
                                          uint32_t rank)
{
    for (uint32_t i = 0; i < report->node.n_processes; i++) {
        const struct node_report_process *p = &report->node.processes[i];
        if (report_belongs(p, group) && p->rank == rank && p->replica == 0)
            return &p->last;
    }
    return NULL;
}

static void add_waiting(struct report_waiting *waiting, uint32_t rank, const struct wire_report *heard)
{
    if (waiting->n_named < REPORT_NAMED)
        waiting->ranks[waiting->n_named++] = rank;
    waiting->n++;
    waiting->n_by[heard && heard->waiting < 5 ? heard->waiting : WIRE_WAIT_NOTHING]++;
}

/* Not all are named by the coordinator. */
static struct report_waiting not_joined(const struct group_report *group)
{
    struct report_waiting waiting = {.n = group->n_waiting, .ms = group->waiting_ms};
    waiting.n_named = group->n_waiting < REPORT_NAMED ? group->n_waiting : REPORT_NAMED;
    memcpy(waiting.ranks, group->waiting, waiting.n_named * sizeof *waiting.ranks);
    return waiting;
}

/* The coordinator knows which ranks' metadata it has; but a node sends that of its ranks together, so of ranks here
 * their own reports say more. */
struct report_waiting report_waiting(const struct shell_report *report, const struct group_report *group,
                                     uint64_t idle_ms)
{
    struct report_waiting waiting = {.ms = idle_ms};
    bool told = group->n_waiting && group->n_waiting <= 16 && group->n_waiting < group->n_ranks;
    if (strcmp(group->state, "forming") == 0)
        return not_joined(group);
    if (strcmp(group->state, "running") != 0)
        return (struct report_waiting){.n = 0};
    for (uint32_t i = 0; i < (told ? group->n_waiting : group->n_ranks); i++) {
        uint32_t rank = told ? group->waiting[i] : i;
        const struct wire_report *heard = heard_of(report, group, rank);
        if (heard ? heard->submitted <= group->decided : told)
            add_waiting(&waiting, rank, heard);
    }
    if (waiting.n == group->n_ranks && !waiting.n_by[WIRE_WAIT_LOADER])
        return (struct report_waiting){.n = 0};
    return waiting;
}

static void forming(const struct group_report *group, const struct report_waiting *waiting, struct line *line)
{
    uint32_t n_all = group->n_ranks * group->n_replicas;
    add(line, "waiting for ");
    if (waiting->n)
        add_ranks(line, waiting->ranks, waiting->n_named, waiting->n);
    else
        add(line, "%u of %u processes", n_all - group->n_joined, n_all);
    add(line, " to join");
}

static void held_up(const struct group_report *group, const struct report_waiting *waiting, struct line *line)
{
    bool loader = waiting->n_by[WIRE_WAIT_LOADER] == waiting->n;
    bool trainer = waiting->n_by[WIRE_WAIT_TRAINER] == waiting->n;
    add(line, loader ? "loader-bound on " : trainer ? "waiting for the trainer of " : "waiting for ");
    if (waiting->n == group->n_ranks && waiting->n > 1)
        add(line, "all ranks");
    else
        add_ranks(line, waiting->ranks, waiting->n_named, waiting->n);
    add(line, loader ? ": balancing cannot help" : "");
    add(line, " (step %llu not submitted for %.1f s)", (unsigned long long)(group->first_step + group->decided),
        (double)waiting->ms / 1000);
}

static void balance(const struct group_report *group, struct line *line)
{
    const struct poise_totals *last = &group->last;
    double mean = (double)last->cost_mean, before = (double)last->cost_before, after = (double)last->cost_after;
    if (!group->planned) {
        add(line, group->errors ? "no step planned yet, %llu ended in errors" : "no step planned yet",
            (unsigned long long)group->errors);
        return;
    }
    if (last->mode == POISE_MODE_OFF) {
        add(line, "off: every rank keeps its own samples");
        return;
    }
    if (last->cost_mean == 0) {
        add(line, "samples cost nothing: there is nothing to balance");
        return;
    }
    add(line, last->mode == POISE_MODE_SHADOW ? "shadow: a plan would take" : "predicted");
    add(line, " largest/mean rank cost %.3f to %.3f", before / mean, after / mean);
    add(line, ", moving %.1f %% of the bytes",
        group->bytes ? 100.0 * (double)group->bytes_moved / (double)group->bytes : 0.0);
    if (after > 1.05 * mean && last->samples_moved == 0)
        add(line, "; nothing better is possible under the caps");
}

/* Of this node's processes. */
static uint64_t corrupt(const struct shell_report *report, const struct group_report *group)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < report->node.n_processes; i++)
        if (report_belongs(&report->node.processes[i], group))
            n += report->node.processes[i].last.samples_corrupt;
    return n;
}

void verdict(const struct shell_report *report, const struct group_report *group, uint64_t idle_ms, char *text,
             size_t n_text)
{
    struct line line = {text, n_text, 0};
    struct report_waiting waiting = report_waiting(report, group, idle_ms);
    if (n_text)
        *text = 0;
    uint64_t n_corrupt = corrupt(report, group);
    if (n_corrupt) {
        add(&line, "%llu corrupt samples: memory or transport of this node cannot be trusted",
            (unsigned long long)n_corrupt);
    } else if (strcmp(group->state, "forming") == 0) {
        forming(group, &waiting, &line);
    } else if (strcmp(group->state, "aborted") == 0) {
        add(&line, "aborted: %s", group->error);
    } else if (waiting.n && waiting.ms >= WAIT_WORTH_MS) {
        held_up(group, &waiting, &line);
    } else {
        add(&line, "%s: ", group->state);
        balance(group, &line);
    }
}
