/* SPDX-License-Identifier: Apache-2.0 */
/* poised with processes that train: joining, steps, segments, death, restart, mode. Raw sockets play libpoise. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/daemon.h"
#include "tests/system/daemon_peer.h"

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static json_t *status_of(const struct test_daemon *daemon)
{
    char *body;
    json_error_t error;
    cr_assert_eq(test_daemon_http(daemon, false, "/status", &body), 200);
    json_t *json = json_loads(body, 0, &error);
    cr_assert(json, "%s in %s", error.text, body);
    free(body);
    return json;
}

/* The text of the first group's key, "" where there is none. */
static void group_text(const struct test_daemon *daemon, const char *key, char text[512])
{
    json_t *json = status_of(daemon);
    const char *value = json_string_value(json_object_get(json_array_get(json_object_get(json, "groups"), 0), key));
    snprintf(text, 512, "%s", value ? value : "");
    json_decref(json);
}

static void wait_group_text(const struct test_daemon *daemon, const char *key, const char *part)
{
    char text[512];
    for (int ms = 0; ms < 10000; ms += 10) {
        group_text(daemon, key, text);
        if (strstr(text, part))
            return;
        poll(NULL, 0, 10);
    }
    cr_assert(false, "%s is '%s', not '%s'", key, text, part);
}

static void join_all(const struct test_daemon *daemon, struct test_peer *peers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        test_peer_connect(&peers[i], daemon);
        test_peer_join(&peers[i], "job", i, n);
    }
    for (uint32_t i = 0; i < n; i++)
        test_peer_roster(&peers[i]);
    for (uint32_t i = 1; i < n; i++)
        cr_assert(wire_id_is(peers[i].epoch, peers[0].epoch));
}

static void close_all(struct test_peer *peers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        test_peer_close(&peers[i]);
}

/* Takes a step's outcome at both ranks and checks that each of 2 + 2 samples is delivered once. */
static void expect_plan(struct test_peer peers[2], uint64_t step, uint64_t ret_length[2])
{
    static const uint64_t lengths[2][2] = {{100, 4}, {4, 100}};
    uint32_t seen[2][2] = {{0}};
    struct wire_id plan_id[2];
    for (int rank = 0; rank < 2; rank++) {
        struct wire_message *msg = test_peer_expect(&peers[rank], WIRE_OUTCOME);
        cr_assert_eq(msg->outcome.step, step);
        cr_assert_eq(msg->outcome.kind, (uint32_t)WIRE_OUTCOME_PLAN, "%s", msg->outcome.error.text);
        cr_assert_eq(msg->outcome.n_slices, 1);
        const struct wire_slice *slice = &msg->outcome.slices[0];
        cr_assert_eq(slice->rank, (uint32_t)rank);
        ret_length[rank] = 0;
        for (uint32_t i = 0; i < slice->n_in; i++) {
            seen[slice->in_rank[i]][slice->in_index[i]]++;
            ret_length[rank] += lengths[slice->in_rank[i]][slice->in_index[i]];
        }
        plan_id[rank] = msg->outcome.plan_id;
        wire_free(msg);
    }
    cr_assert(wire_id_is(plan_id[0], plan_id[1]));
    for (int i = 0; i < 4; i++)
        cr_assert_eq(seen[i / 2][i % 2], 1);
}

static void submit(struct test_peer peers[2], uint64_t step)
{
    static const uint64_t lengths[2][2] = {{100, 4}, {4, 100}};
    for (int rank = 0; rank < 2; rank++)
        test_peer_meta(&peers[rank], step, lengths[rank], 2);
}

Test(daemon_step, two_processes_join_and_get_their_outcomes)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    uint64_t length[2];
    char text[512];
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 2);
    for (uint64_t step = 0; step < 20; step++) {
        submit(peers, step);
        expect_plan(peers, step, length);
        cr_assert_eq(length[0], 104);
        cr_assert_eq(length[1], 104);
    }
    group_text(&daemon, "state", text);
    cr_assert_str_eq(text, "running");
    group_text(&daemon, "verdict", text);
    cr_assert(strstr(text, "running: predicted largest/mean"), "%s", text);
    json_t *json = status_of(&daemon), *group = json_array_get(json_object_get(json, "groups"), 0);
    cr_assert_eq(json_integer_value(json_object_get(group, "decided")), 20);
    cr_assert_eq(json_integer_value(json_object_get(group, "samples")), 80);
    cr_assert_eq(json_array_size(json_object_get(group, "processes")), 2);
    json_decref(json);
    close_all(peers, 2);
    test_daemon_end(&daemon);
}

Test(daemon_step, a_job_whose_coordinators_cannot_be_used_is_refused_not_left_waiting)
{
    struct test_daemon daemon;
    struct test_peer peer;
    test_daemon_start(&daemon, NULL);
    test_peer_connect(&peer, &daemon);
    strcpy(peer.coordinators, "tcp://head:1234");
    test_peer_join(&peer, "job", 0, 1);
    struct wire_message *refused = test_peer_expect(&peer, WIRE_REFUSED);
    cr_assert(strstr(refused->refused.error.text, "tcp://head:1234: it is beyond loopback"), "%s",
              refused->refused.error.text);
    cr_assert_str_eq(refused->refused.who.job, "job");
    wire_free(refused);
    test_peer_close(&peer);
    test_peer_connect(&peer, &daemon);
    test_peer_join(&peer, "job", 0, 1);
    test_peer_roster(&peer);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon_step, a_job_of_the_same_name_of_another_user_is_another_job)
{
    struct test_daemon daemon;
    struct test_peer peer;
    int status, joined[2], done[2];
    char byte;
    if (geteuid() != 0)
        cr_skip("needs root");
    test_daemon_start(&daemon, NULL);
    cr_assert(pipe(joined) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(done[1]);
        if (setuid(1000) < 0)
            _exit(1);
        test_peer_connect(&peer, &daemon);
        test_peer_join(&peer, "job", 0, 1);
        test_peer_roster(&peer);
        _exit(write(joined[1], "", 1) == 1 && read(done[0], &byte, 1) == 0 ? 0 : 2);
    }
    close(done[0]);
    cr_assert_eq(read(joined[0], &byte, 1), 1);
    test_peer_connect(&peer, &daemon);
    test_peer_join(&peer, "job", 0, 1);
    test_peer_roster(&peer);
    json_t *json = status_of(&daemon), *groups = json_object_get(json, "groups"), *group;
    size_t i;
    int64_t uids = 0;
    cr_assert_eq(json_array_size(groups), 2);
    json_array_foreach(groups, i, group) {
        uids += json_integer_value(json_object_get(group, "uid"));
        cr_assert_eq(json_array_size(json_object_get(group, "processes")), 1);
    }
    cr_assert_eq(uids, 1000);
    json_decref(json);
    close(done[1]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    close(joined[0]);
    close(joined[1]);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon_step, who_is_waited_for_is_said)
{
    struct test_daemon daemon;
    struct test_peer peers[3];
    static const uint64_t one[] = {10};
    test_daemon_start(&daemon, NULL);
    test_peer_connect(&peers[1], &daemon);
    test_peer_join(&peers[1], "job", 1, 3);
    wait_group_text(&daemon, "verdict", "waiting for ranks 0, 2 to join");
    test_peer_connect(&peers[0], &daemon);
    test_peer_join(&peers[0], "job", 0, 3);
    test_peer_connect(&peers[2], &daemon);
    test_peer_join(&peers[2], "job", 2, 3);
    for (int i = 0; i < 3; i++)
        test_peer_roster(&peers[i]);
    test_peer_meta(&peers[0], 0, one, 1);
    test_peer_meta(&peers[1], 0, one, 1);
    for (uint32_t i = 0; i < 3; i++) {
        struct wire_message msg = {.type = WIRE_REPORT, .report = {.epoch = peers[i].epoch, .rank = i}};
        msg.report.submitted = i < 2;
        msg.report.waiting = i < 2 ? WIRE_WAIT_PLAN : WIRE_WAIT_LOADER;
        test_peer_send(&peers[i], &msg);
    }
    wait_group_text(&daemon, "verdict", "loader-bound on rank 2: balancing cannot help");
    close_all(peers, 3);
    test_daemon_end(&daemon);
}

/* --------------------------------------------------------------------------------------------------------- segments */

static struct local_message offer_of(const struct test_peer *peer, uint32_t segment)
{
    return (struct local_message){.magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_OFFER,
                                  .kind = LOCAL_ARENA,
                                  .segment = segment, .generation = 1, .rank = 99, .replica = 99, .bytes = 4096,
                                  .epoch = peer->epoch};
}

Test(daemon_step, segments_reach_all_peers_with_their_descriptor)
{
    struct test_daemon daemon;
    struct test_peer peers[3];
    struct local_message got;
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 3);
    int memfd = memfd_create("segment", MFD_CLOEXEC), fd, n_fds = test_daemon_n_fds(&daemon);
    cr_assert_eq(ftruncate(memfd, 4096), 0);
    cr_assert_eq(pwrite(memfd, "hello", 5, 0), 5);
    struct local_message offer = offer_of(&peers[1], 3), stale = offer;
    stale.epoch.lo ^= 1;
    cr_assert(test_peer_send_packet(peers[1].local, &stale, sizeof stale, memfd)); /* nobody may get this one */
    cr_assert(test_peer_send_packet(peers[1].local, &offer, sizeof offer, memfd));
    for (int i = 0; i < 3; i += 2) {
        char text[6] = "";
        cr_assert(test_peer_packet(peers[i].local, &got, &fd));
        cr_assert_eq(got.type, LOCAL_OFFER);
        cr_assert_eq(got.rank, 1, "poised says whose it is, not the sender");
        cr_assert_eq(got.replica, 0);
        cr_assert_eq(got.segment, 3);
        cr_assert_eq(got.bytes, 4096);
        cr_assert(wire_id_is(got.epoch, peers[1].epoch));
        cr_assert(wire_id_none(got.token));
        cr_assert_eq(pread(fd, text, 5, 0), 5);
        cr_assert_str_eq(text, "hello");
        close(fd);
    }
    offer.type = LOCAL_RETRACT;
    cr_assert(test_peer_send_packet(peers[1].local, &offer, sizeof offer, -1));
    for (int i = 0; i < 3; i += 2) {
        cr_assert(test_peer_packet(peers[i].local, &got, &fd));
        cr_assert_eq(got.type, LOCAL_RETRACT);
        cr_assert_eq(fd, -1);
    }
    cr_assert_eq(test_daemon_n_fds(&daemon), n_fds, "poised keeps no descriptor");
    close(memfd);
    close_all(peers, 3);
    test_daemon_end(&daemon);
}

Test(daemon_step, a_slow_reader_of_segments_gets_all_in_order)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    struct local_message got;
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 2);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), fd;
    for (uint32_t i = 0; i < 1500; i++) { /* far above what a socket's buffer takes */
        struct local_message offer = offer_of(&peers[0], i % LOCAL_MAX_SEGMENTS);
        offer.generation = i;
        cr_assert(test_peer_send_packet(peers[0].local, &offer, sizeof offer, null));
    }
    for (uint32_t i = 0; i < 1500; i++) {
        cr_assert(test_peer_packet(peers[1].local, &got, &fd));
        cr_assert_eq(got.generation, i);
        cr_assert_geq(fd, 0);
        close(fd);
    }
    close(null);
    close_all(peers, 2);
    test_daemon_end(&daemon);
}

Test(daemon_step, a_process_that_never_reads_its_segments_is_ended)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 2);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (uint32_t i = 0; i < 6000; i++) {
        struct local_message offer = offer_of(&peers[0], 0);
        offer.generation = i;
        if (!test_peer_send_packet(peers[0].local, &offer, sizeof offer, null))
            break;
    }
    struct wire_message *abort = test_peer_expect(&peers[0], WIRE_ABORT);
    cr_assert_eq(abort->abort.rank, 1);
    wire_free(abort);
    close(null);
    close_all(peers, 2);
    test_daemon_end(&daemon);
}

/* ------------------------------------------------------------------------------------------------------------ death */

/* A process of its own that plays a rank until it is killed. It has joined when this returns... the byte comes after
 * the roster, so the others must join meanwhile. */
static pid_t fork_rank(const struct test_daemon *daemon, uint32_t rank, uint32_t n_ranks, bool with_child,
                       int *ret_ready)
{
    int ready[2];
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct test_peer peer;
        test_peer_connect(&peer, daemon);
        test_peer_join(&peer, "job", rank, n_ranks);
        test_peer_roster(&peer);
        if (with_child && fork() == 0) { /* inherits the socket, lives on for a while */
            alarm(20);
            pause();
            _exit(0);
        }
        if (write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    *ret_ready = ready[0];
    return pid;
}

static void kill_one(bool with_child)
{
    struct test_daemon daemon;
    struct test_peer peer;
    int ready;
    char byte, text[64];
    test_daemon_start(&daemon, NULL);
    pid_t pid = fork_rank(&daemon, 1, 2, with_child, &ready);
    test_peer_connect(&peer, &daemon);
    test_peer_join(&peer, "job", 0, 2);
    test_peer_roster(&peer);
    cr_assert_eq(read(ready, &byte, 1), 1);
    int64_t start = now_ms();
    kill(pid, SIGKILL);
    struct wire_message *abort = test_peer_expect(&peer, WIRE_ABORT);
    cr_assert_lt(now_ms() - start, 1000);
    cr_assert_eq(abort->abort.rank, 1);
    cr_assert(wire_id_is(abort->abort.epoch, peer.epoch));
    snprintf(text, sizeof text, "rank 1 (pid %d", (int)pid);
    cr_assert(strstr(abort->abort.error.text, text), "%s", abort->abort.error.text);
    wire_free(abort);
    waitpid(pid, NULL, 0);
    close(ready);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon_step, kill_9_of_a_process_is_told_in_under_a_second)
{
    kill_one(false);
}

Test(daemon_step, a_child_that_holds_the_socket_does_not_hide_a_death)
{
    kill_one(true);
}

Test(daemon_step, a_leave_followed_by_the_end_at_once_is_no_death)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    uint64_t length[2];
    test_daemon_start(&daemon, NULL);
    for (int round = 0; round < 20; round++) {
        join_all(&daemon, peers, 2);
        submit(peers, 0);
        expect_plan(peers, 0, length);
        test_peer_leave(&peers[1], 1);
        struct wire_message *abort = test_peer_expect(&peers[0], WIRE_ABORT);
        cr_assert(abort->abort.left, "%s", abort->abort.error.text);
        cr_assert_eq(abort->abort.rank, 1);
        cr_assert_eq(abort->abort.step, 0);
        wire_free(abort);
        test_peer_leave(&peers[0], 1);
    }
    test_daemon_end(&daemon);
}

Test(daemon_step, a_group_forms_again_after_a_death)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    uint64_t length[2];
    test_daemon_start(&daemon, NULL);
    for (int round = 0; round < 3; round++) {
        join_all(&daemon, peers, 2);
        submit(peers, 0);
        expect_plan(peers, 0, length);
        test_peer_close(&peers[1]); /* without LEAVE: as if it had died */
        wire_free(test_peer_expect(&peers[0], WIRE_ABORT));
        test_peer_close(&peers[0]);
    }
    test_daemon_end(&daemon);
}

/* ---------------------------------------------------------------------------------------------------------- restart */

/* The same process with new connections: same incarnation, and it says which epoch it is in. */
static void reconnect(struct test_peer *peer, const struct test_daemon *daemon)
{
    struct test_peer old = *peer;
    test_peer_close(peer);
    test_peer_connect(peer, daemon);
    peer->incarnation = old.incarnation;
    peer->epoch = old.epoch;
    test_peer_join(peer, old.job, old.rank, old.n_ranks);
}

Test(daemon_step, a_killed_daemon_is_a_pause)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    uint64_t length[2];
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 2);
    struct wire_id epoch = peers[0].epoch;
    for (uint64_t step = 0; step < 6; step++) {
        submit(peers, step);
        if (step % 2 == 1) { /* killed with the step decided for nobody, somebody or all */
            test_daemon_kill(&daemon);
            test_daemon_restart(&daemon, NULL);
            for (int i = 0; i < 2; i++)
                reconnect(&peers[i], &daemon);
            for (int i = 0; i < 2; i++) {
                test_peer_roster(&peers[i]);
                cr_assert(wire_id_is(peers[i].epoch, epoch), "the same epoch goes on");
            }
            submit(peers, step); /* what is undecided is sent again */
        }
        expect_plan(peers, step, length);
        cr_assert_eq(length[0], 104);
    }
    close_all(peers, 2);
    test_daemon_end(&daemon);
}

Test(daemon_step, a_daemon_that_stood_still_loses_nobody)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    uint64_t length[2];
    test_daemon_start(&daemon, (const char *const[]){"--node-timeout-ms", "300", "--heartbeat-ms", "50", "--silence-ms",
                                                     "200", "--beacon-ms", "50", NULL});
    join_all(&daemon, peers, 2);
    for (uint64_t step = 0; step < 3; step++) {
        kill(daemon.pid, SIGSTOP);
        submit(peers, step); /* waits in the sockets meanwhile */
        poll(NULL, 0, 700);  /* the stall itself: more than twice the timeout */
        kill(daemon.pid, SIGCONT);
        expect_plan(peers, step, length);
    }
    cr_assert_null(test_peer_wait(&peers[0], WIRE_ABORT, 400));
    close_all(peers, 2);
    test_daemon_end(&daemon);
}

Test(daemon_step, a_flood_of_messages_starves_nobody)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    uint64_t length[2];
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 2);
    struct wire_message report = {.type = WIRE_REPORT, .report = {.epoch = peers[0].epoch, .rank = 0}};
    for (uint64_t step = 0; step < 3; step++) {
        for (int i = 0; i < 5000; i++)
            test_peer_send(&peers[0], &report);
        json_t *json = status_of(&daemon);
        cr_assert_leq(json_integer_value(json_object_get(json, "queued")), 400,
                      "what is not read waits with its sender");
        json_decref(json);
        submit(peers, step);
        expect_plan(peers, step, length);
    }
    close_all(peers, 2);
    test_daemon_end(&daemon);
}

/* ------------------------------------------------------------------------------------------------------------- mode */

static int post_mode_as(const struct test_daemon *daemon, uid_t uid, const char *url)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (setuid(uid) < 0)
            _exit(1);
        _exit(test_daemon_http(daemon, true, url, NULL) - 300);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) + 300;
}

Test(daemon_step, the_mode_is_changed_by_root_and_the_jobs_user_only)
{
    struct test_daemon daemon;
    struct test_peer peers[2];
    test_daemon_start(&daemon, NULL);
    join_all(&daemon, peers, 2);
    cr_assert_eq(test_daemon_http(&daemon, true, "/mode?job=job&group=dp&mode=shadow", NULL), 200);
    for (int i = 0; i < 2; i++) {
        struct wire_message *mode;
        do { /* an earlier one may say the mode at the start */
            mode = test_peer_expect(&peers[i], WIRE_MODE);
            peers[i].mode = mode->mode.mode;
            wire_free(mode);
        } while (peers[i].mode != POISE_MODE_SHADOW);
    }
    uint64_t length[2];
    submit(peers, 0);
    expect_plan(peers, 0, length);
    wait_group_text(&daemon, "verdict", "shadow");
    wait_group_text(&daemon, "mode", "shadow");
    cr_assert_eq(test_daemon_http(&daemon, true, "/mode?job=other&mode=off", NULL), 404);
    if (geteuid() == 0) {
        cr_assert_eq(post_mode_as(&daemon, 1000, "/mode?job=job&mode=off"), 403);
        cr_assert_eq(post_mode_as(&daemon, 65534, "/mode?job=job&mode=off"), 403);
    }
    close_all(peers, 2);
    test_daemon_end(&daemon);
}
