/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rule of a message's values, once, for what goes out and for what came in: what this side encodes, the other
 * side accepts. Deeper rules have their own places: field tables schema.c, options options.c, sums of costs the
 * planner.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"

struct check {
    int code;
    struct poise_err *err;
    char where[80]; /* "META of rank 3, step 17" */
};

static int at_most(const struct check *c, const char *name, uint64_t value, uint64_t max)
{
    if (value <= max)
        return 0;
    return err_set(c->err, c->code, "%s: %s is %" PRIu64 ", at most %" PRIu64, c->where, name, value, max);
}

/* An array that is there if its count is not 0; always so in a decoded message. */
static int there(const struct check *c, const char *name, uint64_t n, const void *array)
{
    if (n == 0 || array)
        return 0;
    return err_set(c->err, c->code, "%s: %s is missing where %" PRIu64 " of them are counted", c->where, name, n);
}

static int values_at_most(const struct check *c, const char *name, const uint32_t *values, size_t n, uint32_t max)
{
    for (size_t i = 0; i < n; i++)
        if (values[i] > max)
            return err_set(c->err, c->code, "%s: %s[%zu] is %u, at most %u", c->where, name, i, values[i], max);
    return 0;
}

static int check_text(const struct check *c, const char *name, const char *text, size_t size)
{
    size_t n = strnlen(text, size);

    if (n == size)
        return err_set(c->err, c->code, "%s: %s has %zu bytes or more, at most %zu", c->where, name, size, size - 1);
    if (!wire_text_valid(text, n))
        return err_set(c->err, c->code, "%s: %s is not valid UTF-8", c->where, name);
    return 0;
}

static int check_mode(const struct check *c, uint32_t mode)
{
    return at_most(c, "mode", mode, POISE_MODE_OFF);
}

static int check_rank(const struct check *c, uint32_t rank, uint32_t replica)
{
    if (at_most(c, "rank", rank, WIRE_MAX_RANKS - 1) < 0 || at_most(c, "replica", replica, WIRE_MAX_REPLICAS - 1) < 0)
        return c->code;
    return 0;
}

static int check_rank_or_none(const struct check *c, uint32_t rank, uint32_t replica)
{
    return check_rank(c, rank == POISE_NONE ? 0 : rank, replica == POISE_NONE ? 0 : replica);
}

/* The texts of an error are mended when it is encoded (encode_parts.c); at the other end they must be valid. */
static int check_error(const struct check *c, const struct poise_err *error)
{
    if (error->code > 0 || error->code < -4095)
        return err_set(c->err, c->code, "%s: error.code is %d, not a negative errno", c->where, error->code);
    if (c->code == -EPROTO && (check_text(c, "error.field", error->field, sizeof error->field) < 0 ||
                               check_text(c, "error.text", error->text, sizeof error->text) < 0))
        return c->code;
    return 0;
}

static int check_group(const struct check *c, const char *job, const char *group)
{
    if (check_text(c, "job", job, WIRE_JOB_BYTES) < 0 || check_text(c, "group", group, POISE_MAX_NAME) < 0)
        return c->code;
    return 0;
}

/* n x m is bounded as a whole: members are allocated by it. */
static int check_size(const struct check *c, uint32_t n_ranks, uint32_t n_replicas)
{
    if (n_ranks == 0 || n_replicas == 0)
        return err_set(c->err, c->code, "%s: a group of %u ranks of %u replicas", c->where, n_ranks, n_replicas);
    if (at_most(c, "n_ranks", n_ranks, WIRE_MAX_RANKS) < 0 ||
        at_most(c, "n_replicas", n_replicas, WIRE_MAX_REPLICAS) < 0)
        return c->code;
    return at_most(c, "n_ranks x n_replicas", (uint64_t)n_ranks * n_replicas, WIRE_MAX_RANKS);
}

/* ----------------------------------------------------------------------------------------------------------- tables */

static int check_axes(const struct check *c, const struct wire_field *field)
{
    if (at_most(c, "n_dims", field->n_dims, POISE_MAX_DIMS - 1) < 0 ||
        at_most(c, "n_divisors", field->n_divisors, POISE_MAX_DIMS) < 0)
        return c->code;
    for (uint32_t i = 0; i < field->n_dims; i++) {
        if (field->shape[i] < -1)
            return err_set(c->err, c->code, "%s: shape[%u] is %" PRId64 ", at least -1", c->where, i, field->shape[i]);
        if (check_text(c, "axis_name", field->axis_name[i], POISE_MAX_NAME) < 0)
            return c->code;
    }
    if (field->assembly == POISE_CONCAT && field->axis >= field->n_dims)
        return err_set(c->err, c->code, "%s: axis is %u with %u dimensions", c->where, field->axis, field->n_dims);
    return at_most(c, "axis", field->axis, field->n_dims);
}

static int check_field(struct check *c, const struct wire_field *field)
{
    if (check_text(c, "field name", field->name, sizeof field->name) < 0)
        return c->code;
    if (!field->name[0])
        return err_set(c->err, c->code, "%s: a field without a name", c->where);
    /* From here on the field is part of where. */
    snprintf(c->where, sizeof c->where, "field %s", field->name);
    if (at_most(c, "dtype", field->dtype, POISE_N_DTYPES - 1) < 0 ||
        at_most(c, "assembly", field->assembly, POISE_OPAQUE) < 0 ||
        at_most(c, "pad_side", field->pad_side, POISE_PAD_LEFT) < 0 ||
        at_most(c, "pad_scope", field->pad_scope, POISE_PAD_FIXED) < 0 ||
        check_text(c, "rows_of", field->rows_of, sizeof field->rows_of) < 0)
        return c->code;
    return check_axes(c, field);
}

static int check_table(const struct check *c, const struct wire_table *table)
{
    if (!table)
        return 0;
    if (at_most(c, "n_fields", table->n_fields, POISE_MAX_FIELDS) < 0 ||
        there(c, "fields", table->n_fields, table->fields) < 0)
        return c->code;
    for (uint32_t i = 0; i < table->n_fields; i++) {
        struct check inner = *c;
        if (check_field(&inner, &table->fields[i]) < 0)
            return c->code;
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------- process and its node */

static int check_options(const struct check *c, const struct wire_join *join)
{
    if (at_most(c, "n_options", join->n_options, WIRE_MAX_OPTIONS) < 0 ||
        there(c, "options", join->n_options, join->options) < 0)
        return c->code;
    for (uint32_t i = 0; i < join->n_options; i++) {
        const struct wire_option *option = &join->options[i];
        if (there(c, "option key", 1, option->key) < 0 || there(c, "option value", 1, option->value) < 0 ||
            check_text(c, "option key", option->key, POISE_MAX_NAME) < 0 ||
            check_text(c, "option value", option->value, WIRE_MAX_OPTION_BYTES) < 0)
            return c->code;
        if (i > 0 && strcmp(join->options[i - 1].key, option->key) >= 0)
            return err_set(c->err, c->code, "%s: options are not sorted: %s after %s", c->where, option->key,
                           join->options[i - 1].key);
    }
    return 0;
}

/* "tcp://ADDR:PORT" or nothing, whoever wrote it: it goes to zmq_connect() of every rank. */
static int check_payload(const struct check *c, const char *text, size_t size)
{
    const char *colon, *port;

    if (check_text(c, "payload", text, size) < 0)
        return c->code;
    if (!text[0])
        return 0;
    colon = strrchr(text, ':');
    port = colon ? colon + 1 : "";
    if (strncmp(text, "tcp://", 6) != 0 || colon < text + 7 || strpbrk(text, "*;, \t\n") || *port < '1' || *port > '9' ||
        strlen(port) > 5 || strspn(port, "0123456789") != strlen(port) || strtoul(port, NULL, 10) > 65535)
        return err_set(c->err, c->code, "%s: payload is %s, not tcp://ADDRESS:PORT", c->where, text);
    return 0;
}

static int check_join(const struct check *c, const struct wire_join *join)
{
    if (check_group(c, join->job, join->group) < 0 || check_size(c, join->n_ranks, join->n_replicas) < 0)
        return c->code;
    if (join->rank >= join->n_ranks || join->replica >= join->n_replicas)
        return err_set(c->err, c->code, "%s: rank %u of %u, replica %u of %u: counted from 0", c->where, join->rank,
                       join->n_ranks, join->replica, join->n_replicas);
    if (check_text(c, "host", join->host, sizeof join->host) < 0 ||
        (join->coordinators && check_text(c, "coordinators", join->coordinators, WIRE_MAX_COORDINATOR_BYTES) < 0) ||
        check_payload(c, join->payload, sizeof join->payload) < 0)
        return c->code;
    return check_options(c, join);
}

static int columns_there(const struct check *c, const struct wire_meta *meta)
{
    const size_t n = meta->n_samples;

    if (there(c, "bytes", n, meta->bytes) < 0 || there(c, "loss_tokens", n, meta->loss_tokens) < 0 ||
        there(c, "length", n * meta->n_phases, meta->length) < 0 ||
        there(c, "extent", n * meta->n_extents, meta->extent) < 0)
        return c->code;
    return 0;
}

static int check_columns(const struct check *c, const struct wire_meta *meta)
{
    const size_t n = meta->n_samples;
    uint64_t sum = 0;

    if (columns_there(c, meta) < 0)
        return c->code;
    for (size_t i = 0; i < n; i++) {
        if (__builtin_add_overflow(sum, meta->bytes[i], &sum))
            return err_set(c->err, c->code, "%s: bytes[%zu] is %" PRIu64 ": their sum does not fit 64 bits", c->where,
                           i, meta->bytes[i]);
        if (meta->packed_bytes && meta->packed_bytes[i] > meta->bytes[i])
            return err_set(c->err, c->code, "%s: packed_bytes[%zu] is %" PRIu64 " of %" PRIu64 " bytes", c->where, i,
                           meta->packed_bytes[i], meta->bytes[i]);
        if (meta->unit_layout && meta->unit_layout[i] > POISE_UNIT_TRANSPOSED)
            return err_set(c->err, c->code, "%s: unit_layout[%zu] is %u, at most %u", c->where, i, meta->unit_layout[i],
                           POISE_UNIT_TRANSPOSED);
    }
    return meta->micro_batch ? values_at_most(c, "micro_batch", meta->micro_batch, n, WIRE_MAX_SAMPLES - 1) : 0;
}

static int check_meta(struct check *c, const struct wire_meta *meta)
{
    snprintf(c->where, sizeof c->where, "META of rank %u, step %" PRIu64, meta->rank, meta->step);
    if (check_rank(c, meta->rank, meta->replica) < 0 || at_most(c, "kind", meta->kind, WIRE_META_BAD) < 0 ||
        check_mode(c, meta->mode) < 0 || at_most(c, "n_samples", meta->n_samples, WIRE_MAX_SAMPLES) < 0 ||
        at_most(c, "n_phases", meta->n_phases, POISE_MAX_PHASES) < 0 ||
        at_most(c, "n_extents", meta->n_extents, POISE_MAX_EXTENTS) < 0 || check_table(c, meta->table) < 0)
        return c->code;
    if (meta->kind == WIRE_META_BAD && check_error(c, &meta->error) < 0)
        return c->code;
    return meta->has_columns ? check_columns(c, meta) : 0;
}

static int check_metas(const struct check *c, const struct wire_message *msg)
{
    if (at_most(c, "n_metas", msg->meta.n_metas, WIRE_MAX_RANKS) < 0 ||
        there(c, "metas", msg->meta.n_metas, msg->meta.metas) < 0)
        return c->code;
    for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
        struct check inner = *c;
        if (check_meta(&inner, &msg->meta.metas[i]) < 0)
            return c->code;
    }
    return 0;
}

static int check_refused(const struct check *c, const struct wire_join_name *who, const struct poise_err *error)
{
    if (check_group(c, who->job, who->group) < 0 || check_rank_or_none(c, who->rank, who->replica) < 0)
        return c->code;
    return check_error(c, error);
}

static int check_report(const struct check *c, const struct wire_report *report)
{
    return check_rank(c, report->rank, report->replica) < 0 ? c->code
                                                            : at_most(c, "waiting", report->waiting, WIRE_WAIT_TRAINER);
}

/* --------------------------------------------------------------------------------------------- coordinator and node */

static int check_member(const struct check *c, const struct wire_roster *roster, uint32_t i)
{
    const struct wire_member *member = &roster->members[i];

    if (member->rank != i / roster->n_replicas || member->replica != i % roster->n_replicas)
        return err_set(c->err, c->code, "%s: member %u is rank %u, replica %u: not ordered", c->where, i, member->rank,
                       member->replica);
    if (member->node >= roster->n_nodes)
        return err_set(c->err, c->code, "%s: rank %u is on node %u of %u", c->where, member->rank, member->node,
                       roster->n_nodes);
    if (check_payload(c, member->payload, sizeof member->payload) < 0)
        return c->code;
    return check_text(c, "host", member->host, sizeof member->host);
}

/* What an endpoint is, is for who connects to it to say. */
static int check_listens(const struct check *c, const struct wire_roster *roster)
{
    if (at_most(c, "n_listens", roster->n_listens, WIRE_MAX_LISTENS) < 0 ||
        there(c, "listens", roster->n_listens, roster->listens) < 0)
        return c->code;
    for (uint32_t i = 0; i < roster->n_listens; i++) {
        const struct wire_listen *one = &roster->listens[i];

        if (one->node >= roster->n_nodes || (i > 0 && one->node <= roster->listens[i - 1].node) || !one->endpoint[0])
            return err_set(c->err, c->code, "%s: listens[%u] is \"%.100s\" of node %u of %u: not ascending, or nothing",
                           c->where, i, one->endpoint, one->node, roster->n_nodes);
        if (check_text(c, "listens", one->endpoint, sizeof one->endpoint) < 0)
            return c->code;
    }
    return 0;
}

static int check_roster(const struct check *c, const struct wire_roster *roster)
{
    if (check_group(c, roster->job, roster->group) < 0 || check_size(c, roster->n_ranks, roster->n_replicas) < 0 ||
        there(c, "members", roster->n_members, roster->members) < 0)
        return c->code;
    if (roster->n_members != roster->n_ranks * roster->n_replicas)
        return err_set(c->err, c->code, "%s: %u members for %u ranks of %u replicas", c->where, roster->n_members,
                       roster->n_ranks, roster->n_replicas);
    for (uint32_t i = 0; i < roster->n_members; i++)
        if (check_member(c, roster, i) < 0)
            return c->code;
    return check_listens(c, roster);
}

static int slice_there(const struct check *c, const struct wire_slice *slice, uint32_t n_micro_batches)
{
    if (there(c, "in_rank", slice->n_in, slice->in_rank) < 0 ||
        there(c, "in_index", slice->n_in, slice->in_index) < 0 ||
        there(c, "in_bytes", slice->n_in, slice->in_bytes) < 0 ||
        there(c, "count", n_micro_batches, slice->count) < 0 ||
        there(c, "out_rank", slice->n_out, slice->out_rank) < 0 ||
        there(c, "out_micro_batch", slice->n_out, slice->out_micro_batch) < 0 ||
        there(c, "out_row", slice->n_out, slice->out_row) < 0 ||
        there(c, "out_place", slice->n_out, slice->out_place) < 0)
        return c->code;
    return 0;
}

static int check_slice(struct check *c, const struct wire_slice *slice, uint32_t n_micro_batches)
{
    const uint32_t n_in = slice->n_in, n_out = slice->n_out;
    uint64_t sum = 0;

    snprintf(c->where + strlen(c->where), sizeof c->where - strlen(c->where), ", slice of rank %u", slice->rank);
    if (at_most(c, "rank", slice->rank, WIRE_MAX_RANKS - 1) < 0 || at_most(c, "n_in", n_in, WIRE_MAX_SAMPLES) < 0 ||
        at_most(c, "n_out", n_out, WIRE_MAX_SAMPLES) < 0 || slice_there(c, slice, n_micro_batches) < 0)
        return c->code;
    for (uint32_t i = 0; i < n_micro_batches; i++)
        sum += slice->count[i];
    if (sum != n_in)
        return err_set(c->err, c->code, "%s: counts of micro-batches add up to %" PRIu64 ", not %u", c->where, sum,
                       n_in);
    if (n_out > 0 && n_micro_batches == 0)
        return err_set(c->err, c->code, "%s: %u samples go into no micro-batch", c->where, n_out);
    if (values_at_most(c, "in_rank", slice->in_rank, n_in, WIRE_MAX_RANKS - 1) < 0 ||
        values_at_most(c, "in_index", slice->in_index, n_in, WIRE_MAX_SAMPLES - 1) < 0 ||
        values_at_most(c, "out_rank", slice->out_rank, n_out, WIRE_MAX_RANKS - 1) < 0 ||
        values_at_most(c, "out_micro_batch", slice->out_micro_batch, n_out, n_micro_batches - 1) < 0 ||
        values_at_most(c, "out_row", slice->out_row, n_out, WIRE_MAX_SAMPLES - 1) < 0 ||
        values_at_most(c, "out_place", slice->out_place, n_out, WIRE_MAX_SAMPLES - 1) < 0)
        return c->code;
    return 0;
}

static int check_outcome(struct check *c, const struct wire_outcome *outcome)
{
    snprintf(c->where, sizeof c->where, "OUTCOME of step %" PRIu64, outcome->step);
    if (at_most(c, "kind", outcome->kind, WIRE_OUTCOME_END) < 0 || check_mode(c, outcome->totals.mode) < 0 ||
        at_most(c, "n_micro_batches", outcome->n_micro_batches, WIRE_MAX_SAMPLES) < 0 ||
        at_most(c, "n_extents", outcome->n_extents, POISE_MAX_EXTENTS) < 0 || check_table(c, outcome->table) < 0 ||
        at_most(c, "n_slices", outcome->n_slices, WIRE_MAX_RANKS) < 0 ||
        there(c, "slices", outcome->n_slices, outcome->slices) < 0)
        return c->code;
    for (uint32_t i = 0; i < outcome->n_slices; i++) {
        struct check inner = *c;
        if (check_slice(&inner, &outcome->slices[i], outcome->n_micro_batches) < 0)
            return c->code;
    }
    return outcome->kind == WIRE_OUTCOME_ERROR ? check_error(c, &outcome->error) : 0;
}

static int check_abort(const struct check *c, const struct wire_abort *about)
{
    if (check_group(c, about->job, about->group) < 0 || check_rank_or_none(c, about->rank, about->replica) < 0)
        return c->code;
    return check_error(c, &about->error);
}

static int check_members(const struct check *c, const struct wire_message *msg)
{
    if (check_text(c, "name", msg->members.name, sizeof msg->members.name) < 0 ||
        check_text(c, "listen", msg->members.listen, sizeof msg->members.listen) < 0 ||
        at_most(c, "n_joins", msg->members.n_joins, WIRE_MAX_RANKS) < 0 ||
        there(c, "joins", msg->members.n_joins, msg->members.joins) < 0)
        return c->code;
    for (uint32_t i = 0; i < msg->members.n_joins; i++)
        if (check_join(c, &msg->members.joins[i]) < 0)
            return c->code;
    return 0;
}

static int check_beacon(const struct check *c, const struct wire_beacon *beacon)
{
    if (at_most(c, "n_plans", beacon->n_plans, WIRE_WINDOW) < 0 ||
        at_most(c, "n_missing", beacon->n_missing, WIRE_MAX_MISSING) < 0)
        return c->code;
    return values_at_most(c, "missing", beacon->missing, beacon->n_missing, WIRE_MAX_RANKS - 1);
}

static int check_forming(const struct check *c, const struct wire_forming *forming)
{
    if (check_group(c, forming->job, forming->group) < 0 ||
        at_most(c, "n_missing", forming->n_missing, WIRE_MAX_MISSING) < 0 ||
        values_at_most(c, "missing", forming->missing, forming->n_missing, WIRE_MAX_RANKS - 1) < 0)
        return c->code;
    return values_at_most(c, "missing_replica", forming->missing_replica, forming->n_missing, WIRE_MAX_REPLICAS - 1);
}

static int check_heartbeat(const struct check *c, const struct wire_heartbeat *heartbeat)
{
    if (at_most(c, "n_epochs", heartbeat->n_epochs, WIRE_MAX_EPOCHS) < 0 ||
        there(c, "epochs", heartbeat->n_epochs, heartbeat->epochs) < 0)
        return c->code;
    for (uint32_t i = 0; i < heartbeat->n_epochs; i++) {
        const struct wire_heartbeat_epoch *epoch = &heartbeat->epochs[i];
        if (at_most(c, "n_missing", epoch->n_missing, WIRE_MAX_MISSING) < 0 ||
            values_at_most(c, "missing", epoch->missing, epoch->n_missing, WIRE_MAX_RANKS - 1) < 0)
            return c->code;
    }
    return 0;
}

int wire_check(const struct wire_message *msg, int code, struct poise_err *err)
{
    struct check check = {.code = code, .err = err}, *c = &check;

    snprintf(c->where, sizeof c->where, "%s", wire_type_name(msg->type));
    switch (msg->type) {
    case WIRE_HELLO:
    case WIRE_PULL:
    case WIRE_NEED:
    case WIRE_LEAVE:
    case WIRE_UNKNOWN:
        return 0;
    case WIRE_WELCOME:
        return check_mode(c, msg->welcome.mode);
    case WIRE_REFUSED:
        return check_refused(c, &msg->refused.who, &msg->refused.error);
    case WIRE_JOIN:
        return check_join(c, &msg->join);
    case WIRE_META:
        return check_metas(c, msg);
    case WIRE_REPORT:
        return check_report(c, &msg->report);
    case WIRE_ROSTER:
        return check_roster(c, &msg->roster);
    case WIRE_OUTCOME:
        return check_outcome(c, &msg->outcome);
    case WIRE_ABORT:
        return check_abort(c, &msg->abort);
    case WIRE_MODE:
        return check_mode(c, msg->mode.mode);
    case WIRE_MEMBERS:
        return check_members(c, msg);
    case WIRE_HEARTBEAT:
        return check_heartbeat(c, &msg->heartbeat);
    case WIRE_BEACON:
        return check_beacon(c, &msg->beacon);
    case WIRE_FORMING:
        return check_forming(c, &msg->forming);
    case WIRE_N_TYPES:
        break;
    }
    return err_set(err, code, "a message of type %d, which does not exist", (int)msg->type);
}
