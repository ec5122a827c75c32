/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An outcome arrives. It is taken in step order only, once, with the merged field table that it names, and after its
 * slice was checked against what this rank knows: the bytes come from a daemon of the same user or of root, but a wrong
 * index must not become a wild read. From here on the step has two halves: retire.c waits for the receivers of what
 * this rank sent, shuffle.c collects what it receives.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "daemon/planner/err.h"

static int bad_slice(const struct wire_outcome *o, const char *what, struct poise_err *err)
{
    return err_set(err, -EPROTO, "the plan of step %llu does not fit this rank: %s", (unsigned long long)o->step, what);
}

static int check_slice(const struct poise *p, const struct wire_outcome *o, uint32_t n_samples, struct poise_err *err)
{
    const struct wire_slice *slice = o->slices;
    uint32_t n_ranks = p->settings.join.n_ranks;
    uint64_t n_in = 0;

    if (o->n_slices != 1 || slice->rank != p->settings.join.rank)
        return bad_slice(o, "it has no slice of its own", err);
    if (o->n_micro_batches == 0)
        return bad_slice(o, "it has no micro-batches", err);
    if (slice->n_out != n_samples)
        return bad_slice(o, "it places another number of samples than were submitted", err);
    for (uint32_t b = 0; b < o->n_micro_batches; b++)
        n_in += slice->count[b];
    if (n_in != slice->n_in)
        return bad_slice(o, "its micro-batches do not add up", err);
    for (uint32_t i = 0; i < slice->n_in; i++) {
        if (slice->in_rank[i] >= n_ranks)
            return bad_slice(o, "it names a sender that there is not", err);
    }
    for (uint32_t i = 0; i < slice->n_out; i++) {
        if (slice->out_rank[i] >= n_ranks)
            return bad_slice(o, "it names a receiver that there is not", err);
    }
    return 0;
}

/* False: the table that the outcome names is not here, and was asked for. */
static int take_table(struct poise *p, const struct wire_outcome *o, struct poise_err *err)
{
    struct merged *merged;
    int rc;

    if (p->merged && wire_id_is(p->merged->hash, o->table_hash))
        return 0;
    if (!o->table && !wire_id_none(o->table_hash))
        return -EAGAIN;
    rc = merged_new(o->table, o->table_hash, &merged, err);
    if (rc < 0)
        return rc;
    merged_unref(p->merged);
    p->merged = merged;
    return 0;
}

/* Under lock. Once a handle: data that has one such sample has more. */
static void warn_oversize(struct poise *p, const struct wire_outcome *o)
{
    if (o->totals.oversize == 0 || p->oversize_told)
        return;
    p->oversize_told = true;
    handle_notice(p, o->step, POISE_WARNING,
                  "step %llu has %llu samples that alone exceed a cap: each gets a micro-batch for itself, which is larger than "
                  "the cap; raise the cap or limit the loader's samples",
                  (unsigned long long)o->step, (unsigned long long)o->totals.oversize);
}

/* Under lock. */
static void begin_plan(struct poise *p, struct step *record, const struct wire_outcome *o)
{
    record->state = STEP_DECIDED;
    record->n_micro_batches = o->n_micro_batches;
    record->n_in = o->slices[0].n_in;
    p->decided_ns[o->step % HANDLE_STEPS] = handle_now_ns();
    warn_oversize(p, o);
}

/* Under lock: this rank's samples of the step go nowhere. */
static void drop(struct poise *p, struct step *record)
{
    p->stats.samples_dropped += record->n_samples;
    retire_drop(p, record->step);
}

/* Under lock. Steps that were submitted beyond the end have no outcome to come. */
static void end_group(struct poise *p, const struct wire_outcome *o)
{
    p->group_ended = true;
    p->end_step = o->step;
    for (uint64_t step = o->step; step != ledger_next_submit(p->ledger); step++) {
        struct step *record = handle_step(p, step);
        if (record)
            drop(p, record);
        if (record)
            record->state = STEP_END;
    }
}

static void set_error(struct step *record, const struct wire_outcome *o)
{
    record->state = STEP_ERROR;
    record->error = o->error;
    record->error.code = -EBADMSG;
    record->error.step = o->step;
}

/* Checked and next: takes msg. */
static int decide(struct poise *p, struct wire_message *msg, struct poise_err *err)
{
    const struct wire_outcome *o = &msg->outcome;
    struct merged **of = &p->merged_of[o->step % HANDLE_STEPS];
    int rc = o->kind == WIRE_OUTCOME_PLAN ? retire_begin(p, o, err) : 0;

    if (rc < 0)
        return rc;
    merged_unref(*of);
    *of = p->merged ? merged_ref(p->merged) : NULL;
    pthread_mutex_lock(&p->lock);
    struct step *record = handle_step(p, o->step);
    rc = ledger_decide(p->ledger, msg, err);
    if (rc == 0) {
        p->stats.steps_decided++;
        if (p->recorder)
            recorder_outcome(p->recorder, o, handle_now_ms());
        if (o->kind == WIRE_OUTCOME_PLAN) {
            begin_plan(p, record, o);
        } else if (o->kind == WIRE_OUTCOME_ERROR) {
            set_error(record, o);
            drop(p, record);
        } else {
            end_group(p, o);
        }
        handle_changed(p);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* 0 taken, -EALREADY, -EAGAIN ask first, else the epoch cannot go on. */
static int take(struct poise *p, struct wire_message *msg, struct poise_err *err)
{
    const struct wire_outcome *o = &msg->outcome;
    int rc = 0;

    /* Ranks that say END ahead are answered for each step; the first answer is the end. */
    if (p->group_ended || p->state == HANDLE_ABORTED)
        return err_set(err, -EALREADY, "nothing is decided any more");
    pthread_mutex_lock(&p->lock);
    const struct step *record = handle_step(p, o->step);
    uint32_t n_samples = record ? record->n_samples : 0;
    if (o->step != ledger_next_decide(p->ledger))
        rc = ledger_decide(p->ledger, msg, err); /* only says what is wrong */
    else if (!record)
        rc = err_set(err, -EINVAL, "step %llu was not submitted, or dropped", (unsigned long long)o->step);
    pthread_mutex_unlock(&p->lock);
    if (rc == 0 && o->kind == WIRE_OUTCOME_PLAN)
        rc = check_slice(p, o, n_samples, err);
    if (rc == 0 && o->kind == WIRE_OUTCOME_PLAN)
        rc = take_table(p, o, err);
    p->wants_table = rc == -EAGAIN && o->step == ledger_next_decide(p->ledger);
    return rc < 0 ? rc : decide(p, msg, err);
}

bool decide_take(struct poise *p, struct wire_message *msg)
{
    uint64_t step = msg->outcome.step;
    struct poise_err why;
    int rc = take(p, msg, &why);

    if (rc == -EAGAIN) {
        if (!p->saw_later || step > p->highest_seen)
            p->highest_seen = step;
        if (!p->saw_later || p->wants_table)
            session_pull(p);
        p->saw_later = true;
    } else if (rc == 0 && p->saw_later) {
        p->saw_later = step < p->highest_seen;
        if (p->saw_later)
            session_pull(p);
    } else if (rc < 0 && rc != -EALREADY && rc != -EINVAL) {
        engine_fail(p, &why); /* -EINVAL: of a step that was not submitted here; nothing of ours */
    }
    return rc == 0;
}
