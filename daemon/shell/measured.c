/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of this node measured. Their times are only worth comparing for one and the same step, and ranks run up to
 * a window apart: so it is the newest step that all ranks here that measure at all have told of. Replicas compute the
 * same; only the first speaks.
 */
#include "daemon/shell/report.h"

#include <stdio.h>

static bool measures(const struct node_report_process *process, const struct group_report *group)
{
    return report_belongs(process, group) && process->replica == 0 && process->last.compute_ns;
}

/* 0: it did not tell, or that is long ago. */
static uint64_t compute_ns(const struct node_report_process *process, uint64_t step)
{
    if (process->last.report_step == step)
        return process->last.compute_ns;
    for (uint32_t i = 0; i < NODE_COMPUTED; i++)
        if (process->computed[i].ns && process->computed[i].step == step)
            return process->computed[i].ns;
    return 0;
}

/* false: not all of them measured the step. */
static bool measured_at(const struct shell_report *r, const struct group_report *g, uint64_t step,
                        struct report_measured *ret_measured)
{
    struct report_measured m = {.step = step};
    for (uint32_t i = 0; i < r->node.n_processes; i++) {
        const struct node_report_process *p = &r->node.processes[i];
        if (!measures(p, g))
            continue;
        uint64_t ns = compute_ns(p, step);
        if (!ns)
            return false;
        if (ns > m.max_ns) {
            m.max_ns = ns;
            m.slowest = p->rank;
        }
        m.sum_ns += (double)ns;
        m.n_ranks++;
    }
    *ret_measured = m;
    return m.n_ranks > 0;
}

struct report_measured report_measured(const struct shell_report *r, const struct group_report *g)
{
    const struct node_report_process *behind = NULL; /* only its steps can be everybody's */
    struct report_measured best = {.n_ranks = 0}, m;
    for (uint32_t i = 0; i < r->node.n_processes; i++) {
        const struct node_report_process *p = &r->node.processes[i];
        if (measures(p, g) && (!behind || p->last.report_step < behind->last.report_step))
            behind = p;
    }
    if (!behind)
        return best;
    bool all = measured_at(r, g, behind->last.report_step, &best);
    for (uint32_t i = 0; !all && i < NODE_COMPUTED; i++)
        if (behind->computed[i].ns && (!best.n_ranks || behind->computed[i].step > best.step) &&
            measured_at(r, g, behind->computed[i].step, &m))
            best = m;
    return best;
}

const char *report_cause(const struct node_report_process *process, const struct report_waiting *waiting,
                         char text[REPORT_CAUSE])
{
    const char *of = waiting->n_by[WIRE_WAIT_LOADER] == waiting->n ? "loader of " : "";
    bool itself = false;
    for (uint32_t i = 0; i < waiting->n_named; i++)
        itself |= waiting->ranks[i] == process->rank;
    if (process->last.waiting != WIRE_WAIT_PLAN || waiting->n == 0 || itself)
        snprintf(text, REPORT_CAUSE, "%s", waiting_name(process->last.waiting));
    else if (waiting->n == 1)
        snprintf(text, REPORT_CAUSE, "%srank %u", of, waiting->ranks[0]);
    else
        snprintf(text, REPORT_CAUSE, "%srank %u and %u more", of, waiting->ranks[0], waiting->n - 1);
    return text;
}
