/* SPDX-License-Identifier: Apache-2.0 */
/* Ids: their text, the order of incarnations, and the hashes that all sides must compute alike. */
#include "proto/hash.h"

#include <stdbool.h>

const char *wire_id_format(struct wire_id id, char text[WIRE_ID_TEXT])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < 16; i++) {
        text[i] = digits[id.hi >> (60 - 4 * i) & 15];
        text[16 + i] = digits[id.lo >> (60 - 4 * i) & 15];
    }
    text[32] = 0;
    return text;
}

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

int wire_incarnation_compare(const struct wire_incarnation *a, const struct wire_incarnation *b)
{
    int order = compare(a->attempt, b->attempt);

    if (order == 0)
        order = compare(a->opened_ns, b->opened_ns);
    return order != 0 ? order : compare(a->random, b->random);
}

static void hash_u32s(struct hash *h, const uint32_t *values, size_t n)
{
    hash_u64(h, n);
    for (size_t i = 0; i < n; i++)
        hash_u64(h, values[i]);
}

static void hash_incarnation(struct hash *h, const struct wire_incarnation *incarnation)
{
    hash_u64(h, incarnation->attempt);
    hash_u64(h, incarnation->opened_ns);
    hash_u64(h, incarnation->random);
}

/* As if attention had been given as length squared: replicas may differ in how they say the same. */
static void hash_squares(struct hash *h, const uint64_t *length, size_t n)
{
    hash_u64(h, n);
    for (size_t i = 0; i < n; i++)
        hash_u64(h, length[i] * length[i]); /* wraps alike everywhere */
}

/* All samples alone is the default, said by NULL or by zeros. */
static bool has_units(const struct wire_meta *meta)
{
    for (uint32_t i = 0; meta->unit && i < meta->n_samples; i++)
        if (meta->unit[i] != 0)
            return true;
    return false;
}

static void hash_units(struct hash *h, const struct wire_meta *meta)
{
    hash_u64s(h, meta->unit, meta->n_samples);
    for (uint32_t i = 0; i < meta->n_samples; i++)
        hash_u64(h, meta->unit_layout ? meta->unit_layout[i] : POISE_UNIT_TOGETHER);
}

struct wire_id wire_meta_digest(const struct wire_meta *meta, const uint64_t *tags)
{
    const size_t n = meta->n_samples, n_values = n * meta->n_phases;
    struct hash h;

    hash_begin(&h, "poise meta");
    hash_u64(&h, meta->kind);
    hash_u64(&h, n);
    hash_u64(&h, meta->n_phases);
    hash_u64s(&h, tags, tags ? n : 0);
    hash_u64s(&h, meta->loss_tokens, meta->loss_tokens ? n : 0);
    hash_u64s(&h, meta->length, meta->length ? n_values : 0);
    if (meta->attention)
        hash_u64s(&h, meta->attention, n_values);
    else
        hash_squares(&h, meta->length, meta->length ? n_values : 0);
    hash_u32s(&h, meta->micro_batch, meta->micro_batch ? n : 0);
    hash_u64(&h, has_units(meta));
    if (has_units(meta))
        hash_units(&h, meta);
    return hash_end(&h);
}

struct wire_id wire_epoch_id(const struct wire_join *const *joins, const uint32_t *nodes)
{
    const struct wire_join *first = joins[0];
    const size_t n_members = (size_t)first->n_ranks * first->n_replicas;
    struct hash h;

    hash_begin(&h, "poise epoch");
    hash_text(&h, first->job);
    hash_text(&h, first->group);
    hash_u64(&h, first->n_ranks);
    hash_u64(&h, first->n_replicas);
    hash_u64(&h, first->first_step);
    hash_u64(&h, first->wire_version);
    hash_u64(&h, first->planner_version);
    hash_u64(&h, first->n_options);
    for (uint32_t i = 0; i < first->n_options; i++) {
        hash_text(&h, first->options[i].key);
        hash_text(&h, first->options[i].value);
    }
    for (size_t i = 0; i < n_members; i++) {
        hash_incarnation(&h, &joins[i]->incarnation);
        hash_u64(&h, joins[i]->sync_set);
        hash_u64(&h, nodes[i]);
    }
    return hash_end(&h);
}
