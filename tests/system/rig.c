/* SPDX-License-Identifier: Apache-2.0 */
/* One poised and one board a test: Criterion runs each test in a process of its own. */
#include "rig.h"

#include <time.h>

struct rig rig;

void rig_begin(void)
{
    rig.board = board_new();
    test_daemon_start(&rig.daemon, NULL);
}

void rig_end(void)
{
    test_daemon_end(&rig.daemon);
    board_free(rig.board);
}

uint64_t rig_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void rig_submit(struct poise *p, uint64_t step, uint32_t rank, uint32_t n, uint32_t flags)
{
    struct poise_err err = {0};
    int rc = load_submit(p, step, rank, n, flags, &err);

    EXPECT(rc == 0, "submit of step %d: %d %s", (int)step, rc, err.text);
}
