/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way within a node: a control segment says where a step's directory is, the directory where the fields are, and
 * assemble_fill() copies them straight out of the sender's mapped arena. What is not offered yet is waited for; done
 * is a word in the own control segment and a ring at the sender's door. Own samples take the same way.
 */
#include "client/transport_memory.h"

#include <errno.h>

#include "client/handle.h"
#include "daemon/planner/err.h"

static struct poise *handle_of(struct transport *t)
{
    return ((struct transport_memory *)t)->p;
}

bool transport_memory_lookup(void *context, uint32_t segment, uint32_t generation, const void **ret_base,
                             uint64_t *ret_bytes)
{
    const struct poise *p = context;

    if (segment >= LOCAL_MAX_SEGMENTS || !p->own[segment].base || p->own[segment].generation != generation)
        return false;
    *ret_base = p->own[segment].base;
    *ret_bytes = p->own[segment].bytes;
    return true;
}

static bool lookup(struct poise *p, uint32_t rank, const struct control_place *place, const void **ret_base,
                   uint64_t *ret_bytes)
{
    if (rank == p->settings.join.rank)
        return transport_memory_lookup(p, place->segment, place->generation, ret_base, ret_bytes);
    return peers_arena(p->peers, rank, place->segment, place->generation, ret_base, ret_bytes);
}

/* 0, -EAGAIN not offered yet. */
static int open_directory(struct poise *p, uint32_t rank, uint64_t step, const struct wire_table *table,
                          struct directory *ret_dir, struct poise_err *err)
{
    struct control_view view = control_own(&p->control);
    struct control_place place;
    const void *base;
    uint64_t bytes;
    int rc;

    if (rank != p->settings.join.rank && !peers_control(p->peers, rank, &view))
        return -EAGAIN;
    rc = control_read(view, step, &place);
    if (rc == -EAGAIN)
        return rc;
    if (rc < 0)
        return err_set_at(err, -EPROTO, rank, POISE_NONE, NULL, "rank %u has replaced the directory of step %llu", rank,
                          (unsigned long long)step);
    if (!lookup(p, rank, &place, &base, &bytes))
        return -EAGAIN;
    if (place.offset > bytes || place.bytes > bytes - place.offset)
        return err_set_at(err, -EPROTO, rank, POISE_NONE, NULL,
                          "rank %u says that the directory of step %llu lies outside of its segment", rank,
                          (unsigned long long)step);
    return directory_open((const unsigned char *)base + place.offset, place.bytes, step, rank, place.n_samples, table,
                          ret_dir, err);
}

int transport_memory_own(struct poise *p, uint64_t step, const struct wire_table *table, struct directory *ret_dir,
                         struct poise_err *err)
{
    return open_directory(p, p->settings.join.rank, step, table, ret_dir, err);
}

static int entries(struct transport *t, const struct transport_step *step, struct source *source, struct poise_err *err)
{
    struct poise *p = handle_of(t);
    const struct wire_table *table = &step->merged->table;
    struct peers_of of = {.peers = p->peers, .rank = source->rank};
    bool own = source->rank == p->settings.join.rank;
    int rc = source->open ? 0 : open_directory(p, source->rank, step->step, table, &source->dir, err);

    if (rc < 0)
        return rc;
    source->open = true;
    for (; source->n_entries < source->n; source->n_entries++) {
        uint32_t at = source->at[source->n_entries];
        uint64_t in_bytes = step->any_bytes ? DIRECTORY_ANY_BYTES : step->slice->in_bytes[at];
        rc = directory_read(&source->dir, step->slice->in_index[at], in_bytes,
                            own ? transport_memory_lookup : peers_lookup, own ? (void *)p : (void *)&of,
                            &step->samples[at], step->values + (size_t)at * table->n_fields, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* It lies where assemble_fill() reads it. */
static int fetch(struct transport *t, const struct transport_step *step, struct source *source, struct poise_err *err)
{
    (void)t;
    (void)step;
    (void)source;
    (void)err;
    return 0;
}

static void done(struct transport *t, uint64_t step, uint32_t rank)
{
    struct poise *p = handle_of(t);

    control_set_done(&p->control, step, rank);
    if (rank != p->settings.join.rank)
        peers_ring(p->peers, rank);
}

static void close_source(struct transport *t, struct source *source)
{
    (void)t;
    if (source->open)
        directory_close(&source->dir);
    source->open = false;
}

void transport_memory_init(struct transport_memory *memory, struct poise *p)
{
    static const struct transport_calls calls = {
        .name = "memory", .entries = entries, .fetch = fetch, .done = done, .close = close_source};

    *memory = (struct transport_memory){.transport = {.calls = &calls}, .p = p};
}
