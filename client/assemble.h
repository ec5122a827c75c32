/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One micro-batch out of its samples. Pure: layout (shapes and bytes needed), place (pointers into a slot), fill (the
 * one copy, straight from the senders' memory).
 *
 * concat   shape[axis] is the sum; the other axes are those of the samples (all alike), ragged ones 0 where nobody has
 *          the field. A sample without the field adds 0.
 * padded   a new axis of n_samples is inserted at `axis`; a ragged axis gets the width that its scope says, axes of one
 *          name the same. A sample without the field is a row of padding; so with n_samples > 0 and no ragged axis the
 *          field is there, all padding, even if nobody has it.
 * opaque   one dimension of elements; each sample's bytes at a multiple of 16, gaps are 0.
 *
 * A sample's own tensor (values) is a view of its real data inside the field: past the padding on the left, with the
 * field's strides. For an absent one data is NULL and bytes is 0: ragged axes are 0, or the first axis is where none is
 * ragged, and a scalar becomes one dimension of 0.
 */
#ifndef POISE_CLIENT_ASSEMBLE_H
#define POISE_CLIENT_ASSEMBLE_H

#include "client/value.h"

#define ASSEMBLE_ALIGN 64u        /* of each field in the slot */
#define ASSEMBLE_OPAQUE_ALIGN 16u /* of each sample of an opaque field: the largest element */

struct assemble_input {
    const struct wire_table *table; /* merged */
    const uint32_t *step_extent; /* [POISE_MAX_EXTENTS] the group's largest, in the order of schema_axes(table) */
    uint32_t n_samples;          /* of this micro-batch, in row order */
    const struct value *values;  /* [n_samples * n_fields], sample-major: values[s * n_fields + f] */
};

/*
 * Fills fields[n_fields]: everything but data (NULL). *ret_bytes: of the slot, a multiple of ASSEMBLE_ALIGN.
 * tensor.name borrows the table's. Errors: -EINVAL naming the field (and sample, by row): shapes that do not fit;
 * -EOVERFLOW.
 */
int assemble_layout(const struct assemble_input *in, struct poise_tensor *fields, uint64_t *ret_bytes,
                    struct poise_err *err);

/* After layout: sets fields[].data into the slot (ASSEMBLE_ALIGN aligned, NULL where a field has 0 bytes) and fills
 * values[n_samples * n_fields]. Touches no byte of the slot. */
void assemble_place(const struct assemble_input *in, void *slot, struct poise_tensor *fields,
                    struct poise_tensor *values);

/* After place: writes samples first .. first + n - 1, padding included. Disjoint ranges may be filled by several
 * threads. */
void assemble_fill(const struct assemble_input *in, const struct poise_tensor *fields,
                   const struct poise_tensor *values, uint32_t first, uint32_t n);

/* The same for samples whose data comes by itself: writes their padding and nothing else. */
void assemble_pad(const struct assemble_input *in, const struct poise_tensor *fields,
                  const struct poise_tensor *values, uint32_t first, uint32_t n);

#endif
