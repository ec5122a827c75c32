/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open addressing with linear probing, at most half full; removal moves later entries of the same run back, so there
 * are no tombstones to collect. Keys are numbers that poised or libzmq chose, so nobody can aim at collisions.
 */
#include "daemon/shell/map.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST_PLACES 64u /* a power of two, as every later size */

static uint32_t home(const struct map *map, uint64_t key)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (map->n_places - 1); /* Fibonacci hashing */
}

/* The place of the key, or the free one where it belongs. */
static uint32_t find(const struct map *map, uint64_t key)
{
    uint32_t i = home(map, key);
    while (map->entries[i].key && map->entries[i].key != key)
        i = (i + 1) & (map->n_places - 1);
    return i;
}

static int grow(struct map *map)
{
    struct map bigger = {.n_places = map->n_places ? map->n_places * 2 : FIRST_PLACES, .n_used = map->n_used};
    bigger.entries = calloc(bigger.n_places, sizeof *bigger.entries);
    if (!bigger.entries)
        return -ENOMEM;
    for (uint32_t i = 0; i < map->n_places; i++)
        if (map->entries[i].key)
            bigger.entries[find(&bigger, map->entries[i].key)] = map->entries[i];
    free(map->entries);
    *map = bigger;
    return 0;
}

int map_put(struct map *map, uint64_t key, uint64_t value)
{
    if (2 * (map->n_used + 1) > map->n_places && grow(map) < 0)
        return -ENOMEM;
    struct map_entry *entry = &map->entries[find(map, key)];
    map->n_used += entry->key == 0;
    *entry = (struct map_entry){key, value};
    return 0;
}

uint64_t map_get(const struct map *map, uint64_t key)
{
    return map->n_places ? map->entries[find(map, key)].value : 0;
}

void map_remove(struct map *map, uint64_t key)
{
    if (!map->n_places)
        return;
    uint32_t mask = map->n_places - 1, hole = find(map, key);
    if (!map->entries[hole].key)
        return;
    for (uint32_t i = (hole + 1) & mask; map->entries[i].key; i = (i + 1) & mask) {
        uint32_t from_home = (i - home(map, map->entries[i].key)) & mask;
        if (from_home < ((i - hole) & mask))
            continue; /* its home lies after the hole */
        map->entries[hole] = map->entries[i];
        hole = i;
    }
    map->entries[hole] = (struct map_entry){0, 0};
    map->n_used--;
}

void map_free(struct map *map)
{
    free(map->entries);
    *map = (struct map){0};
}
