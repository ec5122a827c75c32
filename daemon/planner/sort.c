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

/* One pass: by one digit, from one place to the other. */
static void sort_by_digit(const struct sort_item *from, struct sort_item *to, uint32_t n, uint32_t shift)
{
    uint32_t count[N_DIGITS] = {0}, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        count[from[i].key >> shift & (N_DIGITS - 1)]++;
    for (uint32_t d = 0; d < N_DIGITS; d++) {
        uint32_t c = count[d];
        count[d] = sum;
        sum += c;
    }
    for (uint32_t i = 0; i < n; i++)
        to[count[from[i].key >> shift & (N_DIGITS - 1)]++] = from[i];
}

void sort_items(struct sort_item *items, uint32_t n, struct sort_item *scratch)
{
    struct sort_item *from = items, *to = scratch;
    uint64_t varies = 0; /* bits in which keys differ */

    if (n < N_DIGITS) {
        merge_sort(items, n, scratch);
        return;
    }
    for (uint32_t i = 1; i < n; i++)
        varies |= items[i].key ^ items[0].key;
    for (uint32_t shift = 0; shift < 64; shift += DIGIT_BITS) {
        if ((varies >> shift & (N_DIGITS - 1)) == 0)
            continue; /* all keys share this digit */
        sort_by_digit(from, to, n, shift);
        struct sort_item *swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, n * sizeof *items);
}
