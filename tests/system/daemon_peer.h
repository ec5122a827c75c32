/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process as poised sees it, played by a test with raw sockets: what libpoise does, without libpoise. Functions that
 * cannot do what they say print why and abort the test.
 */
#ifndef POISE_TESTS_SYSTEM_DAEMON_PEER_H
#define POISE_TESTS_SYSTEM_DAEMON_PEER_H

#include "proto/local.h"
#include "proto/options.h"
#include "tests/system/daemon.h"

struct test_peer {
    int local; /* the SEQPACKET connection */
    void *context, *dealer;
    struct local_message token; /* the first packet */
    char job[WIRE_JOB_BYTES];
    uint32_t rank, n_ranks, mode;
    char coordinators[64]; /* of the next JOIN */
    struct wire_incarnation incarnation;
    struct wire_id epoch;
};

/* A bare connection to local.sock. */
int test_peer_local(const struct test_daemon *daemon);

/* Receives a packet and at most one descriptor (-1: none came). False: the connection has ended. Waits. */
bool test_peer_packet(int local, struct local_message *ret_packet, int *ret_fd);

/* Sends bytes and one descriptor (-1: none). False where the connection has ended. */
bool test_peer_send_packet(int local, const void *bytes, size_t n_bytes, int fd);

/* A bare DEALER on the daemon's ZeroMQ socket. */
void test_peer_dealer(struct test_peer *peer, const char *zmq_path);

/* Connects, takes the token, sends its pidfd, says HELLO and takes WELCOME. */
void test_peer_connect(struct test_peer *peer, const struct test_daemon *daemon);

void test_peer_send(struct test_peer *peer, const struct wire_message *msg);
void test_peer_send_bytes(struct test_peer *peer, const void *bytes, size_t n_bytes);

/* The next message of that type; others are skipped. NULL after timeout_ms. Caller frees with wire_free(). */
struct wire_message *test_peer_wait(struct test_peer *peer, enum wire_type type, int timeout_ms);

/* The same, 20 s, and a message that must come. */
struct wire_message *test_peer_expect(struct test_peer *peer, enum wire_type type);

/* JOIN of group "dp", one phase, cost = length, algorithm greedy, micro-batches of 1. */
void test_peer_join(struct test_peer *peer, const char *job, uint32_t rank, uint32_t n_ranks);

/* Waits for the ROSTER and keeps its epoch. */
void test_peer_roster(struct test_peer *peer);

/* META of a step with samples of these lengths. */
void test_peer_meta(struct test_peer *peer, uint64_t step, const uint64_t *lengths, uint32_t n_samples);

/* Says LEAVE after so many steps and ends both connections at once, as libpoise does. */
void test_peer_leave(struct test_peer *peer, uint64_t submitted);

/* Ends both connections without a word. */
void test_peer_close(struct test_peer *peer);

#endif
