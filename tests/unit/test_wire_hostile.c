/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every check of a message's values has an input that breaks it, tried both ways: wire_encode() must refuse it, and so
 * must wire_decode() when a peer packs it all the same. What only bytes can say wrongly is in test_wire_bytes.c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "refused.h"

/* A message that is right, for the changes below. */
#define MINIMAL(kind)                                \
    struct message_maker maker = {.defaults = true}; \
    struct wire_message *msg = message_make(&maker, (kind))

/* The message with one thing changed; put back afterwards. */
#define WITH(object, refuse, part, ...)                                                                                \
    do {                                                                                                               \
        __typeof__(object) kept_ = (object);                                                                           \
        __VA_ARGS__;                                                                                                   \
        refuse(msg, part);                                                                                             \
        (object) = kept_;                                                                                              \
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
    encode_refused(&nothing, "a message of type 19");
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
    struct wire_member members[4] = {
        {.rank = 0, .replica = 0}, {.rank = 0, .replica = 1}, {.rank = 1}, {.rank = 1, .replica = 1}};
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
    BAD_SLICE("OUTCOME of step 9, slice of rank 7: counts of micro-batches add up to 1, not 2",
              slice.count = (uint32_t[]){1, 0});
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
        MINIMAL(WIRE_FORMING);
        BAD_TO_ENCODE("n_missing is 17", msg->forming.n_missing = 17);
        BAD("missing[0] is 1048576", msg->forming.n_missing = 1; msg->forming.missing[0] = WIRE_MAX_RANKS);
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

    strcpy(abort_message.abort.error.text, "Datei nicht ge\xf6"
                                           "ffnet: caf\xc3\xa9");
    memset(abort_message.abort.error.field, '\xff', sizeof abort_message.abort.error.field); /* without its end, even */
    cr_assert(wire_encode(&abort_message, &bytes, &n_bytes, NULL) == 0);
    cr_assert(wire_decode(bytes, n_bytes, 0, &back, NULL) == 0);
    cr_assert(strcmp(back->abort.error.text, "Datei nicht ge?ffnet: caf\xc3\xa9") == 0, "%s", back->abort.error.text);
    cr_assert(strlen(back->abort.error.field) == POISE_MAX_NAME - 1 && back->abort.error.field[0] == '?');
    wire_free(back);
    free(bytes);
}
