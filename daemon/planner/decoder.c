/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decoder's cost from its configuration, for models that have no preset of their own:
 *
 *     decoder:layers=28,hidden=3584,heads=28,kv_heads=4,intermediate=18944,vocab=152064
 *
 * Also head_dim (hidden / heads), gated (1: three MLP matrices, 0: two) and passes (3). One phase, "llm". A token costs
 *     layers x 2 hidden (2 heads head_dim + 2 kv_heads head_dim + (3 or 2) intermediate) + 2 hidden vocab  FLOP
 * and a pair of tokens, of which a causal mask leaves half, layers x 4 heads head_dim / 2.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "presets.h"

#define MAX_VALUE 10000000u /* more is a slip of the finger, and products of four must fit in 128 bits */

enum key { LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCAB, HEAD_DIM, GATED, PASSES, N_KEYS };
static const char *const keys[N_KEYS] = {"layers", "hidden",   "heads", "kv_heads", "intermediate",
                                         "vocab",  "head_dim", "gated", "passes"};

static int read_value(const char *text, size_t n, uint64_t value[N_KEYS], struct poise_err *err)
{
    const char *equals = memchr(text, '=', n);
    size_t n_key = equals ? (size_t)(equals - text) : n;
    char *end = NULL;

    for (uint32_t k = 0; equals && k < N_KEYS; k++) {
        if (strlen(keys[k]) != n_key || memcmp(keys[k], text, n_key))
            continue;
        if (equals[1] < '0' || equals[1] > '9')
            break;
        value[k] = strtoul(equals + 1, &end, 10);
        if (end != text + n || value[k] > MAX_VALUE)
            break;
        return 0;
    }
    return err_set(err, -EINVAL,
                   "decoder: %.*s is not one of layers, hidden, heads, kv_heads, intermediate, vocab, head_dim, "
                   "gated, passes with a whole number up to %u",
                   (int)(n < 60 ? n : 60), text, MAX_VALUE);
}

static int check(uint64_t v[N_KEYS], struct poise_err *err)
{
    for (uint32_t k = LAYERS; k <= HEADS; k++)
        if (v[k] == 0)
            return err_set(err, -EINVAL, "decoder: %s is missing", keys[k]);
    if (v[INTERMEDIATE] == 0)
        return err_set(err, -EINVAL, "decoder: intermediate is missing");
    if (v[KV_HEADS] == 0)
        v[KV_HEADS] = v[HEADS];
    if (v[HEAD_DIM] == 0)
        v[HEAD_DIM] = v[HIDDEN] / v[HEADS];
    if (v[KV_HEADS] > v[HEADS] || v[GATED] > 1 || v[PASSES] == 0 || v[PASSES] > 100)
        return err_set(err, -EINVAL,
                       "decoder: kv_heads %" PRIu64 " of %" PRIu64 " heads, gated %" PRIu64 ", passes %" PRIu64,
                       v[KV_HEADS], v[HEADS], v[GATED], v[PASSES]);
    return 0;
}

int decoder_preset(const char *text, struct poise_phase *ret_phase, struct poise_err *err)
{
    uint64_t v[N_KEYS] = {[GATED] = 1, [PASSES] = 3};
    int rc;

    for (const char *p = text + strlen(DECODER_PREFIX); *p;) {
        size_t n = strcspn(p, ",");
        if ((rc = read_value(p, n, v, err)) < 0)
            return rc;
        p += n + (p[n] == ',');
    }
    if ((rc = check(v, err)) < 0)
        return rc;
    unsigned __int128 width = v[HEADS] * v[HEAD_DIM], kv = v[KV_HEADS] * v[HEAD_DIM];
    unsigned __int128 layer = 2 * v[HIDDEN] * (2 * width + 2 * kv + (2 + v[GATED]) * v[INTERMEDIATE]);
    unsigned __int128 token = v[LAYERS] * layer + (unsigned __int128)2 * v[HIDDEN] * v[VOCAB];
    unsigned __int128 pair = v[LAYERS] * 2 * width;
    if (token >> 63 || pair >> 63)
        return err_set(err, -ERANGE, "decoder: a token would cost more than 2^63 FLOP");
    *ret_phase = (struct poise_phase){.name = "llm",
                                      .linear = (uint64_t)((token + 1023) / 1024),
                                      .quadratic = (uint64_t)((pair + 1023) / 1024),
                                      .passes = (uint32_t)v[PASSES]};
    return 0;
}
