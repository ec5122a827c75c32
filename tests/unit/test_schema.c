/* SPDX-License-Identifier: Apache-2.0 */
/* Field tables: every rule has a case that breaks it, and the text must name field and value. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/memory.h"
#include "proto/schema.h"

static const struct poise_field pixels = {.name = "pixel_values",
                                          .dtype = POISE_BF16,
                                          .assembly = POISE_CONCAT,
                                          .n_dims = 2,
                                          .shape = {-1, 1176},
                                          .rows_of = "image_grid",
                                          .n_divisors = 3,
                                          .divisor = {1, 2, 2}};
static const struct poise_field grid = {
    .name = "image_grid", .dtype = POISE_I64, .assembly = POISE_CONCAT, .n_dims = 2, .shape = {-1, 3}};
static const struct poise_field ids = {.name = "input_ids",
                                       .dtype = POISE_I64,
                                       .assembly = POISE_PADDED,
                                       .n_dims = 1,
                                       .shape = {-1},
                                       .axis_name = {"tokens"},
                                       .pad_multiple = 8,
                                       .pad_bits = 151643};
static const struct poise_field labels = {.name = "labels",
                                          .dtype = POISE_I64,
                                          .assembly = POISE_PADDED,
                                          .n_dims = 1,
                                          .shape = {-1},
                                          .axis_name = {"tokens"},
                                          .pad_side = POISE_PAD_LEFT,
                                          .pad_bits = (uint64_t)-100};
static const struct poise_field name = {
    .name = "name", .dtype = POISE_BYTES, .assembly = POISE_OPAQUE, .n_dims = 1, .shape = {-1}};

static struct wire_field made(struct poise_field from)
{
    struct wire_field field;
    struct poise_err err;

    cr_assert(schema_field(&from, &field, &err) == 0, "%s", err.text);
    return field;
}

/* That field is refused with a text that has `part` in it. */
static void refused(struct poise_field from, const char *part)
{
    struct wire_field field, before;
    struct poise_err err = {0};

    memset(&field, 0xa5, sizeof field);
    before = field;
    cr_assert(schema_field(&from, &field, &err) == -EINVAL, "%s is accepted", part);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_assert(err.code == -EINVAL);
    cr_assert(memcmp(&field, &before, sizeof field) == 0, "written on failure");
    cr_assert(schema_field(&from, &field, NULL) == -EINVAL);
}

Test(schema, a_declared_field_is_copied_and_its_defaults_filled)
{
    struct wire_field field = made(pixels);
    cr_assert(strcmp(field.name, "pixel_values") == 0 && strcmp(field.rows_of, "image_grid") == 0);
    cr_assert(field.n_dims == 2 && field.shape[0] == -1 && field.shape[1] == 1176 && field.n_divisors == 3);
    cr_assert(field.divisor[0] == 1 && field.divisor[1] == 2 && field.divisor[2] == 2 && field.divisor[3] == 0);

    field = made(labels);
    cr_assert(field.pad_multiple == 1 && strcmp(field.axis_name[0], "tokens") == 0 && field.pad_bits == (uint64_t)-100);
    struct poise_field own = labels;
    own.axis_name[0] = NULL;
    own.dtype = POISE_I32; /* -100, sign-extended by the caller */
    field = made(own);
    cr_assert(strcmp(field.axis_name[0], "labels.0") == 0);
    cr_assert(field.pad_bits == (uint32_t)-100);
}

Test(schema, what_a_rule_does_not_use_is_not_a_difference)
{
    struct poise_field other = name;
    other.axis = 3;
    other.pad_bits = 7;
    other.pad_multiple = 64;
    other.axis_name[0] = "tokens";
    other.divisor[0] = 9;
    struct wire_field a = made(name), b = made(other);
    cr_assert(memcmp(&a, &b, sizeof a) == 0);

    other = pixels;
    other.n_divisors = 5;
    other.divisor[3] = 1; /* and [4] is 0, which is taken as 1 */
    a = made(pixels);
    b = made(other);
    cr_assert(memcmp(&a, &b, sizeof a) == 0);
}

#define BAD(base, part, ...)                                                                                           \
    do {                                                                                                               \
        struct poise_field bad = (base);                                                                               \
        __VA_ARGS__;                                                                                                   \
        refused(bad, part);                                                                                            \
    } while (0)

Test(schema, a_bad_field_is_refused_by_name_and_value)
{
    char long_name[100];
    memset(long_name, 'n', sizeof long_name);
    long_name[99] = 0;
    BAD(ids, "without a name", bad.name = NULL);
    BAD(ids, "without a name", bad.name = "");
    BAD(ids, "99 bytes", bad.name = long_name);
    BAD(ids, "UTF-8", bad.name = "\xff");
    BAD(ids, "input_ids: dtype is 18", bad.dtype = POISE_N_DTYPES);
    BAD(ids, "input_ids: assembly is 3", bad.assembly = 3);
    BAD(ids, "input_ids: n_dims is 8", bad.n_dims = 8);
    BAD(ids, "n_dims is 4294967295", bad.n_dims = UINT32_MAX);
    BAD(ids, "input_ids: shape[0] is -2", bad.shape[0] = -2);
    BAD(ids, "more than 2^63 bytes", bad.n_dims = 3; bad.shape[0] = bad.shape[1] = 1ll << 40; bad.shape[2] = 0);
    BAD(ids, "input_ids: axis is 2", bad.axis = 2);
    BAD(ids, "pad_side is 2", bad.pad_side = 2);
    BAD(ids, "pad_scope is 3", bad.pad_scope = 3);
    BAD(ids, "pad_to is 0", bad.pad_scope = POISE_PAD_FIXED);
    BAD(ids, "pad_to is 4294967296", bad.pad_scope = POISE_PAD_FIXED; bad.pad_to = 1ull << 32);
    BAD(ids, "pad_bits is 0x10000", bad.dtype = POISE_F16; bad.pad_bits = 0x10000);
    BAD(ids, "complex128 can be padded with 0 only", bad.dtype = POISE_C128; bad.pad_bits = 1);
    BAD(ids, "axes 0 and 1 are both named tokens", bad.n_dims = 2; bad.shape[1] = -1; bad.axis_name[1] = "tokens");
    BAD(ids, "axis_name has 99 bytes", bad.axis_name[0] = long_name);
    BAD(ids, "axis_name of a field is not valid UTF-8", bad.axis_name[0] = "a\xc0\x80");
    BAD(ids, "give it an axis_name", bad.name = long_name + 37; bad.axis_name[0] = NULL);
    BAD(pixels, "pixel_values: axis is 2", bad.axis = 2);
    BAD(pixels, "shape[1] is ragged", bad.shape[1] = -1);
    BAD(pixels, "a scalar has no rows", bad.assembly = POISE_PADDED; bad.n_dims = 0);
    BAD(pixels, "names the field itself", bad.rows_of = "pixel_values");
    BAD(pixels, "rows_of has 99 bytes", bad.rows_of = long_name);
    BAD(pixels, "n_divisors is 9", bad.n_divisors = 9);
    struct poise_field scalar = {.name = "score", .dtype = POISE_F32, .assembly = POISE_PADDED};
    made(scalar); /* a scalar can be stacked, but not concatenated */
    BAD(scalar, "needs more than its 0 dimensions", bad.assembly = POISE_CONCAT);
}

static struct wire_table table_of(struct wire_field *fields, uint32_t n)
{
    return (struct wire_table){.n_fields = n, .fields = fields};
}

static void check_refused(struct wire_table table, const char *part)
{
    struct poise_err err = {0};

    cr_assert(schema_check(&table, 3, &err) == -EINVAL, "%s is accepted", part);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_assert(err.rank == 3);
}

Test(schema, a_bad_table_is_refused_naming_the_rank)
{
    struct wire_field fields[] = {made(pixels), made(grid), made(ids), made(labels), made(name)};
    struct wire_field all[POISE_MAX_FIELDS + 1];
    struct poise_err err;

    cr_assert(schema_check(&(struct wire_table){5, fields}, POISE_NONE, &err) == 0, "%s", err.text);
    memcpy(fields[4].name, "labels", 7);
    check_refused(table_of(fields, 5), "rank 3: field labels: declared twice");

    fields[1].dtype = POISE_F32;
    check_refused(table_of(fields, 2), "rank 3: field pixel_values: rows_of is image_grid, which is float32");
    fields[1].dtype = POISE_I32;
    fields[1].shape[0] = 4;
    check_refused(table_of(fields, 2), "a grid has 2, the first ragged");
    fields[1].shape[0] = -1;
    fields[1].shape[1] = 2;
    check_refused(table_of(fields, 2), "3 divisors for the 2 columns of image_grid");
    cr_assert(schema_check(&(struct wire_table){1, fields}, 3, &err) == 0, "the grid may come from another rank");

    for (uint32_t i = 0; i <= POISE_MAX_FIELDS; i++) {
        all[i] = made(name);
        snprintf(all[i].name, sizeof all[i].name, "f%u", i);
    }
    cr_assert(schema_check(&(struct wire_table){POISE_MAX_FIELDS, all}, 3, &err) == 0);
    check_refused(table_of(all, POISE_MAX_FIELDS + 1), "257 fields");

    for (uint32_t i = 0; i < 5; i++) {
        all[i] = made(ids);
        snprintf(all[i].name, sizeof all[i].name, "f%u", i);
        snprintf(all[i].axis_name[0], sizeof all[i].axis_name[0], "axis%u", i);
    }
    cr_assert(schema_check(&(struct wire_table){4, all}, 3, &err) == 0);
    check_refused(table_of(all, 5), "more than 4 ragged axes in padded fields (axis0, axis1, axis2, axis3, axis4)");
}

/* A table that did not come from schema_field(), as a hostile peer sends it. */
Test(schema, a_table_from_the_wire_is_checked_as_a_declared_field_is)
{
    struct wire_field field = made(ids);
#define WIRE_BAD(part, ...)                                                                                            \
    do {                                                                                                               \
        struct wire_field bad = field;                                                                                 \
        __VA_ARGS__;                                                                                                   \
        check_refused(table_of(&bad, 1), part);                                                                        \
    } while (0)
    WIRE_BAD("a field without a name", bad.name[0] = 0);
    WIRE_BAD("dtype is 99", bad.dtype = 99);
    WIRE_BAD("assembly is 7", bad.assembly = 7);
    WIRE_BAD("n_dims is 8", bad.n_dims = 8);
    WIRE_BAD("ragged axis 0 has no name", bad.axis_name[0][0] = 0);
    WIRE_BAD("pad_multiple is 0", bad.pad_multiple = 0);
    WIRE_BAD("n_divisors is 9", bad.n_divisors = 9);
    WIRE_BAD("divisor[0] is 0", bad.n_divisors = 1; memcpy(bad.rows_of, "x", 2));
}

Test(schema, the_hash_sees_every_member_and_no_order)
{
    struct wire_field fields[] = {made(pixels), made(grid), made(ids), made(labels)};
    struct wire_field turned[] = {fields[2], fields[0], fields[3], fields[1]};
    struct wire_id first = schema_hash(&(struct wire_table){4, fields});

    cr_assert(wire_id_none(schema_hash(NULL)) && wire_id_none(schema_hash(&(struct wire_table){0, NULL})));
    cr_assert(!wire_id_none(first) && wire_id_is(first, schema_hash(&(struct wire_table){4, turned})));
#define SEEN(change)                                                                                                   \
    do {                                                                                                               \
        memcpy(turned, fields, sizeof fields);                                                                         \
        change;                                                                                                        \
        cr_assert(!wire_id_is(first, schema_hash(&(struct wire_table){4, turned})), "%s", #change);                    \
    } while (0)
    SEEN(turned[0].name[0] = 'P');
    SEEN(turned[0].dtype = POISE_F16);
    SEEN(turned[0].assembly = POISE_OPAQUE);
    SEEN(turned[0].axis = 1);
    SEEN(turned[0].n_dims = 3);
    SEEN(turned[0].shape[1] = 588);
    SEEN(turned[2].axis_name[0][0] = 'T');
    SEEN(turned[2].pad_side = 1);
    SEEN(turned[2].pad_scope = 1);
    SEEN(turned[2].pad_multiple = 16);
    SEEN(turned[2].pad_to = 5);
    SEEN(turned[2].pad_bits = 0);
    SEEN(turned[0].rows_of[0] = 'j');
    SEEN(turned[0].divisor[1] = 4);
    SEEN(turned[0].n_divisors = 2);
    cr_assert(!wire_id_is(first, schema_hash(&(struct wire_table){3, fields})));
}

Test(schema, axes_are_named_once_and_sorted)
{
    struct poise_field wide = {.name = "frames",
                               .dtype = POISE_F32,
                               .assembly = POISE_PADDED,
                               .n_dims = 3,
                               .shape = {-1, 80, -1},
                               .axis_name = {"time", NULL, NULL}};
    struct wire_field fields[] = {made(labels), made(wide), made(ids), made(pixels), made(name)};
    const char *names[POISE_MAX_EXTENTS];

    cr_assert(schema_axes(&(struct wire_table){5, fields}, names) == 3);
    cr_assert(strcmp(names[0], "frames.2") == 0 && strcmp(names[1], "time") == 0 && strcmp(names[2], "tokens") == 0);
    cr_assert(schema_axes(&(struct wire_table){0, NULL}, names) == 0);
}

Test(schema, tables_merge_by_name)
{
    struct wire_field one[] = {made(pixels), made(ids)}, two[] = {made(labels), made(grid), made(ids)};
    struct wire_table a = table_of(one, 2), b = table_of(two, 3), empty = {0, NULL}, merged;
    const struct wire_table *tables[] = {&empty, &a, NULL, &b, &b};
    struct poise_err err;

    cr_assert(schema_merge(tables, 5, &merged, &err) == 0, "%s", err.text);
    cr_assert(merged.n_fields == 4);
    cr_assert(strcmp(merged.fields[0].name, "image_grid") == 0 && strcmp(merged.fields[1].name, "input_ids") == 0 &&
              strcmp(merged.fields[2].name, "labels") == 0 && strcmp(merged.fields[3].name, "pixel_values") == 0);
    free(merged.fields);
    cr_assert(schema_merge(tables, 1, &merged, &err) == 0 && merged.n_fields == 0 && merged.fields == NULL);
    free(merged.fields);
}

/* Ranks 0 and 2 have the field one way, rank 3 another: the error names 3 and 0. */
static void merge_refused(struct wire_field base, struct wire_field other, const char *text)
{
    struct wire_field noise = made(grid);
    struct wire_table a = table_of(&base, 1), b = table_of(&other, 1), c = table_of(&noise, 1), merged = {0, NULL};
    const struct wire_table *tables[] = {&a, &c, &a, &b, &b};
    struct poise_err err = {0};

    cr_assert(schema_merge(tables, 5, &merged, &err) == -EINVAL && merged.fields == NULL);
    cr_assert(strcmp(err.text, text) == 0, "%s", err.text);
    cr_assert(err.rank == 3 && strcmp(err.field, base.name) == 0);
}

Test(schema, a_difference_names_field_both_ranks_and_both_values)
{
    struct wire_field base = made(pixels), other = base;
    other.dtype = POISE_F32;
    merge_refused(base, other, "rank 3 sends pixel_values as float32, rank 0 as bfloat16: make them agree");
    other = base;
    other.shape[1] = 588;
    merge_refused(
        base, other,
        "rank 3 sends pixel_values with shape [ragged, 588], rank 0 with shape [ragged, 1176]: make them agree");
    other = base;
    other.assembly = POISE_OPAQUE;
    merge_refused(base, other,
                  "rank 3 sends pixel_values with assembly opaque at axis 0, rank 0 with assembly concat at axis 0: "
                  "make them agree");
    other = base;
    other.divisor[2] = 4;
    merge_refused(
        base, other,
        "rank 3 sends pixel_values with rows_of image_grid / [1, 2, 4], rank 0 with rows_of image_grid / [1, 2, 2]: "
        "make them agree");
    base = other = made(ids);
    other.pad_side = POISE_PAD_LEFT;
    merge_refused(
        base, other,
        "rank 3 sends input_ids with padding left to micro-batch, pad_to 0, multiple 8, value 0x2505b, rank 0 with "
        "padding right to micro-batch, pad_to 0, multiple 8, value 0x2505b: make them agree");
    other = base;
    memcpy(other.axis_name[0], "words", 6);
    merge_refused(base, other,
                  "rank 3 sends input_ids with axis names [words], rank 0 with axis names [tokens]: make them agree");
}

Test(schema, what_only_together_breaks_a_rule_is_refused)
{
    struct wire_field many[2][200], p = made(pixels), g = made(grid);
    struct wire_table a = table_of(many[0], 200), b = table_of(many[1], 200), c = table_of(&p, 1), d = table_of(&g, 1),
                      merged;
    const struct wire_table *tables[] = {&a, &b}, *grids[] = {&c, &d};
    struct poise_err err = {0};

    for (uint32_t i = 0; i < 400; i++) {
        many[i / 200][i % 200] = made(name);
        snprintf(many[i / 200][i % 200].name, POISE_MAX_NAME, "f%03u", i);
    }
    cr_assert(schema_merge(tables, 2, &merged, &err) == -EINVAL);
    cr_assert(strcmp(err.text, "rank 1: field f256 is one more than the 256 that a group may have over all ranks") == 0,
              "%s", err.text);
    g.dtype = POISE_F32;
    cr_assert(schema_merge(grids, 2, &merged, &err) == -EINVAL);
    cr_assert(strstr(err.text, "rows_of is image_grid, which is float32"), "%s", err.text);
}

static void *no_memory(size_t n_bytes)
{
    (void)n_bytes;
    return NULL;
}

Test(schema, merging_without_memory_is_an_error)
{
    struct wire_field field = made(ids);
    struct wire_table a = table_of(&field, 1), merged;
    const struct wire_table *tables[] = {&a};
    struct poise_err err;

    wire_malloc = no_memory;
    cr_assert(schema_merge(tables, 1, &merged, &err) == -ENOMEM);
    wire_malloc = malloc;
}

Test(schema, padded_memory_follows_the_rules)
{
    struct poise_field step = {.name = "mel",
                               .dtype = POISE_F32,
                               .assembly = POISE_PADDED,
                               .n_dims = 2,
                               .shape = {80, -1},
                               .axis_name = {NULL, "time"},
                               .pad_scope = POISE_PAD_STEP,
                               .pad_multiple = 100};
    struct poise_field fixed = {.name = "mask",
                                .dtype = POISE_BOOL,
                                .assembly = POISE_PADDED,
                                .n_dims = 1,
                                .shape = {-1},
                                .axis_name = {"tokens"},
                                .pad_scope = POISE_PAD_FIXED,
                                .pad_to = 4096};
    struct wire_field fields[] = {made(ids), made(pixels), made(step), made(fixed)};
    struct wire_table table = table_of(fields, 4);
    const uint32_t extent[POISE_MAX_EXTENTS] = {1201, 77}; /* time, tokens */
    struct poise_pad pads[POISE_MAX_FIELDS];

    cr_assert(schema_pads(&table, extent, pads) == 3);
    cr_assert(pads[0].axis_mask == 2 && pads[0].multiple == 8 && pads[0].unit_bytes == 8 && pads[0].fixed[1] == 0);
    cr_assert(pads[1].axis_mask == 1 && pads[1].multiple == 100 && pads[1].unit_bytes == 320 &&
              pads[1].fixed[0] == 1300);
    cr_assert(pads[2].axis_mask == 2 && pads[2].multiple == 1 && pads[2].unit_bytes == 1 && pads[2].fixed[1] == 4096);
}
