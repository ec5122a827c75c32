/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks and who holds them. A reservation takes the smallest free block that is large enough, else makes one with head
 * room, giving back free ones that the steps have outgrown; it fails with -EAGAIN while a release can still help, else
 * says how much is missing. The lock is never held while the kernel clears pages, so a release by the trainer does not
 * wait for the engine. Counts of holders are atomic; the last release of a part takes the lock.
 */
#include "client/receive.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/memory.h"
#include "daemon/planner/err.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define MAX_BLOCKS 16u
#define ALIGN 64u

struct block {
    unsigned char *base; /* NULL: none, or being made (then busy) */
    uint64_t bytes;
    bool busy;
    uint64_t step; /* busy */
};

struct receive {
    pthread_mutex_t lock; /* of everything below; no system call that waits is made under it */
    uint64_t budget, largest_step, last_step;
    uint32_t flags;
    bool any_step, closed;
    uint32_t n_held; /* slots not all released */
    struct block blocks[MAX_BLOCKS];
};

struct held { /* a slot with what the caller does not see */
    struct receive_slot slot;
    struct block *block; /* NULL: a step without bytes */
    uint64_t bytes;      /* of the block that the step uses */
    uint32_t n_open;     /* parts not released; under the lock */
    _Atomic uint32_t holders[]; /* [n_parts] */
};

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* ------------------------------------------------------------------------------------------------------------- blocks
 * */

/* Touches every page: MADV_POPULATE_WRITE says when memory is short, where an older kernel would just kill us. */
static int populate(unsigned char *base, uint64_t bytes)
{
    int rc;

    madvise(base, bytes, MADV_HUGEPAGE); /* a wish: fewer, larger pages make the first touch and each copy cheaper */
    do /* what is populated stays, so each turn makes progress */
        rc = madvise(base, bytes, MADV_POPULATE_WRITE);
    while (rc < 0 && (errno == EINTR || errno == EAGAIN));
    if (rc == 0)
        return 0;
    if (errno != EINVAL)
        return errno == EFAULT ? -ENOMEM : -errno;
    for (uint64_t at = 0, page = page_bytes(); at < bytes; at += page)
        *(volatile unsigned char *)(base + at) = 0;
    return 0;
}

static int map_block(uint64_t bytes, unsigned char **ret_base, struct poise_err *err)
{
    char size[MEMORY_TEXT];
    void *base;
    int rc = memory_check(bytes, "receive memory", err);

    if (rc < 0)
        return rc;
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return err_set(err, -ENOMEM, "receive memory: %s cannot be mapped: %s", memory_format(bytes, size),
                       strerror(errno));
    rc = madvise(base, bytes, MADV_DONTFORK) < 0 ? -errno : populate(base, bytes);
    if (rc < 0) {
        munmap(base, bytes);
        return err_set(err, rc, "receive memory: %s are not there: %s", memory_format(bytes, size), strerror(-rc));
    }
    *ret_base = base;
    return 0;
}

static void drop(struct block *block)
{
    munmap(block->base, block->bytes);
    *block = (struct block){ 0 };
}

static uint64_t busy_bytes(const struct receive *receive)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        if (receive->blocks[i].busy)
            bytes += receive->blocks[i].bytes;
    return bytes;
}

static uint64_t all_bytes(const struct receive *receive)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        bytes += receive->blocks[i].bytes;
    return bytes;
}

/* The smallest free block of at least `bytes`. */
static struct block *free_with(struct receive *receive, uint64_t bytes)
{
    struct block *best = NULL;

    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        struct block *block = &receive->blocks[i];

        if (block->base && !block->busy && block->bytes >= bytes && (!best || block->bytes < best->bytes))
            best = block;
    }
    return best;
}

/* A block to be made with `bytes`, busy already, free ones dropped (smallest first) as the budget demands. */
static struct block *make_room(struct receive *receive, uint64_t bytes)
{
    for (;;) {
        struct block *none = NULL, *smallest = free_with(receive, 0);

        for (uint32_t i = 0; i < MAX_BLOCKS && !none; i++)
            if (!receive->blocks[i].base && !receive->blocks[i].busy)
                none = &receive->blocks[i];
        if (none && all_bytes(receive) + bytes <= receive->budget) {
            *none = (struct block){ .bytes = bytes, .busy = true };
            return none;
        }
        if (!smallest)
            return NULL;
        drop(smallest);
    }
}

/* Half of head room, for sizes of real batches have long tails; but never at the price of the second slot. */
static uint64_t wanted_bytes(const struct receive *receive, uint64_t need)
{
    uint64_t largest = receive->largest_step > need ? receive->largest_step : need;
    uint64_t roomy = largest + largest / 2, half = receive->budget / 2 / page_bytes() * page_bytes();

    if (roomy > half)
        roomy = largest <= half ? half : largest;
    return round_up(roomy, page_bytes());
}

/* Free blocks that the steps have outgrown. Where the budget holds few of the present size, smaller ones are of use. */
static void drop_outgrown(struct receive *receive)
{
    if (receive->budget / 4 < receive->largest_step)
        return;
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        struct block *block = &receive->blocks[i];

        if (block->base && !block->busy && block->bytes < receive->largest_step / 2)
            drop(block);
    }
}

static int no_room(const struct receive *receive, uint64_t need, struct poise_err *err)
{
    char needed[MEMORY_TEXT], available[MEMORY_TEXT];

    memory_format(need, needed);
    memory_format(receive->budget, available);
    if (receive->n_held > 0 && need <= receive->budget)
        return err_set(err, -EAGAIN, "the receive memory (%s) is full: batches of %" PRIu32 " steps are held",
                       available, receive->n_held);
    return err_set(err, -ENOMEM, "a step needs %s of receive memory (%" PRIu64 " bytes), %s are available (%" PRIu64
                   " bytes): raise memory_budget or take smaller steps", needed, need, available, receive->budget);
}

/* Makes a block of `bytes`; the lock is given up meanwhile. */
static int make_block(struct receive *receive, uint64_t bytes, struct block **ret_block, struct poise_err *err)
{
    struct block *block = make_room(receive, bytes);
    unsigned char *base = NULL;
    int rc;

    if (!block)
        return no_room(receive, bytes, err);
    pthread_mutex_unlock(&receive->lock);
    rc = map_block(bytes, &base, err);
    pthread_mutex_lock(&receive->lock);
    if (rc < 0)
        *block = (struct block){ 0 };
    else
        block->base = base;
    if (rc == 0)
        *ret_block = block;
    return rc;
}

/* A busy block of at least `need` bytes. */
static int take_block(struct receive *receive, uint64_t need, struct block **ret_block, struct poise_err *err)
{
    uint64_t busy = busy_bytes(receive), room = receive->budget > busy ? receive->budget - busy : 0;
    uint64_t want = wanted_bytes(receive, need), exact = round_up(need, page_bytes());
    struct block *block = free_with(receive, need);
    int rc;

    if (block) {
        if (receive->flags & POISE_DEBUG_SLOTS)
            mprotect(block->base, block->bytes, PROT_READ | PROT_WRITE);
        block->busy = true;
        *ret_block = block;
        return 0;
    }
    if (exact > room)
        return no_room(receive, need, err);
    if (want <= room && make_block(receive, want, ret_block, NULL) == 0)
        return 0;
    rc = make_block(receive, exact, ret_block, err);
    if (rc != -ENOMEM)
        return rc;
    /* The system is short of memory: what we hold for nothing goes first; then what held steps give back will do. */
    while ((block = free_with(receive, 0)) != NULL)
        drop(block);
    rc = make_block(receive, exact, ret_block, err);
    if (rc == -ENOMEM && receive->n_held > 0)
        return err_set(err, -EAGAIN, "no memory for a new receive block: older batches are held");
    if (rc == -ENOMEM && err)
        err->code = -ENOBUFS;
    return rc == -ENOMEM ? -ENOBUFS : rc;
}

/* ------------------------------------------------------------------------------------------------------------- public
 * */

int receive_new(uint64_t budget_bytes, uint32_t flags, struct receive **ret_receive, struct poise_err *err)
{
    struct receive *receive = calloc(1, sizeof *receive);

    if (!receive)
        return err_set(err, -ENOMEM, "out of memory");
    pthread_mutex_init(&receive->lock, NULL);
    receive->budget = budget_bytes;
    receive->flags = flags;
    *ret_receive = receive;
    return 0;
}

static void destroy(struct receive *receive)
{
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        if (receive->blocks[i].base)
            drop(&receive->blocks[i]);
    pthread_mutex_destroy(&receive->lock);
    free(receive);
}

void receive_close(struct receive *receive)
{
    bool last;

    if (!receive)
        return;
    pthread_mutex_lock(&receive->lock);
    receive->closed = true;
    last = receive->n_held == 0;
    for (uint32_t i = 0; i < MAX_BLOCKS; i++)
        if (receive->blocks[i].base && !receive->blocks[i].busy)
            drop(&receive->blocks[i]);
    pthread_mutex_unlock(&receive->lock);
    if (last)
        destroy(receive);
}

void receive_set_budget(struct receive *receive, uint64_t budget_bytes)
{
    pthread_mutex_lock(&receive->lock);
    receive->budget = budget_bytes;
    pthread_mutex_unlock(&receive->lock);
}

/* Bytes of a step; -EOVERFLOW. */
static int sum_parts(const struct receive *receive, const uint64_t *part_bytes, uint32_t n_parts, uint64_t *ret_bytes)
{
    uint64_t align = receive->flags & POISE_DEBUG_SLOTS ? page_bytes() : ALIGN, sum = 0;

    for (uint32_t i = 0; i < n_parts; i++) {
        if (part_bytes[i] > INT64_MAX / 4 - sum) /* so that no rounding or head room overflows */
            return -EOVERFLOW;
        sum += round_up(part_bytes[i], align);
    }
    *ret_bytes = sum;
    return 0;
}

/* Lays the parts out in the slot's block. */
static void set_parts(struct held *held, const uint64_t *part_bytes, uint32_t holders)
{
    uint64_t align = held->slot.receive->flags & POISE_DEBUG_SLOTS ? page_bytes() : ALIGN, at = 0;

    for (uint32_t i = 0; i < held->slot.n_parts; i++) {
        held->slot.parts[i].bytes = part_bytes[i];
        held->slot.parts[i].data = part_bytes[i] ? held->block->base + at : NULL;
        at += round_up(part_bytes[i], align);
        atomic_init(&held->holders[i], holders);
    }
}

int receive_reserve(struct receive *receive, uint64_t step, const uint64_t *part_bytes, uint32_t n_parts,
                    uint32_t holders, struct receive_slot **ret_slot, struct poise_err *err)
{
    struct held *held;
    struct block *block = NULL;
    uint64_t need;
    int rc;

    if (holders == 0 || (receive->any_step && step <= receive->last_step))
        return err_set(err, -EINVAL, "step %" PRIu64 " cannot be reserved after step %" PRIu64, step,
                       receive->last_step);
    if (sum_parts(receive, part_bytes, n_parts, &need) < 0)
        return err_set(err, -ENOMEM, "a step's receive memory does not fit 61 bits");
    held = calloc(1, sizeof *held + n_parts * sizeof *held->holders);
    if (held)
        held->slot.parts = calloc(n_parts ? n_parts : 1, sizeof *held->slot.parts);
    if (!held || !held->slot.parts) {
        free(held);
        return err_set(err, -ENOMEM, "out of memory");
    }
    pthread_mutex_lock(&receive->lock);
    rc = need > 0 ? take_block(receive, need, &block, err) : 0;
    if (rc == 0) {
        receive->any_step = true;
        receive->last_step = step;
        if (need > receive->largest_step)
            receive->largest_step = need;
        drop_outgrown(receive);
        if (block)
            block->step = step;
        receive->n_held += n_parts > 0;
    }
    pthread_mutex_unlock(&receive->lock);
    if (rc < 0 || n_parts == 0) {
        free(held->slot.parts);
        free(held);
        if (rc == 0)
            *ret_slot = NULL;
        return rc;
    }
    held->slot.receive = receive;
    held->slot.step = step;
    held->slot.n_parts = held->n_open = n_parts;
    held->block = block;
    set_parts(held, part_bytes, holders);
    *ret_slot = &held->slot;
    return 0;
}

void receive_hold(struct receive_slot *slot, uint32_t part)
{
    struct held *held = (struct held *)slot;

    atomic_fetch_add_explicit(&held->holders[part], 1, memory_order_relaxed);
}

void receive_release(struct receive_slot *slot, uint32_t part)
{
    struct held *held = (struct held *)slot;
    struct receive *receive = slot->receive;
    bool slot_over, all_over;

    /* Whatever any holder did with the part happens before it is given to somebody else. */
    if (atomic_fetch_sub_explicit(&held->holders[part], 1, memory_order_acq_rel) != 1)
        return;
    if ((receive->flags & POISE_DEBUG_SLOTS) && slot->parts[part].bytes > 0)
        mprotect(slot->parts[part].data, round_up(slot->parts[part].bytes, page_bytes()), PROT_NONE);
    pthread_mutex_lock(&receive->lock);
    slot_over = --held->n_open == 0;
    if (slot_over) {
        receive->n_held--;
        if (held->block)
            held->block->busy = false;
        if (held->block && receive->closed)
            drop(held->block);
    }
    all_over = receive->closed && receive->n_held == 0;
    pthread_mutex_unlock(&receive->lock);
    if (slot_over) {
        free(slot->parts);
        free(held);
    }
    /* Only who brought n_held to 0 sees both: nobody can hold anything of it any more. */
    if (slot_over && all_over)
        destroy(receive);
}

void receive_stats(struct receive *receive, struct receive_stats *ret_stats)
{
    struct receive_stats stats = { .oldest_step = UINT64_MAX, .slots = MAX_BLOCKS };

    pthread_mutex_lock(&receive->lock);
    stats.bytes = all_bytes(receive);
    stats.budget = receive->budget;
    stats.largest_step = receive->largest_step;
    stats.held_bytes = busy_bytes(receive);
    stats.n_held = receive->n_held;
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        const struct block *block = &receive->blocks[i];

        stats.n_blocks += block->base != NULL;
        if (block->busy && block->base && block->step < stats.oldest_step)
            stats.oldest_step = block->step;
    }
    if (stats.largest_step > 0 && stats.budget / stats.largest_step < stats.slots)
        stats.slots = stats.budget < stats.largest_step * 2 ? 1 : (uint32_t)(stats.budget / stats.largest_step);
    pthread_mutex_unlock(&receive->lock);
    *ret_stats = stats;
}
