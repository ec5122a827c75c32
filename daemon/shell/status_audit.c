/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What status tells of an audit (the option `audit` of a group), as measured by the ranks of this node:
 *
 *   audit  {every (steps of a block),
 *           balanced, arrival {steps, blocks, measured_ms (mean step, or null), interval_ms [low, high] or null},
 *           pairs, measured_speedup (or null), speedup_interval [low, high] or null}
 *
 * Intervals are of 95 %, by Student's t over blocks (of the speed-up: over pairs of neighbouring blocks), so they need
 * two of them. Nothing here is predicted.
 */
#include "daemon/shell/report.h"

#include <jansson.h>
#include <math.h>

/* Two-sided 95 % quantile of Student's t; beyond the table by its expansion, which is exact to 0.01 there. */
static double quantile(uint64_t freedom)
{
    static const double t[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
                               2.160,  2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074,
                               2.069,  2.064, 2.060};
    const size_t n = sizeof t / sizeof *t;
    return freedom <= n ? t[freedom - 1] : 1.96 + 2.3722 / (double)freedom;
}

struct report_interval report_interval(const struct audit_tally *tally)
{
    struct report_interval interval = {.mean = tally->mean};
    if (tally->n < 2)
        return interval;
    double n = (double)tally->n, half = quantile(tally->n - 1) * sqrt(tally->deviations / (n - 1) / n);
    interval.known = true;
    interval.low = fmax(tally->mean - half, 0); /* times and their ratios are not below */
    interval.high = tally->mean + half;
    return interval;
}

const struct audit_report *report_audit(const struct shell_report *report, const struct group_report *group)
{
    for (uint32_t i = 0; i < report->node.n_processes; i++) {
        const struct node_report_process *p = &report->node.processes[i];
        if (p->audit.every && report_belongs(p, group))
            return &p->audit;
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static json_t *mean_json(const struct audit_tally *tally, double unit)
{
    return tally->n ? json_real(tally->mean / unit) : json_null();
}

static json_t *interval_json(const struct audit_tally *tally, double unit)
{
    struct report_interval interval = report_interval(tally);
    if (!interval.known)
        return json_null();
    return json_pack("[f, f]", interval.low / unit, interval.high / unit);
}

static json_t *blocks_json(const struct audit_tally *tally, uint64_t steps)
{
    return json_pack("{s:I, s:I, s:o, s:o}", "steps", (json_int_t)steps, "blocks", (json_int_t)tally->n, "measured_ms",
                     mean_json(tally, 1e6), "interval_ms", interval_json(tally, 1e6));
}

void status_audit(const struct shell_report *report, const struct group_report *group, struct json_t *object)
{
    const struct audit_report *audit = report_audit(report, group);
    json_t *o = json_null();
    if (audit)
        o = json_pack("{s:I, s:o, s:o, s:I, s:o, s:o}", "every", (json_int_t)audit->every, "balanced",
                      blocks_json(&audit->balanced_ns, audit->balanced_steps), "arrival",
                      blocks_json(&audit->arrival_ns, audit->arrival_steps), "pairs", (json_int_t)audit->speedup.n,
                      "measured_speedup", mean_json(&audit->speedup, 1), "speedup_interval",
                      interval_json(&audit->speedup, 1));
    json_object_set_new(object, "audit", o);
}

/* ---------------------------------------------------------------------------------------------------------- metrics */

struct series {
    const char *name, *help;
    double unit;
    struct audit_tally (*tally)(const struct audit_report *audit);
};

static struct audit_tally balanced(const struct audit_report *audit) { return audit->balanced_ns; }
static struct audit_tally arrival(const struct audit_report *audit) { return audit->arrival_ns; }
static struct audit_tally speedup(const struct audit_report *audit) { return audit->speedup; }

static const struct series all[] = {
    {"audit_balanced_seconds", "Measured step time of an audit's balanced blocks", 1e9, balanced},
    {"audit_arrival_seconds", "Measured step time of an audit's blocks in arrival order", 1e9, arrival},
    {"audit_speedup", "Measured speed-up of balanced blocks over those in arrival order", 1, speedup},
};

/* What of a series: its mean, or an end of its interval. */
static void write_family(FILE *out, const struct shell_report *r, const struct series *series, const char *suffix,
                         const char *what)
{
    fprintf(out, "# HELP poise_group_%s%s %s%s.\n# TYPE poise_group_%s%s gauge\n", series->name, suffix, series->help,
            what, series->name, suffix);
    for (uint32_t i = 0; i < r->n_groups; i++) {
        const struct group_report *g = &r->groups[i];
        const struct audit_report *audit = metrics_shown(r, i) ? report_audit(r, g) : NULL;
        struct audit_tally tally = audit ? series->tally(audit) : (struct audit_tally){0};
        struct report_interval interval = report_interval(&tally);
        char name[64];
        if (tally.n == 0 || (*suffix && !interval.known))
            continue;
        snprintf(name, sizeof name, "group_%s%s", series->name, suffix);
        metrics_labels(out, name, g->job, g->group, g->uid);
        fprintf(out, "} %.17g\n",
                (!*suffix ? interval.mean : suffix[1] == 'l' ? interval.low : interval.high) / series->unit);
    }
}

void metrics_audit(FILE *out, const struct shell_report *report)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        write_family(out, report, &all[i], "", "");
        write_family(out, report, &all[i], "_low", ", lower end of its 95 % interval");
        write_family(out, report, &all[i], "_high", ", upper end of its 95 % interval");
    }
}
