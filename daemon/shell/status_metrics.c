/* SPDX-License-Identifier: Apache-2.0 */
/* The same reports for Prometheus (text format 0.0.4). Names are a contract with dashboards: add, never rename. */
#include "daemon/shell/accept.h"
#include "daemon/shell/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void plain(FILE *out, const char *name, const char *type, const char *help, uint64_t value)
{
    fprintf(out, "# HELP poise_%s %s\n# TYPE poise_%s %s\npoise_%s %llu\n", name, help, name, type, name,
            (unsigned long long)value);
}

/* A label's value: backslash, quote and newline are escaped. */
static void label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n')
            fputs("\\n", out);
        else if (*value == '\\' || *value == '"')
            fprintf(out, "\\%c", *value);
        else
            fputc(*value, out);
    }
    fputc('"', out);
}

void metrics_labels(FILE *out, const char *name, const char *job, const char *group, uint32_t uid)
{
    fprintf(out, "poise_%s{", name);
    label(out, "job", job);
    fputc(',', out);
    label(out, "group", group);
    fprintf(out, ",uid=\"%u\"", uid);
}

static void group_labels(FILE *out, const char *name, const struct group_report *g)
{
    char whole[64];
    snprintf(whole, sizeof whole, "group_%s", name);
    metrics_labels(out, whole, g->job, g->group, g->uid);
    fputs("} ", out);
}

/* The reports hold at most one group of a key that is not over; an older one of the same key would double its
 * series. */
bool metrics_shown(const struct shell_report *r, uint32_t i)
{
    for (uint32_t j = i + 1; j < r->n_groups; j++)
        if (r->groups[j].uid == r->groups[i].uid && strcmp(r->groups[j].job, r->groups[i].job) == 0 &&
            strcmp(r->groups[j].group, r->groups[i].group) == 0)
            return false;
    return true;
}

struct series {
    const char *name, *type, *help;
    double (*value)(const struct group_report *);
};

static double decided(const struct group_report *g) { return (double)g->decided; }
static double samples(const struct group_report *g) { return (double)g->samples; }
static double moved(const struct group_report *g) { return (double)g->samples_moved; }
static double dropped(const struct group_report *g) { return (double)g->samples_dropped; }
static double bytes(const struct group_report *g) { return (double)g->bytes; }
static double bytes_moved(const struct group_report *g) { return (double)g->bytes_moved; }
static double errors(const struct group_report *g) { return (double)g->errors; }
static double joined(const struct group_report *g) { return (double)g->n_joined; }
static double waiting(const struct group_report *g) { return (double)g->n_waiting; }
static double waiting_s(const struct group_report *g) { return (double)g->waiting_ms / 1000; }

static double share(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 1;
}
static double before(const struct group_report *g) { return share(g->last.cost_before, g->last.cost_mean); }
static double after(const struct group_report *g) { return share(g->last.cost_after, g->last.cost_mean); }

static const struct series of_groups[] = {
    {"steps_decided_total", "counter", "Steps that have an outcome.", decided},
    {"step_errors_total", "counter", "Steps whose outcome is an error.", errors},
    {"samples_total", "counter", "Samples of planned steps.", samples},
    {"samples_moved_total", "counter", "Samples that changed their rank.", moved},
    {"samples_dropped_total", "counter", "Samples of steps that ended in an error or after the data's end.", dropped},
    {"bytes_total", "counter", "Payload of planned steps.", bytes},
    {"bytes_moved_total", "counter", "Payload that changed its rank.", bytes_moved},
    {"processes_joined", "gauge", "Processes in the group.", joined},
    {"ranks_waited_for", "gauge", "Ranks whose metadata of the oldest open step is missing.", waiting},
    {"waiting_seconds", "gauge", "How long the oldest open step has waited.", waiting_s},
    {"imbalance_before", "gauge", "Predicted largest/mean rank cost of the newest planned step in arrival order.",
     before},
    {"imbalance_after", "gauge", "Predicted largest/mean rank cost of the newest planned step as planned.", after},
};

static void write_groups(FILE *out, const struct shell_report *r)
{
    for (size_t s = 0; s < sizeof of_groups / sizeof *of_groups; s++) {
        const struct series *series = &of_groups[s];
        fprintf(out, "# HELP poise_group_%s %s\n# TYPE poise_group_%s %s\n", series->name, series->help, series->name,
                series->type);
        for (uint32_t i = 0; i < r->n_groups; i++) {
            if (!metrics_shown(r, i))
                continue;
            group_labels(out, series->name, &r->groups[i]);
            fprintf(out, "%.17g\n", series->value(&r->groups[i]));
        }
    }
}

static void link_line(FILE *out, const char *name, const struct link_report *link, double value)
{
    fprintf(out, "poise_link_%s{", name);
    label(out, "endpoint", link->endpoint);
    fprintf(out, "} %.17g\n", value);
}

static void write_links(FILE *out, const struct shell_report *r)
{
    fputs("# HELP poise_link_up Whether the connection to a coordinator is there.\n# TYPE poise_link_up gauge\n", out);
    for (uint32_t i = 0; i < r->n_links; i++)
        link_line(out, "up", &r->links[i], r->links[i].state == LINK_UP);
    fputs("# HELP poise_link_beacon_age_seconds Since a coordinator's newest beacon.\n"
          "# TYPE poise_link_beacon_age_seconds gauge\n", out);
    for (uint32_t i = 0; i < r->n_links; i++)
        if (r->links[i].beacon_ms != UINT64_MAX)
            link_line(out, "beacon_age_seconds", &r->links[i], (double)r->links[i].beacon_ms / 1000);
    plain(out, "coordinator_nodes", "gauge", "Nodes of other processes that speak to the coordinator of this one.",
          r->listener ? r->listener->n_peers : 0);
}

/* By ranks of this node; another node's poised tells of others. */
static void write_measured(FILE *out, const struct shell_report *r)
{
    fputs("# HELP poise_group_imbalance_measured Largest/mean compute time over the ranks of this node.\n"
          "# TYPE poise_group_imbalance_measured gauge\n", out);
    for (uint32_t i = 0; i < r->n_groups; i++) {
        struct report_measured m = report_measured(r, &r->groups[i]);
        if (!metrics_shown(r, i) || m.n_ranks == 0)
            continue;
        group_labels(out, "imbalance_measured", &r->groups[i]);
        fprintf(out, "%.17g\n", (double)m.max_ns * m.n_ranks / m.sum_ns);
    }
}

static void write_lengths(FILE *out, const struct shell_report *r, const char *name, const char *when, bool after)
{
    fprintf(out, "# HELP poise_group_%s Largest length (tokens) of a micro-batch of the newest planned step, %s.\n"
            "# TYPE poise_group_%s gauge\n", name, when, name);
    for (uint32_t i = 0; i < r->n_groups; i++) {
        const struct poise_totals *t = &r->groups[i].last;
        const struct group_report *g = &r->groups[i];
        char whole[64];
        snprintf(whole, sizeof whole, "group_%s", name);
        for (uint32_t phase = 0; metrics_shown(r, i) && phase < POISE_MAX_PHASES; phase++) {
            if (!t->length_micro_batch_before[phase] && !t->length_micro_batch_after[phase])
                continue;
            metrics_labels(out, whole, g->job, g->group, g->uid);
            fprintf(out, ",phase=\"%u\"} %llu\n", phase, (unsigned long long)(after ?
                    t->length_micro_batch_after[phase] : t->length_micro_batch_before[phase]));
        }
    }
}

char *status_metrics(const struct shell_report *r)
{
    char *text = NULL;
    size_t n_text;
    FILE *out = open_memstream(&text, &n_text);
    if (!out)
        return NULL;
    fprintf(out, "# HELP poise_info Version of poised.\n# TYPE poise_info gauge\npoise_info{version=\"%s\"} 1\n",
            POISE_VERSION);
    plain(out, "processes", "gauge", "Connected processes.", r->n_connections);
    plain(out, "messages_received_total", "counter", "Messages from processes.", r->router.received);
    plain(out, "messages_sent_total", "counter", "Messages to processes.", r->router.sent);
    plain(out, "bad_messages_total", "counter", "Messages that were none, or not a process's to send.", r->router.bad);
    plain(out, "bad_packets_total", "counter", "Packets that ended their connection.", r->local.bad);
    plain(out, "stale_messages_total", "counter", "Messages of an epoch or incarnation that is over.", r->node.stale);
    plain(out, "refused_total", "counter", "Processes refused.",
          r->local.refused + r->router.refused + r->node.refused);
    plain(out, "refused_connections_total", "counter", "ZeroMQ connections refused: too many of a user, or of all.",
          accept_guard_refused());
    plain(out, "pulls_total", "counter", "Outcomes asked for again.", r->node.pulls);
    plain(out, "events_total", "counter", "Events of the state machines.", r->roles.events);
    plain(out, "uptime_seconds", "gauge", "Seconds since the start.", r->uptime_ms / 1000);
    write_links(out, r);
    write_groups(out, r);
    write_measured(out, r);
    write_lengths(out, r, "length_micro_batch_before", "as it arrived", false);
    write_lengths(out, r, "length_micro_batch_after", "as planned", true);
    metrics_audit(out, r);
    metrics_ranks(out, r);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
