/* SPDX-License-Identifier: Apache-2.0 */
/* Members, metadata and tables to test the core with, and a record of what a machine asked the shell to do. */
#ifndef POISE_TESTS_CORE_CASE_H
#define POISE_TESTS_CORE_CASE_H

#include "daemon/core/coordinator.h"
#include "daemon/core/node.h"
#include "daemon/core/outcome.h"

#define CASE_MAX_SAMPLES 64u

/* One rank's step; arrays are its own, so a test changes what it likes. The digest is made by case_seal(). */
struct case_meta {
    struct wire_meta meta;
    struct wire_table table;
    struct wire_field fields[4];
    uint64_t bytes[CASE_MAX_SAMPLES], packed[CASE_MAX_SAMPLES], loss[CASE_MAX_SAMPLES], unit[CASE_MAX_SAMPLES];
    uint64_t length[2 * CASE_MAX_SAMPLES], attention[2 * CASE_MAX_SAMPLES], tags[CASE_MAX_SAMPLES];
    uint32_t micro_batch[CASE_MAX_SAMPLES], extent[POISE_MAX_EXTENTS * CASE_MAX_SAMPLES];
    uint8_t layout[CASE_MAX_SAMPLES];
};

/* One phase, cost `length`, micro-batches of two, algorithm greedy. */
void case_options(struct options *options);

/* lengths: n of them; bytes are 4 a token, loss tokens the length. No field, everything optional NULL. */
void case_meta(struct case_meta *to, uint32_t rank, uint32_t replica, uint64_t step, const uint64_t *lengths,
               uint32_t n);
#define LENGTHS(...) (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)
/* Adds a padded field with one ragged axis of that name; extents are the caller's. */
void case_field(struct case_meta *to, const char *field, const char *axis);
void case_seal(struct case_meta *to);

/* A process of job "qwen", group "dp". Options are static: micro_batch_size 2, or `micro_batch_size`. */
void case_join(struct wire_join *join, uint32_t rank, uint32_t n_ranks, uint32_t replica, uint32_t n_replicas);
void case_join_size(struct wire_join *join, uint32_t micro_batch_size);

/* The newest update, and helpers that look into it. */
const struct core_send *case_sent(const struct core_update *up, enum wire_type type, uint32_t i); /* the i-th of a
                                                                                                   * type */
uint32_t case_count(const struct core_update *up, enum wire_type type);
bool case_logged(const struct core_update *up, const char *text);

#endif
