/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random global batches, the same for the same seed on every machine: the generator is written out here (xoshiro256**,
 * seeded by splitmix64), because rand() differs between C libraries. As a loader does, rows are dealt in a random order
 * and all are seen once before any is seen again.
 */
#include "client/ctl/simulate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint64_t next_random(uint64_t s[4])
{
    const uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

/* 0 .. n - 1, all alike: what would favour the small numbers is drawn again. */
static uint64_t below(uint64_t s[4], uint64_t n)
{
    uint64_t least = (0 - n) % n, x;

    do
        x = next_random(s);
    while (x < least);
    return x % n;
}

int simulate_draw_init(struct simulate_draw *draw, uint64_t n, uint64_t seed, struct poise_err *err)
{
    memset(draw, 0, sizeof *draw);
    if (n > UINT32_MAX)
        return err_set(err, -EFBIG, "%" PRIu64 " samples: at most %u", n, UINT32_MAX);
    draw->order = malloc(n * sizeof *draw->order);
    if (!draw->order)
        return err_set(err, -ENOMEM, "no memory for the order of %" PRIu64 " samples", n);
    for (uint32_t i = 0; i < n; i++)
        draw->order[i] = i;
    draw->n = draw->at = (uint32_t)n;
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        draw->state[i] = z ^ z >> 31;
    }
    return 0;
}

void simulate_draw_free(struct simulate_draw *draw)
{
    free(draw->order);
    draw->order = NULL;
}

uint32_t simulate_draw_next(struct simulate_draw *draw)
{
    if (draw->at == draw->n) {
        for (uint32_t i = draw->n - 1; i > 0; i--) {
            uint32_t j = (uint32_t)below(draw->state, i + 1ull), other = draw->order[j];
            draw->order[j] = draw->order[i];
            draw->order[i] = other;
        }
        draw->at = 0;
    }
    return draw->order[draw->at++];
}

/* ------------------------------------------------------------------------------------------------------------- samples
 */

static bool add_sample(struct simulate_samples *samples, const struct dataset *data, uint64_t row, uint64_t n_room,
                       const struct simulate_cost *cost, const struct dataset_rule *rule)
{
    uint64_t length[POISE_MAX_PHASES], attention[POISE_MAX_PHASES], at = samples->n;
    struct dataset_sizes sizes;

    dataset_measure(data, &data->rows[row], rule, &sizes);
    for (uint32_t p = 0; p < cost->n_phases; p++) {
        length[p] = sizes.length[cost->size[p]];
        attention[p] = sizes.attention[cost->size[p]];
    }
    if (plan_sample_cost(cost->phases, cost->n_phases, length, attention, &samples->cost[at], NULL) < 0)
        return false;
    for (uint32_t p = 0; p < cost->n_phases; p++) {
        samples->length[p * n_room + at] = length[p];
        samples->attention[p * n_room + at] = attention[p];
    }
    samples->bytes[at] = sizes.bytes;
    samples->row[at] = row;
    samples->n++;
    return true;
}

/* Closes the gaps that rows left which were not used. */
static void close_up(struct simulate_samples *samples, uint64_t n_room, uint32_t n_phases)
{
    for (uint32_t p = 1; p < n_phases; p++) {
        memmove(samples->length + p * samples->n, samples->length + p * n_room, samples->n * sizeof *samples->length);
        memmove(samples->attention + p * samples->n, samples->attention + p * n_room,
                samples->n * sizeof *samples->length);
    }
}

int simulate_samples_make(const struct dataset *data, const struct simulate_cost *cost, const struct dataset_rule *rule,
                          struct dataset *left_out, struct simulate_samples *ret_samples, struct poise_err *err)
{
    const uint64_t n = data->n_rows;
    struct simulate_samples samples = {
        .row = malloc(n * sizeof(uint64_t)),
        .length = malloc(n * cost->n_phases * sizeof(uint64_t)),
        .attention = malloc(n * cost->n_phases * sizeof(uint64_t)),
        .bytes = malloc(n * sizeof(uint64_t)),
        .cost = malloc(n * sizeof(uint64_t)),
    };

    if (!samples.row || !samples.length || !samples.attention || !samples.bytes || !samples.cost) {
        simulate_samples_free(&samples);
        return err_set(err, -ENOMEM, "no memory for %" PRIu64 " samples", n);
    }
    for (uint64_t r = 0; r < n; r++)
        if (!add_sample(&samples, data, r, n, cost, rule) && left_out)
            dataset_leave_out(left_out, data->rows[r].line,
                              "costs more than 2^63 - 1 units, above what can be planned");
    close_up(&samples, n, cost->n_phases);
    if (samples.n == 0) {
        simulate_samples_free(&samples);
        return err_set(err, -ERANGE,
                       "every sample costs more than 2^63 - 1 units: coefficients of --cost are too large");
    }
    *ret_samples = samples;
    return 0;
}

void simulate_samples_free(struct simulate_samples *samples)
{
    free(samples->row);
    free(samples->length);
    free(samples->attention);
    free(samples->bytes);
    free(samples->cost);
    memset(samples, 0, sizeof *samples);
}
