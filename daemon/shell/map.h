/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to numbers: sessions to connections, routing ids to sessions. Keys are not 0. Zeroed memory is an empty map.
 * */
#ifndef POISE_SHELL_MAP_H
#define POISE_SHELL_MAP_H

#include <stdint.h>

struct map {
    struct map_entry {
        uint64_t key, value;
    } *entries;
    uint32_t n_places, n_used;
};

/* Adds or replaces. 0 or -ENOMEM (nothing has changed). */
int map_put(struct map *map, uint64_t key, uint64_t value);

/* 0 where the key is not there. */
uint64_t map_get(const struct map *map, uint64_t key);

void map_remove(struct map *map, uint64_t key);

void map_free(struct map *map); /* leaves an empty one */

#endif
