/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables by hash, and their merge. A table is checked once, when it comes; a bad one is kept with its error, since it makes
 * every step of its owner bad. Content decides: a table whose hash is not the one that it came with is not kept.
 */
#include "daemon/core/tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "proto/schema.h"

static void entry_free(struct table_entry *entry)
{
    if (entry)
        core_free(entry->table.fields);
    core_free(entry);
}

void tables_free(struct tables *tables)
{
    for (uint32_t i = 0; i < tables->n; i++)
        entry_free(tables->entries[i]);
    core_free(tables->entries);
    memset(tables, 0, sizeof *tables);
}

/* Index of the first entry whose hash is not below. */
static uint32_t lower_bound(const struct tables *tables, struct wire_id hash)
{
    uint32_t low = 0, high = tables->n;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        struct wire_id at = tables->entries[mid]->hash;

        if (at.hi < hash.hi || (at.hi == hash.hi && at.lo < hash.lo))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct table_entry *tables_find(const struct tables *tables, struct wire_id hash)
{
    uint32_t i = lower_bound(tables, hash);

    return i < tables->n && wire_id_is(tables->entries[i]->hash, hash) ? tables->entries[i] : NULL;
}

static void evict(struct tables *tables)
{
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < tables->n; i++)
        if (tables->entries[i]->used < tables->entries[oldest]->used)
            oldest = i;
    entry_free(tables->entries[oldest]);
    tables->n--;
    memmove(&tables->entries[oldest], &tables->entries[oldest + 1], (tables->n - oldest) * sizeof *tables->entries);
}

static struct table_entry *entry_new(const struct wire_table *table, struct wire_id hash, uint64_t step)
{
    struct table_entry *entry = core_alloc(1, sizeof *entry);

    if (!entry)
        return NULL;
    entry->table.fields = core_alloc(table->n_fields, sizeof *table->fields);
    if (!entry->table.fields) {
        entry_free(entry);
        return NULL;
    }
    entry->table.n_fields = table->n_fields;
    if (table->n_fields)
        memcpy(entry->table.fields, table->fields, table->n_fields * sizeof *table->fields);
    entry->hash = hash;
    entry->used = step;
    if (schema_check(&entry->table, POISE_NONE, &entry->error) < 0 && entry->error.code == 0)
        entry->error.code = -EINVAL;
    return entry;
}

int tables_add(struct tables *tables, const struct wire_table *table, struct wire_id hash, uint64_t step)
{
    struct table_entry *entry = tables_find(tables, hash), **grown;
    uint32_t at;

    if (entry) {
        if (entry->used < step)
            entry->used = step;
        return 0;
    }
    if (wire_id_none(hash) || !wire_id_is(schema_hash(table), hash))
        return -EPROTO;
    if (tables->n == tables->cap) {
        grown = core_grow(tables->entries, tables->cap + 16, sizeof *grown);
        if (!grown)
            return -ENOMEM;
        tables->entries = grown;
        tables->cap += 16;
    }
    entry = entry_new(table, hash, step);
    if (!entry)
        return -ENOMEM;
    if (tables->limit && tables->n >= tables->limit)
        evict(tables);
    at = lower_bound(tables, hash);
    memmove(&tables->entries[at + 1], &tables->entries[at], (tables->n - at) * sizeof *tables->entries);
    tables->entries[at] = entry;
    tables->n++;
    return 1;
}

/* --------------------------------------------------------------------------------------------------------------- merge */

struct schema *schema_ref(struct schema *schema)
{
    schema->n_refs++;
    return schema;
}

void schema_unref(struct schema *schema)
{
    if (!schema || --schema->n_refs > 0)
        return;
    core_free(schema->hashes);
    free(schema->merged.fields); /* schema_merge()'s */
    core_free(schema->n_rank_axes);
    core_free(schema->axis);
    core_free(schema);
}

/* Where each axis of a rank's table is in the merged one: both are lists of names, at most POISE_MAX_EXTENTS long. */
static void map_axes(struct schema *schema, uint32_t rank, const struct wire_table *table)
{
    const char *merged[POISE_MAX_EXTENTS], *own[POISE_MAX_EXTENTS];
    uint32_t n_merged = schema_axes(&schema->merged, merged), n_own = schema_axes(table, own);

    if (n_own > POISE_MAX_EXTENTS)
        n_own = POISE_MAX_EXTENTS;
    for (uint32_t i = 0; i < n_own; i++)
        for (uint32_t j = 0; j < n_merged && j < POISE_MAX_EXTENTS; j++)
            if (strcmp(own[i], merged[j]) == 0)
                schema->axis[rank][i] = (uint8_t)j;
    schema->n_rank_axes[rank] = (uint8_t)n_own;
}

/* The merged table itself may be impossible (five axes from ranks with three each): that is an error of the step too. */
static int merge(struct schema *schema, const struct wire_table *const *tables)
{
    const char *axes[POISE_MAX_EXTENTS];
    int r = schema_merge(tables, schema->n_ranks, &schema->merged, &schema->error);

    if (r == -ENOMEM)
        return r;
    if (r == 0)
        r = schema_check(&schema->merged, POISE_NONE, &schema->error);
    if (r < 0) {
        schema->error.code = r;
        return 0;
    }
    memset(&schema->error, 0, sizeof schema->error);
    schema->n_axes = schema_axes(&schema->merged, axes);
    schema->hash = schema_hash(&schema->merged);
    for (uint32_t rank = 0; rank < schema->n_ranks; rank++) {
        if (rank > 0 && tables[rank] && tables[rank] == tables[rank - 1]) { /* ranks mostly declare alike */
            memcpy(schema->axis[rank], schema->axis[rank - 1], sizeof schema->axis[rank]);
            schema->n_rank_axes[rank] = schema->n_rank_axes[rank - 1];
        } else if (tables[rank]) {
            map_axes(schema, rank, tables[rank]);
        }
    }
    return 0;
}

int schema_new(const struct tables *tables, const struct wire_id *hashes, uint32_t n_ranks, struct schema **ret_schema)
{
    struct schema *schema = core_alloc(1, sizeof *schema);
    const struct wire_table **list = core_alloc(n_ranks, sizeof *list);
    int r = -ENOMEM;

    if (schema)
        schema->n_refs = 1;
    if (!schema || !list)
        goto fail;
    schema->n_ranks = n_ranks;
    schema->hashes = core_alloc(n_ranks, sizeof *schema->hashes);
    schema->n_rank_axes = core_alloc(n_ranks, sizeof *schema->n_rank_axes);
    schema->axis = core_alloc(n_ranks, sizeof *schema->axis);
    if (!schema->hashes || !schema->n_rank_axes || !schema->axis)
        goto fail;
    memcpy(schema->hashes, hashes, n_ranks * sizeof *hashes);
    for (uint32_t i = 0; i < n_ranks; i++) {
        struct table_entry *entry = wire_id_none(hashes[i]) ? NULL : tables_find(tables, hashes[i]);

        list[i] = entry ? &entry->table : NULL;
        if (entry && entry->error.code && !schema->error.code) {
            schema->error = entry->error;
            schema->error.rank = i;
        }
    }
    if (!schema->error.code) {
        r = merge(schema, list);
        if (r < 0)
            goto fail;
    }
    core_free(list);
    *ret_schema = schema;
    return 0;
fail:
    core_free(list);
    if (schema)
        schema_unref(schema);
    return r;
}
