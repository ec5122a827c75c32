/* SPDX-License-Identifier: Apache-2.0 */
/* A stable sort whose result is the same everywhere: libc's qsort promises neither. Internal to the planner. */
#ifndef POISE_PLANNER_SORT_H
#define POISE_PLANNER_SORT_H

#include <stdint.h>

struct sort_item {
    uint64_t key;
    uint32_t id;
};

/* Ascending by key, equal keys keep their order. scratch: room for n more. For descending give ~key. */
void sort_items(struct sort_item *items, uint32_t n, struct sort_item *scratch);

#endif
