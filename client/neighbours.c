/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the control segments of this node tell about a step besides where its samples are: when its last rank submitted, so
 * that the pipeline can be measured (peers' clocks are this one's), and whether two ranks submitted the very same.
 */
#include "client/handle.h"

#define TWIN_STEPS 3u /* steps with the same samples on two ranks are no accident */

/* Tensor-parallel peers that were taken for ranks of their own submit the same samples, and would train on half of
 * them. */
static void look_for_twin(struct poise *p, uint64_t step, uint32_t twin)
{
    p->twin_steps = twin != POISE_NONE && twin == p->twin ? p->twin_steps + 1 : twin != POISE_NONE;
    p->twin = twin;
    if (p->twin_steps != TWIN_STEPS)
        return;
    pthread_mutex_lock(&p->lock);
    handle_notice(
        p, step, POISE_WARNING,
        "ranks %u and %u submitted the same samples in %u steps: if both belong to one data-parallel rank (tensor, "
        "context or pipeline parallel), make them its replicas: same rank, n_replicas, replica",
        p->settings.join.rank, twin, TWIN_STEPS);
    pthread_mutex_unlock(&p->lock);
}

uint64_t neighbours_look(struct poise *p, uint64_t step)
{
    uint64_t last_ns = 0, decided_ns = p->decided_ns[step % HANDLE_STEPS];
    uint32_t twin = POISE_NONE;
    struct control_place own = {0};

    control_read(control_own(&p->control), step, &own);
    last_ns = own.published_ns;
    for (uint32_t rank = 0; rank < p->settings.join.n_ranks; rank++) {
        struct control_view view;
        struct control_place place;
        if (rank == p->settings.join.rank || !peers_control(p->peers, rank, &view) ||
            control_read(view, step, &place) < 0)
            continue;
        if (place.published_ns > last_ns)
            last_ns = place.published_ns;
        if (own.n_samples && place.n_samples == own.n_samples && place.digest == own.digest)
            twin = rank;
    }
    look_for_twin(p, step, twin);
    return last_ns && last_ns < decided_ns ? decided_ns - last_ns : 0;
}
