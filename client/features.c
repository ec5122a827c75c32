/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From struct poise_sample to columns. Everything that can be wrong with a submission is found here, before anything is
 * stored or sent, and named by sample: a rank that refuses its own batch can answer with poise_fail(), one that is
 * refused by the coordinator cannot. Optional columns that hold only defaults are left out.
 */
#include "client/features.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"
#include "proto/schema.h"

#define MAX_ARRIVAL (1u << 24) /* the planner's limit on micro-batches of a step */

struct build {
    const struct settings *settings;
    const struct wire_table *table;
    const unsigned char *samples;
    size_t sample_size;
    uint32_t n, n_phases, n_extents, rank;
    struct features *out;
    bool some_explicit, some_default; /* arrival micro-batches */
    bool some_attention, some_unit, some_layout;
    struct order {
        uint64_t key;
        uint32_t index;
    } * order; /* [n] samples in the order of a key */
};

static const struct poise_sample *sample_at(const struct build *b, uint32_t i)
{
    return (const struct poise_sample *)(const void *)(b->samples + (size_t)i * b->sample_size);
}

/* ----------------------------------------------------------------------------------------------------------- memory */

static void *piece(unsigned char *base, size_t *at, size_t n, size_t size)
{
    void *start = base ? base + *at : NULL;

    *at += (n * size + 15) & ~(size_t)15;
    return start;
}

/* Lays the arrays out; with base NULL only counts. n is below WIRE_MAX_SAMPLES, so sizes fit. */
static size_t lay_out(struct build *b, unsigned char *base)
{
    struct features *f = b->out;
    size_t n = b->n, at = 0;

    f->meta.bytes = piece(base, &at, n, 8);
    f->meta.packed_bytes = piece(base, &at, n, 8);
    f->meta.loss_tokens = piece(base, &at, n, 8);
    f->meta.length = piece(base, &at, n * b->n_phases, 8);
    f->meta.attention = piece(base, &at, n * b->n_phases, 8);
    f->meta.unit = piece(base, &at, n, 8);
    f->meta.micro_batch = piece(base, &at, n, 4);
    f->meta.extent = piece(base, &at, n * b->n_extents, 4);
    f->meta.unit_layout = piece(base, &at, n, 1);
    f->tag = piece(base, &at, n, 8);
    f->arrival = piece(base, &at, n, 4);
    f->arrival_loss_tokens = piece(base, &at, n, 8);
    f->checked = piece(base, &at, n, sizeof *f->checked);
    b->order = piece(base, &at, n, sizeof *b->order);
    return at;
}

/* ------------------------------------------------------------------------------------------------------- one sample */

static int take_lengths(struct build *b, uint32_t i, const struct poise_sample *sample, struct poise_err *err)
{
    const struct poise_phase *phases = b->settings->options.phases;
    uint64_t length[POISE_MAX_PHASES], cost;
    struct poise_err why;

    if (!sample->length)
        return err_set_at(err, -EINVAL, b->rank, i, NULL, "sample %u: length is NULL, the cost has %u phases", i,
                          b->n_phases);
    for (uint32_t k = 0; k < b->n_phases; k++) {
        if (sample->length[k] < 0)
            return err_set_at(err, -EINVAL, b->rank, i, NULL,
                              "sample %u: its length in phase %s is %lld: it must be 0 or more", i, phases[k].name,
                              (long long)sample->length[k]);
        length[k] = (uint64_t)sample->length[k];
        b->out->meta.length[(size_t)k * b->n + i] = length[k];
    }
    b->some_attention |= sample->attention != NULL;
    if (plan_sample_cost(phases, b->n_phases, length, sample->attention, &cost, &why) < 0)
        return err_set_at(err, why.code, b->rank, i, NULL, "sample %u: %s", i, why.text);
    return 0;
}

static int take_arrival(struct build *b, uint32_t i, const struct poise_sample *sample, struct poise_err *err)
{
    uint32_t n_micro_batches = b->settings->options.n_micro_batches;
    int64_t limit = n_micro_batches ? n_micro_batches : MAX_ARRIVAL;

    if (sample->micro_batch == POISE_DEFAULT_MICRO_BATCH) {
        b->some_default = true;
    } else if (sample->micro_batch < 0 || sample->micro_batch >= limit) {
        return err_set_at(err, -EINVAL, b->rank, i, NULL,
                          "sample %u: micro_batch is %lld: it must be POISE_DEFAULT_MICRO_BATCH or 0 to %lld", i,
                          (long long)sample->micro_batch, (long long)limit - 1);
    } else {
        b->some_explicit = true;
        b->out->arrival[i] = (uint32_t)sample->micro_batch;
    }
    if (b->some_default && b->some_explicit)
        return err_set_at(
            err, -EINVAL, b->rank, i, NULL,
            "sample %u: some samples of the step name their micro_batch and others leave it to the default: all "
            "or none",
            i);
    return 0;
}

static int take_sample(struct build *b, uint32_t i, struct poise_err *err)
{
    const struct poise_sample *sample = sample_at(b, i);
    bool plan_only = b->settings->plan_only;

    b->out->tag[i] = sample->tag;
    if (sample->loss_tokens < 0)
        return err_set_at(err, -EINVAL, b->rank, i, NULL, "sample %u: loss_tokens is %lld: it must be 0 or more", i,
                          (long long)sample->loss_tokens);
    b->out->meta.loss_tokens[i] = (uint64_t)sample->loss_tokens;
    if (sample->unit_layout > POISE_UNIT_TRANSPOSED)
        return err_set_at(err, -EINVAL, b->rank, i, NULL, "sample %u: unit_layout is %u: only POISE_UNIT_* are known",
                          i, sample->unit_layout);
    b->out->meta.unit[i] = sample->unit;
    b->out->meta.unit_layout[i] = (uint8_t)sample->unit_layout;
    b->some_unit |= sample->unit != 0;
    b->some_layout |= sample->unit_layout != POISE_UNIT_TOGETHER;
    if (plan_only && sample->n_values)
        return err_set_at(err, -EINVAL, b->rank, i, NULL, "sample %u: it has %u values, a plan-only group carries none",
                          i, sample->n_values);
    if (!plan_only && sample->bytes)
        return err_set_at(err, -EINVAL, b->rank, i, NULL,
                          "sample %u: bytes is %llu: they are counted from the values, except in a plan-only group", i,
                          (unsigned long long)sample->bytes);
    b->out->meta.bytes[i] = b->out->meta.packed_bytes[i] = sample->bytes;
    int rc = take_arrival(b, i, sample, err);
    return rc < 0 ? rc : take_lengths(b, i, sample, err);
}

/* Where some samples give attention and others do not, those get what its absence stands for. Cost was checked: a
 * square that does not fit belongs to a phase that does not look at it. */
static void take_attention(struct build *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct poise_sample *sample = sample_at(b, i);
        for (uint32_t k = 0; k < b->n_phases; k++) {
            size_t at = (size_t)k * b->n + i;
            uint64_t length = b->out->meta.length[at], square;
            if (sample->attention)
                square = sample->attention[k];
            else if (__builtin_mul_overflow(length, length, &square))
                square = UINT64_MAX;
            b->out->meta.attention[at] = square;
        }
    }
}

/* ------------------------------------------------------------------------------------------------- whole submission */

/* As the planner does where the column is absent: pieces of micro_batch_size, or n_micro_batches equal ones. */
static void default_arrival(struct build *b)
{
    uint32_t size = b->settings->options.micro_batch_size, n_pieces = b->settings->options.n_micro_batches;
    uint32_t piece = n_pieces ? b->n / n_pieces : b->n, longer = n_pieces ? b->n % n_pieces : 0;

    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t at = 0;
        if (size)
            at = i / size;
        else if (n_pieces)
            at = i < longer * (piece + 1) ? i / (piece + 1) : longer + (i - longer * (piece + 1)) / piece;
        b->out->arrival[i] = at;
    }
}

static int compare_order(const void *left, const void *right)
{
    const struct order *a = left, *c = right;

    if (a->key != c->key)
        return a->key < c->key ? -1 : 1;
    return a->index < c->index ? -1 : a->index > c->index;
}

static void sort_order(struct build *b)
{
    bool sorted = true;

    for (uint32_t i = 1; i < b->n; i++)
        sorted &= b->order[i - 1].key <= b->order[i].key;
    if (!sorted)
        qsort(b->order, b->n, sizeof *b->order, compare_order);
}

static int check_units(struct build *b, struct poise_err *err)
{
    for (uint32_t i = 0; i < b->n; i++)
        b->order[i] = (struct order){.key = b->out->meta.unit[i], .index = i};
    sort_order(b);
    for (uint32_t i = 1; i < b->n; i++) {
        uint32_t a = b->order[i - 1].index, c = b->order[i].index;
        if (b->order[i].key == 0 || b->order[i - 1].key != b->order[i].key)
            continue;
        if (b->out->meta.unit_layout[a] != b->out->meta.unit_layout[c])
            return err_set_at(err, -EINVAL, b->rank, c, NULL,
                              "samples %u and %u of unit %llu have different unit_layout", a, c,
                              (unsigned long long)b->order[i].key);
        if (b->some_explicit && b->out->arrival[a] != b->out->arrival[c])
            return err_set_at(err, -EINVAL, b->rank, c, NULL,
                              "samples %u and %u of unit %llu arrive in micro-batches %u and %u: a unit stays in one",
                              a, c, (unsigned long long)b->order[i].key, b->out->arrival[a], b->out->arrival[c]);
    }
    return 0;
}

/* What the padded fields of one arrival micro-batch take. Saturates: it is only compared with what there is. */
static uint64_t padded(const struct poise_pad *pads, uint32_t n_pads, const uint32_t *extent, uint64_t n_samples)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < n_pads; i++) {
        uint64_t bytes = pads[i].unit_bytes;
        bool over = __builtin_mul_overflow(bytes, n_samples, &bytes);
        for (uint32_t a = 0; a < POISE_MAX_EXTENTS; a++) {
            uint64_t width = pads[i].fixed[a] ? pads[i].fixed[a] : extent[a], multiple = pads[i].multiple;
            if (!(pads[i].axis_mask & 1u << a))
                continue;
            if (multiple > 1)
                width += (multiple - width % multiple) % multiple;
            over |= __builtin_mul_overflow(bytes, width, &bytes);
        }
        if (over || __builtin_add_overflow(total, bytes, &total))
            return UINT64_MAX;
    }
    return total;
}

/* One arrival micro-batch: order[first .. end). */
static int take_group(struct build *b, uint32_t first, uint32_t end, const struct poise_pad *pads, uint32_t n_pads,
                      struct poise_err *err)
{
    uint32_t extent[POISE_MAX_EXTENTS] = {0};
    uint64_t loss = 0, bytes;

    for (uint32_t i = first; i < end; i++) {
        uint32_t s = b->order[i].index;
        if (__builtin_add_overflow(loss, b->out->meta.loss_tokens[s], &loss))
            return err_set_at(err, -ERANGE, b->rank, s, NULL,
                              "sample %u: loss_tokens of its micro-batch overflow 64 bits", s);
        for (uint32_t a = 0; a < b->n_extents; a++) {
            if (b->out->checked[s].extent[a] > extent[a])
                extent[a] = b->out->checked[s].extent[a];
        }
    }
    for (uint32_t i = first; i < end; i++)
        b->out->arrival_loss_tokens[b->order[i].index] = loss;
    bytes = padded(pads, n_pads, extent, end - first);
    if (__builtin_add_overflow(b->out->padded_bytes, bytes, &b->out->padded_bytes))
        b->out->padded_bytes = UINT64_MAX;
    return 0;
}

static int take_groups(struct build *b, struct poise_err *err)
{
    struct poise_pad pads[POISE_MAX_FIELDS];
    uint32_t none[POISE_MAX_EXTENTS] = {0};
    uint32_t n_pads = b->table->n_fields ? schema_pads(b->table, none, pads) : 0;
    int rc = 0;

    for (uint32_t i = 0; i < b->n; i++)
        b->order[i] = (struct order){.key = b->out->arrival[i], .index = i};
    sort_order(b);
    for (uint32_t first = 0, end; rc == 0 && first < b->n; first = end) {
        end = first + 1;
        while (end < b->n && b->order[end].key == b->order[first].key)
            end++;
        rc = take_group(b, first, end, pads, n_pads, err);
    }
    for (uint32_t i = 0; i < b->n; i++) {
        if (__builtin_add_overflow(b->out->padded_bytes, b->out->meta.packed_bytes[i], &b->out->padded_bytes))
            b->out->padded_bytes = UINT64_MAX;
    }
    return rc;
}

static int take_values(struct build *b, struct poise_err *err)
{
    struct features *f = b->out;
    int rc;

    if (b->settings->plan_only)
        return 0;
    rc = stage_check(b->table, b->rank, (const struct poise_sample *)(const void *)b->samples, b->n, b->sample_size,
                     f->checked, &f->n_values, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < b->n; i++) {
        f->meta.bytes[i] = f->checked[i].bytes;
        f->meta.packed_bytes[i] = f->checked[i].packed_bytes;
        for (uint32_t a = 0; a < b->n_extents; a++)
            f->meta.extent[(size_t)a * b->n + i] = f->checked[i].extent[a];
    }
    return 0;
}

static int take_all(struct build *b, struct poise_err *err)
{
    struct wire_meta *meta = &b->out->meta;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < b->n; i++)
        rc = take_sample(b, i, err);
    if (rc == 0)
        rc = take_values(b, err);
    if (rc == 0 && !b->some_explicit)
        default_arrival(b);
    if (rc == 0 && b->some_unit)
        rc = check_units(b, err);
    if (rc == 0)
        rc = take_groups(b, err);
    if (rc < 0)
        return rc;
    if (b->some_attention)
        take_attention(b);
    else
        meta->attention = NULL;
    if (b->some_explicit)
        memcpy(meta->micro_batch, b->out->arrival, b->n * sizeof *meta->micro_batch);
    else
        meta->micro_batch = NULL;
    if (!b->some_unit)
        meta->unit = NULL;
    if (!b->some_unit || !b->some_layout)
        meta->unit_layout = NULL;
    if (b->n_extents == 0)
        meta->extent = NULL;
    return 0;
}

int features_make(const struct settings *settings, const struct wire_table *table, const struct poise_sample *samples,
                  uint32_t n_samples, size_t sample_size, struct features *ret_features, struct poise_err *err)
{
    const char *axes[POISE_MAX_EXTENTS];
    struct features f;
    struct build b = {.settings = settings,
                      .table = table,
                      .samples = (const unsigned char *)samples,
                      .n = n_samples,
                      .sample_size = sample_size,
                      .n_phases = settings->options.n_phases,
                      .rank = settings->join.rank,
                      .out = &f};
    int rc;

    if (n_samples >= WIRE_MAX_SAMPLES)
        return err_set(err, -EINVAL, "n_samples is %u: a rank's step has fewer than %u", n_samples, WIRE_MAX_SAMPLES);
    memset(&f, 0, sizeof f);
    b.n_extents = table->n_fields ? schema_axes(table, axes) : 0;
    f.block = calloc(1, lay_out(&b, NULL) + 1);
    if (!f.block)
        return err_set(err, -ENOMEM, "no memory for the metadata of %u samples", n_samples);
    lay_out(&b, f.block);
    f.meta.kind = WIRE_META_SAMPLES;
    f.meta.n_samples = n_samples;
    f.meta.n_phases = b.n_phases;
    f.meta.n_extents = b.n_extents;
    f.meta.has_columns = true;
    rc = take_all(&b, err);
    if (rc < 0) {
        free(f.block);
        return rc;
    }
    f.meta.digest = wire_meta_digest(&f.meta, f.tag);
    *ret_features = f;
    return 0;
}

void features_fini(struct features *features)
{
    free(features->block);
    features->block = NULL;
}
