/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A view of a sample is contiguous from some axis on: as a whole where a field is concatenated along its first axis,
 * row by row where it is padded or concatenated along a later one. So the innermost contiguous run is copied at a
 * time, and only a run's begin has to be found by dividing the offset through the axes before it.
 */
#include "client/scatter.h"

#include "client/copy.h"

/* Bytes of the contiguous tail; *ret_axis: the first axis of it. */
static uint64_t tail_of(const struct poise_tensor *tensor, uint32_t *ret_axis)
{
    uint64_t run = poise_dtype_bytes(tensor->dtype);
    uint32_t axis = tensor->n_dims;

    while (axis > 0 && (tensor->shape[axis - 1] == 1 || (uint64_t)tensor->stride[axis - 1] == run))
        run *= (uint64_t)tensor->shape[--axis];
    *ret_axis = axis;
    return run;
}

/* Where run number i of the tail begins. */
static unsigned char *run_at(const struct poise_tensor *tensor, uint32_t axis, uint64_t i)
{
    unsigned char *at = tensor->data;

    while (axis-- > 0) {
        at += (int64_t)(i % (uint64_t)tensor->shape[axis]) * tensor->stride[axis];
        i /= (uint64_t)tensor->shape[axis];
    }
    return at;
}

void scatter_tensor(const struct poise_tensor *tensor, uint64_t offset, const void *bytes, uint64_t n_bytes)
{
    const unsigned char *from = bytes;
    uint32_t axis;
    uint64_t run = tail_of(tensor, &axis);

    while (n_bytes > 0) {
        uint64_t in_run = offset % run, n = run - in_run < n_bytes ? run - in_run : n_bytes;

        copy_bytes(run_at(tensor, axis, offset / run) + in_run, from, n);
        from += n;
        offset += n;
        n_bytes -= n;
    }
}

/* To the field that holds the offset; past the last one at the sample's end. */
static void settle(struct scatter *at)
{
    while (at->field < at->table->n_fields &&
           (!at->values[at->field].present || at->offset >= at->tensors[at->field].bytes)) {
        at->offset -= at->values[at->field].present ? at->tensors[at->field].bytes : 0;
        at->field++;
    }
}

void scatter_begin(struct scatter *at, const struct wire_table *table, const struct value *values,
                   const struct poise_tensor *tensors, uint64_t offset)
{
    *at = (struct scatter){.table = table, .values = values, .tensors = tensors, .offset = offset};
    settle(at);
}

uint64_t scatter_put(struct scatter *at, const void *bytes, uint64_t n_bytes)
{
    const unsigned char *from = bytes;
    uint64_t left = n_bytes;

    while (left > 0 && at->field < at->table->n_fields) {
        const struct poise_tensor *tensor = &at->tensors[at->field];
        uint64_t n = tensor->bytes - at->offset < left ? tensor->bytes - at->offset : left;

        scatter_tensor(tensor, at->offset, from, n);
        from += n;
        left -= n;
        at->offset += n;
        settle(at);
    }
    return n_bytes - left;
}
