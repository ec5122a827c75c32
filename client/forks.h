/* SPDX-License-Identifier: Apache-2.0 */
/* What fork() means for handles: they stay with the parent. */
#ifndef POISE_CLIENT_FORKS_H
#define POISE_CLIENT_FORKS_H

#include "poise.h"

/* Counts the forks between the first process that opened a handle and this one: a handle or batch of another count
 * belongs to a parent. */
uint32_t forks_generation(void);

/* In the child, `child` is called for each object that was added and not removed; async-signal-safe. object: borrowed.
 */
int forks_add(struct poise *object, void (*child)(struct poise *object), struct poise_err *err);
void forks_remove(struct poise *object);

#endif
