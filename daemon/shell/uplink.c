/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets of a link. A DEALER queues while it is not connected, so the first MEMBERS of a job is not lost to the
 * handshake; the queue is short, because what is old is of no use to a coordinator that comes back. TCP tells of a
 * host that vanished only after many minutes: ZeroMQ's own heartbeats cut such a connection, so that it is made again.
 */
#include "daemon/shell/uplink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "daemon/shell/curve.h"
#include "daemon/shell/log.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/zframe.h"

#define MESSAGES_A_TURN 64   /* then timers, other sockets and the state machines have their turn */
#define SEND_HIGH_WATER 256 /* W steps of some groups and half a minute of heartbeats; others are asked for again */
#define RECEIVE_HIGH_WATER 1000 /* outcomes of many groups, while the loop plans a large step for its own coordinator */
#define BEACON_HIGH_WATER 100   /* the newest says all; of several groups */
#define BEACON_MAX_BYTES 4096   /* one has at most some hundred */
#define RECONNECT_MS 50         /* a coordinator that is restarted on this machine is back in less */
#define RECONNECT_MAX_MS 1000   /* a tenth of node-timeout: doubled from the above while nobody answers */
#define PING_MS 1000            /* ZeroMQ's heartbeats */
#define PING_TIMEOUT_MS 5000    /* half of node-timeout: connected again before the node is given up */

static bool from_coordinator(enum wire_type type)
{
    return type == WIRE_ROSTER || type == WIRE_OUTCOME || type == WIRE_ABORT || type == WIRE_REFUSED ||
           type == WIRE_NEED || type == WIRE_UNKNOWN || type == WIRE_META || type == WIRE_FORMING;
}

static void bad(struct uplink *link, const char *why)
{
    link->bad++;
    log_line(LOG_LINE_WARNING, "bad message from coordinator %s, dropped: %s", link->text, why);
}

/* ----------------------------------------------------------------------------------------------------------- topics */

static int subscribe(struct uplink *link, struct wire_id epoch, int option)
{
    uint8_t topic[ZFRAME_TOPIC_BYTES];
    zframe_topic(epoch, topic);
    return link->beacons.socket ? zmq_setsockopt(link->beacons.socket, option, topic, sizeof topic) : 0;
}

static bool has(const struct wire_id *epochs, uint32_t n_epochs, struct wire_id epoch)
{
    for (uint32_t i = 0; i < n_epochs; i++)
        if (wire_id_is(epochs[i], epoch))
            return true;
    return false;
}

void uplink_subscribe(struct uplink *link, const struct wire_id *epochs, uint32_t n_epochs, bool all)
{
    for (uint32_t i = 0; all && i < link->n_epochs;) {
        if (has(epochs, n_epochs, link->epochs[i])) {
            i++;
            continue;
        }
        subscribe(link, link->epochs[i], ZMQ_UNSUBSCRIBE);
        link->epochs[i] = link->epochs[--link->n_epochs];
    }
    for (uint32_t i = 0; i < n_epochs; i++) {
        if (wire_id_none(epochs[i]) || has(link->epochs, link->n_epochs, epochs[i]))
            continue;
        if (link->n_epochs == link->cap_epochs) {
            struct wire_id *grown = realloc(link->epochs, (link->cap_epochs * 2 + 8) * sizeof *grown);
            if (!grown)
                return;
            link->epochs = grown;
            link->cap_epochs = link->cap_epochs * 2 + 8;
        }
        link->epochs[link->n_epochs++] = epochs[i];
        subscribe(link, epochs[i], ZMQ_SUBSCRIBE);
    }
}

/* --------------------------------------------------------------------------------------------------------- messages */

static void take(struct uplink *link, bool is_beacon, zmq_msg_t *frame)
{
    struct wire_message *msg;
    struct poise_err err;
    if (wire_decode(zmq_msg_data(frame), zmq_msg_size(frame), 0, &msg, &err) < 0) {
        bad(link, err.text);
        return;
    }
    if (is_beacon ? msg->type != WIRE_BEACON : !from_coordinator(msg->type)) {
        bad(link, is_beacon ? "not a beacon" : "a coordinator does not send that");
        wire_free(msg);
        return;
    }
    link->received++;
    if (is_beacon)
        link->beacon_ms = roles_now_ms();
    if (msg->type == WIRE_ROSTER)
        uplink_subscribe(link, &msg->roster.epoch, 1, false);
    link->links->handler.message(link->links->handler.data, link->number, msg);
}

static void read_some(struct uplink *link, struct channel *channel)
{
    const struct links_handler *handler = &link->links->handler;
    for (int i = 0, rc = 1; i < MESSAGES_A_TURN && rc && !handler->busy(handler->data); i++) {
        zmq_msg_t frames[2]; /* of a beacon, its topic comes first */
        bool is_beacon = channel == &link->beacons;
        zmq_msg_init(&frames[0]);
        zmq_msg_init(&frames[1]);
        rc = zframe_receive(channel->socket, frames, is_beacon ? 2 : 1);
        if (rc > 0)
            take(link, is_beacon, &frames[is_beacon]);
        else if (rc < 0)
            bad(link, "another number of frames");
        zmq_msg_close(&frames[0]);
        zmq_msg_close(&frames[1]);
    }
}

static void on_control(struct zpoll *zpoll)
{
    struct uplink *link = zpoll->data;
    read_some(link, &link->control);
}

static void on_beacon(struct zpoll *zpoll)
{
    struct uplink *link = zpoll->data;
    read_some(link, &link->beacons);
}

/* ------------------------------------------------------------------------------------------------------ connections */

static int configure(struct channel *channel, bool is_beacon)
{
    int64_t max = is_beacon ? BEACON_MAX_BYTES : WIRE_MAX_BYTES;
    void *s = channel->socket;
    if (!zframe_set(s, ZMQ_LINGER, 0) || !zframe_set(s, ZMQ_IPV6, 1) || !zframe_set(s, ZMQ_SNDHWM, SEND_HIGH_WATER) ||
        !zframe_set(s, ZMQ_RCVHWM, is_beacon ? BEACON_HIGH_WATER : RECEIVE_HIGH_WATER) ||
        !zframe_set(s, ZMQ_RECONNECT_IVL, RECONNECT_MS) || !zframe_set(s, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS) ||
        !zframe_set(s, ZMQ_HEARTBEAT_IVL, PING_MS) || !zframe_set(s, ZMQ_HEARTBEAT_TIMEOUT, PING_TIMEOUT_MS) ||
        zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0)
        return -errno;
    return 0;
}

static int watch(struct uplink *link, struct channel *channel, bool is_beacon)
{
    char name[64];
    int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    snprintf(name, sizeof name, "inproc://link-%llu-%d", (unsigned long long)link->number, is_beacon);
    if (zmq_socket_monitor(channel->socket, name, events) < 0)
        return -errno;
    channel->monitor = zmq_socket(link->links->context, ZMQ_PAIR);
    if (!channel->monitor || !zframe_set(channel->monitor, ZMQ_LINGER, 0) || zmq_connect(channel->monitor, name) < 0)
        return -errno;
    return 0;
}

static void channel_close(struct channel *channel)
{
    if (channel->socket)
        zmq_socket_monitor(channel->socket, NULL, 0);
    if (channel->monitor)
        zmq_close(channel->monitor);
    if (channel->socket)
        zmq_close(channel->socket);
    channel->socket = channel->monitor = NULL;
    channel->up = false;
}

static int channel_open(struct uplink *link, struct channel *channel, bool is_beacon, struct poise_err *err)
{
    const char *endpoint = is_beacon ? link->endpoint.beacon : link->endpoint.control;
    channel->ended = false;
    channel->socket = zmq_socket(link->links->context, is_beacon ? ZMQ_SUB : ZMQ_DEALER);
    int rc = channel->socket ? configure(channel, is_beacon) : -errno;
    if (rc == 0)
        rc = curve_connect(channel->socket, link->links->keys);
    if (rc == 0)
        rc = watch(link, channel, is_beacon);
    if (rc == 0 && zmq_connect(channel->socket, endpoint) < 0)
        rc = -errno;
    if (rc < 0)
        return err_set(err, rc, "coordinator %s: %s: %s", link->text, endpoint, zmq_strerror(-rc));
    channel->zpoll.data = link;
    rc = zpoll_init(&channel->zpoll, link->links->loop, channel->socket, is_beacon ? on_beacon : on_control, err);
    channel->watched = rc == 0;
    return rc;
}

static void uplink_maybe_closed(struct uplink *link)
{
    if (link->control.watched || link->beacons.watched)
        return;
    channel_close(&link->control);
    channel_close(&link->beacons);
    link->open = link->closing = false;
}

static void on_control_closed(struct zpoll *zpoll)
{
    struct uplink *link = zpoll->data;
    link->control.watched = false;
    uplink_maybe_closed(link);
}

static void on_beacons_closed(struct zpoll *zpoll)
{
    struct uplink *link = zpoll->data;
    link->beacons.watched = false;
    uplink_maybe_closed(link);
}

void uplink_close(struct uplink *link)
{
    if (link->closing || (!link->open && !link->control.watched && !link->beacons.watched))
        return;
    link->closing = true;
    if (link->control.watched)
        zpoll_close(&link->control.zpoll, on_control_closed);
    if (link->beacons.watched)
        zpoll_close(&link->beacons.zpoll, on_beacons_closed);
}

int uplink_open(struct uplink *link, struct poise_err *err)
{
    int rc = channel_open(link, &link->control, false, err);
    if (rc == 0)
        rc = channel_open(link, &link->beacons, true, err);
    for (uint32_t i = 0; rc == 0 && i < link->n_epochs; i++)
        rc = subscribe(link, link->epochs[i], ZMQ_SUBSCRIBE) < 0 ? err_set(err, -errno, "coordinator %s: beacons: %s",
                                                                          link->text, zmq_strerror(errno)) : 0;
    if (rc == 0) {
        link->open = true;
        return 0;
    }
    uplink_close(link);
    uplink_maybe_closed(link);
    return rc;
}

/* Why a handshake failed. What tells more is kept while attempts go on: a server that does not like us may end the
 * connection before we have read why. */
static const char *reason(const struct links *links, const struct zwatch_event *e, const char *before)
{
    if (e->event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return "it does not know this node's key: copy the same file of keys to all nodes";
    if (e->event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) {
        if (before)
            return before;
        return links->keys->set
                   ? "it ends the connection: its key is another one, copy the same file of keys to all nodes"
                   : "it ends the connection before it says who it is";
    }
    if (e->value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return links->keys->set ? "it has no keys, this node has: set keys there as well"
                                : "it has keys, this node has none: set keys here as well";
    if (e->value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
        return "its key is another one: copy the same file of keys to all nodes";
    return "what answers there is no poised";
}

static void look(const struct links *links, struct channel *channel)
{
    struct zwatch_event e;
    while (channel->monitor && zwatch_read(channel->monitor, &e)) {
        if (e.event == ZMQ_EVENT_CONNECTED) {
            zwatch_address(e.value, false, channel->local);
            zwatch_address(e.value, true, channel->peer);
            continue;
        }
        channel->up = e.event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        if (e.event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            channel->trouble = NULL;
        else if (e.event != ZMQ_EVENT_DISCONNECTED)
            channel->trouble = reason(links, &e, channel->trouble);
        channel->ended |= e.event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    }
}

void uplink_look(struct uplink *link)
{
    look(link->links, &link->control);
    look(link->links, &link->beacons);
}

void uplink_free(struct uplink *link)
{
    channel_close(&link->control);
    channel_close(&link->beacons);
    free(link->epochs);
    free(link->text);
    free(link);
}
