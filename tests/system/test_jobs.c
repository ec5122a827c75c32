/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several jobs with several groups each on the same daemons do not disturb each other: every group has its own steps,
 * the death of a rank ends its own group alone, and a node gets the beacons of its own epochs only.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon.h"
#include "ranks.h"

#define N_JOBS 2
#define N_GROUPS 2
#define N_RANKS 2 /* of a group, one a node */
#define N_STEPS 30

enum { FLAG_STEP, FLAG_DEAD, FLAG_MORE };

static struct test_daemon head, nodes[2];
static struct board *board;
static char endpoint[64];

static void begin(void)
{
    const char *flags[] = {"--node-name", "head", "--listen", endpoint, NULL};
    board = board_new();
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", test_free_port(AF_INET));
    test_daemon_start(&head, flags);
    for (int i = 0; i < 2; i++)
        test_daemon_start(&nodes[i], NULL);
}

static void end(void)
{
    test_daemon_end(&head);
    for (int i = 0; i < 2; i++)
        test_daemon_end(&nodes[i]);
    board_free(board);
}

TestSuite(jobs, .init = begin, .fini = end, .timeout = 90);

static struct poise *open_one(const struct rank_context *c, const char *job, const char *group)
{
    struct poise_options opt = rank_options(c, job);
    opt.group = group;
    opt.coordinators = endpoint;
    opt.flags = POISE_PLAN_ONLY;
    return rank_open(&opt);
}

/* The lengths tell the groups apart: what is delivered must be of this one. */
static int one_step(struct poise *p, const struct rank_context *c, uint64_t step, uint64_t tag, struct poise_err *err)
{
    const int64_t length[2] = {0, (int64_t)(1 + 100 * tag + 7 * c->rank)};
    struct poise_sample sample = {.tag = tag, .length = length, .loss_tokens = 1, .bytes = 1,
                                  .micro_batch = POISE_DEFAULT_MICRO_BATCH};
    int rc = poise_submit(p, step, &sample, 1, sizeof sample, -1, err);
    for (bool last = false; rc == 0 && !last;) {
        const struct poise_batch *b;
        rc = poise_next(p, 0, -1, &b, err);
        if (rc < 0)
            break;
        for (uint32_t i = 0; i < b->n_samples; i++)
            EXPECT(b->rows[i].tag == tag, "tag %d instead of %d", (int)b->rows[i].tag, (int)tag);
        EXPECT(b->totals->n_samples == N_RANKS, "%d samples", (int)b->totals->n_samples);
        last = b->micro_batch + 1 == b->n_micro_batches;
        poise_release(b);
    }
    return rc;
}

static int train(const struct rank_context *c)
{
    uint64_t tag = *(const uint64_t *)c->arg; /* 2 * job + group */
    char job[16], group[16];
    struct poise_err err = {0};
    snprintf(job, sizeof job, "job%d", (int)(tag / N_GROUPS));
    snprintf(group, sizeof group, "group%d", (int)(tag % N_GROUPS));
    struct poise *p = open_one(c, job, group);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        int rc = one_step(p, c, step, tag, &err);
        if (tag == 0 && rc == -ESHUTDOWN) { /* whose rank 1 is killed */
            EXPECT(strstr(err.text, "rank 1") && step >= 10, "step %d: %s", (int)step, err.text);
            poise_close(p, NULL);
            return 7;
        }
        EXPECT(rc == 0, "%s/%s step %d: %d %s", job, group, (int)step, rc, err.text);
        board_raise(c->board, FLAG_STEP);
        if (step == 10)
            board_wait(c->board, FLAG_DEAD, 1);
    }
    rank_close(p);
    return 0;
}

Test(jobs, two_of_two_groups_go_their_own_ways)
{
    static const uint64_t tags[N_JOBS * N_GROUPS] = {0, 1, 2, 3};
    pid_t pid[N_JOBS * N_GROUPS][N_RANKS];
    for (int k = 0; k < N_JOBS * N_GROUPS; k++) {
        for (uint32_t r = 0; r < N_RANKS; r++) {
            struct rank_context context = {.rank = r, .n_ranks = N_RANKS, .dir = nodes[r].dir, .board = board,
                                           .arg = &tags[k]};
            pid[k][r] = rank_start(&context, train);
        }
    }
    board_wait(board, FLAG_STEP, N_JOBS * N_GROUPS * N_RANKS * 11);
    kill(pid[0][1], SIGKILL);
    cr_assert_eq(rank_wait(pid[0][1]), -SIGKILL);
    board_raise(board, FLAG_DEAD);
    cr_assert_eq(rank_wait(pid[0][0]), 7, "the group of the killed rank");
    for (int k = 1; k < N_JOBS * N_GROUPS; k++)
        for (uint32_t r = 0; r < N_RANKS; r++)
            cr_assert_eq(rank_wait(pid[k][r]), 0, "job %d group %d rank %u", k / N_GROUPS, k % N_GROUPS, r);
}

/* ---------------------------------------------------------------------------------------------------------- beacons */

/* One group a node, at rest until it is told to go on. */
static int rest(const struct rank_context *c)
{
    uint64_t tag = *(const uint64_t *)c->arg;
    struct poise_options opt = rank_options(c, tag ? "b" : "a");
    opt.coordinators = endpoint;
    opt.flags = POISE_PLAN_ONLY;
    struct poise *p = rank_open(&opt);
    board_raise(c->board, FLAG_STEP);
    board_wait(c->board, FLAG_MORE, 1);
    rank_close(p);
    return 0;
}

static unsigned long number_after(const struct test_daemon *daemon, const char *object, const char *key)
{
    char *body;
    cr_assert_eq(test_daemon_http(daemon, false, "/status", &body), 200);
    const char *at = strstr(body, object);
    at = at ? strstr(at, key) : NULL;
    cr_assert(at, "%s %s: %s", object, key, body);
    unsigned long n = strtoul(at + strlen(key), NULL, 10);
    free(body);
    return n;
}

Test(jobs, a_node_gets_the_beacons_of_its_own_epochs)
{
    static const uint64_t tags[2] = {0, 1};
    pid_t pid[2];
    for (int i = 0; i < 2; i++) {
        struct rank_context context = {.n_ranks = 1, .dir = nodes[i].dir, .board = board, .arg = &tags[i]};
        pid[i] = rank_start(&context, rest);
    }
    board_wait(board, FLAG_STEP, 2);
    unsigned long published = number_after(&head, "\"coordinator\"", "\"beacons\": ");
    unsigned long received = number_after(&nodes[0], "\"links\"", "\"received\": ");
    while (number_after(&head, "\"coordinator\"", "\"beacons\": ") < published + 24)
        poll(NULL, 0, 50);
    unsigned long n = number_after(&nodes[0], "\"links\"", "\"received\": ") - received;
    published = number_after(&head, "\"coordinator\"", "\"beacons\": ") - published;
    cr_assert(n >= 6, "%lu of %lu beacons came", n, published);
    cr_assert(n <= published / 2 + 6, "%lu of %lu beacons came: those of the other node's too", n, published);
    board_raise(board, FLAG_MORE);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(rank_wait(pid[i]), 0);
}
