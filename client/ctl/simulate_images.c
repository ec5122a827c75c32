/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchange at the level of images: every image of a sample is encoded by whichever rank has room, the language model's
 * part of a sample stays in one piece. Ranks then meet between the two, so the times of the two phases add up, each at
 * its own slowest rank: two plans a batch, of images by their vision cost and of samples by the rest.
 */
#include "client/ctl/simulate_helps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

struct parts { /* one global batch's images */
    struct poise_plan_request req;
    struct poise_plan plan;
    uint64_t uncapped[1];
    uint32_t n, n_room;
    uint32_t *n_samples; /* [n_ranks] */
    uint64_t *columns;   /* [3][n_room] length, attention, bytes */
    uint32_t *ranks;     /* [3][n_room] */
};

static int find_vision(const struct simulate_cost *cost)
{
    for (uint32_t p = 0; p < cost->n_phases; p++)
        if (cost->size[p] == DATASET_VISION)
            return (int)p;
    return -1;
}

static int parts_grow(struct parts *parts, uint32_t n)
{
    uint32_t room = parts->n_room * 2 > n ? parts->n_room * 2 : n;

    if (n <= parts->n_room)
        return 0;
    free(parts->columns);
    free(parts->ranks);
    parts->columns = malloc(3 * (size_t)room * sizeof *parts->columns);
    parts->ranks = malloc(3 * (size_t)room * sizeof *parts->ranks);
    parts->n_room = parts->columns && parts->ranks ? room : 0;
    return parts->n_room ? 0 : -ENOMEM;
}

/* The images of a batch, where their samples arrived. */
static int parts_fill(struct parts *parts, const struct simulate *sim, const struct simulate_setup *setup,
                      const struct simulate_room *room)
{
    const struct dataset *data = &sim->data;
    uint64_t n = 0;
    uint32_t at = 0;

    for (uint32_t i = 0; i < room->n; i++)
        n += data->rows[setup->samples->row[room->sample[i]]].n_images;
    if (n > UINT32_MAX / 4 || parts_grow(parts, (uint32_t)n) < 0)
        return -ENOMEM;
    memset(parts->n_samples, 0, setup->n_ranks * sizeof *parts->n_samples);
    for (uint32_t i = 0; i < room->n; i++) {
        const struct dataset_row *row = &data->rows[setup->samples->row[room->sample[i]]];
        for (uint32_t k = 0; k < row->n_images; k++, at++) {
            uint64_t *length = &parts->columns[at], *attention = length + n;
            dataset_measure_image(&data->images[row->first_image + k], &sim->rule, length, attention);
            parts->columns[2 * n + at] = *length;
        }
        parts->n_samples[i / setup->per_rank] += row->n_images;
    }
    parts->n = (uint32_t)n;
    return 0;
}

static int parts_plan(struct parts *parts, const struct simulate_setup *setup, const struct poise_phase *phase,
                      struct poise_err *err)
{
    parts->uncapped[0] = POISE_NO_CAP;
    parts->req = (struct poise_plan_request){
        .size = sizeof parts->req,
        .n_ranks = setup->n_ranks,
        .n_phases = 1,
        .n_samples = parts->n_samples,
        .length = parts->columns,
        .attention = parts->columns + parts->n,
        .bytes = parts->columns + 2 * (size_t)parts->n,
        .phases = phase,
        .phase_size = sizeof *phase,
        .algorithm = setup->algorithm,
        .count = POISE_COUNT_FREE,
        .cut = POISE_CUT_BY_COST,
        .tolerance_ppm = setup->tolerance_ppm,
        .cap_bytes_rank = POISE_NO_CAP,
        .cap_length_rank = parts->uncapped,
        .cap_length_micro_batch = parts->uncapped,
    };
    parts->plan = (struct poise_plan){.size = sizeof parts->plan,
                                      .rank = parts->ranks,
                                      .micro_batch = parts->ranks + parts->n,
                                      .row = parts->ranks + 2 * (size_t)parts->n};
    return poise_plan(&parts->req, &parts->plan, err);
}

static int plan_batches(const struct simulate *sim, const struct simulate_setup *setup, struct simulate_room *room,
                        struct simulate_draw *draw, struct parts *parts, double *ret_vision, struct poise_err *err)
{
    const struct poise_phase *phase = &setup->cost->phases[find_vision(setup->cost)];
    double sum = 0;

    for (uint32_t b = 0; b < setup->n_batches; b++) {
        int rc;
        simulate_room_fill(room, setup, draw);
        if (parts_fill(parts, sim, setup, room) < 0)
            return err_set(err, -ENOMEM, "no memory for the images of a batch");
        if (parts->n == 0)
            continue;
        if ((rc = parts_plan(parts, setup, phase, err)) < 0)
            return rc;
        sum += (double)parts->plan.quality.objective_after / setup->n_batches;
    }
    *ret_vision = sum;
    return 0;
}

/* The mean over batches of the slowest rank's time for its share of the images. */
static int plan_vision(const struct simulate *sim, const struct simulate_setup *setup, double *ret_vision,
                       struct poise_err *err)
{
    struct parts parts = {.n_samples = calloc(setup->n_ranks, sizeof *parts.n_samples)};
    struct simulate_room room = {0};
    struct simulate_draw draw = {0};
    int rc = parts.n_samples ? simulate_draw_init(&draw, setup->samples->n, setup->seed, err)
                             : err_set(err, -ENOMEM, "no memory for %u ranks", setup->n_ranks);

    if (rc == 0)
        rc = simulate_room_init(&room, setup, err);
    if (rc == 0)
        rc = plan_batches(sim, setup, &room, &draw, &parts, ret_vision, err);
    simulate_room_free(&room);
    simulate_draw_free(&draw);
    free(parts.n_samples);
    free(parts.columns);
    free(parts.ranks);
    return rc;
}

/* The other phases, by whole samples. Rows that do not fit were left out with the full cost already. */
static int plan_rest(const struct simulate *sim, const struct simulate_setup *setup, uint32_t vision,
                     struct simulate_result *ret_rest, struct poise_err *err)
{
    struct simulate_cost cost = *setup->cost;
    struct simulate_setup rest = *setup;
    struct simulate_samples samples;
    int rc;

    cost.n_phases--;
    memmove(&cost.phases[vision], &cost.phases[vision + 1], (cost.n_phases - vision) * sizeof *cost.phases);
    memmove(&cost.size[vision], &cost.size[vision + 1], (cost.n_phases - vision) * sizeof *cost.size);
    if ((rc = simulate_samples_make(&sim->data, &cost, &sim->rule, NULL, &samples, err)) < 0)
        return rc;
    rest.cost = &cost;
    rest.samples = &samples;
    rc = simulate_run(&rest, ret_rest, err);
    simulate_samples_free(&samples);
    return rc;
}

int simulate_help_images(struct simulate *sim, const struct simulate_setup *setup, const struct simulate_tally *base,
                         struct poise_err *err)
{
    const int vision = find_vision(&sim->cost);
    struct simulate_result rest = {0};
    struct simulate_tally with = {.mean = base->mean, .before = base->before, .moved = -1};
    char title[96];
    int rc;

    if (vision < 0 || sim->data.n_several_images == 0 || setup->objective != POISE_OBJECTIVE_STEP)
        return 0;
    if (sim->cost.n_phases > 1 && (rc = plan_rest(sim, setup, (uint32_t)vision, &rest, err)) < 0)
        return rc;
    rc = rest.error[0] ? 0 : plan_vision(sim, setup, &with.after, err);
    with.after += rest.after_cost;
    simulate_result_free(&rest);
    if (rc < 0 || rest.error[0])
        return rc;
    snprintf(title, sizeof title, "Exchange single images: %.0f %% of the samples have several",
             100.0 * (double)sim->data.n_several_images / (double)sim->data.n_rows);
    simulate_help_add(
        sim, base, &with, 1, 1, "image_exchange", title,
        "images are encoded where there is room; ranks meet once more, between encoder and language model");
    return 0;
}
