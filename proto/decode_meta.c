/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c's structs -> META: every column must have just as many values as the counts say. */
#include "proto/decode.h"

static int optional_u64(struct load *l, const char *name, size_t n, const uint64_t *from, size_t want,
                        uint64_t **ret_column)
{
    return n == 0 ? 0 : wire_get_u64(l, name, n, from, want, ret_column);
}

/* Puts back the phases whose attention is length squared and did not travel. */
static int spread_attention(struct load *l, const PB(Meta) *from, struct wire_meta *to)
{
    const size_t n = to->n_samples;
    const uint64_t *next = from->attention;

    to->attention = block_take(l->block, n * to->n_phases * sizeof *to->attention);
    for (uint32_t p = 0; p < to->n_phases; p++) {
        uint64_t *column = to->attention ? to->attention + p * n : NULL;
        if (from->attention_phases & 1u << p) {
            if (column)
                memcpy(column, next, n * sizeof *column);
            next += n;
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            uint64_t square, length = from->length[p * n + i];
            if (__builtin_mul_overflow(length, length, &square))
                return err_set(l->err, -EPROTO,
                               "META of rank %u: length[%u][%zu] is %" PRIu64 ": too large to leave out its attention",
                               to->rank, p, i, length);
            if (column)
                column[i] = square;
        }
    }
    return 0;
}

static int attention(struct load *l, const PB(Meta) *from, struct wire_meta *to)
{
    const uint32_t phases = from->attention_phases;

    if (phases >> to->n_phases)
        return err_set(l->err, -EPROTO, "META of rank %u: attention_phases is %u with %u phases", to->rank, phases,
                       to->n_phases);
    if (from->n_attention != (size_t)to->n_samples * (size_t)__builtin_popcount(phases))
        return err_set(l->err, -EPROTO, "META of rank %u: attention has %zu values, not %u for each of %d phases",
                       to->rank, from->n_attention, to->n_samples, __builtin_popcount(phases));
    return phases == 0 ? 0 : spread_attention(l, from, to);
}

static int columns(struct load *l, const PB(Meta) *from, struct wire_meta *to)
{
    const size_t n = to->n_samples;

    if (optional_u64(l, "tag", from->n_tag, from->tag, n, &to->tag) < 0 ||
        wire_get_u64(l, "bytes", from->n_bytes, from->bytes, n, &to->bytes) < 0 ||
        optional_u64(l, "packed_bytes", from->n_packed_bytes, from->packed_bytes, n, &to->packed_bytes) < 0 ||
        wire_get_u64(l, "loss_tokens", from->n_loss_tokens, from->loss_tokens, n, &to->loss_tokens) < 0 ||
        (from->n_micro_batch > 0 &&
         wire_get_u32(l, "micro_batch", from->n_micro_batch, from->micro_batch, n, &to->micro_batch) < 0) ||
        optional_u64(l, "unit", from->n_unit, from->unit, n, &to->unit) < 0 ||
        wire_get_u64(l, "length", from->n_length, from->length, n * to->n_phases, &to->length) < 0 ||
        wire_get_u32(l, "extent", from->n_extent, from->extent, n * to->n_extents, &to->extent) < 0)
        return -EPROTO;
    if (from->unit_layout.len > 0) {
        if (from->unit_layout.len != n)
            return err_set(l->err, -EPROTO, "META of rank %u: unit_layout has %zu values, not %zu", to->rank,
                           from->unit_layout.len, n);
        to->unit_layout = block_take(l->block, n);
        if (to->unit_layout)
            memcpy(to->unit_layout, from->unit_layout.data, n);
    }
    return attention(l, from, to);
}

/* What a message without columns may not have after all; a rule of its own, or they would be dropped unseen. */
static int no_columns(struct load *l, const PB(Meta) *from)
{
    size_t n = from->n_tag + from->n_bytes + from->n_packed_bytes + from->n_loss_tokens + from->n_micro_batch +
               from->n_unit + from->unit_layout.len + from->n_length + from->n_attention + from->n_extent;

    if (n > 0)
        return err_set(l->err, -EPROTO, "META of rank %u: %zu values in columns, though it says that it has none",
                       from->rank, n);
    return 0;
}

static int get_meta(struct load *l, const PB(Meta) *from, struct wire_meta *to)
{
    *to = (struct wire_meta){
        .step = from->step,
        .rank = from->rank,
        .replica = from->replica,
        .kind = from->kind,
        .mode = from->mode,
        .speed_ppm = from->speed_ppm,
        .n_samples = from->n_samples,
        .n_phases = from->n_phases,
        .n_extents = from->n_extents,
        .has_columns = from->has_columns,
        .node = from->node,
        .sync_set = from->sync_set,
    };
    /* Now, for the products below to fit: the other values are checked when all is there. */
    if (from->n_samples > WIRE_MAX_SAMPLES || from->n_phases > POISE_MAX_PHASES || from->n_extents > POISE_MAX_EXTENTS)
        return err_set(l->err, -EPROTO, "META of rank %u: n_samples %u, n_phases %u, n_extents %u: at most %u, %u, %u",
                       from->rank, from->n_samples, from->n_phases, from->n_extents, WIRE_MAX_SAMPLES, POISE_MAX_PHASES,
                       POISE_MAX_EXTENTS);
    if (wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_incarnation(l, from->incarnation, &to->incarnation) < 0 ||
        wire_get_id(l, "digest", from->digest, &to->digest) < 0 ||
        wire_get_id(l, "table_hash", from->table_hash, &to->table_hash) < 0 ||
        wire_get_table(l, from->table, &to->table) < 0)
        return -EPROTO;
    if (from->kind == WIRE_META_BAD && wire_get_error(l, from->error, &to->error) < 0)
        return -EPROTO;
    return to->has_columns ? columns(l, from, to) : no_columns(l, from);
}

int wire_get_metas(struct load *l, const PB(Metas) *from, struct wire_message *msg)
{
    struct wire_meta *metas = block_take(l->block, from->n_metas * sizeof *metas);

    if (wire_get_few(l, "metas", from->n_metas, WIRE_MAX_RANKS) < 0)
        return -EPROTO;
    msg->meta.n_metas = (uint32_t)from->n_metas;
    msg->meta.metas = metas;
    for (size_t i = 0; i < from->n_metas; i++) {
        struct wire_meta measured;
        if (get_meta(l, from->metas[i], metas ? &metas[i] : &measured) < 0)
            return -EPROTO;
    }
    return 0;
}
