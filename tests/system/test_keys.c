/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys between nodes and coordinators: with the same file on both a group runs; with a wrong, a missing or a one-sided
 * key both sides say what is wrong, the log, status and the trainer's own error alike, long before anybody's patience
 * ends.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <zmq.h>

#include "client/keys.h"
#include "daemon.h"
#include "ranks.h"

#define N_STEPS 5
#define NODE_TIMEOUT "3000" /* after which the trainer hears of it */

static char top[] = "/tmp/poise-keys-XXXXXX";
static char right_file[64], wrong_file[64];
static struct keys right;

static void make_file(char path[64], const char *name, struct keys *ret_keys)
{
    struct keys keys;
    struct poise_err err;
    snprintf(path, 64, "%s/%s", top, name);
    cr_assert_eq(keys_make(&keys, &err), 0, "%s", err.text);
    cr_assert_eq(keys_write(path, &keys, POISE_NONE, 0, &err), 0, "%s", err.text);
    if (ret_keys)
        *ret_keys = keys;
}

static void begin(void)
{
    cr_assert(mkdtemp(top));
    make_file(right_file, "right", &right);
    make_file(wrong_file, "wrong", NULL);
}

static void end(void)
{
    unlink(right_file);
    unlink(wrong_file);
    rmdir(top);
}

TestSuite(keys, .init = begin, .fini = end, .timeout = 90);

/* ---------------------------------------------------------------------------------------------------- two daemons */

static struct test_daemon head, node;
static char endpoint[64];

static void start(struct test_daemon *daemon, const char *name, const char *file, const char *listen)
{
    const char *flags[] = {"--node-name", name, "--node-timeout-ms", NODE_TIMEOUT, "--listen", listen, "--keys",
                           file,          NULL};
    test_daemon_start(daemon, flags);
}

static void start_both(int family, const char *head_file, const char *node_file)
{
    uint16_t port = test_free_port(family);
    if (!port)
        cr_skip_test("this host has no loopback address of IPv6");
    snprintf(endpoint, sizeof endpoint, family == AF_INET ? "tcp://127.0.0.1:%u" : "tcp://[::1]:%u", port);
    start(&head, "head", head_file, endpoint);
    start(&node, "n1", node_file, "none");
}

static void end_both(void)
{
    test_daemon_end(&head);
    test_daemon_end(&node);
}

static void expect_status(const struct test_daemon *daemon, const char *part)
{
    char *body = NULL;
    for (int ms = 0; ms < 10000; ms += 20) { /* it tells what was so a moment ago */
        free(body);
        cr_assert_eq(test_daemon_http(daemon, false, "/status", &body), 200);
        if (strstr(body, part)) {
            free(body);
            return;
        }
        poll(NULL, 0, 20);
    }
    cr_assert_fail("status does not say %s: %s", part, body);
}

static struct poise_options plan_only(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "keys");
    opt.coordinators = endpoint;
    opt.flags = POISE_PLAN_ONLY;
    return opt;
}

static void one_step(struct poise *p, uint64_t step, uint32_t rank)
{
    const int64_t length[2] = {0, 1 + rank};
    struct poise_sample sample = {
        .length = length, .loss_tokens = 1, .bytes = 1, .micro_batch = POISE_DEFAULT_MICRO_BATCH};
    struct poise_err err;
    EXPECT(poise_submit(p, step, &sample, 1, sizeof sample, -1, &err) == 0, "%s", err.text);
    for (bool last = false; !last;) {
        const struct poise_batch *b;
        EXPECT(poise_next(p, 0, -1, &b, &err) == 0, "%s", err.text);
        last = b->micro_batch + 1 == b->n_micro_batches;
        poise_release(b);
    }
}

static int run_some(const struct rank_context *c)
{
    struct poise_options opt = plan_only(c);
    struct poise *p = rank_open(&opt);
    for (uint64_t step = 0; step < N_STEPS; step++)
        one_step(p, step, c->rank);
    rank_close(p);
    return 0;
}

static void runs_encrypted(int family)
{
    struct board *board = board_new();
    pid_t pid[2];
    start_both(family, right_file, right_file);
    for (uint32_t r = 0; r < 2; r++) {
        struct rank_context context = {.rank = r, .n_ranks = 2, .dir = r ? node.dir : head.dir, .board = board};
        pid[r] = rank_start(&context, run_some);
    }
    for (uint32_t r = 0; r < 2; r++)
        cr_assert_eq(rank_wait(pid[r]), 0, "rank %u", r);
    expect_status(&node, "\"encrypted\": true");
    expect_status(&node, family == AF_INET ? "\"local\": \"127.0.0.1:" : "\"local\": \"[::1]:");
    expect_status(&node, "\"trouble\": null");
    expect_status(&head, family == AF_INET ? "\"address\": \"127.0.0.1\"" : "\"address\": \"::1\"");
    cr_assert(test_daemon_logged(&node, ": connected, encrypted, from "));
    cr_assert(test_daemon_logged(&head, "for nodes with its key"));
    end_both();
    board_free(board);
}

Test(keys, the_same_file_on_both_runs_encrypted)
{
    runs_encrypted(AF_INET);
}

Test(keys, the_same_file_on_both_runs_encrypted_over_ipv6)
{
    runs_encrypted(AF_INET6);
}

/* ------------------------------------------------------------------------------------------- what does not fit */

struct mismatch {
    const char *head_file, *node_file;
    const char *node_says, *head_says;
    const char *or_says; /* the head, where the node saw first that they do not fit */
};

static int open_refused(const struct rank_context *c)
{
    const struct mismatch *m = c->arg;
    struct poise_options opt = plan_only(c);
    struct poise_err err = {0};
    struct poise *p = NULL;
    int rc = poise_open(&opt, &p, &err);
    EXPECT(rc == -ETIMEDOUT, "%d %s", rc, err.text);
    EXPECT(strstr(err.text, endpoint), "%s", err.text);
    EXPECT(strstr(err.text, m->node_says), "'%s' is not in: %s", m->node_says, err.text);
    return 0;
}

static void refused(const struct mismatch *m)
{
    struct rank_context context = {.n_ranks = 1, .arg = m};
    start_both(AF_INET, m->head_file, m->node_file);
    context.dir = node.dir;
    pid_t pid = rank_start(&context, open_refused);
    test_daemon_wait_log(&node, m->node_says);
    for (int ms = 0; ms < 10000 && !test_daemon_logged(&head, m->or_says); ms += 5) {
        if (test_daemon_logged(&head, m->head_says))
            break;
        poll(NULL, 0, 5);
    }
    if (!test_daemon_logged(&head, m->or_says))
        test_daemon_wait_log(&head, m->head_says); /* shows the log where it is not there */
    test_daemon_wait_log(&head, "127.0.0.1:"); /* who it was */
    expect_status(&node, m->node_says);
    expect_status(&node, "\"state\": \"down\"");
    cr_assert_eq(rank_wait(pid), 0);
    end_both();
}

Test(keys, a_wrong_key_is_told_on_both_sides)
{
    refused(&(struct mismatch){right_file, wrong_file, "its key is another one", "its key is not that of this poised",
                               "its key is not that of this poised"});
}

Test(keys, a_node_without_keys_is_told_on_both_sides)
{
    refused(&(struct mismatch){right_file, "none", "it has keys, this node has none", "it has no keys, this poised has",
                                "as a node does that has no keys or others"});
}

Test(keys, a_coordinator_without_keys_is_told_on_both_sides)
{
    refused(&(struct mismatch){"none", right_file, "it has no keys, this node has", "it has keys, this poised has none",
                                "as a node does that has keys"});
}

/* Who has the public half only, as anybody who looked over a shoulder: it is asked for its own key, and that is no
 * good. */
Test(keys, a_stranger_who_knows_the_public_key_is_not_admitted)
{
    struct keys own;
    struct poise_err err;
    uint16_t port = test_free_port(AF_INET);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    start(&head, "head", right_file, endpoint);
    cr_assert_eq(keys_make(&own, &err), 0, "%s", err.text);
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    cr_assert_eq(zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, right.public, KEYS_TEXT), 0);
    cr_assert_eq(zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own.public, KEYS_TEXT), 0);
    cr_assert_eq(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, own.secret, KEYS_TEXT), 0);
    cr_assert_eq(zmq_connect(socket, endpoint), 0);
    zmq_send(socket, "x", 1, ZMQ_DONTWAIT);
    test_daemon_wait_log(&head, "node at 127.0.0.1 is not admitted");
    cr_assert_not(test_daemon_logged(&head, "bad message"), "its message came in");
    zmq_close(socket);
    zmq_ctx_term(context);
    test_daemon_end(&head);
}

/* ------------------------------------------------------------------------------------------------------------ files */

static void not_started(const char *file, const char *says)
{
    struct test_daemon daemon = {.dir = ""};
    const char *const flags[] = {"--keys", file, "--listen", "none", NULL};
    cr_assert_neq(test_daemon_fails(&daemon, flags), 0, "%s is taken", says);
    cr_assert(test_daemon_logged(&daemon, says), "not '%s'", says);
    cr_assert(test_daemon_logged(&daemon, file), "the file is not named");
    test_daemon_end(&daemon);
}

static void write_to(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
    chmod(path, 0600);
}

Test(keys, files_that_cannot_be_used_are_named_with_what_to_do)
{
    char path[80], text[600];
    struct keys other;
    struct poise_err err;
    snprintf(path, sizeof path, "%s/bad", top);
    not_started(path, "No such file or directory; make one with: poisectl keygen");
    not_started(top, "no file with keys");
    chmod(right_file, 0640);
    not_started(right_file, "its mode is 0640");
    chmod(right_file, 0604);
    not_started(right_file, "its mode is 0604");
    chmod(right_file, 0600);
    if (geteuid() == 0) {
        cr_assert_eq(chown(right_file, 65533, 65533), 0);
        not_started(right_file, "it belongs to uid 65533");
        cr_assert_eq(chown(right_file, 0, 0), 0);
    }
    write_to(path, "");
    not_started(path, "the secret key is missing");
    snprintf(text, sizeof text, "secret = %s\n", right.secret);
    write_to(path, text);
    not_started(path, "the public key is missing");
    snprintf(text, sizeof text, "public = %s\nsecret = short\n", right.public);
    write_to(path, text);
    not_started(path, ":2: a key has 40 characters, this one 5");
    write_to(path, "# x\npassword = x\n");
    not_started(path, ":2: neither public");
    cr_assert_eq(keys_make(&other, &err), 0);
    snprintf(text, sizeof text, "public = %s\nsecret = %s\n", right.public, other.secret);
    write_to(path, text);
    not_started(path, "are no pair");
    snprintf(text, sizeof text, "public = %s\npublic = %s\n", right.public, right.public);
    write_to(path, text);
    not_started(path, ":2: a second key");
    unlink(path);
}
