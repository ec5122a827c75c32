/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a step: from its outcome to micro-batches in memory. In step order, one at a time: find the
 * senders' directories, read the entries of the samples that come here, lay the micro-batches out, reserve room for all
 * of them, copy straight out of the senders' arenas, check hashes, hand each micro-batch to the iterators, tell the
 * senders.
 *
 * Every phase may find that something is not there yet (a segment's offer, room) and is then entered again when the
 * engine wakes up; copying is cut into pieces, so that the engine keeps answering. Own samples take the same way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/assemble.h"
#include "client/handle.h"
#include "client/verify.h"
#include "daemon/planner/err.h"

#define TWIN_STEPS  3u         /* steps with the same samples on two ranks are no accident */
#define PIECE_BYTES (8u << 20) /* about 2 ms of copying between two looks at messages */

enum phase { PHASE_IDLE, PHASE_FIND, PHASE_READ, PHASE_RESERVE, PHASE_FILL };

struct source { /* a rank that samples come from */
    uint32_t rank;
    bool open;
    struct directory dir;
};

struct shuffle {
    uint64_t next; /* lowest step that was not collected */
    enum phase phase;
    const struct wire_outcome *outcome; /* the ledger's: kept as long as this rank has not read the step */
    const struct wire_slice *slice;
    struct delivered *set;  /* one reference */
    uint32_t *source_of;    /* [n_ranks] 1 + position in sources; 0: none */
    struct source *sources; /* [n_ranks] */
    uint32_t n_sources;
    uint32_t n_read;                  /* entries read */
    struct directory_sample *samples; /* [n_in] */
    struct value *values;             /* [n_in * n_fields] */
    uint64_t *part_bytes;             /* [n_micro_batches] */
    uint32_t part, row;               /* next to be filled */
    bool verify;
    uint64_t begin_ns;
    uint64_t no_room_ns; /* since when reserving fails; 0: it does not */
    uint64_t waited_ns;  /* for the trainer to release batches: no part of what the pipeline takes */
};

int shuffle_new(uint64_t first_step, uint32_t n_ranks, struct shuffle **ret_shuffle, struct poise_err *err)
{
    struct shuffle *sh = calloc(1, sizeof *sh);

    if (sh) {
        sh->next = first_step;
        sh->source_of = calloc(n_ranks, sizeof *sh->source_of);
        sh->sources = calloc(n_ranks, sizeof *sh->sources);
    }
    if (!sh || !sh->source_of || !sh->sources) {
        shuffle_free(sh);
        return err_set(err, -ENOMEM, "no memory for %u peers", n_ranks);
    }
    *ret_shuffle = sh;
    return 0;
}

static void clear(struct shuffle *sh)
{
    for (uint32_t i = 0; i < sh->n_sources; i++) {
        sh->source_of[sh->sources[i].rank] = 0;
        if (sh->sources[i].open)
            directory_close(&sh->sources[i].dir);
        sh->sources[i].open = false;
    }
    sh->n_sources = sh->n_read = sh->part = sh->row = 0;
    free(sh->samples);
    free(sh->values);
    free(sh->part_bytes);
    sh->samples = NULL;
    sh->values = NULL;
    sh->part_bytes = NULL;
    if (sh->set)
        delivered_unref(sh->set);
    sh->set = NULL;
    sh->phase = PHASE_IDLE;
}

void shuffle_free(struct shuffle *sh)
{
    if (!sh)
        return;
    if (sh->sources && sh->source_of)
        clear(sh);
    free(sh->source_of);
    free(sh->sources);
    free(sh);
}

void shuffle_abandon(struct poise *p)
{
    if (p->shuffle)
        clear(p->shuffle);
}

/* What poise_next() says it waits for. */
static void set_wait(struct poise *p, enum shuffle_wait wait, uint32_t rank)
{
    pthread_mutex_lock(&p->lock);
    p->shuffle_wait = wait;
    p->shuffle_rank = rank;
    p->shuffle_at = p->shuffle->next;
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------------------------------------------------ begin */

static void list_sources(struct shuffle *sh)
{
    for (uint32_t i = 0; i < sh->slice->n_in; i++) {
        uint32_t rank = sh->slice->in_rank[i];
        if (sh->source_of[rank])
            continue;
        sh->sources[sh->n_sources] = (struct source){.rank = rank};
        sh->source_of[rank] = ++sh->n_sources;
    }
}

static int begin(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    struct merged *merged = p->merged_of[sh->next % HANDLE_STEPS];
    int rc = delivered_new(sh->outcome, merged, p->wake, p->generation, &sh->set, err);
    size_t n_in = sh->slice->n_in, n_fields = merged->table.n_fields;

    if (rc < 0)
        return rc;
    sh->begin_ns = handle_now_ns();
    sh->no_room_ns = sh->waited_ns = 0;
    list_sources(sh);
    sh->samples = calloc(n_in + 1, sizeof *sh->samples);
    sh->values = calloc(n_in * n_fields + 1, sizeof *sh->values);
    sh->part_bytes = calloc(sh->outcome->n_micro_batches, sizeof *sh->part_bytes);
    if (!sh->samples || !sh->values || !sh->part_bytes)
        return err_set(err, -ENOMEM, "no memory for the directory of step %llu", (unsigned long long)sh->next);
    sh->verify = verify_wanted(sh->next, p->settings.join.first_step, p->settings.verify_first,
                               p->settings.verify_every);
    sh->phase = PHASE_FIND;
    return 0;
}

/* The lowest decided step with a plan, if there is one. Steps without a plan have nothing to collect. */
static bool pick(struct poise *p)
{
    struct shuffle *sh = p->shuffle;
    bool found = false;

    pthread_mutex_lock(&p->lock);
    while (!found && sh->next < ledger_next_decide(p->ledger)) {
        const struct wire_message *msg = ledger_outcome(p->ledger, sh->next);
        found = msg && msg->outcome.kind == WIRE_OUTCOME_PLAN;
        if (found) {
            sh->outcome = &msg->outcome;
            sh->slice = &msg->outcome.slices[0];
        } else {
            sh->next++;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* ------------------------------------------------------------------------------------------------------ directories */

static bool own_lookup(void *context, uint32_t segment, uint32_t generation, const void **ret_base, uint64_t *ret_bytes)
{
    const struct poise *p = context;

    if (segment >= LOCAL_MAX_SEGMENTS || !p->own[segment].base || p->own[segment].generation != generation)
        return false;
    *ret_base = p->own[segment].base;
    *ret_bytes = p->own[segment].bytes;
    return true;
}

static bool lookup(struct poise *p, uint32_t rank, const struct control_place *place, const void **ret_base,
                   uint64_t *ret_bytes)
{
    if (rank == p->settings.join.rank)
        return own_lookup(p, place->segment, place->generation, ret_base, ret_bytes);
    return peers_arena(p->peers, rank, place->segment, place->generation, ret_base, ret_bytes);
}

/* 0, -EAGAIN not offered yet. */
static int open_source(struct poise *p, struct source *source, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    struct control_view view = control_own(&p->control);
    struct control_place place;
    const void *base;
    uint64_t bytes;
    int rc;

    if (source->rank != p->settings.join.rank && !peers_control(p->peers, source->rank, &view))
        return -EAGAIN;
    rc = control_read(view, sh->next, &place);
    if (rc == -EAGAIN)
        return rc;
    if (rc < 0)
        return err_set_at(err, -EPROTO, source->rank, POISE_NONE, NULL,
                          "rank %u has replaced the directory of step %llu", source->rank,
                          (unsigned long long)sh->next);
    if (!lookup(p, source->rank, &place, &base, &bytes))
        return -EAGAIN;
    if (place.offset > bytes || place.bytes > bytes - place.offset)
        return err_set_at(err, -EPROTO, source->rank, POISE_NONE, NULL,
                          "rank %u says that the directory of step %llu lies outside of its segment", source->rank,
                          (unsigned long long)sh->next);
    rc = directory_open((const unsigned char *)base + place.offset, place.bytes, sh->next, source->rank,
                        place.n_samples, &sh->set->merged->table, &source->dir, err);
    if (rc == 0)
        source->open = true;
    return rc;
}

static int find(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;

    for (uint32_t i = 0; i < sh->n_sources; i++) {
        int rc = sh->sources[i].open ? 0 : open_source(p, &sh->sources[i], err);
        if (rc == -EAGAIN)
            set_wait(p, SHUFFLE_WAITS_SEGMENT, sh->sources[i].rank);
        if (rc < 0)
            return rc;
    }
    sh->phase = PHASE_READ;
    return 0;
}

/* Replicas above 0 may hold fewer fields than replica 0, whose bytes the plan names. */
static uint64_t planned_bytes(const struct poise *p, uint32_t i)
{
    return p->settings.join.replica == 0 ? p->shuffle->slice->in_bytes[i] : DIRECTORY_ANY_BYTES;
}

static int read_entries(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    uint32_t n_fields = sh->set->n_fields;

    for (; sh->n_read < sh->slice->n_in; sh->n_read++) {
        uint32_t i = sh->n_read, rank = sh->slice->in_rank[i];
        struct peers_of of = {.peers = p->peers, .rank = rank};
        bool own = rank == p->settings.join.rank;
        int rc = directory_read(&sh->sources[sh->source_of[rank] - 1].dir, sh->slice->in_index[i], planned_bytes(p, i),
                                own ? own_lookup : peers_lookup, own ? (void *)p : (void *)&of, &sh->samples[i],
                                sh->values + (size_t)i * n_fields, err);
        if (rc == -EAGAIN)
            set_wait(p, SHUFFLE_WAITS_SEGMENT, rank);
        if (rc < 0)
            return rc;
        delivered_row(sh->set, i, &sh->samples[i]);
    }
    sh->phase = PHASE_RESERVE;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- room and copying */

static struct assemble_input input_of(const struct poise *p, uint32_t part)
{
    const struct shuffle *sh = p->shuffle;
    const struct held *held = &sh->set->held[part];

    return (struct assemble_input){.table = &sh->set->merged->table,
                                   .step_extent = sh->outcome->extent,
                                   .n_samples = held->batch.n_samples,
                                   .values = sh->values + (size_t)held->first * sh->set->n_fields};
}

static struct poise_tensor *fields_of(const struct shuffle *sh, uint32_t part)
{
    return sh->set->fields + (size_t)part * sh->set->n_fields;
}

/* Gives the step's record its micro-batches: the iterators' references are counted from here on. */
static void hand_over(struct poise *p, uint32_t n_ready)
{
    struct shuffle *sh = p->shuffle;
    struct step *record;

    pthread_mutex_lock(&p->lock);
    record = handle_step(p, sh->next);
    if (record && !record->set) {
        delivered_ref(sh->set, p->settings.n_iterators * sh->set->n_micro_batches);
        record->set = sh->set;
    }
    if (record)
        record->n_ready = n_ready;
    if (n_ready)
        handle_changed(p);
    p->shuffle_wait = SHUFFLE_WAITS_NOT;
    pthread_mutex_unlock(&p->lock);
}

static int reserve(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    uint32_t n_parts = sh->set->n_micro_batches;
    int rc = 0;

    for (uint32_t b = 0; rc == 0 && b < n_parts; b++) {
        struct assemble_input in = input_of(p, b);
        rc = assemble_layout(&in, fields_of(sh, b), &sh->part_bytes[b], err);
    }
    if (rc == 0)
        rc = receive_reserve(p->receive, sh->next, sh->part_bytes, n_parts, p->settings.n_iterators, &sh->set->slot,
                             err);
    if (rc == -EAGAIN && sh->no_room_ns == 0)
        sh->no_room_ns = handle_now_ns();
    if (rc == -EAGAIN)
        set_wait(p, SHUFFLE_WAITS_ROOM, POISE_NONE);
    if (rc < 0)
        return rc;
    if (sh->no_room_ns)
        sh->waited_ns = handle_now_ns() - sh->no_room_ns;
    for (uint32_t b = 0; b < n_parts; b++) {
        struct assemble_input in = input_of(p, b);
        assemble_place(&in, sh->set->slot->parts[b].data, fields_of(sh, b),
                       sh->set->values + (size_t)sh->set->held[b].first * sh->set->n_fields);
    }
    hand_over(p, 0);
    sh->phase = PHASE_FILL;
    return 0;
}

static int verify(struct poise *p, const struct held *held, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    uint32_t n_fields = sh->set->n_fields, n_verified = 0;
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < held->batch.n_samples; k++) {
        size_t i = held->first + k;
        if (sh->samples[i].hash == 0)
            continue;
        n_verified++;
        if (verify_delivered(&sh->set->merged->table, sh->values + i * n_fields, sh->set->values + i * n_fields) ==
            sh->samples[i].hash)
            continue;
        rc = err_set_at(
            err, -EBADMSG, sh->slice->in_rank[i], sh->slice->in_index[i], NULL,
            "step %llu: sample %u of rank %u did not arrive at rank %u as it was sent: its hash differs; was its "
            "memory written to after poise_submit()?",
            (unsigned long long)sh->next, sh->slice->in_index[i], sh->slice->in_rank[i], p->settings.join.rank);
    }
    pthread_mutex_lock(&p->lock);
    p->stats.samples_verified += n_verified;
    p->stats.samples_corrupt += rc < 0;
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* One piece. 0 with phase idle: all is there. */
static int fill(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    struct delivered *set = sh->set;
    uint64_t bytes = 0;

    while (sh->part < set->n_micro_batches && bytes < PIECE_BYTES) {
        const struct held *held = &set->held[sh->part];
        struct assemble_input in = input_of(p, sh->part);
        uint32_t first = sh->row;

        for (; sh->row < held->batch.n_samples && bytes < PIECE_BYTES; sh->row++)
            bytes += sh->samples[held->first + sh->row].bytes + 1;
        assemble_fill(&in, fields_of(sh, sh->part), set->values + (size_t)held->first * set->n_fields, first,
                      sh->row - first);
        if (sh->row < held->batch.n_samples)
            continue;
        int rc = sh->verify ? verify(p, held, err) : 0;
        if (rc < 0)
            return rc;
        sh->part++;
        sh->row = 0;
        hand_over(p, sh->part);
    }
    if (sh->part == set->n_micro_batches)
        sh->phase = PHASE_IDLE;
    return 0;
}

/* -------------------------------------------------------------------------------------------------------- finishing */

/* Tensor-parallel peers that were taken for ranks of their own submit the same samples, and would train on half of
 * them. */
static void look_for_twin(struct poise *p, uint32_t twin)
{
    p->twin_steps = twin != POISE_NONE && twin == p->twin ? p->twin_steps + 1 : twin != POISE_NONE;
    p->twin = twin;
    if (p->twin_steps != TWIN_STEPS)
        return;
    pthread_mutex_lock(&p->lock);
    handle_notice(
        p, p->shuffle->next, POISE_WARNING,
        "ranks %u and %u submitted the same samples in %u steps: if both belong to one data-parallel rank (tensor, "
        "context or pipeline parallel), make them its replicas: same rank, n_replicas, replica",
        p->settings.join.rank, twin, TWIN_STEPS);
    pthread_mutex_unlock(&p->lock);
}

/* What the control segments of this node tell about a step: returns the time from the last rank's submission to the
 * outcome here (peers' clocks are this one's), and looks for a rank that submitted the very same. */
static uint64_t look_at_peers(struct poise *p)
{
    uint64_t last_ns = 0, step = p->shuffle->next, decided_ns = p->decided_ns[step % HANDLE_STEPS];
    uint32_t twin = POISE_NONE;
    struct control_place own = {0};

    control_read(control_own(&p->control), step, &own);
    last_ns = own.published_ns;
    for (uint32_t rank = 0; rank < p->settings.join.n_ranks; rank++) {
        struct control_view view;
        struct control_place place;
        if (rank == p->settings.join.rank || !peers_control(p->peers, rank, &view) ||
            control_read(view, step, &place) < 0)
            continue;
        if (place.published_ns > last_ns)
            last_ns = place.published_ns;
        if (own.n_samples && place.n_samples == own.n_samples && place.digest == own.digest)
            twin = rank;
    }
    look_for_twin(p, twin);
    return last_ns && last_ns < decided_ns ? decided_ns - last_ns : 0;
}

static void count(struct poise *p)
{
    struct shuffle *sh = p->shuffle;
    uint64_t took_ns = handle_now_ns() - sh->begin_ns - sh->waited_ns, deciding_ns = look_at_peers(p);
    uint64_t from_peers = 0, assembled = 0;

    for (uint32_t i = 0; i < sh->slice->n_in; i++) {
        if (sh->slice->in_rank[i] != p->settings.join.rank)
            from_peers += sh->samples[i].bytes;
    }
    for (uint32_t b = 0; b < sh->set->n_micro_batches; b++)
        assembled += sh->part_bytes[b];
    pthread_mutex_lock(&p->lock);
    p->stats.bytes_local += from_peers;
    p->stats.assembled_bytes_total += assembled;
    p->stats.shuffle_ns_total += took_ns;
    p->stats.pipeline_ns_last = deciding_ns + took_ns;
    pthread_mutex_unlock(&p->lock);
}

/* This rank has all it takes of the step. */
static void tell_senders(struct poise *p)
{
    struct shuffle *sh = p->shuffle;

    for (uint32_t i = 0; i < sh->n_sources; i++) {
        control_set_done(&p->control, sh->next, sh->sources[i].rank);
        if (sh->sources[i].rank != p->settings.join.rank)
            peers_ring(p->peers, sh->sources[i].rank);
    }
}

/* Without payload there is nothing to collect: the mapping is what counts, and own rows say what they know. */
static int deliver_plan_only(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    struct merged *merged = p->merged_of[sh->next % HANDLE_STEPS];
    int rc = delivered_new(sh->outcome, merged, p->wake, p->generation, &sh->set, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&p->lock);
    struct step *record = handle_step(p, sh->next);
    for (uint32_t i = 0; record && record->own && i < sh->slice->n_in; i++) {
        if (sh->slice->in_rank[i] == p->settings.join.rank && sh->slice->in_index[i] < record->n_samples)
            delivered_row(sh->set, i, &record->own[sh->slice->in_index[i]]);
    }
    pthread_mutex_unlock(&p->lock);
    hand_over(p, sh->set->n_micro_batches);
    return 0;
}

/* Nobody reads it here: the senders are free at once. */
static void decline(struct poise *p)
{
    list_sources(p->shuffle);
    if (!p->settings.plan_only)
        tell_senders(p);
    clear(p->shuffle);
    p->shuffle->next++;
}

static int advance(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    int rc = sh->phase == PHASE_IDLE ? begin(p, err) : 0;

    if (rc == 0 && sh->phase == PHASE_FIND)
        rc = find(p, err);
    if (rc == 0 && sh->phase == PHASE_READ)
        rc = read_entries(p, err);
    if (rc == 0 && sh->phase == PHASE_RESERVE)
        rc = reserve(p, err);
    if (rc == 0 && sh->phase == PHASE_FILL)
        rc = fill(p, err);
    if (rc < 0 || sh->phase != PHASE_IDLE)
        return rc;
    count(p);
    tell_senders(p);
    clear(sh);
    sh->next++;
    return 0;
}

bool shuffle_step(struct poise *p)
{
    struct shuffle *sh = p->shuffle;
    struct poise_err why;
    int rc;

    if (sh->phase == PHASE_IDLE && !pick(p))
        return false;
    if (p->closing) {
        decline(p);
        return true;
    }
    if (p->settings.plan_only) {
        rc = deliver_plan_only(p, &why);
        clear(sh);
        sh->next++;
    } else {
        rc = advance(p, &why);
    }
    if (rc == -EAGAIN)
        return false;
    if (rc < 0) {
        clear(sh);
        why.step = sh->next;
        engine_fail(p, &why);
        return false;
    }
    return true;
}
