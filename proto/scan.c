/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at a message's bytes before protobuf-c unpacks them. It keeps every unknown field, in 24 bytes and an
 * allocation for what took 2 bytes on the wire: 600 KB became 13 MB. A newer version adds a few fields to each part of
 * a message; more than that is no version of this protocol.
 *
 * What is malformed is left to the unpacking, which says so. There is no recursion without end: no type contains
 * itself.
 */
#include <protobuf-c/protobuf-c.h>

#include "proto/memory.h"

/* A dozen in each of a node's 256 ranks, and in what they have in common. */
#define UNKNOWN_MAX 4096u

struct scan {
    const uint8_t *at, *end;
    uint32_t n_unknown;
};

static bool varint(struct scan *s, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64 && s->at < s->end; shift += 7) {
        uint8_t byte = *s->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret_value = value;
            return true;
        }
    }
    return false;
}

/* The bytes of a value after its tag (and length). False: malformed. */
static bool value_bytes(struct scan *s, unsigned wire_type, uint64_t *ret_bytes)
{
    const uint8_t *before = s->at;
    uint64_t ignored;

    switch (wire_type) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        if (!varint(s, &ignored))
            return false;
        *ret_bytes = (uint64_t)(s->at - before);
        s->at = before;
        return true;
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        *ret_bytes = 8;
        break;
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        *ret_bytes = 4;
        break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        if (!varint(s, ret_bytes))
            return false;
        break;
    default:
        return false;
    }
    return *ret_bytes <= (uint64_t)(s->end - s->at);
}

/* False: no more of it needs to be seen, because it is malformed or too much. */
static bool scan_message(struct scan *s, const ProtobufCMessageDescriptor *type)
{
    uint64_t tag, n;

    while (s->at < s->end) {
        if (!varint(s, &tag) || tag >> 3 > UINT32_MAX || !value_bytes(s, (unsigned)(tag & 7), &n))
            return false;
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
        if (!field && ++s->n_unknown > UNKNOWN_MAX)
            return false;
        if (field && field->type == PROTOBUF_C_TYPE_MESSAGE && (tag & 7) == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
            struct scan part = {s->at, s->at + n, s->n_unknown};
            bool fine = scan_message(&part, field->descriptor);
            s->n_unknown = part.n_unknown;
            if (!fine)
                return false;
        }
        s->at += n;
    }
    return true;
}

bool wire_scan(const void *descriptor, const uint8_t *bytes, size_t n_bytes)
{
    struct scan scan = {bytes, bytes + n_bytes, 0};

    scan_message(&scan, descriptor);
    return scan.n_unknown <= UNKNOWN_MAX;
}
