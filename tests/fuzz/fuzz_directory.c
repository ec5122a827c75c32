/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the step directory, which a peer may write while it is read: any bytes are refused, or give values whose data
 * lies inside of the segments. The first byte is the number of samples that the control segment would tell.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/directory.h"
#include "proto/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static unsigned char segment[4096];

static void must(bool fine)
{
    if (!fine)
        abort();
}

static bool lookup(void *context, uint32_t number, uint32_t generation, const void **ret_base, uint64_t *ret_bytes)
{
    (void)context;
    if (number > 1 || generation > 1)
        return false;
    *ret_base = segment;
    *ret_bytes = sizeof segment;
    return true;
}

/* What test_directory.c's writer and make_seeds.c's use: a grid, tokens and pixels. */
static void make_table(struct wire_table *table, struct wire_field fields[3])
{
    static const struct poise_field declared[] = {
        {.name = "image_grid", .dtype = POISE_I64, .n_dims = 2, .shape = {-1, 3}},
        {.name = "input_ids",
         .dtype = POISE_I64,
         .assembly = POISE_PADDED,
         .n_dims = 1,
         .shape = {-1},
         .axis_name = {"tokens"}},
        {.name = "pixel_values", .dtype = POISE_BF16, .n_dims = 2, .shape = {-1, 4}},
    };

    for (int i = 0; i < 3; i++)
        must(schema_field(&declared[i], &fields[i], NULL) == 0);
    *table = (struct wire_table){3, fields};
}

static void read_samples(const struct directory *dir, uint32_t n_samples)
{
    struct directory_sample sample;
    struct value values[3];
    struct poise_err err = {0};

    for (uint32_t i = 0; i < n_samples; i++) {
        int rc = directory_read(dir, i, DIRECTORY_ANY_BYTES, lookup, NULL, &sample, values, &err);
        must(rc == 0 || rc == -EPROTO || rc == -EAGAIN);
        for (int f = 0; rc == 0 && f < 3; f++) {
            const unsigned char *data = values[f].data;
            uint64_t n = 0;
            if (!values[f].present)
                continue;
            must(value_bytes(&values[f], dir->table->fields[f].dtype, &n) == 0);
            must(n == 0 || (data >= segment && n <= sizeof segment && data + n <= segment + sizeof segment));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct wire_field fields[3];
    struct wire_table table;
    struct directory dir;
    struct poise_err err = {0};

    if (n_bytes < 1)
        return 0;
    uint64_t *copy = malloc(n_bytes + 8); /* 8-byte aligned, as in the arena */
    if (!copy)
        return 0;
    memcpy(copy, bytes + 1, n_bytes - 1);
    make_table(&table, fields);
    int rc = directory_open(copy, n_bytes - 1, 7, 0, bytes[0], &table, &dir, &err);
    must(rc == 0 || (rc == -EPROTO && err.text[0]));
    if (rc == 0) {
        read_samples(&dir, bytes[0]);
        directory_close(&dir);
    }
    free(copy);
    return 0;
}
