/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The monitor of libzmq 4.3 tells of a failed handshake without saying whose. It tells of the descriptor when a
 * connection is accepted, and again right after the failure, when it ends: the address is looked up at the first and
 * remembered. A connection that ends before it can be looked up has none.
 *
 * Somebody with a wrong key comes again every second: a line an address and minute says enough.
 */
#include "daemon/shell/zwatch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/zframe.h"

#define TELL_MS 60000
#define EVENTS                                                                                                         \
    (ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |                               \
     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL)

bool zwatch_read(void *monitor, struct zwatch_event *ret_event)
{
    zmq_msg_t frames[2];
    uint16_t event = 0;
    int32_t value = 0;
    zmq_msg_init(&frames[0]);
    zmq_msg_init(&frames[1]);
    bool there = zframe_receive(monitor, frames, 2) > 0 && zmq_msg_size(&frames[0]) >= sizeof event + sizeof value;
    if (there) {
        memcpy(&event, zmq_msg_data(&frames[0]), sizeof event);
        memcpy(&value, (char *)zmq_msg_data(&frames[0]) + sizeof event, sizeof value);
        *ret_event = (struct zwatch_event){event, value};
    }
    zmq_msg_close(&frames[0]);
    zmq_msg_close(&frames[1]);
    return there;
}

const char *zwatch_plain(const char *address)
{
    static const char mapped[] = "::ffff:";
    const char *rest = strncmp(address, mapped, sizeof mapped - 1) == 0 ? address + sizeof mapped - 1 : address;
    return strchr(rest, '.') ? rest : address;
}

void zwatch_address(int fd, bool peer, char *address)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } a = {.any = {.sa_family = AF_UNSPEC}};
    socklen_t n = sizeof a;
    char text[INET6_ADDRSTRLEN] = "";
    *address = 0;
    if ((peer ? getpeername(fd, &a.any, &n) : getsockname(fd, &a.any, &n)) < 0)
        return;
    if (a.any.sa_family == AF_UNIX) {
        snprintf(address, ZWATCH_ADDRESS, "a process of this host");
    } else if (a.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a.v4.sin_addr, text, sizeof text);
        snprintf(address, ZWATCH_ADDRESS, "%s:%u", text, ntohs(a.v4.sin_port));
    } else if (a.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr)) {
        inet_ntop(AF_INET, &a.v6.sin6_addr.s6_addr[12], text, sizeof text);
        snprintf(address, ZWATCH_ADDRESS, "%s:%u", text, ntohs(a.v6.sin6_port));
    } else if (a.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a.v6.sin6_addr, text, sizeof text);
        snprintf(address, ZWATCH_ADDRESS, "[%s]:%u", text, ntohs(a.v6.sin6_port));
    }
}

/* ------------------------------------------------------------------------------------------------------- who fails */

static struct zwatch_fresh *find_fresh(struct zwatch *watch, int fd)
{
    for (uint32_t i = 0; i < ZWATCH_FRESH; i++)
        if (watch->fresh[i].fd == fd + 1)
            return &watch->fresh[i];
    return NULL;
}

static void remember(struct zwatch *watch, int fd)
{
    struct zwatch_fresh *fresh = find_fresh(watch, fd);
    if (!fresh)
        fresh = &watch->fresh[watch->next_fresh++ % ZWATCH_FRESH];
    fresh->fd = fd + 1;
    zwatch_address(fd, true, fresh->address);
}

static const char *reason(const struct zwatch *watch, int value)
{
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
        return "its key is not that of this poised: copy the same file of keys to all nodes";
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return watch->has_keys ? "it has no keys, this poised has: set keys there as well"
                               : "it has keys, this poised has none: set keys here as well";
    return "it is no poised";
}

static void tell(struct zwatch *watch, const char *address, const char *why)
{
    uint64_t now = roles_now_ms();
    char host[ZWATCH_ADDRESS]; /* its port is another one each time */
    snprintf(host, sizeof host, "%s", address);
    char *colon = strrchr(host, ':');
    if (colon)
        *colon = 0;
    for (uint32_t i = 0; i < ZWATCH_TOLD; i++) {
        struct zwatch_told *told = &watch->told[i];
        if (told->why != why || strcmp(told->address, host) != 0)
            continue;
        told->n++;
        if (now < told->at_ms + TELL_MS)
            return;
        log_line(watch->perhaps ? LOG_LINE_INFO : LOG_LINE_WARNING,
                 "%s tried %llu times in %llu s to connect as node: %s", *host ? host : "somebody",
                 (unsigned long long)told->n, (unsigned long long)(now - told->at_ms) / 1000, why);
        told->at_ms = now;
        told->n = 0;
        return;
    }
    struct zwatch_told *told = &watch->told[watch->next_told++ % ZWATCH_TOLD];
    *told = (struct zwatch_told){.why = why, .at_ms = now};
    memcpy(told->address, host, sizeof told->address);
    log_line(watch->perhaps ? LOG_LINE_INFO : LOG_LINE_WARNING, "%s cannot connect as node: %s",
             *address ? address : "somebody", why);
}

static void take(struct zwatch *watch, const struct zwatch_event *e)
{
    struct zwatch_fresh *fresh;
    switch (e->event) {
    case ZMQ_EVENT_ACCEPTED:
        remember(watch, e->value);
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        watch->failed++;
        watch->why = reason(watch, e->value);
        watch->perhaps = false;
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: /* whoever sees first that two do not fit ends the connection */
        watch->failed++;
        watch->why = watch->has_keys
                         ? "it gave up in the handshake, as a node does that has no keys or others"
                         : "it gave up in the handshake, as a node does that has keys: this poised has none";
        watch->perhaps = true;
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        watch->failed++; /* who answers ZAP has logged it */
        break;
    case ZMQ_EVENT_DISCONNECTED:
        fresh = find_fresh(watch, e->value);
        if (watch->why)
            tell(watch, fresh ? fresh->address : "", watch->why);
        watch->why = NULL;
        if (fresh)
            fresh->fd = 0;
        break;
    }
}

static void on_events(struct zpoll *zpoll)
{
    struct zwatch *watch = zpoll->data;
    struct zwatch_event event;
    while (zwatch_read(watch->monitor, &event))
        take(watch, &event);
}

/* ------------------------------------------------------------------------------------------------------------- life */

int zwatch_init(struct zwatch *watch, uv_loop_t *loop, void *context, void *socket, const char *name, bool has_keys,
                struct poise_err *err)
{
    char endpoint[64];
    *watch = (struct zwatch){.socket = socket, .has_keys = has_keys, .zpoll = {.data = watch}};
    snprintf(endpoint, sizeof endpoint, "inproc://watch-%s", name);
    if (zmq_socket_monitor(socket, endpoint, EVENTS) < 0 || !(watch->monitor = zmq_socket(context, ZMQ_PAIR)) ||
        !zframe_set(watch->monitor, ZMQ_LINGER, 0) || zmq_connect(watch->monitor, endpoint) < 0)
        return err_set(err, -errno, "watching connections: %s", zmq_strerror(errno));
    return zpoll_init(&watch->zpoll, loop, watch->monitor, on_events, err);
}

void zwatch_close(struct zwatch *watch)
{
    if (watch->monitor)
        zpoll_close(&watch->zpoll, NULL);
}

void zwatch_fini(struct zwatch *watch)
{
    if (!watch->socket)
        return;
    zmq_socket_monitor(watch->socket, NULL, 0);
    if (watch->monitor)
        zmq_close(watch->monitor);
    watch->monitor = watch->socket = NULL;
}
