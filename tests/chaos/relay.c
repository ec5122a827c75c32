/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay that delays: what comes in on one side of a connection goes out on the other so many milliseconds later. It
 * stands between nodes and a coordinator, since not every kernel can delay packets. A process of its own, in the
 * bridge's namespace; what does not work ends the connection, and ZeroMQ connects again.
 */
#include "tests/chaos/chaos.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <unistd.h>

#define PAIRS 128
#define CHUNK 16384
#define PORTS 2         /* a coordinator's: messages and beacons */
#define BACKLOG 4194304 /* bytes under way in one direction before no more are read */

struct chunk {
    struct chunk *next;
    uint64_t due_ms;
    size_t at, n;
    char bytes[CHUNK];
};

struct pipe_half { /* from one descriptor to the other */
    struct chunk *first, **tail;
    size_t n_bytes;
};

struct pair {
    int fd[2]; /* -1: not in use */
    struct pipe_half half[2];
};

struct relay {
    int listener[PORTS];
    struct sockaddr_in to[PORTS];
    struct pair pairs[PAIRS];
    uint64_t delay_ms;
};

static void close_pair(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        close(pair->fd[i]);
        pair->fd[i] = -1;
        for (struct chunk *c = pair->half[i].first, *next; c; c = next) {
            next = c->next;
            free(c);
        }
        pair->half[i] = (struct pipe_half){.tail = &pair->half[i].first};
    }
}

static void accept_pair(struct relay *relay, int port)
{
    const int fd = accept4(relay->listener[port], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    for (int i = 0; fd >= 0 && i < PAIRS; i++) {
        struct pair *pair = &relay->pairs[i];
        if (pair->fd[0] >= 0)
            continue;
        pair->fd[0] = fd;
        pair->fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(pair->fd[1], (struct sockaddr *)&relay->to[port], sizeof relay->to[port]) < 0 &&
            errno != EINPROGRESS)
            close_pair(pair);
        return;
    }
    if (fd >= 0)
        close(fd);
}

/* -1: the connection is over. */
static int take_in(struct relay *relay, struct pair *pair, int side)
{
    struct pipe_half *half = &pair->half[side];
    struct chunk *chunk = malloc(sizeof *chunk);
    ssize_t n;

    if (!chunk)
        return -1;
    n = read(pair->fd[side], chunk->bytes, sizeof chunk->bytes);
    if (n <= 0) {
        free(chunk);
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
    }
    chunk->next = NULL;
    chunk->due_ms = chaos_now_ms() + relay->delay_ms;
    chunk->at = 0;
    chunk->n = (size_t)n;
    half->n_bytes += (size_t)n;
    *half->tail = chunk;
    half->tail = &chunk->next;
    return 0;
}

static int give_out(struct pair *pair, int side, uint64_t now_ms)
{
    struct pipe_half *half = &pair->half[side];

    while (half->first && half->first->due_ms <= now_ms) {
        struct chunk *chunk = half->first;
        const ssize_t n = send(pair->fd[!side], chunk->bytes + chunk->at, chunk->n - chunk->at, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == ENOTCONN ? 0 : -1;
        chunk->at += (size_t)n;
        half->n_bytes -= (size_t)n;
        if (chunk->at < chunk->n)
            return 0;
        half->first = chunk->next;
        if (!half->first)
            half->tail = &half->first;
        free(chunk);
    }
    return 0;
}

/* -1: the connection is over. */
static int serve(struct relay *relay, struct pair *pair, const struct pollfd fds[2], uint64_t now_ms)
{
    for (int side = 0; side < 2; side++) {
        if (fds[side].revents & (POLLIN | POLLHUP | POLLERR) && pair->half[side].n_bytes < BACKLOG &&
            take_in(relay, pair, side) < 0)
            return -1;
        if (give_out(pair, side, now_ms) < 0)
            return -1;
    }
    return 0;
}

static _Noreturn void run(struct relay *relay)
{
    for (;;) {
        struct pollfd fds[PORTS + 2 * PAIRS];
        for (int i = 0; i < PORTS; i++)
            fds[i] = (struct pollfd){.fd = relay->listener[i], .events = POLLIN};
        for (int i = 0; i < PAIRS; i++)
            for (int side = 0; side < 2; side++)
                fds[PORTS + 2 * i + side] =
                    (struct pollfd){.fd = relay->pairs[i].half[side].n_bytes < BACKLOG ? relay->pairs[i].fd[side] : -1,
                                    .events = POLLIN};
        poll(fds, PORTS + 2 * PAIRS, 1); /* what is due is looked for each millisecond */
        for (int i = 0; i < PAIRS; i++)
            if (relay->pairs[i].fd[0] >= 0 && serve(relay, &relay->pairs[i], &fds[PORTS + 2 * i], chaos_now_ms()) < 0)
                close_pair(&relay->pairs[i]);
        for (int i = 0; i < PORTS; i++)
            if (fds[i].revents)
                accept_pair(relay, i);
    }
}

static int bind_port(struct relay *relay, int i, const char *from, const char *to, uint32_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    relay->to[i] = at;
    inet_pton(AF_INET, from, &at.sin_addr);
    inet_pton(AF_INET, to, &relay->to[i].sin_addr);
    relay->listener[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (relay->listener[i] < 0 || bind(relay->listener[i], (struct sockaddr *)&at, sizeof at) < 0)
        return -1;
    return listen(relay->listener[i], 64);
}

pid_t relay_start(int (*enter)(void *), void *context, const char *from, const char *to, uint32_t port,
                  uint64_t delay_ms)
{
    const pid_t parent = getpid(), pid = fork();
    struct relay *relay;

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    relay = calloc(1, sizeof *relay);
    if (!relay || getppid() != parent || enter(context) < 0)
        _exit(1);
    relay->delay_ms = delay_ms;
    for (int i = 0; i < PAIRS; i++) {
        relay->pairs[i].fd[0] = relay->pairs[i].fd[1] = -1;
        for (int side = 0; side < 2; side++)
            relay->pairs[i].half[side].tail = &relay->pairs[i].half[side].first;
    }
    for (int i = 0; i < PORTS; i++)
        if (bind_port(relay, i, from, to, port + (uint32_t)i) < 0)
            _exit(1);
    run(relay);
}
