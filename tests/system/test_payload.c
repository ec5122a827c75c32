/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload between nodes: two poised on this machine, each a node of its own as far as the ranks can tell, so what
 * ranks of one hand to ranks of the other goes over TCP on loopback, and the rest through memory, in the same steps.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

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
    uint64_t max_bytes_per_s; /* of the second node */
    const char *expected;     /* in the text of a timeout */
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
    struct plan plan = {.coordinators = endpoint, .payload = "plain", .n_steps = N_STEPS, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, train);
    check(pid, &plan);
}

Test(payload, encrypted_between_two_nodes)
{
    struct plan plan = {.coordinators = endpoint, .n_steps = N_STEPS, .n_replicas = 1, .n_of = load_uneven,
                        .flags = LOAD_IN_ARENA};
    pid_t pid[4];
    start(pid, &plan, train);
    check(pid, &plan);
}

Test(payload, replicas_fetch_from_their_own)
{
    struct plan plan = {.coordinators = endpoint, .n_steps = 10, .n_replicas = 2, .n_of = six};
    pid_t pid[8];
    start(pid, &plan, train);
    check(pid, &plan);
}

/* ---------------------------------------------------------------------------------------------------- large samples */

#define BLOB_BYTES (3u << 20) /* three pieces and more */

static unsigned char blob_byte(uint64_t step, uint32_t rank, uint32_t index, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 7) + step * 31 + rank * 7 + index);
}

static int train_blobs(const struct rank_context *c)
{
    static const struct poise_field fields[] = {
        {.name = "blob", .dtype = POISE_BYTES, .assembly = POISE_OPAQUE, .n_dims = 1, .shape = {-1}},
        {.name = "wide", .dtype = POISE_U8, .assembly = POISE_PADDED, .n_dims = 2, .shape = {-1, -1}, .pad_bits = 9},
    };
    struct poise_options opt = options_of(c, "blobs");
    opt.memory_budget = 256u << 20;
    struct poise *p = rank_open(&opt);
    struct poise_err err;
    unsigned char *blob = malloc(BLOB_BYTES);
    EXPECT(poise_declare(p, fields, 2, sizeof *fields, &err) == 0, "%s", err.text);
    for (uint64_t step = 0; step < 4; step++) {
        struct poise_sample samples[3];
        struct poise_value values[3][2];
        int64_t length[3][2];
        for (uint32_t i = 0; i < 3; i++) { /* rank 0 has what is long, so much of it moves */
            size_t n = BLOB_BYTES - 1000 * i - c->rank;
            void *data;
            EXPECT(poise_alloc(p, n, -1, &data, &err) == 0, "%s", err.text);
            for (size_t b = 0; b < n; b++)
                ((unsigned char *)data)[b] = blob_byte(step, c->rank, i, b);
            values[i][0] = (struct poise_value){.field = "blob", .data = data, .n_dims = 1, .shape = {(int64_t)n}};
            values[i][1] = (struct poise_value){
                .field = "wide", .data = data, .n_dims = 2, .shape = {100 + c->rank, 1000 - 10 * (int64_t)i}};
            length[i][0] = 0;
            length[i][1] = 1 + (c->rank < 2 ? 1000 : 1) * (i + 1);
            samples[i] = (struct poise_sample){.tag = i, .length = length[i], .loss_tokens = 1, .n_values = 2,
                                               .values = values[i], .value_size = sizeof **values,
                                               .micro_batch = POISE_DEFAULT_MICRO_BATCH};
        }
        EXPECT(poise_submit(p, step, samples, 3, sizeof *samples, -1, &err) == 0, "%s", err.text);
        for (bool last = false; !last;) {
            const struct poise_batch *b;
            EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
            for (uint32_t i = 0; i < b->n_samples; i++) {
                const struct poise_row *row = &b->rows[i];
                const struct poise_tensor *own = &b->values[i * b->n_fields];
                EXPECT(own->bytes == BLOB_BYTES - 1000 * row->origin_index - row->origin_rank, "%llu bytes",
                       (unsigned long long)own->bytes);
                for (size_t k = 0; k < own->bytes; k++)
                    EXPECT(((unsigned char *)own->data)[k] == blob_byte(step, row->origin_rank, row->origin_index, k),
                           "byte %zu of sample %u of rank %u", k, row->origin_index, row->origin_rank);
                atomic_fetch_add(&c->board->got[step][row->origin_rank][row->origin_index], 1);
            }
            last = b->micro_batch + 1 == b->n_micro_batches;
            poise_release(b);
        }
    }
    struct poise_stats stats;
    poise_stats(p, &stats, sizeof stats);
    EXPECT(stats.samples_corrupt == 0, "corrupt");
    if (stats.bytes_remote > BLOB_BYTES)
        board_raise(c->board, FLAG_READY);
    rank_close(p);
    free(blob);
    return 0;
}

Test(payload, samples_larger_than_a_piece)
{
    struct plan plan = {.coordinators = endpoint, .n_steps = 4, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, train_blobs);
    for (uint32_t r = 0; r < 4; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    for (uint64_t step = 0; step < 4; step++)
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t i = 0; i < 3; i++)
                cr_assert_eq(board->got[step][r][i], 1, "step %d: sample %u of rank %u", (int)step, i, r);
    cr_assert_gt(board->flag[FLAG_READY], 0, "no rank took a large sample from the other node");
}

/* -------------------------------------------------------------------------------------------------- what goes wrong */

/* Trains until the epoch is aborted, and expects the reason to name rank 3. */
static int lose_three(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "lost");
    struct poise *p = rank_open(&opt);
    struct poise_err err = {0};
    const struct poise_batch *b;
    int rc = 0;
    load_declare(p, 0);
    for (uint64_t step = 0; rc == 0; step++) {
        rc = load_submit(p, step, c->rank, 6, 0, &err);
        for (bool last = false; rc == 0 && !last;) {
            rc = poise_next(p, 0, -1, &b, &err);
            last = rc == 0 && b->micro_batch + 1 == b->n_micro_batches;
            if (rc == 0)
                poise_release(b);
        }
        if (rc == 0)
            board_raise(c->board, FLAG_STEP);
    }
    EXPECT(rc == -ESHUTDOWN && err.rank == 3 && strstr(err.text, "rank 3"), "%d %s", rc, err.text);
    board_raise(c->board, FLAG_DEAD);
    rank_close(p);
    return 0;
}

Test(payload, a_killed_rank_is_named_on_the_other_node)
{
    struct plan plan = {.coordinators = endpoint, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, lose_three);
    board_wait(board, FLAG_STEP, 20);
    kill(pid[3], SIGKILL);
    cr_assert_eq(rank_wait(pid[3]), -SIGKILL);
    for (uint32_t r = 0; r < 3; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
}

/* Payload does not go through it: a pause at most. */
Test(payload, a_killed_daemon_is_a_pause)
{
    static const char *const flags[] = {"--node-name", "n2", "--node-timeout-ms", "5000", NULL};
    struct plan plan = {.coordinators = endpoint, .n_steps = N_STEPS, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, train);
    board_wait(board, FLAG_STEP, 5);
    test_daemon_kill(&nodes[1]);
    test_daemon_restart(&nodes[1], flags);
    check(pid, &plan);
}

/* One step with next() polled: who is waited for is flagged, and then waited for. */
static void read_patiently(struct poise *p, const struct rank_context *c, const char *expected)
{
    const struct poise_batch *b;
    struct poise_err err = {0};
    for (bool last = false; !last;) {
        int rc = poise_next(p, 0, c->rank < 2 ? 300 : -1, &b, &err);
        if (rc == -ETIMEDOUT && strstr(err.text, expected))
            board_raise(c->board, FLAG_DEAD);
        if (rc == -ETIMEDOUT && c->rank < 2)
            continue;
        EXPECT(rc == 0, "%d %s", rc, err.text);
        load_check(b, c->board);
        last = b->micro_batch + 1 == b->n_micro_batches;
        poise_release(b);
    }
}

static int wait_patiently(const struct rank_context *c)
{
    const struct plan *plan = c->arg;
    struct poise_options opt = options_of(c, "patience");
    struct poise_err err = {0};
    if (c->rank >= 2)
        opt.max_bytes_per_s = plan->max_bytes_per_s;
    struct poise *p = rank_open(&opt);
    load_declare(p, 0);
    for (uint64_t step = 0; step < plan->n_steps; step++) {
        EXPECT(load_submit(p, step, c->rank, 6, 0, &err) == 0, "%s", err.text);
        read_patiently(p, c, plan->expected);
        board_raise(c->board, FLAG_STEP);
    }
    rank_close(p);
    return 0;
}

/* Alive and stopped: the others wait, and go on. */
Test(payload, a_stopped_rank_is_waited_for)
{
    struct plan plan = {.coordinators = endpoint, .n_steps = N_STEPS, .n_replicas = 1, .n_of = six,
                        .expected = "waited"};
    siginfo_t info;
    pid_t pid[4];
    start(pid, &plan, wait_patiently);
    board_wait(board, FLAG_STEP, 10);
    kill(pid[3], SIGSTOP);
    cr_assert_eq(waitid(P_PID, (id_t)pid[3], &info, WSTOPPED | WNOWAIT), 0);
    board->flag[FLAG_DEAD] = 0;
    board_wait(board, FLAG_DEAD, 2);
    kill(pid[3], SIGCONT);
    check(pid, &plan);
}

/* Alive and slow: next() says what it waits for, and from where. */
Test(payload, a_slow_sender_is_named)
{
    struct plan plan = {.coordinators = endpoint, .n_steps = 8, .n_replicas = 1, .n_of = six, .max_bytes_per_s = 2000,
                        .expected = "waits for payload of rank"};
    pid_t pid[4];
    start(pid, &plan, wait_patiently);
    check(pid, &plan);
    cr_assert_gt(board->flag[FLAG_DEAD], 0, "nobody was told that payload is waited for");
}

/* ---------------------------------------------------------------------------------------------------------- opening */

static int open_differently(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "differ");
    struct poise_err err = {0};
    struct poise *p;
    opt.payload = c->rank == 2 ? "plain" : "curve";
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc == -EINVAL && strstr(err.text, "payload") && strstr(err.text, "plain"), "%d %s", rc, err.text);
    return 0;
}

Test(payload, what_differs_is_named_on_every_rank)
{
    struct plan plan = {.coordinators = endpoint, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, open_differently);
    for (uint32_t r = 0; r < 4; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
}

/* One that cannot serve: the local daemon is the coordinator, but others found it by its endpoint. */
static int open_without_coordinators(const struct rank_context *c)
{
    struct poise_options opt = options_of(c, "none");
    struct poise_err err = {0};
    struct poise *p;
    if (c->rank < 2)
        opt.coordinators = "";
    opt.payload = "plain";
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc < 0, "it opened");
    EXPECT(strstr(err.text, "coordinators") || rc == -ESHUTDOWN, "%d %s", rc, err.text);
    return 0;
}

Test(payload, a_rank_that_serves_nowhere_is_named)
{
    struct plan plan = {.coordinators = endpoint, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, open_without_coordinators);
    for (uint32_t r = 0; r < 4; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
}

static int open_with_few_descriptors(const struct rank_context *c)
{
    struct rlimit few = {60, 60};
    struct poise_options opt = options_of(c, "few");
    struct poise_err err = {0};
    struct poise *p;
    setrlimit(RLIMIT_NOFILE, &few);
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc == -EMFILE && strstr(err.text, "limit of 60") && strstr(err.text, "ulimit -n"), "%d %s", rc, err.text);
    return 0;
}

Test(payload, too_few_descriptors_are_named_at_open)
{
    struct plan plan = {.coordinators = endpoint, .n_replicas = 1, .n_of = six};
    pid_t pid[4];
    start(pid, &plan, open_with_few_descriptors);
    for (uint32_t r = 0; r < 4; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
}
