/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two for two: where one unit for one no longer brings a rank closer to its target, two for two often do. With eight
 * samples a rank and fixed counts there are 8 x 8 exchanges of one with each other rank, but 28 x 28 of two. Only for
 * ranks of few units: the number of pairs of pairs grows with the fourth power.
 */
#include "mover.h"

#define UNITS 12 /* of a rank: 66 x 66 exchanges with another */
#define RANKS 32 /* with the most room that are tried */

struct pair {
    uint32_t a, b;
    uint64_t cost;
};

struct rank_units {
    uint32_t unit[UNITS], n, n_pairs;
    struct pair pair[UNITS * (UNITS - 1) / 2];
};

static bool list(const struct mover *mv, uint32_t rank, struct rank_units *list)
{
    const struct problem *pb = mv->pb;

    list->n = list->n_pairs = 0;
    for (uint32_t i = pb->unit_of_rank[rank]; i < pb->unit_of_rank[rank + 1]; i++)
        if (mv->where[mv->home[i]] == rank) {
            if (list->n == UNITS)
                return false;
            list->unit[list->n++] = mv->home[i];
        }
    for (uint32_t v = mv->guest_first[rank]; v != PLAN_ANY; v = mv->guest_next[v]) {
        if (list->n == UNITS)
            return false;
        list->unit[list->n++] = v;
    }
    for (uint32_t i = 0; i < list->n; i++)
        for (uint32_t k = i + 1; k < list->n; k++)
            if (mover_may_move(mv, list->unit[i]) && mover_may_move(mv, list->unit[k]))
                list->pair[list->n_pairs++] =
                    (struct pair){list->unit[i], list->unit[k], mv->cost[list->unit[i]] + mv->cost[list->unit[k]]};
    return true;
}

struct double_swap {
    struct pair go, come;
    uint32_t rank; /* PLAN_ANY: none */
    uint64_t shift;
    int64_t bytes;
};

static bool better(const struct double_swap *a, const struct double_swap *b, uint64_t over)
{
    bool a_done = a->shift >= over, b_done = b->shift >= over;

    if (b->rank == PLAN_ANY || a_done != b_done)
        return b->rank == PLAN_ANY || a_done;
    return a_done ? a->bytes < b->bytes : a->shift > b->shift;
}

static void search(struct mover *mv, uint32_t from, const struct rank_units *mine, uint32_t to,
                   struct double_swap *best)
{
    uint64_t over = mover_over(mv, from), hole = mover_hole(mv, to);
    struct rank_units theirs;

    if (hole == 0 || to == from || !list(mv, to, &theirs))
        return;
    for (uint32_t i = 0; i < mine->n_pairs; i++)
        for (uint32_t k = 0; k < theirs.n_pairs; k++) {
            const struct pair *u = &mine->pair[i], *v = &theirs.pair[k];
            if (u->cost <= v->cost || u->cost - v->cost > hole)
                continue;
            struct double_swap s = {*u, *v, to, u->cost - v->cost, 0};
            s.bytes = mover_bytes(mv, u->a, to) + mover_bytes(mv, u->b, to) + mover_bytes(mv, v->a, from) +
                      mover_bytes(mv, v->b, from);
            if (better(&s, best, over))
                *best = s;
        }
    uint64_t steps = (uint64_t)mine->n_pairs * theirs.n_pairs / 8 + 1;
    mv->work -= steps < mv->work ? steps : mv->work;
}

static bool put_fitting(struct mover *mv, uint32_t rank, uint32_t unit, uint8_t reason)
{
    bool fits = loads_fits(&mv->loads, rank, unit);

    mover_put(mv, rank, unit, reason);
    return fits;
}

static void put_back(struct mover *mv, uint32_t rank, uint32_t unit, uint8_t reason)
{
    mover_take(mv, unit);
    mover_put(mv, rank, unit, reason);
}

/* Carries it out; undone where a cap or a count does not allow it. */
static bool apply(struct mover *mv, uint32_t from, const struct double_swap *s)
{
    uint32_t units[4] = {s->go.a, s->go.b, s->come.a, s->come.b};
    uint8_t was[4];
    bool ok = true;

    for (uint32_t i = 0; i < 4; i++) {
        was[i] = mv->reason[units[i]];
        mover_take(mv, units[i]);
    }
    for (uint32_t i = 0; i < 4; i++)
        ok &= put_fitting(mv, i < 2 ? s->rank : from, units[i], POISE_REASON_SWAP);
    if (ok && loads_not_emptier(&mv->loads) && mv->loads.count[from] >= mv->pb->count_min[from])
        return true;
    for (uint32_t i = 0; i < 4; i++)
        put_back(mv, i < 2 ? from : s->rank, units[i], was[i]);
    return false;
}

bool mover_swap_pairs(struct mover *mv, uint32_t rank)
{
    struct double_swap best = {.rank = PLAN_ANY};
    struct rank_units mine;

    if (mv->pb->has_units || !list(mv, rank, &mine))
        return false;
    for (uint32_t i = 0; i < mv->closed.n && i < RANKS && mv->work > 0; i++)
        search(mv, rank, &mine, mv->closed.id[i], &best);
    return best.rank != PLAN_ANY && apply(mv, rank, &best);
}
