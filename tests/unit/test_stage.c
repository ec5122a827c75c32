/* SPDX-License-Identifier: Apache-2.0 */
/* A submission into the arena: what is refused, what is copied, and that a receiver reads just that. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/directory.h"
#include "client/peers.h"
#include "client/stage.h"
#include "client/verify.h"
#include "samples.h"

#define MB (1ull << 20)

static struct wire_field rules[4];
static struct wire_table table = { 4, rules };

static void init(void)
{
    rules[0] = samples_field("pixels", POISE_U8, POISE_CONCAT, 0, 2, SHAPE(-1, 4));
    strcpy(rules[0].rows_of, "grid");
    rules[1] = samples_field("grid", POISE_I64, POISE_CONCAT, 0, 2, SHAPE(-1, 2));
    rules[2] = samples_field("ids", POISE_I32, POISE_PADDED, 0, 1, SHAPE(-1));
    rules[3] = samples_field("name", POISE_BYTES, POISE_OPAQUE, 0, 1, SHAPE(-1));
}

TestSuite(stage, .init = init);

static struct poise_value value_of(const char *field, const void *data, uint32_t n_dims, const int64_t *shape)
{
    struct poise_value value = { .field = field, .data = data, .n_dims = n_dims };

    memcpy(value.shape, shape, n_dims * sizeof *shape);
    return value;
}

static int check(const struct poise_value *values, uint32_t n_values, struct stage_sample *out, struct poise_err *err)
{
    struct poise_sample samples[2] = { { 0 },
                                       { .values = values, .n_values = n_values, .value_size = sizeof *values } };
    struct stage_sample checked[2];
    uint64_t n;
    int rc = stage_check(&table, 6, samples, 2, sizeof *samples, checked, &n, err);

    if (rc == 0 && out)
        *out = checked[1];
    if (rc == 0)
        cr_assert_eq(n, n_values);
    return rc;
}

static const int64_t GRID[] = { 2, 3 };
static const unsigned char PIXELS[24] = { 1, 2, 3 };
static const int32_t IDS[] = { 5, 6, 7 };

Test(stage, sizes_for_the_metadata)
{
    struct poise_value values[] = { value_of("ids", IDS, 1, SHAPE(3)), value_of("pixels", PIXELS, 2, SHAPE(6, 4)),
                                    value_of("grid", GRID, 2, SHAPE(1, 2)) };
    struct stage_sample out;
    struct poise_err err;

    cr_assert(check(values, 3, &out, &err) == 0, "%s", err.text);
    cr_assert_eq(out.bytes, 12 + 24 + 16);
    cr_assert_eq(out.packed_bytes, 24 + 16);
    cr_assert(out.extent[0] == 3 && out.extent[1] == 0);
}

static void refused(const struct poise_value *values, uint32_t n, const char *text)
{
    struct poise_err err;

    cr_assert_eq(check(values, n, NULL, &err), -EINVAL);
    cr_assert(strstr(err.text, text) && err.rank == 6 && err.sample == 1, "%s", err.text);
}

Test(stage, mistakes_are_refused_naming_rank_sample_and_field)
{
    struct poise_value values[] = { value_of("pixels", PIXELS, 2, SHAPE(6, 4)),
                                    value_of("grid", GRID, 2, SHAPE(1, 2)) };
    struct poise_value twice[] = { value_of("ids", IDS, 1, SHAPE(3)), value_of("ids", IDS, 1, SHAPE(3)) };
    struct poise_value other = value_of("audio", IDS, 1, SHAPE(3)), none = value_of(NULL, IDS, 1, SHAPE(3));
    struct poise_value null = value_of("ids", NULL, 1, SHAPE(3)), flat = value_of("pixels", PIXELS, 1, SHAPE(24));
    struct poise_value negative = value_of("ids", IDS, 1, SHAPE(-1));
    struct poise_value fixed = value_of("pixels", PIXELS, 2, SHAPE(4, 6));
    struct poise_value large = value_of("ids", IDS, 1, SHAPE(1ll << 32));
    struct poise_value wrap = value_of("ids", IDS, 1, SHAPE(1ll << 62));

    refused(twice, 2, "ids is there twice");
    refused(&other, 1, "audio is not declared");
    refused(&none, 1, "not declared");
    refused(&null, 1, "data NULL");
    refused(&flat, 1, "has 1 dimensions, declared with 2");
    refused(&negative, 1, "ids has shape [-1]");
    refused(&fixed, 1, "axis 1 differs");
    refused(&large, 1, "longer than 2^32");
    refused(&wrap, 1, "63 bits");
    refused(NULL, 1, "values is NULL");
    refused(values, 1, "pixels has 6 rows, grid says 0");
    values[0].shape[0] = 5;
    refused(values, 2, "pixels has 5 rows, grid says 6");
    values[0].shape[0] = 6;
    cr_assert_eq(check(values, 2, NULL, NULL), 0);
}

#define N 3u

struct staged { /* one submission of N samples and what came of it */
    struct poise_value values[N][3];
    struct poise_sample samples[N];
    struct stage_sample checked[N];
    uint32_t micro_batch[N];
    uint64_t loss[N];
    struct stage_request req;
    struct control_place place;
};

static int stage(struct staged *s, struct arena *arena, uint64_t step, const void *pixels, struct poise_err *err)
{
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < N; i++) {
        s->values[i][0] = value_of("name", "hello", 1, SHAPE(i + 1));
        s->values[i][1] = value_of("grid", GRID, 2, SHAPE(1, 2));
        s->values[i][2] = value_of("pixels", pixels, 2, SHAPE(6, 4));
        s->samples[i] = (struct poise_sample){ .tag = 50 + i, .loss_tokens = 9, .values = s->values[i],
                                               .n_values = i == 1 ? 1 : 3, .value_size = sizeof **s->values };
        s->micro_batch[i] = i;
        s->loss[i] = 10 * i;
    }
    s->req = (struct stage_request){ .step = step, .table = &table, .samples = s->samples, .n_samples = N,
                                     .sample_size = sizeof *s->samples, .checked = s->checked,
                                     .arrival_micro_batch = s->micro_batch, .arrival_loss_tokens = s->loss,
                                     .hash = true };
    cr_assert(stage_check(&table, 0, s->samples, N, sizeof *s->samples, s->checked, &s->req.n_values, err) == 0, "%s",
              err->text);
    return stage_step(arena, &s->req, &s->place, err);
}

/* Reads it all as a receiver, and compares. Returns where sample 0's pixels are. */
static const void *read_back(struct staged *s, struct arena *arena)
{
    struct peers *peers;
    struct peers_of of;
    struct directory dir;
    struct directory_sample sample;
    struct value values[4];
    struct poise_err err;
    const void *base, *pixels = NULL;
    uint64_t bytes;

    cr_assert_eq(peers_new(1, 0, arena, NULL, &peers, NULL), 0);
    of = (struct peers_of){ peers, 0 };
    cr_assert(arena_lookup(arena, s->place.segment, s->place.generation, &base, &bytes));
    cr_assert(s->place.offset + s->place.bytes <= bytes);
    cr_assert(directory_open((const char *)base + s->place.offset, s->place.bytes, s->req.step, 0, s->place.n_samples,
                             &table, &dir, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert(directory_read(&dir, i, s->checked[i].bytes, peers_lookup, &of, &sample, values, &err) == 0, "%s",
                  err.text);
        cr_assert(sample.tag == 50 + i && sample.loss_tokens == 9 && sample.arrival_loss_tokens == 10 * i &&
                  sample.arrival_micro_batch == i);
        cr_assert_eq(sample.hash, verify_sample(&table, values));
        cr_assert(values[3].shape[0] == i + 1 && memcmp(values[3].data, "hello", i + 1) == 0);
        cr_assert_eq(values[0].present, i != 1);
        if (i != 1)
            cr_assert(memcmp(values[0].data, PIXELS, 24) == 0 && memcmp(values[1].data, GRID, 16) == 0);
        if (i == 0)
            pixels = values[0].data;
    }
    directory_close(&dir);
    peers_free(peers);
    return pixels;
}

Test(stage, ordinary_memory_is_copied_and_arena_memory_is_not)
{
    struct arena *arena;
    struct staged s;
    struct poise_err err;
    void *inside;

    cr_assert_eq(arena_new(16 * MB, 0, &arena, NULL), 0);
    cr_assert(stage(&s, arena, 0, PIXELS, &err) == 0, "%s", err.text);
    cr_assert(read_back(&s, arena) != PIXELS);
    cr_assert_eq(arena_alloc(arena, 24, &inside, NULL), 0);
    memcpy(inside, PIXELS, 24);
    cr_assert(stage(&s, arena, 1, inside, &err) == 0, "%s", err.text);
    cr_assert(read_back(&s, arena) == inside);
    cr_assert(stage(&s, arena, 2, inside, &err) == 0, "an older step's memory is copied like any other: %s", err.text);
    cr_assert(read_back(&s, arena) != inside);
    arena_free(arena);
}

Test(stage, no_room_has_no_side_effect)
{
    static unsigned char big[600 << 10];
    struct poise_value value = value_of("name", big, 1, SHAPE(sizeof big));
    struct poise_sample sample = { .values = &value, .n_values = 1, .value_size = sizeof value };
    struct stage_sample checked;
    uint32_t micro_batch = 0;
    uint64_t loss = 0;
    struct stage_request req = { .table = &table, .samples = &sample, .n_samples = 1, .sample_size = sizeof sample,
                                 .checked = &checked, .arrival_micro_batch = &micro_batch,
                                 .arrival_loss_tokens = &loss };
    struct control_place place = { .n_samples = 77 };
    struct arena *arena;
    struct arena_stats stats;
    struct poise_err err;

    cr_assert_eq(arena_new(MB, 0, &arena, NULL), 0);
    cr_assert_eq(stage_check(&table, 0, &sample, 1, sizeof sample, &checked, &req.n_values, NULL), 0);
    cr_assert(stage_step(arena, &req, &place, &err) == 0, "%s", err.text);
    place.n_samples = 77;
    req.step = 1;
    cr_assert_eq(stage_step(arena, &req, &place, &err), -EAGAIN);
    arena_stats(arena, &stats);
    cr_assert(place.n_samples == 77 && stats.pending == 0 && stats.n_in_flight == 1);
    req.step = 0;
    cr_assert_eq(stage_step(arena, &req, &place, &err), -EEXIST);
    arena_done(arena, 0);
    req.step = 1;
    cr_assert(stage_step(arena, &req, &place, &err) == 0, "%s", err.text);
    arena_free(arena);
}

Test(stage, a_submission_without_samples_or_fields)
{
    struct wire_table none = { 0 };
    struct stage_request req = { .table = &none, .sample_size = sizeof(struct poise_sample) };
    struct control_place place;
    struct arena *arena;
    struct poise_err err;
    uint64_t n_values;

    cr_assert_eq(arena_new(MB, 0, &arena, NULL), 0);
    cr_assert_eq(stage_check(&none, 0, NULL, 0, sizeof(struct poise_sample), NULL, &n_values, &err), 0);
    cr_assert(n_values == 0 && stage_step(arena, &req, &place, &err) == 0);
    cr_assert_eq(place.n_samples, 0);
    arena_free(arena);
}
