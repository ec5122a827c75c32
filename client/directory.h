/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a step: what a rank's samples are and where in its arena their fields lie. Written beside the
 * payload at submit, read by the same-node receivers out of memory that its owner can still write: so each entry is
 * copied once, the copy is checked against the plan's sizes and the segments' bounds, and only the copy is used.
 * Whatever bytes are there, nothing outside of the segments is touched. Client-internal: both ends have one wire
 * version.
 */
#ifndef POISE_CLIENT_DIRECTORY_H
#define POISE_CLIENT_DIRECTORY_H

#include "client/value.h"

/* ------------------------------------------------------------------------------------------------------------- writing
 * */

struct directory_sample { /* what a receiver learns of a sample besides its fields */
    uint64_t tag;
    uint64_t loss_tokens;
    uint64_t arrival_loss_tokens; /* of all samples of its arrival micro-batch */
    uint64_t bytes;               /* of all its fields; as in wire_meta.bytes and wire_slice.in_bytes */
    uint64_t hash;                /* verify_sample(), 0: not told */
    uint32_t arrival_micro_batch;
};

struct directory_value {
    uint32_t field; /* position in the table that the directory was begun with */
    uint32_t segment, generation;
    uint32_t n_dims;
    uint64_t offset;
    int64_t shape[POISE_MAX_DIMS];
};

/* Bytes of a directory of that many samples, values (over all samples) and fields; UINT64_MAX if it overflows. */
uint64_t directory_bytes(uint32_t n_samples, uint64_t n_values, uint32_t n_fields);

struct directory_writer {
    unsigned char *base;
    uint32_t n_samples, next_sample;
    uint64_t n_values, next_value;
    uint32_t n_fields;
};

/* Begins one in memory of directory_bytes(), 8-byte aligned: header and field names. Then directory_add() for each
 * sample in order. Borrows the memory; copies names out of the table. */
void directory_begin(void *memory, uint64_t step, const struct wire_table *table, uint32_t n_samples, uint64_t n_values,
                     struct directory_writer *ret_writer);
void directory_add(struct directory_writer *writer, const struct directory_sample *sample,
                   const struct directory_value *values, uint32_t n_values);

/* ------------------------------------------------------------------------------------------------------------- reading
 * */

/* Base and bytes of a segment of the directory's owner; false: not mapped (yet). */
typedef bool (*directory_lookup_fn)(void *context, uint32_t segment, uint32_t generation, const void **ret_base,
                                    uint64_t *ret_bytes);

#define DIRECTORY_ANY_BYTES UINT64_MAX

struct directory { /* an opened one: header and field positions are copies, entries are read from base */
    const unsigned char *base;
    uint64_t bytes;
    uint32_t rank; /* its owner, for messages */
    uint32_t n_samples, n_fields;
    uint64_t n_values;
    const struct wire_table *table; /* merged */
    uint32_t *position;             /* [n_fields] in the merged table; POISE_NONE: not there */
};

/*
 * Opens the directory of `step` that lies at base (bytes, n_samples: from the owner's control segment, not trusted).
 * Borrows base and the merged table. *ret_dir: directory_close(). Errors: -EPROTO (says what does not fit), -ENOMEM.
 */
int directory_open(const void *base, uint64_t bytes, uint64_t step, uint32_t rank, uint32_t n_samples,
                   const struct wire_table *table, struct directory *ret_dir, struct poise_err *err);
void directory_close(struct directory *dir);

/*
 * Reads sample `index`. in_bytes: what the plan says (wire_slice.in_bytes), or DIRECTORY_ANY_BYTES for a replica above
 * 0, which may hold fewer fields than replica 0, whose bytes the plan names. values: [table->n_fields], filled by
 * position in the merged table; data points into the owner's segment, all of it in bounds. Errors: -EPROTO (rank,
 * sample, what does not fit: a size, a shape, a bound, a field twice), -EAGAIN a segment that lookup does not know (its
 * offer may still come); then *ret_sample is untouched and values are not to be used.
 */
int directory_read(const struct directory *dir, uint32_t index, uint64_t in_bytes, directory_lookup_fn lookup,
                   void *context, struct directory_sample *ret_sample, struct value *values, struct poise_err *err);

#endif
