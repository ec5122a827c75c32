/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool behind encoding and decoding. The structs of protobuf-c live for one call, so they are taken from a few
 * chunks and given back at once; its limit is what keeps a hostile message, that unpacks to twenty times its size, from
 * taking memory.
 */
#include "proto/memory.h"

#include <stdlib.h>

/* Most messages unpack within one chunk; a small part of any budget. */
#define CHUNK_BYTES ((size_t)16 << 10)
#define CHUNK_ALIGN ((size_t)16)

void *(*wire_malloc)(size_t n_bytes) = malloc;

struct pool_chunk {
    struct pool_chunk *next;
    size_t n_bytes; /* after this header */
    _Alignas(CHUNK_ALIGN) uint8_t data[];
};

static int add_chunk(struct pool *pool, size_t n_bytes)
{
    size_t whole = sizeof(struct pool_chunk) + n_bytes;

    if (whole < n_bytes || whole > pool->limit - pool->total) {
        pool->over = true;
        return -1;
    }
    struct pool_chunk *chunk = wire_malloc(whole);
    if (!chunk) {
        pool->failed = true;
        return -1;
    }
    chunk->n_bytes = n_bytes;
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->left = n_bytes;
    pool->total += whole;
    return 0;
}

void *wire_pool_take(struct pool *pool, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX - CHUNK_ALIGN) {
        pool->over = true;
        return NULL;
    }
    n_bytes = (n_bytes + CHUNK_ALIGN - 1) & ~(CHUNK_ALIGN - 1);
    if (n_bytes == 0)
        n_bytes = CHUNK_ALIGN; /* protobuf-c may ask for nothing and takes NULL for a failure */
    if (n_bytes > pool->left) {
        /* The end of the old chunk is given up; where the limit is near, a chunk of just the size may still fit. */
        size_t room = pool->limit - pool->total;
        size_t usual = room > 4 * CHUNK_BYTES ? CHUNK_BYTES : CHUNK_ALIGN;
        if (add_chunk(pool, n_bytes > usual ? n_bytes : usual) < 0)
            return NULL;
    }
    struct pool_chunk *chunk = pool->chunks;
    void *data = chunk->data + chunk->n_bytes - pool->left;
    pool->left -= n_bytes;
    return data;
}

void wire_pool_free(struct pool *pool)
{
    while (pool->chunks) {
        struct pool_chunk *next = pool->chunks->next;
        free(pool->chunks);
        pool->chunks = next;
    }
    pool->left = pool->total = 0;
}
