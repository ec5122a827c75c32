/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_csv.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_csv.c"

Test(seeds, of_fuzz_csv)
{
    cr_assert(seeds_run("csv", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/csv: run from the root of the tree");
}
