/* SPDX-License-Identifier: Apache-2.0 */
/* Plain structs -> protobuf-c's structs: the parts that several messages share. See encode.c. */
#include <string.h>

#include "proto/encode.h"

bool wire_put_id(struct pool *pool, struct wire_id id, ProtobufCBinaryData *ret_data)
{
    if (wire_id_none(id))
        return true; /* a default is not sent */
    uint8_t *bytes = wire_pool_take(pool, 16);
    if (!bytes)
        return false;
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(id.hi >> (56 - 8 * i));
        bytes[8 + i] = (uint8_t)(id.lo >> (56 - 8 * i));
    }
    *ret_data = (ProtobufCBinaryData){.len = 16, .data = bytes};
    return true;
}

PB(Incarnation) *wire_put_incarnation(struct pool *pool, const struct wire_incarnation *from)
{
    NEW(pool, Incarnation, to)
    poise__v1__incarnation__init(to);
    to->attempt = from->attempt;
    to->opened_ns = from->opened_ns;
    to->random = from->random;
    return to;
}

/* The text of an error may quote what a user passed in, in any encoding: mended, so that the news gets through. */
static ProtobufCBinaryData mended(char *copy, const char *from, size_t size)
{
    size_t n = strnlen(from, size - 1);

    memcpy(copy, from, n);
    wire_text_mend(copy, n);
    return (ProtobufCBinaryData){.len = n, .data = (uint8_t *)copy};
}

PB(Error) *wire_put_error(struct pool *pool, const struct poise_err *from)
{
    char *field = wire_pool_take(pool, sizeof from->field), *words = wire_pool_take(pool, sizeof from->text);
    NEW(pool, Error, to)

    if (!field || !words)
        return NULL;
    poise__v1__error__init(to);
    to->code = from->code;
    to->rank = from->rank;
    to->sample = from->sample;
    to->step = from->step;
    to->field = mended(field, from->field, sizeof from->field);
    to->text = mended(words, from->text, sizeof from->text);
    return to;
}

static bool has_axis_names(const struct wire_field *from)
{
    for (uint32_t i = 0; i < from->n_dims; i++)
        if (from->axis_name[i][0])
            return true;
    return false;
}

static PB(Field) *field(struct pool *pool, const struct wire_field *from)
{
    NEW(pool, Field, to)
    poise__v1__field__init(to);
    to->name = put_text(from->name);
    to->dtype = from->dtype;
    to->assembly = from->assembly;
    to->axis = from->axis;
    to->n_shape = from->n_dims;
    to->shape = (int64_t *)from->shape;
    to->pad_side = from->pad_side;
    to->pad_scope = from->pad_scope;
    to->pad_multiple = from->pad_multiple;
    to->pad_to = from->pad_to;
    to->pad_bits = from->pad_bits;
    to->rows_of = put_text(from->rows_of);
    to->n_divisor = from->n_divisors;
    to->divisor = (uint32_t *)from->divisor;
    if (!has_axis_names(from))
        return to;
    to->axis_name = wire_pool_take(pool, from->n_dims * sizeof *to->axis_name);
    if (!to->axis_name)
        return NULL;
    to->n_axis_name = from->n_dims;
    for (uint32_t i = 0; i < from->n_dims; i++)
        to->axis_name[i] = put_text(from->axis_name[i]);
    return to;
}

PB(Table) *wire_put_table(struct pool *pool, const struct wire_table *from)
{
    NEW(pool, Table, to)
    poise__v1__table__init(to);
    to->n_fields = from->n_fields;
    to->fields = wire_pool_take(pool, from->n_fields * sizeof *to->fields);
    if (!to->fields)
        return NULL;
    for (uint32_t i = 0; i < from->n_fields; i++) {
        to->fields[i] = field(pool, &from->fields[i]);
        if (!to->fields[i])
            return NULL;
    }
    return to;
}

PB(Join) *wire_put_join(struct pool *pool, const struct wire_join *from)
{
    NEW(pool, Join, to)
    poise__v1__join__init(to);
    to->job = put_text(from->job);
    to->group = put_text(from->group);
    to->rank = from->rank;
    to->n_ranks = from->n_ranks;
    to->replica = from->replica;
    to->n_replicas = from->n_replicas;
    to->first_step = from->first_step;
    to->wire_version = from->wire_version;
    to->planner_version = from->planner_version;
    to->sync_set = from->sync_set;
    to->pid = from->pid;
    to->uid = from->uid;
    to->host = put_text(from->host);
    to->coordinators = put_text(from->coordinators);
    to->payload = put_text(from->payload);
    if (wire_key_there(from->payload_key))
        to->payload_key = (ProtobufCBinaryData){.len = WIRE_KEY_BYTES, .data = (uint8_t *)(uintptr_t)from->payload_key};
    to->incarnation = wire_put_incarnation(pool, &from->incarnation);
    to->n_option_key = to->n_option_value = from->n_options;
    to->option_key = wire_pool_take(pool, from->n_options * sizeof *to->option_key);
    to->option_value = wire_pool_take(pool, from->n_options * sizeof *to->option_value);
    if (!to->incarnation || !to->option_key || !to->option_value || !wire_put_id(pool, from->epoch, &to->epoch))
        return NULL;
    for (uint32_t i = 0; i < from->n_options; i++) {
        to->option_key[i] = put_text(from->options[i].key);
        to->option_value[i] = put_text(from->options[i].value);
    }
    return to;
}
