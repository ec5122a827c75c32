/* SPDX-License-Identifier: Apache-2.0 */
/* Makes messages of every type. Random members use their whole range, so that no width is too small unseen. */
#include "messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
    struct piece *next;
    _Alignas(16) char data[];
};

static void *take(struct message_maker *m, size_t n_bytes)
{
    struct piece *piece = calloc(1, sizeof *piece + n_bytes + 1);

    if (!piece)
        abort();
    piece->next = m->memory;
    m->memory = piece;
    return piece->data;
}

void message_done(struct message_maker *m)
{
    for (struct piece *piece = m->memory, *next; piece; piece = next) {
        next = piece->next;
        free(piece);
    }
    m->memory = NULL;
}

uint64_t message_random(struct message_maker *m, uint64_t below)
{
    uint64_t z = (m->random += 0x9e3779b97f4a7c15u); /* splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return below ? z % below : z;
}

/* Any number of bits, so that short and long ones are as frequent; 0 in a message of defaults. */
static uint64_t number(struct message_maker *m, uint32_t max_bits)
{
    uint64_t value = message_random(m, 0) >> (64 - max_bits);
    return m->defaults ? 0 : value >> message_random(m, max_bits);
}

static uint32_t below(struct message_maker *m, uint32_t n)
{
    return m->defaults ? 0 : (uint32_t)message_random(m, n);
}

static uint32_t at_least_1(struct message_maker *m, uint32_t max)
{
    return 1 + below(m, max);
}

static struct wire_id make_id(struct message_maker *m)
{
    return (struct wire_id){.hi = number(m, 64), .lo = number(m, 64)};
}

static struct wire_incarnation make_incarnation(struct message_maker *m)
{
    return (struct wire_incarnation){
        .attempt = (uint32_t)number(m, 32), .opened_ns = number(m, 64), .random = number(m, 64)};
}

/* UTF-8 of 1 to 4 bytes a character, filled up to the last byte now and then. */
static void make_text(struct message_maker *m, char *text, size_t size)
{
    static const char *const characters[] = {"a",  "Z", " ", "_", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x90\xa2",
                                             "\n", "%"};
    size_t n = 0, want = m->defaults ? 0 : message_random(m, 3) ? message_random(m, size) : size - 1;

    memset(text, 0, size);
    while (n < want) {
        const char *c = characters[message_random(m, 9)];
        if (n + strlen(c) > want)
            c = "x";
        memcpy(text + n, c, strlen(c));
        n += strlen(c);
    }
}

static struct poise_err make_error(struct message_maker *m)
{
    struct poise_err error = {.code = -(int32_t)below(m, 4096),
                              .rank = below(m, 2) ? POISE_NONE : (uint32_t)number(m, 20),
                              .sample = (uint32_t)number(m, 32),
                              .step = number(m, 64)};
    make_text(m, error.field, sizeof error.field);
    make_text(m, error.text, sizeof error.text);
    return error;
}

static uint64_t *column64(struct message_maker *m, size_t n, uint32_t bits)
{
    uint64_t *values = take(m, n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = number(m, bits);
    return values;
}

static uint32_t *column32(struct message_maker *m, size_t n, uint32_t max)
{
    uint32_t *values = take(m, n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = below(m, max);
    return values;
}

static void make_field(struct message_maker *m, struct wire_field *field, uint32_t i)
{
    make_text(m, field->name, sizeof field->name - 12);
    snprintf(field->name + strlen(field->name), 12, "f%u", i);
    field->dtype = below(m, POISE_N_DTYPES);
    field->assembly = below(m, 3);
    field->n_dims = at_least_1(m, POISE_MAX_DIMS - 1);
    field->axis = below(m, field->n_dims);
    for (uint32_t d = 0; d < field->n_dims; d++) {
        field->shape[d] = below(m, 2) ? -1 : (int64_t)number(m, 63);
        if (below(m, 2))
            make_text(m, field->axis_name[d], sizeof field->axis_name[d]);
    }
    field->pad_side = below(m, 2);
    field->pad_scope = below(m, 3);
    field->pad_multiple = (uint32_t)number(m, 32);
    field->pad_to = number(m, 64);
    field->pad_bits = number(m, 64);
    make_text(m, field->rows_of, sizeof field->rows_of);
    field->n_divisors = below(m, POISE_MAX_DIMS + 1);
    for (uint32_t d = 0; d < field->n_divisors; d++)
        field->divisor[d] = (uint32_t)number(m, 32);
}

static struct wire_table *make_table(struct message_maker *m)
{
    struct wire_table *table = take(m, sizeof *table);

    if (m->defaults)
        return NULL;
    table->n_fields = below(m, 6);
    table->fields = take(m, table->n_fields * sizeof *table->fields);
    for (uint32_t i = 0; i < table->n_fields; i++)
        make_field(m, &table->fields[i], i);
    return table;
}

static void make_payload(struct message_maker *m, char text[WIRE_ADDRESS_BYTES])
{
    static const char *const hosts[] = {"10.1.2.3", "[fe80::1%eth0]", "node-7.example"};

    text[0] = 0;
    if (below(m, 3))
        snprintf(text, WIRE_ADDRESS_BYTES, "tcp://%s:%u", hosts[below(m, 3)], 1 + below(m, 65535));
}

static void make_key(struct message_maker *m, uint8_t key[WIRE_KEY_BYTES])
{
    for (uint32_t i = 0; i < WIRE_KEY_BYTES; i++)
        key[i] = (uint8_t)below(m, 256);
}

static void make_join(struct message_maker *m, struct wire_join *join)
{
    make_text(m, join->job, sizeof join->job);
    make_text(m, join->group, sizeof join->group);
    make_text(m, join->host, sizeof join->host);
    join->n_ranks = at_least_1(m, 4096);
    join->n_replicas = at_least_1(m, 8);
    join->rank = below(m, join->n_ranks);
    join->replica = below(m, join->n_replicas);
    join->incarnation = make_incarnation(m);
    join->epoch = make_id(m);
    join->first_step = number(m, 64);
    join->wire_version = (uint32_t)number(m, 32);
    join->planner_version = (uint32_t)number(m, 32);
    join->sync_set = (uint32_t)number(m, 32);
    join->pid = (uint32_t)number(m, 32);
    join->uid = (uint32_t)number(m, 32);
    make_payload(m, join->payload);
    if (below(m, 2))
        make_key(m, join->payload_key);
    join->coordinators = take(m, 200);
    make_text(m, join->coordinators, 200);
    join->n_options = below(m, 20);
    join->options = take(m, join->n_options * sizeof *join->options);
    for (uint32_t i = 0; i < join->n_options; i++) {
        join->options[i] = (struct wire_option){.key = take(m, 32), .value = take(m, 100)};
        snprintf(join->options[i].key, 32, "key %02u", i % 100);
        make_text(m, join->options[i].value, 100);
    }
}

static void make_columns(struct message_maker *m, struct wire_meta *meta)
{
    const size_t n = meta->n_samples;

    meta->tag = below(m, 2) ? column64(m, n, 64) : NULL;
    meta->bytes = column64(m, n, 40);
    meta->packed_bytes = below(m, 2) ? take(m, n * sizeof *meta->packed_bytes) : NULL;
    for (size_t i = 0; meta->packed_bytes && i < n; i++)
        meta->packed_bytes[i] = message_random(m, meta->bytes[i] + 1);
    meta->loss_tokens = column64(m, n, 63);
    meta->micro_batch = below(m, 2) ? column32(m, n, WIRE_MAX_SAMPLES) : NULL;
    meta->unit = below(m, 2) ? column64(m, n, 64) : NULL;
    meta->unit_layout = below(m, 2) ? take(m, n) : NULL;
    for (size_t i = 0; meta->unit_layout && i < n; i++)
        meta->unit_layout[i] = (uint8_t)below(m, 2);
    meta->length = column64(m, n * meta->n_phases, below(m, 2) ? 31 : 63);
    meta->attention = below(m, 2) ? column64(m, n * meta->n_phases, 64) : NULL;
    /* Half of the phases say length squared. One sample at least does not, or all may travel as NULL. */
    for (size_t p = 0; meta->attention && p < meta->n_phases; p++)
        for (size_t i = 0; i < n && message_random(m, 2); i++)
            meta->attention[p * n + i] = meta->length[p * n + i] * meta->length[p * n + i];
    if (meta->attention && n * meta->n_phases > 0)
        meta->attention[0] = meta->length[0] * meta->length[0] + 1;
    meta->extent = column32(m, n * meta->n_extents, UINT32_MAX);
    if (n == 0)
        meta->tag = meta->bytes = meta->packed_bytes = meta->loss_tokens = meta->unit = meta->length = meta->attention =
            NULL;
    if (n * meta->n_phases == 0)
        meta->length = meta->attention = NULL;
}

static void make_meta(struct message_maker *m, struct wire_meta *meta)
{
    meta->epoch = make_id(m);
    meta->step = number(m, 64);
    meta->rank = below(m, WIRE_MAX_RANKS);
    meta->replica = below(m, WIRE_MAX_REPLICAS);
    meta->incarnation = make_incarnation(m);
    meta->kind = below(m, 3);
    meta->mode = below(m, 3);
    meta->speed_ppm = (uint32_t)number(m, 32);
    meta->digest = make_id(m);
    meta->table_hash = make_id(m);
    meta->table = below(m, 2) ? make_table(m) : NULL;
    meta->n_samples = m->n_samples ? m->n_samples : below(m, 20);
    meta->n_phases = below(m, POISE_MAX_PHASES + 1);
    meta->n_extents = below(m, POISE_MAX_EXTENTS + 1);
    meta->has_columns = below(m, 4) > 0;
    if (meta->has_columns)
        make_columns(m, meta);
    if (meta->kind == WIRE_META_BAD)
        meta->error = make_error(m);
}

static void make_report(struct message_maker *m, struct wire_report *report)
{
    *report = (struct wire_report){
        .epoch = make_id(m),
        .rank = below(m, WIRE_MAX_RANKS),
        .replica = below(m, WIRE_MAX_REPLICAS),
        .step = number(m, 64),
        .submitted = number(m, 64),
        .waiting = below(m, WIRE_WAIT_TRAINER + 1),
        .compute_ns = number(m, 64),
        .report_step = number(m, 64),
        .pipeline_ns = number(m, 64),
        .exposed_ns = number(m, 64),
        .arena_bytes = number(m, 64),
        .budget_bytes = number(m, 64),
        .samples_in = number(m, 64),
        .samples_out = number(m, 64),
        .samples_dropped = number(m, 64),
        .samples_verified = number(m, 64),
        .samples_corrupt = number(m, 64),
    };
}

static void make_roster(struct message_maker *m, struct wire_roster *roster)
{
    char host[POISE_MAX_NAME] = "";

    roster->epoch = make_id(m);
    make_text(m, roster->job, sizeof roster->job);
    make_text(m, roster->group, sizeof roster->group);
    roster->uid = (uint32_t)number(m, 32);
    roster->n_ranks = at_least_1(m, 20);
    roster->n_replicas = at_least_1(m, 4);
    roster->n_nodes = at_least_1(m, 5);
    roster->first_step = number(m, 64);
    roster->n_members = roster->n_ranks * roster->n_replicas;
    roster->members = take(m, roster->n_members * sizeof *roster->members);
    for (uint32_t i = 0; i < roster->n_members; i++) {
        if (below(m, 2))
            make_text(m, host, sizeof host);
        roster->members[i] = (struct wire_member){
            .rank = i / roster->n_replicas,
            .replica = i % roster->n_replicas,
            .node = below(m, roster->n_nodes),
            .pid = (uint32_t)number(m, 32),
            .incarnation = make_incarnation(m),
        };
        memcpy(roster->members[i].host, host, sizeof host);
        make_payload(m, roster->members[i].payload);
    }
    if (below(m, 2)) {
        roster->payload_key = take(m, WIRE_KEY_BYTES);
        make_key(m, roster->payload_key);
    }
    roster->n_listens = below(m, roster->n_nodes < WIRE_MAX_LISTENS ? roster->n_nodes + 1 : WIRE_MAX_LISTENS);
    roster->listens = take(m, roster->n_listens * sizeof *roster->listens);
    for (uint32_t i = 0; i < roster->n_listens; i++) {
        roster->listens[i].node = i;
        snprintf(roster->listens[i].endpoint, sizeof roster->listens[i].endpoint, "tcp://10.0.0.%u:29410", i);
    }
}

static void make_slice(struct message_maker *m, struct wire_slice *slice, uint32_t n_micro_batches)
{
    slice->rank = below(m, WIRE_MAX_RANKS);
    slice->n_in = m->n_samples ? m->n_samples : below(m, 20);
    slice->n_out = m->n_samples ? m->n_samples : below(m, 20);
    if (n_micro_batches == 0)
        slice->n_in = slice->n_out = 0;
    slice->in_rank = column32(m, slice->n_in, WIRE_MAX_RANKS);
    slice->in_index = column32(m, slice->n_in, WIRE_MAX_SAMPLES);
    slice->in_bytes = column64(m, slice->n_in, 64);
    slice->count = take(m, n_micro_batches * sizeof *slice->count);
    for (uint32_t i = 0; i < slice->n_in; i++)
        slice->count[message_random(m, n_micro_batches)]++;
    slice->out_rank = column32(m, slice->n_out, WIRE_MAX_RANKS);
    slice->out_micro_batch = column32(m, slice->n_out, n_micro_batches ? n_micro_batches : 1);
    slice->out_row = column32(m, slice->n_out, WIRE_MAX_SAMPLES);
    slice->out_place = column32(m, slice->n_out, WIRE_MAX_SAMPLES);
}

static void make_totals(struct message_maker *m, struct poise_totals *totals)
{
    *totals = (struct poise_totals){
        .n_samples = number(m, 64),
        .loss_tokens = number(m, 64),
        .bytes = number(m, 64),
        .arrival_micro_batches = number(m, 64),
        .bytes_moved = number(m, 64),
        .samples_moved = number(m, 64),
        .cost_before = number(m, 64),
        .cost_after = number(m, 64),
        .cost_mean = number(m, 64),
        .lacking_before = number(m, 64),
        .lacking_after = number(m, 64),
        .plan_ns = number(m, 64),
        .mode = below(m, 3),
        .oversize = number(m, 64),
        .bytes_between_nodes = number(m, 64),
    };
    for (uint32_t p = 0; p < below(m, POISE_MAX_PHASES + 1); p++) {
        totals->length_micro_batch_before[p] = number(m, 64);
        totals->length_micro_batch_after[p] = number(m, 64);
    }
}

static void make_outcome(struct message_maker *m, struct wire_outcome *outcome)
{
    outcome->epoch = make_id(m);
    outcome->step = number(m, 64);
    outcome->kind = below(m, 3);
    outcome->plan_id = make_id(m);
    outcome->n_micro_batches = below(m, 9);
    make_totals(m, &outcome->totals);
    outcome->table_hash = make_id(m);
    outcome->table = below(m, 2) ? make_table(m) : NULL;
    outcome->n_extents = below(m, POISE_MAX_EXTENTS + 1);
    for (uint32_t i = 0; i < outcome->n_extents; i++)
        outcome->extent[i] = (uint32_t)number(m, 32);
    if (outcome->kind == WIRE_OUTCOME_ERROR)
        outcome->error = make_error(m);
    if (outcome->kind != WIRE_OUTCOME_PLAN)
        return;
    outcome->n_slices = below(m, 5);
    outcome->slices = take(m, outcome->n_slices * sizeof *outcome->slices);
    for (uint32_t i = 0; i < outcome->n_slices; i++)
        make_slice(m, &outcome->slices[i], outcome->n_micro_batches);
}

static void make_abort(struct message_maker *m, struct wire_abort *about)
{
    about->epoch = make_id(m);
    make_text(m, about->job, sizeof about->job);
    make_text(m, about->group, sizeof about->group);
    about->rank = below(m, 2) ? POISE_NONE : below(m, WIRE_MAX_RANKS);
    about->replica = below(m, 2) ? POISE_NONE : below(m, WIRE_MAX_REPLICAS);
    about->left = below(m, 2);
    about->step = number(m, 64);
    about->error = make_error(m);
}

static void make_heartbeat(struct message_maker *m, struct wire_heartbeat *heartbeat)
{
    heartbeat->instance = make_id(m);
    heartbeat->n_epochs = below(m, 5);
    heartbeat->epochs = take(m, heartbeat->n_epochs * sizeof *heartbeat->epochs);
    for (uint32_t i = 0; i < heartbeat->n_epochs; i++) {
        struct wire_heartbeat_epoch *epoch = &heartbeat->epochs[i];
        *epoch =
            (struct wire_heartbeat_epoch){.epoch = make_id(m), .oldest_open = number(m, 64), .n_missing = below(m, 17)};
        for (uint32_t k = 0; k < epoch->n_missing; k++)
            epoch->missing[k] = below(m, WIRE_MAX_RANKS);
    }
}

static void make_beacon(struct message_maker *m, struct wire_beacon *beacon)
{
    *beacon = (struct wire_beacon){.instance = make_id(m),
                                   .epoch = make_id(m),
                                   .decided = number(m, 64),
                                   .n_plans = below(m, WIRE_WINDOW + 1),
                                   .n_missing = below(m, 17),
                                   .missing_total = (uint32_t)number(m, 32)};
    for (uint32_t i = 0; i < beacon->n_plans; i++)
        beacon->plan_id[i] = make_id(m);
    for (uint32_t i = 0; i < beacon->n_missing; i++)
        beacon->missing[i] = below(m, WIRE_MAX_RANKS);
}

static void make_forming(struct message_maker *m, struct wire_forming *forming)
{
    *forming = (struct wire_forming){
        .uid = (uint32_t)number(m, 32), .n_missing = below(m, 17), .missing_total = (uint32_t)number(m, 32)};
    make_text(m, forming->job, sizeof forming->job);
    make_text(m, forming->group, sizeof forming->group);
    for (uint32_t i = 0; i < forming->n_missing; i++) {
        forming->missing[i] = below(m, WIRE_MAX_RANKS);
        forming->missing_replica[i] = below(m, WIRE_MAX_REPLICAS);
    }
}

static void make_members(struct message_maker *m, struct wire_message *msg)
{
    msg->members.instance = make_id(m);
    make_text(m, msg->members.name, sizeof msg->members.name);
    make_text(m, msg->members.listen, sizeof msg->members.listen);
    msg->members.n_joins = below(m, 5);
    msg->members.joins = take(m, msg->members.n_joins * sizeof *msg->members.joins);
    for (uint32_t i = 0; i < msg->members.n_joins; i++)
        make_join(m, &msg->members.joins[i]);
}

static void make_metas(struct message_maker *m, struct wire_message *msg)
{
    msg->meta.n_metas = at_least_1(m, 4);
    msg->meta.metas = take(m, msg->meta.n_metas * sizeof *msg->meta.metas);
    for (uint32_t i = 0; i < msg->meta.n_metas; i++)
        make_meta(m, &msg->meta.metas[i]);
}

static void make_refused(struct message_maker *m, struct wire_message *msg)
{
    make_text(m, msg->refused.who.job, sizeof msg->refused.who.job);
    make_text(m, msg->refused.who.group, sizeof msg->refused.who.group);
    msg->refused.who.rank = below(m, WIRE_MAX_RANKS);
    msg->refused.who.replica = below(m, WIRE_MAX_REPLICAS);
    msg->refused.who.incarnation = make_incarnation(m);
    msg->refused.error = make_error(m);
}

static void make_small(struct message_maker *m, struct wire_message *msg)
{
    switch (msg->type) {
    case WIRE_HELLO:
        msg->hello.wire_version = (uint32_t)number(m, 32);
        msg->hello.token = make_id(m);
        break;
    case WIRE_WELCOME:
        msg->welcome.wire_version = (uint32_t)number(m, 32);
        msg->welcome.instance = make_id(m);
        msg->welcome.mode = below(m, 3);
        break;
    case WIRE_PULL:
    case WIRE_NEED:
        msg->ask.epoch = make_id(m);
        msg->ask.step = number(m, 64);
        msg->ask.want_table = below(m, 2);
        break;
    case WIRE_LEAVE:
        msg->leave.epoch = make_id(m);
        msg->leave.submitted = number(m, 64);
        msg->leave.ended = below(m, 2);
        break;
    case WIRE_MODE:
        msg->mode.epoch = make_id(m);
        msg->mode.mode = below(m, 3);
        break;
    case WIRE_UNKNOWN:
        msg->unknown.epoch = make_id(m);
        break;
    default:
        abort();
    }
}

struct wire_message *message_make(struct message_maker *m, enum wire_type type)
{
    struct wire_message *msg = take(m, sizeof *msg);

    msg->type = type;
    switch (type) {
    case WIRE_REFUSED:
        make_refused(m, msg);
        break;
    case WIRE_JOIN:
        make_join(m, &msg->join);
        break;
    case WIRE_META:
        make_metas(m, msg);
        break;
    case WIRE_REPORT:
        make_report(m, &msg->report);
        break;
    case WIRE_ROSTER:
        make_roster(m, &msg->roster);
        break;
    case WIRE_OUTCOME:
        make_outcome(m, &msg->outcome);
        break;
    case WIRE_ABORT:
        make_abort(m, &msg->abort);
        break;
    case WIRE_MEMBERS:
        make_members(m, msg);
        break;
    case WIRE_HEARTBEAT:
        make_heartbeat(m, &msg->heartbeat);
        break;
    case WIRE_BEACON:
        make_beacon(m, &msg->beacon);
        break;
    case WIRE_FORMING:
        make_forming(m, &msg->forming);
        break;
    default:
        make_small(m, msg);
    }
    return msg;
}
