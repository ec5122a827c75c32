/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of the protocol that a simulation takes away, to show that it would notice. Only a build of its own can
 * (-DCORE_RULES, for tests/sim): in every other one all of them hold, and the compiler drops the question.
 */
#ifndef POISE_CORE_RULES_H
#define POISE_CORE_RULES_H

#include <stdbool.h>
#include <stdint.h>

enum core_rule {
    RULE_WINDOW,      /* metadata beyond the window is refused (window.c) */
    RULE_SLOTS,       /* a coordinator keeps 2 W steps, not W (window.c) */
    RULE_WRITE_ONCE,  /* the first metadata of (epoch, step, rank) counts (steps.c) */
    RULE_INCARNATION, /* metadata of another incarnation is not taken (steps.c) */
    RULE_NEED,        /* a coordinator asks for what it lacks (steps.c) */
    RULE_PULL,        /* a node asks for outcomes that a beacon proves (node_steps.c) */
    RULE_ECHO,        /* what a node must tell it repeats until coordinators say it back (node_epoch.c) */
    RULE_VOTE,        /* every coordinator that is heard must call a node silent, not one (node_epoch.c) */
    RULE_STALL,       /* a coordinator that stood still restarts all timers (coordinator.c) */
    RULE_LEAVE,       /* steps up to the last of one who left are still decided (window.c) */
    RULE_POISON,      /* an input that killed a planner is not planned again (coordinator.c) */
    RULE_GUEST,       /* who wants a new epoch may be a member of a claimed one whose roster was lost (join.c) */
    RULE_N
};

#ifdef CORE_RULES
extern uint32_t core_broken; /* bits of enum core_rule */
#define RULE_HOLDS(rule) (!(core_broken >> (rule) & 1u))
#else
#define RULE_HOLDS(rule) true
#endif

#endif
