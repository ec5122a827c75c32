/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What chaos says at its end: what was done, how long trainers paused for each kind of fault, what came of the samples,
 * and whether every error was due. A pause belongs to the faults that overlap it or ended shortly before; what a fault
 * itself lasted is taken off, so the figure is what poise adds: for a killed daemon, beyond its own restart.
 */
#include "tests/chaos/chaos.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define AFTER_MS 1000 /* a pause that begins so long after a fault may still be because of it */
#define MAX_PAUSES 8192

struct pauses { /* of one kind of fault, in ms beyond the fault's own time */
    uint64_t ms[MAX_PAUSES];
    uint32_t n, n_faults;
};

static uint64_t end_of(const struct chaos_fault *fault)
{
    return fault->action->end ? fault->until_ms : fault->from_ms;
}

/* How long the pause was beyond what the faults in it lasted themselves. */
static uint64_t excess(const struct chaos_run *run, const struct chaos_pause *pause)
{
    const uint64_t to_ms = pause->from_ms + pause->ms;
    uint64_t own_ms = 0;

    for (uint32_t i = 0; i < run->n_faults; i++) {
        const struct chaos_fault *fault = &run->faults[i];
        const uint64_t from = fault->from_ms > pause->from_ms ? fault->from_ms : pause->from_ms;
        const uint64_t until = end_of(fault) < to_ms ? end_of(fault) : to_ms;
        own_ms += until > from ? until - from : 0;
    }
    return pause->ms > own_ms ? pause->ms - own_ms : 0;
}

/* The longest pause of any rank around a fault. */
static uint64_t longest(const struct chaos_run *run, const struct chaos_fault *fault)
{
    uint64_t most = 0;

    for (uint32_t r = 0; r < run->job.n_ranks; r++) {
        const struct chaos_rank *rank = &run->job.board->ranks[r];
        const uint32_t n = atomic_load(&rank->n_pauses);
        for (uint32_t i = 0; i < n; i++) {
            const struct chaos_pause *pause = &rank->pauses[i];
            const uint64_t ms = excess(run, pause);
            if (pause->from_ms <= end_of(fault) + AFTER_MS && pause->from_ms + pause->ms >= fault->from_ms && ms > most)
                most = ms;
        }
    }
    return most;
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

static void collect(const struct chaos_run *run, const struct chaos_action *action, struct pauses *ret)
{
    *ret = (struct pauses){0};
    for (uint32_t i = 0; i < run->n_faults; i++) {
        if (run->faults[i].action != action)
            continue;
        ret->n_faults++;
        if (ret->n < MAX_PAUSES)
            ret->ms[ret->n++] = longest(run, &run->faults[i]);
    }
    qsort(ret->ms, ret->n, sizeof *ret->ms, compare);
}

static uint64_t quantile(const struct pauses *pauses, uint32_t percent)
{
    return pauses->n ? pauses->ms[(uint64_t)(pauses->n - 1) * percent / 100] : 0;
}

static void print_faults(const struct chaos_run *run, FILE *out)
{
    struct pauses *pauses = malloc(sizeof *pauses);

    if (!pauses)
        return;
    fprintf(out, "%-18s %6s   pause beyond the fault's own time, ms\n", "what was done", "times");
    fprintf(out, "%-18s %6s   %8s %8s %8s\n", "", "", "p50", "p99", "max");
    for (uint32_t a = 0; a < chaos_n_actions; a++) {
        collect(run, &chaos_actions[a], pauses);
        if (pauses->n_faults)
            fprintf(out, "%-18s %6u   %8llu %8llu %8llu\n", chaos_actions[a].name, pauses->n_faults,
                    (unsigned long long)quantile(pauses, 50), (unsigned long long)quantile(pauses, 99),
                    (unsigned long long)quantile(pauses, 100));
    }
    free(pauses);
}

static bool fine(const struct chaos_run *run, uint32_t left_behind)
{
    const struct chaos_job *job = &run->job;

    return !job->lost && !job->doubled && !job->corrupt && !job->strays && !job->undue && !job->not_named &&
           !left_behind;
}

bool report_print(const struct chaos_run *run, FILE *out, uint32_t left_behind, double minutes)
{
    const struct chaos_job *job = &run->job;
    const bool ok = fine(run, left_behind);

    fprintf(out, "\nchaos, seed %llu: %.1f minutes, %u hosts %s, %u ranks, %u coordinators%s\n\n",
            (unsigned long long)run->seed, minutes, run->net.n_hosts,
            run->net.namespaces ? "(network namespaces)" : "(folders of one machine)", job->n_ranks,
            run->net.n_coordinators, run->net.keys ? ", CURVE" : "");
    print_faults(run, out);
    fprintf(out, "\nsteps finished on all ranks   %llu in %llu epochs\n", (unsigned long long)job->steps,
            (unsigned long long)job->attempts);
    fprintf(out, "samples in / out              %llu / %llu\n", (unsigned long long)job->samples_in,
            (unsigned long long)job->samples_out);
    fprintf(out, "dropped: bad step / aborted   %llu / %llu delivered in part, loaded again\n",
            (unsigned long long)job->dropped_bad, (unsigned long long)job->dropped_abort);
    fprintf(out, "lost / doubled / corrupt      %llu / %llu / %llu\n", (unsigned long long)job->lost,
            (unsigned long long)job->doubled, (unsigned long long)(job->corrupt + job->strays));
    fprintf(out, "errors of bad steps, all due  %llu\n", (unsigned long long)job->step_errors);
    fprintf(out, "errors not due / not named    %llu / %llu\n", (unsigned long long)job->undue,
            (unsigned long long)job->not_named);
    fprintf(out, "errors that name a rank that gave up, not the one that nobody saw die  %llu\n",
            (unsigned long long)job->second_hand);
    fprintf(out, "a killed rank was named after at most %llu ms\n", (unsigned long long)job->named_ms_max);
    fprintf(out, "left behind                   %u\n", left_behind);
    fprintf(out, "%s\n",
            ok ? "all is as it must be" : "FAILED: `make chaos SEED=...` with this seed does the same again");
    return ok;
}

int report_json(const struct chaos_run *run, const char *path, uint32_t left_behind, bool ok)
{
    const struct chaos_job *job = &run->job;
    struct pauses *pauses = malloc(sizeof *pauses);
    json_t *faults = json_object();
    json_t *root;
    int rc;

    for (uint32_t a = 0; pauses && a < chaos_n_actions; a++) {
        collect(run, &chaos_actions[a], pauses);
        json_object_set_new(faults, chaos_actions[a].name,
                            json_pack("{s:i,s:I,s:I,s:I}", "times", (int)pauses->n_faults, "pause_ms_p50",
                                      (json_int_t)quantile(pauses, 50), "pause_ms_p99",
                                      (json_int_t)quantile(pauses, 99), "pause_ms_max",
                                      (json_int_t)quantile(pauses, 100)));
    }
    free(pauses);
    root = json_pack("{s:I,s:b,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i}", "seed", (json_int_t)run->seed, "ok",
                     (int)ok, "faults", faults, "steps", (json_int_t)job->steps, "epochs", (json_int_t)job->attempts,
                     "samples_in", (json_int_t)job->samples_in, "samples_out", (json_int_t)job->samples_out, "lost",
                     (json_int_t)job->lost, "doubled", (json_int_t)job->doubled, "corrupt",
                     (json_int_t)(job->corrupt + job->strays), "undue", (json_int_t)job->undue, "not_named",
                     (json_int_t)job->not_named, "named_ms_max", (json_int_t)job->named_ms_max, "left_behind",
                     (int)left_behind);
    rc = root ? json_dump_file(root, path, JSON_INDENT(2)) : -1;
    json_decref(root);
    if (rc < 0)
        fprintf(stderr, "chaos: %s: cannot be written\n", path);
    return rc;
}
