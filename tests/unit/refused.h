/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and bytes that must be refused, and with which words. */
#ifndef POISE_TESTS_REFUSED_H
#define POISE_TESTS_REFUSED_H

#include "proto/codec.h"

/* Bytes of an envelope, as a peer without checks makes them. Caller frees. */
uint8_t *refused_pack(const PB(Envelope) *envelope, size_t *ret_n);

/* wire_decode() returns code, with `part` in its text. */
void decode_refused(const uint8_t *bytes, size_t n_bytes, int code, const char *part);

/* wire_encode() returns -EINVAL; use this alone where bytes cannot say it. */
void encode_refused(const struct wire_message *msg, const char *part);

/* Also when a peer packs it all the same: -EPROTO. */
void both_refused(const struct wire_message *msg, const char *part);

#endif
