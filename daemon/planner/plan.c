/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_make: request in, plan out. An algorithm proposes a layout; the judge (score.c) decides whether it may be
 * delivered. A proposal that breaks a cap, is worse than arrival order, or gains nothing is thrown away for arrival
 * order, so whatever an algorithm does, invariant 3 holds. Only where arrival order itself breaks a cap that the user
 * set, and the algorithm finds nothing better, is there an error.
 */
#include <errno.h>
#include <string.h>

#include "algorithm.h"
#include "quality.h"

static const char *const reason_texts[POISE_N_REASONS] = {
    [POISE_REASON_KEPT] = "stays: its rank had room",
    [POISE_REASON_TOLERANCE] = "stays: arrival order is within the tolerance",
    [POISE_REASON_ZERO] = "stays: it costs nothing",
    [POISE_REASON_SHED] = "moved: its rank was above the target",
    [POISE_REASON_FILL] = "moved: taken to fill a light rank",
    [POISE_REASON_SWAP] = "moved: exchanged to close the gap",
    [POISE_REASON_COUNT] = "moved: to keep the number of samples",
    [POISE_REASON_CAP] = "stays or moves because of a cap",
    [POISE_REASON_NOT_WORSE] = "stays: the algorithm's plan was not better than arrival order",
    [POISE_REASON_ALGORITHM] = "placed by an algorithm that does not look at origins",
};

const char *poise_reason_text(uint32_t reason)
{
    return reason < POISE_N_REASONS ? reason_texts[reason] : NULL;
}

static void use_arrival(const struct problem *pb, struct layout *layout, uint8_t reason)
{
    struct layout identity = pb->identity;

    for (uint32_t u = 0; u < pb->n_units; u++)
        identity.reason[u] = pb->cost[u] || reason != POISE_REASON_TOLERANCE ? reason : POISE_REASON_ZERO;
    *layout = identity;
}

static void write_plan(const struct problem *pb, const struct layout *layout, struct poise_plan *plan)
{
    for (size_t c = 0; c < (size_t)pb->n_ranks * layout->n_micro_batches; c++) {
        uint32_t row = 0;
        for (uint32_t i = layout->cell_first[c]; i < layout->cell_first[c + 1]; i++) {
            uint32_t u = layout->order[i];
            for (uint32_t m = 0; m < unit_n_members(pb, u); m++) {
                uint32_t s = unit_member(pb, u, m);
                plan->rank[s] = layout->rank[u];
                plan->micro_batch[s] = layout->micro_batch[u];
                plan->row[s] = row++;
                if (plan->reason)
                    plan->reason[s] = layout->reason[u];
            }
        }
    }
    plan->n_micro_batches = layout->n_micro_batches;
}

struct proposal {
    struct layout layout;
    struct score score;
    u128 bytes_moved;
};

static int judge(struct problem *pb, struct proposal *p, struct poise_err *err)
{
    layout_sort(pb, &p->layout);
    if (score_layout(pb, &p->layout, &p->score) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    return 0;
}

/* What one way of placing comes to; NULL: arrival order's ranks, only cut again. -ENOSPC: nothing that keeps the caps.
 */
static int propose(struct problem *pb, place_fn *place, bool exempt, struct proposal *p, struct poise_err *err)
{
    uint32_t n_mb = pb->n_micro_batches ? pb->n_micro_batches : pb->arrival_micro_batches;
    int rc;

    if (layout_new(pb, n_mb, &p->layout) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    if (place && (rc = place(pb, &p->layout, err)) < 0)
        return rc;
    if (!p->layout.is_cut && (rc = cut_layout(pb, &p->layout, err)) < 0)
        return rc;
    if ((rc = judge(pb, p, err)) < 0)
        return rc;
    if (p->score.over && !exempt)
        return err_set(err, -ENOSPC, "%llu ranks or micro-batches are above a cap", (unsigned long long)p->score.over);
    p->bytes_moved = 0;
    for (uint32_t u = 0; u < pb->n_units; u++)
        p->bytes_moved += p->layout.rank[u] != pb->unit_rank[u] ? pb->bytes[u] : 0;
    return 0;
}

/* About as good as `best`: at the target, or within half the tolerance of it. */
static bool is_near(const struct problem *pb, const struct proposal *p, u128 best)
{
    return p->score.objective <= pb->target || p->score.objective <= best + best * pb->tolerance_ppm / 2000000u;
}

static bool is_better(const struct problem *pb, const struct algorithm *algorithm, const struct proposal *a,
                      const struct proposal *b)
{
    u128 best = a->score.objective < b->score.objective ? a->score.objective : b->score.objective;

    if (algorithm->flags & ALGORITHM_NEAR && is_near(pb, a, best) && is_near(pb, b, best))
        return a->bytes_moved < b->bytes_moved ||
               (a->bytes_moved == b->bytes_moved && a->score.objective < b->score.objective);
    return a->score.objective < b->score.objective ||
           (a->score.objective == b->score.objective && a->bytes_moved < b->bytes_moved);
}

/* The best of an algorithm's proposals. -ENOSPC: none keeps the caps; the first one's error. */
static int propose_all(struct problem *pb, const struct algorithm *algorithm, struct proposal *p, struct poise_err *err)
{
    bool exempt = algorithm->flags & ALGORITHM_EXEMPT, found = false;
    struct poise_err why, last;

    err_set(&why, -ENOSPC, "algorithm %s makes no proposal", algorithm->name);
    for (uint32_t i = 0; i < ALGORITHM_PROPOSALS && algorithm->proposal[i].place; i++) {
        struct proposal one;
        if (algorithm->proposal[i].applies && !algorithm->proposal[i].applies(pb))
            continue;
        if (found && p->score.objective <= pb->target && !(algorithm->flags & ALGORITHM_ALL))
            break;
        int rc = propose(pb, algorithm->proposal[i].place, exempt, &one, &last);
        if (rc < 0 && rc != -ENOSPC) {
            if (err)
                *err = last;
            return rc;
        }
        if (rc < 0 && i == 0)
            why = last;
        if (rc == 0 && (!pb->arrival_fits || exempt || score_not_worse(pb, &one.score)) &&
            (!found || is_better(pb, algorithm, &one, p))) {
            *p = one;
            found = true;
        } else if (rc == 0 && !found) {
            err_set(&why, -ENOSPC, "the plan is worse than arrival order");
            pb->refused = true;
        }
    }
    if (!found && err)
        *err = why;
    return found ? 0 : -ENOSPC;
}

static void arrival(const struct problem *pb, uint8_t reason, struct proposal *p)
{
    use_arrival(pb, &p->layout, reason);
    p->score = pb->arrival;
}

/* Arrival order keeps all caps: it is what a proposal must beat. */
static int settle_beside_arrival(struct problem *pb, const struct algorithm *algorithm, struct proposal *p,
                                 struct poise_err *err)
{
    int rc = 0;

    if (pb->arrival.objective <= pb->target) {
        arrival(pb, POISE_REASON_TOLERANCE, p);
        return 0;
    }
    rc = propose_all(pb, algorithm, p, err);
    if (rc == -ENOSPC)
        arrival(pb, pb->refused ? POISE_REASON_NOT_WORSE : POISE_REASON_CAP, p);
    else if (rc < 0)
        return rc;
    else if (p->score.objective == pb->arrival.objective)
        arrival(pb, POISE_REASON_NOT_WORSE, p);
    return 0;
}

/*
 * Arrival order breaks a cap or a count that the user set. Cutting it again may be enough. Where the largest of arrival
 * order, the default of other caps, leaves no room for a plan, those give way before there is an error.
 */
static int settle_without_arrival(struct problem *pb, const struct algorithm *algorithm, struct proposal *p,
                                  struct poise_err *err)
{
    struct proposal recut;
    struct poise_err why;
    int rc_recut = pb->arrival_counts ? propose(pb, NULL, false, &recut, &why) : -ENOSPC, rc;

    if (rc_recut < 0 && rc_recut != -ENOSPC) {
        if (err)
            *err = why;
        return rc_recut;
    }
    if (rc_recut == 0 && recut.score.objective <= pb->target) {
        *p = recut;
        return 0;
    }
    rc = propose_all(pb, algorithm, p, &why);
    if (rc_recut == 0 && (rc == -ENOSPC || (rc == 0 && p->score.objective >= recut.score.objective))) {
        *p = recut;
        return 0;
    }
    if (rc == -ENOSPC) {
        problem_lift_caps(pb);
        rc = propose_all(pb, algorithm, p, &why);
    }
    if (rc == -ENOSPC)
        return err_set(err, -EINVAL,
                       "arrival order breaks a cap or the count, and no plan was found that keeps them: %.300s",
                       why.text);
    if (rc < 0 && err)
        *err = why;
    return rc;
}

static int settle(struct problem *pb, const struct algorithm *algorithm, struct proposal *p, struct poise_err *err)
{
    if (algorithm->flags & ALGORITHM_EXEMPT) {
        struct poise_err why;
        problem_no_caps(pb);
        int rc = propose_all(pb, algorithm, p, &why);
        if (rc == -ENOSPC) /* more samples on a rank than its micro-batches hold: it knows nothing of them */
            return err_set(err, -EINVAL, "%s: %.400s", algorithm->name, why.text);
        if (rc < 0 && err)
            *err = why;
        return rc;
    }
    return pb->arrival_fits ? settle_beside_arrival(pb, algorithm, p, err)
                            : settle_without_arrival(pb, algorithm, p, err);
}

static int finish(struct problem *pb, const char *name, const struct proposal *p, struct poise_plan *plan,
                  struct poise_err *err)
{
    struct poise_quality quality;

    if (quality_make(pb, &p->layout, &p->score, &quality) < 0)
        return err_set(err, -ENOMEM, "no memory to plan %u samples", pb->n_samples);
    write_plan(pb, &p->layout, plan);
    plan->quality = quality;
    plan_id_make(pb, name, plan->plan_id);
    return 0;
}

int plan_make(const struct poise_plan_request *req, struct poise_plan *plan, struct poise_err *err)
{
    const struct algorithm *algorithm = algorithm_find(req->algorithm, err);
    struct poise_plan_request plain = *req;
    struct problem pb;
    struct proposal p;
    int rc;

    if (!algorithm)
        return -EINVAL;
    if (!algorithm->proposal[0].place)
        return plan_arrival(req, plan, err);
    if (algorithm->flags & ALGORITHM_EXEMPT)
        plain.unit = NULL; /* they know samples only */
    if ((rc = problem_init(&pb, &plain, false, err)) == 0 && (rc = settle(&pb, algorithm, &p, err)) == 0)
        rc = finish(&pb, algorithm->name, &p, plan, err);
    problem_free(&pb);
    return rc;
}

int plan_arrival(const struct poise_plan_request *req, struct poise_plan *plan, struct poise_err *err)
{
    struct poise_plan_request plain = *req;
    struct problem pb;
    struct proposal p;
    int rc;

    plain.unit = NULL; /* as it came, also where a unit is split */
    if ((rc = problem_init(&pb, &plain, true, err)) == 0) {
        arrival(&pb, POISE_REASON_KEPT, &p);
        rc = finish(&pb, "identity", &p, plan, err);
    }
    problem_free(&pb);
    return rc;
}
