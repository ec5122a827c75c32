/* SPDX-License-Identifier: Apache-2.0 */
/* How many patches and tokens an image of a size becomes in a Qwen2-VL processor. Pure. */
#ifndef POISE_CTL_SIZES_H
#define POISE_CTL_SIZES_H

#include <stdint.h>

#define SIZES_PATCH 14u  /* pixels a side of a ViT patch */
#define SIZES_FACTOR 28u /* a side is a multiple of it: two patches are merged in each direction */
#define SIZES_MIN_PIXELS (56u * 56u)
#define SIZES_Q1280 (1280u * 28u * 28u) /* max_pixels of one library's default */
#define SIZES_MAX_RATIO 200u
#define SIZES_IMAGE_MARKERS 2u /* tokens before and after an image in the text */

struct sizes_image {
    uint32_t grid_h, grid_w; /* patches */
    uint64_t patches;        /* their product: the ViT's sequence length */
    uint64_t tokens;         /* of the LLM: a fourth of it, without markers */
};

/* 0; -EDOM a side under 28 pixels; -ERANGE one side more than 200 times the other: the processor refuses both. */
int sizes_image(uint32_t width, uint32_t height, uint64_t max_pixels, struct sizes_image *ret_image);

#endif
