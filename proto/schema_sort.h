/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to proto/: a table's fields by name. */
#ifndef POISE_PROTO_SCHEMA_SORT_H
#define POISE_PROTO_SCHEMA_SORT_H

#include "proto/schema.h"

/* Pointers to the fields, sorted by name. Returns how many, at most POISE_MAX_FIELDS. */
uint32_t schema_sort(const struct wire_table *table, const struct wire_field *sorted[POISE_MAX_FIELDS]);

#endif
