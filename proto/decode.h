/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal to proto/: the parts that decode.c puts together. Everything runs twice, see memory.h: where the block has
 * no base, arrays are NULL and are not written, but all checks are done. Each returns 0 or -EPROTO.
 */
#ifndef POISE_PROTO_DECODE_H
#define POISE_PROTO_DECODE_H

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/codec.h"

struct load {
    struct block *block;
    const char *what; /* the message's name, for errors */
    struct poise_err *err;
};

/* dst[size], ended with a 0. */
int wire_get_text(struct load *l, const char *name, ProtobufCBinaryData from, char *dst, size_t size);
/* The same into the block, of less than size bytes. */
int wire_get_string(struct load *l, const char *name, ProtobufCBinaryData from, size_t size, char **ret_text);
int wire_get_id(struct load *l, const char *name, ProtobufCBinaryData from, struct wire_id *ret_id);
int wire_get_incarnation(struct load *l, const PB(Incarnation) *from, struct wire_incarnation *to);
int wire_get_error(struct load *l, const PB(Error) *from, struct poise_err *to);
int wire_get_table(struct load *l, const PB(Table) *from, struct wire_table **ret_table);
/* ret_key is left as it is where there is none. */
int wire_get_key(struct load *l, ProtobufCBinaryData from, uint8_t ret_key[WIRE_KEY_BYTES]);
int wire_get_join(struct load *l, const PB(Join) *from, struct wire_join *to);
int wire_get_metas(struct load *l, const PB(Metas) *from, struct wire_message *msg);

/* A column of `want` values into the block; n is what came. */
int wire_get_u64(struct load *l, const char *name, size_t n, const uint64_t *from, size_t want, uint64_t **ret_column);
int wire_get_u32(struct load *l, const char *name, size_t n, const uint32_t *from, size_t want, uint32_t **ret_column);

/* n values where at most max may be. */
int wire_get_few(struct load *l, const char *name, size_t n, size_t max);

#endif
