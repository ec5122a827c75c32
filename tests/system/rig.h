/* SPDX-License-Identifier: Apache-2.0 */
/* What most tests of the client begin with: a private poised and a board for the processes. */
#ifndef POISE_TESTS_SYSTEM_RIG_H
#define POISE_TESTS_SYSTEM_RIG_H

#include "daemon.h"
#include "ranks.h"

struct rig {
    struct test_daemon daemon;
    struct board *board;
};
extern struct rig rig;

/* .init and .fini of a suite. */
void rig_begin(void);
void rig_end(void);

/* What sanitizers cost: deadlines of tests are so many times longer. */
#ifdef __SANITIZE_ADDRESS__
#define RIG_SLOWER 5
#else
#define RIG_SLOWER 1
#endif

uint64_t rig_now_ms(void);

/* In a training process: load_submit() that must succeed. */
void rig_submit(struct poise *p, uint64_t step, uint32_t rank, uint32_t n, uint32_t flags);

#endif
