/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the trainer reads: poise_next() takes a finished micro-batch under a lock that is held for a few instructions,
 * and waits only when the engine has not finished one. A step's outcome is its iterators' business one by one: each
 * meets a bad step once, the end for ever.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/handle.h"
#include "daemon/planner/err.h"

/* Under lock: an iterator is past `record`. */
static void pass(struct poise *p, struct iterator *it, struct step *record)
{
    it->step++;
    it->micro_batch = 0;
    p->exposed_ns = record->exposed_ns;
    if (++record->n_passed < p->settings.n_iterators)
        return;
    p->cursor = record->step + 1; /* iterators pass steps in order, so this one was the lowest */
    if (record->state == STEP_DECIDED)
        p->stats.steps_delivered++;
    record->state = STEP_NONE;
    record->set = NULL;
    p->report_due = true;
    handle_changed_softly(p);
}

/* Under lock: the iterator's next micro-batch is ready. */
static const struct poise_batch *take(struct poise *p, struct iterator *it, struct step *record)
{
    struct held *held = &record->set->held[it->micro_batch];

    if (it == &p->iterators[0]) {
        p->stats.samples_out += held->batch.n_samples;
        if (record->set->slot)
            p->stats.bytes_out += record->set->slot->parts[held->part].bytes;
    }
    if (++it->micro_batch == record->n_micro_batches)
        pass(p, it, record);
    return &held->batch;
}

/* ------------------------------------------------------------------------------------------------------- what waits */

static int waits_for_room(struct poise *p, uint64_t step, uint64_t waited_ms, struct poise_err *err)
{
    char held[MEMORY_TEXT], budget[MEMORY_TEXT];
    struct receive_stats stats;

    receive_stats(p->receive, &stats);
    if (stats.n_held == 0) /* not the trainer's fault */
        return err_set(err, -ETIMEDOUT, "waited %llu ms for step %llu: memory to receive it is short on this host",
                       (unsigned long long)waited_ms, (unsigned long long)step);
    return err_set(
        err, -ENOMEM,
        "no memory to receive step %llu: all %u receive slots hold steps that the trainer has not released (%s of "
        "%s, the oldest is step %llu): release batches or raise memory_budget",
        (unsigned long long)step, stats.n_held, memory_format(stats.held_bytes, held),
        memory_format(stats.budget, budget), (unsigned long long)stats.oldest_step);
}

/* Under lock: why the iterator's step is not here, as an error of code -ETIMEDOUT (-ENOMEM where held batches are why).
 */
static int explain(struct poise *p, uint64_t step, uint64_t waited_ms, struct poise_err *err)
{
    const struct step *record = handle_step(p, step);
    unsigned long long s = step, ms = waited_ms;
    char text[HANDLE_MISSING_TEXT];

    if (!record)
        return err_set(err, -ETIMEDOUT, "waited %llu ms for step %llu: this rank has not submitted it", ms, s);
    if (record->state == STEP_SUBMITTED)
        return err_set(err, -ETIMEDOUT, "waited %llu ms for the outcome of step %llu: %s%s", ms, s,
                       handle_missing(p, step, text), p->lost_ms ? "; the connection to poised is lost" : "");
    if (p->shuffle_at == step && p->shuffle_wait == SHUFFLE_WAITS_ROOM)
        return waits_for_room(p, step, waited_ms, err);
    if (p->shuffle_at == step && p->shuffle_wait == SHUFFLE_WAITS_SEGMENT)
        return err_set(err, -ETIMEDOUT,
                       "waited %llu ms for step %llu: the memory that rank %u sent it from was not offered yet", ms, s,
                       p->shuffle_rank);
    if (p->shuffle_at == step && p->shuffle_wait == SHUFFLE_WAITS_PEER)
        return err_set(err, -ETIMEDOUT, "waited %llu ms for step %llu: it waits for %s", ms, s, p->shuffle_text);
    return err_set(err, -ETIMEDOUT, "waited %llu ms for step %llu: its samples are being collected", ms, s);
}

/* ------------------------------------------------------------------------------------------------------------- next */

/* Under lock. 0 with a batch, -EAGAIN not yet, else an error that *err tells. */
static int try_next(struct poise *p, struct iterator *it, const struct poise_batch **ret_batch, struct poise_err *err)
{
    struct step *record = handle_step(p, it->step);
    int rc;

    if (p->group_ended && it->step >= p->end_step)
        return err_set(err, -ENODATA, "the data ended before step %llu", (unsigned long long)p->end_step);
    rc = handle_dead(p, it->step, err);
    if (rc == 0 && p->closing)
        rc = err_set(err, -ESHUTDOWN, "the handle is being closed");
    if (rc < 0)
        return rc;
    if (!record)
        return -EAGAIN;
    if (record->state == STEP_DECIDED && it->micro_batch < record->n_ready) {
        *ret_batch = take(p, it, record);
        return 0;
    }
    if (record->state == STEP_ERROR) {
        if (err)
            *err = record->error;
        pass(p, it, record);
        return -EBADMSG;
    }
    return -EAGAIN;
}

int poise_next(struct poise *p, uint32_t iterator, int64_t timeout_ms, const struct poise_batch **ret_batch,
               struct poise_err *err)
{
    int rc = handle_check(p, err);
    uint64_t deadline_ms = 0, begin_ns = 0, now_ns = 0;

    if (rc < 0)
        return rc;
    if (iterator >= p->settings.n_iterators)
        return err_set(err, -EINVAL, "iterator %u: the options say n_iterators %u", iterator, p->settings.n_iterators);
    pthread_mutex_lock(&p->lock);
    struct iterator *it = &p->iterators[iterator];
    for (;;) {
        uint64_t step = it->step;
        rc = try_next(p, it, ret_batch, err);
        if (rc != -EAGAIN)
            break;
        if (begin_ns == 0) {
            begin_ns = now_ns = handle_now_ns();
            deadline_ms = handle_deadline(p, timeout_ms);
        }
        rc = handle_wait(p, p->progress, deadline_ms);
        if (iterator == 0)
            p->steps[step % HANDLE_STEPS].exposed_ns += handle_now_ns() - now_ns;
        now_ns = handle_now_ns();
        if (rc == -EINTR)
            err_set(err, rc, "poise_interrupt() was called");
        if (rc == -ETIMEDOUT)
            rc = explain(p, step, (now_ns - begin_ns) / 1000000u, err);
        if (rc < 0)
            break;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* ------------------------------------------------------------------------------------------------------------ close */

/* Parts that are not ready yet are given back too: the engine, whose thread this is, does not fill them any more. */
void iterate_drop(struct poise *p)
{
    for (uint32_t i = 0; i < p->settings.n_iterators; i++) {
        struct iterator *it = &p->iterators[i];
        for (struct step *record; (record = handle_step(p, it->step)) != NULL;) {
            if (record->state != STEP_DECIDED && record->state != STEP_ERROR)
                break;
            if (!record->set && i == 0)
                p->stats.samples_dropped += record->n_in;
            for (; record->set && it->micro_batch < record->n_micro_batches; it->micro_batch++) {
                struct held *held = &record->set->held[it->micro_batch];
                if (i == 0)
                    p->stats.samples_dropped += held->batch.n_samples;
                delivered_release(held);
            }
            pass(p, it, record);
        }
    }
}
