/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that cross the ABI with their size: copied in, copied out, and what a newer header has set is refused. Pure.
 */
#ifndef POISE_CLIENT_SIZED_H
#define POISE_CLIENT_SIZED_H

#include "poise.h"

/* Copies the caller's struct of n_from bytes to one of this build's n_to; members that the caller's header does not
 * have become 0. n_first: its size in the first release that had it. Errors: -EINVAL a size that no release had, -E2BIG
 * members that this library does not know are set; both name the struct and the sizes. */
int sized_in(void *to, size_t n_to, const void *from, size_t n_from, size_t n_first, const char *what,
             struct poise_err *err);

/* The same check for the elements of an array of n, without copying. */
int sized_check(const void *array, size_t n, size_t n_to, size_t n_from, size_t n_first, const char *what,
                struct poise_err *err);

/* Copies out what fits; what the caller's header has beyond becomes 0. */
void sized_out(void *to, size_t n_to, const void *from, size_t n_from);

#endif
