/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of ranks on this node, this one included: read out of their arenas, which are mapped here. */
#ifndef POISE_CLIENT_TRANSPORT_MEMORY_H
#define POISE_CLIENT_TRANSPORT_MEMORY_H

#include "client/transport.h"

struct poise;

struct transport_memory {
    struct transport transport;
    struct poise *p;
};

void transport_memory_init(struct transport_memory *memory, struct poise *p);

/* The directory of a step of this very rank. 0, -EAGAIN the engine does not know its memory yet, -EPROTO, -ENOMEM. */
int transport_memory_own(struct poise *p, uint64_t step, const struct wire_table *table, struct directory *ret_dir,
                         struct poise_err *err);

/* As directory_lookup_fn, of the own arena: context is struct poise. */
bool transport_memory_lookup(void *p, uint32_t segment, uint32_t generation, const void **ret_base,
                             uint64_t *ret_bytes);

#endif
