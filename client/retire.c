/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a step, after it was decided: its payload stays in the arena until each rank that the plan gave a
 * sample of ours has said in its control segment that it has them. Replica k is read by replica k of those ranks.
 * Receivers ring; as a ring may be lost (their doorbell's offer came later), the engine looks once a second too.
 *
 * The arena belongs to whoever holds `produce`. The engine only tries that lock: a submission that copies for long
 * delays recycling, never the engine. What ZeroMQ still sends out of a step's memory delays it too.
 *
 * Ranks on other nodes say that they are done in a message, and ask for samples by index, so what the plan gave to whom
 * is kept with the step.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "daemon/planner/err.h"

static int compare_ranks(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return a < b ? -1 : a > b;
}

/* Sorted, each once. Returns how many. */
static uint32_t unique(uint32_t *ranks, uint32_t n)
{
    uint32_t kept = 0;

    qsort(ranks, n, sizeof *ranks, compare_ranks);
    for (uint32_t i = 0; i < n; i++) {
        if (kept == 0 || ranks[kept - 1] != ranks[i])
            ranks[kept++] = ranks[i];
    }
    return kept;
}

/* Takes out those that have left. Returns how many stay. */
static uint32_t still_there(const struct poise *p, uint32_t *ranks, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        bool gone = false;
        for (uint32_t k = 0; k < p->n_gone && !gone; k++)
            gone = p->gone[k] == ranks[i];
        if (!gone)
            ranks[kept++] = ranks[i];
    }
    return kept;
}

void retire_free(struct sent *sent)
{
    if (sent->dir_open)
        directory_close(&sent->dir);
    merged_unref(sent->merged);
    free(sent->left);
    free(sent->out_rank);
    *sent = (struct sent){0};
}

int retire_begin(struct poise *p, const struct wire_outcome *outcome, struct poise_err *err)
{
    const struct wire_slice *slice = &outcome->slices[0];
    struct sent *sent = &p->sent[outcome->step % HANDLE_STEPS];
    uint32_t *left, *out_rank;

    if (p->settings.plan_only)
        return 0;
    left = calloc(slice->n_out + 1, sizeof *left);
    out_rank = p->remote_done ? calloc(slice->n_out + 1, sizeof *out_rank) : NULL;
    if (!left || (p->remote_done && !out_rank)) {
        free(left);
        return err_set(err, -ENOMEM, "no memory for the receivers of step %llu", (unsigned long long)outcome->step);
    }
    if (slice->n_out)
        memcpy(left, slice->out_rank, slice->n_out * sizeof *left);
    if (slice->n_out && out_rank)
        memcpy(out_rank, slice->out_rank, slice->n_out * sizeof *out_rank);
    *sent = (struct sent){.step = outcome->step,
                          .active = true,
                          .left = left,
                          .n_left = unique(left, slice->n_out),
                          .plan_id = outcome->plan_id,
                          .merged = p->merged ? merged_ref(p->merged) : NULL,
                          .n_out = slice->n_out,
                          .out_rank = out_rank};
    sent->n_left = still_there(p, left, sent->n_left);
    return 0;
}

/* Drops those that are done from the list. */
static void look(struct poise *p, struct sent *sent)
{
    uint32_t own = p->settings.join.rank, kept = 0;

    for (uint32_t i = 0; i < sent->n_left; i++) {
        struct control_view view = control_own(&p->control);
        uint32_t rank = sent->left[i];
        if (p->remote_done && transport_tcp_has(p->tcp, rank)) {
            if (p->remote_done[rank] <= sent->step)
                sent->left[kept++] = rank;
            continue;
        }
        if (rank != own && !peers_control(p->peers, rank, &view))
            sent->left[kept++] = rank; /* not offered yet, so it cannot have read anything */
        else if (!control_is_done(view, sent->step, own))
            sent->left[kept++] = rank;
    }
    sent->n_left = kept;
}

/* False: `produce` is taken; whoever has it rings when it is free. Or ZeroMQ still reads: it rings too. */
static bool recycle(struct poise *p, struct sent *sent)
{
    if (p->tcp && transport_tcp_flies(p->tcp, sent->step))
        return false;
    atomic_store(&p->wants_produce, 1);
    if (pthread_mutex_trylock(&p->produce) != 0)
        return false;
    atomic_store(&p->wants_produce, 0);
    arena_done(p->arena, sent->step);
    pthread_mutex_unlock(&p->produce);
    retire_free(sent);
    return true;
}

void retire_check(struct poise *p)
{
    const struct sent *oldest = NULL;
    bool recycled = false;

    for (uint32_t i = 0; i < HANDLE_STEPS; i++) {
        struct sent *sent = &p->sent[i];
        if (!sent->active)
            continue;
        if (sent->n_left)
            look(p, sent);
        if (sent->n_left == 0 && recycle(p, sent))
            recycled = true;
        else if (sent->n_left && (!oldest || sent->step < oldest->step))
            oldest = sent;
    }
    pthread_mutex_lock(&p->lock);
    p->sent_rank = oldest ? oldest->left[0] : POISE_NONE;
    p->sent_step = oldest ? oldest->step : 0;
    if (recycled)
        handle_changed(p);
    pthread_mutex_unlock(&p->lock);
}

void retire_done(struct poise *p, uint64_t step, uint32_t rank)
{
    uint64_t next;

    pthread_mutex_lock(&p->lock);
    next = ledger_next_decide(p->ledger);
    pthread_mutex_unlock(&p->lock);
    if (step >= next && step - next >= WIRE_WINDOW)
        return; /* no step that anybody can be done with */
    if (step + 1 > p->remote_done[rank])
        p->remote_done[rank] = step + 1;
}

void retire_forget(struct poise *p, uint32_t rank)
{
    for (uint32_t i = 0; i < HANDLE_STEPS; i++) {
        struct sent *sent = &p->sent[i];
        uint32_t kept = 0;
        for (uint32_t k = 0; k < sent->n_left; k++) {
            if (sent->left[k] != rank)
                sent->left[kept++] = sent->left[k];
        }
        sent->n_left = kept;
    }
    /* Of steps that are decided later, too. Without memory close() waits for its deadline, no worse. */
    uint32_t *gone = realloc(p->gone, (p->n_gone + 1) * sizeof *gone);
    if (gone) {
        p->gone = gone;
        p->gone[p->n_gone++] = rank;
    }
}

void retire_drop(struct poise *p, uint64_t step)
{
    struct sent *sent = &p->sent[step % HANDLE_STEPS];

    if (p->settings.plan_only)
        return;
    if (sent->active && sent->step == step)
        sent->n_left = 0;
    else
        *sent = (struct sent){.step = step, .active = true};
}

bool retire_idle(const struct poise *p)
{
    for (uint32_t i = 0; i < HANDLE_STEPS; i++) {
        if (p->sent[i].active)
            return false;
    }
    return true;
}
