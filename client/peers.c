/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table by rank of what has been offered: one control segment, one doorbell, up to 16 arena segments. It grows with
 * the peers that offer something, not with the group. An offer is refused unless reading it can never fault; a
 * retraction is remembered by its generation, so that an offer which was overtaken by it is not mapped for ever.
 */
#include "client/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/planner/err.h"

struct mapping {
    const void *base; /* NULL: none */
    uint64_t bytes;
    uint32_t generation; /* of base, or the highest that is gone */
    bool known;          /* generation means something */
};

struct peer {
    struct mapping control, arena[LOCAL_MAX_SEGMENTS];
    struct control_view view; /* of control */
    int doorbell;             /* -1: none */
    uint32_t doorbell_generation;
};

struct peers {
    uint32_t n_ranks, own_rank;
    const struct arena *own;
    const struct control *own_control;
    struct peer **by_rank; /* [n_ranks]; NULL: has offered nothing */
    uint64_t bytes;
};

int peers_new(uint32_t n_ranks, uint32_t own_rank, const struct arena *own, const struct control *own_control,
              struct peers **ret_peers, struct poise_err *err)
{
    struct peers *peers = calloc(1, sizeof *peers);

    if (peers)
        peers->by_rank = calloc(n_ranks ? n_ranks : 1, sizeof *peers->by_rank);
    if (!peers || !peers->by_rank) {
        free(peers);
        return err_set(err, -ENOMEM, "out of memory");
    }
    peers->n_ranks = n_ranks;
    peers->own_rank = own_rank;
    peers->own = own;
    peers->own_control = own_control;
    *ret_peers = peers;
    return 0;
}

static void unmap(struct peers *peers, struct mapping *mapping)
{
    if (!mapping->base)
        return;
    segment_unmap(mapping->base, mapping->bytes);
    peers->bytes -= mapping->bytes;
    mapping->base = NULL;
}

static void close_doorbell(struct peer *peer)
{
    if (peer->doorbell >= 0)
        close(peer->doorbell);
    peer->doorbell = -1;
}

void peers_free(struct peers *peers)
{
    if (!peers)
        return;
    for (uint32_t rank = 0; rank < peers->n_ranks; rank++) {
        struct peer *peer = peers->by_rank[rank];

        if (!peer)
            continue;
        unmap(peers, &peer->control);
        for (uint32_t i = 0; i < LOCAL_MAX_SEGMENTS; i++)
            unmap(peers, &peer->arena[i]);
        close_doorbell(peer);
        free(peer);
    }
    free(peers->by_rank);
    free(peers);
}

void peers_child(struct peers *peers)
{
    for (uint32_t rank = 0; rank < peers->n_ranks; rank++)
        if (peers->by_rank[rank])
            close_doorbell(peers->by_rank[rank]);
}

static struct peer *get_peer(struct peers *peers, uint32_t rank)
{
    struct peer *peer = peers->by_rank[rank];

    if (peer)
        return peer;
    peer = calloc(1, sizeof *peer);
    if (peer)
        peer->doorbell = -1;
    peers->by_rank[rank] = peer;
    return peer;
}

/* Maps an offered segment into *mapping, in place of an older one. Takes fd. */
static int take_segment(struct peers *peers, const struct local_message *offer, int fd, struct mapping *mapping,
                        struct poise_err *err)
{
    const void *base;
    int rc;

    if (mapping->known && offer->generation == mapping->generation && mapping->base) {
        close(fd);
        return -EALREADY; /* poised came back, or the owner repeats itself: not worth a text */
    }
    if (mapping->known && (int32_t)(offer->generation - mapping->generation) <= 0) {
        close(fd);
        return err_set_at(err, -ESTALE, offer->rank, POISE_NONE, NULL,
                          "rank %" PRIu32 " offers segment %" PRIu32 " of generation %" PRIu32 ", %" PRIu32 " is known",
                          offer->rank, offer->segment, offer->generation, mapping->generation);
    }
    rc = segment_map(fd, offer->bytes, &base, err);
    if (rc < 0)
        return rc;
    unmap(peers, mapping);
    *mapping = (struct mapping){ .base = base, .bytes = offer->bytes, .generation = offer->generation, .known = true };
    peers->bytes += offer->bytes;
    return 0;
}

static int take_control(struct peers *peers, const struct local_message *offer, int fd, struct peer *peer,
                        struct poise_err *err)
{
    int rc = take_segment(peers, offer, fd, &peer->control, err);

    if (rc < 0)
        return rc;
    rc = control_view(peer->control.base, peer->control.bytes, offer->rank, peers->n_ranks, &peer->view, err);
    if (rc < 0) {
        unmap(peers, &peer->control);
        peer->control.known = false;
    }
    return rc;
}

/* Only a descriptor that never blocks is rung: a pipe that is full would stop the engine. */
static int take_doorbell(const struct local_message *offer, int fd, struct peer *peer, struct poise_err *err)
{
    int flags = fcntl(fd, F_GETFL);

    if (peer->doorbell >= 0 && peer->doorbell_generation == offer->generation) {
        close(fd);
        return -EALREADY;
    }
    if (flags < 0 || !(flags & O_NONBLOCK) || (flags & O_ACCMODE) == O_RDONLY) {
        close(fd);
        return err_set_at(err, -EINVAL, offer->rank, POISE_NONE, NULL,
                          "rank %" PRIu32 " offers a doorbell that could block", offer->rank);
    }
    close_doorbell(peer);
    peer->doorbell = fd;
    peer->doorbell_generation = offer->generation;
    return 0;
}

int peers_offer(struct peers *peers, const struct local_message *offer, int fd, struct poise_err *err)
{
    struct peer *peer;

    if (fd < 0)
        return err_set(err, -EINVAL, "an offer came without a descriptor");
    if (offer->rank >= peers->n_ranks || offer->rank == peers->own_rank || offer->segment >= LOCAL_MAX_SEGMENTS) {
        close(fd);
        return err_set(err, -EINVAL, "segment %" PRIu32 " of rank %" PRIu32 " of %" PRIu32 " is offered to rank %"
                       PRIu32, offer->segment, offer->rank, peers->n_ranks, peers->own_rank);
    }
    peer = get_peer(peers, offer->rank);
    if (!peer) {
        close(fd);
        return err_set(err, -ENOMEM, "out of memory");
    }
    switch (offer->kind) {
    case LOCAL_CONTROL:
        return take_control(peers, offer, fd, peer, err);
    case LOCAL_ARENA:
        return take_segment(peers, offer, fd, &peer->arena[offer->segment], err);
    case LOCAL_DOORBELL:
        return take_doorbell(offer, fd, peer, err);
    default:
        close(fd);
        return err_set_at(err, -EINVAL, offer->rank, POISE_NONE, NULL, "rank %" PRIu32 " offers a segment of kind %"
                          PRIu32, offer->rank, offer->kind);
    }
}

void peers_retract(struct peers *peers, const struct local_message *retract)
{
    struct peer *peer = retract->rank < peers->n_ranks ? peers->by_rank[retract->rank] : NULL;
    struct mapping *mapping;

    if (!peer || retract->kind != LOCAL_ARENA || retract->segment >= LOCAL_MAX_SEGMENTS)
        return;
    mapping = &peer->arena[retract->segment];
    if (!mapping->known || (int32_t)(retract->generation - mapping->generation) < 0)
        return;
    unmap(peers, mapping);
    mapping->generation = retract->generation;
}

bool peers_control(const struct peers *peers, uint32_t rank, struct control_view *ret_view)
{
    if (rank >= peers->n_ranks)
        return false;
    if (rank == peers->own_rank) {
        if (!peers->own_control)
            return false;
        *ret_view = control_own(peers->own_control);
        return true;
    }
    if (!peers->by_rank[rank] || !peers->by_rank[rank]->control.base)
        return false;
    *ret_view = peers->by_rank[rank]->view;
    return true;
}

bool peers_arena(const struct peers *peers, uint32_t rank, uint32_t segment, uint32_t generation,
                 const void **ret_base, uint64_t *ret_bytes)
{
    const struct mapping *mapping;

    if (rank >= peers->n_ranks || segment >= LOCAL_MAX_SEGMENTS)
        return false;
    if (rank == peers->own_rank)
        return peers->own && arena_lookup(peers->own, segment, generation, ret_base, ret_bytes);
    if (!peers->by_rank[rank])
        return false;
    mapping = &peers->by_rank[rank]->arena[segment];
    if (!mapping->base || mapping->generation != generation)
        return false;
    *ret_base = mapping->base;
    *ret_bytes = mapping->bytes;
    return true;
}

bool peers_lookup(void *peers_of, uint32_t segment, uint32_t generation, const void **ret_base, uint64_t *ret_bytes)
{
    const struct peers_of *of = peers_of;

    return peers_arena(of->peers, of->rank, segment, generation, ret_base, ret_bytes);
}

void peers_ring(const struct peers *peers, uint32_t rank)
{
    const uint64_t one = 1;

    if (rank >= peers->n_ranks || !peers->by_rank[rank] || peers->by_rank[rank]->doorbell < 0)
        return;
    /* A counter that is full wakes just as well; a peer that is gone needs no waking. */
    if (write(peers->by_rank[rank]->doorbell, &one, sizeof one) < 0)
        return;
}

uint64_t peers_bytes(const struct peers *peers)
{
    return peers->bytes;
}
