/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Field tables of an epoch's ranks. Metadata names its rank's table by hash and brings it along only when it changed,
 * so a coordinator keeps those that it has seen; and since the ranks' tables rarely change, so does their merged
 * schema.
 */
#ifndef POISE_CORE_TABLES_H
#define POISE_CORE_TABLES_H

#include "proto/wire.h"

struct table_entry {
    struct wire_id hash;
    struct wire_table table;
    struct poise_err error; /* code not 0: schema_check() refused it; its owner's steps are bad */
    uint64_t used;          /* the newest step that used it */
};

struct tables {
    struct table_entry **entries; /* sorted by hash */
    uint32_t n, cap, limit;       /* above the limit the least recently used is forgotten (and asked for again) */
};

void tables_free(struct tables *tables);

/* Copies a table that came with this hash. 1 new, 0 known, -EPROTO its content has another hash, -ENOMEM. */
int tables_add(struct tables *tables, const struct wire_table *table, struct wire_id hash, uint64_t step);

/* NULL if unknown. Valid until the next tables_add(). */
struct table_entry *tables_find(const struct tables *tables, struct wire_id hash);

/* The merged schema of n ranks; shared by the outcomes that were made with it. */
struct schema {
    uint32_t n_refs;
    uint32_t n_ranks;
    struct wire_id *hashes; /* [n_ranks]: what it was made of; none: no fields */
    struct poise_err error; /* code not 0: the tables cannot be merged; nothing below is valid */
    struct wire_table merged;
    struct wire_id hash; /* of merged; none: no fields */
    uint32_t n_axes;
    uint8_t *n_rank_axes;                    /* [n_ranks] */
    uint8_t (*axis)[POISE_MAX_EXTENTS];      /* [n_ranks]: axis i of the rank's table is axis[i] of the merged one */
};

/* Merges; every hash is none or known. An impossible merge is a schema with its error. 0 or -ENOMEM. *ret_schema: one
 * reference. */
int schema_new(const struct tables *tables, const struct wire_id *hashes, uint32_t n_ranks, struct schema **ret_schema);
struct schema *schema_ref(struct schema *schema);
void schema_unref(struct schema *schema);

#endif
