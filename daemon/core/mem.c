/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation with faults on demand. Every event of a state machine promises to have no effect when it returns -ENOMEM;
 * that promise is worth nothing untested, and it can be tested only if there is one place where memory runs out.
 */
#include "daemon/core/mem.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/core/rules.h"

struct core_fault core_fault = {.countdown = -1};
#ifdef CORE_RULES
uint32_t core_broken;
#endif

static bool fails(void)
{
    if (core_fault.countdown < 0)
        return false;
    if (core_fault.countdown > 0) {
        core_fault.countdown--;
        return false;
    }
    if (!core_fault.repeat)
        core_fault.countdown = -1;
    return true;
}

void *core_alloc(size_t n, size_t size)
{
    return fails() ? NULL : calloc(n ? n : 1, size);
}

void *core_grow(void *block, size_t n, size_t size)
{
    size_t bytes;

    if (fails() || __builtin_mul_overflow(n ? n : 1, size, &bytes))
        return NULL;
    return realloc(block, bytes);
}

void core_free(void *block)
{
    free(block);
}

int core_copy(const struct wire_message *msg, struct wire_message **ret_copy)
{
    return fails() ? -ENOMEM : wire_copy(msg, ret_copy);
}
