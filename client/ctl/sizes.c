/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resize rule of Qwen2-VL ("smart_resize"): each side to the nearest multiple of 28 (a half to the even one, as
 * Python's round does); above max_pixels both sides are scaled down and rounded down, below min_pixels scaled up and
 * rounded up. The scaling is in doubles in the very order of the original, so that a border case falls the same way.
 */
#include "client/ctl/sizes.h"

#include <errno.h>
#include <math.h>

static uint64_t round_half_even(uint32_t side)
{
    uint64_t n = side / SIZES_FACTOR, rest = side % SIZES_FACTOR;

    if (rest > SIZES_FACTOR / 2 || (rest == SIZES_FACTOR / 2 && n % 2 == 1))
        n++;
    return n * SIZES_FACTOR;
}

/* A thin image scaled down by its area may round to nothing: one merged patch is the least. */
static uint64_t scaled_down(uint32_t side, double beta)
{
    double n = floor((double)side / beta / SIZES_FACTOR);

    return n < 1 ? SIZES_FACTOR : (uint64_t)n * SIZES_FACTOR;
}

int sizes_image(uint32_t width, uint32_t height, uint64_t max_pixels, struct sizes_image *ret_image)
{
    uint32_t least = width < height ? width : height, most = width < height ? height : width;
    uint64_t h, w;

    if (least < SIZES_FACTOR)
        return -EDOM;
    if ((double)most / least > SIZES_MAX_RATIO)
        return -ERANGE;
    h = round_half_even(height);
    w = round_half_even(width);
    if (h * w > max_pixels) {
        double beta = sqrt((double)height * width / (double)max_pixels);
        h = scaled_down(height, beta);
        w = scaled_down(width, beta);
    } else if (h * w < SIZES_MIN_PIXELS) {
        double beta = sqrt((double)SIZES_MIN_PIXELS / ((double)height * width));
        h = (uint64_t)ceil(height * beta / SIZES_FACTOR) * SIZES_FACTOR;
        w = (uint64_t)ceil(width * beta / SIZES_FACTOR) * SIZES_FACTOR;
    }
    ret_image->grid_h = (uint32_t)(h / SIZES_PATCH);
    ret_image->grid_w = (uint32_t)(w / SIZES_PATCH);
    ret_image->patches = (uint64_t)ret_image->grid_h * ret_image->grid_w;
    ret_image->tokens = ret_image->patches / 4;
    return 0;
}
