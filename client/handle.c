/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the trainer's threads and the engine wait for each other. There is one condition for all, since few threads ever
 * wait: whoever changes something that a wait may be for counts `progress` up under the lock; whoever waits remembers
 * the count it saw before it looked, so no change is missed, although submitting threads look while they hold another
 * lock.
 *
 * poise_interrupt() must be async-signal-safe, so it only sets a flag and rings; the engine turns the flag into the end
 * of all waits, and if nobody waits, the next wait takes it.
 */
#include "client/handle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/forks.h"
#include "daemon/planner/err.h"

uint64_t handle_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t handle_now_ms(void)
{
    return handle_now_ns() / 1000000u;
}

int handle_check(const struct poise *p, struct poise_err *err)
{
    if (!p)
        return err_set(err, -EINVAL, "the handle is NULL");
    if (p->generation != forks_generation())
        return err_set(err, -EPERM,
                       "this process is a child of the one that opened the handle: open one of its own after the fork");
    return 0;
}

uint64_t handle_deadline(const struct poise *p, int64_t timeout_ms)
{
    uint64_t wait = timeout_ms < 0 ? p->settings.peer_timeout_ms : (uint64_t)timeout_ms;
    uint64_t now = handle_now_ms();

    return wait > UINT64_MAX / 2 ? UINT64_MAX / 2 : now + wait;
}

bool handle_interrupted(struct poise *p)
{
    if (!atomic_exchange(&p->interrupted, 0))
        return false;
    p->interrupt_seq++; /* all that wait are meant */
    return true;
}

int handle_wait(struct poise *p, uint64_t seen, uint64_t deadline_ms)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ms / 1000), .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
    uint32_t interrupts = p->interrupt_seq;
    int rc = 0;

    if (handle_interrupted(p)) {
        pthread_cond_broadcast(&p->cond);
        return -EINTR;
    }
    p->n_waiting++;
    while (rc == 0 && p->progress == seen && p->interrupt_seq == interrupts)
        rc = pthread_cond_timedwait(&p->cond, &p->lock, &until);
    p->n_waiting--;
    if (p->interrupt_seq != interrupts)
        return -EINTR;
    return rc && p->progress == seen ? -ETIMEDOUT : 0;
}

void handle_changed(struct poise *p)
{
    p->progress++;
    if (p->n_waiting)
        pthread_cond_broadcast(&p->cond);
}

void handle_changed_softly(struct poise *p)
{
    p->progress++;
    if (p->n_waiting && !p->wakes_due) {
        p->wakes_due = true;
        wake_ring(p->wake);
    }
}

int handle_dead(const struct poise *p, uint64_t step, struct poise_err *err)
{
    if (p->state != HANDLE_ABORTED && !(p->state == HANDLE_LEFT && (int64_t)(step - p->last_step) > 0))
        return 0;
    if (err) {
        *err = p->error;
        err->code = -ESHUTDOWN;
        if (p->cursor > p->settings.join.first_step)
            err->step = p->cursor - 1; /* the last one that was delivered */
    }
    return -ESHUTDOWN;
}

void handle_abort(struct poise *p, const struct poise_err *why)
{
    if (p->state == HANDLE_ABORTED)
        return;
    p->state = HANDLE_ABORTED;
    p->error = *why;
    handle_changed(p);
}

void handle_left(struct poise *p, uint64_t last_step, const struct poise_err *why)
{
    if (p->state == HANDLE_ABORTED || (p->state == HANDLE_LEFT && (int64_t)(last_step - p->last_step) >= 0))
        return;
    p->state = HANDLE_LEFT;
    p->last_step = last_step;
    p->error = *why;
    handle_changed(p);
}

struct step *handle_step(struct poise *p, uint64_t step)
{
    struct step *record = &p->steps[step % HANDLE_STEPS];

    return record->state != STEP_NONE && record->step == step ? record : NULL;
}

void handle_notice(struct poise *p, uint64_t step, uint32_t severity, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    notice_add(&p->notices, step, severity, format, args);
    va_end(args);
}

const char *handle_missing(const struct poise *p, uint64_t step, char text[HANDLE_MISSING_TEXT])
{
    if (p->missing_step != step || p->n_missing == 0)
        snprintf(text, HANDLE_MISSING_TEXT, "peers have not submitted it (`poisectl status` names them)");
    else if (p->n_missing == 1)
        snprintf(text, HANDLE_MISSING_TEXT, "rank %u has not submitted it", p->missing_rank);
    else
        snprintf(text, HANDLE_MISSING_TEXT, "rank %u and %u more of this node have not submitted it", p->missing_rank,
                 p->n_missing - 1);
    return text;
}

int handle_enter(struct poise *p, struct poise_err *err)
{
    int rc = handle_check(p, err);

    if (rc == 0)
        atomic_fetch_add(&p->n_producing, 1);
    return rc;
}

/* Nothing of the handle may be touched behind it. */
void handle_leave(struct poise *p)
{
    atomic_fetch_sub(&p->n_producing, 1);
}

void handle_produce(struct poise *p)
{
    pthread_mutex_lock(&p->produce);
}

/* The engine sets the flag before it tries the lock: either it gets the lock, or it is seen here. */
void handle_produced(struct poise *p)
{
    pthread_mutex_unlock(&p->produce);
    if (atomic_exchange(&p->wants_produce, 0))
        wake_ring(p->wake);
}

/* --------------------------------------------------------------------------------------------------- life and death */

static void init_locks(struct poise *p)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&p->produce, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->cond, &attr);
    pthread_condattr_destroy(&attr);
}

int handle_new(struct settings *settings, struct poise **ret_p, struct poise_err *err)
{
    struct poise *p = calloc(1, sizeof *p);

    if (!p)
        return err_set(err, -ENOMEM, "no memory for the handle");
    p->generation = forks_generation();
    p->doorbell_fd = -1;
    p->control.segment.fd = -1;
    p->outbox_tail = &p->outbox;
    p->sent_rank = POISE_NONE;
    init_locks(p);
    p->iterators = calloc(settings->n_iterators, sizeof *p->iterators);
    p->table.fields = calloc(POISE_MAX_FIELDS, sizeof *p->table.fields);
    if (!p->iterators || !p->table.fields) {
        handle_free(p);
        return err_set(err, -ENOMEM, "no memory for the handle");
    }
    for (uint32_t i = 0; i < settings->n_iterators; i++)
        p->iterators[i].step = settings->join.first_step;
    p->cursor = settings->join.first_step;
    p->mode = settings->mode;
    p->settings = *settings;
    *ret_p = p;
    return 0;
}

static void free_steps(struct poise *p)
{
    for (uint32_t i = 0; i < HANDLE_STEPS; i++) {
        merged_unref(p->merged_of[i]);
        retire_free(&p->sent[i]);
        free(p->steps[i].own);
    }
    free(p->gone);
}

static void free_outbox(struct poise *p)
{
    while (p->outbox) {
        struct outgoing *next = p->outbox->next;
        free(p->outbox->bytes);
        free(p->outbox);
        p->outbox = next;
    }
}

void handle_free(struct poise *p)
{
    if (!p)
        return;
    shuffle_free(p->shuffle);
    transport_tcp_free(p->tcp); /* what it still sends lies in the arena */
    free_steps(p);
    free_outbox(p);
    merged_unref(p->merged);
    receive_close(p->receive);
    if (p->peers)
        peers_free(p->peers);
    if (p->arena)
        arena_free(p->arena);
    if (p->control.page)
        control_fini(&p->control);
    if (p->doorbell_fd >= 0)
        close(p->doorbell_fd);
    if (p->wake)
        wake_close(p->wake);
    wake_unref(p->wake);
    recorder_close(p->recorder, p->settings.close_timeout_ms);
    ledger_free(p->ledger);
    free(p->iterators);
    free(p->remote_done);
    free(p->table.fields);
    settings_free(&p->settings);
    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->produce);
    free(p);
}
