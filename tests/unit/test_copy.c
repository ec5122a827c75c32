/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of payload are copies, at every size and alignment, and touch nothing beside. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/copy.h"
#include "samples.h"

#define MAX (400u << 10)

Test(copy, every_alignment_and_the_sizes_around_the_limits)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 4096, 16384, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 300001, MAX };
    unsigned char *from = malloc(MAX + 128), *to = malloc(MAX + 192);
    uint64_t seed = samples_seed("copy");

    for (size_t i = 0; i < MAX + 128; i++)
        from[i] = (unsigned char)samples_random(&seed);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int i = 0; i < 12; i++) {
            size_t a = samples_below(&seed, 64), b = samples_below(&seed, 64) + 64, n = sizes[k];

            memset(to, 0xab, MAX + 192);
            copy_bytes(to + b, from + a, n);
            cr_assert(memcmp(to + b, from + a, n) == 0, "%zu bytes from %zu to %zu", n, a, b);
            for (size_t at = 0; at < 64; at++)
                cr_assert(to[b - 1 - at] == 0xab && (b + n + at >= MAX + 192 || to[b + n + at] == 0xab));
        }
    copy_bytes(NULL, NULL, 0);
    free(from);
    free(to);
}
