/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record's bytes. The checksum covers a block's head as well, so a length that a torn or a foreign write left is
 * never believed: a block is whole and right, or reading ends there.
 */
#include "proto/record.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/planner/err.h"

#define HASHED_BYTES 24u /* of a head, before the checksum */

static const char magic[8] = "POISEREC"; /* without a 0 */

static void put(uint8_t *to, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *from, unsigned n_bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < n_bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static uint64_t checksum(const uint8_t *head, const struct record_block *block)
{
    XXH3_state_t state;

    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, head, HASHED_BYTES);
    if (block->n_first)
        XXH3_64bits_update(&state, block->first, block->n_first);
    if (block->n_second)
        XXH3_64bits_update(&state, block->second, block->n_second);
    return XXH3_64bits_digest(&state);
}

void record_start(uint8_t ret_bytes[RECORD_START_BYTES])
{
    memcpy(ret_bytes, magic, sizeof magic);
    put(ret_bytes + 8, RECORD_VERSION, 4);
    put(ret_bytes + 12, 0, 4);
}

void record_head(const struct record_block *block, uint8_t ret_bytes[RECORD_HEAD_BYTES])
{
    put(ret_bytes, block->kind, 4);
    put(ret_bytes + 4, block->n_first, 4);
    put(ret_bytes + 8, block->step, 8);
    put(ret_bytes + 16, block->n_second, 4);
    put(ret_bytes + 20, 0, 4);
    put(ret_bytes + HASHED_BYTES, checksum(ret_bytes, block), 8);
}

bool record_is(const uint8_t *bytes, size_t n_bytes)
{
    return n_bytes >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

int record_open(const uint8_t *bytes, size_t n_bytes, size_t *ret_at, struct poise_err *err)
{
    if (!record_is(bytes, n_bytes))
        return err_set(err, -EPROTO, "not a record: it does not begin with %.8s", magic);
    if (n_bytes < RECORD_START_BYTES)
        return err_set(err, -EPROTO, "the record has %zu bytes: it was cut before its first block", n_bytes);
    if (get(bytes + 8, 4) != RECORD_VERSION)
        return err_set(err, -EPROTONOSUPPORT, "a record of version %" PRIu64 ", version %u is known here",
                       get(bytes + 8, 4), RECORD_VERSION);
    *ret_at = RECORD_START_BYTES;
    return 0;
}

int record_next(const uint8_t *bytes, size_t n_bytes, size_t *at, struct record_block *ret_block, struct poise_err *err)
{
    const uint8_t *head = bytes + *at;
    struct record_block block;
    size_t left = n_bytes - *at;

    if (left == 0)
        return 0;
    if (left < RECORD_HEAD_BYTES)
        return err_set(err, -ENODATA, "the last %zu bytes are a part of a block: its writer was killed", left);
    block = (struct record_block){.kind = (uint32_t)get(head, 4),
                                  .n_first = (uint32_t)get(head + 4, 4),
                                  .step = get(head + 8, 8),
                                  .n_second = (uint32_t)get(head + 16, 4)};
    left -= RECORD_HEAD_BYTES;
    if ((uint64_t)block.n_first + block.n_second > left)
        return err_set(err, -ENODATA,
                       "the last %zu bytes are a part of a block (of step %" PRIu64 "): its writer was killed",
                       left + RECORD_HEAD_BYTES, block.step);
    block.first = head + RECORD_HEAD_BYTES;
    block.second = block.first + block.n_first;
    if (get(head + HASHED_BYTES, 8) != checksum(head, &block))
        return err_set(err, -EBADMSG,
                       "the block at byte %zu has another checksum than it names: nothing behind it is read", *at);
    *at += RECORD_HEAD_BYTES + (size_t)block.n_first + block.n_second;
    *ret_block = block;
    return 1;
}

/* --------------------------------------------------------------------------------------------------------------
 * messages */

static int read_message(const uint8_t *bytes, uint32_t n_bytes, enum wire_type type, struct wire_message **ret_msg,
                        struct poise_err *err)
{
    struct wire_message *msg;
    int rc = wire_decode(bytes, n_bytes, 0, &msg, err);

    if (rc < 0)
        return rc;
    if (msg->type != type) {
        rc = err_set(err, -EPROTO, "%s where a record has %s", wire_type_name(msg->type), wire_type_name(type));
        wire_free(msg);
        return rc;
    }
    *ret_msg = msg;
    return 0;
}

int record_read_group(const struct record_block *block, struct wire_message **ret_join, struct poise_err *err)
{
    if (block->kind != RECORD_GROUP)
        return err_set(err, -EPROTO, "the record does not begin with its group");
    return read_message(block->first, block->n_first, WIRE_JOIN, ret_join, err);
}

static int check_metas(const struct wire_message *msg, uint64_t step, uint32_t n_ranks, struct poise_err *err)
{
    if (msg->meta.n_metas != n_ranks)
        return err_set(err, -EPROTO, "step %" PRIu64 ": metadata of %u ranks, not of %u", step, msg->meta.n_metas,
                       n_ranks);
    for (uint32_t i = 0; i < n_ranks; i++) {
        const struct wire_meta *meta = &msg->meta.metas[i];

        if (meta->rank != i || meta->replica != 0 || meta->step != step)
            return err_set(err, -EPROTO,
                           "step %" PRIu64 ": metadata of rank %u, replica %u, step %" PRIu64
                           " in the place of rank %u",
                           step, meta->rank, meta->replica, meta->step, i);
    }
    return 0;
}

int record_read_step(const struct record_block *block, uint32_t n_ranks, struct wire_message **ret_outcome,
                     struct wire_message **ret_metas, struct poise_err *err)
{
    struct wire_message *outcome = NULL, *metas = NULL;
    bool whole = block->kind == RECORD_STEP;
    int rc = 0;

    if (!whole && block->kind != RECORD_MISSING)
        return err_set(err, -EPROTO, "a block of kind %u is no step", block->kind);
    if (whole || block->n_first)
        rc = read_message(block->first, block->n_first, WIRE_OUTCOME, &outcome, err);
    if (rc == 0 && outcome && outcome->outcome.step != block->step)
        rc =
            err_set(err, -EPROTO, "step %" PRIu64 ": the outcome of step %" PRIu64, block->step, outcome->outcome.step);
    if (rc == 0 && whole)
        rc = read_message(block->second, block->n_second, WIRE_META, &metas, err);
    if (rc == 0 && whole)
        rc = check_metas(metas, block->step, n_ranks, err);
    if (rc < 0) {
        wire_free(outcome);
        wire_free(metas);
        return rc;
    }
    *ret_outcome = outcome;
    *ret_metas = metas;
    return 0;
}
