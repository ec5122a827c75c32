/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The samples of the example trainer: what a Qwen2-VL processor makes of one image and its text. Every byte follows
 * from where the sample was loaded (rank, index, step), so whoever receives it can verify all of it.
 */
#ifndef POISE_EXAMPLES_PAYLOAD_H
#define POISE_EXAMPLES_PAYLOAD_H

#include <stdbool.h>

#include "poise.h"

#define PAYLOAD_PHASES 2 /* vision (patches), llm (tokens): those of the preset */
#define PAYLOAD_FIELDS 6
#define PAYLOAD_COST "qwen2.5-vl-7b"

struct payload_size {
    uint32_t grid_h, grid_w;               /* patches; 0 x 0: a sample without an image */
    uint32_t prompt_tokens, answer_tokens; /* image tokens and their markers are in the prompt's */
    uint32_t text_bytes;
};

struct payload_origin {
    uint32_t rank, index;
    uint64_t step;
};

/* A sample with the arrays that it points to. */
struct payload {
    int64_t length[PAYLOAD_PHASES];
    struct poise_value values[PAYLOAD_FIELDS];
};

extern const struct poise_field payload_fields[PAYLOAD_FIELDS];

/* A plausible size of an image and its text, for runs without a list of sizes. */
struct payload_size payload_any_size(const struct payload_origin *origin);

int64_t payload_patches(const struct payload_size *size);
int64_t payload_tokens(const struct payload_size *size);
uint64_t payload_tag(const struct payload_origin *origin);

/* Memory that payload_build() needs, a multiple of 64. */
uint64_t payload_bytes(const struct payload_size *size);

/* Fills memory (aligned to 64, kept by *ret_sample) and the sample that describes it; *ret_payload holds its arrays. */
void payload_build(const struct payload_origin *origin, const struct payload_size *size, void *memory,
                   struct payload *ret_payload, struct poise_sample *ret_sample);

/*
 * Checks every byte of an assembled micro-batch, padding too. sizes: [batch->n_samples], of the samples that the rows
 * name. ret_ok: [n_samples]. Returns the number that are not ok; all, where an assembled field is missing or has a
 * wrong shape.
 */
uint32_t payload_check(const struct poise_batch *batch, const struct payload_size *sizes, bool *ret_ok);

#endif
