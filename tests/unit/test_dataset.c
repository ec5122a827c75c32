/* SPDX-License-Identifier: Apache-2.0 */
/* From rows of a CSV to samples and their lengths: every kind of file, hand-computed sizes, rows that are left out. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/dataset.h"

static const struct dataset_rule q1280 = {.max_pixels = 1280 * 28 * 28, .max_tiles = DATASET_MAX_TILES};
static const struct dataset_rule intern = {.max_pixels = 1280 * 28 * 28, .tiles = true, .max_tiles = DATASET_MAX_TILES};

static int read_text(const char *text, const char *columns, struct dataset *data, struct poise_err *err)
{
    char path[] = "/tmp/poise-test-dataset-XXXXXX";
    int rc, fd = mkstemp(path);

    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    memset(data, 0, sizeof *data);
    memset(err, 0, sizeof *err);
    rc = dataset_read(path, columns, data, err);
    unlink(path);
    return rc;
}

static struct dataset_sizes measure(const struct dataset *data, uint64_t row, const struct dataset_rule *rule)
{
    struct dataset_sizes sizes;

    cr_assert(row < data->n_rows);
    dataset_measure(data, &data->rows[row], rule, &sizes);
    return sizes;
}

static void expect_left_out(const struct dataset *data, uint32_t at, const char *reason, uint64_t n, uint64_t line)
{
    cr_assert(at < data->n_reasons);
    cr_expect(strstr(data->left_out[at].reason, reason), "%s", data->left_out[at].reason);
    cr_expect(data->left_out[at].n == n && data->left_out[at].line[0] == line, "%s: %lu, line %lu", reason,
              (unsigned long)data->left_out[at].n, (unsigned long)data->left_out[at].line[0]);
}

Test(dataset, images_and_text)
{
    struct poise_err err;
    struct dataset data;
    struct dataset_sizes sizes;

    cr_assert(
        read_text("id,width,height,prompt_tokens,answer_tokens\n1,640,426,3,11\n2,,,5,7\n3,0,0,5,\n4,4000,3000,0,1\n",
                  NULL, &data, &err) == 0,
        "%s", err.text);
    cr_assert(data.kind == DATASET_IMAGE && data.n_rows == 4 && data.n_text_only == 2 && data.n_several_images == 0);
    cr_assert_str_eq(data.columns, "width, height, prompt_tokens + answer_tokens");
    sizes = measure(&data, 0, &q1280); /* 644 x 420: 46 x 30 patches */
    cr_assert(sizes.length[DATASET_VISION] == 1380 && sizes.attention[DATASET_VISION] == 1380 * 1380);
    cr_assert(sizes.length[DATASET_TOKENS] == 345 + 2 + 14 && sizes.attention[DATASET_TOKENS] == 361 * 361);
    cr_assert(sizes.bytes == 1380 * 2352 + 24 + 361 * 24);
    sizes = measure(&data, 1, &q1280);
    cr_assert(sizes.length[DATASET_VISION] == 0 && sizes.length[DATASET_TOKENS] == 12);
    sizes = measure(&data, 3, &q1280);
    cr_assert(sizes.length[DATASET_VISION] <= 1280 * 4 && sizes.length[DATASET_VISION] > 1200 * 4);
    dataset_free(&data);
    dataset_free(&data);
}

Test(dataset, rows_that_cannot_be_used_are_counted_and_named)
{
    struct poise_err err;
    struct dataset data;

    cr_assert(read_text("width,height,text_tokens\n640,480,1\n20,480,1\n28,5601,1\n-1,480,1\nnan,480,1\n640,abc,1\n"
                        "640.0,480.00,1\n640.5,480,1\n1e9,480,1\n,,\n640,480\n20,20,3\n640,480,-4\n",
                        NULL, &data, &err) == 0,
              "%s", err.text);
    cr_assert(data.n_rows == 2 && data.n_read == 13 && data.n_left_out == 11);
    expect_left_out(&data, 0, "under 28 pixels", 2, 3);
    expect_left_out(&data, 1, "more than 200 times", 1, 4);
    expect_left_out(&data, 2, "width is negative", 1, 5);
    expect_left_out(&data, 3, "width is not finite", 1, 6);
    expect_left_out(&data, 4, "height is not a number", 1, 7);
    expect_left_out(&data, 5, "whole number of pixels", 1, 9);
    expect_left_out(&data, 6, "width is too large", 1, 10);
    expect_left_out(&data, 7, "neither an image nor text", 1, 11);
    expect_left_out(&data, 8, "fewer fields", 1, 12);
    expect_left_out(&data, 9, "text_tokens is negative", 1, 14);
    dataset_free(&data);
}

Test(dataset, many_images_a_sample)
{
    struct poise_err err;
    struct dataset data;
    struct dataset_sizes sizes;

    cr_assert(
        read_text("n_images,text_tokens,image_sizes\n2,100,56x56;644x420\n0,50,\n1,5,56by56\n1,5,56x56;10x10\n0,0,\n",
                  NULL, &data, &err) == 0,
        "%s", err.text);
    cr_assert(data.kind == DATASET_IMAGES && data.n_rows == 2 && data.n_images == 2);
    cr_assert(data.n_several_images == 1 && data.n_text_only == 1 && data.n_left_out == 3);
    sizes = measure(&data, 0, &q1280);
    cr_assert(sizes.length[DATASET_VISION] == 16 + 1380);
    cr_assert(sizes.attention[DATASET_VISION] == 16 * 16 + 1380 * 1380);
    cr_assert(sizes.length[DATASET_TOKENS] == 4 + 2 + 345 + 2 + 100);
    dataset_free(&data);
}

Test(dataset, video)
{
    struct poise_err err;
    struct dataset data;
    struct dataset_sizes sizes;

    cr_assert(dataset_video_frames(2622, 29.97) == 174);
    cr_assert(dataset_video_frames(30, 30) == 4);
    cr_assert(dataset_video_frames(3, 30) == 2);
    cr_assert(dataset_video_frames(100000, 25) == 768);
    cr_assert(read_text("frames,width,height,question_tokens,answer_tokens\n2622,640,480,10,1\n1,640,480,1,1\n", NULL,
                        &data, &err) == 0,
              "%s", err.text);
    cr_assert(data.kind == DATASET_VIDEO && data.n_rows == 1 && data.n_left_out == 1);
    sizes = measure(&data, 0, &q1280);
    /* 174 frames: 24,576 x 784 / 174 x 2 = 221,464 pixels a frame; 640 x 480 becomes 532 x 392: 38 x 28 patches. */
    cr_assert(sizes.length[DATASET_VISION] == 87 * 38 * 28, "%lu", (unsigned long)sizes.length[DATASET_VISION]);
    cr_assert(sizes.attention[DATASET_VISION] == 87ull * (38 * 28) * (38 * 28));
    cr_assert(sizes.length[DATASET_TOKENS] == 87 * 19 * 14 + 2 + 11);
    dataset_free(&data);
}

Test(dataset, tiles_and_sound_and_lengths)
{
    struct poise_err err;
    struct dataset data;
    struct dataset_sizes sizes;

    cr_assert(dataset_tiles(448, 448, 12) == 1);
    cr_assert(dataset_tiles(896, 448, 12) == 3);    /* 2 x 1 and the thumbnail */
    cr_assert(dataset_tiles(1000, 1000, 12) == 10); /* 3 x 3: 4 x 4 would be too many */
    cr_assert(read_text("dataset,vit_tiles,llm_tokens\nai2d,5,1341\n", NULL, &data, &err) == 0);
    sizes = measure(&data, 0, &intern);
    cr_assert(data.kind == DATASET_TILES && sizes.length[DATASET_VISION] == 5 && sizes.length[DATASET_TOKENS] == 1341);
    dataset_free(&data);

    cr_assert(read_text("seconds,text_tokens\n40,7\n0.5,1\n", NULL, &data, &err) == 0);
    sizes = measure(&data, 0, &q1280);
    cr_assert(sizes.length[DATASET_SOUND] == 2000 && sizes.attention[DATASET_SOUND] == 1500 * 1500 + 500 * 500);
    cr_assert(sizes.length[DATASET_TOKENS] == 1000 + 2 + 7);
    dataset_free(&data);

    cr_assert(read_text("length\n4294967295\n4294967296\n2147483648\n", NULL, &data, &err) == 0);
    sizes = measure(&data, 0, &q1280);
    cr_assert(sizes.length[DATASET_PLAIN] == 4294967295u);
    cr_assert(sizes.attention[DATASET_PLAIN] == 4294967295u * 4294967295ull);
    cr_assert(data.n_rows == 2 && data.n_left_out == 1);
    expect_left_out(&data, 0, "length is too large", 1, 3);
    dataset_free(&data);
}

Test(dataset, columns_by_name)
{
    struct poise_err err;
    struct dataset data;

    cr_assert(read_text("tokens,width,height\n7,640,480\n", "length=tokens", &data, &err) == 0, "%s", err.text);
    cr_assert(data.kind == DATASET_LENGTH && data.rows[0].length == 7);
    dataset_free(&data);
    cr_assert(read_text("w,h,q,a,size\n644,420,3,4,99\n", "width=w,height=h,text=q+a,bytes=size", &data, &err) == 0);
    cr_assert(data.kind == DATASET_IMAGE && data.rows[0].text == 7 && data.rows[0].bytes == 99);
    cr_assert_str_eq(data.columns, "w, h, q + a, size");
    dataset_free(&data);

    cr_assert(read_text("a,b\n1,2\n", NULL, &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "It has: a, b") && strstr(err.text, "width and height"), "%s", err.text);
    cr_assert(read_text("a,b\n1,2\n", "length=c", &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "no column c. There are: a, b"), "%s", err.text);
    cr_assert(read_text("a,b\n1,2\n", "len=a", &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "len. There are: length, width"), "%s", err.text);
    cr_assert(read_text("a,b\n1,2\n", "length", &data, &err) == -EINVAL);
    cr_assert(read_text("a,b\n1,2\n", "length=a,length=b", &data, &err) == -EINVAL);
    cr_assert(read_text("a,b\n1,2\n", "length=a+b", &data, &err) == -EINVAL);
    cr_assert(read_text("a,a\n1,2\n", "length=a", &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "several columns"), "%s", err.text);
    cr_assert(read_text("length\n", NULL, &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "no row"), "%s", err.text);
    cr_assert(read_text("length\nx\n\"1\n", NULL, &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "line 3: a quote"), "%s", err.text);
    cr_assert(read_text("length\nx\ny\n", NULL, &data, &err) == -EINVAL);
    cr_assert(strstr(err.text, "none of its 2 rows can be used. Line 2: length is not a number"), "%s", err.text);
}

/* Every file of real sizes is read as what it is; almost all of its rows can be used. */
Test(dataset, real_sizes)
{
    struct poise_err err;
    struct dataset data;

    if (access("tests/data/image_text.csv", R_OK) != 0)
        cr_skip("tests/data is not below this directory");
    cr_assert(dataset_read("tests/data/image_text.csv", NULL, &data, &err) == 0);
    cr_assert(data.kind == DATASET_IMAGE && data.n_read == 14940);
    cr_assert(data.n_rows + data.n_left_out == data.n_read && data.n_left_out < 100);
    dataset_free(&data);
}
