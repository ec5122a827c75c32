/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_local.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_local.c"

Test(seeds, of_fuzz_local)
{
    cr_assert(seeds_run("local", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/local: run from the root of the tree");
}
