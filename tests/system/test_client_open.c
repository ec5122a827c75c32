/* SPDX-License-Identifier: Apache-2.0 */
/* Opening that must fail in time and say why, and what a handle leaves behind. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "rig.h"

TestSuite(client_open, .init = rig_begin, .fini = rig_end);

static uint32_t n_entries(const char *path)
{
    DIR *dir = opendir(path);
    uint32_t n = 0;

    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

/* Mappings of memfds: arenas and control segments of this process and of peers. */
static uint32_t n_maps(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    uint32_t n = 0;

    while (file && fgets(line, sizeof line, file))
        n += strstr(line, "memfd:") != NULL;
    if (file)
        fclose(file);
    return n;
}

/* In a process: opening fails with that code within some time, naming all words, and leaves nothing. */
static void expect_open(struct poise_options opt, int code, uint64_t within_ms, const char *first, const char *second)
{
    uint32_t fds = n_entries("/proc/self/fd"), threads = n_entries("/proc/self/task"), maps = n_maps();
    uint64_t begin_ms = rig_now_ms();
    struct poise *p = (struct poise *)&p;
    struct poise_err err = {0};
    int rc = poise_open(&opt, &p, &err);

    EXPECT(rc == code && err.code == code, "%d (%d) instead of %d: %s", rc, err.code, code, err.text);
    EXPECT(p == (struct poise *)&p, "the output was touched");
    EXPECT(strstr(err.text, first) && strstr(err.text, second), "\"%s\" does not say \"%s\" and \"%s\"", err.text,
           first, second);
    EXPECT(rig_now_ms() - begin_ms <= within_ms * RIG_SLOWER, "it took %d ms", (int)(rig_now_ms() - begin_ms));
    EXPECT(n_entries("/proc/self/fd") == fds, "%u descriptors instead of %u", n_entries("/proc/self/fd"), fds);
    EXPECT(n_entries("/proc/self/task") == threads, "threads are left");
    EXPECT(n_maps() == maps, "%u memfds are mapped", n_maps());
}

static int absent(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "absent");

    opt.socket_dir = "/nonexistent/poise";
    opt.daemon_timeout_ms = 300;
    expect_open(opt, -ECONNREFUSED, 1500, "/nonexistent/poise/local.sock", "start `poised --socket-dir");
    return 0;
}

Test(client_open, an_absent_daemon_is_an_error_that_says_to_start_it)
{
    ranks_run(1, rig.daemon.dir, rig.board, absent, NULL);
}

/* The folder may not be searched: what systemd's RuntimeDirectoryMode would do to other users. */
static int not_permitted(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "permission");

    EXPECT(setgid(54321) == 0 && setuid(54321) == 0, "setuid");
    expect_open(opt, -EACCES, 2000, "local.sock", "54321");
    return 0;
}

Test(client_open, a_socket_that_may_not_be_opened_is_named)
{
    if (getuid() != 0)
        return; /* only root can become somebody else */
    cr_assert_eq(chmod(rig.daemon.dir, 0700), 0);
    ranks_run(1, rig.daemon.dir, rig.board, not_permitted, NULL);
    cr_assert_eq(chmod(rig.daemon.dir, 0755), 0);
}

static int stopped_daemon(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "stopped");

    opt.daemon_timeout_ms = 300;
    expect_open(opt, -ETIMEDOUT, 2000, "does not answer", "poised");
    return 0;
}

Test(client_open, a_daemon_that_does_not_answer_is_no_hang)
{
    cr_assert_eq(kill(rig.daemon.pid, SIGSTOP), 0);
    ranks_run(1, rig.daemon.dir, rig.board, stopped_daemon, NULL);
    cr_assert_eq(kill(rig.daemon.pid, SIGCONT), 0);
}

static int alone(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "alone");

    opt.n_ranks = 3;
    opt.open_timeout_ms = 300;
    expect_open(opt, -ETIMEDOUT, 2000, "job alone, group dp: not all of the 3 ranks", "it waits for ranks 0, 2: start");
    return 0;
}

static int alone_of_many(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "many");

    opt.n_ranks = 30;
    opt.n_replicas = 2;
    opt.open_timeout_ms = 300;
    expect_open(opt, -ETIMEDOUT, 2000, "30 ranks x 2 replicas",
                "it waits for rank.replica 0.0, 0.1, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0 and 51 more: start");
    return 0;
}

Test(client_open, peers_that_never_come)
{
    struct rank_context context = {.rank = 1, .n_ranks = 3, .dir = rig.daemon.dir, .board = rig.board};

    cr_assert_eq(rank_wait(rank_start(&context, alone)), 0);
    cr_assert_eq(rank_wait(rank_start(&context, alone_of_many)), 0);
}

static int differ(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "differ");

    opt.micro_batch_size = c->rank == 2 ? 4 : 2;
    expect_open(opt, -EINVAL, 5000, "micro_batch_size", "rank 2");
    return 0;
}

Test(client_open, options_that_differ_fail_on_every_rank_naming_both)
{
    ranks_run(3, rig.daemon.dir, rig.board, differ, NULL);
}

static int n_differs(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "n");

    opt.n_ranks = c->rank == 1 ? 3 : 2;
    expect_open(opt, -EINVAL, 5000, "2", "3");
    return 0;
}

Test(client_open, numbers_of_ranks_that_differ)
{
    ranks_run(2, rig.daemon.dir, rig.board, n_differs, NULL);
}

/* libzmq would abort the process. */
static int no_descriptors(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "descriptors");
    struct rlimit limit = {.rlim_cur = 20, .rlim_max = 20};

    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    expect_open(opt, -EMFILE, 1000, "file descriptors", "ulimit -n");
    return 0;
}

Test(client_open, a_limit_of_descriptors_that_is_too_low)
{
    ranks_run(1, rig.daemon.dir, rig.board, no_descriptors, NULL);
}

static int open_early(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "early");
    struct poise *p;
    struct poise_err err;

    p = rank_open(&opt);
    load_declare(p, 0);
    EXPECT(load_submit(p, 0, c->rank, 5, 0, &err) == 0, "%s", err.text);
    load_read(p, 0, 0, NULL);
    rank_close(p);
    return 0;
}

Test(client_open, poised_restarts_while_a_rank_waits_for_its_peers)
{
    struct rank_context context = {.n_ranks = 2, .dir = rig.daemon.dir, .board = rig.board};
    pid_t pid[2];

    pid[0] = rank_start(&context, open_early);
    for (bool joined = false; !joined;) {
        const struct timespec pause_ = {.tv_nsec = 2000000};
        char *body = NULL;
        cr_assert_eq(test_daemon_http(&rig.daemon, false, "/status", &body), 200);
        joined = strstr(body, "early") != NULL;
        free(body);
        nanosleep(&pause_, NULL);
    }
    test_daemon_kill(&rig.daemon);
    test_daemon_restart(&rig.daemon, NULL);
    context.rank = 1;
    pid[1] = rank_start(&context, open_early);
    cr_assert_eq(rank_wait(pid[0]), 0);
    cr_assert_eq(rank_wait(pid[1]), 0);
}

static int bad_name(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "job-\xff");

    expect_open(opt, -EINVAL, 1000, "job", "UTF-8");
    return 0;
}

Test(client_open, a_name_that_cannot_be_sent_is_refused_here)
{
    ranks_run(1, rig.daemon.dir, rig.board, bad_name, NULL);
}

/* ------------------------------------------------------------------------------------------------------ left behind */

static int open_and_close(const struct rank_context *c)
{
    struct poise_err err;
    uint32_t fds = 0, maps = 0, threads = 0;

    for (int round = 0; round < 4; round++) {
        char job[32];
        snprintf(job, sizeof job, "round-%d", round);
        struct poise_options opt = rank_options(c, job);
        struct poise *p = rank_open(&opt);
        load_declare(p, 0);
        for (uint64_t step = 0; step < 3; step++) {
            EXPECT(load_submit(p, step, c->rank, 6, LOAD_IN_ARENA, &err) == 0, "%s", err.text);
            load_read(p, 0, step, NULL);
        }
        rank_close(p);
        if (round == 0) { /* the first one loads what the C library keeps */
            fds = n_entries("/proc/self/fd");
            maps = n_maps();
            threads = n_entries("/proc/self/task");
        }
    }
    EXPECT(n_entries("/proc/self/fd") == fds, "%u descriptors instead of %u", n_entries("/proc/self/fd"), fds);
    EXPECT(n_maps() == maps && maps == 0, "%u memfds are mapped", n_maps());
    EXPECT(n_entries("/proc/self/task") == threads && threads == 3, "%u threads", n_entries("/proc/self/task") - 2);
    return 0;
}

Test(client_open, a_closed_handle_leaves_nothing)
{
    ranks_run(3, rig.daemon.dir, rig.board, open_and_close, NULL);
}

static int two_handles(const struct rank_context *c)
{
    struct poise_options opt[2] = {rank_options(c, "handles"), rank_options(c, "handles")};
    struct poise *p[2];
    struct poise_err err;

    opt[1].group = "other";
    for (int i = 0; i < 2; i++) {
        p[i] = rank_open(&opt[i]);
        load_declare(p[i], 0);
    }
    for (uint64_t step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++)
            EXPECT(load_submit(p[i], step, c->rank, 4, 0, &err) == 0, "%s", err.text);
        for (int i = 1; i >= 0; i--)
            load_read(p[i], 0, step, NULL);
    }
    rank_close(p[0]);
    rank_close(p[1]);
    return 0;
}

Test(client_open, two_groups_of_a_job_do_not_meet)
{
    ranks_run(2, rig.daemon.dir, rig.board, two_handles, NULL);
}

/* ------------------------------------------------------------------------------------------------------------- fork */

static int fork_worker(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "fork");
    struct poise *p = rank_open(&opt);
    const struct poise_batch *batch;
    struct poise_err err;
    struct poise_note note;

    load_declare(p, 0);
    EXPECT(load_submit(p, 0, c->rank, 4, 0, &err) == 0, "%s", err.text);
    EXPECT(poise_next(p, 0, -1, &batch, &err) == 0, "%s", err.text);
    pid_t pid = fork();
    if (pid == 0) {
        const struct poise_batch *other;
        struct poise_stats stats;
        struct poise *own;
        EXPECT(poise_next(p, 0, -1, &other, &err) == -EPERM && strstr(err.text, "child"), "%s", err.text);
        EXPECT(poise_submit(p, 1, NULL, 0, 0, -1, &err) == -EPERM, "submit");
        EXPECT(poise_fail(p, 1, "x", -1, &err) == -EPERM, "fail");
        EXPECT(poise_end(p, 1, -1, &err) == -EPERM, "end");
        EXPECT(poise_declare(p, NULL, 0, 0, &err) == -EPERM, "declare");
        EXPECT(poise_discard(p, &err) == -EPERM, "discard");
        EXPECT(poise_report(p, 0, 1, &err) == -EPERM, "report");
        EXPECT(poise_stats(p, &stats, sizeof stats) == -EPERM, "stats");
        EXPECT(poise_notice(p, &note, sizeof note) == -EPERM, "notice");
        poise_interrupt(p);
        poise_release(batch);
        EXPECT(poise_close(p, &err) == -EPERM, "close");
        EXPECT(n_maps() == 0, "%u memfds are mapped in the child", n_maps());
        opt = rank_options(c, "fork");
        opt.group = "child";
        opt.n_ranks = 1;
        opt.rank = 0;
        opt.job = c->rank ? "child-1" : "child-0";
        own = rank_open(&opt); /* a handle of its own is fine */
        rank_close(own);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
    load_check(batch, NULL); /* the child's release did not touch it */
    uint32_t n = batch->n_micro_batches;
    poise_release(batch);
    for (uint32_t i = 1; i < n; i++) {
        EXPECT(poise_next(p, 0, -1, &batch, &err) == 0, "%s", err.text);
        poise_release(batch);
    }
    rank_close(p);
    return 0;
}

Test(client_open, a_child_of_a_fork_may_not_use_the_handle)
{
    ranks_run(2, rig.daemon.dir, rig.board, fork_worker, NULL);
}

/* -------------------------------------------------------------------------------------------------------- interrupt */

static struct poise *handle;

#define CLOSING 0 /* flags of the board */
#define CLOSED 1

static void on_signal(int signal)
{
    (void)signal;
    poise_interrupt(handle);
}

static int interrupt(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "interrupt");
    const struct poise_batch *batch;
    struct poise_err err;
    struct poise *p = handle = rank_open(&opt);
    const struct timespec delay = {.tv_nsec = 50000000};
    const struct itimerspec once = {.it_value = delay};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;

    signal(SIGUSR1, on_signal);
    EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &once, NULL) == 0, "timer");
    EXPECT(poise_next(p, 0, -1, &batch, &err) == -EINTR && strstr(err.text, "poise_interrupt"), "%s", err.text);
    poise_interrupt(p); /* nobody waits: the next wait takes it */
    EXPECT(poise_next(p, 0, -1, &batch, &err) == -EINTR, "%s", err.text);
    EXPECT(poise_next(p, 0, 20, &batch, &err) == -ETIMEDOUT, "%s", err.text);
    EXPECT(poise_submit(p, 0, NULL, 0, 0, -1, &err) == 0 && poise_submit(p, 1, NULL, 0, 0, -1, &err) == 0, "%s",
           err.text);
    EXPECT(poise_submit(p, 2, NULL, 0, 0, -1, &err) == 0, "%s", err.text);
    EXPECT(timer_settime(timer, 0, &once, NULL) == 0, "timer");
    EXPECT(poise_submit(p, 3, NULL, 0, 0, -1, &err) == -EINTR, "%s", err.text);
    timer_delete(timer);
    rank_close(p);
    return 0;
}

Test(client_open, an_interrupt_ends_waits)
{
    ranks_run(1, rig.daemon.dir, rig.board, interrupt, NULL);
}

/* Rank 1 submits the second step when rank 0 is about to close, which has to wait for it. */
static int interrupted_before_close(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "before-close");
    struct poise *p = handle = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    for (uint64_t step = 0; step < 2; step++) {
        if (c->rank == 1 && step == 1)
            board_wait(c->board, CLOSING, 1);
        EXPECT(load_submit(p, step, c->rank, 4, 0, &err) == 0, "%s", err.text);
        if (step == 0)
            load_read(p, 0, step, NULL);
    }
    if (c->rank == 0) {
        poise_interrupt(p);
        board_raise(c->board, CLOSING);
        rank_close(p); /* must be 0 */
        return 0;
    }
    load_read(p, 0, 1, NULL); /* also what rank 0 sent */
    rank_close(p);
    return 0;
}

Test(client_open, an_interrupt_before_close_does_not_hurry_it)
{
    ranks_run(2, rig.daemon.dir, rig.board, interrupted_before_close, NULL);
}

/* Rank 1 has not submitted the step that rank 0 has, and does not until rank 0 has closed. */
static int hurried(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "hurried");
    struct poise *p = rank_open(&opt);
    struct poise_err err;

    load_declare(p, 0);
    if (c->rank == 1)
        board_wait(c->board, CLOSED, 1);
    else
        EXPECT(load_submit(p, 0, c->rank, 4, 0, &err) == 0, "%s", err.text);
    poise_hurry(p);
    EXPECT(poise_close(p, &err) == 0, "%s", err.text); /* else close_timeout_ms later -ETIMEDOUT */
    if (c->rank == 0)
        board_raise(c->board, CLOSED);
    return 0;
}

Test(client_open, a_hurried_close_waits_for_nobody)
{
    ranks_run(2, rig.daemon.dir, rig.board, hurried, NULL);
}

static int interrupted_in_close(const struct rank_context *c)
{
    struct poise_options opt = rank_options(c, "in-close");
    struct poise *p = handle = rank_open(&opt);
    const struct itimerspec once = {.it_value = {.tv_nsec = 50000000}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct poise_err err;
    timer_t timer;

    load_declare(p, 0);
    if (c->rank == 1) {
        board_wait(c->board, CLOSED, 1); /* it never submits */
        poise_close(p, NULL);
        return 0;
    }
    EXPECT(load_submit(p, 0, c->rank, 4, 0, &err) == 0, "%s", err.text);
    signal(SIGUSR1, on_signal);
    EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &once, NULL) == 0, "timer");
    EXPECT(poise_close(p, &err) == -EINTR && strstr(err.text, "peers still read"), "%s", err.text);
    board_raise(c->board, CLOSED);
    return 0;
}

Test(client_open, an_interrupt_ends_a_close_that_waits)
{
    ranks_run(2, rig.daemon.dir, rig.board, interrupted_in_close, NULL);
}
