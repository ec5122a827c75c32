/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about payload for tests, the fuzzer and its seeds: one of each type, and a field table that entries fit. */
#ifndef POISE_TESTS_PAYLOAD_CASE_H
#define POISE_TESTS_PAYLOAD_CASE_H

#include "client/payload_wire.h"

#define PAYLOAD_CASE_FIELDS 3
#define PAYLOAD_CASE_BYTES  4096u

struct wire_table payload_case_table(void); /* static: a padded, a concatenated and an opaque field */

/* A valid message of that type. Returns its bytes. */
size_t payload_case_make(uint32_t type, unsigned char frame[PAYLOAD_CASE_BYTES]);

#endif
