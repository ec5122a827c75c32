/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two users on one machine, with real uids (root gives them away, no account is needed), and what one could try on the
 * other's job: joining it, its epoch, its token, its memory, its mode; and what a process may say of itself that the
 * kernel knows better. What status shows, it shows to all: names, ranks, pids, sizes and waits, never a token.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/daemon_peer.h"
#include "tests/system/ranks.h"

#define ALICE 54001u /* nobody's on any machine */
#define BOB 54002u

#define NEED_ROOT()                                                                                                    \
    do {                                                                                                               \
        if (geteuid() != 0)                                                                                            \
            cr_skip("needs root, for two uids");                                                                       \
    } while (0)

static struct test_daemon the_daemon;

static void become(uint32_t uid)
{
    if (setgid(uid) < 0 || setuid(uid) < 0)
        _exit(90);
    prctl(PR_SET_DUMPABLE, 1); /* as a program of that user is; setuid took it away */
}

/* Runs act() as that user; its result is the exit status. */
static pid_t start_as(uint32_t uid, int (*act)(void *), void *data)
{
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        become(uid);
        _exit(act(data));
    }
    return child;
}

static void ends_well(pid_t child)
{
    int status;

    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
}

/* ------------------------------------------------------------------------------------------------------ other's epoch
 */

struct alice { /* what Bob knows of her job, as bad as it can get */
    struct wire_id epoch;
    struct wire_id token; /* of her session that has said HELLO */
    struct wire_incarnation incarnation;
    char zmq_path[LOCAL_PATH_BYTES + 148];
};

/* With his own session he speaks of her epoch, in every message that there is. */
static int bob_meddles(void *data)
{
    const struct alice *alice = data;
    struct test_peer bob;
    struct wire_message leave = {.type = WIRE_LEAVE, .leave = {.epoch = alice->epoch, .submitted = 0}};
    struct wire_message report = {.type = WIRE_REPORT, .report = {.epoch = alice->epoch}};

    test_peer_connect(&bob, &the_daemon);
    bob.rank = 0;
    bob.epoch = alice->epoch;
    bob.incarnation = alice->incarnation;
    test_peer_meta(&bob, 0, (const uint64_t[]){1, 1, 1}, 3);
    test_peer_send(&bob, &leave);
    test_peer_send(&bob, &report);
    /* He joins as one who comes back to her epoch ... */
    test_peer_join(&bob, "job", 0, 1);
    struct wire_message *refused = test_peer_expect(&bob, WIRE_REFUSED);
    if (!strstr(refused->refused.error.text, "epoch of another job"))
        return 4;
    wire_free(refused);
    test_peer_close(&bob);
    /* ... and anew, under her job's name, rank and even incarnation: it is a job of his. */
    test_peer_connect(&bob, &the_daemon);
    bob.incarnation = alice->incarnation;
    test_peer_join(&bob, "job", 0, 1);
    test_peer_roster(&bob);
    if (wire_id_is(bob.epoch, alice->epoch))
        return 1;
    test_peer_meta(&bob, 0, (const uint64_t[]){1}, 1);
    struct wire_message *outcome = test_peer_expect(&bob, WIRE_OUTCOME);
    if (outcome->outcome.n_slices != 1 || outcome->outcome.slices[0].n_out != 1)
        return 2;
    wire_free(outcome);
    /* No segment of hers was offered to him in the meantime. */
    struct local_message packet;
    if (recv(bob.local, &packet, sizeof packet, MSG_DONTWAIT) >= 0)
        return 3;
    test_peer_leave(&bob, 1);
    return 0;
}

Test(security, another_user_reaches_nothing_of_a_job)
{
    struct test_peer peers[2];
    struct alice alice;

    NEED_ROOT();
    test_daemon_start(&the_daemon, (const char *const[]){"--log-level", "debug", NULL});
    for (uint32_t i = 0; i < 2; i++) {
        test_peer_connect(&peers[i], &the_daemon);
        test_peer_join(&peers[i], "job", i, 2);
    }
    for (uint32_t i = 0; i < 2; i++)
        test_peer_roster(&peers[i]);
    alice.epoch = peers[0].epoch;
    alice.incarnation = peers[0].incarnation;
    ends_well(start_as(BOB, bob_meddles, &alice));
    /* Her step is decided by what she and her peer say, and by nothing else. */
    test_peer_meta(&peers[0], 0, (const uint64_t[]){5, 5}, 2);
    test_peer_meta(&peers[1], 0, (const uint64_t[]){5, 5}, 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct wire_message *outcome = test_peer_expect(&peers[i], WIRE_OUTCOME);
        cr_assert_eq(outcome->outcome.kind, WIRE_OUTCOME_PLAN);
        cr_assert_eq(outcome->outcome.totals.n_samples, 4);
        wire_free(outcome);
    }
    cr_assert_null(test_peer_wait(&peers[0], WIRE_ABORT, 50));
    for (uint32_t i = 0; i < 2; i++)
        test_peer_close(&peers[i]);
    test_daemon_end(&the_daemon);
}

/* ------------------------------------------------------------------------------------------------------------- tokens
 */

/* HELLO with her token: while she is there, after she has gone, and after poised was started again. */
static int bob_replays(void *data)
{
    const struct alice *alice = data;
    struct test_peer bob = {0};
    struct wire_message hello = {.type = WIRE_HELLO, .hello = {WIRE_VERSION, alice->token}};

    test_peer_dealer(&bob, alice->zmq_path);
    test_peer_send(&bob, &hello);
    struct wire_message *refused = test_peer_expect(&bob, WIRE_REFUSED);
    bool right = refused->refused.error.code == -EEXIST || refused->refused.error.code == -EACCES;
    wire_free(refused);
    /* Not bound to her session, so this is no message of hers. */
    bob.epoch = alice->epoch;
    bob.incarnation = alice->incarnation;
    test_peer_meta(&bob, 0, (const uint64_t[]){9}, 1);
    right = right && !test_peer_wait(&bob, WIRE_OUTCOME, 50);
    test_peer_close(&bob);
    return right ? 0 : 1;
}

Test(security, a_token_of_another_is_worth_nothing)
{
    struct test_peer peer;
    struct alice alice;

    NEED_ROOT();
    test_daemon_start(&the_daemon, NULL);
    test_peer_connect(&peer, &the_daemon);
    test_peer_join(&peer, "job", 0, 1);
    test_peer_roster(&peer);
    alice.epoch = peer.epoch;
    alice.token = peer.token.token;
    alice.incarnation = peer.incarnation;
    snprintf(alice.zmq_path, sizeof alice.zmq_path, "%s", peer.token.text);
    ends_well(start_as(BOB, bob_replays, &alice));
    test_peer_meta(&peer, 0, (const uint64_t[]){5, 6}, 2);
    struct wire_message *outcome = test_peer_expect(&peer, WIRE_OUTCOME);
    cr_assert_eq(outcome->outcome.totals.n_samples, 2);
    wire_free(outcome);
    test_peer_leave(&peer, 1);
    ends_well(start_as(BOB, bob_replays, &alice));
    test_daemon_kill(&the_daemon);
    test_daemon_restart(&the_daemon, NULL);
    ends_well(start_as(BOB, bob_replays, &alice));
    test_daemon_end(&the_daemon);
}

/* ------------------------------------------------------------------------------------------------------- forged ranks
 */

Test(security, a_rank_speaks_for_itself_only)
{
    struct test_peer peers[2];
    int fd;
    struct local_message offer = {.magic = LOCAL_MAGIC,
                                  .version = WIRE_VERSION,
                                  .type = LOCAL_OFFER,
                                  .kind = LOCAL_ARENA,
                                  .bytes = 4096,
                                  .rank = 0,
                                  .replica = 7},
                         got;

    test_daemon_start(&the_daemon, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        test_peer_connect(&peers[i], &the_daemon);
        test_peer_join(&peers[i], "job", i, 2);
    }
    for (uint32_t i = 0; i < 2; i++)
        test_peer_roster(&peers[i]);
    /* Rank 1 writes rank 0's metadata: dropped, so rank 0's own decide the step. */
    peers[1].rank = 0;
    test_peer_meta(&peers[1], 0, (const uint64_t[]){1, 1, 1, 1, 1}, 5);
    peers[1].rank = 1;
    test_peer_meta(&peers[1], 0, (const uint64_t[]){5}, 1);
    test_peer_meta(&peers[0], 0, (const uint64_t[]){5}, 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct wire_message *outcome = test_peer_expect(&peers[i], WIRE_OUTCOME);
        cr_assert_eq(outcome->outcome.totals.n_samples, 2);
        wire_free(outcome);
    }
    /* It offers a segment as rank 0's: poised writes whose it is. */
    fd = memfd_create("offer", MFD_CLOEXEC);
    cr_assert(fd >= 0 && ftruncate(fd, 4096) == 0);
    offer.epoch = peers[1].epoch;
    cr_assert(test_peer_send_packet(peers[1].local, &offer, sizeof offer, fd));
    close(fd);
    cr_assert(test_peer_packet(peers[0].local, &got, &fd));
    cr_assert(got.type == LOCAL_OFFER && got.rank == 1 && got.replica == 0, "of rank %u replica %u", got.rank,
              got.replica);
    close(fd);
    for (uint32_t i = 0; i < 2; i++)
        test_peer_close(&peers[i]);
    test_daemon_end(&the_daemon);
}

/* ---------------------------------------------------------------------------------------------------- user namespaces
 */

static bool new_user_namespace(uint32_t inside, uint32_t outside)
{
    char line[64];
    int fd, n;

    if (unshare(CLONE_NEWUSER) < 0)
        return false;
    fd = open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "deny", 4) == 4)
        close(fd);
    fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    n = snprintf(line, sizeof line, "%u %u 1\n", inside, outside);
    return fd >= 0 && write(fd, line, (size_t)n) == n && close(fd) == 0;
}

#define NO_NAMESPACES 77

/* Root to himself; to the kernel, and so to poised, he is Bob. */
static int bob_plays_root(void *data)
{
    struct test_peer bob;
    (void)data;

    if (!new_user_namespace(0, BOB))
        return NO_NAMESPACES;
    if (getuid() != 0)
        return 1;
    test_peer_connect(&bob, &the_daemon);
    test_peer_join(&bob, "job", 1, 2);
    /* Rank 0 of root's job waits for a rank 1; he is none. */
    struct wire_message *roster = test_peer_wait(&bob, WIRE_ROSTER, 300);
    test_peer_close(&bob);
    return roster ? 2 : 0;
}

Test(security, root_of_a_user_namespace_is_the_user_that_he_is)
{
    struct test_peer root;
    int status;

    NEED_ROOT();
    test_daemon_start(&the_daemon, NULL);
    test_peer_connect(&root, &the_daemon);
    test_peer_join(&root, "job", 0, 2);
    cr_assert_eq(waitpid(start_as(BOB, bob_plays_root, NULL), &status, 0) > 0, 1);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_NAMESPACES)
        cr_skip("no user namespaces here");
    cr_assert_eq(status, 0, "status %x", (unsigned)status);
    cr_assert_null(test_peer_wait(&root, WIRE_ROSTER, 50));
    test_peer_close(&root);
    test_daemon_end(&the_daemon);
}

/* poised in a namespace that knows one user sees all others as 65534, and may not take them for one. */
static int namespaced_daemon(void *data)
{
    struct test_daemon *daemon = data;
    struct local_message packet = {0};
    int status;

    if (!new_user_namespace(0, ALICE))
        return NO_NAMESPACES;
    test_daemon_start(daemon, NULL);
    /* A process of the same namespace and user is served ... */
    int local = test_peer_local(daemon);
    if (!test_peer_packet(local, &packet, NULL) || packet.type != LOCAL_TOKEN)
        return 1;
    close(local);
    /* ... the test tries as another user, from outside. */
    if (write(STDOUT_FILENO, daemon->dir, sizeof daemon->dir) != (ssize_t)sizeof daemon->dir ||
        read(STDIN_FILENO, &status, 1) != 0)
        return 2;
    test_daemon_end(daemon);
    return 0;
}

static int stranger(void *data)
{
    struct local_message packet;
    int local = test_peer_local(data);

    if (!test_peer_packet(local, &packet, NULL) || packet.type != LOCAL_REFUSED)
        return 1;
    if (!strstr(packet.text, "65534") || !strstr(packet.text, "user namespace"))
        return 2;
    return test_peer_packet(local, &packet, NULL) ? 3 : 0;
}

Test(security, a_poised_that_cannot_tell_users_apart_refuses_them)
{
    struct test_daemon daemon = {0};
    int up[2], down[2], status;

    NEED_ROOT();
    cr_assert(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        close(up[0]), close(up[1]), close(down[0]), close(down[1]);
        become(ALICE);
        _exit(namespaced_daemon(&daemon));
    }
    close(up[1]), close(down[0]);
    ssize_t n = read(up[0], daemon.dir, sizeof daemon.dir);
    if (n == (ssize_t)sizeof daemon.dir)
        ends_well(start_as(BOB, stranger, &daemon));
    close(down[1]), close(up[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_NAMESPACES)
        cr_skip("no user namespaces here");
    cr_assert_eq(status, 0, "status %x", (unsigned)status);
}

/* ------------------------------------------------------------------------------------------------------------- memory
 */

static void one_rank(uint32_t rank, struct board *board, void *data)
{
    (void)rank, (void)data;
    struct poise_err err;
    struct poise_options opt = {
        .size = sizeof opt, .job = "secret", .n_ranks = 1, .cost = "length", .socket_dir = the_daemon.dir};
    struct poise *p;
    void *memory;

    EXPECT(poise_open(&opt, &p, &err) == 0, "%s", err.text);
    EXPECT(poise_alloc(p, 64, -1, &memory, &err) == 0, "%s", err.text);
    strcpy(memory, "alice's sample");
    board->flag[1] = (uint32_t)getpid();
    board->flag[0] = 1;
    board_wait(board, 2, 1);
    poise_close(p, &err);
}

struct target {
    pid_t pid;
    struct board *board;
};

static int alice_trains(void *data)
{
    struct target *target = data;

    one_rank(0, target->board, NULL);
    return 0;
}

/* Everything by which a process's memory, descriptors and life can be reached. */
static int bob_attacks(void *data)
{
    const struct target *target = data;
    char path[64], bytes[16];
    struct iovec mine = {bytes, sizeof bytes}, theirs = {&target, sizeof bytes};
    int pidfd = (int)syscall(SYS_pidfd_open, target->pid, 0);

    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)target->pid, fd);
        if (open(path, O_RDONLY | O_CLOEXEC) >= 0)
            return 1;
        if (pidfd >= 0 && syscall(SYS_pidfd_getfd, pidfd, fd, 0) >= 0)
            return 2;
    }
    snprintf(path, sizeof path, "/proc/%d/mem", (int)target->pid);
    if (open(path, O_RDONLY | O_CLOEXEC) >= 0)
        return 3;
    snprintf(path, sizeof path, "/proc/%d/map_files", (int)target->pid);
    if (open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0)
        return 4;
    if (process_vm_readv(target->pid, &mine, 1, &theirs, 1, 0) >= 0)
        return 5;
    if (ptrace(PTRACE_ATTACH, target->pid, NULL, NULL) >= 0)
        return 6;
    if (kill(target->pid, SIGKILL) >= 0)
        return 7;
    return 0;
}

Test(security, memory_of_another_users_rank_cannot_be_reached)
{
    struct target target = {.board = board_new()};

    NEED_ROOT();
    test_daemon_start(&the_daemon, NULL);
    pid_t alice = start_as(ALICE, alice_trains, &target);
    board_wait(target.board, 0, 1);
    target.pid = (pid_t)target.board->flag[1];
    ends_well(start_as(BOB, bob_attacks, &target));
    /* The attack is one: it succeeds for who may, so the list above means something. */
    struct target own = target;
    int status;
    pid_t self = start_as(ALICE, bob_attacks, &own);
    cr_assert_eq(waitpid(self, &status, 0), self);
    cr_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 2), "status %x",
              (unsigned)status);
    target.board->flag[2] = 1;
    ends_well(alice);
    board_free(target.board);
    test_daemon_end(&the_daemon);
}

/* ------------------------------------------------------------------------------------------------------------- status
 */

static void hex(const void *bytes, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++)
        sprintf(text + 2 * i, "%02x", ((const uint8_t *)bytes)[i]);
}

static int bob_watches(void *data)
{
    const struct alice *alice = data;
    char *status, *metrics, token[40], lo[24], hi[24];

    if (test_daemon_http(&the_daemon, false, "/status", &status) != 200 ||
        test_daemon_http(&the_daemon, false, "/metrics", &metrics) != 200)
        return 1;
    if (!strstr(status, "\"job\"") || !strstr(metrics, "54001"))
        return 2; /* that there is a job, and whose, everybody sees */
    hex(&alice->token, sizeof alice->token, token);
    snprintf(lo, sizeof lo, "%llx", (unsigned long long)alice->token.lo);
    snprintf(hi, sizeof hi, "%llx", (unsigned long long)alice->token.hi);
    if (strstr(status, token) || strstr(status, lo) || strstr(status, hi) || strstr(metrics, lo))
        return 3;
    if (strstr(status, "tag") || strstr(status, "token\"") || strstr(status, "key\""))
        return 4; /* what samples are, and what lets somebody in, nobody does */
    if (test_daemon_http(&the_daemon, true, "/mode?job=job&mode=off", NULL) != 403)
        return 5;
    free(status);
    free(metrics);
    return 0;
}

static int alice_shows(void *data)
{
    int *pipes = data;
    struct test_peer peer;
    struct alice alice = {0};
    char byte;

    test_peer_connect(&peer, &the_daemon);
    test_peer_join(&peer, "job", 0, 1);
    test_peer_roster(&peer);
    test_peer_meta(&peer, 0, (const uint64_t[]){5, 6}, 2);
    wire_free(test_peer_expect(&peer, WIRE_OUTCOME));
    alice.token = peer.token.token;
    if (write(pipes[1], &alice, sizeof alice) != (ssize_t)sizeof alice || read(pipes[2], &byte, 1) != 0)
        return 1;
    test_peer_close(&peer);
    return 0;
}

Test(security, status_shows_that_a_job_is_there_and_no_secret)
{
    struct alice alice;
    int pipes[4];

    NEED_ROOT();
    test_daemon_start(&the_daemon, NULL);
    cr_assert(pipe(pipes) == 0 && pipe(pipes + 2) == 0);
    fcntl(pipes[3], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        close(pipes[3]);
        become(ALICE);
        _exit(alice_shows(pipes));
    }
    cr_assert_eq(read(pipes[0], &alice, sizeof alice), (ssize_t)sizeof alice);
    ends_well(start_as(BOB, bob_watches, &alice));
    close(pipes[3]);
    ends_well(child);
    test_daemon_end(&the_daemon);
}
