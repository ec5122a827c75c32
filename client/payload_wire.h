/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks on different nodes say to each other about payload; docs/protocol.md has the conversation. A message is
 * one frame: a header of a fixed size, then `count` items. The bytes of payload themselves follow DATA in further
 * frames. Numbers are little-endian. Not protobuf: entries are read and written once a sample on the path of every
 * step, and payload must not be copied through a packer.
 *
 * Whatever bytes come in, decoding touches nothing outside of them and a decoded message obeys every bound below.
 */
#ifndef POISE_CLIENT_PAYLOAD_WIRE_H
#define POISE_CLIENT_PAYLOAD_WIRE_H

#include "client/directory.h"

#define PAYLOAD_VERSION 1u
#define PAYLOAD_HEADER_BYTES 112u
#define PAYLOAD_PIECE_BYTES (1u << 20) /* of one DATA: larger ones are no faster, and a small one behind it waits
                                        * longer */
#define PAYLOAD_MAX_ITEMS 8192u        /* of one ask: samples, or ranges of bytes */
#define PAYLOAD_EXTENT_BYTES 16u
#define PAYLOAD_TEXT_BYTES 200u /* of a refusal, with its 0 */
#define PAYLOAD_ASK_BYTES (PAYLOAD_HEADER_BYTES + PAYLOAD_MAX_ITEMS * PAYLOAD_EXTENT_BYTES) /* the largest to a
                                                                                             * sender */

/* The largest entry on the wire; one ENTRIES may be longer than a piece by this. */
#define PAYLOAD_ENTRY_BYTES (48u + POISE_MAX_FIELDS * (8u + 8u * POISE_MAX_DIMS))

enum payload_type {
    PAYLOAD_HELLO = 1,   /* receiver -> sender: who it is. First on each connection */
    PAYLOAD_WELCOME,     /* sender -> receiver: who that is */
    PAYLOAD_ASK_ENTRIES, /* receiver -> sender: the directory entries of these samples of a step */
    PAYLOAD_ENTRIES,     /* sender -> receiver: the first `count` of them; the others are asked for again */
    PAYLOAD_ASK_DATA,    /* receiver -> sender: these bytes of these samples */
    PAYLOAD_DATA,        /* sender -> receiver: all of them, in order, in the frames that follow */
    PAYLOAD_DONE,        /* receiver -> sender: it has all it takes of this step and of those before it */
    PAYLOAD_DONE_HEARD,  /* sender -> receiver */
    PAYLOAD_REFUSED,     /* sender -> receiver: code, and words as items of one byte */
    PAYLOAD_N_TYPES
};

/* Why an ask is refused. */
enum payload_refusal {
    PAYLOAD_NOT_YET = 1, /* ask again: the step is not decided there, or too much is asked for at a time */
    PAYLOAD_OVER,        /* the sender's epoch has ended: poised will say why */
    PAYLOAD_STRANGER,    /* no HELLO on this connection, or it names a process that is not in the epoch */
    PAYLOAD_STALE,       /* the step is over: this receiver said that it is done, or it was never decided */
    PAYLOAD_OTHER_PLAN,  /* the step has another plan, or another field table */
    PAYLOAD_NOT_YOURS,   /* the plan gives the sample to another rank */
    PAYLOAD_MALFORMED,
    PAYLOAD_N_REFUSALS
};

struct payload_extent { /* bytes [offset, offset + bytes) of a sample */
    uint32_t index, bytes;
    uint64_t offset;
};

struct payload_message {
    uint32_t type;
    uint32_t request; /* of an ask and of its answer: the asker's number */
    uint32_t count;   /* items: indices, extents, entries, characters */
    struct wire_id epoch;
    uint64_t step;             /* asks, answers, DONE */
    struct wire_id plan_id;    /* asks */
    struct wire_id table_hash; /* asks: of the merged table, by whose positions fields are named */
    uint32_t rank, replica;    /* of who says it */
    struct wire_incarnation incarnation;
    uint32_t code;              /* REFUSED */
    uint64_t bytes;             /* DATA: of all frames that follow */
    const unsigned char *items; /* borrowed from the frame; NULL where there are none */
    size_t n_item_bytes;
};

/* Bytes that payload_wire_encode() writes. */
size_t payload_wire_bytes(const struct payload_message *msg);

/* Header and items (copied from msg->items). The room is payload_wire_bytes(). */
void payload_wire_encode(const struct payload_message *msg, unsigned char *room);

/* Borrows the frame. Errors: -EPROTO says what does not fit, -EPROTONOSUPPORT another version. */
int payload_wire_decode(const unsigned char *frame, size_t n_bytes, struct payload_message *ret_msg,
                        struct poise_err *err);

const char *payload_type_name(uint32_t type);
const char *payload_refusal_text(uint32_t code);

/* Items of ASK_ENTRIES and ASK_DATA. */
uint32_t payload_index(const struct payload_message *msg, uint32_t i);
struct payload_extent payload_extent(const struct payload_message *msg, uint32_t i);
void payload_put_index(unsigned char *items, uint32_t i, uint32_t index);
void payload_put_extent(unsigned char *items, uint32_t i, const struct payload_extent *extent);

/* Writes an entry. values[n_fields] by position in the merged table. The room is PAYLOAD_ENTRY_BYTES. Returns its
 * bytes. */
size_t payload_put_entry(unsigned char *room, const struct directory_sample *sample, const struct value *values,
                         uint32_t n_fields);

struct payload_entries { /* reads ENTRIES */
    const unsigned char *at;
    size_t n_left;
    const struct wire_table *table; /* merged */
    uint32_t rank;                  /* whose, for errors */
};

void payload_entries_begin(const struct payload_message *msg, const struct wire_table *table, uint32_t rank,
                           struct payload_entries *ret_entries);

/* The next one, which is of sample `index`. in_bytes as in directory_read(). values[n_fields]: present and shapes; data
 * is NULL. Errors: -EPROTO as directory_read(). */
int payload_next_entry(struct payload_entries *entries, uint32_t index, uint64_t in_bytes,
                       struct directory_sample *ret_sample, struct value *values, struct poise_err *err);

#endif
