/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building an update. A machine says at the start of an event how much it may send; from then on adding to the update
 * cannot fail, so an event allocates first, changes its state second, and never has to take a half-made change back.
 */
#ifndef POISE_CORE_OUT_H
#define POISE_CORE_OUT_H

#include "update.h"

#define OUT_MAX_LOGS 64 /* of one event: more lines than that about one event help nobody */

struct core_out {
    struct core_update up;
    uint32_t cap_sends, cap_closes, cap_publishes;
    struct wire_message **pool; /* messages for this event, reused by the next */
    uint32_t n_pool, used;
};

void out_free(struct core_out *out);

/* Empties the update; makes sure that n_messages, n_sends, n_closes and n_publishes fit. 0 or -ENOMEM. */
int out_prepare(struct core_out *out, uint32_t n_messages, uint32_t n_sends, uint32_t n_closes, uint32_t n_publishes);

/* Nothing of this event shall happen. */
void out_clear(struct core_out *out);

/* A zeroed message of the pool. Valid until the next out_prepare(). */
struct wire_message *out_message(struct core_out *out, enum wire_type type);

void out_send(struct core_out *out, uint64_t to, bool up, const struct wire_message *msg);
void out_close(struct core_out *out, uint64_t session);
void out_publish(struct core_out *out, const struct wire_message *msg);
void out_log(struct core_out *out, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define LOG_LEVEL_ERROR 3
#define LOG_LEVEL_WARNING 4
#define LOG_LEVEL_INFO 6
#define LOG_LEVEL_DEBUG 7

#endif
