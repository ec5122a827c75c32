/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds ranks that are not what they say. Two processes of one tensor-parallel group read the same data; opened as two ranks
 * instead of two replicas of one, they would exchange copies of the same samples and train on different ones. Their digests
 * (count, tags, features) are equal, which is a warning: a dataset may be like that.
 */
#include <stdlib.h>

#include "daemon/core/epoch.h"
#include "daemon/core/mem.h"

struct digest {
    struct wire_id id;
    uint32_t rank;
};

static int compare(const void *a, const void *b)
{
    const struct digest *x = a, *y = b;

    if (x->id.hi != y->id.hi)
        return x->id.hi < y->id.hi ? -1 : 1;
    if (x->id.lo != y->id.lo)
        return x->id.lo < y->id.lo ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

bool epoch_twins(const struct epoch *epoch, const struct epoch_slot *slot, uint32_t *ret_a, uint32_t *ret_b)
{
    struct digest *digests = core_alloc(epoch->n_ranks, sizeof *digests);
    uint32_t n = 0, lowest = POISE_NONE;

    for (uint32_t rank = 0; digests && rank < epoch->n_ranks; rank++) {
        const struct wire_meta *meta = slot->metas[(size_t)rank * epoch->n_replicas];

        if (meta->kind == WIRE_META_SAMPLES && meta->n_samples)
            digests[n++] = (struct digest){meta->digest, rank};
    }
    if (n)
        qsort(digests, n, sizeof *digests, compare);
    for (uint32_t i = 1; i < n; i++)
        if (wire_id_is(digests[i].id, digests[i - 1].id) && digests[i - 1].rank < lowest) {
            lowest = *ret_a = digests[i - 1].rank;
            *ret_b = digests[i].rank;
        }
    core_free(digests);
    return lowest != POISE_NONE;
}
