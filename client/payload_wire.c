/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header is written and read member by member at fixed places, so that neither padding nor byte order of a struct
 * is on the wire. What comes in is checked here once: sizes against counts, counts against bounds, entries against the
 * field table and the plan, as directory.c does it for memory that a peer can write.
 */
#include "client/payload_wire.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/planner/err.h"

#define MAGIC 0x79617070u /* "ppay" */

enum place { /* of the header's members */
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_TYPE = 6,
    AT_REQUEST = 8,
    AT_COUNT = 12,
    AT_EPOCH = 16,
    AT_STEP = 32,
    AT_PLAN = 40,
    AT_TABLE = 56,
    AT_RANK = 72,
    AT_REPLICA = 76,
    AT_ATTEMPT = 80,
    AT_CODE = 84,
    AT_OPENED = 88,
    AT_RANDOM = 96,
    AT_BYTES = 104
};

static void put16(unsigned char *to, uint16_t value)
{
    value = htole16(value);
    memcpy(to, &value, sizeof value);
}

static void put32(unsigned char *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof value);
}

static void put64(unsigned char *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof value);
}

static void put_id(unsigned char *to, struct wire_id id)
{
    put64(to, id.hi);
    put64(to + 8, id.lo);
}

static uint16_t get16(const unsigned char *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return le16toh(value);
}

static uint32_t get32(const unsigned char *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return le32toh(value);
}

static uint64_t get64(const unsigned char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return le64toh(value);
}

static struct wire_id get_id(const unsigned char *from)
{
    return (struct wire_id){.hi = get64(from), .lo = get64(from + 8)};
}

const char *payload_type_name(uint32_t type)
{
    static const char *const names[PAYLOAD_N_TYPES] = {
        [PAYLOAD_HELLO] = "HELLO",       [PAYLOAD_WELCOME] = "WELCOME",       [PAYLOAD_ASK_ENTRIES] = "ASK_ENTRIES",
        [PAYLOAD_ENTRIES] = "ENTRIES",   [PAYLOAD_ASK_DATA] = "ASK_DATA",     [PAYLOAD_DATA] = "DATA",
        [PAYLOAD_DONE] = "DONE",         [PAYLOAD_DONE_HEARD] = "DONE_HEARD", [PAYLOAD_REFUSED] = "REFUSED",
    };

    return type < PAYLOAD_N_TYPES && names[type] ? names[type] : "?";
}

const char *payload_refusal_text(uint32_t code)
{
    static const char *const texts[PAYLOAD_N_REFUSALS] = {
        [PAYLOAD_NOT_YET] = "ask again later",
        [PAYLOAD_OVER] = "its epoch is over",
        [PAYLOAD_STRANGER] = "it does not know who asks",
        [PAYLOAD_STALE] = "the step is over",
        [PAYLOAD_OTHER_PLAN] = "the step has another plan",
        [PAYLOAD_NOT_YOURS] = "the plan gives the sample to another rank",
        [PAYLOAD_MALFORMED] = "the message is malformed",
    };

    return code < PAYLOAD_N_REFUSALS && texts[code] ? texts[code] : "no reason";
}

/* ----------------------------------------------------------------------------------------------------------- header */

size_t payload_wire_bytes(const struct payload_message *msg)
{
    return PAYLOAD_HEADER_BYTES + msg->n_item_bytes;
}

void payload_wire_encode(const struct payload_message *msg, unsigned char *room)
{
    put32(room + AT_MAGIC, MAGIC);
    put16(room + AT_VERSION, PAYLOAD_VERSION);
    put16(room + AT_TYPE, (uint16_t)msg->type);
    put32(room + AT_REQUEST, msg->request);
    put32(room + AT_COUNT, msg->count);
    put_id(room + AT_EPOCH, msg->epoch);
    put64(room + AT_STEP, msg->step);
    put_id(room + AT_PLAN, msg->plan_id);
    put_id(room + AT_TABLE, msg->table_hash);
    put32(room + AT_RANK, msg->rank);
    put32(room + AT_REPLICA, msg->replica);
    put32(room + AT_ATTEMPT, msg->incarnation.attempt);
    put32(room + AT_CODE, msg->code);
    put64(room + AT_OPENED, msg->incarnation.opened_ns);
    put64(room + AT_RANDOM, msg->incarnation.random);
    put64(room + AT_BYTES, msg->bytes);
    if (msg->n_item_bytes)
        memcpy(room + PAYLOAD_HEADER_BYTES, msg->items, msg->n_item_bytes);
}

/* What `count` and the bytes behind the header say must fit the type. */
static int check_items(const struct payload_message *msg, struct poise_err *err)
{
    uint64_t want = 0, max = 0;

    if (msg->type == PAYLOAD_ASK_ENTRIES || msg->type == PAYLOAD_ENTRIES)
        max = PAYLOAD_MAX_ITEMS;
    if (msg->type == PAYLOAD_ASK_ENTRIES)
        want = (uint64_t)msg->count * sizeof(uint32_t);
    if (msg->type == PAYLOAD_ASK_DATA) {
        max = PAYLOAD_MAX_ITEMS;
        want = (uint64_t)msg->count * PAYLOAD_EXTENT_BYTES;
    }
    if (msg->type == PAYLOAD_REFUSED) {
        max = PAYLOAD_TEXT_BYTES - 1;
        want = msg->count;
    }
    if (msg->count > max || (max == PAYLOAD_MAX_ITEMS && msg->count == 0))
        return err_set(err, -EPROTO, "%s has %" PRIu32 " items, at most %" PRIu64, payload_type_name(msg->type),
                       msg->count, max);
    if (msg->type != PAYLOAD_ENTRIES && msg->n_item_bytes != want) /* entries are as long as they say one by one */
        return err_set(err, -EPROTO, "%s has %zu bytes for %" PRIu32 " items", payload_type_name(msg->type),
                       msg->n_item_bytes, msg->count);
    return 0;
}

/* Ranges of an ask: none is empty, and together they are one piece. */
static int check_extents(const struct payload_message *msg, struct poise_err *err)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; msg->type == PAYLOAD_ASK_DATA && i < msg->count; i++) {
        struct payload_extent extent = payload_extent(msg, i);

        sum += extent.bytes;
        if (extent.bytes == 0 || extent.offset > INT64_MAX || sum > PAYLOAD_PIECE_BYTES)
            return err_set(err, -EPROTO, "ASK_DATA: %" PRIu32 " bytes at %" PRIu64 " are asked for, %" PRIu64 " in all",
                           extent.bytes, extent.offset, sum);
    }
    return 0;
}

int payload_wire_decode(const unsigned char *frame, size_t n_bytes, struct payload_message *ret_msg,
                        struct poise_err *err)
{
    struct payload_message msg;
    int rc;

    if (n_bytes < PAYLOAD_HEADER_BYTES || get32(frame + AT_MAGIC) != MAGIC)
        return err_set(err, -EPROTO, "%zu bytes that are no message about payload", n_bytes);
    if (get16(frame + AT_VERSION) != PAYLOAD_VERSION)
        return err_set(err, -EPROTONOSUPPORT, "a message about payload of version %u, not %u",
                       get16(frame + AT_VERSION), PAYLOAD_VERSION);
    msg = (struct payload_message){
        .type = get16(frame + AT_TYPE),
        .request = get32(frame + AT_REQUEST),
        .count = get32(frame + AT_COUNT),
        .epoch = get_id(frame + AT_EPOCH),
        .step = get64(frame + AT_STEP),
        .plan_id = get_id(frame + AT_PLAN),
        .table_hash = get_id(frame + AT_TABLE),
        .rank = get32(frame + AT_RANK),
        .replica = get32(frame + AT_REPLICA),
        .incarnation = {.attempt = get32(frame + AT_ATTEMPT),
                        .opened_ns = get64(frame + AT_OPENED),
                        .random = get64(frame + AT_RANDOM)},
        .code = get32(frame + AT_CODE),
        .bytes = get64(frame + AT_BYTES),
        .n_item_bytes = n_bytes - PAYLOAD_HEADER_BYTES,
    };
    msg.items = msg.n_item_bytes ? frame + PAYLOAD_HEADER_BYTES : NULL;
    if (msg.type == 0 || msg.type >= PAYLOAD_N_TYPES)
        return err_set(err, -EPROTO, "a message about payload of type %" PRIu32, msg.type);
    if (msg.rank >= WIRE_MAX_RANKS || msg.replica >= WIRE_MAX_REPLICAS)
        return err_set(err, -EPROTO, "%s of rank %" PRIu32 ", replica %" PRIu32, payload_type_name(msg.type), msg.rank,
                       msg.replica);
    if (msg.type == PAYLOAD_DATA ? msg.bytes == 0 || msg.bytes > PAYLOAD_PIECE_BYTES : msg.bytes != 0)
        return err_set(err, -EPROTO, "%s announces %" PRIu64 " bytes of payload", payload_type_name(msg.type),
                       msg.bytes);
    rc = check_items(&msg, err);
    if (rc == 0)
        rc = check_extents(&msg, err);
    if (rc == 0)
        *ret_msg = msg;
    return rc;
}

/* ------------------------------------------------------------------------------------------------------------ items */

uint32_t payload_index(const struct payload_message *msg, uint32_t i)
{
    return get32(msg->items + (size_t)i * sizeof(uint32_t));
}

struct payload_extent payload_extent(const struct payload_message *msg, uint32_t i)
{
    const unsigned char *at = msg->items + (size_t)i * PAYLOAD_EXTENT_BYTES;

    return (struct payload_extent){.index = get32(at), .bytes = get32(at + 4), .offset = get64(at + 8)};
}

void payload_put_index(unsigned char *items, uint32_t i, uint32_t index)
{
    put32(items + (size_t)i * sizeof(uint32_t), index);
}

void payload_put_extent(unsigned char *items, uint32_t i, const struct payload_extent *extent)
{
    unsigned char *at = items + (size_t)i * PAYLOAD_EXTENT_BYTES;

    put32(at, extent->index);
    put32(at + 4, extent->bytes);
    put64(at + 8, extent->offset);
}

/* ---------------------------------------------------------------------------------------------------------- entries */

#define SAMPLE_BYTES 48u
#define VALUE_BYTES  8u /* and 8 an axis */

size_t payload_put_entry(unsigned char *room, const struct directory_sample *sample, const struct value *values,
                         uint32_t n_fields)
{
    unsigned char *at = room + SAMPLE_BYTES;
    uint32_t n_values = 0;

    for (uint32_t i = 0; i < n_fields; i++) {
        const struct value *value = &values[i];

        if (!value->present)
            continue;
        n_values++;
        put32(at, i);
        put32(at + 4, value->n_dims);
        at += VALUE_BYTES;
        for (uint32_t d = 0; d < value->n_dims; d++, at += sizeof(uint64_t))
            put64(at, (uint64_t)value->shape[d]);
    }
    put64(room, sample->tag);
    put64(room + 8, sample->loss_tokens);
    put64(room + 16, sample->arrival_loss_tokens);
    put64(room + 24, sample->bytes);
    put64(room + 32, sample->hash);
    put32(room + 40, sample->arrival_micro_batch);
    put32(room + 44, n_values);
    return (size_t)(at - room);
}

void payload_entries_begin(const struct payload_message *msg, const struct wire_table *table, uint32_t rank,
                           struct payload_entries *ret_entries)
{
    *ret_entries =
        (struct payload_entries){.at = msg->items, .n_left = msg->n_item_bytes, .table = table, .rank = rank};
}

static const unsigned char *take(struct payload_entries *entries, size_t n_bytes)
{
    const unsigned char *at = entries->at;

    if (entries->n_left < n_bytes)
        return NULL;
    entries->at += n_bytes;
    entries->n_left -= n_bytes;
    return at;
}

static int bad(const struct payload_entries *entries, uint32_t index, const char *field, const char *what,
               struct poise_err *err)
{
    return err_set_at(err, -EPROTO, entries->rank, index, field, "rank %" PRIu32 ", sample %" PRIu32 ": its entry %s",
                      entries->rank, index, what);
}

static int next_value(struct payload_entries *entries, uint32_t index, struct value *values, uint64_t *total,
                      struct poise_err *err)
{
    const unsigned char *head = take(entries, VALUE_BYTES), *shape;
    struct value value = {.present = true};
    uint32_t position = head ? get32(head) : 0;
    const struct wire_field *field;
    struct poise_err why;
    uint64_t bytes;

    if (!head || position >= entries->table->n_fields || values[position].present)
        return bad(entries, index, NULL, !head ? "is cut off" : "names a field that there is not, or twice", err);
    field = &entries->table->fields[position];
    value.n_dims = get32(head + 4);
    shape = value.n_dims <= POISE_MAX_DIMS ? take(entries, value.n_dims * sizeof(uint64_t)) : NULL;
    if (value.n_dims > POISE_MAX_DIMS || (value.n_dims && !shape))
        return bad(entries, index, field->name, "has a shape that is none", err);
    for (uint32_t d = 0; d < value.n_dims; d++)
        value.shape[d] = (int64_t)get64(shape + d * sizeof(uint64_t));
    if (value_check(&value, field, entries->rank, index, &bytes, &why) < 0)
        return bad(entries, index, field->name, why.text, err);
    if (__builtin_add_overflow(*total, bytes, total))
        return bad(entries, index, field->name, "has bytes that overflow", err);
    values[position] = value;
    return 0;
}

int payload_next_entry(struct payload_entries *entries, uint32_t index, uint64_t in_bytes,
                       struct directory_sample *ret_sample, struct value *values, struct poise_err *err)
{
    const unsigned char *head = take(entries, SAMPLE_BYTES);
    struct directory_sample sample;
    uint64_t total = 0;
    uint32_t n_values;

    if (!head)
        return bad(entries, index, NULL, "is cut off", err);
    sample = (struct directory_sample){
        .tag = get64(head),
        .loss_tokens = get64(head + 8),
        .arrival_loss_tokens = get64(head + 16),
        .bytes = get64(head + 24),
        .hash = get64(head + 32),
        .arrival_micro_batch = get32(head + 40),
    };
    n_values = get32(head + 44);
    for (uint32_t i = 0; i < entries->table->n_fields; i++)
        values[i] = (struct value){0};
    for (uint32_t i = 0; i < n_values; i++) { /* ends with the first field that is there twice */
        int rc = next_value(entries, index, values, &total, err);
        if (rc < 0)
            return rc;
    }
    if (sample.bytes != total || (in_bytes != DIRECTORY_ANY_BYTES && total != in_bytes))
        return err_set_at(err, -EPROTO, entries->rank, index, NULL,
                          "rank %" PRIu32 ", sample %" PRIu32 ": its fields have %" PRIu64
                          " bytes, its entry says %" PRIu64 ", the plan %" PRIu64,
                          entries->rank, index, total, sample.bytes, in_bytes);
    *ret_sample = sample;
    return 0;
}
