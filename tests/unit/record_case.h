/* SPDX-License-Identifier: Apache-2.0 */
/* A small record in memory: its group and steps. */
#ifndef POISE_TESTS_RECORD_CASE_H
#define POISE_TESTS_RECORD_CASE_H

#include "proto/record.h"

struct record_case {
    uint8_t *bytes;
    size_t n_bytes;
    size_t end[8]; /* where each block ends; the first is the group's */
    uint32_t n_blocks;
};

/* Two ranks, two steps: the first a plan, the second with its metadata missing; closed in order. */
struct record_case record_case_make(void);
void record_case_free(struct record_case *record);

/* Adds a block; parts may be NULL. */
void record_case_add(struct record_case *record, uint32_t kind, uint64_t step, const struct wire_message *first,
                     const struct wire_message *second);

#endif
