/* SPDX-License-Identifier: Apache-2.0 */
/* One number for what the planner answers to a fixed list of requests. */
#ifndef TESTS_PLAN_DIGEST_H
#define TESTS_PLAN_DIGEST_H

#include <stdint.h>

/* The same for every compiler, optimisation level and machine. Prints a line for each algorithm where verbose. */
uint64_t plan_digest(int verbose);

#endif
