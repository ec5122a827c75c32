/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the reader of records. Checksums would stop every mutation, so the input is also read as parts: a byte that
 * cuts it into an outcome and metadata, which get a right head.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void must(bool fine)
{
    if (!fine)
        abort();
}

static void read_block(const struct record_block *block)
{
    struct wire_message *first, *second;
    struct poise_err err = {0};
    uint32_t n_ranks = 2;

    int rc = record_read_group(block, &first, &err);
    must(rc == 0 || (rc < 0 && err.code == rc && err.text[0]));
    if (rc == 0) {
        must(first->type == WIRE_JOIN);
        wire_free(first);
    }
    rc = record_read_step(block, n_ranks, &first, &second, &err);
    must(rc == 0 || (rc < 0 && err.code == rc && err.text[0]));
    if (rc == 0) {
        must(block->kind == RECORD_MISSING || (first && second && second->meta.n_metas == n_ranks));
        must(!first || first->outcome.step == block->step);
        wire_free(first);
        wire_free(second);
    }
}

static void read_file(const uint8_t *bytes, size_t n_bytes)
{
    struct record_block block;
    struct poise_err err = {0};
    size_t at, before;

    int rc = record_open(bytes, n_bytes, &at, &err);
    must(rc == 0 || err.text[0]);
    while (rc >= 0) {
        before = at;
        rc = record_next(bytes, n_bytes, &at, &block, &err);
        must(at <= n_bytes && (rc != 1 || at >= before + RECORD_HEAD_BYTES));
        if (rc != 1)
            break;
        read_block(&block);
    }
    must(rc == 0 || rc == -ENODATA || rc == -EBADMSG || rc == -EPROTO || rc == -EPROTONOSUPPORT);
}

static void read_parts(const uint8_t *bytes, size_t n_bytes)
{
    struct record_block block, back;
    size_t at = 0, n = n_bytes < 3 ? 0 : n_bytes - 3, cut = n ? (bytes[1] | (size_t)bytes[2] << 8) % (n + 1) : 0;
    uint8_t *copy;

    if (n_bytes < 3)
        return;
    copy = malloc(RECORD_HEAD_BYTES + n);
    if (!copy)
        return;
    memcpy(copy + RECORD_HEAD_BYTES, bytes + 3, n);
    block = (struct record_block){.kind = bytes[0] % 6,
                                  .step = 7,
                                  .first = copy + RECORD_HEAD_BYTES,
                                  .second = copy + RECORD_HEAD_BYTES + cut,
                                  .n_first = (uint32_t)cut,
                                  .n_second = (uint32_t)(n - cut)};
    record_head(&block, copy);
    must(record_next(copy, RECORD_HEAD_BYTES + n, &at, &back, NULL) == 1);
    must(back.kind == block.kind && back.step == 7 && back.n_first == cut && at == RECORD_HEAD_BYTES + n);
    read_block(&back);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    read_file(bytes, n_bytes);
    read_parts(bytes, n_bytes);
    return 0;
}
