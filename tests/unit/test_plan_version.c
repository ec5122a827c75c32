/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinators of one job may run different builds; they agree because the planner's version says when plans change. */
#include <criterion/criterion.h>

#include "daemon/planner/planner.h"
#include "plan_digest.h"

static const struct {
    uint32_t version;
    uint64_t digest;
} known = {1, 0x193166cb717a00f7u};

Test(plan_version, plans_changed_but_the_version_did_not)
{
    uint64_t digest = plan_digest(0);

    cr_assert_eq(PLANNER_VERSION, known.version, "put the new version and its digest here");
    cr_assert_eq(digest, known.digest,
                 "plans changed: raise PLANNER_VERSION if one was released since, and put it and 0x%016llx here",
                 (unsigned long long)digest);
}
