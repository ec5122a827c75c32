/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a poised of tests that dies while it plans: POISE_TEST_PLAN_DIES="STEP SIGNAL [FILE]" sends itself the signal when it
 * begins to plan that step; with FILE only while that file is there, which it removes. Linked with a core that has the
 * hook; no poised that is installed has one.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/core/poison.h"

static unsigned long long step_of_death;
static int signal_of_death;
static char file[256];

static void die(struct wire_id epoch, uint64_t step)
{
    (void)epoch;
    if (step != step_of_death || (file[0] && unlink(file) < 0))
        return;
    if (signal_of_death == SIGABRT)
        abort();
    raise(signal_of_death);
}

__attribute__((constructor)) static void arm(void)
{
    const char *text = getenv("POISE_TEST_PLAN_DIES");

    if (text && sscanf(text, "%llu %d %255s", &step_of_death, &signal_of_death, file) >= 2)
        core_before_plan = die;
}
