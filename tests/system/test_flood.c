/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user who connects to poised.zmq again and again, and says nothing: his connections are bounded, poised lives, other
 * users are served, and so is he when he lets go.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon.h"
#include "ranks.h"

#define N_FLOOD 300
#define OTHER_UID 54321

enum { FLAG_READY };

static struct test_daemon daemon_;
static int flood[N_FLOOD];

static void connect_many(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/poised.zmq", daemon_.dir);
    for (int i = 0; i < N_FLOOD; i++) {
        flood[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert(flood[i] >= 0 && connect(flood[i], (struct sockaddr *)&at, sizeof at) == 0, "%d: %s", i,
                  strerror(errno));
    }
}

static void let_go(void)
{
    for (int i = 0; i < N_FLOOD; i++)
        close(flood[i]);
}

/* Ends with 0 where a group of this process alone opens and closes, 1 where not. */
static int open_once(const struct rank_context *c)
{
    uid_t uid = *(const uid_t *)c->arg;
    struct poise_options opt = rank_options(c, "flood");
    struct poise_err err;
    struct poise *p;
    if (uid && setresuid(uid, uid, uid) < 0)
        return 2;
    opt.flags = POISE_PLAN_ONLY;
    opt.coordinators = "";
    opt.daemon_timeout_ms = 2000;
    opt.open_timeout_ms = 2000;
    if (poise_open(&opt, &p, &err) < 0)
        return 1;
    return poise_close(p, &err) == 0 ? 0 : 3;
}

static int opens(uid_t uid)
{
    struct rank_context context = {.n_ranks = 1, .dir = daemon_.dir, .arg = &uid};
    return rank_wait(rank_start(&context, open_once));
}

Test(flood, of_one_user_is_bounded_and_harms_no_other, .timeout = 60)
{
    const char *const flags[] = {"--max-processes", "8", NULL}; /* 4 of a user, and 64 connections beside */
    char *body;
    test_daemon_start(&daemon_, flags);
    int before = test_daemon_n_fds(&daemon_);
    connect_many();
    test_daemon_wait_log(&daemon_, "are refused: it has 68");
    cr_assert_leq(test_daemon_n_fds(&daemon_) - before, 68 + 8);
    cr_assert_eq(test_daemon_http(&daemon_, false, "/metrics", &body), 200);
    cr_assert(strstr(body, "poise_refused_connections_total ") && !strstr(body, "poise_refused_connections_total 0\n"),
              "%s", body);
    free(body);
    if (geteuid() == 0) {
        cr_assert_eq(opens(0), 1, "who floods is at his limit");
        cr_assert_eq(opens(OTHER_UID), 0, "and another user is not");
    }
    let_go();
    int status = 1;
    for (int i = 0; i < 10 && status == 1; i++) /* until poised has seen that they ended */
        status = opens(0);
    cr_assert_eq(status, 0, "who lets go is served again");
    test_daemon_end(&daemon_);
}

static int flood_and_hold(const struct rank_context *c)
{
    board_wait(c->board, FLAG_READY, 1);
    memcpy(daemon_.dir, c->board->got, sizeof daemon_.dir); /* the test's own use of the board: where the daemon is */
    connect_many();
    pause();
    return 0;
}

/* Before there was a limit, this ended poised: libzmq aborts where an accept at a unix socket finds no descriptor. The
 * limit of this test cannot be raised again, so who floods is there before. */
Test(flood, of_all_descriptors_does_not_end_poised, .timeout = 60)
{
    const struct rlimit few = {160, 160};
    struct board *board = board_new();
    struct rank_context context = {.n_ranks = 1, .board = board};
    pid_t pid = rank_start(&context, flood_and_hold);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    test_daemon_start(&daemon_, NULL);
    memcpy(board->got, daemon_.dir, sizeof daemon_.dir);
    board_raise(board, FLAG_READY);
    test_daemon_wait_log(&daemon_, "or no file descriptor is left");
    cr_assert_eq(test_daemon_http(&daemon_, false, "/healthz", NULL), 200);
    kill(pid, SIGKILL);
    rank_wait(pid);
    int status = 1;
    for (int i = 0; i < 10 && status == 1; i++)
        status = opens(0);
    cr_assert_eq(status, 0, "it serves again");
    test_daemon_end(&daemon_);
    board_free(board);
}
