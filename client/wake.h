/* SPDX-License-Identifier: Apache-2.0 */
/* Wakes the engine from any thread, also from one that releases a batch after the handle was closed: counted. */
#ifndef POISE_CLIENT_WAKE_H
#define POISE_CLIENT_WAKE_H

#include "poise.h"

struct wake;

int wake_new(struct wake **ret_wake, struct poise_err *err);
struct wake *wake_ref(struct wake *wake);
void wake_unref(struct wake *wake); /* NULL is allowed */

/* The handle goes: nobody is woken any more, the descriptor is closed. */
void wake_close(struct wake *wake);

void wake_ring(struct wake *wake);
void wake_signal(struct wake *wake); /* the same, async-signal-safe; only while the handle is open */
int wake_fd(const struct wake *wake);
void wake_drain(struct wake *wake);
void wake_child(struct wake *wake); /* in the child of a fork */

#endif
