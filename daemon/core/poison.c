/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of what is being planned; see poison.h. */
#include "daemon/core/poison.h"

#include <errno.h>

#include "daemon/planner/err.h"
#include "proto/hash.h"

#ifdef CORE_RULES
void (*core_before_plan)(struct wire_id epoch, uint64_t step);
#endif

uint64_t coordinator_mark_check(const struct coordinator_mark *mark)
{
    uint64_t words[3] = {mark->epoch.hi, mark->epoch.lo, mark->step};

    return XXH3_64bits_withSeed(words, sizeof words, 0x706f697365u) | 1; /* never 0, which says that nothing is planned */
}

void mark_set(struct coordinator_mark *mark, struct wire_id epoch, uint64_t step)
{
    if (mark) {
        mark->epoch = epoch;
        mark->step = step;
        __atomic_store_n(&mark->check, coordinator_mark_check(mark), __ATOMIC_RELEASE);
    }
#ifdef CORE_RULES
    if (core_before_plan)
        core_before_plan(epoch, step);
#endif
}

void mark_clear(struct coordinator_mark *mark)
{
    if (mark)
        __atomic_store_n(&mark->check, 0, __ATOMIC_RELEASE);
}

struct wire_abort poison_abort(struct wire_id epoch, uint64_t step, const char *who)
{
    struct wire_abort abort = {.epoch = epoch, .rank = POISE_NONE, .replica = POISE_NONE, .step = step};

    err_set(&abort.error, -ESHUTDOWN,
            "planning step %llu killed the coordinator %.200s: what the ranks submitted for it is not planned again; please "
            "report it with a record of that step",
            (unsigned long long)step, who);
    abort.error.step = step;
    return abort;
}
