/* SPDX-License-Identifier: Apache-2.0 */
/* What only bytes can say wrongly, made with protobuf-c or by hand: lengths, versions, rubbish, too much of anything. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "refused.h"

#define ENVELOPE(number, member, body)                                                                                 \
    PB(Envelope) envelope = POISE__V1__ENVELOPE__INIT;                                                                 \
    envelope.version = WIRE_VERSION;                                                                                   \
    envelope.body_case = (PB(Envelope__BodyCase))(number);                                                             \
    envelope.member = (body)

static void envelope_refused(const PB(Envelope) *envelope, const char *part)
{
    size_t n_bytes;
    uint8_t *bytes = refused_pack(envelope, &n_bytes);

    decode_refused(bytes, n_bytes, -EPROTO, part);
    free(bytes);
}

static ProtobufCBinaryData data(const char *text, size_t n)
{
    return (ProtobufCBinaryData){.len = n, .data = (uint8_t *)text};
}

Test(bytes, ids_and_texts_of_a_wrong_length)
{
    PB(Hello) hello = POISE__V1__HELLO__INIT;
    ENVELOPE(11, hello, &hello);
    hello.token = data("0123456789abcdef0", 17);
    envelope_refused(&envelope, "HELLO: token has 17 bytes, not 16");
    hello.token.len = 15;
    envelope_refused(&envelope, "HELLO: token has 15 bytes");

    char text[600];
    memset(text, 'x', sizeof text);
    PB(Abort) about = POISE__V1__ABORT__INIT;
    PB(Error) error = POISE__V1__ERROR__INIT;
    envelope.body_case = (PB(Envelope__BodyCase))22;
    envelope.abort = &about;
    envelope_refused(&envelope, "ABORT: its error is missing");
    about.error = &error;
    error.text = data(text, 512);
    envelope_refused(&envelope, "ABORT: error.text has 512 bytes, at most 511");
    error.text = data("a\0b", 3);
    envelope_refused(&envelope, "ABORT: error.text has a zero byte");
    error.text = data("\xf4\x90\x80\x80", 4);
    envelope_refused(&envelope, "error.text is not valid UTF-8");
    error.text = data("", 0);
    error.field = data("\xe2\x82", 2);
    envelope_refused(&envelope, "error.field is not valid UTF-8");
    error.field = data(text, 64);
    envelope_refused(&envelope, "error.field has 64 bytes");
    error.field = data("", 0);
    about.job = data(text, 128);
    envelope_refused(&envelope, "ABORT: job has 128 bytes");
    about.job = data("", 0);
    about.group = data(text, 64);
    envelope_refused(&envelope, "ABORT: group has 64 bytes");
}

Test(bytes, columns_of_a_wrong_length)
{
    PB(Meta) meta = POISE__V1__META__INIT, *metas[1] = {&meta};
    PB(Metas) body = POISE__V1__METAS__INIT;
    uint64_t values[8] = {0};
    uint32_t small[8] = {0};
    ENVELOPE(15, meta, &body);

    body.n_metas = 1;
    body.metas = metas;
    meta.rank = 3;
    meta.n_samples = 2;
    meta.n_phases = 2;
    meta.n_bytes = 1;
    meta.bytes = values;
    envelope_refused(&envelope, "META of rank 3: 1 values in columns, though it says that it has none");
    meta.has_columns = true;
    envelope_refused(&envelope, "META: bytes has 1 values, not 2");
    meta.n_bytes = 2;
    envelope_refused(&envelope, "loss_tokens has 0 values, not 2");
    meta.loss_tokens = values;
    meta.n_loss_tokens = 2;
    meta.length = values;
    meta.n_length = 3;
    envelope_refused(&envelope, "length has 3 values, not 4");
    meta.n_length = 4;
    meta.n_extents = 3;
    meta.extent = small;
    meta.n_extent = 5;
    envelope_refused(&envelope, "extent has 5 values, not 6");
    meta.n_extent = 6;
#define SHORT(member, array)                                                                                           \
    do {                                                                                                               \
        meta.member = (array);                                                                                         \
        meta.n_##member = 1;                                                                                           \
        envelope_refused(&envelope, #member " has 1 values, not 2");                                                   \
        meta.n_##member = 0;                                                                                           \
    } while (0)
    SHORT(tag, values);
    SHORT(packed_bytes, values);
    SHORT(micro_batch, small);
    SHORT(unit, values);
    meta.unit_layout = data("\0\0\0", 3);
    envelope_refused(&envelope, "unit_layout has 3 values, not 2");
    meta.unit_layout.len = 0;
    meta.attention_phases = 4;
    envelope_refused(&envelope, "attention_phases is 4 with 2 phases");
    meta.attention_phases = 2;
    meta.attention = values;
    meta.n_attention = 4;
    envelope_refused(&envelope, "attention has 4 values, not 2 for each of 1 phases");
    meta.n_attention = 2;
    values[0] = 1ull << 32; /* of phase 0, whose attention is left out */
    envelope_refused(&envelope, "length[0][0] is 4294967296: too large to leave out its attention");
    meta.kind = WIRE_META_BAD;
    envelope_refused(&envelope, "META: its error is missing");
    meta.n_samples = UINT32_MAX;
    meta.n_phases = UINT32_MAX;
    envelope_refused(&envelope, "n_samples 4294967295, n_phases 4294967295");
}

Test(bytes, a_table_with_too_much)
{
    PB(Field) field = POISE__V1__FIELD__INIT, *fields[POISE_MAX_FIELDS + 1];
    PB(Table) table = POISE__V1__TABLE__INIT;
    PB(Outcome) outcome = POISE__V1__OUTCOME__INIT;
    ProtobufCBinaryData names[2] = {data("a", 1), data("b", 1)};
    int64_t shape[9] = {0};
    uint32_t divisor[9] = {0};
    char text[70];
    ENVELOPE(21, outcome, &outcome);

    memset(text, 'x', sizeof text);
    for (int i = 0; i <= POISE_MAX_FIELDS; i++)
        fields[i] = &field;
    outcome.table = &table;
    table.fields = fields;
    table.n_fields = POISE_MAX_FIELDS + 1;
    envelope_refused(&envelope, "OUTCOME: 257 values of fields, at most 256");
    table.n_fields = 1;
    field.name = data(text, 64);
    envelope_refused(&envelope, "field name has 64 bytes");
    field.name.len = 3;
    field.shape = shape;
    field.n_shape = 9;
    envelope_refused(&envelope, "9 values of shape, at most 8");
    field.n_shape = 1;
    field.divisor = divisor;
    field.n_divisor = 9;
    envelope_refused(&envelope, "9 values of divisor, at most 8");
    field.n_divisor = 0;
    field.axis_name = names;
    field.n_axis_name = 2;
    envelope_refused(&envelope, "axis_name has 2 values, not 1");
    field.n_axis_name = 1;
    names[0] = data(text, 64);
    envelope_refused(&envelope, "axis_name has 64 bytes");
    field.n_axis_name = 0;
    field.rows_of = data("a\0", 2);
    envelope_refused(&envelope, "rows_of has a zero byte");
}

Test(bytes, a_roster_that_does_not_fit_itself)
{
    PB(Roster) roster = POISE__V1__ROSTER__INIT;
    uint32_t small[4] = {0};
    uint64_t large[4] = {0};
    ProtobufCBinaryData host = data("h", 1);
    ENVELOPE(20, roster, &roster);

    roster.n_ranks = roster.n_replicas = 2;
    roster.n_nodes = 1;
    roster.node = roster.pid = roster.attempt = roster.host = small;
    roster.opened_ns = roster.random = large;
    roster.n_node = roster.n_pid = roster.n_attempt = roster.n_host = roster.n_opened_ns = roster.n_random = 4;
    envelope_refused(&envelope, "ROSTER: host of rank 0 is number 0 of 0");
    roster.hosts = &host;
    roster.n_hosts = 1;
    roster.n_pid = 3;
    envelope_refused(&envelope, "ROSTER: pid has 3 values for 2 ranks of 2 replicas");
    roster.n_pid = 4;
    roster.n_ranks = roster.n_replicas = 65536; /* their product is 0 in 32 bits */
    envelope_refused(&envelope, "ROSTER: node has 4 values for 65536 ranks of 65536 replicas");
    roster.n_ranks = roster.n_replicas = 2;
    roster.payload_key = data("short", 5);
    envelope_refused(&envelope, "ROSTER: payload_key has 5 bytes, not 32");
    roster.payload_key.len = 0;
    host = data("0123456789012345678901234567890123456789012345678901234567890123", 64);
    envelope_refused(&envelope, "ROSTER: hosts has 64 bytes");
}

Test(bytes, addresses_of_payload_that_are_none)
{
    PB(Roster) roster = POISE__V1__ROSTER__INIT;
    uint32_t small[4] = {0}, host_of[4] = {1, 1, 0, 1}, port[4] = {4000, 4001, 0, 4003};
    uint64_t large[4] = {0};
    ProtobufCBinaryData host = data("h", 1), address = data("tcp://10.0.0.1", 14);
    ENVELOPE(20, roster, &roster);

    roster.job = data("j", 1);
    roster.group = data("g", 1);
    roster.n_ranks = roster.n_replicas = 2;
    roster.n_nodes = 1;
    roster.node = roster.pid = roster.attempt = roster.host = small;
    roster.opened_ns = roster.random = large;
    roster.n_node = roster.n_pid = roster.n_attempt = roster.n_host = roster.n_opened_ns = roster.n_random = 4;
    roster.hosts = &host;
    roster.n_hosts = 1;
    roster.payload_hosts = &address;
    roster.payload_host = host_of;
    roster.payload_port = port;
    roster.n_payload_host = roster.n_payload_port = 4;
    envelope_refused(&envelope, "ROSTER: payload of rank 0 is port 4000 of host number 1 of 0");
    roster.n_payload_hosts = 1;
    roster.n_payload_port = 3;
    envelope_refused(&envelope, "payload_host has 4 values, payload_port 3");
    roster.n_payload_host = 3;
    envelope_refused(&envelope, "payload_host has 3 values, payload_port 3");
    roster.n_payload_host = roster.n_payload_port = 4;
    port[3] = 65536;
    envelope_refused(&envelope, "ROSTER: payload of rank 1 is port 65536 of host number 1 of 1");
    port[3] = 0;
    envelope_refused(&envelope, "is port 0 of host");
    port[3] = 4003;
    for (int i = 0; i < 4; i++) {
        static const char *const bad[] = {"udp://10.0.0.1", "tcp://", "tcp://*", "tcp://10.0.0.1;tcp://b"};
        address = data(bad[i], strlen(bad[i]));
        envelope_refused(&envelope, "not tcp://ADDRESS:PORT");
    }
}

Test(bytes, a_join_with_a_key_that_is_none)
{
    PB(Join) join = POISE__V1__JOIN__INIT;
    ENVELOPE(14, join, &join);

    join.payload_key = data("short", 5);
    envelope_refused(&envelope, "JOIN: payload_key has 5 bytes, not 32");
    join.payload_key.len = 0;
    join.job = data("j", 1);
    join.group = data("g", 1);
    join.n_ranks = join.n_replicas = 1;
    join.payload = data("tcp://h:0", 9);
    envelope_refused(&envelope, "payload is tcp://h:0, not tcp://ADDRESS:PORT");
    join.payload = data("tcp://h:65536", 13);
    envelope_refused(&envelope, "not tcp://ADDRESS:PORT");
    join.payload = data("tcp://h:1x", 10);
    envelope_refused(&envelope, "not tcp://ADDRESS:PORT");
}

Test(bytes, other_lists_of_a_wrong_length)
{
    PB(Slice) slice = POISE__V1__SLICE__INIT, *slices[1] = {&slice};
    PB(Outcome) outcome = POISE__V1__OUTCOME__INIT;
    PB(Totals) totals = POISE__V1__TOTALS__INIT;
    uint32_t small[20] = {0};
    uint64_t large[20] = {0};
    ENVELOPE(21, outcome, &outcome);

    outcome.slices = slices;
    outcome.n_slices = 1;
    slice.in_rank = slice.in_index = slice.count = small;
    slice.in_bytes = large;
    slice.out_rank = slice.out_micro_batch = slice.out_row = slice.out_place = small;
#define UNEQUAL(member, n)                                                                                             \
    do {                                                                                                               \
        slice.n_##member = (n);                                                                                        \
        envelope_refused(&envelope, #member " has " #n " values, not ");                                               \
        slice.n_##member = 0;                                                                                          \
    } while (0)
    UNEQUAL(in_index, 1);
    UNEQUAL(in_bytes, 2);
    UNEQUAL(count, 3);
    UNEQUAL(out_micro_batch, 4);
    UNEQUAL(out_row, 5);
    UNEQUAL(out_place, 6);
    outcome.n_slices = 0;
    outcome.extent = small;
    outcome.n_extent = 5;
    envelope_refused(&envelope, "5 values of extent, at most 4");
    outcome.n_extent = 0;
    outcome.totals = &totals;
    totals.length_micro_batch_before = totals.length_micro_batch_after = large;
    totals.n_length_micro_batch_before = 9;
    envelope_refused(&envelope, "9 values of length_micro_batch_before, at most 8");
    totals.n_length_micro_batch_before = 0;
    totals.n_length_micro_batch_after = 9;
    envelope_refused(&envelope, "9 values of length_micro_batch_after, at most 8");
    totals.n_length_micro_batch_after = 0;
    outcome.kind = WIRE_OUTCOME_ERROR;
    envelope_refused(&envelope, "OUTCOME: its error is missing");

    PB(Beacon) beacon = POISE__V1__BEACON__INIT;
    envelope.body_case = (PB(Envelope__BodyCase))27;
    envelope.beacon = &beacon;
    beacon.plan_id = large;
    beacon.n_plan_id = 17;
    envelope_refused(&envelope, "17 values of plan_id, at most 16");
    beacon.n_plan_id = 3;
    envelope_refused(&envelope, "plan_id has 3 values, not two a plan");
    beacon.n_plan_id = 0;
    beacon.missing = small;
    beacon.n_missing = 17;
    envelope_refused(&envelope, "17 values of missing, at most 16");

    PB(HeartbeatEpoch) epoch = POISE__V1__HEARTBEAT_EPOCH__INIT, *epochs[1] = {&epoch};
    PB(Heartbeat) heartbeat = POISE__V1__HEARTBEAT__INIT;
    envelope.body_case = (PB(Envelope__BodyCase))25;
    envelope.heartbeat = &heartbeat;
    heartbeat.epochs = epochs;
    heartbeat.n_epochs = 1;
    epoch.missing = small;
    epoch.n_missing = 17;
    envelope_refused(&envelope, "17 values of missing, at most 16");

    PB(Join) join = POISE__V1__JOIN__INIT;
    ProtobufCBinaryData text = data("a\0", 2);
    envelope.body_case = (PB(Envelope__BodyCase))14;
    envelope.join = &join;
    join.option_key = &text;
    join.n_option_key = 1;
    envelope_refused(&envelope, "JOIN: option_value has 0 values, not 1");
    join.option_value = &text;
    join.n_option_value = 1;
    envelope_refused(&envelope, "JOIN: option key has a zero byte");
}

/* ------------------------------------------------------------------------------------------ versions, rubbish, size */

Test(bytes, another_version_is_said_to_be_one)
{
    static const uint8_t later[] = {0x08, 2, 0xff, 0xff, 0xff}; /* the rest need not even parse */
    static const uint8_t much_later[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0x0f};
    static const uint8_t none[] = {0x5a, 0};          /* HELLO without a version */
    static const uint8_t last[] = {0x5a, 0, 0x08, 3}; /* the version behind it */

    decode_refused(later, sizeof later, -EPROTONOSUPPORT, "wire version 2 came, this side speaks 1");
    decode_refused(much_later, sizeof much_later, -EPROTONOSUPPORT, "wire version 4294967295");
    decode_refused(none, sizeof none, -EPROTONOSUPPORT, "wire version 0");
    decode_refused(last, sizeof last, -EPROTONOSUPPORT, "wire version 3");
}

Test(bytes, rubbish_is_refused)
{
    static const uint8_t only_version[] = {0x08, 1}, unknown_body[] = {0x08, 1, 0xa2, 0x06, 0}; /* field 100 */
    static const uint8_t http[] = "GET / HTTP/1.1\r\n\r\n", endless[] = {0x08, 1, 0x5a, 0xff, 0xff, 0xff, 0xff, 0x0f};

    decode_refused(NULL, 0, -EPROTONOSUPPORT, "wire version 0");
    decode_refused(only_version, sizeof only_version, -EPROTO, "without a body of a known type");
    decode_refused(unknown_body, sizeof unknown_body, -EPROTO, "without a body of a known type");
    decode_refused(http, sizeof http, -EPROTO, "not a message of poise");
    decode_refused(endless, sizeof endless, -EPROTO, "not a message of poise");
    struct wire_message *msg;
    cr_assert(wire_decode(http, (size_t)WIRE_MAX_BYTES + 1, 0, &msg, NULL) == -E2BIG);
}

/* 600 KB of unknown fields of two bytes each: protobuf-c would keep them at 40 bytes each. */
Test(bytes, unknown_fields_do_not_take_twenty_times_their_bytes)
{
    const size_t n_bytes = 600 << 10;
    uint8_t *bytes = malloc(n_bytes);

    bytes[0] = 0x08;
    bytes[1] = 1;
    for (size_t i = 2; i < n_bytes; i += 2) {
        bytes[i] = 0x78; /* field 15, a varint */
        bytes[i + 1] = 0;
    }
    decode_refused(bytes, n_bytes, -E2BIG, "budget");
    free(bytes);
}

/* The same with bodies: an empty META of two bytes would be 900 bytes of struct. */
Test(bytes, empty_structs_do_not_take_a_thousand_times_their_bytes)
{
    const uint32_t n_metas = 300000, body = 2 * n_metas;
    uint8_t *bytes = malloc(body + 8);
    size_t n = 0;

    bytes[n++] = 0x08;
    bytes[n++] = 1;
    bytes[n++] = 0x7a; /* field 15 of the envelope: Metas */
    bytes[n++] = (uint8_t)(body | 0x80);
    bytes[n++] = (uint8_t)(body >> 7 | 0x80);
    bytes[n++] = (uint8_t)(body >> 14);
    for (uint32_t i = 0; i < n_metas; i++) {
        bytes[n++] = 0x0a;
        bytes[n++] = 0;
    }
    decode_refused(bytes, n, -E2BIG, "budget");
    free(bytes);
}

Test(bytes, the_callers_budget_is_kept)
{
    struct message_maker maker = {.random = 5, .n_samples = 5000};
    struct wire_message *msg = message_make(&maker, WIRE_META), *back;
    struct poise_err err;
    uint8_t *bytes;
    size_t n_bytes;

    cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == 0);
    cr_assert(wire_decode(bytes, n_bytes, 1000, &back, &err) == -E2BIG && strstr(err.text, "budget"), "%s", err.text);
    cr_assert(wire_decode(bytes, n_bytes, 1, &back, &err) == -E2BIG);
    cr_assert(wire_decode(bytes, n_bytes, 64 << 20, &back, &err) == 0);
    wire_free(back);
    wire_free(NULL);
    free(bytes);
    message_done(&maker);
}

/* Fields that this version does not know are skipped: that is how later ones are added. */
Test(bytes, unknown_fields_are_skipped)
{
    static const uint8_t bytes[] = {0x08, 1, 0x5a, 2 + 6, 0x08, 1, 0xf8, 0x07, 5, 0xfa, 0x07, 0, 0xc2, 0x3e, 1, 'x'};
    struct wire_message *back;
    struct poise_err err = {0};

    cr_assert(wire_decode(bytes, sizeof bytes, 0, &back, &err) == 0, "%s", err.text);
    cr_assert(back->type == WIRE_HELLO && back->hello.wire_version == 1);
    wire_free(back);
}
