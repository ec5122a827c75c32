/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank must remember: metadata and outcome of each step until it has decided a step W later. Ranks hold the
 * truth and daemons hold caches, so this is what makes a killed daemon harmless. Pure; the engine uses it, and so does
 * the simulated cluster of tests/sim.
 */
#ifndef POISE_CLIENT_LEDGER_H
#define POISE_CLIENT_LEDGER_H

#include "proto/wire.h"

struct ledger;

/* n_window: WIRE_WINDOW outside tests. */
int ledger_new(uint64_t first_step, uint32_t n_window, struct ledger **ret_ledger);
void ledger_free(struct ledger *ledger);

uint64_t ledger_next_submit(const struct ledger *ledger); /* the step that may be submitted next */
uint64_t ledger_next_decide(const struct ledger *ledger); /* the lowest step without an outcome */
bool ledger_may_submit(const struct ledger *ledger);      /* next_submit - W is decided */

/* Keeps a message with one meta (takes it on success; freed with wire_free). -EAGAIN not yet allowed, -EINVAL not the
 * next. */
int ledger_submit(struct ledger *ledger, struct wire_message *meta, struct poise_err *err);

/* The kept metadata of a step, NULL if it was never submitted or is forgotten. Valid until the ledger changes. */
const struct wire_message *ledger_meta(const struct ledger *ledger, uint64_t step);

/* Keeps an outcome (takes it on success) and forgets what is W older. 0; -EALREADY a doubled one (compare plan ids: one
 * that differs is -EBADE); -EAGAIN: for a later step than the next: ask for the earlier ones first. */
int ledger_decide(struct ledger *ledger, struct wire_message *outcome, struct poise_err *err);

const struct wire_message *ledger_outcome(const struct ledger *ledger, uint64_t step);

#endif
