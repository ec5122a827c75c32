/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options that must agree over a group, as sorted keys and values: the client writes them from its struct
 * poise_options, every coordinator compares them as text (so a difference can be named) and reads them back. One table
 * in options.c lists every key once. Pure.
 */
#ifndef POISE_PROTO_OPTIONS_H
#define POISE_PROTO_OPTIONS_H

#include "wire.h"

struct options { /* what a coordinator needs of them */
    struct poise_phase phases[POISE_MAX_PHASES];
    uint32_t n_phases;
    char algorithm[POISE_MAX_NAME];
    uint32_t objective, count, cut, tolerance_ppm, micro_batch_size, n_micro_batches, stages, end, image_encoder_dp;
    uint32_t plan_only;
    uint64_t cap_samples_rank, cap_samples_micro_batch, cap_bytes_rank;
    uint64_t cap_length_rank[POISE_MAX_PHASES], cap_length_micro_batch[POISE_MAX_PHASES];
    uint32_t record; /* rank 0 writes a record: coordinators send it the metadata of all ranks */
    uint32_t payload; /* OPTIONS_PAYLOAD_*: how it goes between nodes */
    uint64_t audit; /* steps of a block, balanced and in arrival order by turns; 0: off */
};

#define OPTIONS_PAYLOAD_CURVE 0
#define OPTIONS_PAYLOAD_PLAIN 1

/* From resolved options (a preset already turned into phases) to text: *ret_options: caller frees with
 * options_free(). */
int options_write(const struct options *options, struct wire_option **ret_options, uint32_t *ret_n_options,
                  struct poise_err *err);
void options_free(struct wire_option *options, uint32_t n_options);

/* Back. Errors: -EINVAL an unknown key (a newer library), a bad value: both named. */
int options_read(const struct wire_option *list, uint32_t n_options, struct options *ret_options,
                 struct poise_err *err);

/* The first key that differs, as text for an error ("micro_batch_size is 2 on rank 0 and 4 on rank 3"); 0 if none
 * does. */
int options_differ(const struct wire_join *a, const struct wire_join *b, char *text, size_t n_text);

/* Fills the planner's request from them: everything but the columns. Borrows *options. */
void options_request(const struct options *options, struct poise_plan_request *ret_req);

#endif
