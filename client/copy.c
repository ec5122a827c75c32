/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's memcpy streams only copies of about the size of the shared cache, but a sample is some megabytes and is
 * read a step later, so what an ordinary copy leaves in the caches is of no use, and each line that it writes is first
 * read. On a Sapphire Rapids guest, 2.3 MB at a time: memcpy 7.3 GB/s, one stream past the caches 6.0, four pages side
 * by side (as memcpy does it for a whole step at once, 11.0) 11.3.
 */
#include "client/copy.h"

#include <stdint.h>
#include <string.h>

#if defined __x86_64__
#include <emmintrin.h>

#define LINE 64u
#define PAGE 4096u
#define PAGES 4u /* side by side: the prefetcher follows each, and stops at its end */
/* Two rounds. The copy as such would stay in the second level cache, but the step that it is part of does not: with samples
 * of 75 KB, steps of 39 MB come together in 0.6 of the time that they take with memcpy. */
#define STREAM_BYTES (32u << 10)
#define AHEAD 128u /* bytes: two lines */

static inline void stream_line(unsigned char *to, const unsigned char *from)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

static void stream(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t head = (LINE - ((uintptr_t)to & (LINE - 1))) & (LINE - 1);

    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= PAGES * PAGE; bytes -= PAGES * PAGE, to += PAGES * PAGE, from += PAGES * PAGE)
        for (size_t at = 0; at < PAGE; at += LINE)
            for (size_t page = 0; page < PAGES * PAGE; page += PAGE) {
                _mm_prefetch((const char *)from + page + at + AHEAD, _MM_HINT_T0); /* past the end is harmless */
                stream_line(to + page + at, from + page + at);
            }
    _mm_sfence(); /* such stores are not ordered by a release alone */
    memcpy(to, from, bytes);
}
#endif

void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
#if defined __x86_64__
    if (bytes >= STREAM_BYTES) {
        stream(to, from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
}
