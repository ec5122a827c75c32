/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans every batch with one algorithm and takes means. Ratios are means of the batches' ratios, as papers print them;
 * times are the median, because the machine that plans has other things to do. Floats are fine here: nothing is decided
 * by them.
 */
#include "client/ctl/simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/planner/err.h"

static double now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static double ratio(double a, double b, double otherwise)
{
    return b > 0 ? a / b : otherwise;
}

static void read_quality(const struct simulate_room *room, const struct simulate_setup *setup, double plan_ns,
                         struct simulate_batch *batch)
{
    const struct poise_quality *q = &room->plan.quality;
    const double bytes = (double)q->bytes_total;

    *batch = (struct simulate_batch){
        .before = (double)q->objective_before,
        .after = (double)q->objective_after,
        .bound = (double)q->objective_bound,
        .rank_before = (double)q->rank_max_before,
        .rank_after = (double)q->rank_max_after,
        .moved = ratio((double)q->bytes_moved, bytes, 0),
        .floor = ratio((double)q->bytes_floor, bytes, 0),
        .between = ratio((double)q->bytes_between_nodes, bytes, 0),
        .plan_ns = plan_ns,
        .lacking_before = q->lacking_before,
        .lacking_after = q->lacking_after,
        .oversize = q->oversize,
    };
    memcpy(batch->length_before, q->length_micro_batch_before, sizeof batch->length_before);
    memcpy(batch->length_after, q->length_micro_batch_after, sizeof batch->length_after);
    for (uint32_t i = 0; i < room->n; i++) {
        double cost = (double)setup->samples->cost[room->sample[i]];
        batch->mean += cost / setup->n_ranks;
        batch->largest = cost > batch->largest ? cost : batch->largest;
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_ms(const struct simulate_result *result)
{
    double *ns = malloc(result->n * sizeof *ns), median;

    if (!ns)
        return result->batch[0].plan_ns / 1e6; /* better than failing for a number that is noise anyway */
    for (uint32_t i = 0; i < result->n; i++)
        ns[i] = result->batch[i].plan_ns;
    qsort(ns, result->n, sizeof *ns, compare);
    median = (ns[(result->n - 1) / 2] + ns[result->n / 2]) / 2;
    free(ns);
    return median / 1e6;
}

static void sum_up(struct simulate_result *result)
{
    const double n = result->n;

    for (uint32_t i = 0; i < result->n; i++) {
        const struct simulate_batch *b = &result->batch[i];
        result->imbalance_before += ratio(b->before, b->mean, 1) / n;
        result->imbalance_after += ratio(b->after, b->mean, 1) / n;
        result->rank_before += ratio(b->rank_before, b->mean, 1) / n;
        result->rank_after += ratio(b->rank_after, b->mean, 1) / n;
        result->gap += (ratio(b->after, b->bound, 1) - 1) / n;
        result->moved += b->moved / n;
        result->floor += b->floor / n;
        result->between += b->between / n;
        result->mean_cost += b->mean / n;
        result->before_cost += b->before / n;
        result->after_cost += b->after / n;
        result->lacking_before += b->lacking_before;
        result->lacking_after += b->lacking_after;
        for (int p = 0; p < POISE_MAX_PHASES; p++) {
            if (b->length_before[p] > result->length_before[p])
                result->length_before[p] = b->length_before[p];
            if (b->length_after[p] > result->length_after[p])
                result->length_after[p] = b->length_after[p];
        }
    }
    result->plan_ms = median_ms(result);
}

/* An error of memory ends the run; an algorithm that cannot do what is asked only spoils its own row. */
static int plan_batches(const struct simulate_setup *setup, struct simulate_room *room, struct simulate_draw *draw,
                        struct simulate_result *result, struct poise_err *err)
{
    struct poise_err why = {0};

    for (uint32_t i = 0; i < setup->n_batches; i++) {
        double start;
        int rc;

        simulate_room_fill(room, setup, draw);
        start = now_ns();
        rc = poise_plan(&room->req, &room->plan, &why);
        if (rc == -ENOMEM)
            return err_set(err, rc, "%s", why.text);
        if (rc < 0) {
            snprintf(result->error, sizeof result->error, "%.199s", why.text);
            return 0;
        }
        read_quality(room, setup, now_ns() - start, &result->batch[i]);
        result->n++;
    }
    sum_up(result);
    return 0;
}

int simulate_run(const struct simulate_setup *setup, struct simulate_result *ret_result, struct poise_err *err)
{
    struct simulate_result result = {.algorithm = setup->algorithm};
    struct simulate_room room = {0};
    struct simulate_draw draw = {0};
    int rc = simulate_draw_init(&draw, setup->samples->n, setup->seed, err);

    if (rc == 0)
        rc = simulate_room_init(&room, setup, err);
    result.batch = calloc(setup->n_batches, sizeof *result.batch);
    if (rc == 0 && !result.batch)
        rc = err_set(err, -ENOMEM, "no memory for the figures of %u batches", setup->n_batches);
    if (rc == 0)
        rc = plan_batches(setup, &room, &draw, &result, err);
    simulate_room_free(&room);
    simulate_draw_free(&draw);
    if (rc < 0)
        simulate_result_free(&result);
    else
        *ret_result = result;
    return rc;
}

void simulate_result_free(struct simulate_result *result)
{
    free(result->batch);
    result->batch = NULL;
}

double simulate_speedup(const struct simulate_result *result, double fixed)
{
    const double part = fixed * result->mean_cost;

    return ratio(part + result->before_cost, part + result->after_cost, 1);
}

/* ------------------------------------------------------------------------------------------------- loads for a picture
 */

static void add_loads(const struct simulate_room *room, const struct simulate_setup *setup,
                      struct simulate_loads *loads)
{
    const struct simulate_cost *cost = setup->cost;

    for (uint32_t i = 0; i < room->n; i++)
        for (uint32_t p = 0; p < cost->n_phases; p++) {
            const struct poise_phase *phase = &cost->phases[p];
            double length = (double)room->length[(size_t)p * room->n + i];
            double units = ((double)phase->linear * length +
                            (double)phase->quadratic * (double)room->attention[(size_t)p * room->n + i] +
                            (length > 0 ? (double)phase->constant : 0)) *
                           (phase->passes ? phase->passes : 1);
            loads->before[(size_t)(i / setup->per_rank) * cost->n_phases + p] += units;
            loads->after[(size_t)room->plan.rank[i] * cost->n_phases + p] += units;
            loads->mean += units / setup->n_ranks;
        }
}

int simulate_loads_make(const struct simulate_setup *setup, uint32_t batch, struct simulate_loads *ret_loads,
                        struct poise_err *err)
{
    const size_t n = (size_t)setup->n_ranks * setup->cost->n_phases;
    struct simulate_loads loads = {.n_ranks = setup->n_ranks, .n_phases = setup->cost->n_phases};
    struct simulate_room room = {0};
    struct simulate_draw draw = {0};
    int rc = simulate_draw_init(&draw, setup->samples->n, setup->seed, err);

    if (rc == 0)
        rc = simulate_room_init(&room, setup, err);
    loads.before = calloc(n, sizeof *loads.before);
    loads.after = calloc(n, sizeof *loads.after);
    if (rc == 0 && (!loads.before || !loads.after))
        rc = err_set(err, -ENOMEM, "no memory for the loads of %u ranks", setup->n_ranks);
    for (uint32_t i = 0; rc == 0 && i <= batch; i++)
        simulate_room_fill(&room, setup, &draw);
    if (rc == 0)
        rc = poise_plan(&room.req, &room.plan, err);
    if (rc == 0)
        add_loads(&room, setup, &loads);
    simulate_room_free(&room);
    simulate_draw_free(&draw);
    if (rc < 0)
        simulate_loads_free(&loads);
    else
        *ret_loads = loads;
    return rc;
}

void simulate_loads_free(struct simulate_loads *loads)
{
    free(loads->before);
    free(loads->after);
    memset(loads, 0, sizeof *loads);
}
