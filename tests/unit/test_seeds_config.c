/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_config.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_config.c"

Test(seeds, of_fuzz_config)
{
    cr_assert(seeds_run("config", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/config: run from the root of the tree");
}
