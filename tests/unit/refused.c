/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the codec what it must refuse. */
#include "refused.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of an envelope, as a peer without checks makes them. */
uint8_t *refused_pack(const PB(Envelope) *envelope, size_t *ret_n)
{
    uint8_t *bytes = malloc(poise__v1__envelope__get_packed_size(envelope) + 1);

    *ret_n = poise__v1__envelope__pack(envelope, bytes);
    return bytes;
}

void decode_refused(const uint8_t *bytes, size_t n_bytes, int code, const char *part)
{
    struct wire_message *msg = NULL;
    struct poise_err err = {0};

    int rc = wire_decode(bytes, n_bytes, 0, &msg, &err);
    cr_assert(rc == code, "%s: decoded with %d (%s)", part, rc, err.text);
    cr_assert(msg == NULL && err.code == code);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_assert(wire_decode(bytes, n_bytes, 0, &msg, NULL) == code);
}

void both_refused(const struct wire_message *msg, const char *part)
{
    struct pool pool = {.limit = SIZE_MAX};
    PB(Envelope) envelope = POISE__V1__ENVELOPE__INIT;
    struct poise_err err = {0};
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;

    cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == -EINVAL, "%s is encoded", part);
    cr_assert(bytes == NULL && err.code == -EINVAL);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    envelope.version = WIRE_VERSION;
    envelope.body_case = (PB(Envelope__BodyCase))(msg->type + 10);
    cr_assert(wire_store(&pool, msg, &envelope) == 0);
    bytes = refused_pack(&envelope, &n_bytes);
    decode_refused(bytes, n_bytes, -EPROTO, part);
    free(bytes);
    wire_pool_free(&pool);
}

/* Only wire_encode(): the bytes cannot say it. */
void encode_refused(const struct wire_message *msg, const char *part)
{
    struct poise_err err = {0};
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;

    cr_assert(wire_encode(msg, &bytes, &n_bytes, &err) == -EINVAL, "%s is encoded", part);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
}
