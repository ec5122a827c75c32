/* SPDX-License-Identifier: Apache-2.0 */
/* The state of least_move: every unit is at home, at another rank (a guest there), or in the pool. Internal to the
 * planner. */
#ifndef POISE_PLANNER_MOVER_H
#define POISE_PLANNER_MOVER_H

#include "heap.h"
#include "loads.h"

#define IN_POOL PLAN_ANY /* where[unit] */

struct mover {
    struct problem *pb;
    struct loads loads;
    uint32_t shift;        /* cost = the problem's cost >> shift */
    uint64_t *cost;        /* [n_units] scaled so that the sum of all fits in 62 bits */
    uint64_t *load;        /* [n_ranks] sum of them */
    uint64_t *target;      /* [n_ranks] what the rank may hold at its speed */
    uint32_t *where;       /* [n_units] the rank, or IN_POOL */
    uint32_t *home;        /* [n_units] units by home rank (from pb->unit_of_rank[r] on), largest cost first */
    uint32_t *guest_first; /* [n_ranks] list of units that came from elsewhere; PLAN_ANY ends it */
    uint32_t *guest_next;  /* [n_units] */
    uint8_t *reason;       /* [n_units] why it last moved */
    bool exchanges;        /* counts are fixed: what comes in needs a slot, which opens when something leaves */
    uint32_t *slots;       /* [n_ranks] units still to come */
    uint64_t small;        /* what a slot will be filled with, about: the cost of a small unit */
    uint64_t most_room;    /* the largest unit that some rank could take in, before anything moved */
    struct heap closed;    /* ranks that need no unit, the largest hole on top */
    struct heap open;      /* ranks with slots, the most room beside small units for the others on top */
    bool is_open;
    bool searches;        /* looks for a better choice of what leaves a rank */
    uint32_t *peers;      /* [n_ranks] ranks by node; NULL: all on one */
    uint32_t *node_first; /* [n_ranks + 1] of a rank: where its node begins in peers */
    uint32_t *node_end;   /* [n_ranks] and where it ends */
    uint64_t work;        /* steps of search left */
    uint32_t *listed;     /* [n_ranks] the last list of candidates that the rank is in (repair.c) */
    uint32_t n_listed;    /* lists so far: a few a unit, and `work` bounds the others */
};

/* Everything at home, aiming at pb->target. -ENOMEM. */
int mover_init(struct mover *mv, struct problem *pb);
void mover_aim(struct mover *mv); /* at pb->target as it is now */

/* Fills the heaps: from now on they follow every change. */
void mover_open(struct mover *mv);
void mover_changed(struct mover *mv, uint32_t rank); /* puts the rank where it belongs in them */
void mover_take(struct mover *mv, uint32_t unit);    /* from where it is into the pool */
void mover_put(struct mover *mv, uint32_t rank, uint32_t unit, uint8_t reason); /* from the pool */

/* Puts a pooled unit where it fits as it is; a rank without a slot gives its smallest into the pool (least_move.c). */
bool mover_refill(struct mover *mv, uint32_t unit);
/* Brings ranks above their target below it, by the moves and swaps that cost the fewest bytes (repair.c). */
void mover_repair(struct mover *mv);
/* Finds a place for a pooled unit that mover_refill() did not place: something smaller makes room and looks on. */
bool mover_squeeze(struct mover *mv, uint32_t unit);
/* The same with two units for two, for a rank of few (pairs.c). False: none helps, or no work is left. */
bool mover_swap_pairs(struct mover *mv, uint32_t rank);
/* Sends guests home where there is room by now. */
void mover_return(struct mover *mv);

static inline uint64_t mover_hole(const struct mover *mv, uint32_t rank)
{
    return mv->target[rank] > mv->load[rank] ? mv->target[rank] - mv->load[rank] : 0;
}

static inline uint64_t mover_over(const struct mover *mv, uint32_t rank)
{
    return mv->load[rank] > mv->target[rank] ? mv->load[rank] - mv->target[rank] : 0;
}

/* What costs nothing moves only for a count. */
static inline bool mover_may_move(const struct mover *mv, uint32_t unit)
{
    return mv->cost[unit] > 0 || mv->pb->req->count != POISE_COUNT_FREE;
}

/* What the rank may still take if its slots get small units. */
static inline uint64_t mover_room(const struct mover *mv, uint32_t rank)
{
    uint64_t hole = mover_hole(mv, rank);
    u128 reserved = mv->slots[rank] ? (u128)(mv->slots[rank] - 1) * mv->small : 0;

    return hole > reserved ? hole - (uint64_t)reserved : 0;
}

/* Bytes that moving the unit to the rank adds to all that moved; negative if it goes home. */
static inline int64_t mover_bytes(const struct mover *mv, uint32_t unit, uint32_t rank)
{
    int64_t bytes = (int64_t)(mv->pb->bytes[unit] >> 1); /* halved: the sign needs a bit */
    uint32_t home = mv->pb->unit_rank[unit];

    return (rank != home ? bytes : 0) - (mv->where[unit] != home ? bytes : 0);
}

#endif
