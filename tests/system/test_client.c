/* SPDX-License-Identifier: Apache-2.0 */
/* The client against a real poised: several processes exchange real fields, and every byte is checked. */
#include <criterion/criterion.h>

#include "rig.h"

TestSuite(client, .init = rig_begin, .fini = rig_end);

#define N_STEPS 12

static uint32_t always_6(uint64_t step, uint32_t rank)
{
    (void)step;
    (void)rank;
    return 6;
}

static int exchange(const struct rank_context *c)
{
    uint32_t (*n_of)(uint64_t, uint32_t) = c->arg;
    struct poise_options opt = rank_options(c, "exchange");
    struct poise *p = rank_open(&opt);
    struct poise_err err = {0};

    load_declare(p, 0);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        int rc = load_submit(p, step, c->rank, n_of(step, c->rank), step % 2 ? LOAD_IN_ARENA : 0, &err);
        EXPECT(rc == 0, "submit: %d %s", rc, err.text);
        load_read(p, 0, step, c->board);
    }
    struct poise_stats stats;
    poise_stats(p, &stats, sizeof stats);
    EXPECT(stats.samples_corrupt == 0 && stats.steps_delivered == N_STEPS, "%d steps", (int)stats.steps_delivered);
    EXPECT(stats.samples_verified == stats.samples_out, "%d verified", (int)stats.samples_verified);
    rank_close(p);
    return 0;
}

static void check_exchange(uint32_t n_ranks, uint32_t (*n_of)(uint64_t, uint32_t))
{
    ranks_run(n_ranks, rig.daemon.dir, rig.board, exchange, n_of);
    for (uint64_t step = 0; step < N_STEPS; step++)
        board_check(rig.board, step, n_ranks, n_of);
}

Test(client, two_ranks)
{
    check_exchange(2, always_6);
}

Test(client, four_ranks_uneven_and_empty)
{
    check_exchange(4, load_uneven);
}

Test(client, eight_ranks)
{
    check_exchange(8, always_6);
}
