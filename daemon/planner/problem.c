/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a request to a problem. Resolves every default once, so that no algorithm has to know what NULL means, and
 * scores arrival order, which all that follows is measured against. Fails on numbers that do not fit, naming rank and
 * sample.
 */
#include "problem.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cost.h"
#include "sort.h"

#define GET(field, n)                                                                                                  \
    do {                                                                                                               \
        if (!(pb->field = pool_get(&pb->pool, (n), sizeof *pb->field)))                                                \
            return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);                               \
    } while (0)

static int range_error(const struct problem *pb, uint32_t s, const char *what, uint64_t value, struct poise_err *err)
{
    uint32_t r = 0;

    while (s >= pb->first[r + 1])
        r++;
    return err_set_at(err, -ERANGE, r, s - pb->first[r], NULL, "rank %u sample %u: %s (%" PRIu64 ")", r,
                      s - pb->first[r], what, value);
}

static int init_ranks(struct problem *pb, struct poise_err *err)
{
    const struct poise_plan_request *req = pb->req;

    GET(first, pb->n_ranks + 1u);
    GET(speed, pb->n_ranks);
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        pb->first[r + 1] = pb->first[r] + req->n_samples[r];
        pb->speed[r] = req->speed_ppm ? req->speed_ppm[r] : 1000000;
        pb->speed_sum += pb->speed[r];
        pb->has_speeds |= pb->speed[r] != 1000000;
    }
    return 0;
}

/* Sync sets get the numbers 0, 1, ... by their names' order. */
static int init_sets(struct problem *pb, struct poise_err *err)
{
    struct sort_item *items = pool_get(&pb->pool, 2ull * pb->n_ranks, sizeof *items);

    if (!items)
        return err_set(err, -ENOMEM, "no memory to plan %u ranks", pb->n_ranks);
    GET(set, pb->n_ranks);
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        items[r] = (struct sort_item){pb->req->sync_set ? pb->req->sync_set[r] : 0, r};
    sort_items(items, pb->n_ranks, items + pb->n_ranks);
    for (uint32_t i = 0; i < pb->n_ranks; i++) {
        pb->n_sets += i == 0 || items[i].key != items[i - 1].key;
        pb->set[items[i].id] = pb->n_sets - 1;
    }
    return 0;
}

/* The arrival micro-batches: as told, or consecutive pieces of micro_batch_size, or n_micro_batches equal ones. */
static int init_arrival(struct problem *pb, struct poise_err *err)
{
    const struct poise_plan_request *req = pb->req;
    uint32_t k = req->micro_batch_size, m = req->n_micro_batches, most = 1;

    GET(sample_arrival, pb->n_samples);
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t n = pb->first[r + 1] - pb->first[r];
        uint32_t piece = m ? n / m : n, longer = m ? n % m : 0; /* the first `longer` pieces hold one more */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t s = pb->first[r] + i, at = 0;
            if (req->micro_batch)
                at = req->micro_batch[s];
            else if (k)
                at = i / k;
            else if (m)
                at = i < longer * (piece + 1) ? i / (piece + 1) : longer + (i - longer * (piece + 1)) / piece;
            if ((m && at >= m) || at >= PLAN_MAX_CELLS)
                return err_set_at(err, -EINVAL, r, i, NULL, "rank %u sample %u arrives in micro-batch %u of %u", r, i,
                                  at, m ? m : PLAN_MAX_CELLS);
            pb->sample_arrival[s] = at;
            if (at >= most)
                most = at + 1;
        }
    }
    pb->arrival_micro_batches = m > most ? m : most;
    if ((uint64_t)pb->arrival_micro_batches * pb->n_ranks > PLAN_MAX_CELLS)
        return err_set(err, -EINVAL, "%u micro-batches on %u ranks: at most %u in all", pb->arrival_micro_batches,
                       pb->n_ranks, PLAN_MAX_CELLS);
    return 0;
}

/* Finds the first sample of each one's unit: leader[s]. Returns the number of units in the rank. */
static uint32_t find_leaders(const struct problem *pb, uint32_t rank, uint32_t *leader, struct sort_item *items,
                             struct sort_item *scratch)
{
    uint32_t n = 0, n_units = 0;

    for (uint32_t s = pb->first[rank]; s < pb->first[rank + 1]; s++) {
        leader[s] = s;
        if (pb->req->unit[s])
            items[n++] = (struct sort_item){pb->req->unit[s], s};
    }
    sort_items(items, n, scratch);
    for (uint32_t i = 1; i < n; i++)
        if (items[i].key == items[i - 1].key)
            leader[items[i].id] = leader[items[i - 1].id];
    for (uint32_t s = pb->first[rank]; s < pb->first[rank + 1]; s++)
        n_units += leader[s] == s;
    return n_units;
}

static int join_units(struct problem *pb, struct poise_err *err)
{
    uint32_t *leader = pool_get(&pb->pool, pb->n_samples, sizeof *leader);
    uint32_t *unit = pool_get(&pb->pool, pb->n_samples, sizeof *unit);
    struct sort_item *items = pool_get(&pb->pool, 2ull * pb->n_samples, sizeof *items);

    if (!leader || !unit || !items)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    pb->n_units = 0;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        pb->n_units += find_leaders(pb, r, leader, items, items + pb->n_samples);
    pb->has_units = pb->n_units < pb->n_samples;
    if (!pb->has_units)
        return 0;
    GET(member_first, pb->n_units + 1u);
    GET(member, pb->n_samples);
    GET(size, pb->n_units);
    for (uint32_t s = 0, u = 0; s < pb->n_samples; s++) {
        unit[s] = leader[s] == s ? u++ : unit[leader[s]];
        pb->size[unit[s]]++;
    }
    for (uint32_t u = 0; u < pb->n_units; u++)
        pb->member_first[u + 1] = pb->member_first[u] + pb->size[u];
    memset(pb->size, 0, pb->n_units * sizeof *pb->size);
    for (uint32_t s = 0; s < pb->n_samples; s++)
        pb->member[pb->member_first[unit[s]] + pb->size[unit[s]]++] = s;
    return 0;
}

static int init_units(struct problem *pb, struct poise_err *err)
{
    int rc;

    pb->n_units = pb->n_samples;
    if (pb->req->unit && (rc = join_units(pb, err)) < 0)
        return rc;
    GET(unit_rank, pb->n_units);
    GET(unit_arrival, pb->n_units);
    GET(unit_of_rank, pb->n_ranks + 1u);
    for (uint32_t u = 0, r = 0; u < pb->n_units; u++) {
        uint32_t s = unit_member(pb, u, 0);
        while (s >= pb->first[r + 1])
            r++;
        pb->unit_rank[u] = r;
        pb->unit_arrival[u] = pb->sample_arrival[s];
        for (uint32_t i = 1; i < unit_n_members(pb, u); i++)
            pb->splits_unit |= pb->sample_arrival[unit_member(pb, u, i)] != pb->unit_arrival[u];
        pb->unit_of_rank[r + 1]++;
    }
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        pb->unit_of_rank[r + 1] += pb->unit_of_rank[r];
    return 0;
}

static int add_cost(struct problem *pb, uint32_t p, uint32_t u, uint32_t s, struct poise_err *err)
{
    const struct poise_plan_request *req = pb->req;
    size_t at = (size_t)p * pb->n_samples + s;
    uint64_t length = req->length[at], attention = 0, cost;

    if (req->attention)
        attention = req->attention[at];
    else if (pb->phase[p].quadratic && !cost_attention(length, &attention))
        return range_error(pb, s, "its length squared does not fit in 64 bits", length, err);
    if (!cost_of_phase(&pb->phase[p], length, attention, &cost) || cost > PLAN_COST_MAX - pb->cost[u])
        return range_error(pb, s, "its cost is above 2^63 - 1, it has length", length, err);
    pb->cost[u] += cost;
    if (pb->phase_cost)
        pb->phase_cost[(size_t)p * pb->n_units + u] += cost;
    return 0;
}

static int init_costs(struct problem *pb, struct poise_err *err)
{
    int rc;

    GET(cost, pb->n_units);
    if (pb->n_segments > 1 || pb->is_padded)
        GET(phase_cost, (uint64_t)pb->n_phases * pb->n_units);
    for (uint32_t p = 0; p < pb->n_phases; p++)
        for (uint32_t u = 0; u < pb->n_units; u++)
            for (uint32_t i = 0; i < unit_n_members(pb, u); i++)
                if ((rc = add_cost(pb, p, u, unit_member(pb, u, i), err)) < 0)
                    return rc;
    for (uint32_t u = 0; u < pb->n_units; u++)
        pb->cost_total += pb->cost[u];
    return 0;
}

/* Sums a column of samples into units; the column itself where units are samples. */
static const uint64_t *by_unit(struct problem *pb, const uint64_t *column)
{
    uint64_t *sum;

    if (!pb->has_units)
        return column;
    sum = pool_get(&pb->pool, pb->n_units, sizeof *sum);
    for (uint32_t u = 0; sum && u < pb->n_units; u++)
        for (uint32_t i = 0; i < unit_n_members(pb, u); i++)
            sum[u] += column[unit_member(pb, u, i)];
    return sum;
}

static int init_lengths(struct problem *pb, struct poise_err *err)
{
    uint64_t *sum = NULL;

    if (pb->has_units && !(sum = pool_get(&pb->pool, (uint64_t)pb->n_phases * pb->n_units, sizeof *sum)))
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        const uint64_t *length = pb->req->length + (size_t)p * pb->n_samples;
        uint64_t total = 0;
        for (uint32_t s = 0; s < pb->n_samples; s++)
            if (__builtin_add_overflow(total, length[s], &total))
                return range_error(pb, s, "with it the lengths of a phase sum to more than 2^64", length[s], err);
        pb->present[p] = total > 0;
        for (uint32_t u = 0; sum && u < pb->n_units; u++)
            for (uint32_t i = 0; i < unit_n_members(pb, u); i++)
                sum[(size_t)p * pb->n_units + u] += length[unit_member(pb, u, i)];
    }
    pb->length = sum ? sum : pb->req->length;
    return 0;
}

static int init_bytes(struct problem *pb, struct poise_err *err)
{
    const uint64_t *bytes = pb->req->bytes;

    if (!bytes) {
        uint64_t *ones = pool_get(&pb->pool, pb->n_samples, sizeof *ones);
        for (uint32_t s = 0; ones && s < pb->n_samples; s++)
            ones[s] = 1;
        bytes = ones;
    }
    if (!bytes)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t s = 0; s < pb->n_samples; s++)
        if (__builtin_add_overflow(pb->bytes_total, bytes[s], &pb->bytes_total))
            return range_error(pb, s, "with it the bytes of the step are more than 2^64", bytes[s], err);
    pb->bytes = by_unit(pb, bytes);
    pb->packed = pb->req->packed_bytes ? by_unit(pb, pb->req->packed_bytes) : pb->bytes;
    if (!pb->bytes || !pb->packed)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    return 0;
}

/* Counts as the request wants them; *ret_most: what the largest rank will hold at least. */
static int limit_counts(struct problem *pb, uint32_t *ret_most, struct poise_err *err)
{
    const struct poise_plan_request *req = pb->req;
    bool equal = req->count == POISE_COUNT_EQUAL, bounded = req->count == POISE_COUNT_BOUNDED;
    uint32_t floor = pb->n_samples / pb->n_ranks, rest = pb->n_samples % pb->n_ranks;
    uint64_t cap = req->cap_samples_rank && req->cap_samples_rank < UINT32_MAX ? req->cap_samples_rank : UINT32_MAX;

    *ret_most = bounded ? floor + (rest > 0) : 0;
    if (bounded)
        pb->count_quota = rest;
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t n = pb->first[r + 1] - pb->first[r];
        uint64_t max = equal ? n : bounded ? floor + (rest > 0) : UINT32_MAX;
        pb->count_min[r] = equal ? n : bounded ? floor : 0;
        if (pb->count_min[r] > cap)
            return err_set_at(err, -EINVAL, r, POISE_NONE, NULL,
                              "cap_samples_rank is %" PRIu64 ": with this count rank %u holds %u", cap, r,
                              pb->count_min[r]);
        pb->count_max[r] = (uint32_t)(max < cap ? max : cap);
        if (!bounded && n > *ret_most)
            *ret_most = n;
    }
    if (cap * pb->n_ranks < pb->n_samples)
        return err_set(err, -EINVAL, "cap_samples_rank is %" PRIu64 ": %u ranks cannot hold %u samples", cap,
                       pb->n_ranks, pb->n_samples);
    return 0;
}

/* The cap on samples of a micro-batch. */
static uint32_t micro_batch_cap(const struct problem *pb, uint32_t most)
{
    const struct poise_plan_request *req = pb->req;
    uint64_t k = req->cap_samples_micro_batch ? req->cap_samples_micro_batch : PLAN_ANY;

    if (req->cut != POISE_CUT_BY_COST && req->micro_batch_size && req->micro_batch_size < k)
        k = req->micro_batch_size;
    else if (req->cut == POISE_CUT_FIXED && !req->micro_batch_size && req->n_micro_batches && !req->micro_batch)
        k = most / req->n_micro_batches + !!(most % req->n_micro_batches) + !most;
    return (uint32_t)(k < PLAN_ANY ? k : PLAN_ANY);
}

/* No rule but that everything is somewhere. */
static int any_counts(struct problem *pb, struct poise_err *err)
{
    GET(count_min, pb->n_ranks);
    GET(count_max, pb->n_ranks);
    memset(pb->count_max, 0xff, pb->n_ranks * sizeof *pb->count_max);
    pb->count_quota = PLAN_ANY;
    pb->micro_batch_samples = PLAN_ANY;
    pb->n_micro_batches = pb->arrival_micro_batches;
    return 0;
}

/* How many samples a rank may hold, and how many micro-batches there are. */
static int init_counts(struct problem *pb, struct poise_err *err)
{
    uint32_t asked = pb->req->n_micro_batches, most = 0, k;
    int rc;

    if ((rc = any_counts(pb, err)) < 0 || (rc = limit_counts(pb, &most, err)) < 0)
        return rc;
    k = pb->micro_batch_samples = micro_batch_cap(pb, most);
    pb->n_micro_batches = 0;
    if (pb->req->cut == POISE_CUT_AS_NEEDED)
        return 0;
    uint32_t need = k == PLAN_ANY ? 1 : most / k + !!(most % k);
    if (asked && need > asked)
        return err_set(err, -EINVAL, "%u samples on a rank need %u micro-batches of %u, n_micro_batches is %u", most,
                       need, k, asked);
    pb->n_micro_batches = pb->arrival_micro_batches > need ? pb->arrival_micro_batches : need;
    uint64_t room = k == PLAN_ANY ? UINT32_MAX : (uint64_t)k * pb->n_micro_batches;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        if (pb->count_max[r] > room)
            pb->count_max[r] = (uint32_t)room;
    return 0;
}

static uint64_t cap_or(const uint64_t *caps, uint32_t p, uint64_t arrival)
{
    return caps && caps[p] ? caps[p] : arrival;
}

/* Caps that the request leaves open are what arrival order comes to: NULL before it is known. */
static void set_caps(struct problem *pb, const struct score *arrival)
{
    const struct poise_plan_request *req = pb->req;

    pb->cap_bytes_rank = req->cap_bytes_rank ? req->cap_bytes_rank
                         : arrival           ? saturate(arrival->bytes_rank)
                                             : POISE_NO_CAP;
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        pb->cap_length_rank[p] = cap_or(req->cap_length_rank, p, arrival ? arrival->length_rank[p] : POISE_NO_CAP);
        pb->cap_length_micro_batch[p] =
            cap_or(req->cap_length_micro_batch, p, arrival ? arrival->length_micro_batch[p] : POISE_NO_CAP);
    }
}

void problem_lift_caps(struct problem *pb)
{
    set_caps(pb, NULL);
}

void problem_no_caps(struct problem *pb)
{
    pb->cap_bytes_rank = POISE_NO_CAP;
    for (uint32_t p = 0; p < pb->n_phases; p++)
        pb->cap_length_rank[p] = pb->cap_length_micro_batch[p] = POISE_NO_CAP;
}

static void count_oversize(struct problem *pb)
{
    for (uint32_t u = 0; u < pb->n_units; u++) {
        bool over = unit_size(pb, u) > pb->micro_batch_samples || pb->packed[u] > pb->cap_bytes_rank;
        for (uint32_t p = 0; p < pb->n_phases; p++) {
            uint64_t length = pb->length[(size_t)p * pb->n_units + u];
            over |= length > pb->cap_length_micro_batch[p] || length > pb->cap_length_rank[p];
        }
        pb->oversize += over;
    }
}

static int init_arrival_score(struct problem *pb, struct poise_err *err)
{
    uint32_t m = pb->n_micro_batches ? pb->n_micro_batches : pb->arrival_micro_batches;
    int rc;

    if ((uint64_t)m * pb->n_ranks > PLAN_MAX_CELLS)
        return err_set(err, -EINVAL, "%u micro-batches on %u ranks: at most %u in all", m, pb->n_ranks, PLAN_MAX_CELLS);
    if (layout_new(pb, m, &pb->identity) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    layout_sort(pb, &pb->identity);
    set_caps(pb, NULL);
    if ((rc = score_layout(pb, &pb->identity, &pb->arrival)) < 0)
        return err_set(err, rc, "no memory to plan %u samples", pb->n_samples);
    set_caps(pb, &pb->arrival);
    count_oversize(pb);
    pb->arrival_counts =
        pb->arrival.samples_rank_max - pb->arrival.samples_rank_min <= 1 || pb->count_quota == PLAN_ANY;
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        uint32_t n = pb->first[r + 1] - pb->first[r];
        pb->arrival_counts &= n >= pb->count_min[r] && n <= pb->count_max[r];
    }
    /* Cut as needed wants the smallest number of micro-batches, whatever arrival order has. */
    pb->arrival_fits = pb->arrival.over == 0 && !pb->splits_unit && pb->req->cut != POISE_CUT_AS_NEEDED;
    return 0;
}

int problem_init(struct problem *pb, const struct poise_plan_request *req, bool arrival_only, struct poise_err *err)
{
    int rc;

    memset(pb, 0, sizeof *pb);
    pb->req = req;
    pb->n_ranks = req->n_ranks;
    pb->n_phases = req->n_phases;
    if ((rc = plan_check_options(req, err)) < 0 || (rc = check_columns(req, &pb->n_samples, err)) < 0)
        return rc;
    pb->n_segments = 1;
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        pb->phase[p] = req->phases[p];
        pb->segment[p] = pb->n_segments - 1;
        pb->is_padded |= !!(req->phases[p].flags & POISE_PHASE_PADDED);
        if (req->phases[p].flags & POISE_PHASE_BARRIER && p + 1 < pb->n_phases)
            pb->n_segments++;
    }
    pb->tolerance_ppm = req->tolerance_ppm ? req->tolerance_ppm : 10000;
    pb->stages = req->stages ? req->stages : 1;
    if ((rc = init_ranks(pb, err)) < 0 || (rc = init_sets(pb, err)) < 0 || (rc = init_arrival(pb, err)) < 0 ||
        (rc = init_units(pb, err)) < 0 || (rc = init_costs(pb, err)) < 0 || (rc = init_lengths(pb, err)) < 0 ||
        (rc = init_bytes(pb, err)) < 0 || (rc = arrival_only ? any_counts(pb, err) : init_counts(pb, err)) < 0 ||
        (rc = init_arrival_score(pb, err)) < 0)
        return rc;
    if (bound_make(pb) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    return 0;
}

void problem_free(struct problem *pb)
{
    pool_free(&pb->pool);
}
