/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which segment a step's bytes go to. Making a segment is the only expensive thing here (first touch runs at 0.1 to 0.3
 * of memcpy), so what is free is used before anything is made, and a step may lie in several segments. A first step
 * grows by segments that double; from then on the largest step is known, and each new segment holds it with half of
 * head room: sizes of real batches have long tails. Free segments that are far too small go back (retract), and others
 * when a larger one is needed. It fails only by saying how much is missing: -EAGAIN while steps in flight can still
 * give something back, else -ENOMEM.
 */
#include "client/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/memory.h"
#include "client/segment.h"
#include "daemon/planner/err.h"

/* A first step doubles from here, so it reaches half of the budget within 5 of its 16 segments. */
#define LEAST_OF_BUDGET 32
#define LEAST_BYTES (64ull << 20) /* at most: a tenth of a second to make */
#define PAGE 4096ull

enum piece_state {
    PIECE_NONE, /* no segment of this number */
    PIECE_FREE,
    PIECE_PENDING,
    PIECE_FLIGHT
};

struct piece {
    struct segment segment;
    enum piece_state state;
    uint32_t generation; /* of the segment; counts up with each new one */
    uint64_t used;
    uint64_t step; /* PIECE_FLIGHT */
    bool offered;  /* peers were told, since poised last came back */
    bool known;    /* peers were told at any time */
    bool retract;  /* peers have to be told that retract_generation is gone */
    uint32_t retract_generation; /* the last that they knew; 0: none */
    uint64_t retract_bytes;
};

struct arena {
    uint64_t budget, largest_step;
    uint32_t flags;
    uint32_t n_in_flight;
    uint64_t in_flight[ARENA_MAX_STEPS];
    struct piece pieces[LOCAL_MAX_SEGMENTS];
};

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

int arena_new(uint64_t budget_bytes, uint32_t flags, struct arena **ret_arena, struct poise_err *err)
{
    struct arena *arena = calloc(1, sizeof *arena);

    if (!arena)
        return err_set(err, -ENOMEM, "out of memory");
    arena->budget = budget_bytes;
    arena->flags = flags;
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        arena->pieces[i].segment.fd = -1;
    *ret_arena = arena;
    return 0;
}

void arena_free(struct arena *arena)
{
    if (!arena)
        return;
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        segment_fini(&arena->pieces[i].segment);
    free(arena);
}

void arena_child(struct arena *arena)
{
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        segment_child(&arena->pieces[i].segment);
}

void arena_set_budget(struct arena *arena, uint64_t budget_bytes)
{
    arena->budget = budget_bytes;
}

/* Bytes of segments in a state; PIECE_NONE: of all. */
static uint64_t bytes_in(const struct arena *arena, enum piece_state state)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        if (state == PIECE_NONE || arena->pieces[i].state == state)
            bytes += arena->pieces[i].segment.bytes;
    return bytes;
}

static uint64_t pending_used(const struct arena *arena)
{
    uint64_t used = 0;

    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        if (arena->pieces[i].state == PIECE_PENDING)
            used += arena->pieces[i].used;
    return used;
}

/* What a new segment should hold: the largest step with head room, but a second slot is worth more than that. In a
 * first step, `used` bytes so far, as much again. */
static uint64_t wanted_bytes(const struct arena *arena, uint64_t used, uint64_t need)
{
    uint64_t least = arena->budget / LEAST_OF_BUDGET, half = arena->budget / 2 / PAGE * PAGE;
    uint64_t largest = max_u64(arena->largest_step, used + need), roomy = largest + largest / 2;

    if (roomy > half)
        roomy = largest <= half ? half : largest;
    if (arena->largest_step == 0)
        roomy = max_u64(used, least < LEAST_BYTES ? least : LEAST_BYTES);
    return round_up(max_u64(need, roomy), PAGE);
}

/* Room in a segment of the pending step. */
static struct piece *pending_with(struct arena *arena, uint64_t need)
{
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        struct piece *piece = &arena->pieces[i];

        if (piece->state == PIECE_PENDING && piece->segment.bytes - piece->used >= need)
            return piece;
    }
    return NULL;
}

/* The smallest free segment of at least `bytes`. */
static struct piece *free_with(struct arena *arena, uint64_t bytes)
{
    struct piece *best = NULL;

    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        struct piece *piece = &arena->pieces[i];

        if (piece->state == PIECE_FREE && piece->segment.bytes >= bytes &&
            (!best || piece->segment.bytes < best->segment.bytes))
            best = piece;
    }
    return best;
}

static struct piece *largest_free(struct arena *arena)
{
    struct piece *best = NULL;

    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        struct piece *piece = &arena->pieces[i];

        if (piece->state == PIECE_FREE && (!best || piece->segment.bytes > best->segment.bytes))
            best = piece;
    }
    return best;
}

/* Gives a free segment back to the system. */
static void drop(struct piece *piece)
{
    if (piece->known) { /* so an earlier retraction of this number has been told */
        piece->retract = true;
        piece->retract_generation = piece->generation;
        piece->retract_bytes = piece->segment.bytes;
    }
    segment_fini(&piece->segment);
    piece->state = PIECE_NONE;
    piece->offered = piece->known = false;
}

/* A number without a segment, dropping free segments, smallest first, until the budget has room for `bytes` more. */
static struct piece *make_room(struct arena *arena, uint64_t bytes)
{
    for (;;) {
        struct piece *number = NULL, *smallest = free_with(arena, 0);

        for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS && !number; i++)
            if (arena->pieces[i].state == PIECE_NONE)
                number = &arena->pieces[i];
        if (number && bytes_in(arena, PIECE_NONE) + bytes <= arena->budget)
            return number;
        if (!smallest)
            return NULL;
        drop(smallest);
    }
}

static int create(struct arena *arena, uint64_t bytes, struct piece **ret_piece, struct poise_err *err)
{
    struct piece *piece = make_room(arena, bytes);
    struct segment segment;
    int rc;

    if (!piece)
        return err_set(err, -ENOMEM, "all %u segments of the send arena are in use", LOCAL_MAX_SEGMENTS);
    rc = segment_new("poise-arena", bytes, arena->flags, &segment, err);
    if (rc < 0)
        return rc;
    piece->segment = segment;
    piece->generation++;
    piece->state = PIECE_FREE;
    piece->used = 0;
    *ret_piece = piece;
    return 0;
}

static int no_room(const struct arena *arena, uint64_t used, uint64_t need, struct poise_err *err)
{
    char needed[MEMORY_TEXT], available[MEMORY_TEXT], begun[MEMORY_TEXT];
    uint64_t total = need > UINT64_MAX - used ? UINT64_MAX : used + need;

    memory_format(total, needed);
    memory_format(arena->budget, available);
    if (arena->n_in_flight > 0 && need <= arena->budget && bytes_in(arena, PIECE_PENDING) <= arena->budget - need)
        return err_set(err, -EAGAIN, "the send arena (%s) is full: %" PRIu32
                       " older steps are still being read by peers", available, arena->n_in_flight);
    if (total <= arena->budget)
        return err_set(err, -ENOMEM, "a step needs %s of send memory (%" PRIu64 " bytes so far); of the %s available "
                       "it has begun segments of %s, which do not hold the rest: raise memory_budget, or allocate a "
                       "step's largest part first", needed, total, available,
                       memory_format(bytes_in(arena, PIECE_PENDING), begun));
    return err_set(err, -ENOMEM, "a step needs %s of send memory (%" PRIu64 " bytes so far), %s are available (%" PRIu64
                   " bytes): raise memory_budget or submit less in a step", needed, total, available, arena->budget);
}

/* Makes a segment of `bytes`; where the system has not so much, an error that depends on whether waiting can help. */
static int create_or_wait(struct arena *arena, uint64_t bytes, uint64_t need, struct piece **ret_piece,
                          struct poise_err *err)
{
    int rc = create(arena, bytes, ret_piece, err);

    if (rc == -ENOMEM && bytes_in(arena, PIECE_FLIGHT) >= need)
        return err_set(err, -EAGAIN, "no memory for a new send segment: older steps are still being read by peers");
    return rc;
}

/* A free segment for `need` more bytes of the pending step: see the top. */
static int take(struct arena *arena, uint64_t need, struct piece **ret_piece, struct poise_err *err)
{
    uint64_t used = pending_used(arena), busy = bytes_in(arena, PIECE_PENDING) + bytes_in(arena, PIECE_FLIGHT);
    uint64_t rest = max_u64(need, arena->largest_step > used ? arena->largest_step - used : 0);
    uint64_t want = wanted_bytes(arena, used, need), exact = round_up(need, PAGE);
    uint64_t room = arena->budget > busy ? (arena->budget - busy) / PAGE * PAGE : 0;
    uint64_t spare = room - (bytes_in(arena, PIECE_FREE) < room ? bytes_in(arena, PIECE_FREE) : room);
    struct piece *piece = free_with(arena, rest), *largest = largest_free(arena);

    if (!piece && largest && largest->segment.bytes >= max_u64(need, rest / 2))
        piece = largest;
    /* Nothing free is of about the right size: a new one, as long as that takes nothing from what is there. */
    if (!piece && want <= spare && create(arena, want, &piece, NULL) < 0)
        piece = NULL;
    if (!piece && largest && largest->segment.bytes >= need)
        piece = largest;
    if (piece) {
        *ret_piece = piece;
        return 0;
    }
    /* Something must go. Not while two steps are in flight: the wait for the first is cheaper than cold memory. */
    if (exact > room || (arena->n_in_flight > 1 && exact > spare && bytes_in(arena, PIECE_FLIGHT) >= need))
        return no_room(arena, used, need, err);
    if (want > room)
        want = max_u64(exact, rest <= room ? round_up(rest, PAGE) : room);
    if (want > exact && create(arena, want, ret_piece, NULL) == 0)
        return 0;
    return create_or_wait(arena, exact, need, ret_piece, err);
}

int arena_alloc(struct arena *arena, uint64_t bytes, void **ret_data, struct poise_err *err)
{
    struct piece *piece;
    uint64_t need;
    int rc;

    if (bytes > INT64_MAX / 4) /* so that no sum below overflows */
        return no_room(arena, pending_used(arena), bytes, err);
    need = round_up(bytes ? bytes : 1, ARENA_ALIGN);
    piece = pending_with(arena, need);
    if (!piece) {
        rc = take(arena, need, &piece, err);
        if (rc < 0)
            return rc;
        piece->state = PIECE_PENDING;
        piece->used = 0;
    }
    *ret_data = (char *)piece->segment.base + piece->used;
    piece->used += need;
    return 0;
}

void arena_discard(struct arena *arena)
{
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        if (arena->pieces[i].state == PIECE_PENDING)
            arena->pieces[i].state = PIECE_FREE;
}

bool arena_find(const struct arena *arena, const void *data, uint64_t bytes, struct arena_place *ret_place)
{
    uintptr_t at = (uintptr_t)data;

    if (!data || bytes == 0)
        return false;
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        const struct piece *piece = &arena->pieces[i];
        uintptr_t base = (uintptr_t)piece->segment.base;

        if (piece->state != PIECE_PENDING || at < base || at - base >= piece->used || bytes > piece->used - (at - base))
            continue;
        *ret_place = (struct arena_place){ .segment = i, .generation = piece->generation, .offset = at - base };
        return true;
    }
    return false;
}

bool arena_lookup(const struct arena *arena, uint32_t segment, uint32_t generation, const void **ret_base,
                  uint64_t *ret_bytes)
{
    const struct piece *piece;

    if (segment >= LOCAL_MAX_SEGMENTS)
        return false;
    piece = &arena->pieces[segment];
    if (piece->state == PIECE_NONE || piece->generation != generation)
        return false;
    *ret_base = piece->segment.base;
    *ret_bytes = piece->segment.bytes;
    return true;
}

/* Free segments that the steps have outgrown: no step begins in them any more. Where two slots of the present size do
 * not fit the budget, pieces are of use. */
static void drop_outgrown(struct arena *arena)
{
    if (arena->budget / 4 < arena->largest_step)
        return;
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        if (arena->pieces[i].state == PIECE_FREE && arena->pieces[i].segment.bytes < arena->largest_step / 2)
            drop(&arena->pieces[i]);
}

int arena_may_commit(const struct arena *arena, uint64_t step, struct poise_err *err)
{
    for (uint32_t i = 0; i < arena->n_in_flight; i++)
        if (arena->in_flight[i] == step)
            return err_set(err, -EEXIST, "step %" PRIu64 " is in flight already", step);
    if (arena->n_in_flight == ARENA_MAX_STEPS)
        return err_set(err, -EAGAIN, "%u steps are in flight already", ARENA_MAX_STEPS);
    return 0;
}

int arena_commit(struct arena *arena, uint64_t step, struct poise_err *err)
{
    uint64_t used = pending_used(arena);
    int rc = arena_may_commit(arena, step, err);

    if (rc < 0)
        return rc;
    arena->in_flight[arena->n_in_flight++] = step;
    arena->largest_step = max_u64(arena->largest_step, used);
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        if (arena->pieces[i].state != PIECE_PENDING)
            continue;
        arena->pieces[i].state = PIECE_FLIGHT;
        arena->pieces[i].step = step;
    }
    drop_outgrown(arena);
    return 0;
}

void arena_done(struct arena *arena, uint64_t step)
{
    uint32_t at = 0;

    while (at < arena->n_in_flight && arena->in_flight[at] != step)
        at++;
    if (at == arena->n_in_flight)
        return;
    arena->in_flight[at] = arena->in_flight[--arena->n_in_flight];
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        if (arena->pieces[i].state == PIECE_FLIGHT && arena->pieces[i].step == step)
            arena->pieces[i].state = PIECE_FREE;
}

bool arena_next_change(struct arena *arena, struct arena_change *ret_change)
{
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        struct piece *piece = &arena->pieces[i];

        if (!piece->retract)
            continue;
        piece->retract = false;
        *ret_change = (struct arena_change){ .segment = i, .generation = piece->retract_generation,
                                             .bytes = piece->retract_bytes, .fd = -1 };
        return true;
    }
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        struct piece *piece = &arena->pieces[i];

        if (piece->state == PIECE_NONE || piece->offered)
            continue;
        piece->offered = piece->known = true;
        *ret_change = (struct arena_change){ .offer = true, .segment = i, .generation = piece->generation,
                                             .bytes = piece->segment.bytes, .fd = piece->segment.fd };
        return true;
    }
    return false;
}

void arena_offer_again(struct arena *arena)
{
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++) {
        arena->pieces[i].offered = false;
        /* It may have died before it forwarded them. */
        arena->pieces[i].retract = arena->pieces[i].retract_generation != 0;
    }
}

void arena_stats(const struct arena *arena, struct arena_stats *ret_stats)
{
    struct arena_stats stats = { .budget = arena->budget, .largest_step = arena->largest_step,
                                 .n_in_flight = arena->n_in_flight, .slots = LOCAL_MAX_SEGMENTS };

    stats.bytes = bytes_in(arena, PIECE_NONE);
    stats.pending = pending_used(arena);
    for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
        stats.n_segments += arena->pieces[i].state != PIECE_NONE;
    if (arena->largest_step > 0 && arena->budget / arena->largest_step < stats.slots)
        stats.slots = (uint32_t)max_u64(1, arena->budget / arena->largest_step);
    *ret_stats = stats;
}
