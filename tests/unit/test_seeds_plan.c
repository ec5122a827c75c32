/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_plan.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_plan.c"

Test(seeds, of_fuzz_plan)
{
    cr_assert(seeds_run("plan", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/plan: run from the root of the tree");
}
