/* SPDX-License-Identifier: Apache-2.0 */
/* Ties fall by number, so that what is taken next never depends on the order in which things came in. */
#include "heap.h"

#include <errno.h>
#include <string.h>

int heap_new(struct pool *pool, uint32_t capacity, struct heap *ret_heap)
{
    struct heap h = {0};

    h.id = pool_get(pool, capacity, sizeof *h.id);
    h.at = pool_get(pool, capacity, sizeof *h.at);
    h.key = pool_get(pool, capacity, sizeof *h.key);
    if (!h.id || !h.at || !h.key)
        return -ENOMEM;
    memset(h.at, 0xff, capacity * sizeof *h.at);
    *ret_heap = h;
    return 0;
}

static bool before(const struct heap *h, uint32_t a, uint32_t b)
{
    return h->key[a] < h->key[b] || (h->key[a] == h->key[b] && a < b);
}

static void set(struct heap *h, uint32_t at, uint32_t id)
{
    h->id[at] = id;
    h->at[id] = at;
}

static void rise(struct heap *h, uint32_t at, uint32_t id)
{
    for (; at > 0 && before(h, id, h->id[(at - 1) / 2]); at = (at - 1) / 2)
        set(h, at, h->id[(at - 1) / 2]);
    set(h, at, id);
}

/* The lesser child of a place that has one. */
static uint32_t lesser_child(const struct heap *h, uint32_t at)
{
    uint32_t child = 2 * at + 1;

    return child + (child + 1 < h->n && before(h, h->id[child + 1], h->id[child]));
}

static void sink(struct heap *h, uint32_t at, uint32_t id)
{
    for (uint32_t child; 2 * at + 1 < h->n; at = child) {
        child = lesser_child(h, at);
        if (!before(h, h->id[child], id))
            break;
        set(h, at, h->id[child]);
    }
    set(h, at, id);
}

void heap_push(struct heap *h, uint32_t id, u128 key)
{
    h->key[id] = key;
    rise(h, h->n++, id);
}

void heap_moved(struct heap *h, uint32_t id)
{
    uint32_t at = h->at[id];

    if (at > 0 && before(h, id, h->id[(at - 1) / 2]))
        rise(h, at, id);
    else
        sink(h, at, id);
}

/* The last one takes the place. It belongs near the bottom most times: so the hole goes all the way down, one comparison a
 * level, and from there the last one rises to where it would have sunk to. */
void heap_remove(struct heap *h, uint32_t id)
{
    uint32_t hole = h->at[id], last = h->id[--h->n];

    h->at[id] = PLAN_ANY;
    if (last == id)
        return;
    for (uint32_t child; 2 * hole + 1 < h->n; hole = child) {
        child = lesser_child(h, hole);
        set(h, hole, h->id[child]);
    }
    rise(h, hole, last);
}
