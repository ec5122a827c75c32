/* SPDX-License-Identifier: Apache-2.0 */
/* A heap of numbered things by (key, number), the least on top, that knows where each stands. Internal to the planner.
 */
#ifndef POISE_PLANNER_HEAP_H
#define POISE_PLANNER_HEAP_H

#include "problem.h"

struct heap {
    uint32_t n;
    uint32_t *id; /* [n] */
    uint32_t *at; /* [capacity] where an id stands; PLAN_ANY: not in the heap */
    u128 *key;    /* [capacity] by id; after a change call heap_moved() */
};

/* Empty, for ids below capacity. -ENOMEM. */
int heap_new(struct pool *pool, uint32_t capacity, struct heap *ret_heap);

void heap_push(struct heap *heap, uint32_t id, u128 key);
void heap_remove(struct heap *heap, uint32_t id);
void heap_moved(struct heap *heap, uint32_t id); /* its key changed */

static inline bool heap_has(const struct heap *heap, uint32_t id)
{
    return heap->at[id] != PLAN_ANY;
}

#endif
