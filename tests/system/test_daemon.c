/* SPDX-License-Identifier: Apache-2.0 */
/* poised from outside, alone: start, refusal, restart, strangers, status socket, notification, end. The protocol's
 * happy path is in test_daemon_step.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "tests/system/daemon.h"
#include "tests/system/daemon_peer.h"

static const char *const debug[] = {"--log-level", "debug", NULL};

static void assert_healthy(const struct test_daemon *daemon)
{
    char *body;
    cr_assert_eq(test_daemon_http(daemon, false, "/healthz", &body), 200);
    cr_assert_str_eq(body, "ok\n");
    free(body);
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

static int64_t counter(const struct test_daemon *daemon, const char *name)
{
    json_t *json = status_of(daemon), *value = json_object_get(json_object_get(json, "counters"), name);
    cr_assert(json_is_integer(value), "%s", name);
    int64_t n = json_integer_value(value);
    json_decref(json);
    return n;
}

static void wait_counter(const struct test_daemon *daemon, const char *name, int64_t least)
{
    for (int ms = 0; ms < 10000 && counter(daemon, name) < least; ms += 5)
        poll(NULL, 0, 5);
    cr_assert_geq(counter(daemon, name), least, "%s", name);
}

Test(daemon, starts_with_no_configuration_and_leaves_nothing)
{
    struct test_daemon daemon;
    struct stat st;
    char path[128];
    test_daemon_start(&daemon, NULL);
    cr_assert_eq(test_daemon_n_files(&daemon), 5);
    static const char *const sockets[] = {"local.sock", "poised.zmq", "status.sock"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", daemon.dir, sockets[i]);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert(S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0666, "%s: %o", path, st.st_mode);
    }
    cr_assert_eq(stat(daemon.dir, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0755);
    assert_healthy(&daemon);
    cr_assert_eq(test_daemon_stop(&daemon), 0);
    cr_assert_eq(test_daemon_n_files(&daemon), 0);
    test_daemon_end(&daemon);
}

Test(daemon, a_second_one_is_refused_and_the_first_goes_on)
{
    struct test_daemon daemon;
    char text[160];
    test_daemon_start(&daemon, NULL);
    cr_assert_eq(test_daemon_fails(&daemon, NULL), 1);
    snprintf(text, sizeof text, "another poised (pid %d) serves %s", (int)daemon.pid, daemon.dir);
    cr_assert(test_daemon_logged(&daemon, text));
    cr_assert_eq(test_daemon_n_files(&daemon), 5);
    assert_healthy(&daemon);
    struct test_peer peer;
    test_peer_connect(&peer, &daemon);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon, sockets_of_a_killed_one_are_replaced)
{
    struct test_daemon daemon;
    struct test_peer peer;
    test_daemon_start(&daemon, NULL);
    for (int i = 0; i < 3; i++) {
        test_daemon_kill(&daemon);
        cr_assert_eq(test_daemon_n_files(&daemon), 5, "kill -9 leaves the files");
        test_daemon_restart(&daemon, NULL);
        test_peer_connect(&peer, &daemon);
        test_peer_close(&peer);
        assert_healthy(&daemon);
    }
    test_daemon_end(&daemon);
}

Test(daemon, socket_folders_that_cannot_be_used_are_named)
{
    struct test_daemon daemon = {.dir = ""};
    static const char *const cases[][2] = {
        {"/dev/null", "is not a folder"},
        {"/dev/null/x", "cannot be made"},
        {"/no/such/parent", "cannot be made"},
        {"/proc", "poised.lock"},
    };
    cr_assert_eq(test_daemon_fails(&daemon, (const char *const[]){"--help", NULL}), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const flags[] = {"--socket-dir", cases[i][0], NULL};
        cr_assert_eq(test_daemon_fails(&daemon, flags), 1, "%s", cases[i][0]);
        cr_assert(test_daemon_logged(&daemon, cases[i][0]), "%s", cases[i][0]);
        cr_assert(test_daemon_logged(&daemon, cases[i][1]), "%s", cases[i][1]);
    }
    char longest[160];
    snprintf(longest, sizeof longest, "%.*s/", (int)(strlen(daemon.dir) - 4), daemon.dir);
    size_t n = strlen(longest);
    memset(longest + n, 'x', 100);
    longest[n + 100] = 0;
    cr_assert_eq(test_daemon_fails(&daemon, (const char *const[]){"--socket-dir", longest, NULL}), 1);
    cr_assert(test_daemon_logged(&daemon, "longer than 95 bytes"));
    rmdir(longest);
    test_daemon_end(&daemon);
}

Test(daemon, a_folder_that_may_not_be_written_is_named)
{
    struct test_daemon daemon;
    if (geteuid() != 0)
        cr_skip("needs root");
    test_daemon_start(&daemon, NULL);
    cr_assert_eq(test_daemon_stop(&daemon), 0);
    pid_t child = fork();
    if (child == 0) {
        if (setgid(1000) < 0 || setuid(1000) < 0)
            _exit(99);
        char path[512];
        int log = open("/dev/null", O_WRONLY);
        dup2(log, STDERR_FILENO);
        execl(test_program("poised", path), "poised", "--config", "/dev/null", "--socket-dir", daemon.dir, NULL);
        _exit(98);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 98)
        cr_log_warn("uid 1000 may not run the binary: not tested");
    else
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%x", status);
    test_daemon_end(&daemon);
}

Test(daemon, closed_standard_descriptors_do_not_become_sockets)
{
    struct test_daemon daemon;
    char link[64], target[64] = "";
    int saved = dup(0);
    cr_assert_geq(fcntl(saved, F_SETFD, FD_CLOEXEC), 0);
    close(0);
    test_daemon_start(&daemon, NULL);
    dup2(saved, 0);
    snprintf(link, sizeof link, "/proc/%d/fd/0", (int)daemon.pid);
    cr_assert_gt(readlink(link, target, sizeof target - 1), 0);
    cr_assert_str_eq(target, "/dev/null");
    close(saved);
    test_daemon_end(&daemon);
}

Test(daemon, bad_flags_end_with_2)
{
    struct test_daemon daemon = {.dir = ""};
    cr_assert_eq(test_daemon_fails(&daemon, (const char *const[]){"--frobnicate", NULL}), 2);
    cr_assert(test_daemon_logged(&daemon, "--frobnicate"));
    cr_assert_eq(test_daemon_fails(&daemon, (const char *const[]){"--ready-fd", "777", NULL}), 1);
    cr_assert(test_daemon_logged(&daemon, "--ready-fd 777"));
    test_daemon_end(&daemon);
}

/* -------------------------------------------------------------------------------------------------------- strangers */

Test(daemon, a_wrong_token_is_refused_with_a_reason)
{
    struct test_daemon daemon;
    struct test_peer peer = {0};
    struct local_message token;
    test_daemon_start(&daemon, NULL);
    peer.local = test_peer_local(&daemon);
    cr_assert(test_peer_packet(peer.local, &token, NULL));
    cr_assert_eq(token.type, LOCAL_TOKEN);
    test_peer_dealer(&peer, token.text);
    struct wire_message hello = {.type = WIRE_HELLO, .hello = {WIRE_VERSION, token.token}};
    hello.hello.token.lo ^= 1;
    test_peer_send(&peer, &hello);
    struct wire_message *refused = test_peer_expect(&peer, WIRE_REFUSED);
    cr_assert(strstr(refused->refused.error.text, "token"), "%s", refused->refused.error.text);
    wire_free(refused);
    hello.hello.token.lo ^= 1; /* the right one still works */
    test_peer_send(&peer, &hello);
    wire_free(test_peer_expect(&peer, WIRE_WELCOME));
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon, a_token_names_one_connection_only)
{
    struct test_daemon daemon;
    struct test_peer peer, thief = {0};
    test_daemon_start(&daemon, NULL);
    test_peer_connect(&peer, &daemon);
    test_peer_dealer(&thief, peer.token.text);
    struct wire_message hello = {.type = WIRE_HELLO, .hello = {WIRE_VERSION, peer.token.token}};
    test_peer_send(&thief, &hello);
    struct wire_message *refused = test_peer_expect(&thief, WIRE_REFUSED);
    cr_assert(strstr(refused->refused.error.text, "in use"), "%s", refused->refused.error.text);
    wire_free(refused);
    test_peer_close(&thief);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon, nothing_is_taken_before_hello)
{
    struct test_daemon daemon;
    struct test_peer peer = {0};
    struct local_message token;
    test_daemon_start(&daemon, NULL);
    peer.local = test_peer_local(&daemon);
    cr_assert(test_peer_packet(peer.local, &token, NULL));
    test_peer_dealer(&peer, token.text);
    test_peer_join(&peer, "j", 0, 1);
    struct wire_message hello = {.type = WIRE_HELLO, .hello = {WIRE_VERSION, token.token}};
    test_peer_send(&peer, &hello);
    wire_free(test_peer_expect(&peer, WIRE_WELCOME));
    cr_assert(test_daemon_logged(&daemon, "JOIN before HELLO, dropped"));
    json_t *json = status_of(&daemon);
    cr_assert_eq(json_array_size(json_object_get(json, "groups")), 0);
    json_decref(json);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

/* Sends garbage of all lengths, and right packets with one byte changed. Each ends its connection. */
static void garbage_on_local(const struct test_daemon *daemon)
{
    for (int i = 0; i < 60; i++) {
        uint8_t bytes[2048];
        struct local_message packet, offer = {.magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_OFFER};
        size_t n = i % 2 ? (size_t)(rand() % (int)sizeof bytes) + 1 : sizeof offer;
        for (size_t j = 0; j < sizeof bytes; j++)
            bytes[j] = (uint8_t)rand();
        if (i % 2 == 0) {
            offer.magic ^= (uint64_t)(1 + rand() % 255) << (8 * (rand() % 8));
            memcpy(bytes, &offer, sizeof offer);
        }
        int local = test_peer_local(daemon), fd = i % 3 ? -1 : open("/dev/null", O_RDONLY);
        cr_assert(test_peer_packet(local, &packet, NULL) && packet.type == LOCAL_TOKEN);
        cr_assert(test_peer_send_packet(local, bytes, n, fd));
        cr_assert(test_peer_packet(local, &packet, NULL), "it says why");
        cr_assert_eq(packet.type, LOCAL_REFUSED);
        cr_assert(packet.text[0]);
        cr_assert_not(test_peer_packet(local, &packet, NULL), "and ends the connection");
        close(local);
        if (fd >= 0)
            close(fd);
    }
}

static void garbage_on_zmq(struct test_peer *peer)
{
    for (int i = 0; i < 200; i++) {
        uint8_t bytes[8192];
        size_t n = (size_t)(rand() % (int)sizeof bytes);
        for (size_t j = 0; j < n; j++)
            bytes[j] = (uint8_t)rand();
        test_peer_send_bytes(peer, bytes, n);
    }
}

Test(daemon, garbage_on_both_sockets_is_counted_and_harms_nobody)
{
    struct test_daemon daemon;
    struct test_peer peer, stranger = {0};
    unsigned seed = (unsigned)time(NULL);
    fprintf(stderr, "seed %u\n", seed);
    srand(seed);
    test_daemon_start(&daemon, NULL);
    test_peer_connect(&peer, &daemon);
    int n_fds = test_daemon_n_fds(&daemon);
    garbage_on_local(&daemon);
    cr_assert_geq(counter(&daemon, "bad_packets"), 60);
    test_peer_dealer(&stranger, peer.token.text);
    garbage_on_zmq(&stranger);
    garbage_on_zmq(&peer);
    wait_counter(&daemon, "bad_messages", 380); /* a few may be empty or well-formed by chance */
    struct wire_message not_ours = {.type = WIRE_WELCOME, .welcome = {.wire_version = WIRE_VERSION}};
    int64_t bad = counter(&daemon, "bad_messages");
    test_peer_send(&peer, &not_ours);
    wait_counter(&daemon, "bad_messages", bad + 1);
    test_peer_close(&stranger);
    for (int ms = 0; ms < 10000 && test_daemon_n_fds(&daemon) > n_fds; ms += 5)
        poll(NULL, 0, 5);
    cr_assert_leq(test_daemon_n_fds(&daemon), n_fds, "no descriptor stays");
    assert_healthy(&daemon);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon, a_peer_that_chooses_its_routing_id_is_not_bound)
{
    struct test_daemon daemon;
    struct test_peer peer;
    test_daemon_start(&daemon, NULL);
    test_peer_connect(&peer, &daemon);
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    char endpoint[300];
    int zero = 0;
    snprintf(endpoint, sizeof endpoint, "ipc://%s", peer.token.text);
    zmq_setsockopt(dealer, ZMQ_ROUTING_ID, "rank0", 5);
    zmq_setsockopt(dealer, ZMQ_LINGER, &zero, sizeof zero);
    cr_assert_eq(zmq_connect(dealer, endpoint), 0);
    cr_assert_eq(zmq_send(dealer, "x", 1, 0), 1);
    wait_counter(&daemon, "bad_messages", 1);
    zmq_close(dealer);
    zmq_ctx_term(context);
    test_peer_close(&peer);
    test_daemon_end(&daemon);
}

Test(daemon, uid_65534_is_refused_with_a_reason)
{
    struct test_daemon daemon;
    int status;
    if (geteuid() != 0)
        cr_skip("needs root");
    test_daemon_start(&daemon, NULL);
    pid_t child = fork();
    if (child == 0) {
        struct local_message packet;
        if (setuid(65534) < 0)
            _exit(2);
        int local = test_peer_local(&daemon);
        bool right = test_peer_packet(local, &packet, NULL) && packet.type == LOCAL_REFUSED &&
                     strstr(packet.text, "65534");
        _exit(right && !test_peer_packet(local, &packet, NULL) ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    test_daemon_end(&daemon);
}

Test(daemon, too_many_processes_are_refused_with_a_reason)
{
    struct test_daemon daemon;
    struct local_message packet;
    int local[6];
    test_daemon_start(&daemon, (const char *const[]){"--max-processes", "8", NULL});
    for (int i = 0; i < 4; i++) {
        local[i] = test_peer_local(&daemon);
        cr_assert(test_peer_packet(local[i], &packet, NULL) && packet.type == LOCAL_TOKEN);
    }
    local[4] = test_peer_local(&daemon);
    cr_assert(test_peer_packet(local[4], &packet, NULL));
    cr_assert_eq(packet.type, LOCAL_REFUSED);
    cr_assert(strstr(packet.text, "max-processes"), "%s", packet.text);
    close(local[0]); /* makes room */
    do {
        local[5] = test_peer_local(&daemon);
        cr_assert(test_peer_packet(local[5], &packet, NULL));
        close(local[5]);
    } while (packet.type == LOCAL_REFUSED);
    for (int i = 1; i < 5; i++)
        close(local[i]);
    test_daemon_end(&daemon);
}

Test(daemon, without_descriptors_it_refuses_and_goes_on)
{
    struct test_daemon daemon;
    struct local_message packet;
    struct rlimit limit = {80, 80};
    int local[64], n = 0, n_refused = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    test_daemon_start(&daemon, NULL);
    for (; n < 62; n++) { /* each costs poised one or two, and us one; it has more of its own than we */
        local[n] = test_peer_local(&daemon);
        cr_assert(test_peer_packet(local[n], &packet, NULL));
        n_refused += packet.type == LOCAL_REFUSED;
    }
    cr_assert_gt(n_refused, 0);
    cr_assert(test_daemon_logged(&daemon, "no file descriptor left"));
    while (n > 0)
        close(local[--n]);
    do { /* as soon as it has seen the ends */
        local[0] = test_peer_local(&daemon);
        cr_assert(test_peer_packet(local[0], &packet, NULL));
        close(local[0]);
    } while (packet.type == LOCAL_REFUSED);
    struct test_peer peer;
    test_peer_connect(&peer, &daemon);
    test_peer_close(&peer);
    assert_healthy(&daemon);
    test_daemon_end(&daemon);
}

Test(daemon, many_short_connections_leave_no_descriptor)
{
    struct test_daemon daemon;
    struct test_peer peer;
    test_daemon_start(&daemon, NULL);
    test_peer_connect(&peer, &daemon);
    test_peer_close(&peer);
    int n_fds = -1, now;
    for (int i = 0; i < 20; i++) {
        test_peer_connect(&peer, &daemon);
        if (n_fds < 0)
            n_fds = test_daemon_n_fds(&daemon);
        test_peer_close(&peer);
    }
    for (int ms = 0; ms < 10000 && (now = test_daemon_n_fds(&daemon)) > n_fds; ms += 5)
        poll(NULL, 0, 5);
    cr_assert_leq(now, n_fds);
    test_daemon_end(&daemon);
}

/* ---------------------------------------------------------------------------------------------------- status socket */

Test(daemon, the_status_socket_answers_and_explains)
{
    struct test_daemon daemon;
    char *body;
    test_daemon_start(&daemon, (const char *const[]){"--node-name", "n \"1\"", "--mode", "shadow", NULL});
    json_t *json = status_of(&daemon);
    cr_assert_str_eq(json_string_value(json_object_get(json, "version")), POISE_VERSION);
    cr_assert_str_eq(json_string_value(json_object_get(json, "node")), "n \"1\"");
    cr_assert_str_eq(json_string_value(json_object_get(json, "mode")), "shadow");
    cr_assert_str_eq(json_string_value(json_object_get(json, "socket_dir")), daemon.dir);
    cr_assert_eq(json_integer_value(json_object_get(json, "pid")), daemon.pid);
    cr_assert_eq(json_array_size(json_object_get(json, "groups")), 0);
    json_decref(json);
    cr_assert_eq(test_daemon_http(&daemon, false, "/metrics", &body), 200);
    cr_assert(strstr(body, "# TYPE poise_messages_received_total counter\npoise_messages_received_total 0\n"), "%s",
              body);
    free(body);
    static const struct {
        bool post;
        const char *url;
        int code;
        const char *text;
    } cases[] = {
        {false, "/", 404, "/status"},
        {false, "/statusx", 404, "/statusx"},
        {true, "/status", 405, "GET"},
        {false, "/mode?mode=on", 405, "POST"},
        {true, "/mode", 400, "on, shadow, off"},
        {true, "/mode?mode=sideways", 400, "sideways"},
        {true, "/mode?job=no%20such&mode=off", 404, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(test_daemon_http(&daemon, cases[i].post, cases[i].url, &body), cases[i].code, "%s", cases[i].url);
        cr_assert(strstr(body, cases[i].text), "%s: %s", cases[i].url, body);
        free(body);
    }
    test_daemon_end(&daemon);
}

Test(daemon, slow_and_silent_readers_of_status_block_nobody)
{
    struct test_daemon daemon;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fds[30];
    test_daemon_start(&daemon, NULL);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/status.sock", daemon.dir);
    for (int i = 0; i < 30; i++) { /* a third says nothing, a third half a request, a third asks much and never reads */
        static const char half[] = "GET /sta", whole[] = "GET /status HTTP/1.1\r\nHost: x\r\n\r\n";
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&addr, sizeof addr), 0);
        if (i % 3 == 1)
            cr_assert_gt(write(fds[i], half, sizeof half - 1), 0);
        for (int j = 0; i % 3 == 2 && j < 200; j++)
            if (write(fds[i], whole, sizeof whole - 1) < 0)
                break;
    }
    struct test_peer peer;
    assert_healthy(&daemon);
    test_peer_connect(&peer, &daemon);
    test_peer_close(&peer);
    assert_healthy(&daemon);
    for (int i = 0; i < 30; i++)
        close(fds[i]);
    test_daemon_end(&daemon);
}

/* ------------------------------------------------------------------------------------------------- signals, systemd */

Test(daemon, a_hangup_reloads_the_log_level)
{
    struct test_daemon daemon;
    test_daemon_start(&daemon, debug);
    kill(daemon.pid, SIGHUP);
    test_daemon_wait_log(&daemon, "SIGHUP: log-level taken");
    assert_healthy(&daemon);
    test_daemon_end(&daemon);
}

static void expect_note(int fd, const char *text)
{
    char note[512];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        cr_assert_eq(poll(&p, 1, 20000), 1, "no %s", text);
        ssize_t n = recv(fd, note, sizeof note - 1, 0);
        cr_assert_gt(n, 0);
        note[n] = 0;
        if (strstr(note, text))
            return;
    }
}

Test(daemon, systemd_is_told_of_readiness_life_and_end)
{
    struct test_daemon daemon;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(addr.sun_path, sizeof addr.sun_path, "/tmp/poise-notify-%d", (int)getpid());
    unlink(addr.sun_path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    setenv("NOTIFY_SOCKET", addr.sun_path, 1);
    setenv("WATCHDOG_USEC", "40000", 1);
    test_daemon_start(&daemon, NULL);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    expect_note(fd, "READY=1");
    for (int i = 0; i < 3; i++)
        expect_note(fd, "WATCHDOG=1");
    cr_assert_eq(test_daemon_stop(&daemon), 0);
    expect_note(fd, "STOPPING=1");
    unlink(addr.sun_path);
    close(fd);
    test_daemon_end(&daemon);
}
