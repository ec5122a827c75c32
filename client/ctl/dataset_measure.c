/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the size of an image, video or sound to sequence lengths: the rules of Qwen2-VL (patches, in sizes.c), of
 * InternVL (tiles) and of Whisper (positions). What a row has been accepted for when it was read cannot fail here.
 */
#include "client/ctl/dataset.h"

#include <math.h>

#include "client/ctl/sizes.h"

#define SQUARE (28u * 28u) /* pixels of a token */
#define VIDEO_FRAMES_A_SECOND 2.0
#define VIDEO_FRAMES_LEAST 4u
#define VIDEO_FRAMES_MOST 768u
#define VIDEO_FRAME_PIXELS (768.0 * SQUARE)       /* of one frame, at most */
#define VIDEO_PIXELS (24576.0 * SQUARE)           /* of all frames of a video, two frames to a slice */
#define VIDEO_FRAME_FLOOR (1.05 * 128.0 * SQUARE) /* the limit of a frame is never below */
#define TILE 448u                                 /* pixels a side */
#define TILE_TOKENS 256u
#define SOUND_A_SECOND 50.0 /* positions: 100 mel frames a second, halved once; the LLM sees half of them */
#define SOUND_WINDOW 1500u  /* positions that attend to each other: 30 s */
#define PATCH_BYTES 2352u   /* 2 temporal x 3 colours x 14 x 14 values of 16 bits */
#define TILE_BYTES (3u * TILE * TILE * 2u)
#define GRID_BYTES 24u   /* three integers of 64 bits an image or video */
#define TOKEN_BYTES 24u  /* id, label and mask, 64 bits each */
#define SOUND_BYTES 512u /* a position: two frames of 128 mel bins of 16 bits */

uint32_t dataset_tiles(uint32_t width, uint32_t height, uint32_t max_tiles)
{
    const double aspect = (double)width / height, area = (double)width * height;
    double best = INFINITY;
    uint32_t tiles = 1;

    /* In the order of the original: by number of tiles, then columns; a later one of equal ratio wins if the image
     * fills it. */
    for (uint32_t n = 1; n <= max_tiles; n++)
        for (uint32_t columns = 1; columns <= n; columns++) {
            double off;
            if (n % columns)
                continue;
            off = fabs(aspect - (double)columns / (n / columns));
            if (off < best || (off == best && area > 0.5 * TILE * TILE * n)) {
                best = off;
                tiles = n;
            }
        }
    return tiles > 1 ? tiles + 1 : 1;
}

uint32_t dataset_video_frames(uint32_t frames, double per_second)
{
    double n = frames / per_second * VIDEO_FRAMES_A_SECOND;

    n = n < VIDEO_FRAMES_LEAST ? VIDEO_FRAMES_LEAST : n > VIDEO_FRAMES_MOST ? VIDEO_FRAMES_MOST : n;
    if (n > frames)
        n = frames; /* a video of three frames has no four */
    return (uint32_t)n / 2 * 2;
}

void dataset_measure_image(const struct dataset_image *image, const struct dataset_rule *rule, uint64_t *ret_length,
                           uint64_t *ret_attention)
{
    struct sizes_image size = {0};

    if (rule->tiles) {
        *ret_length = dataset_tiles(image->width, image->height, rule->max_tiles);
        *ret_attention = *ret_length; /* a tile sees itself alone */
        return;
    }
    sizes_image(image->width, image->height, rule->max_pixels, &size);
    *ret_length = size.patches;
    *ret_attention = size.patches * size.patches;
}

static void add_images(const struct dataset *data, const struct dataset_row *row, const struct dataset_rule *rule,
                       struct dataset_sizes *sizes)
{
    for (uint32_t i = 0; i < row->n_images; i++) {
        uint64_t length, attention;
        dataset_measure_image(&data->images[row->first_image + i], rule, &length, &attention);
        sizes->length[DATASET_VISION] += length;
        sizes->attention[DATASET_VISION] += attention;
        sizes->length[DATASET_TOKENS] += (rule->tiles ? length * TILE_TOKENS : length / 4) + SIZES_IMAGE_MARKERS;
    }
    sizes->bytes =
        sizes->length[DATASET_VISION] * (rule->tiles ? TILE_BYTES : PATCH_BYTES) + row->n_images * GRID_BYTES;
}

/* Two frames are one slice, and attention stays inside a slice. InternVL takes each frame as a tile of its own. */
static void add_video(const struct dataset *data, const struct dataset_row *row, const struct dataset_rule *rule,
                      struct dataset_sizes *sizes)
{
    const struct dataset_image *frame = &data->images[row->first_image];
    uint32_t n = dataset_video_frames(row->frames, row->per_second);
    struct sizes_image size = {0};
    double most;

    if (rule->tiles) {
        sizes->length[DATASET_VISION] = sizes->attention[DATASET_VISION] = n;
        sizes->length[DATASET_TOKENS] = (uint64_t)n * (TILE_TOKENS + SIZES_IMAGE_MARKERS);
        sizes->bytes = (uint64_t)n * TILE_BYTES;
        return;
    }
    most = fmin(fmin(VIDEO_FRAME_PIXELS, (double)rule->max_pixels), VIDEO_PIXELS / n * 2);
    most = fmax(most, VIDEO_FRAME_FLOOR);
    sizes_image(frame->width, frame->height, (uint64_t)most, &size);
    sizes->length[DATASET_VISION] = n / 2 * size.patches;
    sizes->attention[DATASET_VISION] = n / 2 * size.patches * size.patches;
    sizes->length[DATASET_TOKENS] = n / 2 * size.tokens + SIZES_IMAGE_MARKERS;
    sizes->bytes = sizes->length[DATASET_VISION] * PATCH_BYTES + GRID_BYTES;
}

static void add_sound(const struct dataset_row *row, struct dataset_sizes *sizes)
{
    uint64_t n = (uint64_t)ceil(row->seconds * SOUND_A_SECOND), rest = n % SOUND_WINDOW;

    sizes->length[DATASET_SOUND] = n;
    sizes->attention[DATASET_SOUND] = n / SOUND_WINDOW * SOUND_WINDOW * SOUND_WINDOW + rest * rest;
    sizes->length[DATASET_TOKENS] = n / 2 + SIZES_IMAGE_MARKERS;
    sizes->bytes = n * SOUND_BYTES;
}

void dataset_measure(const struct dataset *data, const struct dataset_row *row, const struct dataset_rule *rule,
                     struct dataset_sizes *ret_sizes)
{
    struct dataset_sizes sizes = {0};
    uint64_t *tokens = &sizes.length[DATASET_TOKENS];

    switch (data->kind) {
    case DATASET_LENGTH:
        sizes.length[DATASET_PLAIN] = *tokens = row->length;
        sizes.attention[DATASET_PLAIN] = row->length * row->length;
        break;
    case DATASET_IMAGE:
    case DATASET_IMAGES:
        add_images(data, row, rule, &sizes);
        break;
    case DATASET_VIDEO:
        add_video(data, row, rule, &sizes);
        break;
    case DATASET_TILES:
        sizes.length[DATASET_VISION] = sizes.attention[DATASET_VISION] = row->tiles;
        *tokens = row->length;
        sizes.bytes = (uint64_t)row->tiles * TILE_BYTES;
        break;
    case DATASET_AUDIO:
        add_sound(row, &sizes);
        break;
    }
    *tokens += row->text;
    sizes.attention[DATASET_TOKENS] = *tokens * *tokens;
    sizes.bytes = row->bytes ? row->bytes : sizes.bytes + *tokens * TOKEN_BYTES;
    *ret_sizes = sizes;
}
