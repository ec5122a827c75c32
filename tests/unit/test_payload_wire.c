/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about payload: every bound of every member, cut frames, random bytes, and entries against table and plan. */
#include <criterion/criterion.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "payload_case.h"
#include "samples.h"

static unsigned char frame[PAYLOAD_ASK_BYTES + 64];
static struct payload_message msg;
static struct poise_err err;

enum { AT_MAGIC = 0, AT_VERSION = 4, AT_TYPE = 6, AT_COUNT = 12, AT_RANK = 72, AT_REPLICA = 76, AT_BYTES = 104 };

static void set32(size_t at, uint32_t value)
{
    value = htole32(value);
    memcpy(frame + at, &value, sizeof value);
}

static void set64(size_t at, uint64_t value)
{
    value = htole64(value);
    memcpy(frame + at, &value, sizeof value);
}

static void refused(size_t n, int code, const char *text)
{
    struct payload_message untouched = {.request = 4711};
    int rc = payload_wire_decode(frame, n, &untouched, &err);
    cr_assert_eq(rc, code, "%d, not %d: %s", rc, code, err.text);
    cr_assert(strstr(err.text, text), "'%s' is not in: %s", text, err.text);
    cr_assert_eq(untouched.request, 4711);
}

Test(payload_wire, each_type_comes_back_as_it_was)
{
    for (uint32_t type = 1; type < PAYLOAD_N_TYPES; type++) {
        unsigned char again[PAYLOAD_CASE_BYTES];
        size_t n = payload_case_make(type, frame);
        cr_assert_eq(payload_wire_decode(frame, n, &msg, &err), 0, "%s: %s", payload_type_name(type), err.text);
        cr_assert_eq(msg.type, type);
        cr_assert_eq(msg.request, 7);
        cr_assert_eq(msg.step, 40);
        cr_assert(wire_id_is(msg.epoch, (struct wire_id){1, 2}) && wire_id_is(msg.plan_id, (struct wire_id){3, 4}) &&
                  wire_id_is(msg.table_hash, (struct wire_id){5, 6}));
        cr_assert(msg.rank == 9 && msg.replica == 1 && msg.incarnation.attempt == 1 &&
                  msg.incarnation.opened_ns == 99 && msg.incarnation.random == 1234567);
        cr_assert_eq(payload_wire_bytes(&msg), n);
        payload_wire_encode(&msg, again);
        cr_assert_eq(memcmp(frame, again, n), 0, "%s", payload_type_name(type));
    }
    payload_wire_decode(frame, payload_case_make(PAYLOAD_ASK_DATA, frame), &msg, &err);
    cr_assert(payload_extent(&msg, 0).index == 3 && payload_extent(&msg, 0).bytes == 100 &&
              payload_extent(&msg, 0).offset == 50 && payload_extent(&msg, 1).bytes == 1000);
    payload_wire_decode(frame, payload_case_make(PAYLOAD_ASK_ENTRIES, frame), &msg, &err);
    cr_assert_eq(payload_index(&msg, 2), 20);
}

Test(payload_wire, frames_that_are_cut_or_too_long_are_refused)
{
    for (uint32_t type = 1; type < PAYLOAD_N_TYPES; type++) {
        size_t n = payload_case_make(type, frame);
        for (size_t cut = 0; cut < n; cut++) {
            if (type == PAYLOAD_ENTRIES && cut >= PAYLOAD_HEADER_BYTES)
                continue; /* its entries say so, below */
            cr_assert_lt(payload_wire_decode(frame, cut, &msg, &err), 0, "%s of %zu bytes", payload_type_name(type),
                         cut);
        }
        if (type != PAYLOAD_ENTRIES)
            cr_assert_eq(payload_wire_decode(frame, n + 1, &msg, &err), -EPROTO, "%s", payload_type_name(type));
    }
}

Test(payload_wire, the_bounds_of_every_member)
{
    size_t n = payload_case_make(PAYLOAD_ASK_DATA, frame);

    frame[AT_MAGIC] ^= 1;
    refused(n, -EPROTO, "no message about payload");
    payload_case_make(PAYLOAD_ASK_DATA, frame);
    frame[AT_VERSION] = 2;
    refused(n, -EPROTONOSUPPORT, "version 2, not 1");
    payload_case_make(PAYLOAD_ASK_DATA, frame);
    frame[AT_TYPE] = 0;
    refused(n, -EPROTO, "of type 0");
    frame[AT_TYPE] = PAYLOAD_N_TYPES;
    refused(n, -EPROTO, "of type 10");
    frame[AT_TYPE] = PAYLOAD_ASK_DATA;
    frame[AT_TYPE + 1] = 1;
    refused(n, -EPROTO, "of type 261");
    payload_case_make(PAYLOAD_ASK_DATA, frame);
    set32(AT_RANK, WIRE_MAX_RANKS);
    refused(n, -EPROTO, "of rank 1048576");
    payload_case_make(PAYLOAD_ASK_DATA, frame);
    set32(AT_REPLICA, WIRE_MAX_REPLICAS);
    refused(n, -EPROTO, "replica 4096");
    payload_case_make(PAYLOAD_ASK_DATA, frame);
    set64(AT_BYTES, 1);
    refused(n, -EPROTO, "announces 1 bytes");
    payload_case_make(PAYLOAD_ASK_DATA, frame);
    set32(AT_COUNT, 0);
    refused(n, -EPROTO, "0 items");
    set32(AT_COUNT, 3);
    refused(n, -EPROTO, "32 bytes for 3 items");
    set32(AT_COUNT, PAYLOAD_MAX_ITEMS + 1);
    refused(PAYLOAD_HEADER_BYTES + (PAYLOAD_MAX_ITEMS + 1) * PAYLOAD_EXTENT_BYTES, -EPROTO, "8193 items, at most 8192");
    set32(AT_COUNT, UINT32_MAX); /* times 16 it does not fit 32 bits */
    refused(n, -EPROTO, "4294967295 items");

    n = payload_case_make(PAYLOAD_DATA, frame);
    set64(AT_BYTES, 0);
    refused(n, -EPROTO, "announces 0 bytes");
    set64(AT_BYTES, PAYLOAD_PIECE_BYTES + 1);
    refused(n, -EPROTO, "announces 1048577 bytes");
    n = payload_case_make(PAYLOAD_REFUSED, frame);
    set32(AT_COUNT, PAYLOAD_TEXT_BYTES);
    refused(PAYLOAD_HEADER_BYTES + PAYLOAD_TEXT_BYTES, -EPROTO, "200 items, at most 199");
    n = payload_case_make(PAYLOAD_HELLO, frame);
    set32(AT_COUNT, 1);
    refused(n, -EPROTO, "1 items, at most 0");
    n = payload_case_make(PAYLOAD_ASK_ENTRIES, frame);
    set32(AT_COUNT, 4);
    refused(n, -EPROTO, "12 bytes for 4 items");
}

Test(payload_wire, ranges_of_bytes_are_one_piece_and_never_empty)
{
    struct payload_extent extent = {.index = 1, .bytes = 0, .offset = 0};
    size_t n = payload_case_make(PAYLOAD_ASK_DATA, frame);

    payload_put_extent(frame + PAYLOAD_HEADER_BYTES, 1, &extent);
    refused(n, -EPROTO, "0 bytes at 0");
    extent.bytes = PAYLOAD_PIECE_BYTES - 100;
    payload_put_extent(frame + PAYLOAD_HEADER_BYTES, 1, &extent);
    cr_assert_eq(payload_wire_decode(frame, n, &msg, &err), 0);
    extent.bytes++;
    payload_put_extent(frame + PAYLOAD_HEADER_BYTES, 1, &extent);
    refused(n, -EPROTO, "1048577 in all");
    extent = (struct payload_extent){.bytes = UINT32_MAX, .offset = 5};
    payload_put_extent(frame + PAYLOAD_HEADER_BYTES, 1, &extent);
    refused(n, -EPROTO, "4294967295 bytes at 5");
    extent = (struct payload_extent){.bytes = 1, .offset = UINT64_MAX};
    payload_put_extent(frame + PAYLOAD_HEADER_BYTES, 1, &extent);
    refused(n, -EPROTO, "at 18446744073709551615");
}

/* ---------------------------------------------------------------------------------------------------------- entries */

static struct directory_sample sample;
static struct value values[PAYLOAD_CASE_FIELDS];

static int next(struct payload_entries *entries, uint32_t index, uint64_t in_bytes)
{
    return payload_next_entry(entries, index, in_bytes, &sample, values, &err);
}

static void begin(struct payload_entries *entries, size_t n_item_bytes)
{
    static struct wire_table table;

    table = payload_case_table();
    payload_wire_decode(frame, PAYLOAD_HEADER_BYTES + n_item_bytes, &msg, &err);
    payload_entries_begin(&msg, &table, 9, entries);
}

Test(payload_wire, entries_say_what_was_said)
{
    struct payload_entries entries;
    size_t n = payload_case_make(PAYLOAD_ENTRIES, frame) - PAYLOAD_HEADER_BYTES;

    begin(&entries, n);
    cr_assert_eq(next(&entries, 4, 75), 0, "%s", err.text);
    cr_assert(sample.tag == 11 && sample.loss_tokens == 5 && sample.arrival_loss_tokens == 9 && sample.bytes == 75 &&
              sample.hash == 77 && sample.arrival_micro_batch == 2);
    cr_assert(values[1].present && values[1].n_dims == 2 && values[1].shape[0] == 3 && values[1].shape[1] == 8);
    cr_assert_eq(next(&entries, 5, DIRECTORY_ANY_BYTES), 0, "%s", err.text);
    cr_assert(values[0].present && !values[1].present && values[2].present);
    cr_assert_eq(entries.n_left, 0);
    cr_assert_eq(next(&entries, 6, DIRECTORY_ANY_BYTES), -EPROTO);
    cr_assert(strstr(err.text, "rank 9, sample 6: its entry is cut off"), "%s", err.text);
}

Test(payload_wire, entries_that_are_cut_or_bent_are_refused)
{
    struct payload_entries entries;
    size_t n = payload_case_make(PAYLOAD_ENTRIES, frame) - PAYLOAD_HEADER_BYTES;
    size_t first = 48 + 16 + 24 + 16; /* with values of 1, 2 and 1 axes */
    size_t at = PAYLOAD_HEADER_BYTES;

    for (size_t cut = 1; cut < first; cut++) {
        begin(&entries, cut);
        cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO, "%zu bytes", cut);
    }
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, 74), -EPROTO);
    cr_assert(strstr(err.text, "its fields have 75 bytes, its entry says 75, the plan 74"), "%s", err.text);
    cr_assert(err.rank == 9 && err.sample == 0);
    set64(at + 24, 76); /* bytes */
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    payload_case_make(PAYLOAD_ENTRIES, frame);
    set32(at + 44, UINT32_MAX); /* number of values: what follows is the next entry */
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    payload_case_make(PAYLOAD_ENTRIES, frame);
    set32(at + 48, PAYLOAD_CASE_FIELDS); /* position of the first field */
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    cr_assert(strstr(err.text, "names a field that there is not"), "%s", err.text);
    set32(at + 48, 1); /* twice */
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    payload_case_make(PAYLOAD_ENTRIES, frame);
    set32(at + 52, POISE_MAX_DIMS + 1);
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    cr_assert(strstr(err.text, "a shape that is none"), "%s", err.text);
    payload_case_make(PAYLOAD_ENTRIES, frame);
    set64(at + 56, UINT64_MAX); /* an axis of -1 */
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    set64(at + 56, (uint64_t)INT64_MAX);
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    cr_assert(strstr(err.text, "do not fit 63 bits"), "%s", err.text);
    payload_case_make(PAYLOAD_ENTRIES, frame);
    set64(at + 48 + 16 + 16, 9); /* pixels has a fixed axis of 8 */
    begin(&entries, n);
    cr_assert_eq(next(&entries, 0, DIRECTORY_ANY_BYTES), -EPROTO);
    cr_assert(strstr(err.text, "pixels has shape [3, 9]"), "%s", err.text);
}

Test(payload_wire, random_bytes_are_refused_or_keep_the_bounds)
{
    uint64_t seed = samples_seed("random_bytes");

    for (uint32_t turn = 0; turn < 200000; turn++) {
        uint32_t type = 1 + (uint32_t)samples_below(&seed, PAYLOAD_N_TYPES - 1);
        size_t n = payload_case_make(type, frame);
        for (uint64_t k = samples_below(&seed, 4); k > 0; k--)
            frame[samples_below(&seed, n)] ^= (unsigned char)(1u << samples_below(&seed, 8));
        n -= samples_below(&seed, 8) == 0 ? samples_below(&seed, n) : 0;
        if (payload_wire_decode(frame, n, &msg, &err) < 0)
            continue;
        cr_assert(msg.type < PAYLOAD_N_TYPES && msg.count <= PAYLOAD_MAX_ITEMS && msg.bytes <= PAYLOAD_PIECE_BYTES);
        struct payload_entries entries;
        begin(&entries, n - PAYLOAD_HEADER_BYTES);
        for (uint32_t i = 0; msg.type == PAYLOAD_ENTRIES && i < msg.count; i++)
            if (next(&entries, i, DIRECTORY_ANY_BYTES) < 0)
                break;
    }
}

Test(payload_wire, words_exist_for_all_codes)
{
    for (uint32_t type = 1; type < PAYLOAD_N_TYPES; type++)
        cr_assert_str_neq(payload_type_name(type), "?");
    for (uint32_t code = 1; code < PAYLOAD_N_REFUSALS; code++)
        cr_assert_str_neq(payload_refusal_text(code), "no reason");
    cr_assert_str_eq(payload_type_name(UINT32_MAX), "?");
    cr_assert_str_eq(payload_refusal_text(UINT32_MAX), "no reason");
}
