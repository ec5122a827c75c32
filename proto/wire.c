/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way in and out: bytes <-> struct wire_message. The steps of both ways stand in codec.h; here are their order, the
 * version, the budget and the memory.
 *
 * The budget. Bytes of a few lines can ask for a lot of memory: an unknown field of 2 bytes costs protobuf-c 45
 * (scan.c counts them first), a packed value of 1 byte 8. So half of the budget is all that unpacking may take, and the block of plain structs, whose
 * size is measured before it is allocated, must fit into what is left.
 */
#include "proto/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"

/*
 * A packed value of one byte becomes 8 in protobuf-c's array and 8 in ours; a field of a table, with its fixed names,
 * takes 30 times its bytes. The rest is for small messages.
 */
#define BUDGET_FACTOR 32u
#define BUDGET_EXTRA ((size_t)2 << 20)

#define BODY_NUMBER 10 /* field number of a body - its wire_type */

_Static_assert((int)POISE__V1__ENVELOPE__BODY_HELLO == WIRE_HELLO + BODY_NUMBER, "numbers of poise.proto");
_Static_assert((int)POISE__V1__ENVELOPE__BODY_FORMING == WIRE_FORMING + BODY_NUMBER, "numbers of poise.proto");

const char *wire_type_name(enum wire_type type)
{
    static const char *const names[WIRE_N_TYPES] = {
        [WIRE_HELLO] = "HELLO",     [WIRE_WELCOME] = "WELCOME", [WIRE_REFUSED] = "REFUSED",
        [WIRE_JOIN] = "JOIN",       [WIRE_META] = "META",       [WIRE_PULL] = "PULL",
        [WIRE_NEED] = "NEED",       [WIRE_LEAVE] = "LEAVE",     [WIRE_REPORT] = "REPORT",
        [WIRE_ROSTER] = "ROSTER",   [WIRE_OUTCOME] = "OUTCOME", [WIRE_ABORT] = "ABORT",
        [WIRE_MODE] = "MODE",       [WIRE_MEMBERS] = "MEMBERS", [WIRE_HEARTBEAT] = "HEARTBEAT",
        [WIRE_UNKNOWN] = "UNKNOWN", [WIRE_BEACON] = "BEACON",   [WIRE_FORMING] = "FORMING",
    };
    return type > 0 && type < WIRE_N_TYPES ? names[type] : "?";
}

int wire_encode(const struct wire_message *msg, uint8_t **ret_bytes, size_t *ret_n_bytes, struct poise_err *err)
{
    struct pool pool = {.limit = SIZE_MAX};
    PB(Envelope) envelope = POISE__V1__ENVELOPE__INIT;
    uint8_t *bytes = NULL;
    size_t n_bytes;

    int rc = wire_check(msg, -EINVAL, err);
    if (rc < 0)
        return rc;
    envelope.version = WIRE_VERSION;
    envelope.body_case = (PB(Envelope__BodyCase))(msg->type + BODY_NUMBER);
    rc = wire_store(&pool, msg, &envelope);
    if (rc < 0) {
        err_set(err, rc, "%s: no memory to encode it", wire_type_name(msg->type));
        goto fail;
    }
    n_bytes = poise__v1__envelope__get_packed_size(&envelope);
    if (n_bytes > WIRE_MAX_BYTES) {
        rc = err_set(err, -E2BIG, "%s: %zu bytes are more than a message may have (%u): submit fewer samples a step",
                     wire_type_name(msg->type), n_bytes, WIRE_MAX_BYTES);
        goto fail;
    }
    bytes = wire_malloc(n_bytes);
    if (!bytes) {
        rc = err_set(err, -ENOMEM, "%s: no memory for %zu bytes", wire_type_name(msg->type), n_bytes);
        goto fail;
    }
    poise__v1__envelope__pack(&envelope, bytes);
    *ret_bytes = bytes;
    *ret_n_bytes = n_bytes;
fail:
    wire_pool_free(&pool);
    return rc;
}

static void *unpack_alloc(void *pool, size_t n_bytes)
{
    return wire_pool_take(pool, n_bytes);
}

static void unpack_free(void *pool, void *data)
{
    (void)pool;
    (void)data; /* with the pool */
}

static int check_version(uint32_t version, struct poise_err *err)
{
    if (version == WIRE_VERSION)
        return 0;
    return err_set(err, -EPROTONOSUPPORT,
                   "a message of wire version %u came, this side speaks %u: install the same poise on both", version,
                   WIRE_VERSION);
}

/* The version stands first, so it can be read even where another version changed all the rest. */
static int peek_version(const uint8_t *bytes, size_t n_bytes, struct poise_err *err)
{
    uint64_t version = 0;

    if (n_bytes < 2 || bytes[0] != 0x08)
        return 0; /* found wanting after unpacking */
    for (size_t i = 1, shift = 0; i < n_bytes && shift < 35; i++, shift += 7) {
        version |= (uint64_t)(bytes[i] & 0x7f) << shift;
        if (!(bytes[i] & 0x80))
            return check_version((uint32_t)version, err);
    }
    return 0;
}

static int unpack(struct pool *pool, const uint8_t *bytes, size_t n_bytes, PB(Envelope) **ret_envelope,
                  struct poise_err *err)
{
    ProtobufCAllocator allocator = {.alloc = unpack_alloc, .free = unpack_free, .allocator_data = pool};

    int rc = peek_version(bytes, n_bytes, err);
    if (rc < 0)
        return rc;
    if (n_bytes > 0 && !wire_scan(&poise__v1__envelope__descriptor, bytes, n_bytes))
        return err_set(err, -E2BIG, "a message of %zu bytes with thousands of unknown fields", n_bytes);
    static const uint8_t nothing[1];
    PB(Envelope) *envelope = poise__v1__envelope__unpack(&allocator, n_bytes, n_bytes > 0 ? bytes : nothing);
    if (!envelope && pool->over)
        return err_set(err, -E2BIG, "a message of %zu bytes unpacks to more than the budget of %zu bytes", n_bytes,
                       pool->limit);
    if (!envelope && pool->failed)
        return err_set(err, -ENOMEM, "no memory to unpack a message of %zu bytes", n_bytes);
    if (!envelope)
        return err_set(err, -EPROTO, "%zu bytes that are not a message of poise", n_bytes);
    rc = check_version(envelope->version, err);
    if (rc < 0)
        return rc;
    if (envelope->body_case == POISE__V1__ENVELOPE__BODY__NOT_SET)
        return err_set(err, -EPROTO, "a message of %zu bytes without a body of a known type", n_bytes);
    *ret_envelope = envelope;
    return 0;
}

/* Measures, allocates, fills, checks. */
static int load(const PB(Envelope) *envelope, size_t budget, struct wire_message **ret_msg, struct poise_err *err)
{
    struct wire_message measured = {.type = (enum wire_type)((int)envelope->body_case - BODY_NUMBER)};
    struct block block = {0};

    block_take(&block, sizeof measured);
    int rc = wire_load(&block, envelope, &measured, err);
    if (rc < 0)
        return rc;
    if (block.used > budget)
        return err_set(err, -E2BIG, "%s: %zu bytes decoded are more than the budget has left (%zu)",
                       wire_type_name(measured.type), block.used, budget);
    struct wire_message *msg = wire_malloc(block.used);
    if (!msg)
        return err_set(err, -ENOMEM, "%s: no memory for %zu bytes", wire_type_name(measured.type), block.used);
    block = (struct block){.base = (uint8_t *)msg};
    block_take(&block, sizeof *msg);
    memset(msg, 0, sizeof *msg);
    msg->type = measured.type;
    rc = wire_load(&block, envelope, msg, err);
    if (rc == 0)
        rc = wire_check(msg, -EPROTO, err);
    if (rc < 0) {
        free(msg);
        return rc;
    }
    *ret_msg = msg;
    return 0;
}

int wire_decode(const uint8_t *bytes, size_t n_bytes, size_t budget, struct wire_message **ret_msg,
                struct poise_err *err)
{
    PB(Envelope) *envelope = NULL;

    if (n_bytes > WIRE_MAX_BYTES)
        return err_set(err, -E2BIG, "a message of %zu bytes: at most %u", n_bytes, WIRE_MAX_BYTES);
    if (budget == 0) {
        budget = BUDGET_FACTOR * n_bytes + BUDGET_EXTRA;
        if (budget > (size_t)WIRE_MAX_BYTES * 4)
            budget = (size_t)WIRE_MAX_BYTES * 4;
    }
    struct pool pool = {.limit = budget / 2};
    int rc = unpack(&pool, bytes, n_bytes, &envelope, err);
    if (rc == 0)
        rc = load(envelope, budget - pool.total, ret_msg, err);
    wire_pool_free(&pool);
    return rc;
}

void wire_free(struct wire_message *msg)
{
    free(msg);
}

int wire_copy(const struct wire_message *msg, struct wire_message **ret_msg)
{
    struct wire_message measured = *msg;
    struct block block = {0};

    block_take(&block, sizeof measured);
    wire_copy_body(&block, &measured);
    struct wire_message *copy = wire_malloc(block.used);
    if (!copy)
        return -ENOMEM;
    block = (struct block){.base = (uint8_t *)copy};
    block_take(&block, sizeof *copy);
    *copy = *msg;
    wire_copy_body(&block, copy);
    *ret_msg = copy;
    return 0;
}
