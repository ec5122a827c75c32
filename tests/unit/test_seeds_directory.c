/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_directory.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_directory.c"

Test(seeds, of_fuzz_directory)
{
    cr_assert(seeds_run("directory", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/directory: run from the root of the tree");
}
