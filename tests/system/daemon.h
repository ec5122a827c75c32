/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A private poised for a test: the binary of $BUILD (default: build) on a socket folder of its own. Waits for readiness
 * and for ends, never sleeps. Every function that cannot do what it says prints why and aborts the test.
 */
#ifndef POISE_TESTS_SYSTEM_DAEMON_H
#define POISE_TESTS_SYSTEM_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct test_daemon {
    pid_t pid; /* 0: not running */
    int pidfd;
    char dir[64];     /* the socket folder, in a temporary folder of its own */
    char log[80];     /* the file that its standard error goes to */
};

/* Makes the folder and starts poised with --socket-dir and the further flags (NULL-terminated; NULL: none), and waits
 * until all its sockets are bound. */
void test_daemon_start(struct test_daemon *daemon, const char *const flags[]);

/* Starts it again on the same folder, after test_daemon_stop() or test_daemon_kill(). */
void test_daemon_restart(struct test_daemon *daemon, const char *const flags[]);

/* Starts poised with --socket-dir and the flags where it is expected to end by itself. Returns its exit status; its
 * standard error is in the log. */
int test_daemon_fails(struct test_daemon *daemon, const char *const flags[]);

/* SIGTERM and the exit status; -signal where it died of one. */
int test_daemon_stop(struct test_daemon *daemon);

/* SIGKILL. */
void test_daemon_kill(struct test_daemon *daemon);

/* Whether the log has a line with this text (now). */
bool test_daemon_logged(const struct test_daemon *daemon, const char *text);

/* Waits until the log has it, at most 10 s, else shows the log and aborts. */
void test_daemon_wait_log(const struct test_daemon *daemon, const char *text);

/* Number of descriptors that it has open. */
int test_daemon_n_fds(const struct test_daemon *daemon);

/* Number of files in the socket folder. */
int test_daemon_n_files(const struct test_daemon *daemon);

/* Stops it if it runs, removes the folders; aborts where poised left something behind or ended with another status than
 * 0. */
void test_daemon_end(struct test_daemon *daemon);

/* A port of loopback that is free, and so is the next one: beacons go out there. AF_INET6: of ::1, 0 where there is
 * none. */
uint16_t test_free_port(int family);

/* Path of a program of $BUILD. Returns path. */
const char *test_program(const char *name, char path[512]);

/* GET, or POST where `post`, of the status socket. Returns the HTTP status; *ret_body: caller frees with free(). */
int test_daemon_http(const struct test_daemon *daemon, bool post, const char *url, char **ret_body);

#endif
