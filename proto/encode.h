/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to proto/: the parts that encode.c puts together. Each returns NULL or false only where there is no
 * memory. */
#ifndef POISE_PROTO_ENCODE_H
#define POISE_PROTO_ENCODE_H

#include <string.h>

#include "proto/codec.h"

/* A new struct of protobuf-c in the pool; ends the caller with NULL where there is no memory. */
#define NEW(pool, name, var)                                                                                           \
    PB(name) *var = wire_pool_take(pool, sizeof(PB(name)));                                                            \
    if (!var)                                                                                                          \
        return NULL;

static inline ProtobufCBinaryData put_text(const char *s) /* borrowed */
{
    return (ProtobufCBinaryData){.len = s ? strlen(s) : 0, .data = (uint8_t *)s};
}

bool wire_put_id(struct pool *pool, struct wire_id id, ProtobufCBinaryData *ret_data);
PB(Incarnation) *wire_put_incarnation(struct pool *pool, const struct wire_incarnation *from);
PB(Error) *wire_put_error(struct pool *pool, const struct poise_err *from);
PB(Table) *wire_put_table(struct pool *pool, const struct wire_table *from);
PB(Join) *wire_put_join(struct pool *pool, const struct wire_join *from);
PB(Metas) *wire_put_metas(struct pool *pool, const struct wire_message *msg);

#endif
