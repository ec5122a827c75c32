/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload between two ranks in one process, over real sockets on loopback: rank 0 serves a step out of the test's
 * memory, rank 1 fetches it. The test turns both halves itself, so it can stop, cut and forge at any point.
 */
#ifndef POISE_TESTS_PAYLOAD_RIG_H
#define POISE_TESTS_PAYLOAD_RIG_H

#include "client/payload_client.h"
#include "client/payload_server.h"
#include "client/payload_socket.h"

#define RIG_FIELDS  2  /* "rows", 2-dimensional and concatenated; "text", opaque */
#define RIG_SAMPLES 64
#define RIG_STEP    40u

struct rig {
    /* rank 0 */
    void *zmq, *router;
    struct payload_group server_group;
    struct payload_zap *zap;
    struct payload_server *server;
    struct payload_key server_key;
    char endpoint[WIRE_ADDRESS_BYTES];
    struct payload_step step;  /* of RIG_STEP: what rank 0 gives to whom */
    int step_code;             /* what its calls answer instead, once set */
    uint32_t n_samples;
    struct directory_sample samples[RIG_SAMPLES];
    struct value sent[RIG_SAMPLES * RIG_FIELDS];
    uint32_t out_rank[RIG_SAMPLES];
    atomic_uint flying, n_landed;
    uint64_t done_step, now_ns; /* now_ns 0: the clock */
    uint32_t n_done, done_rank;
    uint64_t refused_keys;
    /* rank 1 */
    struct payload_group client_group;
    struct payload_key client_key;
    struct payload_client *client;
    struct transport_step pull;
    struct source source;
    struct wire_slice slice;
    struct merged merged;
    struct directory_sample got[RIG_SAMPLES];
    struct value values[RIG_SAMPLES * RIG_FIELDS];
    struct poise_tensor tensors[RIG_SAMPLES * RIG_FIELDS];
    unsigned char *slot;
    uint64_t arrived[RIG_SAMPLES]; /* bytes, by place */
    uint32_t at[RIG_SAMPLES], in_rank[RIG_SAMPLES], in_index[RIG_SAMPLES];
    uint64_t in_bytes[RIG_SAMPLES];
    char note[400];
    struct poise_err err;
};

/* n samples of random sizes, the largest of max_rows rows of 64 bytes; every second one goes to rank 1 (the others to
 * rank 2), in an order of its own. curve: encrypted. */
void rig_begin(struct rig *rig, uint32_t n, uint64_t max_rows, bool curve, uint64_t *seed);
void rig_end(struct rig *rig);

/* The server, without its socket: after rig_cut() it serves at the same port again. */
void rig_cut(struct rig *rig);
void rig_serve_again(struct rig *rig);

void rig_limit(struct rig *rig, uint64_t max_bytes_per_s); /* a new server with that limit */

/* One turn of both; waits for at most some milliseconds where nothing happens. */
void rig_turn(struct rig *rig);
void rig_turn_server(struct rig *rig);

/* Turns until all entries, or all payload is there. The code that ended it (0). Fails the test after 20 s. */
int rig_entries(struct rig *rig);
int rig_fetch(struct rig *rig);

/* Lays the samples out, so that they can be fetched; then whether each byte is what was sent. */
void rig_place(struct rig *rig);
void rig_check(struct rig *rig);

/* Somebody else's connection to the server. */
void *rig_stranger(struct rig *rig);
struct payload_message rig_hello(const struct rig *rig); /* a valid one of rank 1 */
/* Sends, and turns the server until an answer comes: its type. *ret_msg has no items. */
uint32_t rig_ask(struct rig *rig, void *socket, const struct payload_message *msg, struct payload_message *ret_msg);

#endif
