/* SPDX-License-Identifier: Apache-2.0 */
/* The loader of ranks.h: shapes and bytes follow from (step, rank, index), so whoever receives a sample can check it
 * all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define N_FIELDS      6
#define PIXEL_COLUMNS 8
#define IDS_PAD       0xffffff9cu /* -100 */

static const struct poise_field fields[N_FIELDS] = {
    /* text-only ranks declare from here ... */
    {.name = "ids",
     .dtype = POISE_I32,
     .assembly = POISE_PADDED,
     .n_dims = 1,
     .shape = {-1},
     .axis_name = {"seq"},
     .pad_side = POISE_PAD_LEFT,
     .pad_multiple = 8,
     .pad_bits = IDS_PAD},
    {.name = "mask",
     .dtype = POISE_U8,
     .assembly = POISE_PADDED,
     .n_dims = 1,
     .shape = {-1},
     .axis_name = {"seq"},
     .pad_multiple = 8},
    {.name = "caption", .dtype = POISE_BYTES, .assembly = POISE_OPAQUE, .n_dims = 1, .shape = {-1}},
    {.name = "score", .dtype = POISE_F32, .assembly = POISE_PADDED, .n_dims = 0},
    /* ... to here */
    {.name = "grid", .dtype = POISE_I64, .assembly = POISE_CONCAT, .n_dims = 2, .shape = {-1, 3}},
    {.name = "pixels",
     .dtype = POISE_BF16,
     .assembly = POISE_CONCAT,
     .n_dims = 2,
     .shape = {-1, PIXEL_COLUMNS},
     .rows_of = "grid"},
};
#define N_TEXT_FIELDS 4

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

static uint64_t key(uint64_t step, uint32_t rank, uint32_t index)
{
    return mix(step * 1000003 + rank * 1009 + index + 1);
}

uint32_t load_uneven(uint64_t step, uint32_t rank)
{
    return (uint32_t)(mix(step * 31 + rank * 7 + 5) % 8);
}

struct shape {
    uint32_t n_dims;
    int64_t extent[2];
};

/* Image `i` of a sample is 1 x 2a x 2b patches. */
static int64_t grid_number(uint64_t k, int64_t image, int64_t column)
{
    return column == 0 ? 1 : 2 * (1 + (int64_t)(mix(k + (uint64_t)(image * 3 + column)) % 3));
}

static int64_t n_images(uint64_t k, bool text_only)
{
    return text_only ? 0 : (int64_t)(k % 3);
}

static int64_t n_patches(uint64_t k, bool text_only)
{
    int64_t total = 0;

    for (int64_t i = 0; i < n_images(k, text_only); i++)
        total += grid_number(k, i, 1) * grid_number(k, i, 2);
    return total;
}

static int64_t n_text(uint64_t k)
{
    return 1 + (int64_t)(mix(k + 77) % 50);
}

static struct shape shape_of(const char *name, uint64_t k, bool text_only)
{
    if (strcmp(name, "grid") == 0)
        return (struct shape){2, {n_images(k, text_only), 3}};
    if (strcmp(name, "pixels") == 0)
        return (struct shape){2, {n_patches(k, text_only), PIXEL_COLUMNS}};
    if (strcmp(name, "caption") == 0)
        return (struct shape){1, {(int64_t)(mix(k + 5) % 20)}};
    if (strcmp(name, "score") == 0)
        return (struct shape){0, {0}};
    return (struct shape){1, {n_text(k)}};
}

static size_t count_of(struct shape s)
{
    return (size_t)(s.n_dims == 0 ? 1 : s.n_dims == 1 ? s.extent[0] : s.extent[0] * s.extent[1]);
}

/* The bytes of element `i` of a field. */
static void element(const char *name, uint64_t k, size_t i, unsigned char *to, uint32_t size)
{
    uint64_t bits = mix(k ^ ((uint64_t)(unsigned char)name[0] << 32 | (uint64_t)(unsigned char)name[1] << 40 | i));

    if (strcmp(name, "grid") == 0)
        bits = (uint64_t)grid_number(k, (int64_t)(i / 3), (int64_t)(i % 3));
    memcpy(to, &bits, size);
}

void load_declare(struct poise *p, uint32_t flags)
{
    struct poise_err err = {0};
    int rc = poise_declare(p, fields, flags & LOAD_TEXT_ONLY ? N_TEXT_FIELDS : N_FIELDS, sizeof *fields, &err);

    EXPECT(rc == 0, "declare: %d %s", rc, err.text);
}

/* ----------------------------------------------------------------------------------------------------------- submit */

struct one {
    struct poise_value values[N_FIELDS];
    int64_t length[2];
};

static void make_value(struct poise *p, const struct poise_field *field, uint64_t k, uint32_t flags,
                       struct poise_value *to)
{
    struct shape shape = shape_of(field->name, k, flags & LOAD_TEXT_ONLY);
    uint32_t size = poise_dtype_bytes(field->dtype);
    size_t n = count_of(shape);
    struct poise_err err = {0};
    void *data = NULL;

    if (flags & LOAD_IN_ARENA && n)
        EXPECT(poise_alloc(p, n * size, -1, &data, &err) == 0, "alloc: %s", err.text);
    else if (n)
        data = malloc(n * size);
    for (size_t i = 0; i < n; i++)
        element(field->name, k, i, (unsigned char *)data + i * size, size);
    *to = (struct poise_value){
        .field = field->name, .data = data, .n_dims = shape.n_dims, .shape = {shape.extent[0], shape.extent[1]}};
}

int load_submit(struct poise *p, uint64_t step, uint32_t rank, uint32_t n, uint32_t flags, struct poise_err *err)
{
    uint32_t n_fields = flags & LOAD_TEXT_ONLY ? N_TEXT_FIELDS : N_FIELDS;
    struct poise_sample *samples = calloc(n + 1, sizeof *samples);
    struct one *ones = calloc(n + 1, sizeof *ones);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t k = key(step, rank, i);
        for (uint32_t f = 0; f < n_fields; f++)
            make_value(p, &fields[f], k, flags, &ones[i].values[f]);
        ones[i].length[0] = n_patches(k, flags & LOAD_TEXT_ONLY);
        ones[i].length[1] = n_text(k);
        samples[i] = (struct poise_sample){.tag = k,
                                           .length = ones[i].length,
                                           .loss_tokens = n_text(k),
                                           .micro_batch = POISE_DEFAULT_MICRO_BATCH,
                                           .n_values = n_fields,
                                           .values = ones[i].values,
                                           .value_size = sizeof ones[i].values[0]};
    }
    int rc = poise_submit(p, step, samples, n, sizeof *samples, -1, err);
    for (uint32_t i = 0; i < n && !(flags & LOAD_IN_ARENA); i++) {
        for (uint32_t f = 0; f < n_fields; f++)
            free((void *)(uintptr_t)ones[i].values[f].data);
    }
    free(ones);
    free(samples);
    return rc;
}

/* ------------------------------------------------------------------------------------------------------------ check */

static void check_tensor(const struct poise_tensor *t, uint64_t k, bool text_only)
{
    struct shape shape = shape_of(t->name, k, text_only);
    uint32_t size = poise_dtype_bytes(t->dtype);
    size_t n = count_of(shape);

    EXPECT(t->bytes == n * size, "%s has %zu bytes, not %zu", t->name, (size_t)t->bytes, n * size);
    if (n == 0)
        return;
    EXPECT(t->n_dims == shape.n_dims, "%s has %u dims", t->name, t->n_dims);
    for (uint32_t d = 0; d < shape.n_dims; d++)
        EXPECT(t->shape[d] == shape.extent[d], "%s has shape %d at %u", t->name, (int)t->shape[d], d);
    for (size_t i = 0; i < n; i++) {
        size_t row = shape.n_dims == 2 ? i / (size_t)shape.extent[1] : i,
               column = shape.n_dims == 2 ? i % (size_t)shape.extent[1] : 0;
        size_t at = shape.n_dims == 0
                        ? 0
                        : row * (size_t)t->stride[0] + (shape.n_dims == 2 ? column * (size_t)t->stride[1] : 0);
        unsigned char want[8];
        element(t->name, k, i, want, size);
        EXPECT(memcmp((unsigned char *)t->data + at, want, size) == 0, "%s differs at element %zu", t->name, i);
    }
}

/* Left padding of ids: all of it, and nothing else, is the pad value. */
static void check_padding(const struct poise_batch *batch)
{
    const struct poise_tensor *ids = poise_batch_field(batch, "ids");

    if (!ids || batch->n_samples == 0)
        return;
    EXPECT(ids->n_dims == 2 && ids->shape[0] == batch->n_samples && ids->shape[1] % 8 == 0, "ids is [%d, %d]",
           (int)ids->shape[0], (int)ids->shape[1]);
    for (uint32_t s = 0; s < batch->n_samples; s++) {
        const struct poise_row *row = &batch->rows[s];
        int64_t n = n_text(key(batch->step, row->origin_rank, row->origin_index));
        for (int64_t i = 0; i < ids->shape[1] - n; i++) {
            uint32_t got;
            memcpy(&got, (unsigned char *)ids->data + s * ids->stride[0] + i * ids->stride[1], 4);
            EXPECT(got == IDS_PAD, "ids of row %u is not padded on the left", s);
        }
    }
}

void load_check(const struct poise_batch *batch, struct board *board)
{
    const struct poise_tensor *pixels = poise_batch_field(batch, "pixels");

    for (uint32_t s = 0; s < batch->n_samples; s++) {
        const struct poise_row *row = &batch->rows[s];
        uint64_t k = key(batch->step, row->origin_rank, row->origin_index);
        bool text_only = pixels == NULL ||
                         batch->values[s * batch->n_fields + (uint32_t)(pixels - batch->fields)].bytes == 0;

        EXPECT(row->tag == k, "tag of rank %u sample %u", row->origin_rank, row->origin_index);
        EXPECT(row->loss_tokens == (uint64_t)n_text(k), "loss tokens of rank %u sample %u", row->origin_rank,
               row->origin_index);
        for (uint32_t f = 0; f < batch->n_fields; f++)
            check_tensor(&batch->values[s * batch->n_fields + f], k, text_only);
        if (!board)
            continue;
        atomic_fetch_add(&board->got[batch->step][row->origin_rank][row->origin_index], 1);
        atomic_fetch_add(&board->weight_ppb[batch->step],
                         (uint64_t)llround(1e9 * row->weight_step * (double)row->loss_tokens));
        atomic_fetch_add(&board->arrival_ppb[batch->step],
                         (uint64_t)llround(1e9 * row->weight_arrival * (double)row->loss_tokens));
    }
    check_padding(batch);
}

uint32_t load_read(struct poise *p, uint32_t iterator, uint64_t step, struct board *board)
{
    uint32_t n_samples = 0;

    for (bool last = false; !last;) {
        const struct poise_batch *batch = NULL;
        struct poise_err err = {0};
        int rc = poise_next(p, iterator, -1, &batch, &err);
        EXPECT(rc == 0, "next of step %d: %d %s", (int)step, rc, err.text);
        EXPECT(batch->step == step, "step %d instead of %d", (int)batch->step, (int)step);
        load_check(batch, board);
        n_samples += batch->n_samples;
        last = batch->micro_batch + 1 == batch->n_micro_batches;
        poise_release(batch);
    }
    return n_samples;
}
