/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What status tells of other daemons:
 *
 *   links       [{endpoint, state ("idle", "connecting", "up", "down"), state_ms (for how long), beacons (whether the
 *               connection that they come by is up), beacon_ms (age of the newest, or null), sent, received, dropped,
 *               bad, encrypted, local, peer (addresses of the newest connection, or null), trouble (why there is none, or
 *               null)}]: coordinators that jobs of this node name
 *   coordinator {listen [endpoints], encrypted, nodes [{node, instance, heard_ms (ago), received, sent, dropped, address
 *               (where it connects from; null: this host)}], received, sent, beacons, bad, unroutable, not_taken,
 *               failed_handshakes}: nodes elsewhere that speak to this one
 */
#include <jansson.h>

#include "daemon/shell/report.h"

const char *link_state_name(enum link_state state)
{
    static const char *const names[] = {"idle", "connecting", "up", "down"};
    return names[state];
}

static json_t *text_or_null(const char *text)
{
    return *text ? json_string(text) : json_null();
}

static json_t *link_json(const struct link_report *link)
{
    json_t *age = link->beacon_ms == UINT64_MAX ? json_null() : json_integer((json_int_t)link->beacon_ms);
    return json_pack("{s:s, s:s, s:I, s:b, s:o, s:I, s:I, s:I, s:I, s:b, s:o, s:o, s:s?}", "endpoint", link->endpoint,
                     "state",
                     link_state_name(link->state), "state_ms", (json_int_t)link->state_ms, "beacons", link->beacons_up,
                     "beacon_ms", age, "sent", (json_int_t)link->sent, "received", (json_int_t)link->received,
                     "dropped", (json_int_t)link->dropped, "bad", (json_int_t)link->bad, "encrypted", link->encrypted,
                     "local", text_or_null(link->local), "peer", text_or_null(link->peer), "trouble", link->trouble);
}

static json_t *peer_json(const struct peer *peer, uint64_t now_ms)
{
    char text[WIRE_ID_TEXT];
    json_t *id = wire_id_none(peer->instance) ? json_null() : json_string(wire_id_format(peer->instance, text));
    json_t *name = json_string(peer->name); /* NULL where it is no UTF-8 */
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:o}", "node", name ? name : json_string("?"), "instance", id,
                     "heard_ms", (json_int_t)(now_ms - peer->heard_ms), "received", (json_int_t)peer->received, "sent",
                     (json_int_t)peer->sent, "dropped", (json_int_t)peer->dropped, "address",
                     text_or_null(peer->address));
}

static json_t *coordinator_json(const struct listener *listener, uint64_t now_ms)
{
    const struct listener_counters *n = &listener->counters;
    json_t *endpoints = json_array(), *nodes = json_array();
    for (uint32_t i = 0; i < listener->n_endpoints; i++)
        json_array_append_new(endpoints, json_string(listener->endpoints[i].control));
    for (const struct peer *peer = listener->first; peer; peer = peer->next)
        json_array_append_new(nodes, peer_json(peer, now_ms));
    return json_pack("{s:o, s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "listen", endpoints, "encrypted",
                     listener->keys->set, "nodes", nodes, "received",
                     (json_int_t)n->received, "sent", (json_int_t)n->sent, "beacons", (json_int_t)n->beacons, "bad",
                     (json_int_t)n->bad, "unroutable", (json_int_t)n->unroutable, "not_taken", (json_int_t)n->full, "failed_handshakes",
                     (json_int_t)(listener->router_watch.failed + listener->pub_watch.failed));
}

void status_links(const struct shell_report *report, struct json_t *object)
{
    json_t *links = json_array();
    for (uint32_t i = 0; i < report->n_links; i++)
        json_array_append_new(links, link_json(&report->links[i]));
    json_object_set_new(object, "links", links);
    if (report->listener)
        json_object_set_new(object, "coordinator", coordinator_json(report->listener, report->now_ms));
}
