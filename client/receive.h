/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This rank's receive memory: the micro-batches that the trainer reads. Private memory in at most 16 blocks, each
 * populated when it is made and recycled; a block belongs to one step at a time. Room for a whole step is reserved
 * before its first byte, in step order. A step is cut into parts (micro-batches), each with a count of holders; the
 * block is free when all its parts are. Survives receive_close() until the last part is released. Thread-safe.
 */
#ifndef POISE_CLIENT_RECEIVE_H
#define POISE_CLIENT_RECEIVE_H

#include "poise.h"

struct receive;

struct receive_part {
    void *data; /* 64-byte aligned; NULL where bytes is 0. With POISE_DEBUG_SLOTS it has its pages for itself */
    uint64_t bytes;
};

struct receive_slot { /* members are read-only for the caller */
    struct receive *receive;
    uint64_t step;
    uint32_t n_parts;
    struct receive_part *parts; /* [n_parts] */
};

/* Nothing is allocated before the first use. flags: POISE_DEBUG_SLOTS. *ret_receive: receive_close(). */
int receive_new(uint64_t budget_bytes, uint32_t flags, struct receive **ret_receive, struct poise_err *err);

/* No more reservations; memory goes when the last part is released. NULL is allowed. */
void receive_close(struct receive *receive);

void receive_set_budget(struct receive *receive, uint64_t budget_bytes);

/*
 * Room for `step` with parts of these sizes; each part begins with `holders` holders (iterators that will read it).
 * Valid until the last part's last release. With n_parts 0 the slot is free at once and *ret_slot is NULL. Errors:
 * -EINVAL a step that is not above the last one reserved, or holders 0; -EAGAIN no room until parts are released;
 * -ENOMEM it will not fit even then, by the budget; -ENOBUFS nothing is held, and the system has not so much now: needed
 * and available.
 */
int receive_reserve(struct receive *receive, uint64_t step, const uint64_t *part_bytes, uint32_t n_parts,
                    uint32_t holders, struct receive_slot **ret_slot, struct poise_err *err);

/* One holder more; the part must be held. */
void receive_hold(struct receive_slot *slot, uint32_t part);

/* One holder less. The last one of a part makes it inaccessible (POISE_DEBUG_SLOTS); the last of all frees the slot.
 * Any thread, also after receive_close(). */
void receive_release(struct receive_slot *slot, uint32_t part);

struct receive_stats {
    uint64_t bytes, budget, largest_step;
    uint64_t held_bytes; /* of blocks whose step is not all released */
    uint64_t oldest_step; /* of these, the lowest; UINT64_MAX: none */
    uint32_t n_blocks, n_held; /* held: steps */
    uint32_t slots; /* steps of the largest size that the budget holds at a time, 1 to 16; 16 before the first */
};
void receive_stats(struct receive *receive, struct receive_stats *ret_stats);

#endif
