/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving half of payload between nodes: answers what receivers ask of this rank's decided steps, out of its arena
 * without a copy. What a step gives to whom is asked of the owner through calls; nothing else goes out. Not
 * thread-safe, but for the counts of what is under way, which ZeroMQ's threads lower. Knows nothing of struct poise.
 */
#ifndef POISE_CLIENT_PAYLOAD_SERVER_H
#define POISE_CLIENT_PAYLOAD_SERVER_H

#include <stdatomic.h>

#include "client/payload_group.h"

#define PAYLOAD_CONN_ASKS    16u         /* kept of one receiver: twice what ours sends at a time */
#define PAYLOAD_FLYING_BYTES (64u << 20) /* handed to ZeroMQ and not sent yet, over all receivers */

struct payload_step { /* a decided step of this rank */
    struct wire_id plan_id, table_hash;
    const struct wire_table *table; /* merged */
    uint32_t n_out;
    const uint32_t *out_rank; /* [n_out] */
    atomic_uint *flying;      /* answers whose bytes lie in the step's memory; lives until payload_server_free() */
};

struct payload_server_calls {
    /* 0 and the step, valid until the next turn; -EAGAIN not decided here yet, -ESTALE over, -ESHUTDOWN the epoch
     * is. */
    int (*step)(void *context, uint64_t step, struct payload_step *ret_step);
    /* One of its samples: values[n_fields] by position in the merged table. -EAGAIN: its memory is not known yet. */
    int (*sample)(void *context, uint64_t step, uint32_t index, struct directory_sample *ret_sample,
                  struct value *values, struct poise_err *err);
    /* That rank has all it takes of this step and those before it. */
    void (*done)(void *context, uint64_t step, uint32_t rank);
    /* From any thread: memory that was under way is free again. */
    void (*landed)(void *context);
};

struct payload_server;

/* Borrows group and router (which is bound, or will be). max_bytes_per_s: 0 no limit. */
int payload_server_new(const struct payload_group *group, void *router, uint64_t max_bytes_per_s,
                       const struct payload_server_calls *calls, void *context, struct payload_server **ret_server,
                       struct poise_err *err);

/* After the ZeroMQ context has ended: until then its threads count what is under way. NULL is allowed. */
void payload_server_free(struct payload_server *server);

/* Reads asks, answers them. Never blocks. True: something happened, so call again before sleeping. */
bool payload_server_turn(struct payload_server *server, uint64_t now_ns);

/* When an answer that the limit holds back may go; UINT64_MAX: none is. */
uint64_t payload_server_next_ns(const struct payload_server *server);

/* That rank asks for nothing any more. */
void payload_server_forget(struct payload_server *server, uint32_t rank);

struct payload_server_stats {
    uint64_t bytes;   /* of payload that went out */
    uint64_t answers;
    uint64_t refused; /* asks that were not allowed, but for those that came too early */
    uint64_t bad;     /* messages that are none */
    uint64_t most_flying; /* bytes under way at a time */
    uint32_t n_conns;
};
void payload_server_stats(const struct payload_server *server, struct payload_server_stats *ret_stats);

#endif
