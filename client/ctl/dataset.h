/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of training samples from a CSV file, and what they become in a model: lengths and attention by phase, bytes.
 * Six kinds of files are known by their columns; --columns names columns that are called otherwise. Pure after reading.
 */
#ifndef POISE_CTL_DATASET_H
#define POISE_CTL_DATASET_H

#include <stdbool.h>

#include "client/ctl/csv.h"

enum dataset_kind {
    DATASET_LENGTH, /* length */
    DATASET_IMAGE,  /* width, height; both empty or 0: a sample of text alone */
    DATASET_IMAGES, /* image_sizes: "WxH;WxH;..." */
    DATASET_VIDEO,  /* frames, width, height */
    DATASET_TILES,  /* vit_tiles, llm_tokens */
    DATASET_AUDIO,  /* seconds */
};

struct dataset_image {
    uint32_t width, height; /* pixels */
};

struct dataset_row {
    uint64_t line;
    uint64_t first_image;
    uint32_t n_images;
    uint32_t frames;   /* video: of the file */
    uint64_t length;   /* given as such; tokens of kind DATASET_TILES, vision included */
    uint64_t text;     /* tokens of text */
    uint64_t bytes;    /* given; 0: from the sizes */
    double per_second; /* video: frames a second */
    double seconds;
    uint32_t tiles;
};

#define DATASET_LINES 5u    /* of rows left out that are named, a reason */
#define DATASET_REASONS 24u /* more kinds of trouble than that are one: "and more" */

struct dataset_left_out { /* rows that cannot be used */
    char reason[112];
    uint64_t n;
    uint64_t line[DATASET_LINES]; /* of the first ones */
};

struct dataset {
    enum dataset_kind kind;
    char columns[192]; /* the columns that were used: "width, height, prompt_tokens + answer_tokens" */
    bool has_text, has_bytes;
    struct dataset_row *rows;
    uint64_t n_rows;
    struct dataset_image *images;
    uint64_t n_images;
    uint64_t n_read; /* rows of the file */
    uint64_t n_left_out;
    struct dataset_left_out left_out[DATASET_REASONS];
    uint32_t n_reasons;
    uint64_t n_text_only, n_several_images; /* rows */
};

/* columns: "length=tokens,text=question+answer", or NULL. Errors name file, column and what there is. Caller frees with
 * dataset_free(). */
int dataset_read(const char *path, const char *columns, struct dataset *ret_data, struct poise_err *err);
void dataset_free(struct dataset *data);

/* Takes note of a row that cannot be used. */
void dataset_leave_out(struct dataset *data, uint64_t line, const char *reason);

/* ------------------------------------------------------------------------------------------- dataset_measure.c */

enum dataset_size { DATASET_VISION, DATASET_TOKENS, DATASET_SOUND, DATASET_PLAIN, DATASET_N_SIZES };

struct dataset_rule {    /* how a model cuts what it sees */
    uint64_t max_pixels; /* of an image, as Qwen2-VL resizes it */
    bool tiles;          /* InternVL's tiles of 448 pixels instead of patches */
    uint32_t max_tiles;  /* of an image, without its thumbnail */
};
#define DATASET_MAX_TILES 12u /* InternVL's own default */

struct dataset_sizes {
    uint64_t length[DATASET_N_SIZES];    /* patches or tiles; tokens of the LLM; audio positions; the given length */
    uint64_t attention[DATASET_N_SIZES]; /* sums of squared segments that attend to each other */
    uint64_t bytes;                      /* that travel: pixel rows in 16 bits, token ids, labels and mask */
};

void dataset_measure(const struct dataset *data, const struct dataset_row *row, const struct dataset_rule *rule,
                     struct dataset_sizes *ret_sizes);

/* One image alone, in the vision phase: length and attention. */
void dataset_measure_image(const struct dataset_image *image, const struct dataset_rule *rule, uint64_t *ret_length,
                           uint64_t *ret_attention);

/* InternVL's number of tiles for an image, with the thumbnail. */
uint32_t dataset_tiles(uint32_t width, uint32_t height, uint32_t max_tiles);

/* Frames that Qwen2-VL's processor takes of a video: two a second, at least 4, at most 768, an even number. */
uint32_t dataset_video_frames(uint32_t frames, double per_second);

#endif
