/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to test with: valid ones of every type, random or at their defaults, and comparing two member by member. */
#ifndef POISE_TESTS_MESSAGES_H
#define POISE_TESTS_MESSAGES_H

#include "proto/wire.h"

struct message_maker {
    uint64_t random;    /* state */
    bool defaults;      /* every member as small as is valid */
    uint32_t n_samples; /* of a META or a slice; 0: a few */
    void *memory;       /* of all that was made */
};

uint64_t message_random(struct message_maker *maker, uint64_t below);

/* Valid until message_done(). */
struct wire_message *message_make(struct message_maker *maker, enum wire_type type);
void message_done(struct message_maker *maker);

/* NULL if they are equal, else the name of the first member that differs. */
const char *message_differ(const struct wire_message *a, const struct wire_message *b);

#endif
