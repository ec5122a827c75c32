/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c's structs -> plain structs: the parts that several messages share. See decode.c. */
#include "proto/decode.h"

static int end_of_text(struct load *l, const char *name, ProtobufCBinaryData from, size_t size)
{
    if (from.len >= size)
        return err_set(l->err, -EPROTO, "%s: %s has %zu bytes, at most %zu", l->what, name, from.len, size - 1);
    if (from.len > 0 && memchr(from.data, 0, from.len))
        return err_set(l->err, -EPROTO, "%s: %s has a zero byte in its %zu bytes", l->what, name, from.len);
    return 0;
}

int wire_get_text(struct load *l, const char *name, ProtobufCBinaryData from, char *dst, size_t size)
{
    if (end_of_text(l, name, from, size) < 0)
        return -EPROTO;
    if (from.len > 0)
        memcpy(dst, from.data, from.len);
    memset(dst + from.len, 0, size - from.len);
    return 0;
}

int wire_get_string(struct load *l, const char *name, ProtobufCBinaryData from, size_t size, char **ret_text)
{
    if (end_of_text(l, name, from, size) < 0)
        return -EPROTO;
    char *text = block_take(l->block, from.len + 1);
    if (text) {
        if (from.len > 0)
            memcpy(text, from.data, from.len);
        text[from.len] = 0;
    }
    *ret_text = text;
    return 0;
}

int wire_get_id(struct load *l, const char *name, ProtobufCBinaryData from, struct wire_id *ret_id)
{
    struct wire_id id = {0};

    if (from.len != 0 && from.len != 16)
        return err_set(l->err, -EPROTO, "%s: %s has %zu bytes, not 16", l->what, name, from.len);
    for (size_t i = 0; i < from.len / 2; i++) {
        id.hi = id.hi << 8 | from.data[i];
        id.lo = id.lo << 8 | from.data[8 + i];
    }
    *ret_id = id;
    return 0;
}

int wire_get_incarnation(struct load *l, const PB(Incarnation) *from, struct wire_incarnation *to)
{
    (void)l;
    *to = (struct wire_incarnation){0};
    if (from) {
        to->attempt = from->attempt;
        to->opened_ns = from->opened_ns;
        to->random = from->random;
    }
    return 0;
}

int wire_get_error(struct load *l, const PB(Error) *from, struct poise_err *to)
{
    if (!from)
        return err_set(l->err, -EPROTO, "%s: its error is missing", l->what);
    *to = (struct poise_err){.code = from->code, .rank = from->rank, .sample = from->sample, .step = from->step};
    if (wire_get_text(l, "error.field", from->field, to->field, sizeof to->field) < 0 ||
        wire_get_text(l, "error.text", from->text, to->text, sizeof to->text) < 0)
        return -EPROTO;
    return 0;
}

int wire_get_few(struct load *l, const char *name, size_t n, size_t max)
{
    if (n > max)
        return err_set(l->err, -EPROTO, "%s: %zu values of %s, at most %zu", l->what, n, name, max);
    return 0;
}

static int count(struct load *l, const char *name, size_t n, size_t want)
{
    if (n != want)
        return err_set(l->err, -EPROTO, "%s: %s has %zu values, not %zu", l->what, name, n, want);
    return 0;
}

int wire_get_u64(struct load *l, const char *name, size_t n, const uint64_t *from, size_t want, uint64_t **ret_column)
{
    if (count(l, name, n, want) < 0)
        return -EPROTO;
    *ret_column = block_take(l->block, n * sizeof *from);
    if (*ret_column)
        memcpy(*ret_column, from, n * sizeof *from);
    return 0;
}

int wire_get_u32(struct load *l, const char *name, size_t n, const uint32_t *from, size_t want, uint32_t **ret_column)
{
    if (count(l, name, n, want) < 0)
        return -EPROTO;
    *ret_column = block_take(l->block, n * sizeof *from);
    if (*ret_column)
        memcpy(*ret_column, from, n * sizeof *from);
    return 0;
}

static int get_field(struct load *l, const PB(Field) *from, struct wire_field *to)
{
    *to = (struct wire_field){
        .dtype = from->dtype,
        .assembly = from->assembly,
        .n_dims = (uint32_t)from->n_shape,
        .axis = from->axis,
        .pad_side = from->pad_side,
        .pad_scope = from->pad_scope,
        .pad_multiple = from->pad_multiple,
        .n_divisors = (uint32_t)from->n_divisor,
        .pad_to = from->pad_to,
        .pad_bits = from->pad_bits,
    };
    if (wire_get_text(l, "field name", from->name, to->name, sizeof to->name) < 0 ||
        wire_get_text(l, "rows_of", from->rows_of, to->rows_of, sizeof to->rows_of) < 0 ||
        wire_get_few(l, "shape", from->n_shape, POISE_MAX_DIMS) < 0 ||
        wire_get_few(l, "divisor", from->n_divisor, POISE_MAX_DIMS) < 0 ||
        (from->n_axis_name > 0 && count(l, "axis_name", from->n_axis_name, from->n_shape) < 0))
        return -EPROTO;
    for (size_t i = 0; i < from->n_shape; i++)
        to->shape[i] = from->shape[i];
    for (size_t i = 0; i < from->n_divisor; i++)
        to->divisor[i] = from->divisor[i];
    for (size_t i = 0; i < from->n_axis_name; i++)
        if (wire_get_text(l, "axis_name", from->axis_name[i], to->axis_name[i], sizeof to->axis_name[i]) < 0)
            return -EPROTO;
    return 0;
}

int wire_get_table(struct load *l, const PB(Table) *from, struct wire_table **ret_table)
{
    if (!from) {
        *ret_table = NULL;
        return 0;
    }
    if (wire_get_few(l, "fields", from->n_fields, POISE_MAX_FIELDS) < 0)
        return -EPROTO;
    struct wire_table *table = block_take(l->block, sizeof *table);
    struct wire_field *fields = block_take(l->block, from->n_fields * sizeof *fields);
    if (table)
        *table = (struct wire_table){.n_fields = (uint32_t)from->n_fields, .fields = fields};
    for (size_t i = 0; i < from->n_fields; i++) {
        struct wire_field measured;
        if (get_field(l, from->fields[i], fields ? &fields[i] : &measured) < 0)
            return -EPROTO;
    }
    *ret_table = table;
    return 0;
}

int wire_get_key(struct load *l, ProtobufCBinaryData from, uint8_t ret_key[WIRE_KEY_BYTES])
{
    if (from.len != 0 && from.len != WIRE_KEY_BYTES)
        return err_set(l->err, -EPROTO, "%s: payload_key has %zu bytes, not %u", l->what, from.len, WIRE_KEY_BYTES);
    if (from.len == WIRE_KEY_BYTES)
        memcpy(ret_key, from.data, WIRE_KEY_BYTES);
    return 0;
}

static int get_options(struct load *l, const PB(Join) *from, struct wire_join *to)
{
    if (count(l, "option_value", from->n_option_value, from->n_option_key) < 0 ||
        wire_get_few(l, "options", from->n_option_key, WIRE_MAX_OPTIONS) < 0)
        return -EPROTO;
    to->n_options = (uint32_t)from->n_option_key;
    to->options = block_take(l->block, to->n_options * sizeof *to->options);
    for (uint32_t i = 0; i < to->n_options; i++) {
        struct wire_option measured, *option = to->options ? &to->options[i] : &measured;
        if (wire_get_string(l, "option key", from->option_key[i], POISE_MAX_NAME, &option->key) < 0 ||
            wire_get_string(l, "option value", from->option_value[i], WIRE_MAX_OPTION_BYTES, &option->value) < 0)
            return -EPROTO;
    }
    return 0;
}

int wire_get_join(struct load *l, const PB(Join) *from, struct wire_join *to)
{
    *to = (struct wire_join){
        .rank = from->rank,
        .n_ranks = from->n_ranks,
        .replica = from->replica,
        .n_replicas = from->n_replicas,
        .first_step = from->first_step,
        .wire_version = from->wire_version,
        .planner_version = from->planner_version,
        .sync_set = from->sync_set,
        .pid = from->pid,
        .uid = from->uid,
    };
    if (wire_get_text(l, "job", from->job, to->job, sizeof to->job) < 0 ||
        wire_get_text(l, "group", from->group, to->group, sizeof to->group) < 0 ||
        wire_get_text(l, "host", from->host, to->host, sizeof to->host) < 0 ||
        wire_get_incarnation(l, from->incarnation, &to->incarnation) < 0 ||
        wire_get_id(l, "epoch", from->epoch, &to->epoch) < 0 ||
        wire_get_text(l, "payload", from->payload, to->payload, sizeof to->payload) < 0 ||
        wire_get_key(l, from->payload_key, to->payload_key) < 0 ||
        wire_get_string(l, "coordinators", from->coordinators, WIRE_MAX_COORDINATOR_BYTES, &to->coordinators) < 0)
        return -EPROTO;
    return get_options(l, from, to);
}
