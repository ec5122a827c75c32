/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain structs -> protobuf-c's structs. Columns and texts are borrowed from the message, the structs themselves come
 * from a pool; so all that can fail is memory. The message was checked before: counts fit their arrays, texts end.
 * Parts that messages share are in encode_parts.c, META in encode_meta.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "proto/encode.h"

/* --------------------------------------------------------------------------------------------- process and its node */

static PB(Hello) *hello(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Hello, to)
    poise__v1__hello__init(to);
    to->wire_version = msg->hello.wire_version;
    return wire_put_id(pool, msg->hello.token, &to->token) ? to : NULL;
}

static PB(Welcome) *welcome(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Welcome, to)
    poise__v1__welcome__init(to);
    to->wire_version = msg->welcome.wire_version;
    to->mode = msg->welcome.mode;
    return wire_put_id(pool, msg->welcome.instance, &to->instance) ? to : NULL;
}

static PB(Refused) *refused(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Refused, to)
    poise__v1__refused__init(to);
    to->job = put_text(msg->refused.who.job);
    to->group = put_text(msg->refused.who.group);
    to->rank = msg->refused.who.rank;
    to->replica = msg->refused.who.replica;
    to->incarnation = wire_put_incarnation(pool, &msg->refused.who.incarnation);
    to->error = wire_put_error(pool, &msg->refused.error);
    return to->incarnation && to->error ? to : NULL;
}

static PB(Ask) *ask(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Ask, to)
    poise__v1__ask__init(to);
    to->step = msg->ask.step;
    to->want_table = msg->ask.want_table;
    return wire_put_id(pool, msg->ask.epoch, &to->epoch) ? to : NULL;
}

static PB(Leave) *leave(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Leave, to)
    poise__v1__leave__init(to);
    to->submitted = msg->leave.submitted;
    to->ended = msg->leave.ended;
    return wire_put_id(pool, msg->leave.epoch, &to->epoch) ? to : NULL;
}

static PB(Report) *report(struct pool *pool, const struct wire_report *from)
{
    NEW(pool, Report, to)
    poise__v1__report__init(to);
    to->rank = from->rank;
    to->replica = from->replica;
    to->step = from->step;
    to->submitted = from->submitted;
    to->waiting = from->waiting;
    to->compute_ns = from->compute_ns;
    to->report_step = from->report_step;
    to->pipeline_ns = from->pipeline_ns;
    to->exposed_ns = from->exposed_ns;
    to->arena_bytes = from->arena_bytes;
    to->budget_bytes = from->budget_bytes;
    to->samples_in = from->samples_in;
    to->samples_out = from->samples_out;
    to->samples_dropped = from->samples_dropped;
    to->samples_verified = from->samples_verified;
    to->samples_corrupt = from->samples_corrupt;
    return wire_put_id(pool, from->epoch, &to->epoch) ? to : NULL;
}

static PB(Mode) *mode(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Mode, to)
    poise__v1__mode__init(to);
    to->mode = msg->mode.mode;
    return wire_put_id(pool, msg->mode.epoch, &to->epoch) ? to : NULL;
}

/* --------------------------------------------------------------------------------------------- coordinator and node */

static PB(Members) *members(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Members, to)
    poise__v1__members__init(to);
    to->name = put_text(msg->members.name);
    to->listen = put_text(msg->members.listen);
    to->n_joins = msg->members.n_joins;
    to->joins = wire_pool_take(pool, to->n_joins * sizeof *to->joins);
    if (!to->joins || !wire_put_id(pool, msg->members.instance, &to->instance))
        return NULL;
    for (size_t i = 0; i < to->n_joins; i++) {
        to->joins[i] = wire_put_join(pool, &msg->members.joins[i]);
        if (!to->joins[i])
            return NULL;
    }
    return to;
}

/* Each name once as long as neighbours share it; members of a node usually are neighbours. */
static void hosts(const struct wire_roster *from, PB(Roster) *to)
{
    for (uint32_t i = 0; i < from->n_members; i++) {
        if (i == 0 || strcmp(from->members[i].host, from->members[i - 1].host) != 0)
            to->hosts[to->n_hosts++] = put_text(from->members[i].host);
        to->host[i] = (uint32_t)to->n_hosts - 1;
    }
}

/* "tcp://ADDR:PORT" was checked. The members of a node share the address, not the port. */
static void payloads(const struct wire_roster *from, PB(Roster) *to)
{
    for (uint32_t i = 0; i < from->n_members; i++) {
        const char *text = from->members[i].payload, *colon = strrchr(text, ':');
        ProtobufCBinaryData host = {.len = colon ? (size_t)(colon - text) : 0, .data = (uint8_t *)(uintptr_t)text};

        if (!text[0] || !colon)
            continue;
        if (to->n_payload_hosts == 0 || to->payload_hosts[to->n_payload_hosts - 1].len != host.len ||
            memcmp(to->payload_hosts[to->n_payload_hosts - 1].data, text, host.len) != 0)
            to->payload_hosts[to->n_payload_hosts++] = host;
        to->payload_host[i] = (uint32_t)to->n_payload_hosts;
        to->payload_port[i] = (uint32_t)strtoul(colon + 1, NULL, 10);
    }
    to->n_payload_host = to->n_payload_port = to->n_payload_hosts ? from->n_members : 0;
}

static bool listens(struct pool *pool, const struct wire_roster *from, PB(Roster) *to)
{
    size_t n = from->n_listens;

    to->listens = wire_pool_take(pool, n * sizeof *to->listens);
    to->listen_node = wire_pool_take(pool, n * sizeof *to->listen_node);
    if (!to->listens || !to->listen_node)
        return false;
    to->n_listens = to->n_listen_node = n;
    for (size_t i = 0; i < n; i++) {
        to->listens[i] = put_text(from->listens[i].endpoint);
        to->listen_node[i] = from->listens[i].node;
    }
    return true;
}

static PB(Roster) *roster(struct pool *pool, const struct wire_roster *from)
{
    size_t n = from->n_members;
    NEW(pool, Roster, to)
    poise__v1__roster__init(to);
    to->job = put_text(from->job);
    to->group = put_text(from->group);
    to->uid = from->uid;
    to->n_ranks = from->n_ranks;
    to->n_replicas = from->n_replicas;
    to->n_nodes = from->n_nodes;
    to->first_step = from->first_step;
    if (from->payload_key)
        to->payload_key = (ProtobufCBinaryData){.len = WIRE_KEY_BYTES, .data = from->payload_key};
    to->n_node = to->n_pid = to->n_attempt = to->n_opened_ns = to->n_random = to->n_host = n;
    to->node = wire_pool_take(pool, n * sizeof *to->node);
    to->pid = wire_pool_take(pool, n * sizeof *to->pid);
    to->attempt = wire_pool_take(pool, n * sizeof *to->attempt);
    to->opened_ns = wire_pool_take(pool, n * sizeof *to->opened_ns);
    to->random = wire_pool_take(pool, n * sizeof *to->random);
    to->host = wire_pool_take(pool, n * sizeof *to->host);
    to->hosts = wire_pool_take(pool, n * sizeof *to->hosts);
    to->payload_hosts = wire_pool_take(pool, n * sizeof *to->payload_hosts);
    to->payload_host = wire_pool_take(pool, n * sizeof *to->payload_host);
    to->payload_port = wire_pool_take(pool, n * sizeof *to->payload_port);
    if (!to->node || !to->pid || !to->attempt || !to->opened_ns || !to->random || !to->host || !to->hosts ||
        !to->payload_hosts || !to->payload_host || !to->payload_port || !wire_put_id(pool, from->epoch, &to->epoch))
        return NULL;
    memset(to->payload_host, 0, n * sizeof *to->payload_host);
    memset(to->payload_port, 0, n * sizeof *to->payload_port);
    for (size_t i = 0; i < n; i++) {
        to->node[i] = from->members[i].node;
        to->pid[i] = from->members[i].pid;
        to->attempt[i] = from->members[i].incarnation.attempt;
        to->opened_ns[i] = from->members[i].incarnation.opened_ns;
        to->random[i] = from->members[i].incarnation.random;
    }
    hosts(from, to);
    payloads(from, to);
    return listens(pool, from, to) ? to : NULL;
}

static size_t without_zeros(const uint64_t *values, size_t n)
{
    while (n > 0 && values[n - 1] == 0)
        n--;
    return n;
}

static PB(Totals) *totals(struct pool *pool, const struct poise_totals *from)
{
    NEW(pool, Totals, to)
    poise__v1__totals__init(to);
    to->n_samples = from->n_samples;
    to->loss_tokens = from->loss_tokens;
    to->bytes = from->bytes;
    to->arrival_micro_batches = from->arrival_micro_batches;
    to->bytes_moved = from->bytes_moved;
    to->samples_moved = from->samples_moved;
    to->cost_before = from->cost_before;
    to->cost_after = from->cost_after;
    to->cost_mean = from->cost_mean;
    to->length_micro_batch_before = (uint64_t *)from->length_micro_batch_before;
    to->n_length_micro_batch_before = without_zeros(from->length_micro_batch_before, POISE_MAX_PHASES);
    to->length_micro_batch_after = (uint64_t *)from->length_micro_batch_after;
    to->n_length_micro_batch_after = without_zeros(from->length_micro_batch_after, POISE_MAX_PHASES);
    to->lacking_before = from->lacking_before;
    to->lacking_after = from->lacking_after;
    to->plan_ns = from->plan_ns;
    to->mode = from->mode;
    to->oversize = from->oversize;
    to->bytes_between_nodes = from->bytes_between_nodes;
    return to;
}

static PB(Slice) *slice(struct pool *pool, const struct wire_slice *from, uint32_t n_micro_batches)
{
    NEW(pool, Slice, to)
    poise__v1__slice__init(to);
    to->rank = from->rank;
    to->n_in_rank = to->n_in_index = to->n_in_bytes = from->n_in;
    to->in_rank = from->in_rank;
    to->in_index = from->in_index;
    to->in_bytes = from->in_bytes;
    to->n_count = n_micro_batches;
    to->count = from->count;
    to->n_out_rank = to->n_out_micro_batch = to->n_out_row = to->n_out_place = from->n_out;
    to->out_rank = from->out_rank;
    to->out_micro_batch = from->out_micro_batch;
    to->out_row = from->out_row;
    to->out_place = from->out_place;
    return to;
}

static PB(Outcome) *outcome(struct pool *pool, const struct wire_outcome *from)
{
    NEW(pool, Outcome, to)
    poise__v1__outcome__init(to);
    to->step = from->step;
    to->kind = from->kind;
    to->n_micro_batches = from->n_micro_batches;
    to->n_extent = from->n_extents;
    to->extent = (uint32_t *)from->extent;
    to->totals = totals(pool, &from->totals);
    to->n_slices = from->n_slices;
    to->slices = wire_pool_take(pool, to->n_slices * sizeof *to->slices);
    if (!to->totals || !to->slices || !wire_put_id(pool, from->epoch, &to->epoch) ||
        !wire_put_id(pool, from->plan_id, &to->plan_id) || !wire_put_id(pool, from->table_hash, &to->table_hash))
        return NULL;
    if (from->table && !(to->table = wire_put_table(pool, from->table)))
        return NULL;
    if (from->kind == WIRE_OUTCOME_ERROR && !(to->error = wire_put_error(pool, &from->error)))
        return NULL;
    for (size_t i = 0; i < to->n_slices; i++) {
        to->slices[i] = slice(pool, &from->slices[i], from->n_micro_batches);
        if (!to->slices[i])
            return NULL;
    }
    return to;
}

static PB(Abort) *put_abort(struct pool *pool, const struct wire_abort *from)
{
    NEW(pool, Abort, to)
    poise__v1__abort__init(to);
    to->job = put_text(from->job);
    to->group = put_text(from->group);
    to->rank = from->rank;
    to->replica = from->replica;
    to->left = from->left;
    to->step = from->step;
    to->error = wire_put_error(pool, &from->error);
    return to->error && wire_put_id(pool, from->epoch, &to->epoch) ? to : NULL;
}

static PB(Beacon) *beacon(struct pool *pool, const struct wire_beacon *from)
{
    NEW(pool, Beacon, to)
    poise__v1__beacon__init(to);
    to->decided = from->decided;
    to->n_missing = from->n_missing;
    to->missing = (uint32_t *)from->missing;
    to->missing_total = from->missing_total;
    to->n_plan_id = 2 * (size_t)from->n_plans;
    to->plan_id = wire_pool_take(pool, to->n_plan_id * sizeof *to->plan_id);
    if (!to->plan_id || !wire_put_id(pool, from->instance, &to->instance) ||
        !wire_put_id(pool, from->epoch, &to->epoch))
        return NULL;
    for (uint32_t i = 0; i < from->n_plans; i++) {
        to->plan_id[2 * i] = from->plan_id[i].hi;
        to->plan_id[2 * i + 1] = from->plan_id[i].lo;
    }
    return to;
}

static PB(Forming) *forming(struct pool *pool, const struct wire_forming *from)
{
    NEW(pool, Forming, to)
    poise__v1__forming__init(to);
    to->job = put_text(from->job);
    to->group = put_text(from->group);
    to->uid = from->uid;
    to->n_missing = to->n_missing_replica = from->n_missing;
    to->missing = (uint32_t *)from->missing;
    to->missing_replica = (uint32_t *)from->missing_replica;
    to->missing_total = from->missing_total;
    return to;
}

static PB(HeartbeatEpoch) *heartbeat_epoch(struct pool *pool, const struct wire_heartbeat_epoch *from)
{
    NEW(pool, HeartbeatEpoch, to)
    poise__v1__heartbeat_epoch__init(to);
    to->oldest_open = from->oldest_open;
    to->n_missing = from->n_missing;
    to->missing = (uint32_t *)from->missing;
    return wire_put_id(pool, from->epoch, &to->epoch) ? to : NULL;
}

static PB(Heartbeat) *heartbeat(struct pool *pool, const struct wire_heartbeat *from)
{
    NEW(pool, Heartbeat, to)
    poise__v1__heartbeat__init(to);
    to->n_epochs = from->n_epochs;
    to->epochs = wire_pool_take(pool, to->n_epochs * sizeof *to->epochs);
    if (!to->epochs || !wire_put_id(pool, from->instance, &to->instance))
        return NULL;
    for (size_t i = 0; i < to->n_epochs; i++) {
        to->epochs[i] = heartbeat_epoch(pool, &from->epochs[i]);
        if (!to->epochs[i])
            return NULL;
    }
    return to;
}

static PB(Unknown) *unknown(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Unknown, to)
    poise__v1__unknown__init(to);
    return wire_put_id(pool, msg->unknown.epoch, &to->epoch) ? to : NULL;
}

int wire_store(struct pool *pool, const struct wire_message *msg, PB(Envelope) *to)
{
    switch (msg->type) {
    case WIRE_HELLO:
        return (to->hello = hello(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_WELCOME:
        return (to->welcome = welcome(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_REFUSED:
        return (to->refused = refused(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_JOIN:
        return (to->join = wire_put_join(pool, &msg->join)) ? 0 : -ENOMEM;
    case WIRE_META:
        return (to->meta = wire_put_metas(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_PULL:
        return (to->pull = ask(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_NEED:
        return (to->need = ask(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_LEAVE:
        return (to->leave = leave(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_REPORT:
        return (to->report = report(pool, &msg->report)) ? 0 : -ENOMEM;
    case WIRE_ROSTER:
        return (to->roster = roster(pool, &msg->roster)) ? 0 : -ENOMEM;
    case WIRE_OUTCOME:
        return (to->outcome = outcome(pool, &msg->outcome)) ? 0 : -ENOMEM;
    case WIRE_ABORT:
        return (to->abort = put_abort(pool, &msg->abort)) ? 0 : -ENOMEM;
    case WIRE_MODE:
        return (to->mode = mode(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_MEMBERS:
        return (to->members = members(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_HEARTBEAT:
        return (to->heartbeat = heartbeat(pool, &msg->heartbeat)) ? 0 : -ENOMEM;
    case WIRE_UNKNOWN:
        return (to->unknown = unknown(pool, msg)) ? 0 : -ENOMEM;
    case WIRE_BEACON:
        return (to->beacon = beacon(pool, &msg->beacon)) ? 0 : -ENOMEM;
    case WIRE_FORMING:
        return (to->forming = forming(pool, &msg->forming)) ? 0 : -ENOMEM;
    case WIRE_N_TYPES:
        break;
    }
    return -EINVAL; /* wire_check refused it before */
}
