/* SPDX-License-Identifier: Apache-2.0 */
/* What both halves of payload between nodes, asking and serving, know of the epoch. */
#ifndef POISE_CLIENT_PAYLOAD_GROUP_H
#define POISE_CLIENT_PAYLOAD_GROUP_H

#include "client/payload_key.h"
#include "client/payload_wire.h"

struct payload_member { /* a rank, in the replica of this process */
    char address[WIRE_ADDRESS_BYTES]; /* "": it is on this node */
    struct wire_incarnation incarnation;
};

struct payload_group {
    void *zmq; /* the context */
    struct wire_id epoch;
    uint32_t rank, replica, n_ranks; /* own */
    struct wire_incarnation incarnation;
    struct payload_member *members; /* [n_ranks] */
    const struct payload_key *key;  /* NULL: plain */
    /* For poise_notice(). */
    void (*note)(void *context, uint64_t step, uint32_t severity, const char *text);
    void *context;
};

#endif
