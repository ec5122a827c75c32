/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All coordinators that a job names are gone and do not come back: the group goes on at those of its own nodes, with
 * nothing lost, and where no node listens the error names who was asked.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "ranks.h"

#define N_STEPS 40
#define N_RANKS 4

enum { FLAG_STEP };

static struct test_daemon head, nodes[2];
static struct board *board;
static char endpoints[3][256]; /* of the head and the nodes, in the folder of the second node */
static const char *flags[3][8];

static void restart(struct test_daemon *daemon, int i, const char *name, bool listens)
{
    const char *all[] = {"--node-name", name, "--silence-ms", "1000", "--listen", listens ? endpoints[i] : "none",
                         NULL};
    memcpy(flags[i], all, sizeof all);
    test_daemon_restart(daemon, flags[i]);
}

static void start_all(bool nodes_listen)
{
    board = board_new();
    test_daemon_start(&nodes[1], NULL); /* makes the folder */
    test_daemon_start(&nodes[0], NULL);
    test_daemon_start(&head, NULL);
    for (int i = 0; i < 3; i++)
        snprintf(endpoints[i], sizeof endpoints[i], "ipc:///%s/c%d", nodes[1].dir + 1, i);
    test_daemon_stop(&nodes[1]);
    test_daemon_stop(&nodes[0]);
    test_daemon_stop(&head);
    restart(&head, 0, "head", true);
    restart(&nodes[0], 1, "n0", nodes_listen);
    restart(&nodes[1], 2, "n1", nodes_listen);
}

static void end_all(void)
{
    test_daemon_restart(&head, flags[0]); /* it removes what the killed one left */
    test_daemon_end(&head);
    test_daemon_end(&nodes[0]);
    test_daemon_end(&nodes[1]);
    board_free(board);
}

static int train(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "further");
    opt.coordinators = endpoints[0];
    opt.flags = POISE_PLAN_ONLY;
    struct poise *p = rank_open(&opt);
    struct poise_err err;
    for (uint64_t step = 0; step < N_STEPS; step++) {
        const int64_t length[2] = {0, 1 + (int64_t)step + 10 * c->rank};
        struct poise_sample sample = {.length = length, .loss_tokens = 1, .bytes = 1,
                                      .micro_batch = POISE_DEFAULT_MICRO_BATCH};
        EXPECT(poise_submit(p, step, &sample, 1, sizeof sample, -1, &err) == 0, "%s", err.text);
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            int rc = poise_next(p, 0, -1, &b, &err);
            if (rc == -ESHUTDOWN && c->arg) { /* where nobody else can be asked */
                EXPECT(strstr(err.text, endpoints[0]), "%s", err.text);
                poise_close(p, NULL);
                return 0;
            }
            EXPECT(rc == 0, "step %d: %d %s", (int)step, rc, err.text);
            for (uint32_t i = 0; i < b->n_samples; i++)
                atomic_fetch_add(&c->board->got[step][b->rows[i].origin_rank][b->rows[i].origin_index], 1);
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
        board_raise(c->board, FLAG_STEP);
        if (step == 20)
            board_wait(c->board, FLAG_STEP + 1, 1); /* until the head is dead */
    }
    rank_close(p);
    return 0;
}

static void run_and_kill_the_head(const char *arg)
{
    pid_t pid[N_RANKS];
    for (uint32_t r = 0; r < N_RANKS; r++) {
        struct rank_context context = {
            .rank = r, .n_ranks = N_RANKS, .dir = nodes[r / 2].dir, .board = board, .arg = arg};
        pid[r] = rank_start(&context, train);
    }
    board_wait(board, FLAG_STEP, N_RANKS * 10);
    test_daemon_kill(&head);
    board_raise(board, FLAG_STEP + 1);
    for (uint32_t r = 0; r < N_RANKS; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
}

Test(further, the_group_goes_on_at_its_own_nodes, .timeout = 90)
{
    start_all(true);
    run_and_kill_the_head(NULL);
    for (uint64_t step = 0; step < N_STEPS; step++)
        for (uint32_t r = 0; r < N_RANKS; r++)
            cr_assert_eq(board->got[step][r][0], 1, "step %d: rank %u: %u times", (int)step, r, board->got[step][r][0]);
    cr_assert(test_daemon_logged(&nodes[0], "its coordinators are silent, node 0 at ipc:///"));
    cr_assert(test_daemon_logged(&nodes[1], "its coordinators are silent, node 0 at ipc:///"));
    end_all();
}

Test(further, where_no_node_listens_the_silent_one_is_named, .timeout = 90)
{
    start_all(false);
    run_and_kill_the_head("named");
    end_all();
}
