/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How samples come from one rank to another: a small interface, so that a step may mix ways. transport_memory.c copies
 * out of the arenas of ranks on the same node, transport_tcp.c pulls from other nodes; one for RDMA would follow the
 * second: entries first, then reads straight into places that are known.
 *
 * For each rank that a step's samples come from (a source) shuffle.c calls entries() until it has all directory
 * entries, lays the micro-batches out, reserves room, calls fetch() until all payload is in place, then done(). Nothing
 * here blocks: -EAGAIN means call again when the engine has woken up. The engine's thread alone calls.
 */
#ifndef POISE_CLIENT_TRANSPORT_H
#define POISE_CLIENT_TRANSPORT_H

#include "client/delivered.h"

struct transport_step { /* a step that is collected */
    uint64_t step;
    struct wire_id plan_id;
    const struct wire_slice *slice;
    struct merged *merged;            /* the field table of the step */
    bool any_bytes;                   /* replicas above 0 may hold fewer fields than the plan's bytes count */
    struct directory_sample *samples; /* [n_in] in delivered order: entries() fills them, */
    struct value *values;             /* [n_in * n_fields] and these; data only where the bytes can be read in place */
    const struct poise_tensor *tensors; /* [n_in * n_fields] where the bytes go; NULL before room is reserved */
    /* Bytes of the sample at this place of the delivered order are in place; from fetch() of transports that write. */
    void (*arrived)(void *context, uint32_t at, uint64_t n_bytes);
    void *context;
};

struct transport;

struct source { /* a rank that samples of the step come from */
    uint32_t rank;
    struct transport *transport;
    uint32_t n, *at; /* [n] their places in the delivered order, ascending */
    uint32_t n_entries; /* of these, entries that are here */
    bool fetched;       /* all payload is in place */
    bool open;          /* transport_memory.c: dir is */
    struct directory dir;
    struct pull *pull; /* transport_tcp.c */
};

#define TRANSPORT_WAIT_TEXT 320

struct transport_calls {
    const char *name;
    /* Whether fetch() writes the payload to its place, so that only padding is left to assemble_pad(); else the values'
     * data is read by assemble_fill(). */
    bool writes;
    /* 0 all entries of the source are here; -EAGAIN; else an error that ends the epoch. */
    int (*entries)(struct transport *t, const struct transport_step *step, struct source *source,
                   struct poise_err *err);
    int (*fetch)(struct transport *t, const struct transport_step *step, struct source *source, struct poise_err *err);
    /* This rank has all it takes of that rank's step. */
    void (*done)(struct transport *t, uint64_t step, uint32_t rank);
    /* The source is not used any more, complete or not. */
    void (*close)(struct transport *t, struct source *source);
    /* What -EAGAIN waited for, in words that follow "waits for". Returns text. */
    const char *(*waits_for)(struct transport *t, const struct source *source, char text[TRANSPORT_WAIT_TEXT]);
};

struct transport { /* first member of each */
    const struct transport_calls *calls;
};

#endif
