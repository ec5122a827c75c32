/* SPDX-License-Identifier: Apache-2.0 */
/* From samples to metadata: what is refused, and by which name; what columns say. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "client/features.h"
#include "samples.h"

static struct settings settings(uint32_t micro_batch_size, uint32_t n_micro_batches)
{
    struct settings s = {.join = {.rank = 2, .n_ranks = 4, .n_replicas = 1}};

    s.options.n_phases = 2;
    s.options.phases[0] = (struct poise_phase){.name = "vision", .linear = 3, .passes = 1};
    s.options.phases[1] = (struct poise_phase){.name = "text", .linear = 1, .quadratic = 1, .passes = 1};
    s.options.micro_batch_size = micro_batch_size;
    s.options.n_micro_batches = n_micro_batches;
    return s;
}

static const int64_t lengths[2] = {4, 7};
static const struct wire_table no_table;

static struct poise_sample sample(int64_t loss_tokens)
{
    return (struct poise_sample){
        .length = lengths, .loss_tokens = loss_tokens, .micro_batch = POISE_DEFAULT_MICRO_BATCH, .tag = 1};
}

static void refused(const struct settings *s, const struct poise_sample *samples, uint32_t n, int code, uint32_t at,
                    const char *text)
{
    struct features f;
    struct poise_err err = {0};
    int rc = features_make(s, &no_table, samples, n, sizeof *samples, &f, &err);

    cr_assert_eq(rc, code, "%d: %s", rc, err.text);
    cr_assert_eq(err.rank, 2);
    cr_assert_eq(err.sample, at, "sample %u: %s", err.sample, err.text);
    cr_assert(strstr(err.text, text), "\"%s\" does not say %s", err.text, text);
}

static struct features made(const struct settings *s, const struct wire_table *table,
                            const struct poise_sample *samples, uint32_t n)
{
    struct features f;
    struct poise_err err = {0};

    cr_assert_eq(features_make(s, table, samples, n, sizeof *samples, &f, &err), 0, "%s", err.text);
    return f;
}

Test(features, bad_samples_are_named)
{
    struct settings s = settings(2, 0);
    struct poise_sample samples[3] = {sample(1), sample(2), sample(3)};
    const int64_t negative[2] = {4, -7}, huge[2] = {0, INT64_C(1) << 40};
    const uint64_t attention[2] = {0, UINT64_MAX};

    samples[1].length = NULL;
    refused(&s, samples, 3, -EINVAL, 1, "length is NULL");
    samples[1].length = negative;
    refused(&s, samples, 3, -EINVAL, 1, "text is -7");
    samples[1].length = huge;
    refused(&s, samples, 3, -ERANGE, 1, "sample 1");
    samples[1] = sample(2);
    samples[1].attention = attention;
    refused(&s, samples, 3, -ERANGE, 1, "sample 1");
    samples[1] = sample(-1);
    refused(&s, samples, 3, -EINVAL, 1, "loss_tokens is -1");
    samples[1] = sample(2);
    samples[2].micro_batch = -1;
    refused(&s, samples, 3, -EINVAL, 2, "micro_batch is -1");
    samples[2].micro_batch = 1;
    refused(&s, samples, 3, -EINVAL, 2, "all or none");
    samples[2] = sample(2);
    samples[2].unit_layout = 2;
    refused(&s, samples, 3, -EINVAL, 2, "unit_layout is 2");
    samples[2] = sample(2);
    samples[2].bytes = 5;
    refused(&s, samples, 3, -EINVAL, 2, "bytes is 5");
    s.plan_only = true;
    samples[2].n_values = 1;
    refused(&s, samples, 3, -EINVAL, 2, "plan-only");
    s.plan_only = false;
    samples[0] = samples[1] = samples[2] = sample(INT64_MAX);
    s.options.micro_batch_size = 0;
    refused(&s, samples, 3, -ERANGE, 2, "overflow");
}

Test(features, units_agree_on_layout_and_micro_batch)
{
    struct settings s = settings(2, 0);
    struct poise_sample samples[3] = {sample(1), sample(2), sample(3)};

    samples[0].unit = samples[2].unit = 9;
    samples[2].unit_layout = POISE_UNIT_TRANSPOSED;
    refused(&s, samples, 3, -EINVAL, 2, "samples 0 and 2 of unit 9");
    samples[0].unit_layout = POISE_UNIT_TRANSPOSED;
    for (int i = 0; i < 3; i++)
        samples[i].micro_batch = i;
    refused(&s, samples, 3, -EINVAL, 2, "micro-batches 0 and 2");
    samples[0].micro_batch = 2;
    struct features f = made(&s, &no_table, samples, 3);
    cr_assert_not_null(f.meta.unit);
    cr_assert_eq(f.meta.unit_layout[2], POISE_UNIT_TRANSPOSED);
    features_fini(&f);
}

/* Weights of means of means need the tokens of the micro-batch that a sample arrived in. */
Test(features, arrival_micro_batches_by_size_and_by_number)
{
    struct poise_sample samples[5] = {sample(1), sample(10), sample(100), sample(1000), sample(10000)};
    struct settings s = settings(2, 0);
    struct features f = made(&s, &no_table, samples, 5);
    const uint32_t by_size[5] = {0, 0, 1, 1, 2}, by_number[5] = {0, 0, 0, 1, 1};
    const uint64_t loss_by_size[5] = {11, 11, 1100, 1100, 10000}, loss_by_number[5] = {111, 111, 111, 11000, 11000};

    cr_assert_null(f.meta.micro_batch);
    cr_assert_arr_eq(f.arrival, by_size, sizeof by_size);
    cr_assert_arr_eq(f.arrival_loss_tokens, loss_by_size, sizeof loss_by_size);
    features_fini(&f);
    s = settings(0, 2);
    f = made(&s, &no_table, samples, 5);
    cr_assert_arr_eq(f.arrival, by_number, sizeof by_number);
    cr_assert_arr_eq(f.arrival_loss_tokens, loss_by_number, sizeof loss_by_number);
    features_fini(&f);
}

Test(features, explicit_micro_batches_in_any_order)
{
    struct poise_sample samples[4] = {sample(1), sample(10), sample(100), sample(1000)};
    struct settings s = settings(2, 0);
    const int64_t at[4] = {3, 0, 3, 1};
    const uint64_t loss[4] = {101, 10, 101, 1000};

    for (int i = 0; i < 4; i++)
        samples[i].micro_batch = at[i];
    struct features f = made(&s, &no_table, samples, 4);
    cr_assert_not_null(f.meta.micro_batch);
    cr_assert_eq(f.meta.micro_batch[2], 3);
    cr_assert_arr_eq(f.arrival_loss_tokens, loss, sizeof loss);
    features_fini(&f);
}

Test(features, columns_of_defaults_are_left_out)
{
    struct poise_sample samples[2] = {sample(1), sample(2)};
    struct settings s = settings(2, 0);
    struct features f = made(&s, &no_table, samples, 2);
    const uint64_t attention[2] = {5, 6};

    cr_assert_null(f.meta.attention);
    cr_assert_null(f.meta.unit);
    cr_assert_null(f.meta.unit_layout);
    cr_assert_null(f.meta.extent);
    cr_assert_eq(f.meta.length[1 * 2 + 0], 7);
    features_fini(&f);
    samples[1].attention = attention;
    f = made(&s, &no_table, samples, 2);
    cr_assert_eq(f.meta.attention[0 * 2 + 0], 16); /* length squared where it is not told */
    cr_assert_eq(f.meta.attention[1 * 2 + 1], 6);
    features_fini(&f);
    f = made(&s, &no_table, NULL, 0);
    cr_assert_eq(f.meta.n_samples, 0);
    features_fini(&f);
}

/* Replicas of a rank must agree on features and tags, not on payload. */
Test(features, digest_follows_features_and_tags)
{
    struct poise_sample samples[2] = {sample(1), sample(2)};
    struct settings s = settings(2, 0);
    struct features a = made(&s, &no_table, samples, 2), b = made(&s, &no_table, samples, 2);

    cr_assert(wire_id_is(a.meta.digest, b.meta.digest));
    features_fini(&b);
    samples[1].tag = 7;
    b = made(&s, &no_table, samples, 2);
    cr_assert(!wire_id_is(a.meta.digest, b.meta.digest));
    features_fini(&a);
    features_fini(&b);
}

Test(features, bytes_after_padding_by_arrival_micro_batch)
{
    struct settings s = settings(2, 0);
    struct wire_field field = samples_field("ids", POISE_I32, POISE_PADDED, 0, 1, SHAPE(-1));
    struct wire_table table = {.n_fields = 1, .fields = &field};
    struct poise_sample samples[3] = {sample(1), sample(1), sample(1)};
    const int32_t data[8] = {0};
    struct poise_value values[3];
    const int64_t n[3] = {3, 8, 2};

    for (int i = 0; i < 3; i++) {
        values[i] = (struct poise_value){.field = "ids", .data = data, .n_dims = 1, .shape = {n[i]}};
        samples[i].values = &values[i];
        samples[i].value_size = sizeof values[i];
        samples[i].n_values = 1;
    }
    struct features f = made(&s, &table, samples, 3);
    cr_assert_eq(f.meta.bytes[1], 32);
    cr_assert_eq(f.meta.packed_bytes[1], 0);
    cr_assert_eq(f.meta.extent[1], 8);
    cr_assert_eq(f.padded_bytes, 2 * 8 * 4 + 1 * 2 * 4, "%llu", (unsigned long long)f.padded_bytes);
    features_fini(&f);
    values[1].field = "idz";
    struct poise_err err;
    cr_assert_eq(features_make(&s, &table, samples, 3, sizeof *samples, &f, &err), -EINVAL);
    cr_assert_eq(err.sample, 1);
    cr_assert(strstr(err.text, "idz"), "%s", err.text);
}
