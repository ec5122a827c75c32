/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page of plain atomics with one writer. An entry of the step table is a sequence lock: its `published` is zeroed,
 * the members change, then it becomes step + 1 (release); a reader (acquire) that finds another value before or after
 * its copy has no copy. done[][] holds step + 1 of the last step that is done in that line, so a line never needs
 * clearing: lines are used again 32 steps later, when nobody asks for the earlier step any more.
 */
#include "client/control.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "daemon/planner/err.h"
#include "proto/wire.h"

#define MAGIC 0x706f6973u /* "pois" */

struct entry {
    _Atomic uint64_t published; /* step + 1; 0: none, or being written */
    _Atomic uint64_t offset, bytes, published_ns, digest;
    _Atomic uint32_t segment, generation, n_samples;
    uint32_t reserved[3]; /* a cache line each: a reader of one step does not disturb the writer of the next */
};
_Static_assert(sizeof(struct entry) == 64, "an entry is a cache line");

struct control_page {
    uint32_t magic, version, rank, n_peers;
    uint32_t reserved[12];
    struct entry entries[CONTROL_STEPS];
    _Atomic uint64_t done[]; /* [CONTROL_STEPS][n_peers] */
};

static uint64_t page_bytes(uint32_t n_peers)
{
    return sizeof(struct control_page) + (uint64_t)CONTROL_STEPS * n_peers * sizeof(uint64_t);
}

int control_new(uint32_t rank, uint32_t n_peers, struct control *ret_control, struct poise_err *err)
{
    struct control control = { .n_peers = n_peers };
    int rc;

    if (n_peers == 0 || n_peers > WIRE_MAX_RANKS)
        return err_set(err, -EINVAL, "a control segment for %" PRIu32 " ranks cannot be made", n_peers);
    rc = segment_new("poise-control", page_bytes(n_peers), 0, &control.segment, err);
    if (rc < 0)
        return rc;
    control.page = control.segment.base; /* zeroed by the kernel: nothing published, nothing done */
    control.page->version = WIRE_VERSION;
    control.page->rank = rank;
    control.page->n_peers = n_peers;
    control.page->magic = MAGIC;
    *ret_control = control;
    return 0;
}

void control_fini(struct control *control)
{
    segment_fini(&control->segment);
    control->page = NULL;
    control->n_peers = 0;
}

void control_child(struct control *control)
{
    segment_child(&control->segment);
    control->page = NULL;
}

void control_publish(struct control *control, uint64_t step, const struct control_place *place)
{
    struct entry *entry = &control->page->entries[step % CONTROL_STEPS];

    atomic_store_explicit(&entry->published, 0, memory_order_relaxed);
    /* The members may not become visible before the zero. */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&entry->segment, place->segment, memory_order_relaxed);
    atomic_store_explicit(&entry->generation, place->generation, memory_order_relaxed);
    atomic_store_explicit(&entry->offset, place->offset, memory_order_relaxed);
    atomic_store_explicit(&entry->bytes, place->bytes, memory_order_relaxed);
    atomic_store_explicit(&entry->n_samples, place->n_samples, memory_order_relaxed);
    atomic_store_explicit(&entry->published_ns, place->published_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->digest, place->digest, memory_order_relaxed);
    atomic_store_explicit(&entry->published, step + 1, memory_order_release);
}

void control_set_done(struct control *control, uint64_t step, uint32_t peer)
{
    if (peer < control->n_peers)
        atomic_store_explicit(&control->page->done[(step % CONTROL_STEPS) * control->n_peers + peer], step + 1,
                              memory_order_release);
}

int control_view(const void *base, uint64_t bytes, uint32_t rank, uint32_t n_peers, struct control_view *ret_view,
                 struct poise_err *err)
{
    const struct control_page *page = base;
    struct control_page copy;

    if (bytes < page_bytes(n_peers))
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "the control segment of rank %" PRIu32 " has %" PRIu64
                          " bytes, %" PRIu64 " are needed", rank, bytes, page_bytes(n_peers));
    copy.magic = *(const volatile uint32_t *)&page->magic;
    copy.version = *(const volatile uint32_t *)&page->version;
    copy.rank = *(const volatile uint32_t *)&page->rank;
    copy.n_peers = *(const volatile uint32_t *)&page->n_peers;
    if (copy.magic != MAGIC || copy.version != WIRE_VERSION)
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "the control segment of rank %" PRIu32
                          " is none of version %u", rank, WIRE_VERSION);
    if (copy.rank != rank || copy.n_peers != n_peers)
        return err_set_at(err, -EINVAL, rank, POISE_NONE, NULL, "the control segment of rank %" PRIu32 " of %" PRIu32
                          " says rank %" PRIu32 " of %" PRIu32, rank, n_peers, copy.rank, copy.n_peers);
    *ret_view = (struct control_view){ .page = page, .n_peers = n_peers };
    return 0;
}

struct control_view control_own(const struct control *control)
{
    return (struct control_view){ .page = control->page, .n_peers = control->n_peers };
}

int control_read(struct control_view view, uint64_t step, struct control_place *ret_place)
{
    const struct entry *entry = &view.page->entries[step % CONTROL_STEPS];
    uint64_t published = atomic_load_explicit(&entry->published, memory_order_acquire);
    struct control_place place;

    if (published != step + 1)
        return published > step + 1 ? -ESTALE : -EAGAIN;
    place.segment = atomic_load_explicit(&entry->segment, memory_order_relaxed);
    place.generation = atomic_load_explicit(&entry->generation, memory_order_relaxed);
    place.offset = atomic_load_explicit(&entry->offset, memory_order_relaxed);
    place.bytes = atomic_load_explicit(&entry->bytes, memory_order_relaxed);
    place.n_samples = atomic_load_explicit(&entry->n_samples, memory_order_relaxed);
    place.published_ns = atomic_load_explicit(&entry->published_ns, memory_order_relaxed);
    place.digest = atomic_load_explicit(&entry->digest, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    published = atomic_load_explicit(&entry->published, memory_order_relaxed);
    if (published != step + 1)
        return published > step + 1 ? -ESTALE : -EAGAIN;
    *ret_place = place;
    return 0;
}

bool control_is_done(struct control_view view, uint64_t step, uint32_t peer)
{
    uint64_t done;

    if (peer >= view.n_peers)
        return false;
    done = atomic_load_explicit(&view.page->done[(step % CONTROL_STEPS) * view.n_peers + peer], memory_order_acquire);
    return done >= step + 1;
}
