/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes that show that a sample arrived as it was sent: XXH3-64 of each field's bytes in C order, seeded with its name
 * and shape; summed up, so that the order of the fields does not matter. The sender hashes what it submits, the
 * receiver what it delivers: the view inside the assembled field.
 */
#ifndef POISE_CLIENT_VERIFY_H
#define POISE_CLIENT_VERIFY_H

#include "client/value.h"

/* Whether a step is hashed and checked: the first verify_first steps, then one in verify_every (poise_options; already
 * resolved: POISE_NONE never, 0 like POISE_NONE). */
bool verify_wanted(uint64_t step, uint64_t first_step, uint32_t verify_first, uint32_t verify_every);

/* Of a sample's values, by position in the table. Never 0. */
uint64_t verify_sample(const struct wire_table *table, const struct value *values);

/* The same of what was delivered: tensors[n_fields] are the sample's own (poise_batch.values). An absent field counts
 * nothing; `present` (the values that were read from the directory) tells which are. */
uint64_t verify_delivered(const struct wire_table *table, const struct value *present,
                          const struct poise_tensor *tensors);

#endif
