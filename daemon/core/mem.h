/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's memory: all of it comes from here, so that a test can make the n-th allocation of an event fail and see
 * that the event had no effect.
 */
#ifndef POISE_CORE_MEM_H
#define POISE_CORE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

/* Tests only. countdown < 0: never fails. At 0 the next allocation fails; then all following ones too (repeat) or
 * none. */
struct core_fault {
    int64_t countdown;
    bool repeat;
};
extern struct core_fault core_fault;

/* n elements of a size, zeroed; n = 0 gives a block too, so that NULL always means out of memory. */
void *core_alloc(size_t n, size_t size);
/* Grows an array; its old content stays, the rest is not initialised. On failure the old block is as it was. */
void *core_grow(void *block, size_t n, size_t size);
void core_free(void *block);

/* wire_copy(), subject to faults. *ret_copy: caller frees with wire_free(). 0 or -ENOMEM. */
int core_copy(const struct wire_message *msg, struct wire_message **ret_copy);

#endif
