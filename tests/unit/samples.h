/* SPDX-License-Identifier: Apache-2.0 */
/* Small tables, values and random numbers for the tests of the client's data plane. */
#ifndef POISE_TESTS_SAMPLES_H
#define POISE_TESTS_SAMPLES_H

#include "client/value.h"

/* A field's rule. shape: n_dims numbers. The axes of padded fields are called "a0", "a1" ... unless the test renames
 * them. */
struct wire_field samples_field(const char *name, uint32_t dtype, uint32_t assembly, uint32_t axis, uint32_t n_dims,
                                const int64_t *shape);

/* A present value. */
struct value samples_value(const void *data, uint32_t n_dims, const int64_t *shape);

#define SHAPE(...) (const int64_t[]){ __VA_ARGS__ }

/* xorshift: state is the seed, not 0. */
uint64_t samples_random(uint64_t *state);
/* 0 .. n - 1 */
uint64_t samples_below(uint64_t *state, uint64_t n);
/* A new one each run, printed; POISE_SEED repeats one. */
uint64_t samples_seed(const char *test);

/* Open descriptors of this process. */
int samples_n_fds(void);

/* Whether a byte can be read there, asked of the kernel: no fault. */
bool samples_readable(const void *at);

#endif
