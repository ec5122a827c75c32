/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a step: from its outcome to micro-batches in memory. In step order, one at a time: get the
 * directory entries of the samples that come here, lay the micro-batches out, reserve room for all of them, bring the
 * payload to its places, check hashes, hand each micro-batch to the iterators, tell the senders. How entries and
 * payload of a sender come here is its transport's business (transport.h): out of its arena, or over the network into
 * place; a micro-batch is handed over when the last of its samples is there, whichever way it took.
 *
 * Every phase may find that something is not there yet (a segment's offer, a message, room) and is then entered again
 * when the engine wakes up; copying is cut into pieces, so that the engine keeps answering. Own samples take the same
 * way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/assemble.h"
#include "client/handle.h"
#include "client/verify.h"
#include "daemon/planner/err.h"

#define PIECE_BYTES (8u << 20) /* about 2 ms of copying between two looks at messages */
#define PATIENCE_NS 10000000000u /* the system has no memory for a step: longer than a peak, shorter than a hang */

enum phase { PHASE_IDLE, PHASE_ENTRIES, PHASE_RESERVE, PHASE_FILL };

struct shuffle {
    uint64_t next; /* lowest step that was not collected */
    enum phase phase;
    const struct wire_outcome *outcome; /* the ledger's: kept as long as this rank has not read the step */
    const struct wire_slice *slice;
    struct delivered *set;  /* one reference */
    uint32_t *source_of;    /* [n_ranks] 1 + position in sources; 0: none */
    struct source *sources; /* [n_ranks] */
    uint32_t n_sources;
    uint32_t *places;                 /* [n_in] the sources' `at`, one after the other */
    uint32_t *part_of;                /* [n_in] micro-batch of each place */
    struct directory_sample *samples; /* [n_in] */
    struct value *values;             /* [n_in * n_fields] */
    struct transport_step step;
    uint64_t *part_bytes; /* [n_micro_batches] */
    uint64_t *part_left;  /* [n_micro_batches] bytes that transports have still to write */
    uint32_t part, row;   /* next to be filled here */
    uint32_t n_ready;     /* micro-batches handed over */
    bool verify;
    uint64_t begin_ns;
    uint64_t no_room_ns; /* since when reserving fails; 0: it does not */
    uint64_t short_ns;   /* since when the system has too little memory; 0: it has not */
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
        struct source *source = &sh->sources[i];
        source->transport->calls->close(source->transport, source);
        sh->source_of[source->rank] = 0;
    }
    sh->n_sources = sh->part = sh->row = sh->n_ready = 0;
    free(sh->places);
    free(sh->part_of);
    free(sh->samples);
    free(sh->values);
    free(sh->part_bytes);
    free(sh->part_left);
    sh->places = sh->part_of = NULL;
    sh->samples = NULL;
    sh->values = NULL;
    sh->part_bytes = sh->part_left = NULL;
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

/* What poise_next() says it waits for; source NULL: for no peer. */
static void set_wait(struct poise *p, enum shuffle_wait wait, const struct source *source)
{
    char text[TRANSPORT_WAIT_TEXT] = "";

    if (source && source->transport->calls->waits_for) {
        wait = SHUFFLE_WAITS_PEER;
        source->transport->calls->waits_for(source->transport, source, text);
    }
    pthread_mutex_lock(&p->lock);
    p->shuffle_wait = wait;
    p->shuffle_rank = source ? source->rank : POISE_NONE;
    memcpy(p->shuffle_text, text, sizeof text);
    p->shuffle_at = p->shuffle->next;
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------------------------------------------------ begin */

static struct transport *transport_to(struct poise *p, uint32_t rank)
{
    return p->tcp && transport_tcp_has(p->tcp, rank) ? transport_tcp_transport(p->tcp) : &p->memory.transport;
}

static void list_sources(struct poise *p)
{
    struct shuffle *sh = p->shuffle;

    for (uint32_t i = 0; i < sh->slice->n_in; i++) {
        uint32_t rank = sh->slice->in_rank[i];
        if (!sh->source_of[rank]) {
            sh->sources[sh->n_sources] = (struct source){.rank = rank, .transport = transport_to(p, rank)};
            sh->source_of[rank] = ++sh->n_sources;
        }
        sh->sources[sh->source_of[rank] - 1].n++;
    }
}

/* Which places of the delivered order are whose. */
static void list_places(struct shuffle *sh)
{
    uint32_t *next = sh->places;

    for (uint32_t i = 0; i < sh->n_sources; i++) {
        sh->sources[i].at = next;
        next += sh->sources[i].n;
        sh->sources[i].n = 0;
    }
    for (uint32_t i = 0; i < sh->slice->n_in; i++) {
        struct source *source = &sh->sources[sh->source_of[sh->slice->in_rank[i]] - 1];
        source->at[source->n++] = i;
    }
    for (uint32_t b = 0; b < sh->set->n_micro_batches; b++)
        for (uint32_t k = 0; k < sh->set->held[b].batch.n_samples; k++)
            sh->part_of[sh->set->held[b].first + k] = b;
}

/* Payload was written to its place. */
static void arrived(void *context, uint32_t at, uint64_t n_bytes)
{
    struct shuffle *sh = context;

    sh->part_left[sh->part_of[at]] -= n_bytes;
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
    sh->no_room_ns = sh->short_ns = sh->waited_ns = 0;
    list_sources(p);
    sh->places = calloc(n_in + 1, sizeof *sh->places);
    sh->part_of = calloc(n_in + 1, sizeof *sh->part_of);
    sh->samples = calloc(n_in + 1, sizeof *sh->samples);
    sh->values = calloc(n_in * n_fields + 1, sizeof *sh->values);
    sh->part_bytes = calloc(sh->outcome->n_micro_batches, sizeof *sh->part_bytes);
    sh->part_left = calloc(sh->outcome->n_micro_batches, sizeof *sh->part_left);
    if (!sh->places || !sh->part_of || !sh->samples || !sh->values || !sh->part_bytes || !sh->part_left)
        return err_set(err, -ENOMEM, "no memory for the directory of step %llu", (unsigned long long)sh->next);
    list_places(sh);
    sh->step = (struct transport_step){.step = sh->next,
                                       .plan_id = sh->outcome->plan_id,
                                       .slice = sh->slice,
                                       .merged = sh->set->merged,
                                       .any_bytes = p->settings.join.replica != 0,
                                       .samples = sh->samples,
                                       .values = sh->values,
                                       .arrived = arrived,
                                       .context = sh};
    sh->verify = verify_wanted(sh->next, p->settings.join.first_step, p->settings.verify_first,
                               p->settings.verify_every);
    sh->phase = PHASE_ENTRIES;
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

/* ---------------------------------------------------------------------------------------------------------- entries */

/* Asks all sources before it waits for one. */
static int entries(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    const struct source *waits = NULL;

    for (uint32_t i = 0; i < sh->n_sources; i++) {
        struct source *source = &sh->sources[i];
        int rc = source->transport->calls->entries(source->transport, &sh->step, source, err);
        if (rc < 0 && rc != -EAGAIN)
            return rc;
        waits = rc == -EAGAIN && !waits ? source : waits;
    }
    if (waits) {
        set_wait(p, SHUFFLE_WAITS_SEGMENT, waits);
        return -EAGAIN;
    }
    for (uint32_t i = 0; i < sh->slice->n_in; i++)
        delivered_row(sh->set, i, &sh->samples[i]);
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

/* Payload that transports write may come from here on. 0 all is there, -EAGAIN. */
static int fetch(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    const struct source *waits = NULL;

    for (uint32_t i = 0; i < sh->n_sources; i++) {
        struct source *source = &sh->sources[i];
        int rc = source->fetched ? 0 : source->transport->calls->fetch(source->transport, &sh->step, source, err);
        if (rc < 0 && rc != -EAGAIN)
            return rc;
        source->fetched = rc == 0;
        waits = rc == -EAGAIN && !waits ? source : waits;
    }
    if (waits && sh->part == sh->set->n_micro_batches)
        set_wait(p, SHUFFLE_WAITS_SEGMENT, waits);
    return waits ? -EAGAIN : 0;
}

static void count_left(struct shuffle *sh)
{
    for (uint32_t i = 0; i < sh->n_sources; i++) {
        const struct source *source = &sh->sources[i];
        for (uint32_t k = 0; source->transport->calls->writes && k < source->n; k++)
            sh->part_left[sh->part_of[source->at[k]]] += sh->samples[source->at[k]].bytes;
    }
}

/* -EAGAIN: again when the engine wakes up, once a second at least. A neighbour's peak of memory passes; a shortage that
 * stays is an error, which ends the epoch on all ranks. */
static int wait_for_room(struct poise *p, int rc, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    const uint64_t now_ns = handle_now_ns();

    if (rc != -ENOBUFS)
        sh->short_ns = 0;
    else if (sh->short_ns == 0)
        sh->short_ns = now_ns;
    if (rc == -ENOBUFS && now_ns - sh->short_ns >= PATIENCE_NS) {
        err->code = -ENOMEM;
        return -ENOMEM;
    }
    if (rc != -EAGAIN && rc != -ENOBUFS)
        return rc;
    if (sh->no_room_ns == 0)
        sh->no_room_ns = now_ns;
    set_wait(p, SHUFFLE_WAITS_ROOM, NULL);
    return -EAGAIN;
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
    if (rc < 0)
        return wait_for_room(p, rc, err);
    if (sh->no_room_ns)
        sh->waited_ns = handle_now_ns() - sh->no_room_ns;
    for (uint32_t b = 0; b < n_parts; b++) {
        struct assemble_input in = input_of(p, b);
        assemble_place(&in, sh->set->slot->parts[b].data, fields_of(sh, b),
                       sh->set->values + (size_t)sh->set->held[b].first * sh->set->n_fields);
    }
    sh->step.tensors = sh->set->values;
    count_left(sh);
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

/* One row: copied, or only padded where its bytes come by themselves. Returns bytes of work. */
static uint64_t fill_row(struct poise *p, const struct assemble_input *in)
{
    struct shuffle *sh = p->shuffle;
    uint32_t place = sh->set->held[sh->part].first + sh->row;
    const struct source *source = &sh->sources[sh->source_of[sh->slice->in_rank[place]] - 1];
    struct poise_tensor *values = sh->set->values + (size_t)sh->set->held[sh->part].first * sh->set->n_fields;

    if (source->transport->calls->writes) {
        assemble_pad(in, fields_of(sh, sh->part), values, sh->row, 1);
        return 1;
    }
    assemble_fill(in, fields_of(sh, sh->part), values, sh->row, 1);
    return sh->samples[place].bytes + 1;
}

/* Micro-batches whose last byte is there, in order. */
static int hand_over_ready(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    int rc = 0;

    while (rc == 0 && sh->n_ready < sh->part && sh->part_left[sh->n_ready] == 0) {
        rc = sh->verify ? verify(p, &sh->set->held[sh->n_ready], err) : 0;
        if (rc == 0)
            hand_over(p, ++sh->n_ready);
    }
    return rc;
}

/* One piece. 0 with phase idle: all is there. -EAGAIN: all but what comes by itself. */
static int fill(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    struct delivered *set = sh->set;
    uint64_t bytes = 0;
    int fetched = fetch(p, err), rc;

    if (fetched < 0 && fetched != -EAGAIN)
        return fetched;
    while (sh->part < set->n_micro_batches && bytes < PIECE_BYTES) {
        struct assemble_input in = input_of(p, sh->part);

        for (; sh->row < in.n_samples && bytes < PIECE_BYTES; sh->row++)
            bytes += fill_row(p, &in);
        if (sh->row < in.n_samples)
            continue;
        sh->part++;
        sh->row = 0;
        rc = hand_over_ready(p, err);
        if (rc < 0)
            return rc;
    }
    rc = hand_over_ready(p, err);
    if (rc < 0 || sh->part < set->n_micro_batches)
        return rc;
    if (fetched == 0)
        sh->phase = PHASE_IDLE;
    return fetched;
}

/* -------------------------------------------------------------------------------------------------------- finishing */

static void count(struct poise *p)
{
    struct shuffle *sh = p->shuffle;
    uint64_t took_ns = handle_now_ns() - sh->begin_ns - sh->waited_ns, deciding_ns = neighbours_look(p, sh->next);
    uint64_t local = 0, remote = 0, assembled = 0;

    for (uint32_t i = 0; i < sh->slice->n_in; i++) {
        uint32_t rank = sh->slice->in_rank[i];
        if (transport_to(p, rank)->calls->writes)
            remote += sh->samples[i].bytes;
        else if (rank != p->settings.join.rank)
            local += sh->samples[i].bytes;
    }
    for (uint32_t b = 0; b < sh->set->n_micro_batches; b++)
        assembled += sh->part_bytes[b];
    pthread_mutex_lock(&p->lock);
    p->stats.bytes_local += local;
    p->stats.bytes_remote += remote;
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
        struct transport *t = sh->sources[i].transport;
        t->calls->done(t, sh->next, sh->sources[i].rank);
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
    if (!p->settings.plan_only) {
        list_sources(p);
        tell_senders(p);
    }
    clear(p->shuffle);
    p->shuffle->next++;
}

static int advance(struct poise *p, struct poise_err *err)
{
    struct shuffle *sh = p->shuffle;
    int rc = sh->phase == PHASE_IDLE ? begin(p, err) : 0;

    if (rc == 0 && sh->phase == PHASE_ENTRIES)
        rc = entries(p, err);
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
