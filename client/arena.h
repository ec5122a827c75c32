/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This rank's send memory: what it submits lies here until all receivers have it.
 *
 * At most 16 segments. One segment belongs to one step at a time (a step that grows takes several): so recycling is
 * setting a pointer back, and nothing fragments. The step being built is the *pending* one: arena_alloc() adds to it,
 * arena_commit() makes it step s in flight, arena_done(s) recycles its segments. New segments are as large as the
 * largest step so far with head room; free ones that are too small for that go back to the system (retract) when they
 * are in the way.
 *
 * Nothing here blocks but the kernel clearing the pages of a new segment. Not thread-safe: the caller serialises.
 */
#ifndef POISE_CLIENT_ARENA_H
#define POISE_CLIENT_ARENA_H

#include <stdbool.h>

#include "proto/local.h"

#define ARENA_ALIGN 64u     /* of what arena_alloc returns: a cache line */
#define ARENA_MAX_STEPS 32u /* in flight */

struct arena;

/* Nothing is allocated before the first use. budget_bytes: of all segments together. flags: SEGMENT_HUGE. */
int arena_new(uint64_t budget_bytes, uint32_t flags, struct arena **ret_arena, struct poise_err *err);
void arena_free(struct arena *arena);  /* unmaps and closes all, in flight or not */
void arena_child(struct arena *arena); /* in the child of a fork: closes descriptors. Async-signal-safe */

/* A change of the budget; takes effect at the next allocation. */
void arena_set_budget(struct arena *arena, uint64_t budget_bytes);

/*
 * Memory for the pending step; 0 bytes is allowed. Valid until its step is done, or arena_discard(). Errors, all
 * without side effect: -EAGAIN no room until an older step is done; -ENOMEM it will not fit even then: says needed and
 * available.
 */
int arena_alloc(struct arena *arena, uint64_t bytes, void **ret_data, struct poise_err *err);

/* The pending step is empty again; its segments are free. */
void arena_discard(struct arena *arena);

struct arena_place {
    uint32_t segment, generation;
    uint64_t offset;
};

/* Where [data, data + bytes) is in the pending step. False: elsewhere (must be copied). 0 bytes: false. */
bool arena_find(const struct arena *arena, const void *data, uint64_t bytes, struct arena_place *ret_place);

/* The base and size of one of the own segments. False: there is none of that number and generation. */
bool arena_lookup(const struct arena *arena, uint32_t segment, uint32_t generation, const void **ret_base,
                  uint64_t *ret_bytes);

/* The pending step becomes `step`, in flight (also when it is empty). -EEXIST it already is; -EAGAIN ARENA_MAX_STEPS
 * are. */
int arena_commit(struct arena *arena, uint64_t step, struct poise_err *err);
/* Whether arena_commit() would succeed: the same errors, nothing happens. */
int arena_may_commit(const struct arena *arena, uint64_t step, struct poise_err *err);

/* All receivers have it: recycled. Unknown steps are ignored. */
void arena_done(struct arena *arena, uint64_t step);

/* What peers must be told, in order; retractions come before the offer that takes their number. */
struct arena_change {
    bool offer; /* else retract */
    uint32_t segment, generation;
    uint64_t bytes;
    int fd; /* of an offer; the arena's own: do not close */
};
/* The next change: true and *ret_change, or false: none. It counts as told. */
bool arena_next_change(struct arena *arena, struct arena_change *ret_change);
/* All segments will be offered, and the last retraction of each number told, again: poised came back. */
void arena_offer_again(struct arena *arena);

struct arena_stats {
    uint64_t bytes, budget; /* mapped now; at most */
    uint64_t largest_step;  /* bytes used by the largest step so far */
    uint64_t pending;       /* bytes of the pending step */
    uint32_t n_segments, n_in_flight;
    uint32_t slots; /* steps of the largest size that the budget holds at a time, 1 to 16; 16 before the first */
};
void arena_stats(const struct arena *arena, struct arena_stats *ret_stats);

#endif
