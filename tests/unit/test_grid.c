/* SPDX-License-Identifier: Apache-2.0 */
/* Rows tied to a grid, and the hashes that show that a sample arrived. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/assemble.h"
#include "client/grid.h"
#include "client/verify.h"
#include "samples.h"

static struct wire_field pixels(void)
{
    struct wire_field field = samples_field("pixel_values", POISE_BF16, POISE_CONCAT, 0, 2, SHAPE(-1, 1176));

    strcpy(field.rows_of, "image_grid_thw");
    return field;
}

static struct wire_field grid_of(uint32_t dtype)
{
    return samples_field("image_grid_thw", dtype, POISE_CONCAT, 0, 2, SHAPE(-1, 3));
}

Test(grid, rows_that_do_not_match_are_named_with_both_numbers)
{
    static const int64_t thw[] = { 1, 34, 46 };
    struct wire_field field = pixels(), grid = grid_of(POISE_I64);
    struct value value = samples_value(NULL, 2, SHAPE(1560, 1176)), says = samples_value(thw, 2, SHAPE(1, 3));
    struct value absent = { 0 };
    struct poise_err err;

    cr_assert_eq(grid_check(&field, &value, &grid, &says, 2, 5, &err), -EINVAL);
    cr_assert_str_eq(err.text, "pixel_values has 1,560 rows, image_grid_thw says 1,564");
    cr_assert(err.rank == 2 && err.sample == 5 && strcmp(err.field, "pixel_values") == 0);
    value.shape[0] = 1564;
    cr_assert_eq(grid_check(&field, &value, &grid, &says, 2, 5, &err), 0);
    cr_assert_eq(grid_check(&field, &value, &grid, &absent, 2, 5, &err), -EINVAL);
    cr_assert_str_eq(err.text, "pixel_values has 1,564 rows, image_grid_thw says 0");
    cr_assert_eq(grid_check(&field, &absent, &grid, &says, 2, 5, &err), -EINVAL);
    cr_assert_eq(grid_check(&field, &absent, &grid, &absent, 2, 5, &err), 0, "a text-only sample");
}

Test(grid, several_images_and_divisors)
{
    static const int32_t thw[] = { 1, 4, 6, 2, 2, 2 };
    struct wire_field field = pixels(), grid = grid_of(POISE_I32);
    struct value says = samples_value(thw, 2, SHAPE(2, 3));
    struct poise_err err;
    uint64_t rows;

    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), 0);
    cr_assert_eq(rows, 24 + 8);
    field.n_divisors = 3;
    field.divisor[1] = field.divisor[2] = 2; /* divisor[0] is 0: taken as 1 */
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), 0);
    cr_assert_eq(rows, 6 + 2);
    field.divisor[2] = 4;
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
    cr_assert_str_eq(err.text, "image_grid_thw, row 0, column 2 is 6, which 4 does not divide");
    cr_assert_str_eq(err.field, "image_grid_thw");
}

Test(grid, every_integer_type_at_any_address)
{
    static const uint32_t dtypes[] = { POISE_U8, POISE_I8, POISE_U16, POISE_I16, POISE_U32, POISE_I32, POISE_U64,
                                       POISE_I64 };

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        unsigned char data[3 * 8 + 1] = { 0 };
        struct wire_field field = pixels(), grid = grid_of(dtypes[i]);
        struct value says = samples_value(data + 1, 2, SHAPE(1, 3));
        struct poise_err err;
        uint64_t rows, n = poise_dtype_bytes(dtypes[i]);

        data[1] = 2;
        data[1 + n] = 3;
        data[1 + 2 * n] = 100;
        cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), 0);
        cr_assert_eq(rows, 600);
        memset(data + 1, 0xff, n); /* -1, or the largest */
        if (dtypes[i] % 2 == 1 || dtypes[i] == POISE_U64)
            cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
    }
}

Test(grid, what_is_no_grid_and_what_overflows)
{
    static const uint64_t huge[] = { 1ull << 40, 1ull << 40, 1, 1ull << 62, 1, 1, 1ull << 62, 1, 1 };
    struct wire_field field = pixels(), grid = grid_of(POISE_U64);
    struct value says = samples_value(huge, 2, SHAPE(1, 3));
    struct poise_err err;
    uint64_t rows;

    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
    says = samples_value(huge + 3, 2, SHAPE(2, 3));
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL, "the sum");
    says = samples_value(huge, 2, SHAPE(INT64_MAX, 0));
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
    says = samples_value(huge, 1, SHAPE(3));
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
    says = samples_value(NULL, 2, SHAPE(1, 3));
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
    grid.dtype = POISE_F32;
    says = samples_value(huge, 2, SHAPE(1, 3));
    cr_assert_eq(grid_rows(&field, &grid, &says, 0, 0, &rows, &err), -EINVAL);
}

/* ------------------------------------------------------------------------------------------------------------- verify
 * */

Test(verify, the_first_steps_and_then_one_in_so_many)
{
    uint32_t n = 0;

    for (uint64_t step = 1000; step < 1520; step++)
        n += verify_wanted(step, 1000, 20, 100);
    cr_assert_eq(n, 20 + 5);
    cr_assert(verify_wanted(1019, 1000, 20, 100) && !verify_wanted(1020, 1000, 20, 100));
    cr_assert(!verify_wanted(1000, 1000, 0, POISE_NONE) && !verify_wanted(1000, 1000, 0, 0));
    cr_assert(!verify_wanted(999, 1000, 20, 100));
    cr_assert(verify_wanted(7, 0, 0, 1));
}

static uint64_t hash_of(struct wire_table *table, struct value *values)
{
    return verify_sample(table, values);
}

Test(verify, a_changed_bit_a_moved_field_and_another_shape_are_seen)
{
    unsigned char a[64] = { 1 }, b[64] = { 2 };
    struct wire_field rules[] = { samples_field("a", POISE_U8, POISE_CONCAT, 0, 2, SHAPE(-1, -1)),
                                  samples_field("b", POISE_U8, POISE_CONCAT, 0, 2, SHAPE(-1, -1)) };
    struct wire_field swapped[] = { rules[1], rules[0] };
    struct wire_table table = { 2, rules }, other = { 2, swapped };
    struct value values[] = { samples_value(a, 2, SHAPE(8, 8)), samples_value(b, 2, SHAPE(8, 8)) };
    struct value there[] = { values[1], values[0] };
    uint64_t hash = hash_of(&table, values);

    cr_assert_eq(hash_of(&other, there), hash, "tables of other orders");
    cr_assert_neq(hash_of(&table, there), hash, "fields that changed places");
    a[63] ^= 4;
    cr_assert_neq(hash_of(&table, values), hash);
    a[63] ^= 4;
    values[0].shape[0] = 16;
    values[0].shape[1] = 4;
    cr_assert_neq(hash_of(&table, values), hash);
    values[0] = (struct value){ 0 };
    cr_assert_neq(hash_of(&table, values), hash);
    values[0] = samples_value(NULL, 2, SHAPE(0, 8));
    cr_assert_neq(hash_of(&table, values), hash);
    values[0] = values[1] = (struct value){ 0 };
    cr_assert_neq(hash_of(&table, values), 0);
}

Test(verify, what_is_delivered_hashes_like_what_was_sent)
{
    static unsigned char data[3 * 4096];
    uint64_t seed = samples_seed("verify");
    struct wire_field rules[] = { samples_field("rows", POISE_BF16, POISE_CONCAT, 0, 2, SHAPE(-1, 3)),
                                  samples_field("columns", POISE_U8, POISE_CONCAT, 1, 2, SHAPE(4, -1)),
                                  samples_field("ids", POISE_I32, POISE_PADDED, 0, 1, SHAPE(-1)),
                                  samples_field("box", POISE_F32, POISE_PADDED, 1, 3, SHAPE(-1, 2, -1)),
                                  samples_field("name", POISE_BYTES, POISE_OPAQUE, 0, 1, SHAPE(-1)),
                                  samples_field("flag", POISE_BOOL, POISE_PADDED, 0, 0, NULL) };
    struct wire_table table = { 6, rules };
    uint32_t step_extent[POISE_MAX_EXTENTS] = { 0 };
    struct value values[3 * 6];
    struct assemble_input in = { &table, step_extent, 3, values };
    struct poise_tensor fields[6], own[3 * 6];
    uint64_t bytes;
    void *slot;

    rules[2].pad_side = POISE_PAD_LEFT;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)samples_random(&seed);
    for (int64_t s = 0; s < 3; s++) {
        values[s * 6 + 0] = samples_value(data + s, 2, SHAPE(s * 7, 3));
        values[s * 6 + 1] = samples_value(data + 50 + s, 2, SHAPE(4, 5 - s));
        values[s * 6 + 2] = samples_value(data + 99 + s, 1, SHAPE(s + 1));
        values[s * 6 + 3] = samples_value(data + 200 + s, 3, SHAPE(s + 1, 2, 5 - s));
        values[s * 6 + 4] = samples_value(data + 300, 1, SHAPE(s * 1000));
        values[s * 6 + 5] = samples_value(data + 400 + s, 0, NULL);
    }
    values[6 + 3].present = false;
    cr_assert_eq(assemble_layout(&in, fields, &bytes, NULL), 0);
    slot = aligned_alloc(64, bytes);
    assemble_place(&in, slot, fields, own);
    assemble_fill(&in, fields, own, 0, 3);
    for (int s = 0; s < 3; s++) {
        uint64_t sent = verify_sample(&table, values + s * 6);

        cr_assert_eq(verify_delivered(&table, values + s * 6, own + s * 6), sent);
        ((unsigned char *)own[s * 6 + 1].data)[0] ^= 1;
        cr_assert_neq(verify_delivered(&table, values + s * 6, own + s * 6), sent);
    }
    free(slot);
}
