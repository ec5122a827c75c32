/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One global batch as the planner's request: every rank gets per_rank samples of the draw, rank 0's first, so that a
 * batch of fewer ranks is the beginning of that of more.
 */
#include "client/ctl/simulate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

#define MOST_SAMPLES (1u << 28) /* of a global batch: 20 GB of columns, far above any real one */

static void set_request(struct simulate_room *room, const struct simulate_setup *setup)
{
    struct poise_plan_request *req = &room->req;

    *req = (struct poise_plan_request){
        .size = sizeof *req,
        .n_ranks = setup->n_ranks,
        .n_phases = setup->cost->n_phases,
        .n_samples = room->n_samples,
        .length = room->length,
        .attention = room->attention,
        .bytes = room->bytes,
        .node = setup->n_nodes > 1 ? room->node : NULL,
        .phases = setup->cost->phases,
        .phase_size = sizeof *setup->cost->phases,
        .algorithm = setup->algorithm,
        .objective = setup->objective,
        .count = setup->count,
        .stages = setup->stages,
        .tolerance_ppm = setup->tolerance_ppm,
        .micro_batch_size = setup->micro_batch,
        /* With free counts a micro-batch of a fixed number of samples would need more of them on the fullest rank. */
        .cut = setup->count == POISE_COUNT_EQUAL ? POISE_CUT_FIXED : POISE_CUT_BY_COST,
    };
    if (setup->no_caps) {
        for (uint32_t p = 0; p < req->n_phases; p++)
            room->uncapped[p] = POISE_NO_CAP;
        req->cap_bytes_rank = POISE_NO_CAP;
        req->cap_length_rank = req->cap_length_micro_batch = room->uncapped;
    }
    room->plan = (struct poise_plan){.size = sizeof room->plan,
                                     .rank = room->ranks,
                                     .micro_batch = room->ranks + room->n,
                                     .row = room->ranks + 2 * (size_t)room->n};
}

int simulate_room_init(struct simulate_room *room, const struct simulate_setup *setup, struct poise_err *err)
{
    uint64_t n = (uint64_t)setup->n_ranks * setup->per_rank;

    memset(room, 0, sizeof *room);
    if (n > MOST_SAMPLES)
        return err_set(err, -EINVAL, "%u ranks x %u samples: at most %u in a global batch", setup->n_ranks,
                       setup->per_rank, MOST_SAMPLES);
    room->n = (uint32_t)n;
    room->sample = malloc(n * sizeof *room->sample);
    room->n_samples = malloc(setup->n_ranks * sizeof *room->n_samples);
    room->node = malloc(setup->n_ranks * sizeof *room->node);
    room->length = malloc(n * setup->cost->n_phases * sizeof *room->length);
    room->attention = malloc(n * setup->cost->n_phases * sizeof *room->attention);
    room->bytes = malloc(n * sizeof *room->bytes);
    room->ranks = malloc(n * 3 * sizeof *room->ranks);
    if (!room->sample || !room->n_samples || !room->node || !room->length || !room->attention || !room->bytes ||
        !room->ranks) {
        simulate_room_free(room);
        return err_set(err, -ENOMEM, "no memory for a global batch of %" PRIu64 " samples", n);
    }
    for (uint32_t r = 0; r < setup->n_ranks; r++) {
        room->n_samples[r] = setup->per_rank;
        room->node[r] = (uint32_t)((uint64_t)r * setup->n_nodes / setup->n_ranks);
    }
    set_request(room, setup);
    return 0;
}

void simulate_room_free(struct simulate_room *room)
{
    free(room->sample);
    free(room->n_samples);
    free(room->node);
    free(room->length);
    free(room->attention);
    free(room->bytes);
    free(room->ranks);
    memset(room, 0, sizeof *room);
}

void simulate_room_fill(struct simulate_room *room, const struct simulate_setup *setup, struct simulate_draw *draw)
{
    const struct simulate_samples *samples = setup->samples;

    for (uint32_t i = 0; i < room->n; i++) {
        uint32_t s = room->sample[i] = simulate_draw_next(draw);
        room->bytes[i] = samples->bytes[s];
        for (uint32_t p = 0; p < setup->cost->n_phases; p++) {
            room->length[(size_t)p * room->n + i] = samples->length[p * samples->n + s];
            room->attention[(size_t)p * room->n + i] = samples->attention[p * samples->n + s];
        }
    }
}
