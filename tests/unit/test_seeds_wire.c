/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of tests/fuzz/fuzz_wire.c. */
#include <criterion/criterion.h>

#include "seeds.h"
#include "tests/fuzz/fuzz_wire.c"

Test(seeds, of_fuzz_wire)
{
    cr_assert(seeds_run("wire", LLVMFuzzerTestOneInput) > 0,
              "no seeds in tests/fuzz/seeds/wire: run from the root of the tree");
}
