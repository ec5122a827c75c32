/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An input that kills the planner kills every coordinator that gets it, again and again: ranks keep it, and a
 * coordinator that was restarted asks for it. So what is being planned is written down first, in memory that outlives a
 * crash of the process (the shell lends it: daemon/shell/mark.c), and taken away afterwards. A daemon that finds such a
 * mark of the one before it tells all who speak of that epoch that it is over and why (COORDINATOR_POISONED). Other
 * epochs are not touched.
 */
#ifndef POISE_CORE_POISON_H
#define POISE_CORE_POISON_H

#include "daemon/core/coordinator.h"
#include "daemon/core/rules.h"

/* A few plain stores each, the one that makes the mark valid last. mark may be NULL. */
void mark_set(struct coordinator_mark *mark, struct wire_id epoch, uint64_t step);
void mark_clear(struct coordinator_mark *mark);

struct wire_abort poison_abort(struct wire_id epoch, uint64_t step, const char *who);

#ifdef CORE_RULES
extern void (*core_before_plan)(struct wire_id epoch, uint64_t step); /* may not return; NULL: nothing */
#endif

#endif
