/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says of a step: samples, "bad", or "no more data". A submission is checked as a whole, waits for its turn
 * and for room, goes into the arena, and becomes visible in three strokes: directory published, metadata kept in the
 * ledger, message left for the engine. Until the first of them nothing has happened, so every error leaves the step
 * unsubmitted.
 *
 * The turn: a step is at most prefetch_depth ahead of the one being read, and W ahead of the last decided one. Waiting
 * gives `produce` back, since the engine needs it to recycle the very memory that is waited for.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/features.h"
#include "client/handle.h"
#include "client/sized.h"
#include "client/verify.h"
#include "daemon/planner/err.h"

#define SAMPLE_BYTES_0_1 sizeof(struct poise_sample) /* of the first release; a later one keeps these numbers */
#define VALUE_BYTES_0_1  sizeof(struct poise_value)

struct prepared {              /* metadata on its way */
    struct wire_message *kept; /* for the ledger */
    struct outgoing *out;      /* encoded, for the engine */
};

/* --------------------------------------------------------------------------------------------------------- metadata */

static void free_prepared(struct prepared *prepared)
{
    wire_free(prepared->kept);
    if (prepared->out)
        free(prepared->out->bytes);
    free(prepared->out);
    *prepared = (struct prepared){0};
}

/* Encodes with the table and keeps without: the table of a step is known by its number of fields. */
static int prepare(struct wire_meta *meta, struct wire_table *table, struct prepared *ret_prepared,
                   struct poise_err *err)
{
    struct wire_message msg = {.type = WIRE_META, .meta = {.n_metas = 1, .metas = meta}};
    struct prepared prepared = {.out = calloc(1, sizeof *prepared.out)};
    int rc = prepared.out ? 0 : err_set(err, -ENOMEM, "no memory for the metadata of a step");

    meta->table = table;
    if (rc == 0)
        rc = wire_encode(&msg, &prepared.out->bytes, &prepared.out->n_bytes, err);
    meta->table = NULL;
    if (rc == 0 && wire_copy(&msg, &prepared.kept) < 0)
        rc = err_set(err, -ENOMEM, "no memory for the metadata of a step");
    if (rc < 0) {
        free_prepared(&prepared);
        return rc;
    }
    *ret_prepared = prepared;
    return 0;
}

/* Under lock: who says it, and how the node wants it. */
static void stamp(const struct poise *p, uint64_t step, struct wire_meta *meta)
{
    meta->epoch = p->epoch;
    meta->step = step;
    meta->rank = p->settings.join.rank;
    meta->replica = p->settings.join.replica;
    meta->incarnation = p->settings.join.incarnation;
    meta->mode = p->mode;
    meta->speed_ppm = p->settings.speed_ppm;
    if (meta->replica == 0)
        meta->table_hash = p->hash_told;
}

/* Under lock. Takes what was prepared on success. */
static int commit(struct poise *p, struct prepared *prepared, struct poise_err *err)
{
    const struct wire_meta *meta = &prepared->kept->meta.metas[0];
    uint64_t step = meta->step;
    uint32_t n_samples = meta->n_samples;
    struct step *record = &p->steps[step % HANDLE_STEPS];
    int rc = ledger_submit(p->ledger, prepared->kept, err);

    if (rc < 0)
        return rc;
    free(record->own);
    *record = (struct step){.step = step, .state = STEP_SUBMITTED, .n_samples = n_samples};
    p->table_of[step % HANDLE_STEPS] = p->fields_told;
    *p->outbox_tail = prepared->out;
    p->outbox_tail = &prepared->out->next;
    p->stats.steps_submitted++;
    p->stats.samples_in += n_samples;
    handle_changed(p);
    *prepared = (struct prepared){0};
    return 0;
}

/* A step without samples. Under lock. */
static int submit_empty(struct poise *p, uint32_t kind, const struct poise_err *why, struct poise_err *err)
{
    struct wire_meta meta = {.kind = kind};
    struct prepared prepared;
    int rc;

    stamp(p, ledger_next_submit(p->ledger), &meta);
    if (why)
        meta.error = *why;
    meta.digest = wire_meta_digest(&meta, NULL);
    rc = prepare(&meta, NULL, &prepared, err);
    if (rc < 0)
        return rc;
    if (!p->settings.plan_only) {
        /* Nobody reads from here, but peers see who is late. */
        const struct control_place nothing = {.published_ns = handle_now_ns()};
        control_publish(&p->control, meta.step, &nothing);
    }
    rc = commit(p, &prepared, err);
    if (rc < 0)
        free_prepared(&prepared);
    return rc;
}

int submit_again(struct poise *p, uint64_t step, bool want_table, uint8_t **ret_bytes, size_t *ret_n_bytes,
                 struct poise_err *err)
{
    const struct wire_message *kept = ledger_meta(p->ledger, step);
    struct wire_table table = {.n_fields = p->table_of[step % HANDLE_STEPS], .fields = p->table.fields};

    if (!kept)
        return err_set(err, -ENOENT, "the metadata of step %llu is not kept", (unsigned long long)step);
    struct wire_meta meta = kept->meta.metas[0];
    struct wire_message msg = {.type = WIRE_META, .meta = {.n_metas = 1, .metas = &meta}};
    if (want_table && !wire_id_none(meta.table_hash))
        meta.table = &table;
    return wire_encode(&msg, ret_bytes, ret_n_bytes, err);
}

/* --------------------------------------------------------------------------------------------------------- the turn */

uint32_t submit_depth(const struct poise *p)
{
    /* One less than W: with the step being read, W are under way, as many as the ledger keeps outcomes of. */
    return p->settings.prefetch_depth < WIRE_WINDOW ? p->settings.prefetch_depth : WIRE_WINDOW - 1;
}

/* Under lock: 0 if `step` is next and may be submitted now; -EAGAIN with a text that says what for. */
static int check_turn(const struct poise *p, uint64_t step, struct poise_err *err)
{
    uint64_t next = ledger_next_submit(p->ledger);
    int rc = handle_dead(p, step, err);

    if (rc == 0 && p->closing)
        rc = err_set(err, -ESHUTDOWN, "the handle is being closed");
    if (rc < 0)
        return rc;
    if (step < next && !p->rank_ended)
        return err_set(err, -EALREADY, "step %llu was submitted before: %llu is next", (unsigned long long)step,
                       (unsigned long long)next);
    if (p->group_ended)
        return err_set(err, -ENODATA, "the data ended with step %llu: step %llu goes nowhere",
                       (unsigned long long)p->end_step, (unsigned long long)step);
    if (p->rank_ended)
        return err_set(err, -EINVAL, "step %llu: this rank said by poise_end() that it has no more data",
                       (unsigned long long)step);
    if (step > next)
        return err_set(err, -EINVAL, "step %llu cannot be submitted: %llu is next, as steps are consecutive",
                       (unsigned long long)step, (unsigned long long)next);
    if (step > p->cursor + submit_depth(p))
        return err_set(
            err, -EAGAIN,
            "step %llu waits for the trainer: step %llu was not read to its end by all iterators, and at most %u "
            "steps (prefetch_depth) are submitted ahead of it",
            (unsigned long long)step, (unsigned long long)p->cursor, submit_depth(p));
    if (!ledger_may_submit(p->ledger)) {
        char text[HANDLE_MISSING_TEXT];
        uint64_t undecided = ledger_next_decide(p->ledger);
        return err_set(err, -EAGAIN, "step %llu waits for the outcome of step %llu: %s", (unsigned long long)step,
                       (unsigned long long)undecided, handle_missing(p, undecided, text));
    }
    return 0;
}

/* Waits for a change after `seen`; `produce` is free meanwhile. The text of *err says what for and stays, with the code
 * of what ended the wait. */
static int wait_change(struct poise *p, uint64_t seen, uint64_t deadline_ms, struct poise_err *err)
{
    int rc;

    handle_produced(p);
    pthread_mutex_lock(&p->lock);
    rc = handle_wait(p, seen, deadline_ms);
    pthread_mutex_unlock(&p->lock);
    handle_produce(p);
    if (rc == -EINTR)
        return err_set(err, -EINTR, "poise_interrupt() was called");
    if (rc < 0 && err)
        err->code = rc;
    return rc;
}

/* Under produce. 0: it is the turn of `step`. */
static int wait_turn(struct poise *p, uint64_t step, uint64_t deadline_ms, struct poise_err *err)
{
    struct poise_err why;

    for (;;) {
        pthread_mutex_lock(&p->lock);
        uint64_t seen = p->progress;
        int rc = check_turn(p, step, &why);
        pthread_mutex_unlock(&p->lock);
        if (rc == -EAGAIN) {
            rc = wait_change(p, seen, deadline_ms, &why);
            if (rc == 0)
                continue;
        }
        if (rc < 0 && err)
            *err = why;
        return rc;
    }
}

/* Under produce: what arena_alloc() or stage_step() said was -EAGAIN. 0: try again. */
static int wait_room(struct poise *p, uint64_t seen, uint64_t bytes, uint64_t deadline_ms, struct poise_err *err)
{
    char need[MEMORY_TEXT], budget[MEMORY_TEXT], reader[64] = "";
    struct arena_stats stats;
    struct poise_err why;
    int rc;

    arena_stats(p->arena, &stats);
    pthread_mutex_lock(&p->lock);
    if (p->sent_rank != POISE_NONE)
        snprintf(reader, sizeof reader, ", such as rank %u step %llu", p->sent_rank, (unsigned long long)p->sent_step);
    rc = handle_dead(p, ledger_next_submit(p->ledger), err);
    if (rc == 0 && p->closing)
        rc = err_set(err, -ESHUTDOWN, "the handle is being closed");
    pthread_mutex_unlock(&p->lock);
    if (rc < 0)
        return rc;
    err_set(
        &why, -EAGAIN,
        "%s of send memory are not free (budget %s, %u steps in flight): waiting for receivers that still read older "
        "steps%s; if they are slow to release batches, raise memory_budget",
        memory_format(bytes, need), memory_format(stats.budget, budget), stats.n_in_flight, reader);
    rc = wait_change(p, seen, deadline_ms, &why);
    if (rc < 0 && err)
        *err = why;
    return rc;
}

static uint64_t progress_now(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t seen = p->progress;
    pthread_mutex_unlock(&p->lock);
    return seen;
}

/* ------------------------------------------------------------------------------------------------------- submission */

/* A step that does not fit as it arrived would wait for ever for receive memory. */
static int check_fit(const struct poise *p, const struct features *f, uint64_t step, struct poise_err *err)
{
    char need[MEMORY_TEXT], room[MEMORY_TEXT];

    if (p->settings.plan_only || f->padded_bytes <= p->receive_budget)
        return 0;
    return err_set(
        err, -ENOMEM,
        "step %llu: its %u samples take %s when assembled, padding included, and receive memory holds %s: raise "
        "memory_budget or submit fewer samples",
        (unsigned long long)step, f->meta.n_samples, memory_format(f->padded_bytes, need),
        memory_format(p->receive_budget, room));
}

/* Metadata of samples with what the coordinator needs of this replica. */
static int prepare_samples(struct poise *p, struct features *f, uint64_t step, struct prepared *ret_prepared,
                           struct poise_err *err)
{
    struct wire_meta meta = f->meta;
    struct wire_table *table = p->table.n_fields > p->table_told ? &p->table : NULL;

    pthread_mutex_lock(&p->lock);
    stamp(p, step, &meta);
    pthread_mutex_unlock(&p->lock);
    if (meta.replica == 0) {
        meta.table_hash = p->table_hash;
        if (p->settings.options.record)
            meta.tag = f->tag;
        return prepare(&meta, table, ret_prepared, err);
    }
    struct wire_meta brief = {.epoch = meta.epoch, .step = step, .rank = meta.rank, .replica = meta.replica,
                              .incarnation = meta.incarnation, .kind = meta.kind, .mode = meta.mode,
                              .speed_ppm = meta.speed_ppm, .digest = meta.digest, .n_samples = meta.n_samples};
    return prepare(&brief, NULL, ret_prepared, err);
}

/* Under produce: payload and directory into the arena. */
static int stage(struct poise *p, const struct features *f, const struct stage_request *req, uint64_t deadline_ms,
                 struct control_place *ret_place, struct poise_err *err)
{
    uint64_t bytes = directory_bytes(f->meta.n_samples, f->n_values, p->table.n_fields);

    for (uint32_t i = 0; i < f->meta.n_samples; i++)
        bytes += f->meta.bytes[i];
    for (;;) {
        uint64_t seen = progress_now(p);
        int rc = stage_step(p->arena, req, ret_place, err);
        if (rc == -EAGAIN)
            rc = wait_room(p, seen, bytes, deadline_ms, err);
        else
            return rc;
        if (rc < 0)
            return rc;
    }
}

/* What a plan-only step's own rows say: nothing is in an arena where it could be read. */
static struct directory_sample *own_rows(const struct features *f)
{
    struct directory_sample *own = calloc(f->meta.n_samples + 1, sizeof *own);

    for (uint32_t i = 0; own && i < f->meta.n_samples; i++)
        own[i] = (struct directory_sample){.tag = f->tag[i],
                                           .loss_tokens = f->meta.loss_tokens[i],
                                           .arrival_loss_tokens = f->arrival_loss_tokens[i],
                                           .bytes = f->meta.bytes[i],
                                           .arrival_micro_batch = f->arrival[i]};
    return own;
}

/* Under produce: the three strokes. */
static int publish(struct poise *p, uint64_t step, struct prepared *prepared, struct control_place *place,
                   struct directory_sample *own, struct poise_err *err)
{
    uint32_t n_fields = p->table.n_fields;
    int rc;

    pthread_mutex_lock(&p->lock);
    rc = handle_dead(p, step, err);
    if (rc == 0 && place) {
        place->published_ns = handle_now_ns();
        place->digest = prepared->kept->meta.metas[0].digest.lo;
        control_publish(&p->control, step, place);
    }
    if (rc == 0) {
        p->fields_told = n_fields;
        p->hash_told = p->settings.join.replica == 0 ? p->table_hash : p->hash_told;
        rc = commit(p, prepared, err);
    }
    if (rc == 0) {
        p->steps[step % HANDLE_STEPS].own = own;
        p->table_told = n_fields;
    }
    pthread_mutex_unlock(&p->lock);
    if (rc < 0 && place)
        arena_done(p->arena, step);
    return rc;
}

/* Under produce, when it is the turn of `step`. */
static int submit_features(struct poise *p, uint64_t step, const struct poise_sample *samples, size_t sample_size,
                           struct features *f, uint64_t deadline_ms, struct poise_err *err)
{
    struct stage_request req = {
        .step = step,
        .table = &p->table,
        .samples = samples,
        .n_samples = f->meta.n_samples,
        .sample_size = sample_size,
        .checked = f->checked,
        .n_values = f->n_values,
        .arrival_micro_batch = f->arrival,
        .arrival_loss_tokens = f->arrival_loss_tokens,
        .hash = verify_wanted(step, p->settings.join.first_step, p->settings.verify_first, p->settings.verify_every)};
    struct directory_sample *own = NULL;
    struct control_place place;
    struct prepared prepared;
    int rc = prepare_samples(p, f, step, &prepared, err);

    if (rc < 0)
        return rc;
    if (p->settings.plan_only)
        rc = (own = own_rows(f)) ? 0 : err_set(err, -ENOMEM, "no memory for %u samples", f->meta.n_samples);
    else
        rc = stage(p, f, &req, deadline_ms, &place, err);
    if (rc == 0)
        rc = publish(p, step, &prepared, p->settings.plan_only ? NULL : &place, own, err);
    if (rc < 0) {
        free(own);
        free_prepared(&prepared);
    }
    return rc;
}

static int check_arrays(const struct poise_sample *samples, uint32_t n_samples, size_t sample_size,
                        struct poise_err *err)
{
    int rc = 0;

    if (n_samples && !samples)
        return err_set(err, -EINVAL, "samples is NULL with n_samples %u", n_samples);
    if (n_samples)
        rc = sized_check(samples, n_samples, sizeof *samples, sample_size, SAMPLE_BYTES_0_1, "struct poise_sample",
                         err);
    for (uint32_t i = 0; rc == 0 && i < n_samples; i++) {
        const unsigned char *at = (const unsigned char *)samples + (size_t)i * sample_size;
        const struct poise_sample *sample = (const struct poise_sample *)(const void *)at;
        if (sample->n_values && !sample->values)
            return err_set_at(err, -EINVAL, POISE_NONE, i, NULL, "sample %u: values is NULL with n_values %u", i,
                              sample->n_values);
        if (sample->n_values)
            rc = sized_check(sample->values, sample->n_values, sizeof *sample->values, sample->value_size,
                             VALUE_BYTES_0_1, "struct poise_value", err);
    }
    return rc;
}

/* Errors that wait_turn() would only give after a wait, and those that make checking useless. */
static int check_early(struct poise *p, uint64_t step, struct poise_err *err)
{
    int rc;

    pthread_mutex_lock(&p->lock);
    rc = check_turn(p, step, err);
    pthread_mutex_unlock(&p->lock);
    return rc == -EAGAIN ? 0 : rc;
}

static int submit(struct poise *p, uint64_t step, const struct poise_sample *samples, uint32_t n_samples,
                  size_t sample_size, int64_t timeout_ms, struct poise_err *err)
{
    struct features features;
    int rc = check_arrays(samples, n_samples, sample_size, err);

    if (rc < 0)
        return rc;
    uint64_t deadline_ms = handle_deadline(p, timeout_ms);
    handle_produce(p);
    rc = check_early(p, step, err);
    if (rc == 0)
        rc = features_make(&p->settings, &p->table, samples, n_samples, sample_size, &features, err);
    if (rc < 0) {
        handle_produced(p);
        return rc;
    }
    rc = check_fit(p, &features, step, err);
    if (rc == 0)
        rc = wait_turn(p, step, deadline_ms, err);
    if (rc == 0)
        rc = submit_features(p, step, samples, sample_size, &features, deadline_ms, err);
    features_fini(&features);
    handle_produced(p);
    if (rc == 0)
        wake_ring(p->wake);
    return rc;
}

int poise_submit(struct poise *p, uint64_t step, const struct poise_sample *samples, uint32_t n_samples,
                 size_t sample_size, int64_t timeout_ms, struct poise_err *err)
{
    int rc = handle_enter(p, err);

    if (rc < 0)
        return rc;
    rc = submit(p, step, samples, n_samples, sample_size, timeout_ms, err);
    handle_leave(p);
    return rc;
}

/* ----------------------------------------------------------------------------------------------- bad steps, the end */

static int submit_without(struct poise *p, uint64_t step, uint32_t kind, const struct poise_err *why,
                          int64_t timeout_ms, struct poise_err *err)
{
    uint64_t deadline_ms = handle_deadline(p, timeout_ms);
    int rc;

    handle_produce(p);
    rc = wait_turn(p, step, deadline_ms, err);
    if (rc == 0) {
        pthread_mutex_lock(&p->lock);
        rc = submit_empty(p, kind, why, err);
        if (rc == 0 && kind == WIRE_META_END)
            p->rank_ended = true;
        pthread_mutex_unlock(&p->lock);
    }
    handle_produced(p);
    if (rc == 0)
        wake_ring(p->wake);
    return rc;
}

int poise_fail(struct poise *p, uint64_t step, const char *reason, int64_t timeout_ms, struct poise_err *err)
{
    struct poise_err why;
    int rc = handle_enter(p, err);

    if (rc < 0)
        return rc;
    err_set_at(&why, -EBADMSG, p->settings.join.rank, POISE_NONE, NULL, "%s",
               reason && *reason ? reason : "no reason given");
    why.step = step;
    rc = submit_without(p, step, WIRE_META_BAD, &why, timeout_ms, err);
    handle_leave(p);
    return rc;
}

/* Saying so again, or after the group has ended, is no error: a loader that has no data need not know who ended first.
 */
int poise_end(struct poise *p, uint64_t step, int64_t timeout_ms, struct poise_err *err)
{
    int rc = handle_enter(p, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&p->lock);
    bool known = p->rank_ended || (p->group_ended && step >= ledger_next_submit(p->ledger));
    pthread_mutex_unlock(&p->lock);
    rc = known ? 0 : submit_without(p, step, WIRE_META_END, NULL, timeout_ms, err);
    if (rc == -ENODATA)
        rc = 0; /* the group's data ended meanwhile */
    handle_leave(p);
    return rc;
}

/* With end=stop the next step matters only if this one came to nothing (another rank's was bad), so it waits for that.
 */
int submit_end(struct poise *p, struct poise_err *err)
{
    uint64_t next = ledger_next_submit(p->ledger);

    if (!p->rank_ended || p->group_ended || p->state != HANDLE_RUNNING || next > p->cursor + submit_depth(p) ||
        !ledger_may_submit(p->ledger))
        return -EAGAIN;
    if (p->settings.options.end == POISE_END_STOP && ledger_next_decide(p->ledger) < next)
        return -EAGAIN;
    return submit_empty(p, WIRE_META_END, NULL, err);
}

int submit_bad(struct poise *p, const struct poise_err *why, struct poise_err *err)
{
    return submit_empty(p, WIRE_META_BAD, why, err);
}

/* ----------------------------------------------------------------------------------------------------- arena memory */

static int alloc(struct poise *p, uint64_t bytes, int64_t timeout_ms, void **ret_data, struct poise_err *err)
{
    uint64_t deadline_ms = handle_deadline(p, timeout_ms);
    int rc;

    handle_produce(p);
    do {
        uint64_t seen = progress_now(p);
        pthread_mutex_lock(&p->lock);
        rc = handle_dead(p, ledger_next_submit(p->ledger), err);
        pthread_mutex_unlock(&p->lock);
        if (rc < 0)
            break;
        rc = arena_alloc(p->arena, bytes, ret_data, err);
        if (rc == -EAGAIN) {
            rc = wait_room(p, seen, bytes, deadline_ms, err);
            if (rc == 0)
                rc = -EAGAIN;
        }
    } while (rc == -EAGAIN);
    handle_produced(p);
    return rc;
}

int poise_alloc(struct poise *p, uint64_t bytes, int64_t timeout_ms, void **ret_data, struct poise_err *err)
{
    int rc = handle_enter(p, err);

    if (rc < 0)
        return rc;
    rc = p->settings.plan_only ? err_set(err, -EINVAL, "a plan-only group has no arena")
                               : alloc(p, bytes, timeout_ms, ret_data, err);
    handle_leave(p);
    return rc;
}

int poise_discard(struct poise *p, struct poise_err *err)
{
    int rc = handle_enter(p, err);

    if (rc < 0)
        return rc;
    if (!p->settings.plan_only) {
        handle_produce(p);
        arena_discard(p->arena);
        handle_produced(p);
        wake_ring(p->wake);
    }
    handle_leave(p);
    return 0;
}
