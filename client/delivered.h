/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step delivers to this rank: its micro-batches with their tables, in one block that lives until the last of
 * them is released, also when the handle is gone. The payload lies in a receive slot that lives as long.
 */
#ifndef POISE_CLIENT_DELIVERED_H
#define POISE_CLIENT_DELIVERED_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/directory.h"
#include "client/receive.h"
#include "client/wake.h"

struct merged { /* the group's field table, shared by the steps that have the same */
    atomic_uint refs;
    struct wire_id hash;
    struct wire_table table;
};

/* Copies the table. *ret_merged: merged_unref(). -ENOMEM. */
int merged_new(const struct wire_table *table, struct wire_id hash, struct merged **ret_merged, struct poise_err *err);
struct merged *merged_ref(struct merged *merged);
void merged_unref(struct merged *merged); /* NULL is allowed */

struct held { /* one micro-batch; what poise_next() returns is its first member */
    struct poise_batch batch;
    struct delivered *set;
    uint32_t part;
    uint32_t first; /* of its samples, in delivered order */
};

struct delivered {
    atomic_uint refs;
    uint32_t generation; /* of forks */
    struct wake *wake;
    struct receive_slot *slot; /* NULL: no payload */
    struct merged *merged;
    uint64_t step;
    uint32_t n_micro_batches, n_fields, n_in;
    struct held *held;           /* [n_micro_batches] */
    struct poise_row *rows;      /* [n_in] in delivered order */
    struct poise_tensor *fields; /* [n_micro_batches * n_fields] */
    struct poise_tensor *values; /* [n_in * n_fields] */
    struct poise_totals totals;
    struct poise_mapping mapping;
    struct poise_mapping_in *in;
    struct poise_mapping_out *out;
};

/*
 * From an outcome with one slice: mapping, totals, plan id, one row a sample without what only its directory tells.
 * refs is 1, the caller's. merged, wake: counted. Errors: -ENOMEM.
 */
int delivered_new(const struct wire_outcome *outcome, struct merged *merged, struct wake *wake, uint32_t generation,
                  struct delivered **ret_set, struct poise_err *err);

/* What a sample's directory tells: tag, loss tokens, both weights. */
void delivered_row(struct delivered *set, uint32_t i, const struct directory_sample *sample);

void delivered_ref(struct delivered *set, uint32_t n);
void delivered_unref(struct delivered *set);

/* Gives a micro-batch back: its part of the slot, and a reference. */
void delivered_release(struct held *held);

#endif
