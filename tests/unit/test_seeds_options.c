/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_options.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_options.c"

Test(seeds, of_fuzz_options)
{
    cr_assert(seeds_run("options", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/options: run from the root of the tree");
}
