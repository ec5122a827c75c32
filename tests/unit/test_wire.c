/* SPDX-License-Identifier: Apache-2.0 */
/* Round trips of every message type, copies, truncation, memory that runs out, and sizes. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "messages.h"
#include "proto/codec.h"

static uint64_t seed(void)
{
    static uint64_t value;
    const char *given = getenv("SEED");

    if (!value) {
        value = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
        fprintf(stderr, "SEED=%llu\n", (unsigned long long)value);
    }
    return value;
}

/* Encodes, decodes, copies, compares all three. Returns the encoded size. */
static size_t round_trip(const struct wire_message *msg)
{
    struct poise_err err = {0};
    struct wire_message *back, *copy;
    uint8_t *bytes;
    size_t n_bytes;

    int rc = wire_encode(msg, &bytes, &n_bytes, &err);
    cr_assert(rc == 0, "%s: %s", wire_type_name(msg->type), err.text);
    rc = wire_decode(bytes, n_bytes, 0, &back, &err);
    cr_assert(rc == 0, "%s: %s", wire_type_name(msg->type), err.text);
    const char *name = message_differ(msg, back);
    cr_assert(name == NULL, "%s: %s differs after decoding", wire_type_name(msg->type), name);
    cr_assert(wire_copy(back, &copy) == 0);
    wire_free(back);
    name = message_differ(msg, copy);
    cr_assert(name == NULL, "%s: %s differs in the copy", wire_type_name(msg->type), name);
    wire_free(copy);
    free(bytes);
    return n_bytes;
}

Test(wire, defaults_of_every_type_round_trip)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct message_maker maker = {.random = 1, .defaults = true};
        size_t n_bytes = round_trip(message_make(&maker, type));
        cr_assert(n_bytes <= 64, "%s at its defaults takes %zu bytes", wire_type_name(type), n_bytes);
        message_done(&maker);
    }
}

Test(wire, random_messages_of_every_type_round_trip)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        for (uint64_t i = 0; i < 300; i++) {
            struct message_maker maker = {.random = seed() + i};
            round_trip(message_make(&maker, type));
            message_done(&maker);
        }
    }
}

Test(wire, truncation_at_every_byte_is_refused_or_a_shorter_valid_message)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct message_maker maker = {.random = seed()};
        struct wire_message *msg = message_make(&maker, type), *back;
        struct poise_err err;
        uint8_t *bytes;
        size_t n_bytes;
        cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == 0);
        for (size_t n = 0; n < n_bytes; n++) {
            /* A block of just that size, so that a sanitizer sees a read past its end. */
            uint8_t *cut = malloc(n);
            memcpy(cut, bytes, n);
            int rc = wire_decode(cut, n, 0, &back, &err);
            cr_assert(rc == -EPROTO || rc == -EPROTONOSUPPORT, "%s cut at %zu of %zu: %d", wire_type_name(type), n,
                      n_bytes, rc);
            free(cut);
        }
        free(bytes);
        message_done(&maker);
    }
}

static int countdown;

static void *fail_later(size_t n_bytes)
{
    return countdown-- > 0 ? malloc(n_bytes) : NULL;
}

/* Lets the n-th allocation and all later ones fail, for every n, until all succeed. */
Test(wire, running_out_of_memory_is_an_error_everywhere)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct message_maker maker = {.random = seed()};
        struct wire_message *msg = message_make(&maker, type), *back = NULL;
        struct poise_err err;
        uint8_t *bytes = NULL;
        size_t n_bytes = 0;
        int rc = -1;
        for (int n = 0; rc < 0; n++) {
            countdown = n;
            wire_malloc = fail_later;
            rc = wire_encode(msg, &bytes, &n_bytes, &err);
            wire_malloc = malloc;
            cr_assert(rc == 0 || (rc == -ENOMEM && err.code == -ENOMEM && bytes == NULL));
        }
        rc = -1;
        for (int n = 0; rc < 0; n++) {
            countdown = n;
            wire_malloc = fail_later;
            rc = wire_decode(bytes, n_bytes, 0, &back, &err);
            wire_malloc = malloc;
            cr_assert(rc == 0 || (rc == -ENOMEM && err.code == -ENOMEM && back == NULL), "%d %s", rc, err.text);
        }
        struct wire_message *copy = NULL;
        countdown = 0;
        wire_malloc = fail_later;
        cr_assert(wire_copy(back, &copy) == -ENOMEM && copy == NULL);
        wire_malloc = malloc;
        wire_free(back);
        free(bytes);
        message_done(&maker);
    }
}

/* Memory that ends in the middle of anything: near its limit a pool takes each struct on its own. */
Test(wire, a_limit_is_kept_wherever_it_is_reached)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct message_maker maker = {.random = seed()};
        struct wire_message *msg = message_make(&maker, type), *back = NULL;
        struct poise_err err;
        uint8_t *bytes;
        size_t n_bytes;
        int rc = -1;
        for (size_t limit = 0; rc < 0 && limit < 4u << 10; limit += 40) {
            struct pool pool = {.limit = limit};
            PB(Envelope) envelope = POISE__V1__ENVELOPE__INIT;
            rc = wire_store(&pool, msg, &envelope);
            cr_assert(rc == 0 || (rc == -ENOMEM && pool.over && !pool.failed));
            cr_assert(pool.total <= limit);
            wire_pool_free(&pool);
        }
        cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == 0);
        rc = -1;
        for (size_t budget = 1; rc < 0; budget += budget < 8192 ? 80 : budget / 4) {
            rc = wire_decode(bytes, n_bytes, budget, &back, &err);
            cr_assert(rc == 0 || (rc == -E2BIG && strstr(err.text, "budget")), "%d %s", rc, err.text);
        }
        cr_assert(message_differ(msg, back) == NULL);
        wire_free(back);
        free(bytes);
        message_done(&maker);
    }
}

/* Image-text data as in a real run: two phases, the vision one with attention of its own, one ragged padded axis. */
static void real_meta(struct message_maker *maker, struct wire_meta *meta, uint32_t n)
{
    *meta = (struct wire_meta){.epoch = {1, 2},
                               .step = 1000,
                               .rank = 77,
                               .digest = {3, 4},
                               .table_hash = {5, 6},
                               .speed_ppm = 1000000,
                               .n_samples = n,
                               .n_phases = 2,
                               .n_extents = 1,
                               .has_columns = true,
                               .incarnation = {0, 1700000000000000000u, ~0ull}};
    meta->bytes = calloc(n, sizeof *meta->bytes);
    meta->packed_bytes = calloc(n, sizeof *meta->bytes);
    meta->loss_tokens = calloc(n, sizeof *meta->bytes);
    meta->length = calloc(2 * (size_t)n, sizeof *meta->bytes);
    meta->attention = calloc(2 * (size_t)n, sizeof *meta->bytes);
    meta->extent = calloc(n, sizeof *meta->extent);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t patches = 256 + message_random(maker, 16384 - 256), text = 16 + message_random(maker, 2000);
        meta->length[i] = patches;
        meta->attention[i] = patches * 64;
        meta->length[n + i] = patches / 4 + text;
        meta->attention[n + i] = meta->length[n + i] * meta->length[n + i];
        meta->packed_bytes[i] = patches * 1176 * 2;
        meta->bytes[i] = meta->packed_bytes[i] + meta->length[n + i] * 17;
        meta->loss_tokens[i] = text;
        meta->extent[i] = (uint32_t)meta->length[n + i];
    }
}

static void real_meta_free(struct wire_meta *meta)
{
    free(meta->bytes);
    free(meta->packed_bytes);
    free(meta->loss_tokens);
    free(meta->length);
    free(meta->attention);
    free(meta->extent);
}

Test(wire, a_sample_takes_few_bytes_up)
{
    const uint32_t n = 10000;
    struct message_maker maker = {.random = seed()};
    struct wire_message msg = {.type = WIRE_META};
    struct wire_meta meta;

    real_meta(&maker, &meta, n);
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta;
    double a_sample = (double)round_trip(&msg) / n;
    fprintf(stderr, "up: %.2f bytes a sample (2 phases, 1 extent)\n", a_sample);
    cr_assert(a_sample <= 8 + 8 * 2 + 3, "%.2f", a_sample);
    real_meta_free(&meta);
}

Test(wire, a_sample_takes_few_bytes_down)
{
    enum { N = 64 };
    static uint32_t in_rank[N], in_index[N], count[N / 2], out_rank[N], out_micro_batch[N], out_row[N], out_place[N];
    static uint64_t in_bytes[N];
    struct message_maker maker = {.random = seed()};
    struct wire_slice slice = {7,       N,        N, in_rank, in_index, in_bytes, count, out_rank, out_micro_batch,
                               out_row, out_place};
    struct wire_message msg = {.type = WIRE_OUTCOME};

    for (uint32_t i = 0; i < N; i++) {
        in_rank[i] = (uint32_t)message_random(&maker, 4096);
        in_index[i] = (uint32_t)message_random(&maker, N);
        in_bytes[i] = message_random(&maker, 100u << 20);
        count[i / 2]++;
        out_rank[i] = (uint32_t)message_random(&maker, 4096);
        out_micro_batch[i] = (uint32_t)message_random(&maker, N / 2);
        out_row[i] = (uint32_t)message_random(&maker, 2);
        out_place[i] = (uint32_t)message_random(&maker, N);
    }
    size_t empty = round_trip(&msg);
    msg.outcome.n_micro_batches = N / 2;
    msg.outcome.n_slices = 1;
    msg.outcome.slices = &slice;
    double a_sample = (double)(round_trip(&msg) - empty) / N;
    fprintf(stderr, "down: %.2f bytes a sample (4,096 ranks of %d)\n", a_sample, N);
    cr_assert(a_sample <= 16, "%.2f", a_sample);
}

/* Unpacking, copying and checking grow linearly; a generous bound, as machines are shared. */
Test(wire, a_large_step_decodes_in_milliseconds)
{
    const uint32_t n = 131072;
    struct message_maker maker = {.random = seed()};
    struct wire_message msg = {.type = WIRE_META}, *back;
    struct wire_meta meta;
    struct poise_err err;
    struct timespec a, b;
    uint8_t *bytes;
    size_t n_bytes;
    double best = 1e9;

    real_meta(&maker, &meta, n);
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta;
    cr_assert(wire_encode(&msg, &bytes, &n_bytes, &err) == 0);
    for (int i = 0; i < 5; i++) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        cr_assert(wire_decode(bytes, n_bytes, 0, &back, &err) == 0, "%s", err.text);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
        best = ms < best ? ms : best;
        wire_free(back);
    }
    fprintf(stderr, "131,072 samples, %zu bytes: decoded in %.2f ms\n", n_bytes, best);
#if !defined(__SANITIZE_ADDRESS__) && defined(__OPTIMIZE__)
    cr_assert(best < 60, "%.2f ms", best);
#endif
    free(bytes);
    real_meta_free(&meta);
}

/* Every column at one byte a value is what takes the most memory for its bytes. It must fit the default budget. */
Test(wire, the_smallest_samples_fit_the_default_budget)
{
    const uint32_t n = 400000;
    struct wire_meta meta = {.n_samples = n, .n_phases = 8, .has_columns = true};
    struct wire_message msg = {.type = WIRE_META}, *back;
    struct poise_err err;
    uint8_t *bytes;
    size_t n_bytes;

    meta.bytes = meta.loss_tokens = calloc(n, sizeof *meta.bytes);
    meta.length = calloc(8 * (size_t)n, sizeof *meta.length);
    meta.attention = calloc(8 * (size_t)n, sizeof *meta.attention);
    meta.attention[5] = 1; /* of one phase, so 7 must be put back */
    msg.meta.n_metas = 1;
    msg.meta.metas = &meta;
    cr_assert(wire_encode(&msg, &bytes, &n_bytes, &err) == 0);
    cr_assert(wire_decode(bytes, n_bytes, 0, &back, &err) == 0, "%s", err.text);
    cr_assert(message_differ(&msg, back) == NULL);
    wire_free(back);
    free(bytes);
    free(meta.bytes);
    free(meta.length);
    free(meta.attention);
}
