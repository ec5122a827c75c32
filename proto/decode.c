/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protobuf-c's structs -> plain structs in one block. Only what the plain structs can no longer show is checked here:
 * lengths of columns, of ids and of texts. All values are checked in check.c. Parts that messages share are in
 * decode_parts.c, META in decode_meta.c.
 */
#include "proto/decode.h"

#include <stdio.h>

/* --------------------------------------------------------------------------------------------- process and its node */

static int hello(struct load *l, const PB(Hello) *from, struct wire_message *msg)
{
    msg->hello.wire_version = from->wire_version;
    return wire_get_id(l, "token", from->token, &msg->hello.token);
}

static int welcome(struct load *l, const PB(Welcome) *from, struct wire_message *msg)
{
    msg->welcome.wire_version = from->wire_version;
    msg->welcome.mode = from->mode;
    return wire_get_id(l, "instance", from->instance, &msg->welcome.instance);
}

static int refused(struct load *l, const PB(Refused) *from, struct wire_message *msg)
{
    struct wire_join_name *who = &msg->refused.who;

    who->rank = from->rank;
    who->replica = from->replica;
    if (wire_get_text(l, "job", from->job, who->job, sizeof who->job) < 0 ||
        wire_get_text(l, "group", from->group, who->group, sizeof who->group) < 0 ||
        wire_get_incarnation(l, from->incarnation, &who->incarnation) < 0)
        return -EPROTO;
    return wire_get_error(l, from->error, &msg->refused.error);
}

static int ask(struct load *l, const PB(Ask) *from, struct wire_message *msg)
{
    msg->ask.step = from->step;
    msg->ask.want_table = from->want_table;
    return wire_get_id(l, "epoch", from->epoch, &msg->ask.epoch);
}

static int leave(struct load *l, const PB(Leave) *from, struct wire_message *msg)
{
    msg->leave.submitted = from->submitted;
    msg->leave.ended = from->ended;
    return wire_get_id(l, "epoch", from->epoch, &msg->leave.epoch);
}

static int report(struct load *l, const PB(Report) *from, struct wire_report *to)
{
    *to = (struct wire_report){
        .rank = from->rank,
        .replica = from->replica,
        .step = from->step,
        .submitted = from->submitted,
        .waiting = from->waiting,
        .compute_ns = from->compute_ns,
        .report_step = from->report_step,
        .pipeline_ns = from->pipeline_ns,
        .exposed_ns = from->exposed_ns,
        .arena_bytes = from->arena_bytes,
        .budget_bytes = from->budget_bytes,
        .samples_in = from->samples_in,
        .samples_out = from->samples_out,
        .samples_dropped = from->samples_dropped,
        .samples_verified = from->samples_verified,
        .samples_corrupt = from->samples_corrupt,
    };
    return wire_get_id(l, "epoch", from->epoch, &to->epoch);
}

static int mode(struct load *l, const PB(Mode) *from, struct wire_message *msg)
{
    msg->mode.mode = from->mode;
    return wire_get_id(l, "epoch", from->epoch, &msg->mode.epoch);
}

/* --------------------------------------------------------------------------------------------- coordinator and node */

static int members(struct load *l, const PB(Members) *from, struct wire_message *msg)
{
    struct wire_join *joins = block_take(l->block, from->n_joins * sizeof *joins);

    msg->members.n_joins = (uint32_t)from->n_joins;
    msg->members.joins = joins;
    if (wire_get_id(l, "instance", from->instance, &msg->members.instance) < 0 ||
        wire_get_text(l, "name", from->name, msg->members.name, sizeof msg->members.name) < 0 ||
        wire_get_text(l, "listen", from->listen, msg->members.listen, sizeof msg->members.listen) < 0 ||
        wire_get_few(l, "joins", from->n_joins, WIRE_MAX_RANKS) < 0)
        return -EPROTO;
    for (size_t i = 0; i < from->n_joins; i++) {
        struct wire_join measured;
        if (wire_get_join(l, from->joins[i], joins ? &joins[i] : &measured) < 0)
            return -EPROTO;
    }
    return 0;
}

static int roster_counts(struct load *l, const PB(Roster) *from)
{
    const struct {
        const char *name;
        size_t n;
    } columns[] = {
        {"node", from->n_node},           {"pid", from->n_pid},       {"attempt", from->n_attempt},
        {"opened_ns", from->n_opened_ns}, {"random", from->n_random}, {"host", from->n_host},
    };
    const uint64_t want = (uint64_t)from->n_ranks * from->n_replicas;

    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (columns[i].n != want)
            return err_set(l->err, -EPROTO, "ROSTER: %s has %zu values for %u ranks of %u replicas", columns[i].name,
                           columns[i].n, from->n_ranks, from->n_replicas);
    if (want > WIRE_MAX_RANKS)
        return err_set(l->err, -EPROTO, "ROSTER: %" PRIu64 " members, at most %u", want, WIRE_MAX_RANKS);
    if (from->payload_key.len != 0 && from->payload_key.len != WIRE_KEY_BYTES)
        return err_set(l->err, -EPROTO, "ROSTER: payload_key has %zu bytes, not %u", from->payload_key.len,
                       WIRE_KEY_BYTES);
    if (from->n_payload_host != from->n_payload_port || (from->n_payload_host != 0 && from->n_payload_host != want))
        return err_set(l->err, -EPROTO, "ROSTER: payload_host has %zu values, payload_port %zu, for %u ranks of %u replicas",
                       from->n_payload_host, from->n_payload_port, from->n_ranks, from->n_replicas);
    return 0;
}

/* The column's two parts make one text again. */
static int member_payload(struct load *l, const PB(Roster) *from, uint32_t i, struct wire_member *to)
{
    uint32_t host = from->n_payload_host ? from->payload_host[i] : 0;
    size_t n;

    if (host == 0)
        return 0;
    if (host > from->n_payload_hosts || from->payload_port[i] == 0 || from->payload_port[i] > 65535)
        return err_set(l->err, -EPROTO, "ROSTER: payload of rank %u is port %u of host number %u of %zu", to->rank,
                       from->payload_port[i], host, from->n_payload_hosts);
    if (wire_get_text(l, "payload_hosts", from->payload_hosts[host - 1], to->payload,
                      sizeof to->payload - sizeof ":65535" + 1) < 0)
        return -EPROTO;
    n = strlen(to->payload);
    snprintf(to->payload + n, sizeof to->payload - n, ":%u", from->payload_port[i]);
    return 0;
}

static int member(struct load *l, const PB(Roster) *from, uint32_t i, struct wire_member *to)
{
    *to = (struct wire_member){
        .rank = i / from->n_replicas,
        .replica = i % from->n_replicas,
        .node = from->node[i],
        .pid = from->pid[i],
        .incarnation = {.attempt = from->attempt[i], .opened_ns = from->opened_ns[i], .random = from->random[i]},
    };
    if (from->host[i] >= from->n_hosts)
        return err_set(l->err, -EPROTO, "ROSTER: host of rank %u is number %u of %zu", to->rank, from->host[i],
                       from->n_hosts);
    if (member_payload(l, from, i, to) < 0)
        return -EPROTO;
    return wire_get_text(l, "hosts", from->hosts[from->host[i]], to->host, sizeof to->host);
}

static int listens(struct load *l, const PB(Roster) *from, struct wire_roster *to)
{
    struct wire_listen *all, measured;

    if (from->n_listen_node != from->n_listens)
        return err_set(l->err, -EPROTO, "ROSTER: listen_node has %zu values for %zu listens", from->n_listen_node,
                       from->n_listens);
    if (wire_get_few(l, "listens", from->n_listens, WIRE_MAX_LISTENS) < 0)
        return -EPROTO;
    to->n_listens = (uint32_t)from->n_listens;
    to->listens = all = block_take(l->block, from->n_listens * sizeof *all);
    for (size_t i = 0; i < from->n_listens; i++) {
        struct wire_listen *one = all ? &all[i] : &measured;

        one->node = from->listen_node[i];
        if (wire_get_text(l, "listens", from->listens[i], one->endpoint, sizeof one->endpoint) < 0)
            return -EPROTO;
    }
    return 0;
}

static int roster(struct load *l, const PB(Roster) *from, struct wire_roster *to)
{
    *to = (struct wire_roster){
        .uid = from->uid,
        .n_ranks = from->n_ranks,
        .n_replicas = from->n_replicas,
        .n_nodes = from->n_nodes,
        .first_step = from->first_step,
        .n_members = (uint32_t)from->n_node,
    };
    if (roster_counts(l, from) < 0 || wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_text(l, "job", from->job, to->job, sizeof to->job) < 0 ||
        wire_get_text(l, "group", from->group, to->group, sizeof to->group) < 0)
        return -EPROTO;
    struct wire_member *all = block_take(l->block, to->n_members * sizeof *all);
    to->members = all;
    for (uint32_t i = 0; i < to->n_members; i++) {
        struct wire_member measured;
        if (member(l, from, i, all ? &all[i] : &measured) < 0)
            return -EPROTO;
    }
    to->payload_key = block_take(l->block, from->payload_key.len);
    if (to->payload_key)
        memcpy(to->payload_key, from->payload_key.data, WIRE_KEY_BYTES);
    return listens(l, from, to);
}

static int totals(struct load *l, const PB(Totals) *from, struct poise_totals *to)
{
    *to = (struct poise_totals){0};
    if (!from)
        return 0;
    to->n_samples = from->n_samples;
    to->loss_tokens = from->loss_tokens;
    to->bytes = from->bytes;
    to->arrival_micro_batches = from->arrival_micro_batches;
    to->bytes_moved = from->bytes_moved;
    to->samples_moved = from->samples_moved;
    to->cost_before = from->cost_before;
    to->cost_after = from->cost_after;
    to->cost_mean = from->cost_mean;
    to->lacking_before = from->lacking_before;
    to->lacking_after = from->lacking_after;
    to->plan_ns = from->plan_ns;
    to->mode = from->mode;
    to->oversize = from->oversize;
    to->bytes_between_nodes = from->bytes_between_nodes;
    if (wire_get_few(l, "length_micro_batch_before", from->n_length_micro_batch_before, POISE_MAX_PHASES) < 0 ||
        wire_get_few(l, "length_micro_batch_after", from->n_length_micro_batch_after, POISE_MAX_PHASES) < 0)
        return -EPROTO;
    for (size_t i = 0; i < from->n_length_micro_batch_before; i++)
        to->length_micro_batch_before[i] = from->length_micro_batch_before[i];
    for (size_t i = 0; i < from->n_length_micro_batch_after; i++)
        to->length_micro_batch_after[i] = from->length_micro_batch_after[i];
    return 0;
}

static int slice(struct load *l, const PB(Slice) *from, uint32_t n_micro_batches, struct wire_slice *to)
{
    const size_t n_in = from->n_in_rank, n_out = from->n_out_rank;

    *to = (struct wire_slice){.rank = from->rank, .n_in = (uint32_t)n_in, .n_out = (uint32_t)n_out};
    if (wire_get_few(l, "in_rank", n_in, WIRE_MAX_SAMPLES) < 0 ||
        wire_get_few(l, "out_rank", n_out, WIRE_MAX_SAMPLES) < 0 ||
        wire_get_u32(l, "in_rank", n_in, from->in_rank, n_in, &to->in_rank) < 0 ||
        wire_get_u32(l, "in_index", from->n_in_index, from->in_index, n_in, &to->in_index) < 0 ||
        wire_get_u64(l, "in_bytes", from->n_in_bytes, from->in_bytes, n_in, &to->in_bytes) < 0 ||
        wire_get_u32(l, "count", from->n_count, from->count, n_micro_batches, &to->count) < 0 ||
        wire_get_u32(l, "out_rank", n_out, from->out_rank, n_out, &to->out_rank) < 0 ||
        wire_get_u32(l, "out_micro_batch", from->n_out_micro_batch, from->out_micro_batch, n_out,
                     &to->out_micro_batch) < 0 ||
        wire_get_u32(l, "out_row", from->n_out_row, from->out_row, n_out, &to->out_row) < 0 ||
        wire_get_u32(l, "out_place", from->n_out_place, from->out_place, n_out, &to->out_place) < 0)
        return -EPROTO;
    return 0;
}

static int outcome(struct load *l, const PB(Outcome) *from, struct wire_outcome *to)
{
    *to = (struct wire_outcome){
        .step = from->step,
        .kind = from->kind,
        .n_micro_batches = from->n_micro_batches,
        .n_extents = (uint32_t)from->n_extent,
        .n_slices = (uint32_t)from->n_slices,
    };
    if (wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_id(l, "plan_id", from->plan_id, &to->plan_id) < 0 ||
        wire_get_id(l, "table_hash", from->table_hash, &to->table_hash) < 0 ||
        totals(l, from->totals, &to->totals) < 0 || wire_get_table(l, from->table, &to->table) < 0 ||
        wire_get_few(l, "extent", from->n_extent, POISE_MAX_EXTENTS) < 0 ||
        wire_get_few(l, "slices", from->n_slices, WIRE_MAX_RANKS) < 0)
        return -EPROTO;
    for (size_t i = 0; i < from->n_extent; i++)
        to->extent[i] = from->extent[i];
    if (from->kind == WIRE_OUTCOME_ERROR && wire_get_error(l, from->error, &to->error) < 0)
        return -EPROTO;
    struct wire_slice *slices = block_take(l->block, from->n_slices * sizeof *slices);
    to->slices = slices;
    for (size_t i = 0; i < from->n_slices; i++) {
        struct wire_slice measured;
        if (slice(l, from->slices[i], from->n_micro_batches, slices ? &slices[i] : &measured) < 0)
            return -EPROTO;
    }
    return 0;
}

static int get_abort(struct load *l, const PB(Abort) *from, struct wire_abort *to)
{
    *to = (struct wire_abort){.rank = from->rank, .replica = from->replica, .left = from->left, .step = from->step};
    if (wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_text(l, "job", from->job, to->job, sizeof to->job) < 0 ||
        wire_get_text(l, "group", from->group, to->group, sizeof to->group) < 0)
        return -EPROTO;
    return wire_get_error(l, from->error, &to->error);
}

static int beacon(struct load *l, const PB(Beacon) *from, struct wire_beacon *to)
{
    *to = (struct wire_beacon){
        .decided = from->decided,
        .n_plans = (uint32_t)(from->n_plan_id / 2),
        .n_missing = (uint32_t)from->n_missing,
        .missing_total = from->missing_total,
    };
    if (wire_get_id(l, "instance", from->instance, &to->instance) < 0 ||
        wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_few(l, "plan_id", from->n_plan_id, 2 * WIRE_WINDOW) < 0 ||
        wire_get_few(l, "missing", from->n_missing, WIRE_MAX_MISSING) < 0)
        return -EPROTO;
    if (from->n_plan_id % 2)
        return err_set(l->err, -EPROTO, "BEACON: plan_id has %zu values, not two a plan", from->n_plan_id);
    for (uint32_t i = 0; i < to->n_plans; i++)
        to->plan_id[i] = (struct wire_id){.hi = from->plan_id[2 * i], .lo = from->plan_id[2 * i + 1]};
    for (uint32_t i = 0; i < to->n_missing; i++)
        to->missing[i] = from->missing[i];
    return 0;
}

static int forming(struct load *l, const PB(Forming) *from, struct wire_forming *to)
{
    *to = (struct wire_forming){
        .uid = from->uid, .n_missing = (uint32_t)from->n_missing, .missing_total = from->missing_total};
    if (wire_get_text(l, "job", from->job, to->job, sizeof to->job) < 0 ||
        wire_get_text(l, "group", from->group, to->group, sizeof to->group) < 0 ||
        wire_get_few(l, "missing", from->n_missing, WIRE_MAX_MISSING) < 0)
        return -EPROTO;
    if (from->n_missing_replica != from->n_missing)
        return err_set(l->err, -EPROTO, "FORMING: missing has %zu values, missing_replica %zu", from->n_missing,
                       from->n_missing_replica);
    for (uint32_t i = 0; i < to->n_missing; i++) {
        to->missing[i] = from->missing[i];
        to->missing_replica[i] = from->missing_replica[i];
    }
    return 0;
}

static int heartbeat_epoch(struct load *l, const PB(HeartbeatEpoch) *from, struct wire_heartbeat_epoch *to)
{
    *to = (struct wire_heartbeat_epoch){.oldest_open = from->oldest_open, .n_missing = (uint32_t)from->n_missing};
    if (wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_few(l, "missing", from->n_missing, WIRE_MAX_MISSING) < 0)
        return -EPROTO;
    for (uint32_t i = 0; i < to->n_missing; i++)
        to->missing[i] = from->missing[i];
    return 0;
}

static int heartbeat(struct load *l, const PB(Heartbeat) *from, struct wire_heartbeat *to)
{
    if (wire_get_id(l, "instance", from->instance, &to->instance) < 0 ||
        wire_get_few(l, "epochs", from->n_epochs, WIRE_MAX_EPOCHS) < 0)
        return -EPROTO;
    to->n_epochs = (uint32_t)from->n_epochs;
    to->epochs = block_take(l->block, from->n_epochs * sizeof *to->epochs);
    for (size_t i = 0; i < from->n_epochs; i++) {
        struct wire_heartbeat_epoch measured;
        if (heartbeat_epoch(l, from->epochs[i], to->epochs ? &to->epochs[i] : &measured) < 0)
            return -EPROTO;
    }
    return 0;
}

int wire_load(struct block *block, const PB(Envelope) *from, struct wire_message *msg, struct poise_err *err)
{
    struct load load = {.block = block, .what = wire_type_name(msg->type), .err = err}, *l = &load;

    switch (msg->type) {
    case WIRE_HELLO:
        return hello(l, from->hello, msg);
    case WIRE_WELCOME:
        return welcome(l, from->welcome, msg);
    case WIRE_REFUSED:
        return refused(l, from->refused, msg);
    case WIRE_JOIN:
        return wire_get_join(l, from->join, &msg->join);
    case WIRE_META:
        return wire_get_metas(l, from->meta, msg);
    case WIRE_PULL:
        return ask(l, from->pull, msg);
    case WIRE_NEED:
        return ask(l, from->need, msg);
    case WIRE_LEAVE:
        return leave(l, from->leave, msg);
    case WIRE_REPORT:
        return report(l, from->report, &msg->report);
    case WIRE_ROSTER:
        return roster(l, from->roster, &msg->roster);
    case WIRE_OUTCOME:
        return outcome(l, from->outcome, &msg->outcome);
    case WIRE_ABORT:
        return get_abort(l, from->abort, &msg->abort);
    case WIRE_MODE:
        return mode(l, from->mode, msg);
    case WIRE_MEMBERS:
        return members(l, from->members, msg);
    case WIRE_HEARTBEAT:
        return heartbeat(l, from->heartbeat, &msg->heartbeat);
    case WIRE_UNKNOWN:
        return wire_get_id(l, "epoch", from->unknown->epoch, &msg->unknown.epoch);
    case WIRE_BEACON:
        return beacon(l, from->beacon, &msg->beacon);
    case WIRE_FORMING:
        return forming(l, from->forming, &msg->forming);
    case WIRE_N_TYPES:
        break;
    }
    return err_set(err, -EPROTO, "a message of type %d, which this side does not know", (int)msg->type);
}
