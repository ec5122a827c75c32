/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory in the client's data plane is an error without side effect: each allocation of an operation fails in
 * turn. malloc and calloc of this program fail when told; AddressSanitizer has its own, so there the test is skipped.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/directory.h"
#include "client/peers.h"
#include "client/receive.h"
#include "client/stage.h"
#include "samples.h"

#ifdef __SANITIZE_ADDRESS__
#define FAULTS 0
#else
#define FAULTS 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);

static __thread int countdown = -1; /* the allocation that fails; below 0: none */

static bool fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}
#endif

/* Runs operation() with the first, second ... allocation failing, until it needs no more. Returns how many failed. */
static int each_fault(int (*operation)(void))
{
    int n = 0;

#if FAULTS
    for (;; n++) {
        int rc;

        countdown = n;
        rc = operation();
        if (countdown >= 0) { /* did not come so far */
            countdown = -1;
            cr_assert_eq(rc, 0);
            return n;
        }
        countdown = -1;
        cr_assert_eq(rc, -ENOMEM, "allocation %d", n);
    }
#else
    cr_assert_eq(operation(), 0);
#endif
    return n;
}

static int new_arena(void)
{
    struct arena *arena;
    int rc = arena_new(1 << 20, 0, &arena, NULL);

    if (rc == 0)
        arena_free(arena);
    return rc;
}

static int new_peers(void)
{
    struct peers *peers;
    int rc = peers_new(100, 0, NULL, NULL, &peers, NULL);

    if (rc == 0)
        peers_free(peers);
    return rc;
}

static struct receive *receive;
static uint64_t next_step;

static int reserve_slot(void)
{
    struct receive_slot *slot = NULL;
    uint64_t bytes[] = { 100, 200 };
    int rc = receive_reserve(receive, next_step, bytes, 2, 1, &slot, NULL);

    if (rc < 0) {
        cr_assert(slot == NULL);
        return rc;
    }
    next_step++;
    receive_release(slot, 0);
    receive_release(slot, 1);
    return 0;
}

static int new_receive(void)
{
    int rc = receive_new(1 << 20, 0, &receive, NULL);

    if (rc == 0)
        receive_close(receive);
    return rc;
}

Test(out_of_memory, making_things)
{
    cr_assert_eq(each_fault(new_arena), FAULTS ? 1 : 0);
    cr_assert_eq(each_fault(new_peers), FAULTS ? 2 : 0);
    cr_assert_eq(each_fault(new_receive), FAULTS ? 1 : 0);
}

Test(out_of_memory, reserving_a_step)
{
    cr_assert_eq(receive_new(1 << 20, 0, &receive, NULL), 0);
    cr_assert_geq(each_fault(reserve_slot), FAULTS ? 2 : 0);
    cr_assert_eq(reserve_slot(), 0);
    receive_close(receive);
}

/* One submission of one sample, staged and read back. */
static struct wire_field rule;
static struct wire_table table = { 1, &rule };
static struct arena *arena;
static struct stage_sample checked;
static uint64_t n_values;
static struct poise_value value = { .field = "ids", .data = "abcd", .n_dims = 1, .shape = { 4 } };
static struct poise_sample sample = { .values = &value, .n_values = 1, .value_size = sizeof value };
static struct control_place place;

static int check(void)
{
    return stage_check(&table, 0, &sample, 1, sizeof sample, &checked, &n_values, NULL);
}

static int stage(void)
{
    static const uint32_t micro_batch;
    static const uint64_t loss;
    struct stage_request req = { .step = next_step, .table = &table, .samples = &sample, .n_samples = 1,
                                 .sample_size = sizeof sample, .checked = &checked, .n_values = n_values,
                                 .arrival_micro_batch = &micro_batch, .arrival_loss_tokens = &loss };
    int rc = stage_step(arena, &req, &place, NULL);
    struct arena_stats stats;

    arena_stats(arena, &stats);
    cr_assert_eq(stats.pending, 0);
    cr_assert_eq(stats.n_in_flight, rc == 0 ? 1 : 0);
    return rc;
}

static int open_directory(void)
{
    struct directory dir;
    const void *base;
    uint64_t bytes;
    int rc;

    cr_assert(arena_lookup(arena, place.segment, place.generation, &base, &bytes));
    rc = directory_open((const char *)base + place.offset, place.bytes, next_step, 0, 1, &table, &dir, NULL);
    if (rc == 0)
        directory_close(&dir);
    return rc;
}

Test(out_of_memory, staging_and_reading)
{
    void *data;

    rule = samples_field("ids", POISE_U8, POISE_PADDED, 0, 1, SHAPE(-1));
    cr_assert_eq(arena_new(8 << 20, 0, &arena, NULL), 0);
    cr_assert_eq(arena_alloc(arena, 64, &data, NULL), 0); /* reading what is free allocates, too, and may fail */
    arena_discard(arena);
    cr_assert_geq(each_fault(check), FAULTS ? 2 : 0);
    cr_assert_geq(each_fault(stage), FAULTS ? 2 : 0);
    cr_assert_eq(each_fault(open_directory), FAULTS ? 1 : 0);
    arena_free(arena);
}
