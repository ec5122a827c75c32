/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's connections to coordinators in other processes: a DEALER for messages and a SUB for beacons each, made
 * when the node first has something to say there, closed when it has had nothing for a minute. They connect again by
 * themselves, never block, and what cannot be sent is dropped: the protocol asks again.
 */
#ifndef POISE_SHELL_LINKS_H
#define POISE_SHELL_LINKS_H

#include <uv.h>

#include "client/keys.h"
#include "daemon/shell/endpoint.h"
#include "daemon/shell/zpoll.h"
#include "proto/wire.h"

struct uplink;

struct links_change {
    bool up;
    bool secure;      /* nobody between can read: encrypted, or inside this host */
    const char *local; /* up: the address of this host that it leaves from, with a port; "" not known */
    const char *why;  /* not up: what is known of the reason; NULL: nobody answers */
};

struct links_handler {
    void *data;
    /* A checked message of a coordinator. Takes msg. */
    void (*message)(void *data, uint64_t number, struct wire_message *msg);
    /* The connection is there, or is not: once a change, of `why` too. why: NULL or a text that is never freed. */
    void (*change)(void *data, uint64_t number, const struct links_change *change);
    /* Whether reading shall pause until a later turn of the loop. */
    bool (*busy)(void *data);
};

struct links {
    uv_loop_t *loop; /* NULL: not in use */
    void *context;   /* borrowed */
    bool allowed;            /* endpoints beyond loopback */
    const struct keys *keys; /* borrowed */
    const char *interface;   /* borrowed; NULL: the route decides */
    struct links_handler handler;
    struct uplink *first;
    uv_timer_t timer; /* runs while a link is open */
};

enum link_state { LINK_IDLE, LINK_CONNECTING, LINK_UP, LINK_DOWN };

struct link_report {
    uint64_t number;
    const char *endpoint; /* as the job names it; valid as long as the links */
    enum link_state state;
    bool beacons_up;       /* the connection that they come by */
    uint64_t state_ms;     /* for how long */
    uint64_t beacon_ms;    /* age of the newest beacon; UINT64_MAX: none came */
    uint64_t sent, received, dropped, bad; /* messages; dropped: the coordinator does not read, or is gone */
    bool encrypted;
    const char *local, *peer; /* addresses of the newest connection; "" */
    const char *trouble;      /* why there is none; NULL: nobody answers, or there is one */
};

struct links_config {
    void *context;
    bool allowed;            /* endpoints beyond loopback */
    const struct keys *keys; /* borrowed */
    const char *interface;   /* borrowed; NULL: not given */
};

int links_init(struct links *links, uv_loop_t *loop, const struct links_config *config,
               const struct links_handler *handler, struct poise_err *err);

/* Sends to the coordinator at the endpoint, which endpoints_parse() has taken; number is the node's of this link. */
void links_send(struct links *links, uint64_t number, const char *endpoint, const struct wire_message *msg);

/* Fills at most max, returns how many links there are. */
uint32_t links_report(const struct links *links, uint64_t now_ms, struct link_report *reports, uint32_t max);

/* Closes; nothing where it is not in use. links_fini() frees, after the loop has ended and before the context goes. */
void links_close(struct links *links);
void links_fini(struct links *links);

#endif
