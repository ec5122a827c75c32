/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control segment of a process: where the directories of its published steps are, and which peers' steps it has
 * read out. Written by its owner alone, mapped read-only by its same-node peers (of the same replica number).
 *
 * Ordering: whatever lies in an arena is written before control_publish() (release); who reads it by control_read()
 * (acquire) sees it. Likewise a receiver's copies are over before control_set_done().
 */
#ifndef POISE_CLIENT_CONTROL_H
#define POISE_CLIENT_CONTROL_H

#include "client/segment.h"

/* Steps in the table: more than 2 W, so that an entry is never replaced while it can be asked for. */
#define CONTROL_STEPS 32u

struct control_place { /* a published step: its directory */
    uint32_t segment, generation; /* of the owner's arena */
    uint64_t offset, bytes;
    uint32_t n_samples;
    uint64_t published_ns; /* CLOCK_MONOTONIC, for measurements alone; 0: not told */
    uint64_t digest;       /* of tags and features, to warn of ranks that submit the same; 0: not told */
};

struct control_page; /* the layout, in control.c */

struct control { /* the own one */
    struct segment segment;
    struct control_page *page;
    uint32_t n_peers;
};

/* n_peers: the ranks of the group (done[][] is indexed by rank). */
int control_new(uint32_t rank, uint32_t n_peers, struct control *ret_control, struct poise_err *err);
void control_fini(struct control *control);
void control_child(struct control *control); /* in the child of a fork */

/* Publishes a step. Steps are published in ascending order. */
void control_publish(struct control *control, uint64_t step, const struct control_place *place);

/* This process has all it takes from rank `peer`'s step (nothing is fine too). Out of range: ignored. */
void control_set_done(struct control *control, uint64_t step, uint32_t peer);

struct control_view { /* a peer's, or the own one */
    const struct control_page *page;
    uint32_t n_peers;
};

/* Checks mapped memory of `bytes`. Errors: -EINVAL too small, not a control segment, another rank's or another n_peers.
 * */
int control_view(const void *base, uint64_t bytes, uint32_t rank, uint32_t n_peers, struct control_view *ret_view,
                 struct poise_err *err);
struct control_view control_own(const struct control *control);

/* A consistent copy of a step's entry. -EAGAIN not published yet (or being written just now), -ESTALE replaced by a
 * later one. */
int control_read(struct control_view view, uint64_t step, struct control_place *ret_place);

/* Whether the view's owner has all it takes from rank `peer`'s step. */
bool control_is_done(struct control_view view, uint64_t step, uint32_t peer);

#endif
