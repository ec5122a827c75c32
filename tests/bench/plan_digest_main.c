/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the planner answers to fixed requests as one number an algorithm: builds that differ are wrong. */
#include "tests/unit/plan_digest.h"

int main(void)
{
    plan_digest(1);
    return 0;
}
