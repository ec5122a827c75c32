/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming XXH3-128 over numbers and texts, the same on every machine: numbers go in little endian, texts with their
 * length, so no two different inputs give the same stream. Internal to proto/.
 */
#ifndef POISE_PROTO_HASH_H
#define POISE_PROTO_HASH_H

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/wire.h"

struct hash {
    XXH3_state_t state;
};

static inline void hash_text(struct hash *h, const char *text);

/* purpose: keeps hashes of different things apart. */
static inline void hash_begin(struct hash *h, const char *purpose)
{
    XXH3_128bits_reset(&h->state);
    hash_text(h, purpose);
}

static inline void hash_u64(struct hash *h, uint64_t value)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    XXH3_128bits_update(&h->state, bytes, sizeof bytes);
}

static inline void hash_u64s(struct hash *h, const uint64_t *values, size_t n)
{
    hash_u64(h, n);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n > 0)
        XXH3_128bits_update(&h->state, values, n * sizeof *values);
#else
    for (size_t i = 0; i < n; i++)
        hash_u64(h, values[i]);
#endif
}

static inline void hash_text(struct hash *h, const char *text)
{
    size_t n = text ? strlen(text) : 0;

    hash_u64(h, n);
    if (n > 0)
        XXH3_128bits_update(&h->state, text, n);
}

static inline struct wire_id hash_end(const struct hash *h)
{
    XXH128_hash_t value = XXH3_128bits_digest(&h->state);

    if (value.high64 == 0 && value.low64 == 0)
        value.low64 = 1; /* all zero means none */
    return (struct wire_id){.hi = value.high64, .lo = value.low64};
}

#endif
