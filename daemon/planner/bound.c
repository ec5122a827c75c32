/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no plan can be below. A real bound, not an estimate: gaps to it are what users judge an algorithm by, so each
 * term has its proof in a comment. The target (bound and tolerance) is where algorithms stop.
 */
#include <errno.h>

#include "problem.h"
#include "sort.h"

/* Costs of one segment, largest first. */
struct costs {
    struct sort_item *items; /* key ~cost */
    uint32_t n;
    u128 total;
    uint64_t fastest; /* speed */
};

static uint64_t cost_at(const struct costs *costs, uint32_t i)
{
    return ~costs->items[i].key;
}

static u128 max(u128 a, u128 b)
{
    return a > b ? a : b;
}

static u128 less(u128 a, u128 b)
{
    return a > b ? a - b : 0;
}

static u128 at_speed(const struct problem *pb, const struct costs *costs, u128 cost)
{
    return pb->has_speeds ? cost * 1000000u / costs->fastest : cost;
}

/* Work is conserved: some rank has at least its speed's share. */
static u128 mean_time(const struct problem *pb, u128 total)
{
    if (!pb->has_speeds)
        return (total + pb->n_ranks - 1) / pb->n_ranks;
    return total * 1000000u / pb->speed_sum;
}

/* The sum of the n smallest. */
static u128 smallest(const struct costs *costs, uint32_t n)
{
    u128 sum = 0;

    for (uint32_t i = 0; i < n && i < costs->n; i++)
        sum += cost_at(costs, costs->n - 1 - i);
    return sum;
}

/* The rank with the largest unit holds at least `companions` others, at best the smallest. */
static u128 largest_and_companions(const struct problem *pb, const struct costs *costs, uint32_t companions)
{
    if (costs->n == 0)
        return 0;
    if (companions > costs->n - 1)
        companions = costs->n - 1;
    return at_speed(pb, costs, cost_at(costs, 0) + smallest(costs, companions));
}

/* Of the k n + 1 largest units some rank holds k + 1, at best the smallest of them: those from k n - k to k n. Both
 * ends of that window only ever go up with k, so all windows together cost one pass. */
static u128 pigeonhole(const struct problem *pb, const struct costs *costs)
{
    u128 best = 0, sum = 0;
    uint64_t low = 0, high = 0; /* the window is [low, high) */

    for (uint64_t k = 1; k * pb->n_ranks < costs->n; k++) {
        for (; high <= k * pb->n_ranks; high++)
            sum += cost_at(costs, (uint32_t)high);
        for (; low < k * pb->n_ranks - k; low++)
            sum -= cost_at(costs, (uint32_t)low);
        best = max(best, sum);
    }
    return at_speed(pb, costs, best);
}

/* The fewest samples that any rank can hold. With units of several samples one says nothing about their number. */
static uint32_t least_count(const struct problem *pb)
{
    uint32_t least = UINT32_MAX;

    for (uint32_t r = 0; r < pb->n_ranks; r++)
        if (pb->count_min[r] < least && pb->count_min[r] > 0)
            least = pb->count_min[r];
    return pb->has_units || least == UINT32_MAX ? 1 : least;
}

static u128 bound_step(const struct problem *pb, const struct costs *costs)
{
    u128 bound = max(mean_time(pb, costs->total), largest_and_companions(pb, costs, least_count(pb) - 1));

    return max(bound, pigeonhole(pb, costs));
}

/*
 * A (set, micro-batch) cell of n ranks holds at most n K units and takes at least as long as its largest; the sum of
 * largest ones is least where cells hold consecutive chunks of the sorted units, the largest cells first. Where all
 * cells must be full, the rank with a cell's largest unit holds K - 1 more: at best all the smallest. The longest of
 * the sets is at least their average. At K = 1 and one set this is exact.
 */
static u128 bound_chunks(const struct problem *pb, const struct costs *costs)
{
    uint64_t k = pb->micro_batch_samples, n_mb = pb->n_micro_batches;
    uint64_t n_cells = n_mb * pb->n_sets, used = 0, at = 0, widest = 0, ranks = 0;
    u128 sum = 0;

    if (k == PLAN_ANY || n_mb == 0 || pb->oversize)
        return 0;
    for (uint32_t s = 0; s < pb->n_sets; s++) {
        ranks = 0;
        for (uint32_t r = 0; r < pb->n_ranks; r++)
            ranks += pb->set[r] == s;
        widest = ranks > widest ? ranks : widest;
    }
    /* With sets of different sizes every cell is taken as large as the largest: still a bound. */
    for (; used < n_cells && at < costs->n; used++, at += widest * k)
        sum += cost_at(costs, (uint32_t)at);
    if (!pb->has_units && k * n_mb * pb->n_ranks == costs->n)
        sum += smallest(costs, (uint32_t)((k - 1) * n_cells));
    if (pb->has_speeds) /* each micro-batch's time is rounded down by itself */
        return less(at_speed(pb, costs, sum / pb->n_sets), n_mb);
    return (sum + pb->n_sets - 1) / pb->n_sets;
}

/* sum + (stages - 1) x largest micro-batch: the largest of M micro-batches is at least their mean; and whoever has the
 * largest unit has a micro-batch of at least that. */
static u128 bound_pipeline(const struct problem *pb, const struct costs *costs)
{
    uint64_t bubbles = pb->stages - 1;
    u128 mean = mean_time(pb, costs->total), bound = bound_step(pb, costs);
    u128 unit = costs->n ? at_speed(pb, costs, cost_at(costs, 0)) : 0;

    if (pb->n_micro_batches)
        bound = max(bound, mean + mean * bubbles / pb->n_micro_batches);
    return max(bound, largest_and_companions(pb, costs, least_count(pb) - 1) + unit * bubbles);
}

static void sort_costs(struct problem *pb, uint32_t segment, bool all, struct costs *costs, struct sort_item *scratch)
{
    costs->n = pb->n_units;
    costs->total = 0;
    for (uint32_t u = 0; u < pb->n_units; u++) {
        uint64_t cost = all ? pb->cost[u] : 0;
        for (uint32_t p = 0; !all && p < pb->n_phases; p++)
            if (pb->segment[p] == segment)
                cost += pb->phase_cost[(size_t)p * pb->n_units + u];
        costs->items[u] = (struct sort_item){~cost, u};
        costs->total += cost;
    }
    sort_items(costs->items, costs->n, scratch);
}

/* Barriers add up; each kind of bound does so in itself, so their sums are compared, not the parts. */
static u128 bound_segments(struct problem *pb, struct costs *costs, struct sort_item *scratch)
{
    u128 by_chunks = 0, by_mean = 0, total = 0;

    for (uint32_t g = 0; g < pb->n_segments; g++) {
        sort_costs(pb, g, pb->n_segments == 1, costs, scratch);
        if (pb->req->objective == POISE_OBJECTIVE_STEP)
            total += bound_step(pb, costs);
        else if (pb->req->objective == POISE_OBJECTIVE_PIPELINE)
            total += bound_pipeline(pb, costs);
        by_chunks += bound_chunks(pb, costs);
        by_mean += mean_time(pb, costs->total);
    }
    if (pb->req->objective != POISE_OBJECTIVE_MICROBATCH)
        return total;
    if (pb->has_speeds)
        by_mean = less(by_mean, (u128)pb->n_micro_batches * pb->n_segments);
    return max(by_chunks, by_mean);
}

int bound_make(struct problem *pb)
{
    struct costs costs = {.fastest = 1};
    struct sort_item *scratch = pool_get(&pb->pool, pb->n_units, sizeof *scratch);

    costs.items = pool_get(&pb->pool, pb->n_units, sizeof *costs.items);
    if (!costs.items || !scratch)
        return -ENOMEM;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        costs.fastest = pb->speed[r] > costs.fastest ? pb->speed[r] : costs.fastest;
    pb->bound = bound_segments(pb, &costs, scratch);
    if (pb->n_segments > 1)
        sort_costs(pb, 0, true, &costs, scratch);
    if (pb->req->objective == POISE_OBJECTIVE_MICROBATCH && !pb->has_speeds)
        pb->bound = max(pb->bound, bound_step(pb, &costs));
    pb->sorted = costs.items;
    /* In two parts: the product of a bound at the limit and a tolerance would not fit. */
    pb->target =
        pb->bound + pb->bound / 1000000u * pb->tolerance_ppm + pb->bound % 1000000u * pb->tolerance_ppm / 1000000u;
    return 0;
}
