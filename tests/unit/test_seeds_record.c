/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_record.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_record.c"

Test(seeds, of_fuzz_record)
{
    cr_assert(seeds_run("record", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/record: run from the root of the tree");
}
