/* SPDX-License-Identifier: Apache-2.0 */
/* The resize rule against values that the original's code gave, and over all of tests/data/image_text.csv. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>

#include "client/ctl/sizes.c" /* poisectl's, in no archive */

#define Q16384 (16384u * 28u * 28u)

Test(sizes, equal_the_original)
{
    static const struct {
        uint32_t width, height, h, w, h_large, w_large; /* patches at max_pixels of q1280, q16384 */
    } rows[] = {
        {640, 426, 30, 46, 30, 46},
        {42, 42, 4, 4, 4, 4}, /* 1.5 x 28: to 2, the even one */
        {70, 98, 8, 4, 8, 4}, /* 2.5 to 2, 3.5 to 4 */
        {28, 28, 4, 4, 4, 4}, /* scaled up to min_pixels */
        {30, 80, 8, 4, 8, 4},
        {29700, 20990, 60, 84, 214, 304},
        {463, 1013, 72, 34, 72, 34},
        {1000, 1000, 70, 70, 72, 72}, /* 1,008 x 1,008 is above max_pixels */
        {28, 5600, 400, 2, 400, 2},   /* a ratio of just 200 */
        {100000, 600, 4, 922, 18, 3304},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sizes_image image;
        cr_assert_eq(sizes_image(rows[i].width, rows[i].height, SIZES_Q1280, &image), 0);
        cr_assert(image.grid_h == rows[i].h && image.grid_w == rows[i].w, "%ux%u: %ux%u", rows[i].width, rows[i].height,
                  image.grid_h, image.grid_w);
        cr_assert_eq(image.patches, (uint64_t)rows[i].h * rows[i].w);
        cr_assert_eq(image.tokens * 4, image.patches);
        cr_assert_eq(sizes_image(rows[i].width, rows[i].height, Q16384, &image), 0);
        cr_assert(image.grid_h == rows[i].h_large && image.grid_w == rows[i].w_large, "%ux%u: %ux%u", rows[i].width,
                  rows[i].height, image.grid_h, image.grid_w);
    }
}

Test(sizes, what_the_processor_refuses)
{
    struct sizes_image image = {7, 7, 7, 7};

    cr_assert_eq(sizes_image(27, 400, SIZES_Q1280, &image), -EDOM);
    cr_assert_eq(sizes_image(400, 27, SIZES_Q1280, &image), -EDOM);
    cr_assert_eq(sizes_image(0, 0, SIZES_Q1280, &image), -EDOM);
    cr_assert_eq(sizes_image(28, 5601, SIZES_Q1280, &image), -ERANGE);
    cr_assert_eq(sizes_image(UINT32_MAX, 28, SIZES_Q1280, &image), -ERANGE);
    cr_assert_eq(image.patches, 7, "untouched on failure");
}

Test(sizes, never_above_the_limit_and_always_mergeable)
{
    for (uint32_t w = 28; w < 6000; w += 37)
        for (uint32_t h = 28; h < 6000; h += 41) {
            struct sizes_image image;
            if (sizes_image(w, h, SIZES_Q1280, &image) < 0)
                continue;
            cr_assert(image.grid_h % 2 == 0 && image.grid_w % 2 == 0 && image.patches > 0, "%ux%u", w, h);
            cr_assert(image.patches * SIZES_PATCH * SIZES_PATCH <= SIZES_Q1280, "%ux%u", w, h);
        }
}

Test(sizes, all_of_image_text)
{
    FILE *file = fopen("tests/data/image_text.csv", "r");
    char line[512];
    uint64_t n = 0, patches = 0, tokens = 0, refused = 0;
    struct sizes_image image;
    uint32_t width, height;

    cr_assert_not_null(file, "run from the root of the tree");
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*[^,],%*[^,],%u,%u,", &width, &height) != 2)
            continue;
        if (sizes_image(width, height, SIZES_Q1280, &image) < 0) {
            refused++;
            continue;
        }
        n++;
        patches += image.patches;
        tokens += image.tokens;
    }
    fclose(file);
    cr_assert(n == 14924 && refused == 16, "%lu, %lu", n, refused);
    cr_assert(patches == 18937796 && tokens == 4734449, "%lu, %lu", patches, tokens);
}
