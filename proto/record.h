/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a record: what every rank said of each step and what became of it, written by rank 0's library where the
 * option `record` asks, read by `poisectl explain` and `poisectl simulate`. Pure; client/record.c does the writing.
 *
 *   file:   "POISEREC", version (u32), 0 (u32), then blocks; all numbers little endian
 *   block:  kind (u32), bytes of its first part (u32), step (u64), bytes of its second part (u32), 0 (u32),
 *           XXH3-64 of these 24 bytes and of both parts (u64), then the parts, each the bytes of wire_encode()
 *
 * A process that is killed leaves a part of a block at the end: it has no checksum that fits, so reading ends before
 * it.
 */
#ifndef POISE_PROTO_RECORD_H
#define POISE_PROTO_RECORD_H

#include "wire.h"

#define RECORD_VERSION 1u
#define RECORD_START_BYTES 16u
#define RECORD_HEAD_BYTES 32u

#define RECORD_GROUP 1 /* first of all: JOIN of rank 0 (job, group, n, options as text, planner's version); nothing */
#define RECORD_STEP 2  /* OUTCOME without slices; META of replica 0 of all ranks, in order, each table once */
#define RECORD_MISSING                                                                                                 \
    3                 /* OUTCOME or nothing; nothing: the metadata of this step never came, or the disk was too slow */
#define RECORD_END 4  /* nothing; nothing: closed in order. step: the one after the last */
#define RECORD_FULL 5 /* the same: recording stopped at the limit of bytes */

struct record_block {
    uint32_t kind; /* RECORD_*; others belong to later versions: skip them */
    uint64_t step;
    const uint8_t *first, *second; /* into the bytes that were read */
    uint32_t n_first, n_second;
};

/* ---------------------------------------------------------------------------------------------------------------
 * writing */

void record_start(uint8_t ret_bytes[RECORD_START_BYTES]);

/* The head of a block; its parts follow it. */
void record_head(const struct record_block *block, uint8_t ret_bytes[RECORD_HEAD_BYTES]);

/* ---------------------------------------------------------------------------------------------------------------
 * reading */

/* Whether these are the first bytes of a record, of whatever version. */
bool record_is(const uint8_t *bytes, size_t n_bytes);

/* *ret_at: where the blocks begin. Errors: -EPROTO no record, -EPROTONOSUPPORT another version. */
int record_open(const uint8_t *bytes, size_t n_bytes, size_t *ret_at, struct poise_err *err);

/* The block at *at, and moves *at behind it. 1; 0 at the end; -ENODATA the rest is a part of a block (its writer was
 * killed); -EBADMSG its checksum is wrong. */
int record_next(const uint8_t *bytes, size_t n_bytes, size_t *at, struct record_block *ret_block,
                struct poise_err *err);

/* The message of RECORD_GROUP. *ret_join: wire_free(). Errors: as wire_decode(), -EPROTO of another kind. */
int record_read_group(const struct record_block *block, struct wire_message **ret_join, struct poise_err *err);

/* The messages of RECORD_STEP and, where it is there, of RECORD_MISSING (else NULL). Checked: kinds, the step, and one
 * meta of each of the n_ranks ranks. Caller frees both with wire_free(). Errors likewise. */
int record_read_step(const struct record_block *block, uint32_t n_ranks, struct wire_message **ret_outcome,
                     struct wire_message **ret_metas, struct poise_err *err);

#endif
