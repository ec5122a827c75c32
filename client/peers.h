/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What same-node peers let this process see: their control segments, arenas and doorbells. Offered descriptors are
 * checked, mapped read-only and closed; entries go when they are retracted or replaced. The own arena and control
 * segment answer under the own rank, so that the engine needs no second path. Not thread-safe: the engine's thread
 * alone.
 */
#ifndef POISE_CLIENT_PEERS_H
#define POISE_CLIENT_PEERS_H

#include "client/arena.h"
#include "client/control.h"

struct peers;

/* Borrows own and own_control (either may be NULL). */
int peers_new(uint32_t n_ranks, uint32_t own_rank, const struct arena *own, const struct control *own_control,
              struct peers **ret_peers, struct poise_err *err);
void peers_free(struct peers *peers); /* unmaps all */
void peers_child(struct peers *peers); /* in the child of a fork: closes doorbells */

/*
 * An offer (LOCAL_OFFER, checked by local_check()). Takes fd always. 0: a new entry; -EALREADY: the same is there
 * (ignored); -ESTALE an older generation than what is there or was retracted; -EINVAL rank, kind, number or size out of
 * bounds, not the kind of descriptor; -EPERM not sealed; -ENOMEM. A newer generation of a number replaces the older
 * one.
 */
int peers_offer(struct peers *peers, const struct local_message *offer, int fd, struct poise_err *err);

/* LOCAL_RETRACT. Unknown ones are ignored. */
void peers_retract(struct peers *peers, const struct local_message *retract);

/* False: not offered (yet). */
bool peers_control(const struct peers *peers, uint32_t rank, struct control_view *ret_view);
bool peers_arena(const struct peers *peers, uint32_t rank, uint32_t segment, uint32_t generation, const void **ret_base,
                 uint64_t *ret_bytes);

/* The same as directory_lookup_fn. */
struct peers_of {
    const struct peers *peers;
    uint32_t rank;
};
bool peers_lookup(void *peers_of, uint32_t segment, uint32_t generation, const void **ret_base, uint64_t *ret_bytes);

/* Wakes that peer's engine, if it has offered a doorbell. Never blocks. */
void peers_ring(const struct peers *peers, uint32_t rank);

uint64_t peers_bytes(const struct peers *peers); /* mapped of others */

#endif
