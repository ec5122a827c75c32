/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_payload.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_payload.c"

Test(seeds, of_fuzz_payload)
{
    cr_assert(seeds_run("payload", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/payload: run from the root of the tree");
}
