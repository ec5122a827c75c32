/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds and verifies samples at the speed of memory: 8 bytes at a time from a counter and one multiplication
 * (splitmix's idea), and no branch in the loop that compares. A slower check would be what the demo measures.
 */
#include "client/examples/payload.h"

#include <stdio.h>
#include <string.h>

#define PIXEL_VALUES 1176 /* 3 colours x 2 frames x 14 x 14 pixels a patch */
#define PAD_TOKEN 151643  /* <|endoftext|> of the Qwen vocabulary */
#define NO_LABEL (-100)   /* what cross-entropy ignores */
#define ALIGN 64u
#define TEXT_MAX 48 /* "sample 4294967295 of rank 4294967295, step ..." without its filling */

enum { PIXELS, GRID, IDS, LABELS, MASK, TEXT };

/*
 * How the samples of a micro-batch become one tensor: pixel rows and grids one after the other, as the model takes
 * them; text stacked and padded on the right to the longest, all three with the same axis; the caption as it is. The
 * grid says how many pixel rows there must be: a sample that contradicts itself is refused at submit.
 */
const struct poise_field payload_fields[PAYLOAD_FIELDS] = {
    {.name = "pixel_values",
     .dtype = POISE_BF16,
     .assembly = POISE_CONCAT,
     .n_dims = 2,
     .shape = {-1, PIXEL_VALUES},
     .rows_of = "image_grid_thw"},
    {.name = "image_grid_thw", .dtype = POISE_I64, .assembly = POISE_CONCAT, .n_dims = 2, .shape = {-1, 3}},
    {.name = "input_ids",
     .dtype = POISE_I64,
     .assembly = POISE_PADDED,
     .n_dims = 1,
     .shape = {-1},
     .axis_name = {"sequence"},
     .pad_bits = PAD_TOKEN},
    {.name = "labels",
     .dtype = POISE_I64,
     .assembly = POISE_PADDED,
     .n_dims = 1,
     .shape = {-1},
     .axis_name = {"sequence"},
     .pad_bits = (uint64_t)NO_LABEL},
    {.name = "attention_mask",
     .dtype = POISE_U8,
     .assembly = POISE_PADDED,
     .n_dims = 1,
     .shape = {-1},
     .axis_name = {"sequence"}},
    {.name = "caption", .dtype = POISE_BYTES, .assembly = POISE_OPAQUE, .n_dims = 1, .shape = {-1}},
};

/* --------------------------------------------------------------------------------------------------- the generator */

static inline uint64_t word(uint64_t seed, uint64_t i)
{
    uint64_t x = seed + i * 0x9e3779b97f4a7c15u;

    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint64_t seed_of(const struct payload_origin *origin, uint32_t field)
{
    return word(word(word(word(1, origin->step), origin->rank), origin->index), field);
}

static int64_t token(uint64_t seed, uint64_t i)
{
    return (int64_t)(word(seed, i) >> 47); /* 17 bits: every value is in the vocabulary, none is PAD_TOKEN */
}

static char letter(uint64_t seed, uint64_t i)
{
    return (char)('a' + (word(seed, i) >> 32) * 26 / (UINT64_C(1) << 32));
}

static int text_head(const struct payload_origin *origin, char text[2 * TEXT_MAX])
{
    return snprintf(text, 2 * TEXT_MAX, "sample %u of rank %u, step %llu ", origin->index, origin->rank,
                    (unsigned long long)origin->step);
}

struct payload_size payload_any_size(const struct payload_origin *origin)
{
    uint64_t x = seed_of(origin, PAYLOAD_FIELDS);
    struct payload_size size = {
        .grid_h = 4 + 2 * (x % 16), .grid_w = 4 + 2 * (x / 16 % 16), .text_bytes = x / 256 % 200};

    size.answer_tokens = 1 + x / 65536 % 100;
    size.prompt_tokens = size.grid_h * size.grid_w / 4 + 2 + x / 6553600 % 50;
    return size;
}

int64_t payload_patches(const struct payload_size *size)
{
    return (int64_t)size->grid_h * size->grid_w;
}

int64_t payload_tokens(const struct payload_size *size)
{
    return (int64_t)size->prompt_tokens + size->answer_tokens;
}

uint64_t payload_tag(const struct payload_origin *origin)
{
    return word(seed_of(origin, PAYLOAD_FIELDS + 1), 0);
}

/* --------------------------------------------------------------------------------------------------------- building */

static uint64_t field_bytes(const struct payload_size *size, int field)
{
    switch (field) {
    case PIXELS:
        return (uint64_t)payload_patches(size) * PIXEL_VALUES * 2;
    case GRID:
        return size->grid_h ? 3 * sizeof(int64_t) : 0;
    case IDS:
    case LABELS:
        return (uint64_t)payload_tokens(size) * sizeof(int64_t);
    case MASK:
        return (uint64_t)payload_tokens(size);
    default:
        return size->text_bytes;
    }
}

static uint64_t field_room(const struct payload_size *size, int field)
{
    return (field_bytes(size, field) + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t payload_bytes(const struct payload_size *size)
{
    uint64_t bytes = ALIGN; /* never nothing: poise_alloc wants a size */

    for (int f = 0; f < PAYLOAD_FIELDS; f++)
        bytes += field_room(size, f);
    return bytes;
}

static void build_field(const struct payload_origin *origin, const struct payload_size *size, int field, void *memory)
{
    const uint64_t seed = seed_of(origin, field == LABELS ? IDS : (uint32_t)field);
    const uint64_t n = field_bytes(size, field);
    uint64_t *words = memory;
    int64_t *ids = memory;
    char *bytes = memory, head[2 * TEXT_MAX];

    switch (field) {
    case PIXELS:
        for (uint64_t i = 0; i < n / 8; i++)
            words[i] = word(seed, i);
        break;
    case GRID:
        memcpy(ids, (int64_t[]){1, size->grid_h, size->grid_w}, n);
        break;
    case IDS:
    case LABELS:
        for (uint64_t i = 0; i < n / 8; i++)
            ids[i] = field == LABELS && i < size->prompt_tokens ? NO_LABEL : token(seed, i);
        break;
    case MASK:
        memset(bytes, 1, n);
        break;
    default:
        for (uint64_t i = 0; i < n; i++)
            bytes[i] = letter(seed, i);
        memcpy(bytes, head, (size_t)text_head(origin, head) < n ? strlen(head) : n);
    }
}

void payload_build(const struct payload_origin *origin, const struct payload_size *size, void *memory,
                   struct payload *ret_payload, struct poise_sample *ret_sample)
{
    char *at = memory;

    for (int f = 0; f < PAYLOAD_FIELDS; f++) {
        struct poise_value *value = &ret_payload->values[f];
        const uint64_t bytes = field_bytes(size, f), row = f == PIXELS ? PIXEL_VALUES * 2 : f == GRID ? 24 : 0;

        build_field(origin, size, f, at);
        *value = (struct poise_value){.field = payload_fields[f].name, .data = bytes ? at : NULL};
        value->n_dims = payload_fields[f].n_dims;
        value->shape[0] = (int64_t)(bytes / (row ? row : poise_dtype_bytes(payload_fields[f].dtype)));
        value->shape[1] = payload_fields[f].shape[1];
        at += field_room(size, f);
    }
    ret_payload->length[0] = payload_patches(size);
    ret_payload->length[1] = payload_tokens(size);
    *ret_sample = (struct poise_sample){.tag = payload_tag(origin),
                                        .length = ret_payload->length,
                                        .loss_tokens = size->answer_tokens,
                                        .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                        .n_values = PAYLOAD_FIELDS,
                                        .values = ret_payload->values,
                                        .value_size = sizeof *ret_payload->values};
}

/* -------------------------------------------------------------------------------------------------------- verifying */

static bool same_words(const uint64_t *words, uint64_t n, uint64_t seed)
{
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < n; i++)
        wrong |= words[i] ^ word(seed, i);
    return wrong == 0;
}

/* One row of a padded field: n own tokens, then padding up to width. */
static bool same_tokens(const int64_t *ids, const struct payload_size *size, int field, uint64_t width, uint64_t seed)
{
    const uint64_t n = (uint64_t)payload_tokens(size), quiet = field == LABELS ? size->prompt_tokens : 0;
    int64_t wrong = 0;

    for (uint64_t i = 0; i < quiet; i++)
        wrong |= ids[i] ^ NO_LABEL;
    for (uint64_t i = quiet; i < n; i++)
        wrong |= ids[i] ^ token(seed, i);
    for (uint64_t i = n; i < width; i++)
        wrong |= ids[i] ^ (field == LABELS ? NO_LABEL : PAD_TOKEN);
    return wrong == 0;
}

static bool same_mask(const uint8_t *mask, uint64_t n, uint64_t width)
{
    unsigned wrong = 0;

    for (uint64_t i = 0; i < width; i++)
        wrong |= mask[i] ^ (i < n);
    return wrong == 0;
}

static bool same_text(const char *text, uint64_t n, const struct payload_origin *origin, uint64_t seed)
{
    char head[2 * TEXT_MAX];
    uint64_t n_head = (uint64_t)text_head(origin, head), wrong = 0;

    for (uint64_t i = 0; i < n; i++)
        wrong |= (uint64_t)(text[i] ^ (i < n_head ? head[i] : letter(seed, i)));
    return wrong == 0;
}

/* Sample s's part of an assembled field; at: where it must begin in a concatenated one, moved behind it. */
static bool check_part(const struct poise_tensor *whole, const struct poise_tensor *part, uint32_t s,
                       const struct payload_origin *origin, const struct payload_size *size, int field, uint64_t *at)
{
    const uint64_t n = field_bytes(size, field), seed = seed_of(origin, field == LABELS ? IDS : (uint32_t)field);
    const char *data = (const char *)whole->data + *at;

    if (field == TEXT)
        return part->bytes == n && (n == 0 || same_text(part->data, n, origin, seed));
    if (field == PIXELS || field == GRID) {
        *at += n;
        if (part->bytes != n || *at > whole->bytes || (n > 0 && part->data != data))
            return false;
        if (field == GRID)
            return n == 0 || !memcmp(data, (int64_t[]){1, size->grid_h, size->grid_w}, n);
        return same_words((const uint64_t *)data, n / 8, seed);
    }
    data = (const char *)whole->data + (int64_t)s * whole->stride[0];
    if (payload_tokens(size) > whole->shape[1] || (n > 0 && part->data != data))
        return false;
    if (field == MASK)
        return same_mask((const uint8_t *)data, (uint64_t)payload_tokens(size), (uint64_t)whole->shape[1]);
    return same_tokens((const int64_t *)data, size, field, (uint64_t)whole->shape[1], seed);
}

/* The whole is as large as its samples: rows add up, and padding goes no further than the longest. */
static bool check_whole(const struct poise_tensor *whole, const struct payload_size *sizes, uint32_t n, int field)
{
    uint64_t sum = 0;
    int64_t longest = 0;

    if (!whole || whole->dtype != payload_fields[field].dtype)
        return false;
    for (uint32_t s = 0; s < n; s++) {
        sum += field_bytes(&sizes[s], field);
        longest = payload_tokens(&sizes[s]) > longest ? payload_tokens(&sizes[s]) : longest;
    }
    if (field == TEXT)
        return true;
    if (field == PIXELS || field == GRID)
        return whole->n_dims == 2 && whole->bytes == sum && whole->shape[1] == payload_fields[field].shape[1];
    return whole->n_dims == 2 && whole->shape[0] == n && whole->shape[1] == longest &&
           whole->bytes == (uint64_t)n * (uint64_t)longest * poise_dtype_bytes(whole->dtype);
}

uint32_t payload_check(const struct poise_batch *batch, const struct payload_size *sizes, bool *ret_ok)
{
    uint32_t n_wrong = 0;

    for (uint32_t s = 0; s < batch->n_samples; s++)
        ret_ok[s] = true;
    for (int f = 0; f < PAYLOAD_FIELDS; f++) {
        const struct poise_tensor *whole = poise_batch_field(batch, payload_fields[f].name);
        const bool fits = check_whole(whole, sizes, batch->n_samples, f);
        uint64_t at = 0;
        for (uint32_t s = 0; s < batch->n_samples; s++) {
            const struct payload_origin origin = {batch->rows[s].origin_rank, batch->rows[s].origin_index, batch->step};
            const struct poise_tensor *part =
                fits ? &batch->values[s * batch->n_fields + (whole - batch->fields)] : NULL;
            ret_ok[s] &= fits && batch->rows[s].tag == payload_tag(&origin) &&
                         check_part(whole, part, s, &origin, &sizes[s], f, &at);
        }
    }
    for (uint32_t s = 0; s < batch->n_samples; s++)
        n_wrong += !ret_ok[s];
    return n_wrong;
}
