/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that is lost is made again for as long as something is wanted of its peer: whether the peer is dead is
 * not for this side to judge, poised will say. So failures only set a text, which poise_next() shows when it has
 * waited long enough, and a delay. A key that does not fit is different: no patience mends it, so it is a notice at
 * once as well.
 */
#include "client/payload_peer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/payload_socket.h"

#define RETRY_FIRST_MS 50   /* a link that blinked */
#define RETRY_MAX_MS   1000 /* and a peer that is stopped or far is not hammered */
#define CONNECT_MS     20000 /* longer than what ZeroMQ's own timeouts of connecting and of its handshake add up to */
#define HELLO_MS       60000 /* the peer's engine answers within a turn, unless its process is stopped */

#define EVENTS                                                                                                         \
    (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |      \
     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CLOSE_FAILED)

void payload_peer_close(struct payload_peer *peer)
{
    if (peer->dealer) {
        payload_monitor_free(peer->dealer, peer->monitor);
        zmq_close(peer->dealer);
    }
    peer->dealer = peer->monitor = NULL;
    peer->fd = peer->monitor_fd = -1;
    peer->state = PEER_CLOSED;
}

void payload_peer_fail(struct payload_peer *peer, uint64_t now_ms, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(peer->trouble, sizeof peer->trouble, format, args);
    va_end(args);
    payload_peer_close(peer);
    peer->retry_delay_ms = peer->retry_delay_ms == 0                ? RETRY_FIRST_MS
                           : peer->retry_delay_ms > RETRY_MAX_MS / 2 ? RETRY_MAX_MS
                                                                     : 2 * peer->retry_delay_ms;
    peer->retry_ms = now_ms + peer->retry_delay_ms;
}

int payload_peer_open(const struct payload_group *group, struct payload_peer *peer, uint64_t now_ms)
{
    char name[64];
    int rc;

    if (peer->state != PEER_CLOSED || now_ms < peer->retry_ms)
        return -EAGAIN;
    snprintf(name, sizeof name, "inproc://payload-%u-%u", peer->rank, peer->generation++);
    rc = payload_socket_new(group->zmq, false, group->key, &peer->dealer);
    if (rc == 0)
        rc = payload_monitor_new(group->zmq, peer->dealer, name, EVENTS, &peer->monitor);
    if (rc == 0 && zmq_connect(peer->dealer, peer->address) < 0)
        rc = -errno;
    if (rc < 0) {
        payload_peer_fail(peer, now_ms, "%s%s", zmq_strerror(-rc), rc == -EMFILE ? ": raise `ulimit -n`" : "");
        return rc;
    }
    peer->fd = payload_socket_fd(peer->dealer);
    peer->monitor_fd = payload_socket_fd(peer->monitor);
    peer->state = PEER_CONNECTING;
    peer->state_ms = peer->used_ms = now_ms;
    return 0;
}

static void say_hello(const struct payload_group *group, struct payload_peer *peer, uint64_t now_ms)
{
    struct payload_message hello = {.type = PAYLOAD_HELLO,
                                    .epoch = group->epoch,
                                    .rank = group->rank,
                                    .replica = group->replica,
                                    .incarnation = group->incarnation};
    int rc = payload_send(peer->dealer, NULL, 0, &hello);

    if (rc < 0) {
        payload_peer_fail(peer, now_ms, "HELLO could not be sent: %s", zmq_strerror(-rc));
        return;
    }
    peer->state = PEER_HELLO;
    peer->state_ms = now_ms;
}

/* No patience mends a key: so the trainer hears of it now, once. */
static void tell_key(const struct payload_group *group, struct payload_peer *peer)
{
    char text[320];

    if (peer->told)
        return;
    peer->told = true;
    snprintf(text, sizeof text, "rank %u at %s: %s", peer->rank, peer->address, peer->trouble);
    group->note(group->context, 0, POISE_WARNING, text);
}

static void take_event(const struct payload_group *group, struct payload_peer *peer, const struct payload_event *event,
                       uint64_t now_ms)
{
    switch (event->event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        if (peer->state == PEER_CONNECTING)
            say_hello(group, peer, now_ms);
        return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        payload_peer_fail(peer, now_ms, "what answers there does not admit the payload key of this epoch");
        tell_key(group, peer);
        return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        payload_peer_fail(peer, now_ms, "what answers there has not the payload key of this epoch, or %s",
                          group->key ? "does not encrypt" : "asks for encryption");
        tell_key(group, peer);
        return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        payload_peer_fail(peer, now_ms, "the connection ended in its handshake: %s%s", zmq_strerror((int)event->value),
                          group->key ? "; is the payload key there another one?" : "");
        return;
    case ZMQ_EVENT_DISCONNECTED:
        if (peer->state == PEER_CONNECTING)
            payload_peer_fail(peer, now_ms, "the connection ended in its handshake%s",
                              group->key ? "; is the payload key there another one?" : "");
        else
            payload_peer_fail(peer, now_ms, "the connection was lost");
        return;
    case ZMQ_EVENT_CLOSED:
    case ZMQ_EVENT_CLOSE_FAILED:
        payload_peer_fail(peer, now_ms, "it cannot be connected to");
        return;
    default:
        return;
    }
}

bool payload_peer_look(const struct payload_group *group, struct payload_peer *peer, uint64_t now_ms)
{
    struct payload_event event;
    bool any = false;

    while (peer->monitor && payload_monitor_next(peer->monitor, &event)) {
        any = true;
        take_event(group, peer, &event, now_ms);
    }
    if (peer->state == PEER_CONNECTING && now_ms >= peer->state_ms + CONNECT_MS)
        payload_peer_fail(peer, now_ms, "it does not answer");
    else if (peer->state == PEER_HELLO && now_ms >= peer->state_ms + HELLO_MS)
        payload_peer_fail(peer, now_ms, "it is connected, and does not answer: its process is stopped");
    return any;
}

void payload_peer_welcomed(const struct payload_group *group, struct payload_peer *peer,
                           const struct payload_message *welcome, uint64_t now_ms)
{
    const struct payload_member *member = &group->members[peer->rank];

    if (peer->state != PEER_HELLO)
        return;
    if (!wire_id_is(welcome->epoch, group->epoch) || welcome->rank != peer->rank ||
        welcome->replica != group->replica ||
        wire_incarnation_compare(&welcome->incarnation, &member->incarnation) != 0) {
        payload_peer_fail(peer, now_ms, "what answers there is another process (rank %u, replica %u)", welcome->rank,
                          welcome->replica);
        return;
    }
    peer->state = PEER_UP;
    peer->state_ms = peer->used_ms = now_ms;
    peer->retry_delay_ms = 0;
    peer->trouble[0] = 0;
    peer->told = false;
}

uint64_t payload_peer_next_ms(const struct payload_peer *peer)
{
    if (peer->state == PEER_CONNECTING)
        return peer->state_ms + CONNECT_MS;
    if (peer->state == PEER_HELLO)
        return peer->state_ms + HELLO_MS;
    return UINT64_MAX;
}
