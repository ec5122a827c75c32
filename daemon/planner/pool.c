/* SPDX-License-Identifier: Apache-2.0 */
/* Working memory of one call: freed as a whole, so that no error path can forget a block. */
#include <stdlib.h>

#include "problem.h"

struct pool_block {
    struct pool_block *next;
    uint64_t padding; /* keeps the data behind it aligned for 128-bit integers */
};

void *pool_get(struct pool *pool, uint64_t n, size_t size)
{
    struct pool_block *block;

    if (n > (SIZE_MAX - sizeof *block) / (size ? size : 1))
        return NULL;
    block = calloc(1, sizeof *block + n * size);
    if (!block)
        return NULL;
    block->next = pool->blocks;
    pool->blocks = block;
    return block + 1;
}

void pool_free(struct pool *pool)
{
    while (pool->blocks) {
        struct pool_block *next = pool->blocks->next;
        free(pool->blocks);
        pool->blocks = next;
    }
}
