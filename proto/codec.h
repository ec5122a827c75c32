/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between wire.c and the halves of the codec; internal to proto/.
 *
 *   encode: wire_check -> wire_store (plain structs to protobuf-c's, in a pool, columns borrowed) -> pack
 *   decode: unpack into a pool -> wire_load twice (measure, fill one block) -> wire_check
 *
 * One set of checks for both ways: what encodes also decodes at the other end.
 */
#ifndef POISE_PROTO_CODEC_H
#define POISE_PROTO_CODEC_H

#include "daemon/planner/err.h"
#include "poise.pb-c.h"
#include "proto/memory.h"
#include "proto/wire.h"

#define PB(name) Poise__V1__##name

#define WIRE_MAX_OPTIONS 256u
#define WIRE_MAX_OPTION_BYTES 1024u      /* of an option's value with its 0 */
#define WIRE_MAX_COORDINATOR_BYTES 4096u /* of the list of endpoints with its 0 */
#define WIRE_MAX_EPOCHS 65536u           /* of a heartbeat */
#define WIRE_MAX_MISSING 16u             /* ranks named in beacons and heartbeats */

/* Checks every value of a message. Returns 0 or code with a text that names message, member and value. */
int wire_check(const struct wire_message *msg, int code, struct poise_err *err);

/* Builds the body in the pool; borrows the arrays of msg. -ENOMEM. */
int wire_store(struct pool *pool, const struct wire_message *msg, PB(Envelope) *envelope);

/* Turns the body into plain structs in the block (or measures, if it has no base). Checks only what the plain structs
 * can no longer show: lengths of columns, of ids and of texts. -EPROTO. */
int wire_load(struct block *block, const PB(Envelope) *envelope, struct wire_message *msg, struct poise_err *err);

/* Copies what msg points to into the block and makes it point there. While measuring, msg is left as it is. */
void wire_copy_body(struct block *block, struct wire_message *msg);

/* UTF-8 without a zero byte. */
bool wire_text_valid(const char *text, size_t n);
/* Makes it so: each bad byte becomes '?'. */
void wire_text_mend(char *text, size_t n);

#endif
