/* SPDX-License-Identifier: Apache-2.0 */
/* Field tables: checking one, hashing, merging those of all ranks by name. Pure; used by the client and the
 * coordinator. */
#ifndef POISE_PROTO_SCHEMA_H
#define POISE_PROTO_SCHEMA_H

#include "wire.h"

/* Checks and copies one declared field. Errors: -EINVAL naming the field and the value. */
int schema_field(const struct poise_field *field, struct wire_field *ret_field, struct poise_err *err);

/* Checks a whole table: unique names, at most POISE_MAX_FIELDS, rows_of names a fit field where it is in the table, at
 * most POISE_MAX_EXTENTS axes. Rank goes into the error (POISE_NONE: own). */
int schema_check(const struct wire_table *table, uint32_t rank, struct poise_err *err);

/* Hash of a table's content, independent of the order of its fields; none for an empty one. */
struct wire_id schema_hash(const struct wire_table *table);

/* Names of the ragged axes of padded fields, each once, sorted; pointers into the table. Returns how many (at most
 * POISE_MAX_EXTENTS in a checked table; more are not listed). */
uint32_t schema_axes(const struct wire_table *table, const char *names[POISE_MAX_EXTENTS]);

/*
 * Merges the tables of n_ranks ranks (NULL: that rank has none) by name, sorted by name. ret_table->fields: caller
 * frees with free(). A difference in dtype, dims, fixed axes or rules is -EINVAL, naming field, both ranks (the lowest
 * that has it and the lowest that differs) and both values: "job qwen-7b: rank 3 sends pixel_values as float32, rank 0
 * as bfloat16: make them agree". -ENOMEM.
 */
int schema_merge(const struct wire_table *const *tables, uint32_t n_ranks, struct wire_table *ret_table,
                 struct poise_err *err);

/* The planner's description of padded memory from a merged table: one struct poise_pad a padded field, and the fixed
 * extents. step_extent: the group's largest extents, in the order of schema_axes(). Returns the number of pads. */
uint32_t schema_pads(const struct wire_table *table, const uint32_t step_extent[POISE_MAX_EXTENTS],
                     struct poise_pad pads[POISE_MAX_FIELDS]);

#endif
