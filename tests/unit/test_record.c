/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a record: what was written is read; a torn, a changed or a foreign file is never taken for a whole one.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "record_case.h"

static uint32_t count_blocks(const uint8_t *bytes, size_t n_bytes, int *ret_rc)
{
    struct record_block block;
    struct poise_err err = {0};
    size_t at;
    uint32_t n = 0;

    *ret_rc = record_open(bytes, n_bytes, &at, &err);
    while (*ret_rc == 0 || *ret_rc == 1) {
        *ret_rc = record_next(bytes, n_bytes, &at, &block, &err);
        if (*ret_rc != 1)
            break;
        n++;
    }
    cr_assert(*ret_rc == 0 || (err.code == *ret_rc && err.text[0]));
    return n;
}

Test(record, what_was_written_is_read)
{
    struct record_case record = record_case_make();
    struct wire_message *join, *outcome, *metas;
    struct record_block block;
    struct poise_err err = {0};
    size_t at;

    cr_assert(record_is(record.bytes, record.n_bytes));
    cr_assert_eq(record_open(record.bytes, record.n_bytes, &at, &err), 0, "%s", err.text);
    cr_assert_eq(record_next(record.bytes, record.n_bytes, &at, &block, &err), 1, "%s", err.text);
    cr_assert_eq(record_read_group(&block, &join, &err), 0, "%s", err.text);
    cr_assert_str_eq(join->join.job, "vlm");
    cr_assert_eq(record_read_step(&block, 2, &outcome, &metas, &err), -EPROTO);

    cr_assert_eq(record_next(record.bytes, record.n_bytes, &at, &block, &err), 1);
    cr_assert(block.kind == RECORD_STEP && block.step == 7);
    cr_assert_eq(record_read_step(&block, 2, &outcome, &metas, &err), 0, "%s", err.text);
    cr_assert(outcome->outcome.plan_id.hi == 1 && metas->meta.metas[1].length[1] == 40);
    cr_assert(metas->meta.metas[1].tag[0] == 100 && metas->meta.metas[1].node == 3 &&
              metas->meta.metas[1].sync_set == 1);
    wire_free(outcome);
    wire_free(metas);
    cr_assert_eq(record_read_step(&block, 3, &outcome, &metas, &err), -EPROTO, "of another number of ranks");

    cr_assert_eq(record_next(record.bytes, record.n_bytes, &at, &block, &err), 1);
    cr_assert_eq(record_read_step(&block, 2, &outcome, &metas, &err), 0, "%s", err.text);
    cr_assert(outcome && !metas && block.kind == RECORD_MISSING);
    wire_free(outcome);
    cr_assert_eq(record_next(record.bytes, record.n_bytes, &at, &block, &err), 1);
    cr_assert(block.kind == RECORD_END && block.step == 9);
    cr_assert_eq(record_next(record.bytes, record.n_bytes, &at, &block, &err), 0);
    wire_free(join);
    record_case_free(&record);
}

Test(record, a_torn_tail_is_known_at_every_byte)
{
    struct record_case record = record_case_make();

    for (size_t n = 0; n < record.n_bytes; n++) {
        uint32_t whole = 0;
        bool between = n == RECORD_START_BYTES;
        uint8_t *copy = malloc(n ? n : 1); /* of just that size, for sanitizers */
        int rc;

        memcpy(copy, record.bytes, n);
        for (uint32_t i = 0; i < record.n_blocks; i++) {
            whole += record.end[i] <= n;
            between |= record.end[i] == n;
        }
        cr_assert_eq(count_blocks(copy, n, &rc), whole, "cut to %zu bytes", n);
        cr_assert_eq(rc, n < RECORD_START_BYTES ? -EPROTO : between ? 0 : -ENODATA, "cut to %zu bytes: %d", n, rc);
        free(copy);
    }
    record_case_free(&record);
}

Test(record, a_changed_byte_is_never_believed)
{
    struct record_case record = record_case_make();
    int rc;

    for (size_t i = RECORD_START_BYTES; i < record.n_bytes; i++) {
        uint32_t before = 0;

        for (uint32_t b = 0; b < record.n_blocks; b++)
            before += record.end[b] <= i;
        record.bytes[i] ^= 0x20;
        cr_assert_eq(count_blocks(record.bytes, record.n_bytes, &rc), before, "byte %zu", i);
        cr_assert(rc == -EBADMSG || rc == -ENODATA, "byte %zu: %d", i, rc);
        record.bytes[i] ^= 0x20;
    }
    record_case_free(&record);
}

Test(record, another_version_and_another_file_are_named)
{
    struct record_case record = record_case_make();
    struct poise_err err;
    size_t at;

    record.bytes[8] = 2;
    cr_assert_eq(record_open(record.bytes, record.n_bytes, &at, &err), -EPROTONOSUPPORT);
    cr_assert(strstr(err.text, "version 2") && strstr(err.text, "version 1"), "%s", err.text);
    record.bytes[0] = 'X';
    cr_assert_eq(record_open(record.bytes, record.n_bytes, &at, &err), -EPROTO);
    cr_assert_not(record_is(record.bytes, record.n_bytes));
    record_case_free(&record);
}

/* Right checksums around wrong messages: the file of an enemy. */
Test(record, hostile_blocks_are_refused)
{
    struct record_case record = record_case_make();
    struct wire_meta metas[2] = {{.step = 7, .rank = 1}, {.step = 7, .rank = 0}};
    struct wire_message meta = {.type = WIRE_META, .meta = {.n_metas = 2, .metas = metas}};
    struct wire_message outcome = {.type = WIRE_OUTCOME, .outcome = {.step = 7}}, *a, *b;
    struct wire_message other = {.type = WIRE_UNKNOWN};
    struct record_block block;
    struct poise_err err;
    size_t at = record.n_bytes;

    record_case_add(&record, RECORD_STEP, 7, &outcome, &meta); /* ranks in a wrong order */
    record_case_add(&record, RECORD_STEP, 9, &outcome, &meta); /* of another step */
    record_case_add(&record, RECORD_STEP, 7, &meta, &outcome); /* exchanged */
    record_case_add(&record, RECORD_STEP, 7, &other, &meta);
    record_case_add(&record, RECORD_STEP, 7, NULL, NULL);
    record_case_add(&record, RECORD_STEP, 7, &outcome, NULL);
    record_case_add(&record, 77, 7, &outcome, NULL);
    for (uint32_t n = 0; record_next(record.bytes, record.n_bytes, &at, &block, &err) == 1; n++)
        cr_assert_lt(record_read_step(&block, 2, &a, &b, &err), 0, "block %u", n);
    cr_assert_eq(at, record.n_bytes);
    record_case_free(&record);
}
