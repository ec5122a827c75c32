/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms: the one place that names them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "algorithm.h"

#define DEFAULT "least_move"

static const struct algorithm algorithms[] = {
    {"least_move", least_move_place, 0, "the largest rank, then bytes moved", "O(S log S)",
     "reaches the tolerance with as few bytes moved as it can: shed, refill, repair"},
    {"greedy", greedy_place, 0, "the largest rank", "O(S log S)",
     "largest first to the lightest rank (LPT, heap) under counts and caps; moves most bytes"},
    {"identity", NULL, ALGORITHM_EXEMPT, "nothing", "O(S)", "arrival order"},
    {"post_mbs_balancing_greedy_without_pad", reference_mbs_place, ALGORITHM_EXEMPT | ALGORITHM_CUTS, "squared length",
     "O(S log S)", "the reference's micro-batch one, exactly, for comparison: no counts, caps or invariants"},
    {"post_global_balancing_greedy_without_pad", reference_global_place, ALGORITHM_EXEMPT | ALGORITHM_CUTS,
     "squared length", "O(S log S)", "the reference's global one, exactly, for comparison: no caps or invariants"},
};
#define N_ALGORITHMS (sizeof algorithms / sizeof *algorithms)

const char *poise_algorithm_name(uint32_t i)
{
    return i < N_ALGORITHMS ? algorithms[i].name : NULL;
}

const char *poise_algorithm_text(uint32_t i)
{
    return i < N_ALGORITHMS ? algorithms[i].text : NULL;
}

const struct algorithm *algorithm_find(const char *name, struct poise_err *err)
{
    char list[400];
    size_t n = 0;

    if (!name || !*name)
        name = DEFAULT;
    for (uint32_t i = 0; i < N_ALGORITHMS; i++)
        if (!strcmp(name, algorithms[i].name))
            return &algorithms[i];
    for (uint32_t i = 0; i < N_ALGORITHMS && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", algorithms[i].name);
    err_set(err, -EINVAL, "no algorithm is called %.60s: there are %s", name, list);
    return NULL;
}
