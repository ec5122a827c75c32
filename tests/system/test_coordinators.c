/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Node and coordinator in different processes: the death and the return of each, two coordinators for one group, two
 * nodes, and endpoints that cannot be used. Coordinators listen on ipc sockets in the folder of the test (and on a port
 * of loopback that the kernel gave); real trainers run on the node.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "daemon.h"
#include "ranks.h"

#define N_STEPS 30
#define N_RANKS 3
#define NODE_TIMEOUT_MS 3000

/* What sanitizers cost. */
#ifdef __SANITIZE_ADDRESS__
#define SLOWER 5
#else
#define SLOWER 1
#endif

enum { FLAG_STEP, FLAG_READY, FLAG_DEAD };

struct head { /* a poised that is coordinator only */
    struct test_daemon daemon;
    char endpoint[256];
    const char *flags[8];
};

static struct head heads[2];
static struct test_daemon node;
static struct board *board;
static const char *const node_flags[] = {"--node-name", "n1", "--node-timeout-ms", "3000", NULL};

/* Its endpoint is in the folder of the node, which is there as long as the test. */
static void head_start(struct head *head, const char *endpoint)
{
    snprintf(head->endpoint, sizeof head->endpoint, "%s", endpoint);
    head->flags[0] = "--listen";
    head->flags[1] = head->endpoint;
    head->flags[2] = "--node-timeout-ms";
    head->flags[3] = "3000";
    head->flags[4] = NULL;
    test_daemon_start(&head->daemon, head->flags);
}

static void head_ipc(struct head *head, int i)
{
    char endpoint[256];
    snprintf(endpoint, sizeof endpoint, "ipc:///%s/head-%d", node.dir + 1, i);
    head_start(head, endpoint);
}

static void begin(void)
{
    board = board_new();
    test_daemon_start(&node, node_flags);
}

static void end(void)
{
    for (int i = 0; i < 2; i++)
        if (heads[i].daemon.dir[0])
            test_daemon_end(&heads[i].daemon);
    test_daemon_end(&node);
    board_free(board);
}

TestSuite(coordinators, .init = begin, .fini = end, .timeout = 90);

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint32_t always_6(uint64_t step, uint32_t rank)
{
    (void)step, (void)rank;
    return 6;
}

/* --------------------------------------------------------------------------------------------------------- the ranks */

static struct poise_options options_of(const struct rank_context *c, const char *job)
{
    struct poise_options opt = rank_options(c, job);
    opt.coordinators = c->arg;
    opt.node_timeout_ms = 10000;
    return opt;
}

static int run_on(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "coordinators");
    struct poise *p = rank_open(&opt);
    struct poise_err err;
    load_declare(p, 0);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        int rc = load_submit(p, step, c->rank, 6, 0, &err);
        EXPECT(rc == 0, "submit of step %d: %d %s", (int)step, rc, err.text);
        if (step > 0)
            load_read(p, 0, step - 1, c->board); /* one ahead */
        if (c->rank == 0)
            board_raise(c->board, FLAG_STEP);
    }
    load_read(p, 0, N_STEPS - 1, c->board);
    rank_close(p);
    return 0;
}

static void start_ranks(pid_t pid[N_RANKS], const char *coordinators, int (*run)(const struct rank_context *))
{
    struct rank_context context = {.n_ranks = N_RANKS, .dir = node.dir, .board = board, .arg = coordinators};
    for (uint32_t r = 0; r < N_RANKS; r++) {
        context.rank = r;
        pid[r] = rank_start(&context, run);
    }
}

static void expect_all(pid_t pid[N_RANKS])
{
    for (uint32_t r = 0; r < N_RANKS; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    for (uint64_t step = 0; step < N_STEPS; step++)
        board_check(board, step, N_RANKS, always_6);
}

/* ------------------------------------------------------------------------------------------------- one coordinator */

Test(coordinators, tcp_to_another_process_balances_and_shows_in_status)
{
    pid_t pid[N_RANKS];
    char endpoint[64], *body;
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", test_free_port(AF_INET));
    head_start(&heads[0], endpoint);
    start_ranks(pid, endpoint, run_on);
    expect_all(pid);
    cr_assert_eq(test_daemon_http(&node, false, "/status", &body), 200);
    cr_assert(strstr(body, endpoint) && strstr(body, "\"beacon_ms\""), "%s", body);
    free(body);
    cr_assert_eq(test_daemon_http(&node, false, "/metrics", &body), 200);
    cr_assert(strstr(body, "poise_link_up{endpoint=\"tcp://127.0.0.1:"), "%s", body);
    free(body);
    cr_assert_eq(test_daemon_http(&heads[0].daemon, false, "/status", &body), 200);
    cr_assert(strstr(body, "\"node\": \"n1\"") && strstr(body, "\"job\": \"coordinators\""), "%s", body);
    free(body);
}

/* While the ranks go on. */
static void kill_thrice(struct test_daemon *daemon, const char *const flags[])
{
    for (uint32_t at = 5; at <= 25; at += 10) {
        board_wait(board, FLAG_STEP, at);
        test_daemon_kill(daemon);
        test_daemon_restart(daemon, flags);
    }
}

Test(coordinators, one_that_is_killed_and_comes_back_loses_nothing)
{
    pid_t pid[N_RANKS];
    head_ipc(&heads[0], 0);
    start_ranks(pid, heads[0].endpoint, run_on);
    kill_thrice(&heads[0].daemon, heads[0].flags);
    expect_all(pid);
    cr_assert(test_daemon_logged(&node, "the connection is lost") || test_daemon_logged(&node, ": connected"));
}

Test(coordinators, a_node_that_is_killed_and_comes_back_loses_nothing)
{
    pid_t pid[N_RANKS];
    head_ipc(&heads[0], 0);
    start_ranks(pid, heads[0].endpoint, run_on);
    kill_thrice(&node, node_flags);
    expect_all(pid);
}

Test(coordinators, node_and_coordinator_killed_together_lose_nothing)
{
    pid_t pid[N_RANKS];
    head_ipc(&heads[0], 0);
    start_ranks(pid, heads[0].endpoint, run_on);
    board_wait(board, FLAG_STEP, 10);
    test_daemon_kill(&node);
    test_daemon_kill(&heads[0].daemon);
    test_daemon_restart(&node, node_flags);
    test_daemon_restart(&heads[0].daemon, heads[0].flags);
    expect_all(pid);
}

/* ------------------------------------------------------------------------------------------------- two coordinators */

static char both[600];

static void start_both(void)
{
    head_ipc(&heads[0], 0);
    head_ipc(&heads[1], 1);
    snprintf(both, sizeof both, "%s,%s", heads[0].endpoint, heads[1].endpoint);
}

/* Longest time between two steps of rank 0, in ms, beside what run_on() does. */
static int run_timed(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "timed");
    struct poise *p = rank_open(&opt);
    struct poise_err err;
    uint64_t longest = 0;
    load_declare(p, 0);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        uint64_t at = now_ms();
        EXPECT(load_submit(p, step, c->rank, 6, 0, &err) == 0, "%s", err.text);
        load_read(p, 0, step, c->board);
        longest = now_ms() - at > longest && step > 0 ? now_ms() - at : longest;
        if (c->rank == 0)
            board_raise(c->board, FLAG_STEP);
        if (step == 10) /* one is killed here: the next steps are decided without it */
            board_wait(c->board, FLAG_DEAD, 1);
    }
    EXPECT(longest < 1000 * SLOWER, "a step took %d ms", (int)longest);
    rank_close(p);
    return 0;
}

Test(coordinators, one_of_two_that_is_killed_is_no_pause)
{
    for (int round = 0; round < 2; round++) { /* whichever answers first */
        pid_t pid[N_RANKS];
        board_free(board);
        board = board_new();
        if (round == 0)
            start_both();
        start_ranks(pid, both, run_timed);
        board_wait(board, FLAG_STEP, 11);
        test_daemon_kill(&heads[round].daemon);
        board_raise(board, FLAG_DEAD);
        expect_all(pid);
        test_daemon_restart(&heads[round].daemon, heads[round].flags);
    }
}

Test(coordinators, two_killed_in_turn_lose_nothing)
{
    pid_t pid[N_RANKS];
    start_both();
    start_ranks(pid, both, run_on);
    for (uint32_t i = 0; i < 4; i++) {
        board_wait(board, FLAG_STEP, 4 + 6 * i);
        test_daemon_kill(&heads[i % 2].daemon);
        test_daemon_restart(&heads[i % 2].daemon, heads[i % 2].flags);
    }
    expect_all(pid);
}

static int lose_all(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "lost");
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch = NULL;
    struct poise_err err = {0};
    load_declare(p, 0);
    EXPECT(load_submit(p, 0, c->rank, 6, 0, &err) == 0, "%s", err.text);
    load_read(p, 0, 0, NULL);
    board_raise(c->board, FLAG_READY);
    board_wait(c->board, FLAG_DEAD, 1);
    uint64_t at = now_ms();
    EXPECT(load_submit(p, 1, c->rank, 6, 0, &err) == 0, "%s", err.text);
    int rc = poise_next(p, 0, -1, &batch, &err);
    EXPECT(rc == -ETIMEDOUT || rc == -ESHUTDOWN, "%d %s", rc, err.text);
    EXPECT(strstr(err.text, "head-0") && strstr(err.text, "head-1"), "%s", err.text);
    EXPECT(now_ms() - at < (NODE_TIMEOUT_MS + 3000) * SLOWER, "it took %d ms", (int)(now_ms() - at));
    rank_close(p);
    return 0;
}

Test(coordinators, both_killed_are_named_after_node_timeout)
{
    pid_t pid[N_RANKS];
    start_both();
    start_ranks(pid, both, lose_all);
    board_wait(board, FLAG_READY, N_RANKS);
    test_daemon_kill(&heads[0].daemon);
    test_daemon_kill(&heads[1].daemon);
    board_raise(board, FLAG_DEAD);
    for (uint32_t r = 0; r < N_RANKS; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    for (int i = 0; i < 2; i++)
        test_daemon_restart(&heads[i].daemon, heads[i].flags); /* it removes what the killed ones left */
}

/* ------------------------------------------------------------------------------------------------------- two nodes */

/* The payload of a group stays on one node so far; mappings do not. */
static int plan_only(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "nodes");
    opt.flags = POISE_PLAN_ONLY;
    struct poise *p = rank_open(&opt);
    struct poise_err err;
    for (uint64_t step = 0; step < N_STEPS; step++) {
        struct poise_sample samples[6];
        int64_t length[6][2];
        for (uint32_t i = 0; i < 6; i++) {
            length[i][0] = 0;
            length[i][1] = 1 + 100 * c->rank + i;
            samples[i] = (struct poise_sample){.tag = i, .length = length[i], .loss_tokens = 1, .bytes = 1000,
                                               .micro_batch = POISE_DEFAULT_MICRO_BATCH};
        }
        EXPECT(poise_submit(p, step, samples, 6, sizeof *samples, -1, &err) == 0, "%s", err.text);
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            for (uint32_t i = 0; i < b->n_samples; i++)
                atomic_fetch_add(&c->board->got[step][b->rows[i].origin_rank][b->rows[i].origin_index], 1);
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
        board_raise(c->board, FLAG_STEP);
    }
    rank_close(p);
    return 0;
}

static void expect_mappings(pid_t *pid, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    for (uint64_t step = 0; step < N_STEPS; step++)
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < 6; i++)
                cr_assert_eq(board->got[step][r][i], 1, "step %d: sample %u of rank %u came %u times", (int)step, i, r,
                             board->got[step][r][i]);
}

Test(coordinators, two_nodes_form_one_group_and_one_may_be_restarted)
{
    struct test_daemon second;
    static const char *const flags[] = {"--node-name", "n2", "--node-timeout-ms", "3000", NULL};
    pid_t pid[4];
    head_ipc(&heads[0], 0);
    test_daemon_start(&second, flags);
    for (uint32_t r = 0; r < 4; r++) {
        struct rank_context context = {.rank = r, .n_ranks = 4, .dir = r < 2 ? node.dir : second.dir, .board = board,
                                       .arg = heads[0].endpoint};
        pid[r] = rank_start(&context, plan_only);
    }
    board_wait(board, FLAG_STEP, 40);
    test_daemon_kill(&second);
    test_daemon_restart(&second, flags);
    board_wait(board, FLAG_STEP, 80);
    test_daemon_kill(&heads[0].daemon);
    test_daemon_restart(&heads[0].daemon, heads[0].flags);
    expect_mappings(pid, 4);
    cr_assert(test_daemon_logged(&heads[0].daemon, "4 ranks x 1 replicas on 2 nodes"));
    test_daemon_end(&second);
}

/* The other node's own coordinator: one process in both roles for both. */
Test(coordinators, the_first_node_may_coordinate_for_both)
{
    char endpoint[256];
    pid_t pid[4];
    snprintf(endpoint, sizeof endpoint, "ipc:///%s/head", node.dir + 1);
    static const char *flags[] = {"--listen", NULL, "--node-name", "both", NULL};
    flags[1] = endpoint;
    test_daemon_start(&heads[0].daemon, flags);
    for (uint32_t r = 0; r < 4; r++) {
        struct rank_context context = {.rank = r, .n_ranks = 4, .dir = r < 2 ? node.dir : heads[0].daemon.dir,
                                       .board = board, .arg = endpoint};
        pid[r] = rank_start(&context, plan_only);
    }
    expect_mappings(pid, 4);
}

/* --------------------------------------------------------------------------------------- endpoints that are wrong */

struct wrong {
    const char *coordinators;
    const char *says[2];
};

static int open_wrong(const struct rank_context *c)
{
    const struct wrong *wrong = c->arg;
    struct poise_options opt = rank_options(c, "wrong");
    struct poise_err err = {0};
    struct poise *p = NULL;
    opt.coordinators = wrong->coordinators;
    uint64_t at = now_ms();
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc < 0, "%s is accepted", wrong->coordinators);
    for (int i = 0; i < 2; i++)
        EXPECT(strstr(err.text, wrong->says[i]), "'%s' is not in: %s", wrong->says[i], err.text);
    EXPECT(now_ms() - at < (NODE_TIMEOUT_MS + 4000) * SLOWER, "it took %d ms", (int)(now_ms() - at));
    return 0;
}

Test(coordinators, wrong_endpoints_are_named_in_time)
{
    static const struct wrong cases[] = {
        {"tcp://10.1.2.3:5", {"tcp://10.1.2.3:5", "poisectl keygen"}},
        {"ipc:///tmp/x,http://head", {"http://head", "neither with tcp:// nor with ipc://"}},
        {"tcp://127.0.0.1:70000", {"tcp://127.0.0.1:70000", "port"}},
        {"tcp://*:5", {"tcp://*:5", "where to listen"}},
        {"ipc:///tmp/no-such-poised", {"ipc:///tmp/no-such-poised (nobody answers)", "can be reached"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rank_context context = {.n_ranks = 1, .dir = node.dir, .board = board, .arg = &cases[i]};
        cr_assert_eq(rank_wait(rank_start(&context, open_wrong)), 0, "%s", cases[i].coordinators);
    }
}

Test(coordinators, what_cannot_be_listened_on_is_named)
{
    static const struct wrong cases[] = {
        {"tcp://0.0.0.0:29410", {"tcp://0.0.0.0:29410", "beyond loopback"}},
        {"tcp://[::]", {"tcp://[::]", "insecure = yes"}},
        {"ipc://relative", {"ipc://relative", "does not begin with '/'"}},
        {"ipc:///no/such/folder/c", {"ipc:///no/such/folder/c", "listen"}},
    };
    head_ipc(&heads[0], 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct test_daemon daemon = {.dir = ""};
        const char *const flags[] = {"--listen", cases[i].coordinators, NULL};
        cr_assert_neq(test_daemon_fails(&daemon, flags), 0, "%s", cases[i].coordinators);
        for (int k = 0; k < 2; k++)
            cr_assert(test_daemon_logged(&daemon, cases[i].says[k]), "%s: not '%s'", cases[i].coordinators,
                      cases[i].says[k]);
        test_daemon_end(&daemon);
    }
    struct test_daemon daemon = {.dir = ""};
    cr_assert_eq(test_daemon_fails(&daemon, heads[0].flags), 1);
    cr_assert(test_daemon_logged(&daemon, "another process listens there"));
    test_daemon_end(&daemon);
}
