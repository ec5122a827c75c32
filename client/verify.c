/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 streamed over a view: the innermost contiguous run at a time, so that a padded or concatenated field hashes like
 * the bytes that were sent. A field's seed is the hash of its name and shape: two fields that change places, or a row
 * that becomes a column, are seen.
 */
#include "client/verify.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

bool verify_wanted(uint64_t step, uint64_t first_step, uint32_t verify_first, uint32_t verify_every)
{
    uint64_t n = step - first_step;

    if (step < first_step)
        return false;
    if (n < verify_first)
        return true;
    return verify_every != 0 && verify_every != POISE_NONE && n % verify_every == 0;
}

static uint64_t seed_of(const struct wire_field *field, uint32_t n_dims, const int64_t *shape)
{
    uint64_t name = XXH3_64bits(field->name, strnlen(field->name, POISE_MAX_NAME));

    return XXH3_64bits_withSeed(shape, n_dims * sizeof *shape, name);
}

uint64_t verify_sample(const struct wire_table *table, const struct value *values)
{
    uint64_t sum = 0, seed, bytes;

    for (uint32_t i = 0; i < table->n_fields; i++) {
        const struct value *value = &values[i];

        if (!value->present || value_bytes(value, table->fields[i].dtype, &bytes) < 0)
            continue;
        /* An empty one still counts by its seed: a field that is empty is not one that is absent. */
        seed = seed_of(&table->fields[i], value->n_dims, value->shape);
        sum += XXH3_64bits_withSeed(bytes ? value->data : "", bytes, seed);
    }
    return sum ? sum : 1;
}

/* First axis of the contiguous tail, and its bytes. */
static uint32_t flat_from(const struct poise_tensor *tensor, uint64_t element, uint64_t *ret_run)
{
    uint32_t axis = tensor->n_dims;
    uint64_t run = element;

    while (axis > 0 && (uint64_t)tensor->stride[axis - 1] == run)
        run *= (uint64_t)tensor->shape[--axis];
    *ret_run = run;
    return axis;
}

static void update(XXH3_state_t *state, const struct poise_tensor *tensor, const unsigned char *data, uint32_t axis,
                   uint32_t flat, uint64_t run)
{
    if (axis == flat) {
        XXH3_64bits_update(state, data, run);
        return;
    }
    for (int64_t i = 0; i < tensor->shape[axis]; i++)
        update(state, tensor, data + i * tensor->stride[axis], axis + 1, flat, run);
}

static uint64_t hash_tensor(const struct poise_tensor *tensor, uint64_t seed)
{
    uint64_t run, element = poise_dtype_bytes(tensor->dtype);
    uint32_t flat = flat_from(tensor, element, &run);
    XXH3_state_t state;

    if (tensor->bytes == 0)
        return XXH3_64bits_withSeed("", 0, seed);
    if (flat == 0)
        return XXH3_64bits_withSeed(tensor->data, run, seed);
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    update(&state, tensor, tensor->data, 0, flat, run);
    return XXH3_64bits_digest(&state);
}

uint64_t verify_delivered(const struct wire_table *table, const struct value *present,
                          const struct poise_tensor *tensors)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < table->n_fields; i++)
        if (present[i].present)
            sum += hash_tensor(&tensors[i], seed_of(&table->fields[i], tensors[i].n_dims, tensors[i].shape));
    return sum ? sum : 1;
}
