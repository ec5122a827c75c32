/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout first, so that room for a whole step can be reserved before its first byte; then each sample is written once,
 * from the sender's mapped memory to where the trainer reads it. Every byte of a field is written by exactly one
 * sample, its padding included, so nothing of an older step can show and ranges of samples may be filled in parallel.
 * All sizes were checked by value_check(); what is added or multiplied here is checked again, because a micro-batch may
 * sum up to more.
 */
#include "client/assemble.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/copy.h"
#include "daemon/planner/err.h"
#include "proto/schema.h"

/* ------------------------------------------------------------------------------------------------------------- layout
 * */

static const struct value *value_at(const struct assemble_input *in, uint32_t sample, uint32_t field)
{
    return &in->values[(size_t)sample * in->table->n_fields + field];
}

/* C order from the shape; bytes. An empty tensor has strides as if its axes of 0 were 1, so that views of it are sane.
 * */
static int finish_tensor(struct poise_tensor *tensor)
{
    uint64_t bytes = poise_dtype_bytes(tensor->dtype);
    bool empty = false;

    for (uint32_t i = tensor->n_dims; i-- > 0;) {
        tensor->stride[i] = (int64_t)bytes;
        if (tensor->shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, (uint64_t)tensor->shape[i], &bytes) || bytes > INT64_MAX)
            return -EOVERFLOW;
    }
    tensor->bytes = empty ? 0 : bytes;
    return 0;
}

static int layout_concat(const struct assemble_input *in, uint32_t f, struct poise_tensor *tensor,
                         struct poise_err *err)
{
    const struct wire_field *field = &in->table->fields[f];
    uint32_t axis = field->axis;
    uint64_t sum = 0;
    bool seen = false;

    if (axis >= field->n_dims)
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, field->name, "%s: no axis %" PRIu32
                          " to concatenate along", field->name, axis);
    tensor->n_dims = field->n_dims;
    for (uint32_t i = 0; i < field->n_dims; i++)
        tensor->shape[i] = field->shape[i] < 0 ? 0 : field->shape[i];
    for (uint32_t s = 0; s < in->n_samples; s++) {
        const struct value *value = value_at(in, s, f);

        if (!value->present || value->shape[axis] == 0)
            continue;
        for (uint32_t i = 0; i < field->n_dims; i++) {
            if (i != axis && seen && value->shape[i] != tensor->shape[i])
                return err_set_at(err, -EINVAL, POISE_NONE, s, field->name, "%s: row %" PRIu32 " has %" PRId64
                                  " along axis %" PRIu32 ", others %" PRId64
                                  ": samples that are concatenated must agree there", field->name, s, value->shape[i],
                                  i, tensor->shape[i]);
            tensor->shape[i] = value->shape[i];
        }
        seen = true;
        if (__builtin_add_overflow(sum, (uint64_t)value->shape[axis], &sum) || sum > INT64_MAX)
            return -EOVERFLOW;
    }
    tensor->shape[axis] = (int64_t)sum;
    return finish_tensor(tensor);
}

/* What a sample of an opaque field takes. */
static uint64_t opaque_bytes(uint64_t bytes)
{
    return (bytes + ASSEMBLE_OPAQUE_ALIGN - 1) / ASSEMBLE_OPAQUE_ALIGN * ASSEMBLE_OPAQUE_ALIGN;
}

static int layout_opaque(const struct assemble_input *in, uint32_t f, struct poise_tensor *tensor)
{
    uint64_t bytes, total = 0;

    for (uint32_t s = 0; s < in->n_samples; s++) {
        const struct value *value = value_at(in, s, f);

        if (!value->present)
            continue;
        if (value_bytes(value, tensor->dtype, &bytes) < 0 || total > INT64_MAX - bytes - ASSEMBLE_OPAQUE_ALIGN)
            return -EOVERFLOW;
        total += opaque_bytes(bytes);
    }
    tensor->n_dims = 1;
    tensor->shape[0] = (int64_t)(total / poise_dtype_bytes(tensor->dtype));
    return finish_tensor(tensor);
}

/* Largest extent in this micro-batch of each axis name that padded fields share. */
struct widths {
    const char *names[POISE_MAX_EXTENTS];
    uint32_t n;
    uint64_t largest[POISE_MAX_EXTENTS];
};

static uint32_t width_number(const struct widths *widths, const char *name)
{
    uint32_t i = 0;

    while (i < widths->n && strcmp(widths->names[i], name) != 0)
        i++;
    return i;
}

static void find_widths(const struct assemble_input *in, struct widths *widths)
{
    *widths = (struct widths){ 0 };
    widths->n = schema_axes(in->table, widths->names);
    if (widths->n > POISE_MAX_EXTENTS)
        widths->n = POISE_MAX_EXTENTS;
    for (uint32_t f = 0; f < in->table->n_fields; f++) {
        const struct wire_field *field = &in->table->fields[f];

        for (uint32_t i = 0; field->assembly == POISE_PADDED && i < field->n_dims; i++) {
            uint32_t at = field->shape[i] < 0 ? width_number(widths, field->axis_name[i]) : widths->n;

            for (uint32_t s = 0; at < widths->n && s < in->n_samples; s++) {
                const struct value *value = value_at(in, s, f);

                if (value->present && (uint64_t)value->shape[i] > widths->largest[at])
                    widths->largest[at] = (uint64_t)value->shape[i];
            }
        }
    }
}

/* The width of a ragged axis by its scope. */
static int padded_width(const struct assemble_input *in, const struct widths *widths, const struct wire_field *field,
                        uint32_t axis, int64_t *ret_width)
{
    uint64_t multiple = field->pad_multiple ? field->pad_multiple : 1, width, over;
    uint32_t at = width_number(widths, field->axis_name[axis]);

    if (at == widths->n)
        return -EINVAL;
    if (field->pad_scope == POISE_PAD_FIXED) {
        width = field->pad_to;
    } else {
        width = field->pad_scope == POISE_PAD_STEP ? in->step_extent[at] : widths->largest[at];
        over = width % multiple;
        if (over > 0 && __builtin_add_overflow(width, multiple - over, &width))
            return -EOVERFLOW;
    }
    if (width > INT64_MAX)
        return -EOVERFLOW;
    *ret_width = (int64_t)width;
    return 0;
}

static int layout_padded(const struct assemble_input *in, const struct widths *widths, uint32_t f,
                         struct poise_tensor *tensor, struct poise_err *err)
{
    const struct wire_field *field = &in->table->fields[f];
    int rc;

    if (field->axis > field->n_dims || field->n_dims >= POISE_MAX_DIMS)
        return err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, field->name, "%s: no place for an axis of samples at %"
                          PRIu32, field->name, field->axis);
    tensor->n_dims = field->n_dims + 1;
    tensor->shape[field->axis] = in->n_samples;
    for (uint32_t i = 0; i < field->n_dims; i++) {
        int64_t width = field->shape[i];

        rc = width < 0 ? padded_width(in, widths, field, i, &width) : 0;
        if (rc < 0)
            return err_set_at(err, rc, POISE_NONE, POISE_NONE, field->name, "%s: axis %" PRIu32 " has no width",
                              field->name, i);
        for (uint32_t s = 0; s < in->n_samples; s++) {
            const struct value *value = value_at(in, s, f);

            if (value->present && value->shape[i] > width)
                return err_set_at(err, -EINVAL, POISE_NONE, s, field->name, "%s: row %" PRIu32 " has %" PRId64
                                  " along axis %" PRIu32 ", which is %" PRId64 " wide", field->name, s, value->shape[i],
                                  i, width);
        }
        tensor->shape[i + (i >= field->axis)] = width;
    }
    return finish_tensor(tensor);
}

/* Every value is of the shape that its field declares: senders' directories were checked, but this costs nothing. */
static int check_values(const struct assemble_input *in, struct poise_err *err)
{
    for (uint32_t s = 0; s < in->n_samples; s++)
        for (uint32_t f = 0; f < in->table->n_fields; f++) {
            int rc = value_check(value_at(in, s, f), &in->table->fields[f], POISE_NONE, s, NULL, err);

            if (rc < 0)
                return rc;
        }
    return 0;
}

int assemble_layout(const struct assemble_input *in, struct poise_tensor *fields, uint64_t *ret_bytes,
                    struct poise_err *err)
{
    struct widths widths;
    uint64_t total = 0;
    int rc = check_values(in, err);

    if (rc < 0)
        return rc;
    find_widths(in, &widths);
    for (uint32_t f = 0; f < in->table->n_fields; f++) {
        const struct wire_field *field = &in->table->fields[f];

        fields[f] = (struct poise_tensor){ .name = field->name, .dtype = field->dtype };
        switch (field->assembly) {
        case POISE_CONCAT:
            rc = layout_concat(in, f, &fields[f], err);
            break;
        case POISE_PADDED:
            rc = layout_padded(in, &widths, f, &fields[f], err);
            break;
        case POISE_OPAQUE:
            rc = layout_opaque(in, f, &fields[f]);
            break;
        default:
            rc = err_set_at(err, -EINVAL, POISE_NONE, POISE_NONE, field->name, "%s: assembly %" PRIu32 " is unknown",
                            field->name, field->assembly);
        }
        if (rc == -EOVERFLOW || (rc == 0 && fields[f].bytes > INT64_MAX - ASSEMBLE_ALIGN - total))
            return err_set_at(err, -EOVERFLOW, POISE_NONE, POISE_NONE, field->name,
                              "%s: the micro-batch's bytes do not fit 63 bits", field->name);
        if (rc < 0)
            return rc;
        total += (fields[f].bytes + ASSEMBLE_ALIGN - 1) / ASSEMBLE_ALIGN * ASSEMBLE_ALIGN;
    }
    *ret_bytes = total;
    return 0;
}

/* -------------------------------------------------------------------------------------------------------------- place
 * */

/* The tensor of a sample that lacks the field: no data, no bytes, a shape that says so. */
static void place_absent(const struct wire_field *field, struct poise_tensor *tensor)
{
    bool ragged = false;

    tensor->n_dims = field->n_dims ? field->n_dims : 1;
    for (uint32_t i = 0; i < field->n_dims; i++) {
        ragged = ragged || field->shape[i] < 0;
        tensor->shape[i] = field->shape[i] < 0 ? 0 : field->shape[i];
    }
    if (!ragged)
        tensor->shape[0] = 0;
    finish_tensor(tensor);
    tensor->data = NULL;
}

/* Takes the strides of a padded field without its axis of samples. Returns where the sample's data begins in it. */
static uint64_t view_padded(const struct wire_field *field, const struct poise_tensor *whole, uint32_t row,
                            struct poise_tensor *own)
{
    uint64_t offset = row * (uint64_t)whole->stride[field->axis];

    for (uint32_t i = 0; i < field->n_dims; i++) {
        uint32_t axis = i + (i >= field->axis);

        own->stride[i] = whole->stride[axis];
        if (field->pad_side == POISE_PAD_LEFT)
            offset += (uint64_t)(whole->shape[axis] - own->shape[i]) * (uint64_t)whole->stride[axis];
    }
    return offset;
}

/* *at: where the next sample of a concatenated or opaque field begins. */
static void place_value(const struct wire_field *field, const struct value *value, const struct poise_tensor *whole,
                        uint32_t row, uint64_t *at, struct poise_tensor *own)
{
    uint64_t offset = *at;

    *own = (struct poise_tensor){ .name = field->name, .dtype = field->dtype, .n_dims = field->n_dims };
    if (!value->present) {
        place_absent(field, own);
        return;
    }
    memcpy(own->shape, value->shape, field->n_dims * sizeof *value->shape);
    finish_tensor(own); /* cannot overflow: value_check() */
    if (field->assembly == POISE_CONCAT) {
        memcpy(own->stride, whole->stride, field->n_dims * sizeof *whole->stride);
        *at += (uint64_t)value->shape[field->axis] * (uint64_t)whole->stride[field->axis];
    } else if (field->assembly == POISE_OPAQUE) {
        *at += opaque_bytes(own->bytes);
    } else {
        offset = view_padded(field, whole, row, own);
    }
    own->data = own->bytes ? (unsigned char *)whole->data + offset : NULL;
}

void assemble_place(const struct assemble_input *in, void *slot, struct poise_tensor *fields,
                    struct poise_tensor *values)
{
    unsigned char *data = slot;

    for (uint32_t f = 0; f < in->table->n_fields; f++) {
        uint64_t at = 0;

        fields[f].data = fields[f].bytes ? data : NULL;
        for (uint32_t s = 0; s < in->n_samples; s++)
            place_value(&in->table->fields[f], value_at(in, s, f), &fields[f], s, &at,
                        &values[(size_t)s * in->table->n_fields + f]);
        if (fields[f].bytes)
            data += (fields[f].bytes + ASSEMBLE_ALIGN - 1) / ASSEMBLE_ALIGN * ASSEMBLE_ALIGN;
    }
}

/* --------------------------------------------------------------------------------------------------------------- fill
 * */

struct pad { /* one sample of a padded field */
    uint32_t n_dims, flat;   /* axes from `flat` on: whole in both, so one run of bytes */
    bool left;
    uint64_t run;            /* bytes of the axes from flat on */
    uint64_t element;
    uint64_t bits;
    bool uniform;            /* all bytes of the pad value are alike */
    bool only;               /* padding alone: the data comes by another way */
    uint32_t solid;          /* axes from `solid` on are contiguous in the field */
    uint64_t width[POISE_MAX_DIMS], n[POISE_MAX_DIMS]; /* of the field, of the sample; n[0] is 0 for an absent one */
    int64_t stride[POISE_MAX_DIMS];  /* in the field */
    uint64_t source[POISE_MAX_DIMS]; /* strides in the sample */
};

/* Repeats an element of at most 16 bytes over `bytes`, a multiple of it. Doubling, in pieces that stay in the cache. */
static void repeat(unsigned char *to, uint64_t bytes, const unsigned char *element, uint64_t element_bytes)
{
    uint64_t done = element_bytes < bytes ? element_bytes : bytes;

    memcpy(to, element, done);
    while (done < bytes) {
        uint64_t n = done < 16384 ? done : 16384 / element_bytes * element_bytes;

        if (n > bytes - done)
            n = bytes - done;
        memcpy(to + done, to, n);
        done += n;
    }
}

static void write_pad(const struct pad *pad, unsigned char *to, uint64_t bytes)
{
    unsigned char element[16] = { 0 };

    if (bytes == 0)
        return;
    if (pad->uniform) {
        memset(to, (int)(pad->bits & 0xff), bytes);
        return;
    }
    for (uint64_t i = 0; i < pad->element && i < sizeof pad->bits; i++) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        element[i] = (unsigned char)(pad->bits >> (8 * i));
#else
        element[(pad->element < 8 ? pad->element : 8) - 1 - i] = (unsigned char)(pad->bits >> (8 * i));
#endif
    }
    repeat(to, bytes, element, pad->element);
}

/* Pads `count` entries of `axis`. */
static void pad_range(const struct pad *pad, unsigned char *to, uint64_t count, uint32_t axis)
{
    if (axis >= pad->solid) {
        write_pad(pad, to, count * (axis < pad->n_dims ? (uint64_t)pad->stride[axis] : pad->element));
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        pad_range(pad, to + i * (uint64_t)pad->stride[axis], axis + 1 < pad->n_dims ? pad->width[axis + 1] : 1,
                  axis + 1);
}

static void copy_axes(const struct pad *pad, unsigned char *to, const unsigned char *from, uint32_t axis)
{
    uint64_t gap, n;
    unsigned char *at;

    if (axis == pad->flat) {
        if (!pad->only)
            copy_bytes(to, from, pad->run);
        return;
    }
    n = pad->n[axis];
    gap = pad->width[axis] - n;
    at = to + (pad->left ? gap * (uint64_t)pad->stride[axis] : 0);
    pad_range(pad, pad->left ? to : to + n * (uint64_t)pad->stride[axis], gap, axis);
    if (axis + 1 == pad->flat && (uint64_t)pad->stride[axis] == pad->run) { /* rows follow each other on both sides */
        if (n > 0 && !pad->only)
            copy_bytes(at, from, n * pad->run);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        copy_axes(pad, at + i * (uint64_t)pad->stride[axis], pad->only ? NULL : from + i * pad->source[axis], axis + 1);
}

static bool is_uniform(uint64_t bits, uint64_t element)
{
    uint64_t known = element < 8 ? element : 8;

    for (uint64_t i = 1; i < known; i++)
        if (((bits >> (8 * i)) & 0xff) != (bits & 0xff))
            return false;
    return element <= 8 || (bits & 0xff) == 0; /* the bits of a 16-byte element end in zeros */
}

static void fill_padded(const struct wire_field *field, const struct value *value, const struct poise_tensor *whole,
                        uint32_t row, bool only_padding)
{
    struct pad pad = { .n_dims = field->n_dims, .left = field->pad_side == POISE_PAD_LEFT, .bits = field->pad_bits,
                       .element = poise_dtype_bytes(field->dtype), .only = only_padding };
    uint64_t solid_bytes = pad.element, source = pad.element;
    unsigned char *to = (unsigned char *)whole->data + row * whole->stride[field->axis];

    pad.uniform = is_uniform(pad.bits, pad.element);
    pad.solid = pad.flat = pad.n_dims;
    pad.run = pad.element;
    for (uint32_t i = pad.n_dims; i-- > 0;) {
        uint32_t axis = i + (i >= field->axis);

        pad.width[i] = (uint64_t)whole->shape[axis];
        pad.stride[i] = whole->stride[axis];
        pad.n[i] = value->present ? (uint64_t)value->shape[i] : 0;
        pad.source[i] = source;
        source *= pad.n[i];
        if (pad.solid == i + 1 && (uint64_t)pad.stride[i] == solid_bytes) {
            pad.solid = i;
            solid_bytes *= pad.width[i];
            if (pad.flat == i + 1 && pad.n[i] == pad.width[i]) {
                pad.flat = i;
                pad.run = solid_bytes;
            }
        }
    }
    if (value->present)
        copy_axes(&pad, to, value->data, 0);
    else
        pad_range(&pad, to, pad.n_dims ? pad.width[0] : 1, 0);
}

/* Along axis 0 a sample is one run; along a later one a run for each index of the axes before it. */
static void fill_concat(const struct wire_field *field, const struct value *value, const struct poise_tensor *whole,
                        const struct poise_tensor *own)
{
    uint64_t run = (uint64_t)value->shape[field->axis] * (uint64_t)whole->stride[field->axis];
    uint64_t line = (uint64_t)whole->shape[field->axis] * (uint64_t)whole->stride[field->axis];
    uint64_t n_lines = own->bytes / run;
    unsigned char *to = own->data;
    const unsigned char *from = value->data;

    for (uint64_t i = 0; i < n_lines; i++)
        copy_bytes(to + i * line, from + i * run, run);
}

static void fill_opaque(const struct value *value, const struct poise_tensor *own, bool only_padding)
{
    uint64_t over = own->bytes % ASSEMBLE_OPAQUE_ALIGN;

    if (!only_padding)
        copy_bytes(own->data, value->data, own->bytes);
    if (over > 0)
        memset((unsigned char *)own->data + own->bytes, 0, ASSEMBLE_OPAQUE_ALIGN - over);
}

static void fill(const struct assemble_input *in, const struct poise_tensor *fields, const struct poise_tensor *values,
                 uint32_t first, uint32_t n, bool only_padding)
{
    for (uint32_t s = first; s < first + n && s < in->n_samples; s++)
        for (uint32_t f = 0; f < in->table->n_fields; f++) {
            const struct wire_field *field = &in->table->fields[f];
            const struct value *value = value_at(in, s, f);
            const struct poise_tensor *own = &values[(size_t)s * in->table->n_fields + f];

            if (fields[f].bytes == 0)
                continue;
            if (field->assembly == POISE_PADDED)
                fill_padded(field, value, &fields[f], s, only_padding);
            else if (own->bytes == 0)
                continue;
            else if (field->assembly == POISE_OPAQUE)
                fill_opaque(value, own, only_padding);
            else if (!only_padding)
                fill_concat(field, value, &fields[f], own);
        }
}

void assemble_fill(const struct assemble_input *in, const struct poise_tensor *fields,
                   const struct poise_tensor *values, uint32_t first, uint32_t n)
{
    fill(in, fields, values, first, n, false);
}

void assemble_pad(const struct assemble_input *in, const struct poise_tensor *fields,
                  const struct poise_tensor *values, uint32_t first, uint32_t n)
{
    fill(in, fields, values, first, n, true);
}
