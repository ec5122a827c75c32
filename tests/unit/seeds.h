/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the seeds of a fuzzer, so that they are tested without clang. */
#ifndef POISE_TESTS_SEEDS_H
#define POISE_TESTS_SEEDS_H

#include <stddef.h>
#include <stdint.h>

/* Gives every file of tests/fuzz/seeds/NAME to the entry, whole and cut at some places. Returns how many files there
 * were. */
int seeds_run(const char *name, int (*entry)(const uint8_t *bytes, size_t n_bytes));

#endif
