/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hostile bytes may cost before they are refused, measured: all memory of proto/ comes through wire_malloc. Fields
 * of a newer version are skipped, as many as a newer version can have.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "proto/memory.h"

static size_t taken;

static void *measure(size_t n_bytes)
{
    taken += n_bytes;
    return malloc(n_bytes);
}

/* A message of this type, at its end n unknown fields of 2 bytes each. */
static uint8_t *with_unknown(enum wire_type type, size_t n, size_t *ret_n_bytes)
{
    struct message_maker maker = {.random = 3};
    struct poise_err err;
    uint8_t *bytes;
    size_t n_bytes;

    cr_assert_eq(wire_encode(message_make(&maker, type), &bytes, &n_bytes, &err), 0, "%s", err.text);
    message_done(&maker);
    bytes = realloc(bytes, n_bytes + 2 * n);
    for (size_t i = 0; i < n; i++) {
        bytes[n_bytes + 2 * i] = 9 << 3; /* field 9 of the envelope: there is none */
        bytes[n_bytes + 2 * i + 1] = 1;
    }
    *ret_n_bytes = n_bytes + 2 * n;
    return bytes;
}

static int decode(const uint8_t *bytes, size_t n_bytes, struct poise_err *err)
{
    struct wire_message *msg;

    taken = 0;
    wire_malloc = measure;
    int rc = wire_decode(bytes, n_bytes, 0, &msg, err);
    wire_malloc = malloc;
    if (rc == 0)
        wire_free(msg);
    return rc;
}

Test(wire_budget, six_hundred_kb_of_unknown_fields_take_no_memory)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct poise_err err;
        size_t n_bytes;
        uint8_t *bytes = with_unknown(type, 300000, &n_bytes);

        cr_assert_eq(decode(bytes, n_bytes, &err), -E2BIG, "%s", wire_type_name(type));
        cr_assert(strstr(err.text, "unknown fields"), "%s", err.text);
        cr_assert_lt(taken, 65536, "%s: %zu bytes", wire_type_name(type), taken);
        free(bytes);
    }
}

/* Inside of a part: the envelope's body is one field that is known, its own content is looked through. */
Test(wire_budget, unknown_fields_inside_of_the_body_count_too)
{
    enum { N = 300000 };
    uint8_t *bytes = malloc(16 + 2 * N);
    struct poise_err err;
    size_t at = 0, body = 2 * N;

    bytes[at++] = 0x08, bytes[at++] = WIRE_VERSION;
    bytes[at++] = (uint8_t)((((WIRE_WELCOME + 10) << 3 | 2) & 0x7f) | 0x80), bytes[at++] = (WIRE_WELCOME + 10) >> 4;
    if (WIRE_WELCOME + 10 < 16)
        at--, bytes[at - 1] = (WIRE_WELCOME + 10) << 3 | 2;
    for (size_t left = body; left; left >>= 7)
        bytes[at++] = (uint8_t)((left & 0x7f) | (left >> 7 ? 0x80 : 0));
    for (size_t i = 0; i < N; i++)
        bytes[at++] = 15 << 3, bytes[at++] = 1;
    cr_assert_eq(decode(bytes, at, &err), -E2BIG, "%s", err.text);
    cr_assert_lt(taken, 65536, "%zu bytes", taken);
    free(bytes);
}

Test(wire_budget, a_newer_versions_fields_are_skipped)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct poise_err err;
        size_t n_bytes;
        uint8_t *bytes = with_unknown(type, 500, &n_bytes);

        cr_assert_eq(decode(bytes, n_bytes, &err), 0, "%s: %s", wire_type_name(type), err.text);
        free(bytes);
    }
}

/* What is not unknown but empty: parts of a repeated message, two bytes each. The budget of the whole bounds it. */
Test(wire_budget, empty_parts_stay_below_the_budget)
{
    struct poise_err err;
    size_t n_bytes, n = 300000;
    uint8_t *bytes = with_unknown(WIRE_HELLO, 0, &n_bytes);

    free(bytes);
    bytes = malloc(16 + 2 * n);
    n_bytes = 0;
    bytes[n_bytes++] = 0x08, bytes[n_bytes++] = WIRE_VERSION;
    uint32_t tag = (uint32_t)(WIRE_META + 10) << 3 | 2;
    for (; tag > 0x7f; tag >>= 7)
        bytes[n_bytes++] = (uint8_t)(tag | 0x80);
    bytes[n_bytes++] = (uint8_t)tag;
    for (size_t left = 2 * n; left; left >>= 7)
        bytes[n_bytes++] = (uint8_t)((left & 0x7f) | (left >> 7 ? 0x80 : 0));
    for (size_t i = 0; i < n; i++)
        bytes[n_bytes++] = 1 << 3 | 2, bytes[n_bytes++] = 0;
    cr_assert_lt(decode(bytes, n_bytes, &err), 0);
    cr_assert_lt(taken, 11u << 20, "%zu bytes", taken);
    free(bytes);
}
