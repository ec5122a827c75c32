/* SPDX-License-Identifier: Apache-2.0 */
/* A poised that says what a test wants: see fake_daemon.h. */
#include "fake_daemon.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#define WAIT_MS 10000

void fake_start(struct fake_daemon *fake)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char endpoint[128];
    int zero = 0, wait_ms = WAIT_MS;

    *fake = (struct fake_daemon){.local = -1};
    strcpy(fake->dir, "/tmp/poise-fake-XXXXXX");
    cr_assert_not_null(mkdtemp(fake->dir));
    snprintf(address.sun_path, sizeof address.sun_path, "%s/local.sock", fake->dir);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fake->listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fake->listener, 8), 0);
    fake->context = zmq_ctx_new();
    fake->router = zmq_socket(fake->context, ZMQ_ROUTER);
    zmq_setsockopt(fake->router, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(fake->router, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/poised.zmq", fake->dir);
    cr_assert_eq(zmq_bind(fake->router, endpoint), 0);
}

void fake_end(struct fake_daemon *fake)
{
    char path[128];

    fake_hang_up(fake);
    close(fake->listener);
    zmq_close(fake->router);
    zmq_ctx_term(fake->context);
    snprintf(path, sizeof path, "%s/local.sock", fake->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/poised.zmq", fake->dir);
    unlink(path);
    rmdir(fake->dir);
}

void fake_accept(struct fake_daemon *fake)
{
    struct pollfd fd = {.fd = fake->listener, .events = POLLIN};

    cr_assert_eq(poll(&fd, 1, WAIT_MS), 1, "nobody connects");
    fake->local = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(fake->local, 0);
}

void fake_hang_up(struct fake_daemon *fake)
{
    if (fake->local >= 0)
        close(fake->local);
    fake->local = -1;
}

void fake_packet(struct fake_daemon *fake, const void *bytes, size_t n_bytes, int fd)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    cr_assert_eq(sendmsg(fake->local, &msg, MSG_NOSIGNAL), (ssize_t)n_bytes);
}

void fake_token(struct fake_daemon *fake)
{
    struct local_message token = {
        .magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_TOKEN, .token = {11, 12}, .instance = {1, 2}};

    snprintf(token.text, sizeof token.text, "%s/poised.zmq", fake->dir);
    fake_packet(fake, &token, sizeof token, -1);
}

struct wire_message *fake_expect(struct fake_daemon *fake, enum wire_type type)
{
    for (;;) {
        struct wire_message *msg;
        struct poise_err err;
        zmq_msg_t frame;
        int n = zmq_recv(fake->router, fake->id, sizeof fake->id, 0);
        cr_assert_gt(n, 0, "no %s came", wire_type_name(type));
        fake->n_id = (size_t)n;
        zmq_msg_init(&frame);
        cr_assert_geq(zmq_msg_recv(&frame, fake->router, 0), 0);
        cr_assert_eq(wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), 0, &msg, &err), 0, "%s", err.text);
        zmq_msg_close(&frame);
        if (msg->type == type)
            return msg;
        wire_free(msg);
    }
}

void fake_say_bytes(struct fake_daemon *fake, const void *bytes, size_t n_bytes)
{
    cr_assert_eq(zmq_send(fake->router, fake->id, fake->n_id, ZMQ_SNDMORE), (int)fake->n_id);
    cr_assert_eq(zmq_send(fake->router, bytes, n_bytes, 0), (int)n_bytes);
}

void fake_say(struct fake_daemon *fake, const struct wire_message *msg)
{
    struct poise_err err;
    uint8_t *bytes;
    size_t n_bytes;

    cr_assert_eq(wire_encode(msg, &bytes, &n_bytes, &err), 0, "%s", err.text);
    fake_say_bytes(fake, bytes, n_bytes);
    free(bytes);
}

void fake_welcome(struct fake_daemon *fake)
{
    struct wire_message welcome = {.type = WIRE_WELCOME, .welcome = {.wire_version = WIRE_VERSION, .instance = {1, 2}}};

    fake_say(fake, &welcome);
}
