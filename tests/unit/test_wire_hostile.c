/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every check of a message has an input that breaks it. What a plain struct can say wrongly is tried both ways: wire_encode()
 * must refuse it, and wire_decode() must when a peer packs it all the same. What only bytes can say is made with protobuf-c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "proto/codec.h"

/* Bytes of an envelope, as a peer without checks makes them. */
static uint8_t *pack(const PB(Envelope) *envelope, size_t *ret_n)
{
    uint8_t *bytes = malloc(poise__v1__envelope__get_packed_size(envelope) + 1);

    *ret_n = poise__v1__envelope__pack(envelope, bytes);
    return bytes;
}

static void decode_refused(const uint8_t *bytes, size_t n_bytes, int code, const char *part)
{
    struct wire_message *msg = NULL;
    struct poise_err err = {0};

    int rc = wire_decode(bytes, n_bytes, 0, &msg, &err);
    cr_assert(rc == code, "%s: decoded with %d (%s)", part, rc, err.text);
    cr_assert(msg == NULL && err.code == code);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_assert(wire_decode(bytes, n_bytes, 0, &msg, NULL) == code);
}

static void both_refused(const struct wire_message *msg, const char *part)
{
    struct pool pool = {.limit = SIZE_MAX};
    PB(Envelope) envelope = POISE__V1__ENVELOPE__INIT;
    struct poise_err err = {0};
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;

    cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == -EINVAL, "%s is encoded", part);
    cr_assert(bytes == NULL && err.code == -EINVAL);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    envelope.version = WIRE_VERSION;
    envelope.body_case = (PB(Envelope__BodyCase))(msg->type + 10);
    cr_assert(wire_store(&pool, msg, &envelope) == 0);
    bytes = pack(&envelope, &n_bytes);
    decode_refused(bytes, n_bytes, -EPROTO, part);
    free(bytes);
    wire_pool_free(&pool);
}

/* Only wire_encode(): the bytes cannot say it. */
static void encode_refused(const struct wire_message *msg, const char *part)
{
    struct poise_err err = {0};
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;

    cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == -EINVAL, "%s is encoded", part);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
}

#define MINIMAL(kind)                                       \
    struct message_maker maker = {.defaults = true};        \
    struct wire_message *msg = message_make(&maker, (kind))
/* The message with one thing changed; put back afterwards. */
#define WITH(object, refuse, part, ...)       \
    do {                                      \
        __typeof__(object) kept_ = (object);  \
        __VA_ARGS__;                          \
        refuse(msg, part);                    \
        (object) = kept_;                     \
    } while (0)
#define BAD(part, ...) WITH(*msg, both_refused, part, __VA_ARGS__)
#define BAD_TO_ENCODE(part, ...) WITH(*msg, encode_refused, part, __VA_ARGS__)

Test(hostile, values_of_small_messages)
{
    {
        MINIMAL(WIRE_WELCOME);
        BAD("WELCOME: mode is 3, at most 2", msg->welcome.mode = 3);
        message_done(&maker);
    }
    {
        MINIMAL(WIRE_MODE);
        BAD("MODE: mode is 4294967295", msg->mode.mode = UINT32_MAX);
        message_done(&maker);
    }
    {
        MINIMAL(WIRE_REFUSED);
        BAD("rank is 1048576", msg->refused.who.rank = WIRE_MAX_RANKS);
        BAD("replica is 4096", msg->refused.who.replica = WIRE_MAX_REPLICAS);
        BAD("job is not valid UTF-8", msg->refused.who.job[0] = '\xfe');
        BAD("group is not valid UTF-8", memcpy(msg->refused.who.group, "\xed\xa0\x80", 3)); /* a surrogate */
        BAD("error.code is 1", msg->refused.error.code = 1);
        BAD("error.code is -4096", msg->refused.error.code = -4096);
        BAD_TO_ENCODE("job has 128 bytes or more", memset(msg->refused.who.job, 'x', WIRE_JOB_BYTES));
        message_done(&maker);
    }
    {
        MINIMAL(WIRE_ABORT);
        msg->abort.rank = msg->abort.replica = POISE_NONE;
        BAD("rank is 1048576", msg->abort.rank = WIRE_MAX_RANKS);
        BAD("replica is 4096", msg->abort.replica = WIRE_MAX_REPLICAS);
        BAD("job is not valid UTF-8", msg->abort.job[0] = '\x80');
        BAD("error.code is 22", msg->abort.error.code = 22);
        message_done(&maker);
    }
    {
        MINIMAL(WIRE_REPORT);
        BAD("waiting is 5", msg->report.waiting = 5);
        BAD("rank is 4294967295", msg->report.rank = POISE_NONE);
        BAD("replica is 4294967295", msg->report.replica = POISE_NONE);
        message_done(&maker);
    }
    struct wire_message nothing = {.type = 0};
    encode_refused(&nothing, "a message of type 0");
    nothing.type = WIRE_N_TYPES;
    encode_refused(&nothing, "a message of type 18");
}

static struct wire_option options[300];

Test(hostile, values_of_a_join)
{
    MINIMAL(WIRE_JOIN);
    char long_value[WIRE_MAX_OPTION_BYTES + 1], long_list[WIRE_MAX_COORDINATOR_BYTES + 1];

    BAD("a group of 0 ranks", msg->join.n_ranks = 0);
    BAD("1 ranks of 0 replicas", msg->join.n_replicas = 0);
    BAD("n_ranks is 1048577", msg->join.n_ranks = WIRE_MAX_RANKS + 1);
    BAD("n_replicas is 4097", msg->join.n_replicas = 4097);
    BAD("n_ranks x n_replicas is 2097152", msg->join.n_ranks = 1u << 20; msg->join.n_replicas = 2);
    BAD("rank 1 of 1", msg->join.rank = 1);
    BAD("replica 5 of 1", msg->join.replica = 5);
    BAD("host is not valid UTF-8", msg->join.host[0] = '\xff');
    BAD("group is not valid UTF-8", memcpy(msg->join.group, "\xf5\x80\x80\x80", 4));
    BAD("coordinators is not valid UTF-8", msg->join.coordinators = (char *)"tcp://\xc3");
    memset(long_list, 'x', sizeof long_list);
    long_list[WIRE_MAX_COORDINATOR_BYTES] = 0;
    BAD("coordinators has 4096 bytes", msg->join.coordinators = long_list);

    options[0] = (struct wire_option){(char *)"b", (char *)"1"};
    options[1] = (struct wire_option){(char *)"a", (char *)"2"};
    BAD("options are not sorted: a after b", msg->join.n_options = 2; msg->join.options = options);
    options[1].key = (char *)"b";
    BAD("options are not sorted: b after b", msg->join.n_options = 2; msg->join.options = options);
    options[0].value = (char *)"\xc0\xaf";
    BAD("option value is not valid UTF-8", msg->join.n_options = 1; msg->join.options = options);
    options[0].key = (char *)"\xe0\x80\x80";
    BAD("option key is not valid UTF-8", msg->join.n_options = 1; msg->join.options = options);
    options[0].key = (char *)"a key of more than sixty-three bytes, as no option will ever have";
    BAD("option key has 6", msg->join.n_options = 1; msg->join.options = options);
    memset(long_value, 'x', sizeof long_value);
    long_value[WIRE_MAX_OPTION_BYTES] = 0;
    options[0] = (struct wire_option){(char *)"b", long_value};
    BAD("option value has 1024 bytes", msg->join.n_options = 1; msg->join.options = options);
    options[0].value = NULL;
    BAD_TO_ENCODE("option value is missing", msg->join.n_options = 1; msg->join.options = options);
    BAD_TO_ENCODE("options is missing where 3", msg->join.n_options = 3; msg->join.options = NULL);
    for (int i = 0; i < 300; i++)
        options[i] = (struct wire_option){(char *)"k", (char *)""};
    BAD("options", msg->join.n_options = WIRE_MAX_OPTIONS + 1; msg->join.options = options);
    message_done(&maker);
}

Test(hostile, values_of_a_table)
{
    struct wire_field field = {.name = "x", .dtype = POISE_F32, .n_dims = 2, .shape = {-1, 3}, .pad_multiple = 1};
    struct wire_table table = {1, &field};
    MINIMAL(WIRE_META);
    msg->meta.metas[0].table = &table;

#define BAD_FIELD(part, ...) WITH(field, both_refused, part, __VA_ARGS__)
    BAD_FIELD("a field without a name", field.name[0] = 0);
    BAD_FIELD("field name is not valid UTF-8", field.name[0] = '\x9f');
    BAD_FIELD("field x: dtype is 18", field.dtype = POISE_N_DTYPES);
    BAD_FIELD("field x: assembly is 3", field.assembly = 3);
    BAD_FIELD("field x: pad_side is 2", field.pad_side = 2);
    BAD_FIELD("field x: pad_scope is 3", field.pad_scope = 3);
    BAD_FIELD("field x: rows_of is not valid UTF-8", field.rows_of[0] = '\x80');
    BAD_FIELD("field x: n_dims is 8", field.n_dims = 8);
    BAD_FIELD("field x: shape[1] is -2", field.shape[1] = -2);
    BAD_FIELD("field x: axis is 2 with 2", field.axis = 2);
    BAD_FIELD("field x: axis is 3", field.assembly = POISE_PADDED; field.axis = 3);
    BAD_FIELD("field x: axis_name is not valid UTF-8", field.axis_name[1][0] = '\xff');
    field.n_divisors = 9;
    encode_refused(msg, "n_divisors is 9");
    field.n_divisors = 0;
    table.fields = NULL;
    encode_refused(msg, "fields is missing");
    table.n_fields = POISE_MAX_FIELDS + 1;
    encode_refused(msg, "n_fields is 257");

    /* The same of an outcome: one text is enough to see that it is looked at. */
    struct wire_message outcome = {.type = WIRE_OUTCOME};
    table = (struct wire_table){1, &field};
    outcome.outcome.table = &table;
    field.dtype = 77;
    both_refused(&outcome, "field x: dtype is 77");
    message_done(&maker);
}

Test(hostile, values_of_a_meta)
{
    MINIMAL(WIRE_META);
    struct wire_meta *meta = &msg->meta.metas[0];
    uint64_t ones[2] = {1, 1}, large[2] = {UINT64_MAX, 1};
    uint32_t micro_batch[2] = {0, WIRE_MAX_SAMPLES};
    uint8_t layout[2] = {0, 2};

#define BAD_META(part, ...) WITH(*meta, both_refused, part, __VA_ARGS__)
#define BAD_META_TO_ENCODE(part, ...) WITH(*meta, encode_refused, part, __VA_ARGS__)
    meta->rank = 3;
    meta->step = 17;
    BAD_META("META of rank 1048576, step 17: rank is 1048576", meta->rank = WIRE_MAX_RANKS);
    BAD_META("META of rank 3, step 17: replica is 4096", meta->replica = WIRE_MAX_REPLICAS);
    BAD_META("kind is 3", meta->kind = 3);
    BAD_META("mode is 3", meta->mode = 3);
    BAD_META("n_samples", meta->n_samples = WIRE_MAX_SAMPLES + 1);
    BAD_META("n_phases", meta->n_phases = 9);
    BAD_META("n_extents", meta->n_extents = 5);
    BAD_META("error.code is 5", meta->kind = WIRE_META_BAD; meta->error.code = 5);
    meta->n_samples = 2;
    meta->n_phases = 1;
    meta->has_columns = true;
    BAD_META_TO_ENCODE("bytes is missing where 2", meta->bytes = NULL);
    meta->bytes = ones;
    BAD_META_TO_ENCODE("loss_tokens is missing where 2", meta->loss_tokens = NULL);
    meta->loss_tokens = ones;
    BAD_META_TO_ENCODE("length is missing where 2", meta->length = NULL);
    meta->length = ones;
    BAD_META_TO_ENCODE("extent is missing where 4", meta->n_extents = 2);
    BAD_META("bytes[1] is 1: their sum does not fit", meta->bytes = large);
    BAD_META("packed_bytes[0] is 18446744073709551615 of 1", meta->packed_bytes = large);
    BAD_META("unit_layout[1] is 2", meta->unit_layout = layout);
    BAD_META("micro_batch[1] is 16777216", meta->micro_batch = micro_batch);
    BAD_TO_ENCODE("metas is missing where 1", msg->meta.metas = NULL);
    BAD_TO_ENCODE("n_metas is 1048577", msg->meta.n_metas = WIRE_MAX_RANKS + 1);
    message_done(&maker);
}

Test(hostile, values_of_a_roster)
{
    struct wire_member members[4] = {{.rank = 0, .replica = 0}, {.rank = 0, .replica = 1}, {.rank = 1}, {.rank = 1, .replica = 1}};
    MINIMAL(WIRE_ROSTER);

    msg->roster.members = members;
    msg->roster.n_members = 4;
    msg->roster.n_ranks = msg->roster.n_replicas = 2;
    BAD("a group of 0 ranks", msg->roster.n_ranks = msg->roster.n_members = 0);
    BAD("rank 0 is on node 0 of 0", msg->roster.n_nodes = 0);
    BAD("host is not valid UTF-8", members[3].host[2] = '\0'; memcpy(members[3].host, "h\xff", 2));
    members[3].host[0] = 0;
    BAD_TO_ENCODE("n_ranks x n_replicas is 2097152", msg->roster.n_ranks = 1u << 20);
    BAD_TO_ENCODE("3 members for 2 ranks of 2 replicas", msg->roster.n_members = 3);
    BAD_TO_ENCODE("members is missing where 4", msg->roster.members = NULL);
    BAD_TO_ENCODE("member 3 is rank 1, replica 0: not ordered", members[3].replica = 0); /* the bytes say no ranks */
    members[3].replica = 1;
    message_done(&maker);
}

Test(hostile, values_of_an_outcome)
{
    MINIMAL(WIRE_OUTCOME);
    uint32_t zeros[2] = {0, 0}, ones[2] = {1, 1}, ranks[2] = {0, WIRE_MAX_RANKS}, samples[2] = {WIRE_MAX_SAMPLES, 0};
    uint64_t bytes[2] = {5, 6};
    struct wire_slice slice = {7, 2, 2, zeros, zeros, bytes, ones, zeros, zeros, zeros, zeros};

#define BAD_SLICE(part, ...) WITH(slice, both_refused, part, __VA_ARGS__)
#define BAD_SLICE_TO_ENCODE(member) WITH(slice, encode_refused, #member " is missing where 2", slice.member = NULL)
    msg->outcome.step = 9;
    BAD("OUTCOME of step 9: kind is 3", msg->outcome.kind = 3);
    BAD("mode is 3", msg->outcome.totals.mode = 3);
    BAD("n_micro_batches is 16777217", msg->outcome.n_micro_batches = WIRE_MAX_SAMPLES + 1);
    BAD_TO_ENCODE("n_extents is 5", msg->outcome.n_extents = 5);
    BAD("error.code is 7", msg->outcome.kind = WIRE_OUTCOME_ERROR; msg->outcome.error.code = 7);
    BAD_TO_ENCODE("slices is missing where 1", msg->outcome.n_slices = 1; msg->outcome.slices = NULL);
    msg->outcome.slices = &slice;
    msg->outcome.n_slices = 1;
    msg->outcome.n_micro_batches = 2;
    BAD_SLICE("OUTCOME of step 9, slice of rank 1048576: rank is 1048576", slice.rank = WIRE_MAX_RANKS);
    BAD_SLICE("OUTCOME of step 9, slice of rank 7: counts of micro-batches add up to 1, not 2", slice.count = (uint32_t[]){1, 0});
    BAD_SLICE("counts of micro-batches add up to 4294967296", slice.count = (uint32_t[]){1, UINT32_MAX});
    BAD_SLICE("in_rank[1] is 1048576", slice.in_rank = ranks);
    BAD_SLICE("in_index[0] is 16777216", slice.in_index = samples);
    BAD_SLICE("out_rank[1] is 1048576", slice.out_rank = ranks);
    BAD_SLICE("out_micro_batch[0] is 16777216, at most 1", slice.out_micro_batch = samples);
    BAD_SLICE("out_row[0] is 16777216", slice.out_row = samples);
    BAD_SLICE("out_place[0] is 16777216", slice.out_place = samples);
    BAD_SLICE_TO_ENCODE(in_rank);
    BAD_SLICE_TO_ENCODE(in_index);
    BAD_SLICE_TO_ENCODE(in_bytes);
    BAD_SLICE_TO_ENCODE(count);
    BAD_SLICE_TO_ENCODE(out_rank);
    BAD_SLICE_TO_ENCODE(out_micro_batch);
    BAD_SLICE_TO_ENCODE(out_row);
    BAD_SLICE_TO_ENCODE(out_place);
    slice.n_in = 0;
    BAD("2 samples go into no micro-batch", msg->outcome.n_micro_batches = 0);
    message_done(&maker);
}

Test(hostile, values_of_beacons_heartbeats_and_members)
{
    {
        MINIMAL(WIRE_BEACON);
        BAD_TO_ENCODE("n_plans is 9", msg->beacon.n_plans = 9);
        BAD_TO_ENCODE("n_missing is 17", msg->beacon.n_missing = 17);
        BAD("missing[1] is 1048576", msg->beacon.n_missing = 2; msg->beacon.missing[1] = WIRE_MAX_RANKS);
        message_done(&maker);
    }
    {
        struct wire_heartbeat_epoch epoch = {.n_missing = 1, .missing = {WIRE_MAX_RANKS}};
        MINIMAL(WIRE_HEARTBEAT);
        BAD_TO_ENCODE("n_epochs is 65537", msg->heartbeat.n_epochs = WIRE_MAX_EPOCHS + 1);
        BAD_TO_ENCODE("epochs is missing where 1", msg->heartbeat.n_epochs = 1; msg->heartbeat.epochs = NULL);
        BAD("missing[0] is 1048576", msg->heartbeat.n_epochs = 1; msg->heartbeat.epochs = &epoch);
        epoch.n_missing = 17;
        BAD_TO_ENCODE("n_missing is 17", msg->heartbeat.n_epochs = 1; msg->heartbeat.epochs = &epoch);
        message_done(&maker);
    }
    {
        struct wire_join join = {.n_ranks = 2, .n_replicas = 1, .rank = 2};
        MINIMAL(WIRE_MEMBERS);
        BAD("name is not valid UTF-8", msg->members.name[0] = '\xff');
        BAD("rank 2 of 2", msg->members.n_joins = 1; msg->members.joins = &join);
        BAD_TO_ENCODE("joins is missing where 1", msg->members.n_joins = 1; msg->members.joins = NULL);
        message_done(&maker);
    }
}

/* A poise_fail() reason in Latin-1 must reach the others all the same. */
Test(hostile, an_error_text_that_is_not_utf8_is_mended_on_its_way)
{
    struct wire_message abort_message = {.type = WIRE_ABORT}, *back;
    uint8_t *bytes;
    size_t n_bytes;

    strcpy(abort_message.abort.error.text, "Datei nicht ge\xf6" "ffnet: caf\xc3\xa9");
    memset(abort_message.abort.error.field, '\xff', sizeof abort_message.abort.error.field); /* without its end, even */
    cr_assert(wire_encode(&abort_message, &bytes, &n_bytes, NULL) == 0);
    cr_assert(wire_decode(bytes, n_bytes, 0, &back, NULL) == 0);
    cr_assert(strcmp(back->abort.error.text, "Datei nicht ge?ffnet: caf\xc3\xa9") == 0, "%s", back->abort.error.text);
    cr_assert(strlen(back->abort.error.field) == POISE_MAX_NAME - 1 && back->abort.error.field[0] == '?');
    wire_free(back);
    free(bytes);
}

/* ----------------------------------------------------------------------------------------------- what only bytes can say */

#define ENVELOPE(number, member, body)                   \
    PB(Envelope) envelope = POISE__V1__ENVELOPE__INIT;   \
    envelope.version = WIRE_VERSION;                     \
    envelope.body_case = (PB(Envelope__BodyCase))(number); \
    envelope.member = (body)

static void envelope_refused(const PB(Envelope) *envelope, const char *part)
{
    size_t n_bytes;
    uint8_t *bytes = pack(envelope, &n_bytes);

    decode_refused(bytes, n_bytes, -EPROTO, part);
    free(bytes);
}

static ProtobufCBinaryData data(const char *text, size_t n)
{
    return (ProtobufCBinaryData){.len = n, .data = (uint8_t *)text};
}

Test(hostile, ids_and_texts_of_a_wrong_length)
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

Test(hostile, columns_of_a_wrong_length)
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
#define SHORT(member, array)                                    \
    do {                                                        \
        meta.member = (array);                                  \
        meta.n_##member = 1;                                    \
        envelope_refused(&envelope, #member " has 1 values, not 2"); \
        meta.n_##member = 0;                                    \
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

Test(hostile, a_table_with_too_much)
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

Test(hostile, a_roster_that_does_not_fit_itself)
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

Test(hostile, other_lists_of_a_wrong_length)
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
#define UNEQUAL(member, n)                                                     \
    do {                                                                       \
        slice.n_##member = (n);                                                \
        envelope_refused(&envelope, #member " has " #n " values, not ");       \
        slice.n_##member = 0;                                                  \
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

/* ------------------------------------------------------------------------------------------------- versions, rubbish, size */

Test(hostile, another_version_is_said_to_be_one)
{
    static const uint8_t later[] = {0x08, 2, 0xff, 0xff, 0xff}; /* the rest need not even parse */
    static const uint8_t much_later[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0x0f};
    static const uint8_t none[] = {0x5a, 0};             /* HELLO without a version */
    static const uint8_t last[] = {0x5a, 0, 0x08, 3};    /* the version behind it */

    decode_refused(later, sizeof later, -EPROTONOSUPPORT, "wire version 2 came, this side speaks 1");
    decode_refused(much_later, sizeof much_later, -EPROTONOSUPPORT, "wire version 4294967295");
    decode_refused(none, sizeof none, -EPROTONOSUPPORT, "wire version 0");
    decode_refused(last, sizeof last, -EPROTONOSUPPORT, "wire version 3");
}

Test(hostile, rubbish_is_refused)
{
    static const uint8_t only_version[] = {0x08, 1}, unknown_body[] = {0x08, 1, 0xe2, 0x01, 0}; /* field 28 */
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
Test(hostile, unknown_fields_do_not_take_twenty_times_their_bytes)
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
Test(hostile, empty_structs_do_not_take_a_thousand_times_their_bytes)
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

Test(hostile, the_callers_budget_is_kept)
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
Test(hostile, unknown_fields_are_skipped)
{
    static const uint8_t bytes[] = {0x08, 1, 0x5a, 2 + 6, 0x08, 1, 0xf8, 0x07, 5, 0xfa, 0x07, 0, 0xc2, 0x3e, 1, 'x'};
    struct wire_message *back;
    struct poise_err err = {0};

    cr_assert(wire_decode(bytes, sizeof bytes, 0, &back, &err) == 0, "%s", err.text);
    cr_assert(back->type == WIRE_HELLO && back->hello.wire_version == 1);
    wire_free(back);
}
