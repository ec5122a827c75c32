/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions that only look or tell: none of them blocks. */
#include <errno.h>
#include <string.h>

#include "client/forks.h"
#include "client/handle.h"
#include "client/sized.h"
#include "daemon/planner/err.h"

const char *poise_version(void)
{
    return POISE_VERSION;
}

void poise_interrupt(struct poise *p)
{
    if (!p || p->generation != forks_generation())
        return;
    atomic_store(&p->interrupted, 1);
    wake_signal(p->wake);
}

void poise_hurry(struct poise *p)
{
    if (p && p->generation == forks_generation())
        atomic_store(&p->hurried, 1);
}

int poise_notice(struct poise *p, struct poise_note *ret_note, size_t note_size)
{
    struct poise_note note;
    int rc = handle_check(p, NULL);

    if (rc < 0)
        return rc;
    if (!ret_note)
        return -EINVAL;
    pthread_mutex_lock(&p->lock);
    rc = notice_take(&p->notices, &note);
    pthread_mutex_unlock(&p->lock);
    if (rc == 1)
        sized_out(ret_note, note_size, &note, sizeof note);
    return rc;
}

/* Under the lock. A step told twice counts as it was told last. */
static void note_computed(struct poise *p, uint64_t step, uint64_t compute_ns)
{
    if (p->n_computed > 0 && p->computed[p->n_computed - 1].step == step)
        p->n_computed--;
    if (p->n_computed == WIRE_WINDOW)
        memmove(p->computed, p->computed + 1, --p->n_computed * sizeof *p->computed);
    p->computed[p->n_computed++] = (struct computed){step, compute_ns};
    p->report_step = step;
    p->compute_ns = compute_ns;
    p->report_due = true;
}

int poise_report(struct poise *p, uint64_t step, uint64_t compute_ns, struct poise_err *err)
{
    int rc = handle_check(p, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&p->lock);
    if (step < p->settings.join.first_step || step >= ledger_next_submit(p->ledger))
        rc = err_set(err, -EINVAL, "step %llu was not submitted: a report is about a step of this run",
                     (unsigned long long)step);
    if (rc == 0)
        note_computed(p, step, compute_ns);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int poise_stats(struct poise *p, struct poise_stats *ret_stats, size_t stats_size)
{
    struct receive_stats receive = {0};
    struct poise_stats stats;
    int rc = handle_check(p, NULL);

    if (rc < 0)
        return rc;
    if (!ret_stats)
        return -EINVAL;
    if (p->receive)
        receive_stats(p->receive, &receive);
    pthread_mutex_lock(&p->lock);
    stats = p->stats;
    stats.depth = submit_depth(p);
    pthread_mutex_unlock(&p->lock);
    stats.arena_bytes += receive.bytes;
    sized_out(ret_stats, stats_size, &stats, sizeof stats);
    return 0;
}
