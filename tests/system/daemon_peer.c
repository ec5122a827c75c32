/* SPDX-License-Identifier: Apache-2.0 */
/* See the header. */
#include "tests/system/daemon_peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define WAIT_MS 20000

static void __attribute__((noreturn)) fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    abort();
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int test_peer_local(const struct test_daemon *daemon)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/local.sock", daemon->dir);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        fail(addr.sun_path);
    return fd;
}

bool test_peer_packet(int local, struct local_message *ret_packet, int *ret_fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = ret_packet, .iov_len = sizeof *ret_packet};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct pollfd p = {.fd = local, .events = POLLIN};
    int fd = -1;
    if (poll(&p, 1, WAIT_MS) != 1)
        fail("no packet from local.sock");
    ssize_t n = recvmsg(local, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (ret_fd)
        *ret_fd = fd;
    else if (fd >= 0)
        close(fd);
    return true;
}

bool test_peer_send_packet(int local, const void *bytes, size_t n_bytes, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = n_bytes};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(local, &m, MSG_NOSIGNAL) >= 0;
}

void test_peer_dealer(struct test_peer *peer, const char *zmq_path)
{
    char endpoint[300];
    int zero = 0;
    snprintf(endpoint, sizeof endpoint, "ipc://%s", zmq_path);
    peer->context = zmq_ctx_new();
    peer->dealer = zmq_socket(peer->context, ZMQ_DEALER);
    if (!peer->dealer || zmq_setsockopt(peer->dealer, ZMQ_LINGER, &zero, sizeof zero) < 0 ||
        zmq_connect(peer->dealer, endpoint) < 0)
        fail(endpoint);
}

void test_peer_connect(struct test_peer *peer, const struct test_daemon *daemon)
{
    struct local_message pidfd = {.magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_PIDFD};
    memset(peer, 0, sizeof *peer);
    peer->local = test_peer_local(daemon);
    if (!test_peer_packet(peer->local, &peer->token, NULL) || peer->token.type != LOCAL_TOKEN)
        fail(peer->token.text);
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (!test_peer_send_packet(peer->local, &pidfd, sizeof pidfd, fd))
        fail("pidfd");
    close(fd);
    test_peer_dealer(peer, peer->token.text);
    struct wire_message hello = {.type = WIRE_HELLO, .hello = {WIRE_VERSION, peer->token.token}};
    test_peer_send(peer, &hello);
    struct wire_message *welcome = test_peer_expect(peer, WIRE_WELCOME);
    peer->mode = welcome->welcome.mode;
    wire_free(welcome);
}

void test_peer_send_bytes(struct test_peer *peer, const void *bytes, size_t n_bytes)
{
    if (zmq_send(peer->dealer, bytes, n_bytes, 0) < 0)
        fail("zmq_send");
}

void test_peer_send(struct test_peer *peer, const struct wire_message *msg)
{
    uint8_t *bytes;
    size_t n_bytes;
    struct poise_err err;
    if (wire_encode(msg, &bytes, &n_bytes, &err) < 0)
        fail(err.text);
    test_peer_send_bytes(peer, bytes, n_bytes);
    free(bytes);
}

static struct wire_message *receive(struct test_peer *peer, int timeout_ms)
{
    struct wire_message *msg = NULL;
    struct poise_err err;
    zmq_msg_t frame;
    if (zmq_setsockopt(peer->dealer, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms) < 0)
        fail("ZMQ_RCVTIMEO");
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, peer->dealer, 0) >= 0 &&
        wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), 0, &msg, &err) < 0)
        fail(err.text);
    zmq_msg_close(&frame);
    return msg;
}

struct wire_message *test_peer_wait(struct test_peer *peer, enum wire_type type, int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    for (int64_t left = timeout_ms; left >= 0; left = end - now_ms()) {
        struct wire_message *msg = receive(peer, (int)left);
        if (msg && msg->type == type)
            return msg;
        if (msg && (msg->type == WIRE_REFUSED || msg->type == WIRE_ABORT))
            fprintf(stderr, "skipped %s: %s\n", wire_type_name(msg->type),
                    msg->type == WIRE_ABORT ? msg->abort.error.text : msg->refused.error.text);
        wire_free(msg);
    }
    return NULL;
}

struct wire_message *test_peer_expect(struct test_peer *peer, enum wire_type type)
{
    struct wire_message *msg = test_peer_wait(peer, type, WAIT_MS);
    if (!msg)
        fail(wire_type_name(type));
    return msg;
}

void test_peer_join(struct test_peer *peer, const char *job, uint32_t rank, uint32_t n_ranks)
{
    struct options options = {.n_phases = 1, .algorithm = "greedy", .tolerance_ppm = 10000, .micro_batch_size = 1,
                              .stages = 1};
    struct wire_message msg = {.type = WIRE_JOIN};
    struct wire_join *join = &msg.join;
    struct poise_err err;
    options.phases[0] = (struct poise_phase){.name = "llm", .linear = 1024, .passes = 1};
    snprintf(peer->job, sizeof peer->job, "%s", job);
    peer->rank = rank;
    peer->n_ranks = n_ranks;
    static uint64_t opened; /* an incarnation joins one epoch only */
    if (!peer->incarnation.opened_ns)
        peer->incarnation = (struct wire_incarnation){0, 1000 + ++opened, 77 + rank};
    *join = (struct wire_join){.rank = rank, .n_ranks = n_ranks, .n_replicas = 1, .incarnation = peer->incarnation,
                               .epoch = peer->epoch, .wire_version = WIRE_VERSION, .planner_version = 1,
                               .pid = (uint32_t)getpid(), .host = "here", .coordinators = peer->coordinators};
    strcpy(join->job, peer->job);
    strcpy(join->group, "dp");
    if (options_write(&options, &join->options, &join->n_options, &err) < 0)
        fail(err.text);
    test_peer_send(peer, &msg);
    options_free(join->options, join->n_options);
}

void test_peer_roster(struct test_peer *peer)
{
    struct wire_message *roster = test_peer_expect(peer, WIRE_ROSTER);
    peer->epoch = roster->roster.epoch;
    wire_free(roster);
}

void test_peer_meta(struct test_peer *peer, uint64_t step, const uint64_t *lengths, uint32_t n_samples)
{
    uint64_t tag[64], bytes[64], loss[64], length[64];
    struct wire_meta meta = {.epoch = peer->epoch, .step = step, .rank = peer->rank, .incarnation = peer->incarnation,
                             .speed_ppm = 1000000, .n_samples = n_samples, .n_phases = 1, .has_columns = true,
                             .bytes = bytes, .loss_tokens = loss, .length = length, .mode = peer->mode};
    for (uint32_t i = 0; i < n_samples; i++) {
        tag[i] = 1000 * peer->rank + i;
        bytes[i] = 8 * lengths[i];
        loss[i] = length[i] = lengths[i];
    }
    meta.digest = wire_meta_digest(&meta, tag);
    struct wire_message msg = {.type = WIRE_META, .meta = {1, &meta}};
    test_peer_send(peer, &msg);
}

void test_peer_leave(struct test_peer *peer, uint64_t submitted)
{
    struct wire_message msg = {.type = WIRE_LEAVE, .leave = {.epoch = peer->epoch, .submitted = submitted}};
    int linger = WAIT_MS;
    test_peer_send(peer, &msg);
    if (zmq_setsockopt(peer->dealer, ZMQ_LINGER, &linger, sizeof linger) < 0)
        fail("ZMQ_LINGER");
    test_peer_close(peer);
}

void test_peer_close(struct test_peer *peer)
{
    if (peer->dealer)
        zmq_close(peer->dealer);
    if (peer->context)
        zmq_ctx_term(peer->context);
    if (peer->local > 0)
        close(peer->local);
    *peer = (struct test_peer){0};
}
