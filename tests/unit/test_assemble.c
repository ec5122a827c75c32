/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-batch out of its samples: the cases that broke others, and random ones against a naive element by element
 * one. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/assemble.h"
#include "samples.h"

#define MAX_FIELDS 6u
#define MAX_SAMPLES 8u

struct made { /* an assembled micro-batch */
    struct wire_field rules[MAX_FIELDS];
    struct wire_table table;
    uint32_t step_extent[POISE_MAX_EXTENTS];
    struct value values[MAX_SAMPLES * MAX_FIELDS];
    struct assemble_input in;
    struct poise_tensor fields[MAX_FIELDS], own[MAX_SAMPLES * MAX_FIELDS];
    uint64_t bytes;
    void *slot;
    struct poise_err err;
};

static void begin(struct made *m, uint32_t n_samples)
{
    memset(m, 0, sizeof *m);
    m->table.fields = m->rules;
    m->in = (struct assemble_input){ .table = &m->table, .step_extent = m->step_extent, .n_samples = n_samples,
                                     .values = m->values };
}

static void add_field(struct made *m, struct wire_field field)
{
    cr_assert(m->table.n_fields < MAX_FIELDS);
    m->rules[m->table.n_fields++] = field;
}

/* Only after all fields were added: it is a table. */
static void put(struct made *m, uint32_t sample, uint32_t field, struct value value)
{
    m->values[sample * m->table.n_fields + field] = value;
}

static int assemble(struct made *m)
{
    int rc = assemble_layout(&m->in, m->fields, &m->bytes, &m->err);

    if (rc < 0)
        return rc;
    cr_assert_eq(m->bytes % ASSEMBLE_ALIGN, 0);
    m->slot = aligned_alloc(64, m->bytes ? m->bytes : 64);
    memset(m->slot, 0xee, m->bytes); /* what an older step left */
    assemble_place(&m->in, m->slot, m->fields, m->own);
    assemble_fill(&m->in, m->fields, m->own, 0, m->in.n_samples);
    return 0;
}

static void make(struct made *m)
{
    cr_assert(assemble(m) == 0, "%s", m->err.text);
}

static void end(struct made *m)
{
    free(m->slot);
}

static struct poise_tensor *own_at(struct made *m, uint32_t sample, uint32_t field)
{
    return &m->own[sample * m->table.n_fields + field];
}

static void expect_shape(const struct poise_tensor *tensor, uint32_t n_dims, const int64_t *shape)
{
    char text[VALUE_SHAPE_TEXT];
    uint64_t bytes = poise_dtype_bytes(tensor->dtype);

    value_shape_format(tensor->shape, tensor->n_dims, text);
    cr_assert_eq(tensor->n_dims, n_dims, "%s: %s", tensor->name, text);
    for (uint32_t i = 0; i < n_dims; i++) {
        cr_assert_eq(tensor->shape[i], shape[i], "%s: %s", tensor->name, text);
        bytes *= (uint64_t)shape[i];
    }
    cr_assert_eq(tensor->bytes, bytes);
    cr_assert_eq(tensor->data == NULL, bytes == 0, "%s: %s", tensor->name, text);
}

Test(assemble, pixel_rows_follow_each_other_and_a_text_only_sample_has_none)
{
    static const uint16_t a[] = { 1, 2, 3, 4, 5, 6 }, b[] = { 7, 8, 9 };
    struct made m;

    begin(&m, 3);
    add_field(&m, samples_field("pixels", POISE_BF16, POISE_CONCAT, 0, 2, SHAPE(-1, 3)));
    put(&m, 0, 0, samples_value(a, 2, SHAPE(2, 3)));
    put(&m, 2, 0, samples_value(b, 2, SHAPE(1, 3)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(3, 3));
    for (uint16_t i = 0; i < 9; i++)
        cr_assert_eq(((uint16_t *)m.fields[0].data)[i], i + 1);
    expect_shape(own_at(&m, 0, 0), 2, SHAPE(2, 3));
    expect_shape(own_at(&m, 1, 0), 2, SHAPE(0, 3));
    expect_shape(own_at(&m, 2, 0), 2, SHAPE(1, 3));
    cr_assert(own_at(&m, 2, 0)->data == (char *)m.fields[0].data + 12);
    cr_assert_eq(m.fields[0].stride[0], 6);
    end(&m);
}

Test(assemble, a_field_that_nobody_has_is_there_with_its_dtype_and_no_rows)
{
    struct made m;

    begin(&m, 2);
    add_field(&m, samples_field("pixels", POISE_BF16, POISE_CONCAT, 0, 2, SHAPE(-1, 1176)));
    add_field(&m, samples_field("ids", POISE_I64, POISE_PADDED, 0, 1, SHAPE(-1)));
    add_field(&m, samples_field("note", POISE_BYTES, POISE_OPAQUE, 0, 1, SHAPE(-1)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(0, 1176));
    expect_shape(&m.fields[1], 2, SHAPE(2, 0));
    expect_shape(&m.fields[2], 1, SHAPE(0));
    cr_assert_eq(m.fields[0].dtype, POISE_BF16);
    cr_assert_str_eq(m.fields[1].name, "ids");
    cr_assert_eq(m.bytes, 0);
    end(&m);
}

Test(assemble, an_empty_micro_batch_has_empty_tensors)
{
    struct made m;

    begin(&m, 0);
    add_field(&m, samples_field("pixels", POISE_BF16, POISE_CONCAT, 0, 2, SHAPE(-1, 1176)));
    add_field(&m, samples_field("ids", POISE_I64, POISE_PADDED, 0, 1, SHAPE(-1)));
    add_field(&m, samples_field("label", POISE_F32, POISE_PADDED, 0, 0, NULL));
    m.rules[1].pad_scope = POISE_PAD_FIXED;
    m.rules[1].pad_to = 7;
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(0, 1176));
    expect_shape(&m.fields[1], 2, SHAPE(0, 7));
    expect_shape(&m.fields[2], 1, SHAPE(0));
    end(&m);
}

Test(assemble, left_padded_text_keeps_every_token_on_its_side)
{
    static const int32_t a[] = { 1, 2, 3 }, b[] = { 4 };
    static const int32_t want[] = { 1, 2, 3, -100, -100, 4 };
    struct made m;

    begin(&m, 2);
    add_field(&m, samples_field("labels", POISE_I32, POISE_PADDED, 0, 1, SHAPE(-1)));
    m.rules[0].pad_side = POISE_PAD_LEFT;
    m.rules[0].pad_bits = (uint32_t)-100;
    put(&m, 0, 0, samples_value(a, 1, SHAPE(3)));
    put(&m, 1, 0, samples_value(b, 1, SHAPE(1)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(2, 3));
    cr_assert_arr_eq(m.fields[0].data, want, sizeof want);
    expect_shape(own_at(&m, 1, 0), 1, SHAPE(1));
    cr_assert_eq(*(int32_t *)own_at(&m, 1, 0)->data, 4, "the view starts after the padding");
    end(&m);
}

Test(assemble, widths_are_the_micro_batch_s_the_step_s_or_fixed_and_a_multiple)
{
    static const uint8_t data[100] = { 9 };
    struct made m;

    begin(&m, 2);
    for (uint32_t f = 0; f < 4; f++) {
        char name[2] = { (char)('a' + f), 0 };

        add_field(&m, samples_field(name, POISE_U8, POISE_PADDED, 0, 1, SHAPE(-1)));
        strcpy(m.rules[f].axis_name[0], f == 3 ? "other" : "text");
        m.rules[f].pad_multiple = 8;
    }
    m.rules[1].pad_scope = POISE_PAD_STEP;
    m.rules[2].pad_scope = POISE_PAD_FIXED;
    m.rules[2].pad_to = 27;
    m.step_extent[0] = 3; /* "other" */
    m.step_extent[1] = 50;
    put(&m, 0, 0, samples_value(data, 1, SHAPE(5)));
    put(&m, 1, 1, samples_value(data, 1, SHAPE(17)));
    put(&m, 0, 2, samples_value(data, 1, SHAPE(27)));
    put(&m, 0, 3, samples_value(data, 1, SHAPE(2)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(2, 32)); /* as long as the longest of all fields with that axis */
    expect_shape(&m.fields[1], 2, SHAPE(2, 56));
    expect_shape(&m.fields[2], 2, SHAPE(2, 27));
    expect_shape(&m.fields[3], 2, SHAPE(2, 8));
    end(&m);
}

Test(assemble, what_is_wider_than_its_width_is_refused)
{
    static const uint8_t data[100];
    struct made m;

    begin(&m, 1);
    add_field(&m, samples_field("ids", POISE_U8, POISE_PADDED, 0, 1, SHAPE(-1)));
    m.rules[0].pad_scope = POISE_PAD_STEP;
    m.step_extent[0] = 9;
    put(&m, 0, 0, samples_value(data, 1, SHAPE(10)));
    cr_assert_eq(assemble(&m), -EINVAL);
    cr_assert(strstr(m.err.text, "ids") && strstr(m.err.text, "9 wide"), "%s", m.err.text);
    m.rules[0].pad_scope = POISE_PAD_FIXED;
    m.rules[0].pad_to = 4;
    cr_assert_eq(assemble(&m), -EINVAL);
    cr_assert_str_eq(m.err.field, "ids");
}

Test(assemble, an_absent_padded_field_is_a_row_of_padding)
{
    static const float a[] = { 1, 2 };
    static const uint32_t ones = 0x3f800000;
    struct made m;
    float *data;

    begin(&m, 2);
    add_field(&m, samples_field("box", POISE_F32, POISE_PADDED, 0, 1, SHAPE(2)));
    m.rules[0].pad_bits = ones;
    put(&m, 1, 0, samples_value(a, 1, SHAPE(2)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(2, 2));
    data = m.fields[0].data;
    cr_assert(data[0] == 1 && data[1] == 1 && data[2] == 1 && data[3] == 2);
    expect_shape(own_at(&m, 0, 0), 1, SHAPE(0));
    end(&m);
}

Test(assemble, scalars_are_stacked_and_cannot_be_concatenated)
{
    static const int64_t a = 5, c = 7;
    struct made m;

    begin(&m, 3);
    add_field(&m, samples_field("label", POISE_I64, POISE_PADDED, 0, 0, NULL));
    m.rules[0].pad_bits = (uint64_t)-1;
    put(&m, 0, 0, samples_value(&a, 0, NULL));
    put(&m, 2, 0, samples_value(&c, 0, NULL));
    make(&m);
    expect_shape(&m.fields[0], 1, SHAPE(3));
    cr_assert_arr_eq(m.fields[0].data, ((int64_t[]){ 5, -1, 7 }), 24);
    expect_shape(own_at(&m, 2, 0), 0, NULL);
    cr_assert_eq(*(int64_t *)own_at(&m, 2, 0)->data, 7);
    expect_shape(own_at(&m, 1, 0), 1, SHAPE(0));
    end(&m);
    m.rules[0].assembly = POISE_CONCAT;
    m.slot = NULL;
    cr_assert_eq(assemble(&m), -EINVAL);
}

Test(assemble, a_last_dimension_of_one_and_a_length_of_one_are_kept)
{
    static const uint8_t a[] = { 1, 2 }, b[] = { 3 };
    struct made m;

    begin(&m, 2);
    add_field(&m, samples_field("column", POISE_U8, POISE_CONCAT, 0, 2, SHAPE(-1, 1)));
    add_field(&m, samples_field("one", POISE_U8, POISE_PADDED, 0, 2, SHAPE(-1, 1)));
    put(&m, 0, 0, samples_value(a, 2, SHAPE(2, 1)));
    put(&m, 1, 0, samples_value(b, 2, SHAPE(1, 1)));
    put(&m, 0, 1, samples_value(b, 2, SHAPE(1, 1)));
    put(&m, 1, 1, samples_value(b, 2, SHAPE(1, 1)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(3, 1));
    expect_shape(&m.fields[1], 3, SHAPE(2, 1, 1));
    expect_shape(own_at(&m, 1, 0), 2, SHAPE(1, 1));
    end(&m);
}

Test(assemble, concatenation_along_a_later_axis)
{
    static const uint16_t a[] = { 1, 2, 3, 4 }, b[] = { 5, 6, 7, 8, 9, 10 };
    static const uint16_t want[] = { 1, 2, 5, 6, 7, 3, 4, 8, 9, 10 };
    struct made m;

    begin(&m, 3);
    add_field(&m, samples_field("mel", POISE_F16, POISE_CONCAT, 1, 2, SHAPE(2, -1)));
    put(&m, 0, 0, samples_value(a, 2, SHAPE(2, 2)));
    put(&m, 2, 0, samples_value(b, 2, SHAPE(2, 3)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(2, 5));
    cr_assert_arr_eq(m.fields[0].data, want, sizeof want);
    expect_shape(own_at(&m, 2, 0), 2, SHAPE(2, 3));
    cr_assert_eq(own_at(&m, 2, 0)->stride[0], 10);
    cr_assert_eq(*(uint16_t *)own_at(&m, 2, 0)->data, 5);
    expect_shape(own_at(&m, 1, 0), 2, SHAPE(2, 0));
    end(&m);
}

Test(assemble, concatenated_samples_must_agree_on_their_other_axes)
{
    static const uint8_t data[16];
    struct made m;

    begin(&m, 3);
    add_field(&m, samples_field("maps", POISE_U8, POISE_CONCAT, 0, 2, SHAPE(-1, -1)));
    put(&m, 0, 0, samples_value(data, 2, SHAPE(0, 9))); /* no row: nothing to disagree about */
    put(&m, 1, 0, samples_value(data, 2, SHAPE(2, 3)));
    put(&m, 2, 0, samples_value(data, 2, SHAPE(2, 4)));
    cr_assert_eq(assemble(&m), -EINVAL);
    cr_assert(strstr(m.err.text, "maps: row 2 has 4 along axis 1, others 3"), "%s", m.err.text);
    put(&m, 2, 0, samples_value(data, 2, SHAPE(1, 3)));
    make(&m);
    expect_shape(&m.fields[0], 2, SHAPE(3, 3));
    end(&m);
}

Test(assemble, strings_follow_their_samples_aligned_and_with_clean_gaps)
{
    struct made m;

    begin(&m, 3);
    add_field(&m, samples_field("name", POISE_BYTES, POISE_OPAQUE, 0, 1, SHAPE(-1)));
    put(&m, 0, 0, samples_value("seventeen letters", 1, SHAPE(17)));
    put(&m, 1, 0, samples_value(NULL, 1, SHAPE(0)));
    put(&m, 2, 0, samples_value("two", 1, SHAPE(3)));
    make(&m);
    expect_shape(&m.fields[0], 1, SHAPE(48));
    expect_shape(own_at(&m, 0, 0), 1, SHAPE(17));
    expect_shape(own_at(&m, 1, 0), 1, SHAPE(0));
    cr_assert(memcmp(own_at(&m, 2, 0)->data, "two", 3) == 0);
    cr_assert(own_at(&m, 2, 0)->data == (char *)m.fields[0].data + 32);
    cr_assert_eq(((char *)m.fields[0].data)[17], 0);
    cr_assert_eq(((char *)m.fields[0].data)[47], 0);
    end(&m);
}

Test(assemble, sizes_that_do_not_fit_are_an_error)
{
    struct made m;

    begin(&m, 2);
    add_field(&m, samples_field("big", POISE_F64, POISE_CONCAT, 0, 1, SHAPE(-1)));
    put(&m, 0, 0, samples_value(NULL, 1, SHAPE(INT64_MAX / 8)));
    put(&m, 1, 0, samples_value(NULL, 1, SHAPE(INT64_MAX / 8)));
    cr_assert_eq(assemble(&m), -EOVERFLOW);
    cr_assert(strstr(m.err.text, "big"), "%s", m.err.text);
    put(&m, 1, 0, samples_value(NULL, 1, SHAPE(INT64_MAX)));
    cr_assert_eq(assemble(&m), -EINVAL);
    put(&m, 1, 0, samples_value(NULL, 1, SHAPE(-5)));
    cr_assert_eq(assemble(&m), -EINVAL);
    m.rules[0] = samples_field("big", POISE_F64, POISE_PADDED, 0, 1, SHAPE(-1));
    put(&m, 0, 0, samples_value(NULL, 1, SHAPE(INT64_MAX / 16 + 1)));
    m.values[1].present = false;
    cr_assert_eq(assemble(&m), -EOVERFLOW);
    m.rules[0].pad_multiple = UINT32_MAX;
    put(&m, 0, 0, samples_value(NULL, 1, SHAPE(INT64_MAX / 8)));
    cr_assert_eq(assemble(&m), -EOVERFLOW);
}

/* ------------------------------------------------------------------------------------------ against a naive one */

/* Where element `index` (C order over own) lies in the assembled field, in elements. */
static uint64_t naive_at(const struct wire_field *field, const struct value *own, const struct poise_tensor *whole,
                         uint32_t row, uint64_t before, uint64_t index)
{
    uint64_t at = 0, scale = 1;
    int64_t place[POISE_MAX_DIMS];

    for (uint32_t i = own->n_dims; i-- > 0;) {
        place[i] = (int64_t)(index % (uint64_t)own->shape[i]);
        index /= (uint64_t)own->shape[i];
    }
    for (uint32_t a = whole->n_dims; a-- > 0;) {
        int64_t here;

        if (field->assembly == POISE_CONCAT) {
            here = place[a] + (a == field->axis ? (int64_t)before : 0);
        } else if (a == field->axis) {
            here = row;
        } else {
            uint32_t i = a > field->axis ? a - 1 : a;

            here = place[i] + (field->pad_side == POISE_PAD_LEFT ? whole->shape[a] - own->shape[i] : 0);
        }
        at += (uint64_t)here * scale;
        scale *= (uint64_t)whole->shape[a];
    }
    return at;
}

static void check_field(struct made *m, uint32_t f)
{
    const struct wire_field *field = &m->rules[f];
    const struct poise_tensor *whole = &m->fields[f];
    uint64_t element = poise_dtype_bytes(field->dtype), before = 0, bytes;
    unsigned char *want = malloc(whole->bytes + 16), pad[16] = { 0 };

    memcpy(pad, &field->pad_bits, 8); /* the machines that we test on are little endian */
    for (uint64_t at = 0; at < whole->bytes; at += element)
        memcpy(want + at, pad, element);
    for (uint32_t s = 0; s < m->in.n_samples; s++) {
        const struct value *value = &m->values[s * m->table.n_fields + f];
        const struct poise_tensor *own = own_at(m, s, f);

        if (!value->present) {
            cr_assert(own->data == NULL && own->bytes == 0);
            continue;
        }
        cr_assert_eq(value_bytes(value, field->dtype, &bytes), 0);
        cr_assert_eq(own->bytes, bytes);
        for (uint64_t i = 0; i < bytes / element; i++) {
            uint64_t at = naive_at(field, value, whole, s, before, i), rest = i;
            const unsigned char *seen = own->data;

            memcpy(want + at * element, (const char *)value->data + i * element, element);
            for (uint32_t k = own->n_dims; k-- > 0; rest /= (uint64_t)own->shape[k])
                seen += (int64_t)(rest % (uint64_t)own->shape[k]) * own->stride[k];
            cr_assert(memcmp(seen, (const char *)value->data + i * element, element) == 0, "the sample's own view");
        }
        if (field->assembly == POISE_CONCAT)
            before += (uint64_t)value->shape[field->axis];
    }
    cr_assert(whole->bytes == 0 || memcmp(want, whole->data, whole->bytes) == 0, "%s", field->name);
    free(want);
}

static struct wire_field random_field(uint64_t *seed, uint32_t f)
{
    char name[8] = { 'f', (char)('0' + f), 0 };
    int64_t shape[4];
    uint32_t n_dims = (uint32_t)samples_below(seed, 5), padded = samples_below(seed, 3) > 0 || n_dims == 0;
    struct wire_field field;

    for (uint32_t i = 0; i < n_dims; i++)
        shape[i] = samples_below(seed, 2) ? -1 : (int64_t)samples_below(seed, 4) + (samples_below(seed, 9) > 0);
    field = samples_field(name, 1 + (uint32_t)samples_below(seed, POISE_N_DTYPES - 1),
                          padded ? POISE_PADDED : POISE_CONCAT, (uint32_t)samples_below(seed, n_dims + padded), n_dims,
                          shape);
    for (uint32_t i = 0; i < n_dims && !padded; i++) /* all samples agree on the others: fixed */
        if (i != field.axis && field.shape[i] < 0)
            field.shape[i] = 1 + (int64_t)samples_below(seed, 3);
    for (uint32_t i = 0; i < n_dims; i++)
        if (field.axis_name[i][0])
            field.axis_name[i][1] = (char)('0' + samples_below(seed, POISE_MAX_EXTENTS));
    field.pad_side = (uint32_t)samples_below(seed, 2);
    field.pad_scope = (uint32_t)samples_below(seed, 3);
    field.pad_to = 6;
    field.pad_multiple = 1 + (uint32_t)samples_below(seed, 4);
    field.pad_bits = samples_below(seed, 3) ? samples_random(seed) : 0;
    return field;
}

static struct value random_value(uint64_t *seed, const struct wire_field *field, unsigned char *data, uint64_t *used)
{
    struct value value = { .present = samples_below(seed, 6) > 0, .n_dims = field->n_dims, .data = data + *used };
    uint64_t bytes;

    for (uint32_t i = 0; i < field->n_dims; i++)
        value.shape[i] = field->shape[i] >= 0 ? field->shape[i] : (int64_t)samples_below(seed, 6);
    cr_assert_eq(value_bytes(&value, field->dtype, &bytes), 0);
    *used += bytes;
    return value;
}

Test(assemble, random_fields_equal_a_naive_assembly)
{
    static unsigned char data[MAX_SAMPLES * MAX_FIELDS * 6 * 6 * 6 * 6 * 16];
    uint64_t seed = samples_seed("assemble");

    for (uint64_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)samples_random(&seed);
    for (int round = 0; round < 1500; round++) {
        struct made m;
        uint64_t used = 0;

        begin(&m, (uint32_t)samples_below(&seed, MAX_SAMPLES + 1));
        for (uint32_t f = 0, n = 1 + (uint32_t)samples_below(&seed, MAX_FIELDS); f < n; f++)
            add_field(&m, random_field(&seed, f));
        for (uint32_t e = 0; e < POISE_MAX_EXTENTS; e++)
            m.step_extent[e] = 5 + (uint32_t)samples_below(&seed, 4);
        for (uint32_t s = 0; s < m.in.n_samples; s++)
            for (uint32_t f = 0; f < m.table.n_fields; f++)
                put(&m, s, f, random_value(&seed, &m.rules[f], data, &used));
        make(&m);
        for (uint32_t f = 0; f < m.table.n_fields; f++)
            check_field(&m, f);
        end(&m);
    }
}

Test(assemble, ranges_of_samples_may_be_filled_in_any_order)
{
    static const uint32_t a[] = { 1, 2, 3 }, b[] = { 4 }, c[] = { 5, 6 };
    static const uint32_t want[] = { 1, 2, 3, 4, 9, 9, 5, 6, 9 };
    struct made m;

    begin(&m, 3);
    add_field(&m, samples_field("ids", POISE_U32, POISE_PADDED, 0, 1, SHAPE(-1)));
    m.rules[0].pad_bits = 9;
    put(&m, 0, 0, samples_value(a, 1, SHAPE(3)));
    put(&m, 1, 0, samples_value(b, 1, SHAPE(1)));
    put(&m, 2, 0, samples_value(c, 1, SHAPE(2)));
    cr_assert_eq(assemble_layout(&m.in, m.fields, &m.bytes, NULL), 0);
    m.slot = aligned_alloc(64, m.bytes);
    assemble_place(&m.in, m.slot, m.fields, m.own);
    assemble_fill(&m.in, m.fields, m.own, 2, 100);
    assemble_fill(&m.in, m.fields, m.own, 0, 2);
    cr_assert_arr_eq(m.fields[0].data, want, sizeof want);
    end(&m);
}
