/* SPDX-License-Identifier: Apache-2.0 */
/* A micro-batch that is padded here and whose bytes come in random pieces is the one that is copied at once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/assemble.h"
#include "client/scatter.h"
#include "samples.h"

#define N_FIELDS  7u
#define N_SAMPLES 5u

struct made {
    struct wire_field rules[N_FIELDS];
    struct wire_table table;
    uint32_t step_extent[POISE_MAX_EXTENTS];
    struct value values[N_SAMPLES * N_FIELDS];
    struct assemble_input in;
    struct poise_tensor fields[N_FIELDS], own[N_SAMPLES * N_FIELDS];
    uint64_t n_bytes;
    unsigned char *copied, *pieced;
};

static uint64_t seed;

static void declare(struct made *m)
{
    m->rules[0] = samples_field("rows", POISE_F32, POISE_CONCAT, 0, 2, SHAPE(-1, 3));
    m->rules[1] = samples_field("columns", POISE_BF16, POISE_CONCAT, 1, 3, SHAPE(2, -1, 5));
    m->rules[2] = samples_field("ids", POISE_I64, POISE_PADDED, 0, 1, SHAPE(-1));
    m->rules[2].pad_side = POISE_PAD_LEFT;
    m->rules[2].pad_bits = UINT64_MAX;
    m->rules[3] = samples_field("image", POISE_U8, POISE_PADDED, 1, 3, SHAPE(3, -1, -1));
    m->rules[3].pad_bits = 0x7f;
    m->rules[4] = samples_field("text", POISE_BYTES, POISE_OPAQUE, 0, 1, SHAPE(-1));
    m->rules[5] = samples_field("score", POISE_C128, POISE_PADDED, 0, 0, SHAPE(0));
    m->rules[6] = samples_field("ones", POISE_F16, POISE_CONCAT, 1, 2, SHAPE(1, -1)); /* of 1: any stride */
    m->table = (struct wire_table){.n_fields = N_FIELDS, .fields = m->rules};
}

/* Random extents, now and then 0 or the field not there, and random bytes. */
static void fill(struct made *m)
{
    for (uint32_t s = 0; s < N_SAMPLES; s++)
        for (uint32_t f = 0; f < N_FIELDS; f++) {
            struct value *value = &m->values[s * N_FIELDS + f];
            uint64_t n;
            *value = (struct value){.present = samples_below(&seed, 6) != 0, .n_dims = m->rules[f].n_dims};
            if (!value->present)
                continue;
            for (uint32_t d = 0; d < value->n_dims; d++)
                value->shape[d] = m->rules[f].shape[d] >= 0 ? m->rules[f].shape[d] : (int64_t)samples_below(&seed, 9);
            cr_assert_eq(value_bytes(value, m->rules[f].dtype, &n), 0);
            unsigned char *data = malloc(n + 1);
            for (uint64_t i = 0; i < n; i++)
                data[i] = (unsigned char)samples_random(&seed);
            value->data = data;
        }
}

/* The bytes of a sample as they travel. */
static unsigned char *flatten(const struct made *m, uint32_t s, uint64_t *ret_n)
{
    unsigned char *all = malloc(1 << 20);
    uint64_t n = 0, bytes;

    for (uint32_t f = 0; f < N_FIELDS; f++) {
        const struct value *value = &m->values[s * N_FIELDS + f];
        if (!value->present || value_bytes(value, m->rules[f].dtype, &bytes) < 0)
            continue;
        memcpy(all + n, value->data, bytes);
        n += bytes;
    }
    *ret_n = n;
    return all;
}

static void bring(struct made *m, uint32_t s)
{
    struct scatter at;
    uint64_t n, done = 0;
    unsigned char *all = flatten(m, s, &n);

    while (done < n) {
        uint64_t piece = 1 + samples_below(&seed, n - done);
        if (samples_below(&seed, 2)) /* as another ask, which begins anywhere */
            scatter_begin(&at, &m->table, m->values + s * N_FIELDS, m->own + s * N_FIELDS, done);
        else if (done == 0)
            scatter_begin(&at, &m->table, m->values + s * N_FIELDS, m->own + s * N_FIELDS, 0);
        cr_assert_eq(scatter_put(&at, all + done, piece), piece);
        done += piece;
    }
    scatter_begin(&at, &m->table, m->values + s * N_FIELDS, m->own + s * N_FIELDS, n);
    cr_assert_eq(scatter_put(&at, "beyond", 6), 0, "a sample has an end");
    free(all);
}

Test(scatter, pieces_make_the_same_micro_batch_as_a_copy)
{
    uint32_t n_made = 0;

    seed = samples_seed("pieces");
    for (uint32_t turn = 0; turn < 2000; turn++) {
        struct made m = {.step_extent = {16, 16, 16, 16}};
        struct poise_err err;
        declare(&m);
        fill(&m);
        m.in = (struct assemble_input){
            .table = &m.table, .step_extent = m.step_extent, .n_samples = N_SAMPLES, .values = m.values};
        if (assemble_layout(&m.in, m.fields, &m.n_bytes, &err) == 0) {
            n_made++;
            m.copied = aligned_alloc(64, m.n_bytes + 64);
            m.pieced = aligned_alloc(64, m.n_bytes + 64);
            memset(m.copied, 0xee, m.n_bytes); /* what an older step left */
            memset(m.pieced, 0xdd, m.n_bytes);
            assemble_place(&m.in, m.copied, m.fields, m.own);
            assemble_fill(&m.in, m.fields, m.own, 0, N_SAMPLES);
            assemble_place(&m.in, m.pieced, m.fields, m.own);
            if (turn % 2)
                assemble_pad(&m.in, m.fields, m.own, 0, N_SAMPLES);
            for (uint32_t s = N_SAMPLES; s-- > 0;)
                bring(&m, s);
            if (turn % 2 == 0)
                assemble_pad(&m.in, m.fields, m.own, 0, N_SAMPLES); /* the order does not matter */
            for (uint32_t f = 0; f < N_FIELDS; f++)
                cr_assert(m.fields[f].bytes == 0 ||
                              memcmp(m.fields[f].data, m.copied + ((unsigned char *)m.fields[f].data - m.pieced),
                                     m.fields[f].bytes) == 0,
                          "turn %u: %s differs", turn, m.rules[f].name);
            free(m.copied);
            free(m.pieced);
        }
        for (uint32_t i = 0; i < N_SAMPLES * N_FIELDS; i++)
            free((void *)(uintptr_t)m.values[i].data);
    }
    cr_assert_gt(n_made, 1900, "%u micro-batches were made", n_made);
}
