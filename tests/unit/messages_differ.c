/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two messages member by member: comparing their encodings would not see what encoding loses. */
#include "messages.h"

#include <string.h>

/* Each returns from the caller with the member's name. */
#define SAME(member)                                                                                                   \
    do {                                                                                                               \
        if (a->member != b->member)                                                                                    \
            return #member;                                                                                            \
    } while (0)
#define SAME_ID(member)                                                                                                \
    do {                                                                                                               \
        if (!wire_id_is(a->member, b->member))                                                                         \
            return #member;                                                                                            \
    } while (0)
#define SAME_TEXT(member)                                                                                              \
    do {                                                                                                               \
        if (strcmp(a->member, b->member) != 0)                                                                         \
            return #member;                                                                                            \
    } while (0)
#define SAME_INCARNATION(member)                                                                                       \
    do {                                                                                                               \
        if (wire_incarnation_compare(&a->member, &b->member) != 0)                                                     \
            return #member;                                                                                            \
    } while (0)
/* Both there or not, where it could be; and equal. */
#define SAME_ARRAY(member, n)                                                                                          \
    do {                                                                                                               \
        if ((n) > 0 &&                                                                                                 \
            (!a->member != !b->member || (a->member && memcmp(a->member, b->member, (n) * sizeof *a->member) != 0)))   \
            return #member;                                                                                            \
    } while (0)
#define SAME_PART(expression)                                                                                          \
    do {                                                                                                               \
        const char *name = (expression);                                                                               \
        if (name)                                                                                                      \
            return name;                                                                                               \
    } while (0)

static const char *differ_error(const struct poise_err *a, const struct poise_err *b)
{
    SAME(code);
    SAME(rank);
    SAME(sample);
    SAME(step);
    SAME_TEXT(field);
    SAME_TEXT(text);
    return NULL;
}

static const char *differ_field(const struct wire_field *a, const struct wire_field *b)
{
    SAME_TEXT(name);
    SAME(dtype);
    SAME(assembly);
    SAME(n_dims);
    SAME(axis);
    SAME_ARRAY(shape, (size_t)POISE_MAX_DIMS);
    SAME_ARRAY(axis_name, (size_t)POISE_MAX_DIMS);
    SAME(pad_side);
    SAME(pad_scope);
    SAME(pad_multiple);
    SAME(n_divisors);
    SAME(pad_to);
    SAME(pad_bits);
    SAME_TEXT(rows_of);
    SAME_ARRAY(divisor, (size_t)POISE_MAX_DIMS);
    return NULL;
}

static const char *differ_table(const struct wire_table *a, const struct wire_table *b)
{
    if (!a != !b)
        return "table";
    if (!a)
        return NULL;
    SAME(n_fields);
    for (uint32_t i = 0; i < a->n_fields; i++)
        SAME_PART(differ_field(&a->fields[i], &b->fields[i]));
    return NULL;
}

static const char *differ_join(const struct wire_join *a, const struct wire_join *b)
{
    SAME_TEXT(job);
    SAME_TEXT(group);
    SAME(rank);
    SAME(n_ranks);
    SAME(replica);
    SAME(n_replicas);
    SAME_INCARNATION(incarnation);
    SAME_ID(epoch);
    SAME(first_step);
    SAME(wire_version);
    SAME(planner_version);
    SAME(sync_set);
    SAME(pid);
    SAME(uid);
    SAME_TEXT(host);
    SAME_TEXT(coordinators);
    SAME_TEXT(payload);
    SAME_PART(memcmp(a->payload_key, b->payload_key, WIRE_KEY_BYTES) ? "payload_key" : NULL);
    SAME(n_options);
    for (uint32_t i = 0; i < a->n_options; i++) {
        SAME_TEXT(options[i].key);
        SAME_TEXT(options[i].value);
    }
    return NULL;
}

static const char *differ_meta(const struct wire_meta *a, const struct wire_meta *b)
{
    const size_t n = a->n_samples;

    SAME_ID(epoch);
    SAME(step);
    SAME(rank);
    SAME(replica);
    SAME_INCARNATION(incarnation);
    SAME(kind);
    SAME(mode);
    SAME(speed_ppm);
    SAME_ID(digest);
    SAME_ID(table_hash);
    SAME_PART(differ_table(a->table, b->table));
    SAME(n_samples);
    SAME(n_phases);
    SAME(n_extents);
    SAME(has_columns);
    SAME(node);
    SAME(sync_set);
    SAME_ARRAY(tag, n);
    SAME_ARRAY(bytes, n);
    SAME_ARRAY(packed_bytes, n);
    SAME_ARRAY(loss_tokens, n);
    SAME_ARRAY(micro_batch, n);
    SAME_ARRAY(unit, n);
    SAME_ARRAY(unit_layout, n);
    SAME_ARRAY(length, n * a->n_phases);
    SAME_ARRAY(attention, n * a->n_phases);
    SAME_ARRAY(extent, n * a->n_extents);
    return differ_error(&a->error, &b->error);
}

static const char *differ_report(const struct wire_report *a, const struct wire_report *b)
{
    SAME_ID(epoch);
    SAME(rank);
    SAME(replica);
    SAME(step);
    SAME(submitted);
    SAME(waiting);
    SAME(compute_ns);
    SAME(report_step);
    SAME(pipeline_ns);
    SAME(exposed_ns);
    SAME(arena_bytes);
    SAME(budget_bytes);
    SAME(samples_in);
    SAME(samples_out);
    SAME(samples_dropped);
    SAME(samples_verified);
    SAME(samples_corrupt);
    return NULL;
}

static const char *differ_roster(const struct wire_roster *a, const struct wire_roster *b)
{
    SAME_ID(epoch);
    SAME_TEXT(job);
    SAME_TEXT(group);
    SAME(uid);
    SAME(n_ranks);
    SAME(n_replicas);
    SAME(n_nodes);
    SAME(first_step);
    SAME(n_members);
    for (uint32_t i = 0; i < a->n_members; i++) {
        SAME(members[i].rank);
        SAME(members[i].replica);
        SAME(members[i].node);
        SAME(members[i].pid);
        SAME_INCARNATION(members[i].incarnation);
        SAME_TEXT(members[i].host);
        SAME_TEXT(members[i].payload);
    }
    SAME_ARRAY(payload_key, (size_t)32);
    SAME(n_listens);
    for (uint32_t i = 0; i < a->n_listens; i++) {
        SAME(listens[i].node);
        SAME_TEXT(listens[i].endpoint);
    }
    return NULL;
}

static const char *differ_slice(const struct wire_slice *a, const struct wire_slice *b, uint32_t n_micro_batches)
{
    SAME(rank);
    SAME(n_in);
    SAME(n_out);
    SAME_ARRAY(in_rank, a->n_in);
    SAME_ARRAY(in_index, a->n_in);
    SAME_ARRAY(in_bytes, a->n_in);
    SAME_ARRAY(count, n_micro_batches);
    SAME_ARRAY(out_rank, a->n_out);
    SAME_ARRAY(out_micro_batch, a->n_out);
    SAME_ARRAY(out_row, a->n_out);
    SAME_ARRAY(out_place, a->n_out);
    return NULL;
}

static const char *differ_outcome(const struct wire_outcome *a, const struct wire_outcome *b)
{
    SAME_ID(epoch);
    SAME(step);
    SAME(kind);
    SAME_ID(plan_id);
    SAME(n_micro_batches);
    if (memcmp(&a->totals, &b->totals, sizeof a->totals) != 0) /* has no padding */
        return "totals";
    SAME_ID(table_hash);
    SAME_PART(differ_table(a->table, b->table));
    SAME(n_extents);
    SAME_ARRAY(extent, (size_t)POISE_MAX_EXTENTS);
    SAME_PART(differ_error(&a->error, &b->error));
    SAME(n_slices);
    for (uint32_t i = 0; i < a->n_slices; i++)
        SAME_PART(differ_slice(&a->slices[i], &b->slices[i], a->n_micro_batches));
    return NULL;
}

static const char *differ_abort(const struct wire_abort *a, const struct wire_abort *b)
{
    SAME_ID(epoch);
    SAME_TEXT(job);
    SAME_TEXT(group);
    SAME(rank);
    SAME(replica);
    SAME(left);
    SAME(step);
    return differ_error(&a->error, &b->error);
}

static const char *differ_heartbeat(const struct wire_heartbeat *a, const struct wire_heartbeat *b)
{
    SAME_ID(instance);
    SAME(n_epochs);
    for (uint32_t i = 0; i < a->n_epochs; i++) {
        SAME_ID(epochs[i].epoch);
        SAME(epochs[i].oldest_open);
        SAME(epochs[i].n_missing);
        SAME_ARRAY(epochs[i].missing, (size_t)16);
    }
    return NULL;
}

static const char *differ_beacon(const struct wire_beacon *a, const struct wire_beacon *b)
{
    SAME_ID(instance);
    SAME_ID(epoch);
    SAME(decided);
    SAME(n_plans);
    SAME_ARRAY(plan_id, (size_t)WIRE_WINDOW);
    SAME(n_missing);
    SAME_ARRAY(missing, (size_t)16);
    SAME(missing_total);
    return NULL;
}

static const char *differ_forming(const struct wire_forming *a, const struct wire_forming *b)
{
    SAME_TEXT(job);
    SAME_TEXT(group);
    SAME(uid);
    SAME(n_missing);
    SAME_ARRAY(missing, (size_t)16);
    SAME_ARRAY(missing_replica, (size_t)16);
    SAME(missing_total);
    return NULL;
}

static const char *differ_refused(const struct wire_message *a, const struct wire_message *b)
{
    SAME_TEXT(refused.who.job);
    SAME_TEXT(refused.who.group);
    SAME(refused.who.rank);
    SAME(refused.who.replica);
    SAME_INCARNATION(refused.who.incarnation);
    return differ_error(&a->refused.error, &b->refused.error);
}

static const char *differ_metas(const struct wire_message *a, const struct wire_message *b)
{
    SAME(meta.n_metas);
    for (uint32_t i = 0; i < a->meta.n_metas; i++)
        SAME_PART(differ_meta(&a->meta.metas[i], &b->meta.metas[i]));
    return NULL;
}

static const char *differ_members(const struct wire_message *a, const struct wire_message *b)
{
    SAME_ID(members.instance);
    SAME_TEXT(members.name);
    SAME_TEXT(members.listen);
    SAME(members.n_joins);
    for (uint32_t i = 0; i < a->members.n_joins; i++)
        SAME_PART(differ_join(&a->members.joins[i], &b->members.joins[i]));
    return NULL;
}

static const char *differ_small(const struct wire_message *a, const struct wire_message *b)
{
    switch (a->type) {
    case WIRE_HELLO:
        SAME(hello.wire_version);
        SAME_ID(hello.token);
        break;
    case WIRE_WELCOME:
        SAME(welcome.wire_version);
        SAME_ID(welcome.instance);
        SAME(welcome.mode);
        break;
    case WIRE_PULL:
    case WIRE_NEED:
        SAME_ID(ask.epoch);
        SAME(ask.step);
        SAME(ask.want_table);
        break;
    case WIRE_LEAVE:
        SAME_ID(leave.epoch);
        SAME(leave.submitted);
        SAME(leave.ended);
        break;
    case WIRE_MODE:
        SAME_ID(mode.epoch);
        SAME(mode.mode);
        break;
    case WIRE_UNKNOWN:
        SAME_ID(unknown.epoch);
        break;
    default:
        return "a type that is not compared";
    }
    return NULL;
}

const char *message_differ(const struct wire_message *a, const struct wire_message *b)
{
    SAME(type);
    switch (a->type) {
    case WIRE_REFUSED:
        return differ_refused(a, b);
    case WIRE_JOIN:
        return differ_join(&a->join, &b->join);
    case WIRE_META:
        return differ_metas(a, b);
    case WIRE_REPORT:
        return differ_report(&a->report, &b->report);
    case WIRE_ROSTER:
        return differ_roster(&a->roster, &b->roster);
    case WIRE_OUTCOME:
        return differ_outcome(&a->outcome, &b->outcome);
    case WIRE_ABORT:
        return differ_abort(&a->abort, &b->abort);
    case WIRE_MEMBERS:
        return differ_members(a, b);
    case WIRE_HEARTBEAT:
        return differ_heartbeat(&a->heartbeat, &b->heartbeat);
    case WIRE_BEACON:
        return differ_beacon(&a->beacon, &b->beacon);
    case WIRE_FORMING:
        return differ_forming(&a->forming, &b->forming);
    default:
        return differ_small(a, b);
    }
}
