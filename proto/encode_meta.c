/* SPDX-License-Identifier: Apache-2.0 */
/*
 * META -> protobuf-c's structs. Columns are borrowed as they are. Attention is the one that is thinned: a phase whose
 * attention is length squared for all samples is not sent, which saves 4 bytes a sample of every text phase.
 */
#include <string.h>

#include "proto/encode.h"

/* Bits of the phases whose attention is not length squared. */
static uint32_t attention_phases(const struct wire_meta *from)
{
    uint32_t phases = 0;

    for (uint32_t p = 0; from->attention && p < from->n_phases; p++) {
        const uint64_t *length = from->length + (size_t)p * from->n_samples;
        const uint64_t *attention = from->attention + (size_t)p * from->n_samples;
        for (uint32_t i = 0; i < from->n_samples; i++) {
            uint64_t square;
            if (__builtin_mul_overflow(length[i], length[i], &square) || square != attention[i]) {
                phases |= 1u << p;
                break;
            }
        }
    }
    return phases;
}

static bool attention(struct pool *pool, const struct wire_meta *from, PB(Meta) *to)
{
    size_t n = from->n_samples;

    to->attention_phases = attention_phases(from);
    if (to->attention_phases == 0)
        return true;
    to->attention = wire_pool_take(pool, n * from->n_phases * sizeof *to->attention);
    if (!to->attention)
        return false;
    for (uint32_t p = 0; p < from->n_phases; p++) {
        if (!(to->attention_phases & 1u << p))
            continue;
        memcpy(to->attention + to->n_attention, from->attention + p * n, n * sizeof *to->attention);
        to->n_attention += n;
    }
    return true;
}

static bool columns(struct pool *pool, const struct wire_meta *from, PB(Meta) *to)
{
    size_t n = from->n_samples;

    to->tag = from->tag;
    to->n_tag = from->tag ? n : 0;
    to->bytes = from->bytes;
    to->n_bytes = n;
    to->packed_bytes = from->packed_bytes;
    to->n_packed_bytes = from->packed_bytes ? n : 0;
    to->loss_tokens = from->loss_tokens;
    to->n_loss_tokens = n;
    to->micro_batch = from->micro_batch;
    to->n_micro_batch = from->micro_batch ? n : 0;
    to->unit = from->unit;
    to->n_unit = from->unit ? n : 0;
    to->unit_layout = (ProtobufCBinaryData){.len = from->unit_layout ? n : 0, .data = from->unit_layout};
    to->length = from->length;
    to->n_length = n * from->n_phases;
    to->extent = from->extent;
    to->n_extent = n * from->n_extents;
    return attention(pool, from, to);
}

static PB(Meta) *meta(struct pool *pool, const struct wire_meta *from)
{
    NEW(pool, Meta, to)
    poise__v1__meta__init(to);
    to->step = from->step;
    to->rank = from->rank;
    to->replica = from->replica;
    to->kind = from->kind;
    to->mode = from->mode;
    to->speed_ppm = from->speed_ppm;
    to->n_samples = from->n_samples;
    to->n_phases = from->n_phases;
    to->n_extents = from->n_extents;
    to->has_columns = from->has_columns;
    to->node = from->node;
    to->sync_set = from->sync_set;
    to->incarnation = wire_put_incarnation(pool, &from->incarnation);
    if (!to->incarnation || !wire_put_id(pool, from->epoch, &to->epoch) ||
        !wire_put_id(pool, from->digest, &to->digest) || !wire_put_id(pool, from->table_hash, &to->table_hash))
        return NULL;
    if (from->table && !(to->table = wire_put_table(pool, from->table)))
        return NULL;
    if (from->kind == WIRE_META_BAD && !(to->error = wire_put_error(pool, &from->error)))
        return NULL;
    if (from->has_columns && !columns(pool, from, to))
        return NULL;
    return to;
}

PB(Metas) *wire_put_metas(struct pool *pool, const struct wire_message *msg)
{
    NEW(pool, Metas, to)
    poise__v1__metas__init(to);
    to->n_metas = msg->meta.n_metas;
    to->metas = wire_pool_take(pool, to->n_metas * sizeof *to->metas);
    if (!to->metas)
        return NULL;
    for (size_t i = 0; i < to->n_metas; i++) {
        to->metas[i] = meta(pool, &msg->meta.metas[i]);
        if (!to->metas[i])
            return NULL;
    }
    return to;
}
