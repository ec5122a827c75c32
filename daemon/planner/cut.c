/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts what a rank holds into micro-batches. Within a rank nothing has to move, so all orders are free: units go,
 * largest first, to the micro-batch with the least cost that has room; then a rank's micro-batches are numbered by
 * falling cost. So micro-batch j costs alike on all ranks, and few of them are larger than they must be.
 *
 * Three ways are tried until one keeps the caps and leaves no more micro-batches without a phase than must be:
 *   COST      as above
 *   PRESENCE  a unit goes where it brings a phase that is missing, units of the rarest phases first
 *   PACK      first fit, the largest share of a cap first: for caps that leave little air
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"

enum mode { COST, PRESENCE, PACK, N_MODES };

struct bin {
    u128 cost;
    uint64_t length[POISE_MAX_PHASES];
    uint32_t samples, units;
};

/* One way to cut a rank. */
struct cutting {
    struct bin *bins; /* [n_bins] */
    uint32_t *bin_of; /* [n] by position in units */
};

struct cutter {
    struct problem *pb;
    uint32_t n_bins;
    uint32_t *units; /* [n] of this rank, largest cost first */
    uint32_t n;
    struct sort_item *items; /* [2 * n] or [2 * n_bins] */
    uint32_t *order;         /* [n_bins] COST: the lightest first, then by number */
    struct cutting now, best;
};

/* A unit that is looked for a place, its numbers at hand: they are compared with every micro-batch. */
struct piece {
    uint64_t cost, length[POISE_MAX_PHASES];
    uint32_t samples;
};

static uint64_t length_of(const struct problem *pb, uint32_t p, uint32_t unit)
{
    return pb->length[(size_t)p * pb->n_units + unit];
}

static struct piece piece_of(const struct problem *pb, uint32_t unit)
{
    struct piece piece = {.cost = pb->cost[unit], .samples = unit_size(pb, unit)};

    for (uint32_t p = 0; p < pb->n_phases; p++)
        piece.length[p] = length_of(pb, p, unit);
    return piece;
}

static bool fits(const struct problem *pb, const struct bin *bin, const struct piece *piece)
{
    if (bin->units == 0)
        return true;
    if ((uint64_t)bin->samples + piece->samples > pb->micro_batch_samples)
        return false;
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        uint64_t length = piece->length[p], cap = pb->cap_length_micro_batch[p];
        if (length > cap || bin->length[p] > cap - length)
            return false;
    }
    return true;
}

static void add(const struct problem *pb, struct bin *bin, const struct piece *piece)
{
    bin->cost += piece->cost;
    bin->samples += piece->samples;
    bin->units++;
    for (uint32_t p = 0; p < pb->n_phases; p++)
        bin->length[p] += piece->length[p];
}

/* How many phases the unit would bring to a bin that lacks them. */
static uint32_t brings(const struct problem *pb, const struct bin *bin, const struct piece *piece)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < pb->n_phases; p++)
        n += bin->length[p] == 0 && piece->length[p] > 0;
    return n;
}

static bool is_lighter(const struct bin *bins, uint32_t a, uint32_t b)
{
    if (bins[a].cost != bins[b].cost)
        return bins[a].cost < bins[b].cost;
    return a < b;
}

/* COST: the lightest that has room. `order` has the lightest first, so hardly more than one is looked at. */
static uint32_t place_lightest(struct cutter *c, const struct piece *piece)
{
    struct bin *bins = c->now.bins;
    uint32_t k = 0, *order = c->order, found;

    while (k < c->n_bins && !fits(c->pb, &bins[order[k]], piece))
        k++;
    if (k == c->n_bins)
        return PLAN_ANY;
    found = order[k];
    add(c->pb, &bins[found], piece);
    for (; k + 1 < c->n_bins && is_lighter(bins, order[k + 1], found); k++)
        order[k] = order[k + 1];
    order[k] = found;
    return found;
}

/* PRESENCE: of those that lack most of what it brings the lightest. PACK: the first that has room. */
static uint32_t place_scan(struct cutter *c, const struct piece *piece, enum mode mode)
{
    uint32_t found = PLAN_ANY, most = 0;

    for (uint32_t b = 0; b < c->n_bins; b++) {
        const struct bin *bins = c->now.bins;
        uint32_t n = mode == PRESENCE ? brings(c->pb, &bins[b], piece) : 0;
        if (!fits(c->pb, &bins[b], piece))
            continue;
        if (found == PLAN_ANY || n > most || (n == most && bins[b].cost < bins[found].cost)) {
            found = b;
            most = n;
        }
        if (mode == PACK)
            break;
    }
    if (found != PLAN_ANY)
        add(c->pb, &c->now.bins[found], piece);
    return found;
}

/* The largest share of a cap that a unit takes, in 1 / 2^32. */
static uint64_t share(const struct problem *pb, uint32_t unit)
{
    uint64_t most = ((uint64_t)unit_size(pb, unit) << 32) / pb->micro_batch_samples;

    for (uint32_t p = 0; p < pb->n_phases; p++) {
        u128 cap = pb->cap_length_micro_batch[p] ? pb->cap_length_micro_batch[p] : 1;
        u128 part = ((u128)length_of(pb, p, unit) << 32) / cap;
        most = part > most ? saturate(part) : most;
    }
    return most;
}

static uint64_t rarest_phase(const struct problem *pb, uint32_t unit, const uint32_t n_present[POISE_MAX_PHASES])
{
    uint64_t rarest = UINT64_MAX;

    for (uint32_t p = 0; p < pb->n_phases; p++)
        if (length_of(pb, p, unit) > 0 && n_present[p] < rarest)
            rarest = n_present[p];
    return rarest;
}

/* What goes first. Units come largest first, which is all that COST wants; ties of PRESENCE fall by that, those of PACK
 * by origin. */
static void sort_units(struct cutter *c, enum mode mode, const uint32_t n_present[POISE_MAX_PHASES])
{
    for (uint32_t i = 0; i < c->n; i++)
        c->items[i] = (struct sort_item){mode == PACK       ? c->units[i]
                                         : mode == PRESENCE ? rarest_phase(c->pb, c->units[i], n_present)
                                                            : 0,
                                         i};
    if (mode != COST)
        sort_items(c->items, c->n, c->items + c->n);
    if (mode != PACK)
        return;
    for (uint32_t i = 0; i < c->n; i++)
        c->items[i].key = ~share(c->pb, c->units[c->items[i].id]);
    sort_items(c->items, c->n, c->items + c->n);
}

/* One try. The number of (micro-batch, phase) pairs that lack more than must be; PLAN_ANY: does not fit. */
static uint32_t try_mode(struct cutter *c, enum mode mode, const uint32_t n_present[POISE_MAX_PHASES])
{
    const struct problem *pb = c->pb;
    uint32_t lacking = 0;

    sort_units(c, mode, n_present);
    memset(c->now.bins, 0, c->n_bins * sizeof *c->now.bins);
    for (uint32_t b = 0; mode == COST && b < c->n_bins; b++)
        c->order[b] = b;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t at = c->items[i].id;
        struct piece piece = piece_of(pb, c->units[at]);
        uint32_t b = mode == COST ? place_lightest(c, &piece) : place_scan(c, &piece, mode);
        if (b == PLAN_ANY)
            return PLAN_ANY;
        c->now.bin_of[at] = b;
    }
    for (uint32_t p = 0; p < pb->n_phases; p++) {
        uint32_t must = c->n_bins > n_present[p] ? c->n_bins - n_present[p] : 0, lack = 0;
        for (uint32_t b = 0; b < c->n_bins; b++)
            lack += c->now.bins[b].length[p] == 0;
        lacking += pb->present[p] ? lack - must : 0;
    }
    return lacking;
}

/* Micro-batches by falling cost; empty ones last. */
static void number_bins(struct cutter *c, struct layout *layout)
{
    struct bin *bins = c->best.bins;

    for (uint32_t b = 0; b < c->n_bins; b++) {
        uint64_t cost = saturate(bins[b].cost);
        c->items[b] = (struct sort_item){~(cost + (cost < UINT64_MAX && bins[b].units)), b};
    }
    sort_items(c->items, c->n_bins, c->items + c->n_bins);
    for (uint32_t b = 0; b < c->n_bins; b++)
        bins[c->items[b].id].samples = b;
    for (uint32_t i = 0; i < c->n; i++)
        layout->micro_batch[c->units[i]] = bins[c->best.bin_of[i]].samples;
}

static int cut_rank(struct cutter *c, struct layout *layout)
{
    const struct problem *pb = c->pb;
    uint32_t n_present[POISE_MAX_PHASES] = {0}, least = PLAN_ANY;

    for (uint32_t p = 0; p < pb->n_phases; p++)
        for (uint32_t i = 0; i < c->n; i++)
            n_present[p] += length_of(pb, p, c->units[i]) > 0;
    for (enum mode mode = COST; mode < N_MODES && least > 0; mode++) {
        uint32_t lacking = try_mode(c, mode, n_present);
        if (lacking >= least)
            continue;
        struct cutting swap = c->best;
        least = lacking;
        c->best = c->now;
        c->now = swap;
    }
    if (least == PLAN_ANY)
        return -ENOSPC;
    number_bins(c, layout);
    return 0;
}

/* The number of micro-batches that first fit needs for this rank. */
static uint32_t bins_needed(struct cutter *c)
{
    uint32_t n_present[POISE_MAX_PHASES] = {0}, used = 0;

    c->n_bins = c->n;
    try_mode(c, PACK, n_present);
    for (uint32_t b = 0; b < c->n_bins; b++)
        used += c->now.bins[b].units > 0;
    return used;
}

/* Units by rank: a counting sort that leaves them largest first. */
static int group_by_rank(struct problem *pb, const struct layout *layout, uint32_t **ret_first, uint32_t **ret_units)
{
    uint32_t *first = pool_get(&pb->pool, pb->n_ranks + 2ull, sizeof *first);
    uint32_t *units = pool_get(&pb->pool, pb->n_units, sizeof *units);

    if (!first || !units)
        return -ENOMEM;
    for (uint32_t u = 0; u < pb->n_units; u++)
        first[layout->rank[u] + 2]++;
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        first[r + 2] += first[r + 1];
    for (uint32_t i = 0; i < pb->n_units; i++)
        units[first[layout->rank[pb->sorted[i].id] + 1]++] = pb->sorted[i].id;
    *ret_first = first;
    *ret_units = units;
    return 0;
}

static int cutting_new(struct problem *pb, uint32_t most, uint32_t n_bins, struct cutting *cutting)
{
    cutting->bins = pool_get(&pb->pool, n_bins, sizeof *cutting->bins);
    cutting->bin_of = pool_get(&pb->pool, most, sizeof *cutting->bin_of);
    return cutting->bins && cutting->bin_of ? 0 : -ENOMEM;
}

static int cutter_new(struct problem *pb, uint32_t most, uint32_t n_bins, struct cutter *ret_cutter)
{
    struct cutter c = {.pb = pb};
    uint64_t n_items = 2ull * (most > n_bins ? most : n_bins);

    c.items = pool_get(&pb->pool, n_items, sizeof *c.items);
    c.order = pool_get(&pb->pool, n_bins, sizeof *c.order);
    if (!c.items || !c.order || cutting_new(pb, most, n_bins, &c.now) < 0 || cutting_new(pb, most, n_bins, &c.best) < 0)
        return -ENOMEM;
    *ret_cutter = c;
    return 0;
}

static void take_rank(struct cutter *c, const uint32_t *first, uint32_t *units, uint32_t r)
{
    c->units = units + first[r];
    c->n = first[r + 1] - first[r];
}

/* As many micro-batches as the caps need: what first fit needs on the rank that needs most. */
static int count_micro_batches(struct problem *pb, const uint32_t *first, uint32_t *units, uint32_t most,
                               struct layout *layout)
{
    struct cutter c;

    if (cutter_new(pb, most, most, &c) < 0)
        return -ENOMEM;
    layout->n_micro_batches = 1;
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        take_rank(&c, first, units, r);
        uint32_t need = bins_needed(&c);
        layout->n_micro_batches = need > layout->n_micro_batches ? need : layout->n_micro_batches;
    }
    layout->cell_first =
        pool_get(&pb->pool, (uint64_t)layout->n_micro_batches * pb->n_ranks + 1, sizeof *layout->cell_first);
    return layout->cell_first ? 0 : -ENOMEM;
}

int cut_layout(struct problem *pb, struct layout *layout, struct poise_err *err)
{
    uint32_t *first, *units, most = 1;
    struct cutter c;

    if (layout->n_micro_batches == 1 && pb->req->cut != POISE_CUT_AS_NEEDED) {
        memset(layout->micro_batch, 0, pb->n_units * sizeof *layout->micro_batch);
        return 0; /* nothing to choose; the judge looks at the caps */
    }
    if (group_by_rank(pb, layout, &first, &units) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t r = 0; r < pb->n_ranks; r++)
        most = first[r + 1] - first[r] > most ? first[r + 1] - first[r] : most;
    if (pb->req->cut == POISE_CUT_AS_NEEDED && count_micro_batches(pb, first, units, most, layout) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if (cutter_new(pb, most, layout->n_micro_batches, &c) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    for (uint32_t r = 0; r < pb->n_ranks; r++) {
        take_rank(&c, first, units, r);
        c.n_bins = layout->n_micro_batches;
        if (cut_rank(&c, layout) < 0)
            return err_set(err, -ENOSPC, "rank %u: %u units do not fit into %u micro-batches under their caps", r, c.n,
                           c.n_bins);
    }
    return 0;
}
