/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms: the one place that names them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "algorithm.h"
#include "micro.h"

#define DEFAULT "least_move"

/* `auto` tries everything, so it looks at small steps only: its bound is on work, never on time. */
#define AUTO_UNITS 65536u

static bool is_small(const struct problem *pb)
{
    return pb->n_units <= AUTO_UNITS;
}

/* With few samples luck decides whether moving little reaches the target; where it did not, moving all may. */
#define TINY_UNITS 1024u

static bool has_one_segment(const struct problem *pb)
{
    return pb->n_segments == 1;
}

static bool is_tiny(const struct problem *pb)
{
    return pb->n_units <= TINY_UNITS && pb->n_segments == 1;
}

static const struct algorithm algorithms[] = {
    {.name = "least_move",
     .flags = ALGORITHM_NEAR,
     .proposal = {{least_move_place, NULL},
                  {sticky_place, sticky_applies},
                  {micro_place_near, micro_applies},
                  {micro_place, micro_applies},
                  {greedy_place, is_tiny}},
     .optimises = "the objective to the tolerance, then bytes moved",
     .complexity = "O(S log S)",
     .text = "reaches the tolerance with as few bytes moved as it can: shed, refill, repair"},
    {.name = "greedy",
     .flags = ALGORITHM_ALL,
     .proposal = {{greedy_place, has_one_segment}, {sticky_place, sticky_applies}, {micro_place, micro_applies}},
     .optimises = "the objective",
     .complexity = "O(S log S)",
     .text = "largest first to the lightest rank (LPT, heap) under counts and caps; moves most bytes"},
    {.name = "auto",
     .flags = ALGORITHM_NEAR | ALGORITHM_ALL,
     .proposal = {{least_move_place, NULL},
                  {greedy_place, is_small},
                  {sticky_place, is_small},
                  {micro_place_near, micro_applies},
                  {micro_place, micro_applies}},
     .optimises = "the objective, then bytes moved",
     .complexity = "O(S log S)",
     .text = "several, within a bound on work; the fewest bytes moved of those that are about as good as the best"},
    {.name = "karmarkar_karp",
     .flags = ALGORITHM_EXEMPT | ALGORITHM_OFFLINE,
     .proposal = {{karmarkar_karp_place, NULL}},
     .optimises = "the largest rank",
     .complexity = "O(S N log N)",
     .text = "largest differencing, for comparison: offline, one phase, no caps or invariants"},
    {.name = "identity",
     .flags = ALGORITHM_EXEMPT,
     .optimises = "nothing",
     .complexity = "O(S)",
     .text = "arrival order"},
    {.name = "post_mbs_balancing_greedy_without_pad",
     .flags = ALGORITHM_EXEMPT,
     .proposal = {{reference_mbs_place, NULL}},
     .optimises = "squared length",
     .complexity = "O(S log S)",
     .text = "the reference's micro-batch one, exactly, for comparison: no counts, caps or invariants"},
    {.name = "post_global_balancing_greedy_without_pad",
     .flags = ALGORITHM_EXEMPT,
     .proposal = {{reference_global_place, NULL}},
     .optimises = "squared length",
     .complexity = "O(S log S)",
     .text = "the reference's global one, exactly, for comparison: no caps or invariants"},
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
