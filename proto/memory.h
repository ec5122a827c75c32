/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to proto/. Memory: a pool that is freed as a whole, and a block that is measured first, then filled. */
#ifndef POISE_PROTO_MEMORY_H
#define POISE_PROTO_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All memory of proto/ comes from here, so that tests can make it fail. malloc() outside tests. */
extern void *(*wire_malloc)(size_t n_bytes);

struct pool_chunk;

struct pool { /* memory in chunks, not zeroed */
    struct pool_chunk *chunks;
    size_t left;  /* bytes of the newest chunk */
    size_t total; /* bytes of all chunks */
    size_t limit; /* of total */
    bool over;    /* an allocation failed because of the limit */
    bool failed;  /* or because memory is short */
};

/* Aligned to 16 bytes. NULL: see over and failed. */
void *wire_pool_take(struct pool *pool, size_t n_bytes);
void wire_pool_free(struct pool *pool);

/* In scan.c: false where the message (a ProtobufCMessageDescriptor) has more unknown fields than any version would add.
 * Malformed bytes are fine here. */
bool wire_scan(const void *descriptor, const uint8_t *bytes, size_t n_bytes);

/*
 * One code path runs twice: first without memory (base NULL, take only counts and returns NULL), then over a block of
 * just that size.
 */
struct block {
    uint8_t *base;
    size_t used;
};

static inline void *block_take(struct block *block, size_t n_bytes)
{
    size_t at = block->used;
    block->used += (n_bytes + 7) & ~(size_t)7;
    return block->base && n_bytes > 0 ? block->base + at : NULL;
}

#endif
