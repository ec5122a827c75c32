/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deep copies without a detour through bytes. Runs twice, see memory.h; while measuring, nothing may be written to what
 * the source's arrays hold, so their elements are copied to the stack first.
 */
#include <string.h>

#include "proto/codec.h"

/* The copy; or, while measuring, the original. */
static void *copied(struct block *block, const void *from, size_t n_bytes)
{
    if (!from)
        return NULL;
    void *to = block_take(block, n_bytes);
    if (!block->base)
        return (void *)from;
    return to ? memcpy(to, from, n_bytes) : NULL;
}

static char *copied_text(struct block *block, const char *from)
{
    return copied(block, from, from ? strlen(from) + 1 : 0);
}

static struct wire_table *copied_table(struct block *block, const struct wire_table *from)
{
    struct wire_table *to = copied(block, from, sizeof *to);

    if (!from)
        return NULL;
    struct wire_field *fields = copied(block, from->fields, from->n_fields * sizeof *fields);
    if (block->base)
        to->fields = fields;
    return to;
}

static void copy_meta(struct block *block, struct wire_meta *meta)
{
    const size_t n = meta->n_samples;

    meta->table = copied_table(block, meta->table);
    meta->tag = copied(block, meta->tag, n * sizeof *meta->tag);
    meta->bytes = copied(block, meta->bytes, n * sizeof *meta->bytes);
    meta->packed_bytes = copied(block, meta->packed_bytes, n * sizeof *meta->packed_bytes);
    meta->loss_tokens = copied(block, meta->loss_tokens, n * sizeof *meta->loss_tokens);
    meta->micro_batch = copied(block, meta->micro_batch, n * sizeof *meta->micro_batch);
    meta->unit = copied(block, meta->unit, n * sizeof *meta->unit);
    meta->unit_layout = copied(block, meta->unit_layout, n * sizeof *meta->unit_layout);
    meta->length = copied(block, meta->length, n * meta->n_phases * sizeof *meta->length);
    meta->attention = copied(block, meta->attention, n * meta->n_phases * sizeof *meta->attention);
    meta->extent = copied(block, meta->extent, n * meta->n_extents * sizeof *meta->extent);
}

static void copy_join(struct block *block, struct wire_join *join)
{
    join->coordinators = copied_text(block, join->coordinators);
    join->options = copied(block, join->options, join->n_options * sizeof *join->options);
    for (uint32_t i = 0; join->options && i < join->n_options; i++) {
        char *key = copied_text(block, join->options[i].key), *value = copied_text(block, join->options[i].value);
        if (block->base)
            join->options[i] = (struct wire_option){.key = key, .value = value};
    }
}

static void copy_slice(struct block *block, struct wire_slice *slice, uint32_t n_micro_batches)
{
    slice->in_rank = copied(block, slice->in_rank, slice->n_in * sizeof *slice->in_rank);
    slice->in_index = copied(block, slice->in_index, slice->n_in * sizeof *slice->in_index);
    slice->in_bytes = copied(block, slice->in_bytes, slice->n_in * sizeof *slice->in_bytes);
    slice->count = copied(block, slice->count, n_micro_batches * sizeof *slice->count);
    slice->out_rank = copied(block, slice->out_rank, slice->n_out * sizeof *slice->out_rank);
    slice->out_micro_batch = copied(block, slice->out_micro_batch, slice->n_out * sizeof *slice->out_micro_batch);
    slice->out_row = copied(block, slice->out_row, slice->n_out * sizeof *slice->out_row);
    slice->out_place = copied(block, slice->out_place, slice->n_out * sizeof *slice->out_place);
}

static void copy_metas(struct block *block, struct wire_message *msg)
{
    msg->meta.metas = copied(block, msg->meta.metas, msg->meta.n_metas * sizeof *msg->meta.metas);
    for (uint32_t i = 0; msg->meta.metas && i < msg->meta.n_metas; i++) {
        struct wire_meta meta = msg->meta.metas[i];
        copy_meta(block, &meta);
        if (block->base)
            msg->meta.metas[i] = meta;
    }
}

static void copy_members(struct block *block, struct wire_message *msg)
{
    msg->members.joins = copied(block, msg->members.joins, msg->members.n_joins * sizeof *msg->members.joins);
    for (uint32_t i = 0; msg->members.joins && i < msg->members.n_joins; i++) {
        struct wire_join join = msg->members.joins[i];
        copy_join(block, &join);
        if (block->base)
            msg->members.joins[i] = join;
    }
}

static void copy_outcome(struct block *block, struct wire_outcome *outcome)
{
    outcome->table = copied_table(block, outcome->table);
    outcome->slices = copied(block, outcome->slices, outcome->n_slices * sizeof *outcome->slices);
    for (uint32_t i = 0; outcome->slices && i < outcome->n_slices; i++) {
        struct wire_slice slice = outcome->slices[i];
        copy_slice(block, &slice, outcome->n_micro_batches);
        if (block->base)
            outcome->slices[i] = slice;
    }
}

void wire_copy_body(struct block *block, struct wire_message *msg)
{
    switch (msg->type) {
    case WIRE_JOIN:
        copy_join(block, &msg->join);
        break;
    case WIRE_META:
        copy_metas(block, msg);
        break;
    case WIRE_ROSTER:
        msg->roster.members = copied(block, msg->roster.members, msg->roster.n_members * sizeof *msg->roster.members);
        msg->roster.payload_key = copied(block, msg->roster.payload_key, WIRE_KEY_BYTES);
        msg->roster.listens = copied(block, msg->roster.listens, msg->roster.n_listens * sizeof *msg->roster.listens);
        break;
    case WIRE_OUTCOME:
        copy_outcome(block, &msg->outcome);
        break;
    case WIRE_MEMBERS:
        copy_members(block, msg);
        break;
    case WIRE_HEARTBEAT:
        msg->heartbeat.epochs =
            copied(block, msg->heartbeat.epochs, msg->heartbeat.n_epochs * sizeof *msg->heartbeat.epochs);
        break;
    default: /* nothing in it points anywhere */
        break;
    }
}
