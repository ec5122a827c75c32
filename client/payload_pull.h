/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wanted of one sender's step, and what of it is on its way. The samples, in delivered order, are one stream of
 * bytes; an ask is a range of it, so an ask that was lost is sent again as it was, and an answer says by its number
 * where it goes. Internal to payload_client.c.
 */
#ifndef POISE_CLIENT_PAYLOAD_PULL_H
#define POISE_CLIENT_PAYLOAD_PULL_H

#include "client/payload_group.h"
#include "client/transport.h"

struct ask { /* on its way, or to be sent (again) */
    struct ask *next;
    uint32_t request;
    bool entries; /* of samples [first, first + n); else payload: n_bytes from byte `offset` of sample `first` on */
    bool sent, again;
    uint64_t not_before_ms; /* the sender said: not yet */
    uint32_t first, n;
    uint64_t offset, n_bytes;
};

struct pull {
    const struct transport_step *step;
    struct source *source;
    struct ask *asks; /* in the order in which they were made */
    uint32_t n_asks;
    uint64_t n_asked_bytes; /* of asks for payload */
    uint32_t next_entry;    /* the first sample that was not asked for */
    uint32_t next;          /* the same for payload: a sample, */
    uint64_t next_offset;   /* and the first of its bytes */
    bool fetching;          /* all entries are here, and places for the bytes */
    uint64_t n_left;        /* bytes that are not in place */
    struct poise_err error; /* code < 0: it failed */
};

int pull_new(const struct transport_step *step, struct source *source, struct pull **ret_pull, struct poise_err *err);
void pull_free(struct pull *pull); /* NULL is allowed */

/* All entries are here: from now on payload is asked for. */
void pull_begin_payload(struct pull *pull);

/* The next ask for entries, or for at most max_bytes of payload; NULL: nothing is left to ask for. -ENOMEM. */
int pull_next(struct pull *pull, bool entries, uint64_t max_bytes, uint32_t request, struct ask **ret_ask);

/* The ask of that number; NULL: none. */
struct ask *pull_find(const struct pull *pull, uint32_t request);

/* It was answered. Frees it. */
void pull_forget(struct pull *pull, struct ask *ask);

/* The ask as a message: items are written to the room of PAYLOAD_ASK_BYTES. */
void pull_message(const struct pull *pull, const struct ask *ask, const struct payload_group *group,
                  unsigned char *room, struct payload_message *ret_msg);

/* ENTRIES that answer the ask: reads them all. 0, or -EPROTO. What the sender left out is asked for again. */
int pull_take_entries(struct pull *pull, struct ask *ask, const struct payload_message *msg, struct poise_err *err);

struct pull_at { /* where the next bytes of an answer go */
    struct pull *pull;
    uint32_t sample;
    uint64_t offset, n_left; /* of the ask */
};
void pull_at_begin(struct pull *pull, const struct ask *ask, struct pull_at *ret_at);

/* Writes a frame to its places. 0, or -EPROTO: more than was asked for. */
int pull_put(struct pull_at *at, const void *bytes, size_t n_bytes, struct poise_err *err);

#endif
