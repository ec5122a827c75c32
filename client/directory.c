/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: a header, the names of the fields of the sender's table, one fixed entry a sample, one fixed entry a value. A
 * receiver checks the header once, maps names to its merged table once, and then for each entry: copy, compiler barrier
 * (so that nothing is read twice), check, use. What fails is always the sender's fault, so it is -EPROTO with its rank.
 */
#include "client/directory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

#define MAGIC 0x72696470u /* "pdir" */

struct header {
    uint32_t magic, version;
    uint64_t step, n_values;
    uint32_t n_samples, n_fields;
};

struct raw_sample {
    struct directory_sample sample;
    uint64_t first_value;
    uint32_t n_values;
    uint32_t reserved;
};

#define NAME_BYTES POISE_MAX_NAME

static uint64_t samples_at(uint32_t n_fields)
{
    return sizeof(struct header) + (uint64_t)n_fields * NAME_BYTES;
}

static uint64_t values_at(uint32_t n_samples, uint32_t n_fields)
{
    return samples_at(n_fields) + (uint64_t)n_samples * sizeof(struct raw_sample);
}

uint64_t directory_bytes(uint32_t n_samples, uint64_t n_values, uint32_t n_fields)
{
    uint64_t bytes;

    if (__builtin_mul_overflow(n_values, sizeof(struct directory_value), &bytes) ||
        __builtin_add_overflow(bytes, values_at(n_samples, n_fields), &bytes))
        return UINT64_MAX;
    return bytes;
}

/* ------------------------------------------------------------------------------------------------------------- writing
 * */

void directory_begin(void *memory, uint64_t step, const struct wire_table *table, uint32_t n_samples, uint64_t n_values,
                     struct directory_writer *ret_writer)
{
    struct header header = { .magic = MAGIC, .version = WIRE_VERSION, .step = step, .n_values = n_values,
                             .n_samples = n_samples, .n_fields = table->n_fields };
    unsigned char *base = memory;

    memcpy(base, &header, sizeof header);
    for (uint32_t i = 0; i < table->n_fields; i++)
        memcpy(base + sizeof header + (size_t)i * NAME_BYTES, table->fields[i].name, NAME_BYTES);
    *ret_writer = (struct directory_writer){ .base = base, .n_samples = n_samples, .n_values = n_values,
                                             .n_fields = table->n_fields };
}

void directory_add(struct directory_writer *writer, const struct directory_sample *sample,
                   const struct directory_value *values, uint32_t n_values)
{
    struct raw_sample raw = { .sample = *sample, .first_value = writer->next_value, .n_values = n_values };

    /* Beyond what was announced the memory ends: what does not fit is left out, and the reader refuses the sample. */
    if (writer->next_sample == writer->n_samples || n_values > writer->n_values - writer->next_value)
        return;
    memcpy(writer->base + samples_at(writer->n_fields) + (size_t)writer->next_sample * sizeof raw, &raw, sizeof raw);
    if (n_values > 0)
        memcpy(writer->base + values_at(writer->n_samples, writer->n_fields) + writer->next_value * sizeof *values,
               values, n_values * sizeof *values);
    writer->next_sample++;
    writer->next_value += n_values;
}

/* ------------------------------------------------------------------------------------------------------------- reading
 * */

/* Copies out of memory that somebody else may be writing: after it only the copy is looked at, also by the compiler. */
static void copy_once(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    atomic_signal_fence(memory_order_seq_cst);
}

/* -EPROTO about the directory: "the directory of rank 3 ...". */
__attribute__((format(printf, 3, 4))) static int bad_directory(uint32_t rank, struct poise_err *err, const char *format,
                                                               ...)
{
    char text[sizeof err->text];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set_at(err, -EPROTO, rank, POISE_NONE, NULL, "the directory of rank %" PRIu32 " %s", rank, text);
}

static int map_names(const unsigned char *names, uint32_t n_fields, uint32_t rank, const struct wire_table *table,
                     uint32_t *position, struct poise_err *err)
{
    uint32_t hint = 0;

    for (uint32_t i = 0; i < n_fields; i++) {
        char name[NAME_BYTES];

        copy_once(name, names + (size_t)i * NAME_BYTES, sizeof name);
        if (!memchr(name, 0, sizeof name))
            return bad_directory(rank, err, "has a field name without an end");
        position[i] = value_field(table, name, hint);
        if (position[i] != POISE_NONE)
            hint = position[i] + 1;
    }
    return 0;
}

static int check_header(const struct header *header, uint64_t bytes, uint64_t step, uint32_t rank, uint32_t n_samples,
                        struct poise_err *err)
{
    if (header->magic != MAGIC || header->version != WIRE_VERSION)
        return bad_directory(rank, err, "is none of version %u", WIRE_VERSION);
    if (header->step != step || header->n_samples != n_samples)
        return bad_directory(rank, err, "is of step %" PRIu64 " with %" PRIu32 " samples, not of step %" PRIu64
                             " with %" PRIu32, header->step, header->n_samples, step, n_samples);
    if (header->n_fields > POISE_MAX_FIELDS || directory_bytes(n_samples, header->n_values, header->n_fields) > bytes)
        return bad_directory(rank, err, "says %" PRIu32 " fields and %" PRIu64 " values in %" PRIu64 " bytes",
                             header->n_fields, header->n_values, bytes);
    return 0;
}

int directory_open(const void *base, uint64_t bytes, uint64_t step, uint32_t rank, uint32_t n_samples,
                   const struct wire_table *table, struct directory *ret_dir, struct poise_err *err)
{
    struct header header;
    uint32_t *position;
    int rc;

    if (bytes < sizeof header)
        return bad_directory(rank, err, "has %" PRIu64 " bytes, less than a header", bytes);
    copy_once(&header, base, sizeof header);
    rc = check_header(&header, bytes, step, rank, n_samples, err);
    if (rc < 0)
        return rc;
    position = malloc((header.n_fields ? header.n_fields : 1) * sizeof *position);
    if (!position)
        return err_set(err, -ENOMEM, "out of memory");
    rc = map_names((const unsigned char *)base + sizeof header, header.n_fields, rank, table, position, err);
    if (rc < 0) {
        free(position);
        return rc;
    }
    *ret_dir = (struct directory){ .base = base, .bytes = bytes, .rank = rank, .n_samples = n_samples,
                                   .n_fields = header.n_fields, .n_values = header.n_values, .table = table,
                                   .position = position };
    return 0;
}

void directory_close(struct directory *dir)
{
    free(dir->position);
    *dir = (struct directory){ 0 };
}

/* -EPROTO (or code) about a sample: "rank 3, sample 5: ...". */
__attribute__((format(printf, 6, 7))) static int bad(const struct directory *dir, uint32_t index, const char *field,
                                                     int code, struct poise_err *err, const char *format, ...)
{
    char text[sizeof err->text];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set_at(err, code, dir->rank, index, field, "rank %" PRIu32 ", sample %" PRIu32 ": %s", dir->rank, index,
                      text);
}

/* The bytes of a value inside its segment. */
static int resolve(const struct directory *dir, uint32_t index, const char *field, const struct directory_value *raw,
                   uint64_t bytes, directory_lookup_fn lookup, void *context, const void **ret_data,
                   struct poise_err *err)
{
    const void *base;
    uint64_t segment_bytes;

    if (!lookup(context, raw->segment, raw->generation, &base, &segment_bytes))
        return bad(dir, index, field, -EAGAIN, err, "segment %" PRIu32 " (generation %" PRIu32 ") is not here",
                   raw->segment, raw->generation);
    if (raw->offset > segment_bytes || bytes > segment_bytes - raw->offset)
        return bad(dir, index, field, -EPROTO, err, "%s, %" PRIu64 " bytes at %" PRIu64
                   ", is not inside its segment of %" PRIu64, field, bytes, raw->offset, segment_bytes);
    *ret_data = (const unsigned char *)base + raw->offset;
    return 0;
}

/* One value: copied, checked, resolved. *total grows by its bytes. */
static int read_value(const struct directory *dir, uint32_t index, uint64_t at, directory_lookup_fn lookup,
                      void *context, struct value *values, uint64_t *total, struct poise_err *err)
{
    struct directory_value raw;
    struct poise_err why;
    const struct wire_field *field;
    struct value value = { .present = true };
    uint64_t bytes;
    uint32_t position;
    int rc;

    copy_once(&raw, dir->base + values_at(dir->n_samples, dir->n_fields) + at * sizeof raw, sizeof raw);
    position = raw.field < dir->n_fields ? dir->position[raw.field] : POISE_NONE;
    if (position == POISE_NONE)
        return bad(dir, index, NULL, -EPROTO, err, "field number %" PRIu32 " is in no table", raw.field);
    field = &dir->table->fields[position];
    if (values[position].present)
        return bad(dir, index, field->name, -EPROTO, err, "%s is there twice", field->name);
    value.n_dims = raw.n_dims;
    memcpy(value.shape, raw.shape, sizeof value.shape);
    if (value_check(&value, field, dir->rank, index, &bytes, &why) < 0)
        return bad(dir, index, field->name, -EPROTO, err, "%s", why.text);
    if (bytes > 0) {
        rc = resolve(dir, index, field->name, &raw, bytes, lookup, context, &value.data, err);
        if (rc < 0)
            return rc;
    }
    if (__builtin_add_overflow(*total, bytes, total))
        return bad(dir, index, field->name, -EPROTO, err, "its bytes overflow");
    values[position] = value;
    return 0;
}

int directory_read(const struct directory *dir, uint32_t index, uint64_t in_bytes, directory_lookup_fn lookup,
                   void *context, struct directory_sample *ret_sample, struct value *values, struct poise_err *err)
{
    struct raw_sample raw;
    uint64_t total = 0;
    int rc;

    if (index >= dir->n_samples)
        return bad(dir, index, NULL, -EPROTO, err, "there are only %" PRIu32, dir->n_samples);
    copy_once(&raw, dir->base + samples_at(dir->n_fields) + (size_t)index * sizeof raw, sizeof raw);
    if (raw.n_values > dir->n_fields || raw.first_value > dir->n_values ||
        raw.n_values > dir->n_values - raw.first_value)
        return bad(dir, index, NULL, -EPROTO, err, "values %" PRIu64 " and %" PRIu32 " more of %" PRIu64,
                   raw.first_value, raw.n_values, dir->n_values);
    for (uint32_t i = 0; i < dir->table->n_fields; i++)
        values[i] = (struct value){ 0 };
    for (uint32_t i = 0; i < raw.n_values; i++) {
        rc = read_value(dir, index, raw.first_value + i, lookup, context, values, &total, err);
        if (rc < 0)
            return rc;
    }
    if (raw.sample.bytes != total)
        return bad(dir, index, NULL, -EPROTO, err, "its fields have %" PRIu64 " bytes, its directory says %" PRIu64,
                   total, raw.sample.bytes);
    if (in_bytes != DIRECTORY_ANY_BYTES && total != in_bytes)
        return bad(dir, index, NULL, -EPROTO, err, "its fields have %" PRIu64 " bytes, the plan says %" PRIu64, total,
                   in_bytes);
    *ret_sample = raw.sample;
    return 0;
}
