/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sample costs. Integers only: two builds, two compilers and two processors must agree on every plan, so nothing
 * here may round as the machine likes. A cost above 2^63 - 1 units (10^22 FLOP for one sample) is an error of the input
 * and not a number to clamp: a clamped cost would plan wrongly in silence.
 */
#include "cost.h"

#include <errno.h>
#include <inttypes.h>

bool cost_attention(uint64_t length, uint64_t *ret_attention)
{
    return !__builtin_mul_overflow(length, length, ret_attention);
}

bool cost_of_phase(const struct poise_phase *phase, uint64_t length, uint64_t attention, uint64_t *ret_cost)
{
    uint64_t linear, quadratic, sum, cost;
    uint32_t passes = phase->passes ? phase->passes : 1;

    if (length == 0) { /* the sample does not have this phase, whatever attention says */
        *ret_cost = 0;
        return true;
    }
    if (__builtin_mul_overflow(phase->linear, length, &linear) ||
        __builtin_mul_overflow(phase->quadratic, attention, &quadratic) ||
        __builtin_add_overflow(linear, quadratic, &sum) || __builtin_add_overflow(sum, phase->constant, &sum) ||
        __builtin_mul_overflow(sum, passes, &cost) || cost > PLAN_COST_MAX)
        return false;
    *ret_cost = cost;
    return true;
}

int plan_sample_cost(const struct poise_phase *phases, uint32_t n_phases, const uint64_t *length,
                     const uint64_t *attention, uint64_t *ret_cost, struct poise_err *err)
{
    uint64_t total = 0;

    for (uint32_t p = 0; p < n_phases; p++) {
        uint64_t att = 0, cost;
        /* A phase without a quadratic part never looks at attention, so its square need not fit. */
        if (attention)
            att = attention[p];
        else if (phases[p].quadratic && !cost_attention(length[p], &att))
            return err_set(err, -ERANGE, "length %" PRIu64 " in phase %s: its square does not fit in 64 bits",
                           length[p], phases[p].name);
        if (!cost_of_phase(&phases[p], length[p], att, &cost) || cost > PLAN_COST_MAX - total)
            return err_set(err, -ERANGE, "length %" PRIu64 " in phase %s: the sample's cost is above 2^63 - 1",
                           length[p], phases[p].name);
        total += cost;
    }
    *ret_cost = total;
    return 0;
}
