/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorting by 64-bit keys. Stable, so that ties fall by (origin rank, index), the order of the input. Short runs (one
 * rank's samples) are inserted; long ones go through a radix sort, linear in samples, that skips digits which all keys
 * share.
 */
#include "sort.h"

#include <string.h>

#define INSERT_BELOW 72 /* most of what is sorted by rank comes nearly sorted, and then inserting beats merging */
#define DIGIT_BITS 11   /* 2,048 counters are 8 KB: within the first-level cache beside the data */
#define N_DIGITS (1u << DIGIT_BITS)
#define N_PASSES 6 /* of 11 bits: 64 */

static void insert(struct sort_item *items, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        struct sort_item x = items[i];
        uint32_t k = i;
        for (; k > 0 && items[k - 1].key > x.key; k--)
            items[k] = items[k - 1];
        items[k] = x;
    }
}

static void merge(const struct sort_item *a, uint32_t n_a, const struct sort_item *b, uint32_t n_b,
                  struct sort_item *to)
{
    uint32_t i = 0, k = 0;

    while (i < n_a && k < n_b)
        *to++ = b[k].key < a[i].key ? b[k++] : a[i++];
    memcpy(to, a + i, (n_a - i) * sizeof *a);
    memcpy(to + (n_a - i), b + k, (n_b - k) * sizeof *b);
}

/* Between the two: 8 KB of counters a pass cost more than merging a few hundred items. */
static void merge_sort(struct sort_item *items, uint32_t n, struct sort_item *scratch)
{
    if (n < INSERT_BELOW) {
        insert(items, n);
        return;
    }
    uint32_t half = n / 2;
    merge_sort(items, half, scratch);
    merge_sort(items + half, n - half, scratch + half);
    if (items[half - 1].key <= items[half].key)
        return;
    memcpy(scratch, items, n * sizeof *items);
    merge(scratch, half, scratch + half, n - half, items);
}

void sort_items(struct sort_item *items, uint32_t n, struct sort_item *scratch)
{
    static const uint32_t mask = N_DIGITS - 1;
    uint32_t count[N_PASSES][N_DIGITS];
    struct sort_item *from = items, *to = scratch;

    if (n < N_DIGITS) {
        merge_sort(items, n, scratch);
        return;
    }
    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < N_PASSES; p++)
            count[p][items[i].key >> p * DIGIT_BITS & mask]++;
    for (uint32_t p = 0; p < N_PASSES; p++) {
        uint32_t sum = 0;
        if (count[p][items[0].key >> p * DIGIT_BITS & mask] == n)
            continue; /* all keys share this digit */
        for (uint32_t d = 0; d < N_DIGITS; d++) {
            uint32_t c = count[p][d];
            count[p][d] = sum;
            sum += c;
        }
        for (uint32_t i = 0; i < n; i++)
            to[count[p][from[i].key >> p * DIGIT_BITS & mask]++] = from[i];
        struct sort_item *swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, n * sizeof *items);
}
