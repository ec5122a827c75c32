/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps wait in a ring until all ranks have told; then they are summed up by block, and a block that is over goes into
 * the tally of its kind. Blocks are independent enough for an interval; pairs of neighbouring blocks cancel what drifts
 * (lengths that grow with a curriculum, a machine that warms up). A step that some rank did not report is left out,
 * since its slowest rank is not known.
 */
#include "daemon/core/audit.h"

#include <string.h>

#include "poise.h"

static void add(struct audit_tally *tally, double value)
{
    double from_mean = value - tally->mean;

    tally->n++;
    tally->mean += from_mean / (double)tally->n;
    tally->deviations += from_mean * (value - tally->mean);
}

static void end_block(struct audit *audit)
{
    struct audit_report *report = &audit->report;
    double mean = audit->sum_ns / (double)audit->n_steps;

    if (audit->block == audit->first_block || audit->mixed)
        return;
    if (audit->mode == POISE_MODE_ON) {
        add(&report->balanced_ns, mean);
        report->balanced_steps += audit->n_steps;
        audit->balanced_block = audit->block + 1;
        audit->balanced_ns = mean;
        return;
    }
    add(&report->arrival_ns, mean);
    report->arrival_steps += audit->n_steps;
    if (audit->balanced_block && audit->balanced_block == audit->block)
        add(&report->speedup, mean / audit->balanced_ns);
}

static void count(struct audit *audit, const struct audit_step *step)
{
    const uint64_t block = step->step / audit->report.every;

    if (audit->n_steps && block < audit->block)
        return; /* it came too late */
    if (audit->n_steps && block > audit->block) {
        end_block(audit);
        audit->n_steps = 0;
    }
    if (audit->n_steps == 0) {
        audit->block = block;
        audit->sum_ns = 0;
        audit->mode = step->mode;
        audit->mixed = false;
    }
    audit->mixed |= step->mode != audit->mode;
    audit->n_steps++;
    audit->sum_ns += (double)step->max_ns;
}

void audit_init(struct audit *audit, uint64_t every)
{
    memset(audit, 0, sizeof *audit);
    audit->report.every = every;
}

static struct audit_step *find(const struct audit *audit, uint64_t step)
{
    const struct audit_step *at = &audit->steps[step % AUDIT_STEPS];

    return at->used && !at->counted && at->step == step ? (struct audit_step *)at : NULL;
}

void audit_planned(struct audit *audit, uint64_t step, uint32_t mode, uint32_t n_measuring)
{
    struct audit_step *at = &audit->steps[step % AUDIT_STEPS];

    if (!audit->report.every || (at->used && at->step >= step))
        return;
    if (!audit->begun)
        audit->first_block = step / audit->report.every;
    audit->begun = true;
    if (at->used && !at->counted && at->n_here > 0 && at->n_here == n_measuring)
        count(audit, at);
    *at = (struct audit_step){.used = true, .step = step, .mode = mode};
}

void audit_reported(struct audit *audit, uint64_t step, uint64_t compute_ns)
{
    struct audit_step *at = find(audit, step);

    if (!at)
        return;
    at->n_here++;
    if (compute_ns > at->max_ns)
        at->max_ns = compute_ns;
}

uint32_t audit_n_here(const struct audit *audit, uint64_t step)
{
    const struct audit_step *at = find(audit, step);

    return at ? at->n_here : 0;
}

void audit_complete(struct audit *audit, uint64_t step)
{
    struct audit_step *at = find(audit, step);

    if (!at)
        return;
    count(audit, at);
    at->counted = true;
}
