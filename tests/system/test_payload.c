/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload between nodes: two poised on this machine, each a node of its own as far as the ranks can tell, so what ranks of
 * one hand to ranks of the other goes over TCP on loopback, and the rest through memory, in the same steps.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "ranks.h"

#define N_STEPS 30

enum { FLAG_STEP, FLAG_READY, FLAG_DEAD };

struct plan { /* of a test's ranks */
    const char *coordinators;
    const char *payload; /* NULL: the default */
    uint32_t n_steps, n_replicas;
    uint32_t (*n_of)(uint64_t step, uint32_t rank);
    uint32_t flags; /* LOAD_* */
};

static struct test_daemon nodes[2];
static char endpoint[256];
static struct board *board;

static void begin(void)
{
    static const char *const second[] = {"--node-name", "n2", "--node-timeout-ms", "5000", NULL};
    const char *first[] = {"--listen", endpoint, "--node-name", "n1", "--node-timeout-ms", "5000", NULL};
    board = board_new();
    test_daemon_start(&nodes[1], second);
    snprintf(endpoint, sizeof endpoint, "ipc:///%s/head", nodes[1].dir + 1);
    test_daemon_start(&nodes[0], first);
}

static void end(void)
{
    test_daemon_end(&nodes[0]);
    test_daemon_end(&nodes[1]);
    board_free(board);
}

TestSuite(payload, .init = begin, .fini = end, .timeout = 120);

static uint32_t six(uint64_t step, uint32_t rank)
{
    (void)step, (void)rank;
    return 6;
}

static struct poise_options options_of(const struct rank_context *c, const char *job)
{
    const struct plan *plan = c->arg;
    struct poise_options opt = rank_options(c, job);
    opt.coordinators = plan->coordinators;
    opt.payload = plan->payload;
    opt.n_replicas = plan->n_replicas;
    opt.verify_first = N_STEPS;
    return opt;
}

static int train(const struct rank_context *c)
{
    const struct plan *plan = c->arg;
    struct poise_options opt = options_of(c, "payload");
    struct poise *p = rank_open(&opt);
    struct board *count = c->replica == 0 ? c->board : NULL;
    struct poise_stats stats;
    struct poise_err err;
    load_declare(p, 0);
    for (uint64_t step = 0; step < plan->n_steps; step++) {
        int rc = load_submit(p, step, c->rank, plan->n_of(step, c->rank), plan->flags, &err);
        EXPECT(rc == 0, "submit of step %d: %d %s", (int)step, rc, err.text);
        if (step > 0)
            load_read(p, 0, step - 1, count); /* one ahead */
        if (c->rank == 0)
            board_raise(c->board, FLAG_STEP);
    }
    load_read(p, 0, plan->n_steps - 1, count);
    EXPECT(poise_stats(p, &stats, sizeof stats) == 0, "stats");
    EXPECT(stats.bytes_remote > 0, "nothing came from the other node");
    EXPECT(stats.samples_corrupt == 0 && stats.samples_verified > 0, "%llu verified",
           (unsigned long long)stats.samples_verified);
    rank_close(p);
    return 0;
}

/* Ranks 0 and 1 on the first node, 2 and 3 on the second; replicas beside each other. */
static void start(pid_t *pid, const struct plan *plan, int (*run)(const struct rank_context *))
{
    for (uint32_t i = 0; i < 4 * plan->n_replicas; i++) {
        uint32_t rank = i / plan->n_replicas;
        struct rank_context context = {.rank = rank, .replica = i % plan->n_replicas, .n_ranks = 4,
                                       .dir = nodes[rank / 2].dir, .board = board, .arg = plan};
        pid[i] = rank_start(&context, run);
    }
}

static void check(const pid_t *pid, const struct plan *plan)
{
    for (uint32_t i = 0; i < 4 * plan->n_replicas; i++)
        cr_assert_eq(rank_wait(pid[i]), 0, "process %u", i);
    for (uint64_t step = 0; step < plan->n_steps; step++)
        board_check(board, step, 4, plan->n_of);
}

Test(payload, plain_between_two_nodes)
{
    struct plan plan = {endpoint, "plain", N_STEPS, 1, six, 0};
    pid_t pid[4];
    start(pid, &plan, train);
    check(pid, &plan);
}

Test(payload, encrypted_between_two_nodes)
{
    struct plan plan = {endpoint, NULL, N_STEPS, 1, load_uneven, LOAD_IN_ARENA};
    pid_t pid[4];
    start(pid, &plan, train);
    check(pid, &plan);
}

Test(payload, replicas_fetch_from_their_own)
{
    struct plan plan = {endpoint, NULL, 10, 2, six, 0};
    pid_t pid[8];
    start(pid, &plan, train);
    check(pid, &plan);
}
