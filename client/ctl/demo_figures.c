/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures of a run, from what its trainers saw: all of them are of delivered samples and measured times, but the
 * predicted speed-up, which is poised's own. A cost here is the planner's, so that an imbalance says what the plan did
 * and not how wrong the coefficients are; that shows in the measured times.
 */
#include "client/ctl/demo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WARM_STEPS 5 /* memory grows with the largest step so far: after a few it seldom does */

struct tally {         /* of one step */
    double *rank;      /* [n_ranks] cost */
    double *cost;      /* [n_ranks * n_micro_batches] */
    uint64_t *tokens;  /* likewise */
    uint64_t *patches; /* likewise */
    uint32_t n_micro_batches;
};

static int by_value(const void *a, const void *b)
{
    return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : *(const uint64_t *)a > *(const uint64_t *)b;
}

/* The smallest value that percent of all are not above. */
static uint64_t percentile(uint64_t *values, size_t n, double percent)
{
    size_t at;

    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, by_value);
    at = (size_t)ceil((double)n * percent / 100);
    return values[at > 0 ? at - 1 : 0];
}

static const struct board_step *step_of(const struct board *board, uint32_t rank, uint32_t step)
{
    return &board->steps[(size_t)rank * board->head->n_steps + step];
}

/* What arrived, and how often. */
static void count_samples(const struct board *board, struct demo_figures *figures)
{
    const size_t n_rank_steps = (size_t)board->head->n_ranks * board->head->n_steps;
    uint64_t moved = 0, bytes = 0;

    figures->samples_in = n_rank_steps * board->head->n_samples;
    for (size_t i = 0; i < figures->samples_in; i++) {
        const struct board_delivery *delivery = &board->deliveries[i];
        const uint32_t count = atomic_load(&board->deliveries[i].count);
        figures->samples_out += count;
        figures->lost += count == 0;
        figures->doubled += count > 1;
        figures->corrupt += delivery->corrupt;
        bytes += board->samples[i].bytes;
        if (count > 0 && delivery->rank != i / ((size_t)board->head->n_steps * board->head->n_samples))
            moved += board->samples[i].bytes;
    }
    for (size_t i = 0; i < n_rank_steps; i++) { /* what nobody sent came out of nothing */
        figures->samples_out += board->steps[i].strays;
        figures->corrupt += board->steps[i].strays;
    }
    figures->bytes_moved_fraction = bytes > 0 ? (double)moved / (double)bytes : 0;
}

static void tally_step(const struct board *board, uint32_t step, struct tally *tally)
{
    const struct board_head *head = board->head;
    const size_t n = (size_t)head->n_ranks * tally->n_micro_batches;

    memset(tally->rank, 0, head->n_ranks * sizeof *tally->rank);
    memset(tally->cost, 0, n * sizeof *tally->cost);
    memset(tally->tokens, 0, n * sizeof *tally->tokens);
    memset(tally->patches, 0, n * sizeof *tally->patches);
    for (uint32_t r = 0; r < head->n_ranks; r++)
        for (uint32_t i = 0; i < head->n_samples; i++) {
            const size_t at = board_at(board, &(struct payload_origin){r, i, step});
            const struct board_delivery *to = &board->deliveries[at];
            const struct board_sample *sample = &board->samples[at];
            const size_t slot = (size_t)to->rank * tally->n_micro_batches + to->micro_batch;
            if (atomic_load(&board->deliveries[at].count) == 0 || to->micro_batch >= tally->n_micro_batches)
                continue;
            tally->rank[to->rank] += (double)sample->cost;
            tally->cost[slot] += (double)sample->cost;
            tally->tokens[slot] += (uint64_t)payload_tokens(&sample->size);
            tally->patches[slot] += (uint64_t)payload_patches(&sample->size);
        }
}

static void add_step(const struct board *board, const struct tally *tally, struct demo_figures *figures)
{
    const uint32_t n_ranks = board->head->n_ranks;
    double sum = 0, largest = 0, largest_sum = 0;

    for (uint32_t r = 0; r < n_ranks; r++) {
        sum += tally->rank[r];
        largest = fmax(largest, tally->rank[r]);
    }
    for (uint32_t k = 0; k < tally->n_micro_batches; k++) {
        double of_k = 0;
        for (uint32_t r = 0; r < n_ranks; r++) {
            const size_t slot = (size_t)r * tally->n_micro_batches + k;
            of_k = fmax(of_k, tally->cost[slot]);
            figures->without_image += tally->patches[slot] == 0;
            if (tally->tokens[slot] > figures->tokens_micro_batch)
                figures->tokens_micro_batch = tally->tokens[slot];
        }
        largest_sum += of_k;
    }
    figures->step_imbalance += sum > 0 ? largest * n_ranks / sum : 1;
    figures->microbatch_imbalance += sum > 0 ? largest_sum * n_ranks / sum : 1;
}

static void balance(const struct board *board, struct demo_figures *figures)
{
    const struct board_head *head = board->head;
    uint32_t most = 1;
    struct tally tally;
    size_t n;

    for (size_t i = 0; i < (size_t)head->n_ranks * head->n_steps; i++)
        if (board->steps[i].n_micro_batches > most)
            most = board->steps[i].n_micro_batches;
    n = (size_t)head->n_ranks * most;
    tally = (struct tally){calloc(head->n_ranks, sizeof(double)), calloc(n, sizeof(double)),
                           calloc(n, sizeof(uint64_t)), calloc(n, sizeof(uint64_t)), most};
    if (tally.rank && tally.cost && tally.tokens && tally.patches) {
        for (uint32_t step = 0; step < head->n_steps; step++) {
            tally.n_micro_batches = step_of(board, 0, step)->n_micro_batches;
            tally_step(board, step, &tally);
            add_step(board, &tally, figures);
        }
    }
    figures->step_imbalance /= head->n_steps;
    figures->microbatch_imbalance /= head->n_steps;
    free(tally.rank);
    free(tally.cost);
    free(tally.tokens);
    free(tally.patches);
}

static void predict(const struct board *board, struct demo_figures *figures)
{
    double before = 0, after = 0;

    for (uint32_t step = 0; step < board->head->n_steps; step++) {
        double weight = 0;
        before += (double)step_of(board, 0, step)->cost_before;
        after += (double)step_of(board, 0, step)->cost_after;
        for (uint32_t r = 0; r < board->head->n_ranks; r++)
            weight += step_of(board, r, step)->weight;
        figures->weight_error = fmax(figures->weight_error, fabs(weight - 1));
    }
    figures->predicted_speedup = after > 0 ? before / after : 1;
}

/* The mean rank's true time: what every step would take if all ranks were alike, without noise. */
static double ideal_ns(const struct board *board, uint32_t step)
{
    double truth = 0;

    for (uint32_t r = 0; r < board->head->n_ranks; r++)
        for (uint32_t i = 0; i < board->head->n_samples; i++)
            truth += board->samples[board_at(board, &(struct payload_origin){r, i, step})].truth;
    return board->head->fixed_ns + board->head->variable_ns * truth / board->head->n_ranks;
}

static void time_steps(const struct board *board, uint32_t first, struct demo_figures *figures)
{
    const uint32_t n_ranks = board->head->n_ranks, n_steps = board->head->n_steps;
    const size_t n = (size_t)n_ranks * (n_steps - first);
    uint64_t *waits = calloc(n, sizeof *waits), *pipelines = calloc(n, sizeof *pipelines);
    const uint64_t begin_ns =
        first > 0 ? atomic_load(&board->steps[first - 1].end_ns) : atomic_load(&board->ranks[0].start_ns);
    size_t at = 0;

    for (uint32_t step = first; step < n_steps; step++) {
        figures->ideal_ms += ideal_ns(board, step) * 1e-6 / (n_steps - first);
        for (uint32_t r = 0; waits && pipelines && r < n_ranks; r++, at++) {
            waits[at] = step_of(board, r, step)->wait_ns;
            pipelines[at] = step_of(board, r, step)->pipeline_ns;
        }
    }
    figures->step_ms = (double)(atomic_load(&board->steps[n_steps - 1].end_ns) - begin_ns) * 1e-6 / (n_steps - first);
    figures->wait_p50_us = waits ? (double)percentile(waits, at, 50) * 1e-3 : 0;
    figures->wait_p99_us = waits ? (double)percentile(waits, at, 99) * 1e-3 : 0;
    figures->pipeline_p50_ns = pipelines ? percentile(pipelines, at, 50) : 0;
    figures->pipeline_p99_ns = pipelines ? percentile(pipelines, at, 99) : 0;
    free(waits);
    free(pipelines);
}

uint32_t demo_first_timed(uint32_t n_steps)
{
    const uint32_t first = n_steps / 5 < WARM_STEPS ? n_steps / 5 : WARM_STEPS;

    return first == 0 && n_steps > 1 ? 1 : first;
}

void demo_figures(const struct board *board, uint32_t first, struct demo_figures *ret_figures)
{
    memset(ret_figures, 0, sizeof *ret_figures);
    count_samples(board, ret_figures);
    balance(board, ret_figures);
    predict(board, ret_figures);
    time_steps(board, first, ret_figures);
}
