/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small cases against brute force: every way to put samples into (rank, micro-batch) cells is tried. No bound may be
 * above the best, no plan below it, and the objective that a plan claims is counted again from its arrays. The pipeline
 * objective is also held against a simulated 1F1B schedule.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_case.h"

#define MAX_CELLS 8
#define MAX_SAMPLES 6

static uint64_t current;

static void print_seed(void)
{
    fprintf(stderr, "last case: POISE_SEED=%llu\n", (unsigned long long)current);
}

TestSuite(plan_oracle, .fini = print_seed);

struct oracle {
    const struct plan_case *c;
    uint32_t n_mb;
    uint32_t cell[MAX_SAMPLES]; /* rank * n_mb + micro-batch */
    uint64_t best;
};

static uint64_t max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* One phase's cost of a cell. */
static uint64_t phase_cost(const struct oracle *o, uint32_t p, uint32_t cell)
{
    const struct poise_phase *ph = &o->c->phases[p];
    uint64_t sum = 0, length = 0, attention = 0, count = 0;

    for (uint32_t s = 0; s < o->c->n; s++) {
        uint64_t l = o->c->length[(size_t)p * o->c->n + s];
        if (o->cell[s] != cell || l == 0)
            continue;
        sum += ph->linear * l + ph->quadratic * l * l + ph->constant;
        length = max(length, l);
        attention = max(attention, l * l);
        count++;
    }
    if (ph->flags & POISE_PHASE_PADDED)
        sum = count * (ph->linear * length + ph->quadratic * attention + ph->constant);
    return sum * (ph->passes ? ph->passes : 1);
}

static uint64_t at_speed(const struct oracle *o, uint32_t rank, uint64_t cost)
{
    return o->c->req.speed_ppm ? (uint64_t)((unsigned __int128)cost * 1000000 / o->c->req.speed_ppm[rank]) : cost;
}

/* Segment costs of a cell: phases between barriers. Returns how many segments there are. */
static uint32_t segments(const struct oracle *o, uint32_t cell, uint64_t cost[POISE_MAX_PHASES])
{
    uint32_t g = 0;

    memset(cost, 0, POISE_MAX_PHASES * sizeof *cost);
    for (uint32_t p = 0; p < o->c->req.n_phases; p++) {
        cost[g] += phase_cost(o, p, cell);
        if (o->c->phases[p].flags & POISE_PHASE_BARRIER && p + 1 < o->c->req.n_phases)
            g++;
    }
    return g + 1;
}

static uint64_t objective(const struct oracle *o)
{
    const struct poise_plan_request *req = &o->c->req;
    uint64_t cost[POISE_MAX_PHASES], step[POISE_MAX_PHASES] = {0}, pipeline = 0, result = 0;
    uint64_t meet[MAX_CELLS][MAX_CELLS][POISE_MAX_PHASES] = {{{0}}};
    uint32_t n_seg = 1;

    for (uint32_t r = 0; r < req->n_ranks; r++) {
        uint64_t sum[POISE_MAX_PHASES] = {0}, largest = 0, all = 0;
        for (uint32_t m = 0; m < o->n_mb; m++) {
            uint64_t total = 0;
            n_seg = segments(o, r * o->n_mb + m, cost);
            for (uint32_t g = 0; g < n_seg; g++) {
                uint32_t set = req->sync_set ? req->sync_set[r] : 0;
                sum[g] += cost[g];
                total += cost[g];
                meet[set][m][g] = max(meet[set][m][g], at_speed(o, r, cost[g]));
            }
            largest = max(largest, total);
            all += total;
        }
        for (uint32_t g = 0; g < n_seg; g++)
            step[g] = max(step[g], at_speed(o, r, sum[g]));
        pipeline = max(pipeline, at_speed(o, r, all + (req->stages ? req->stages - 1 : 0) * largest));
    }
    if (req->objective == POISE_OBJECTIVE_PIPELINE)
        return pipeline;
    for (uint32_t set = 0; set < MAX_CELLS; set++) {
        uint64_t sum = 0;
        for (uint32_t m = 0; m < o->n_mb; m++)
            for (uint32_t g = 0; g < n_seg; g++)
                sum += meet[set][m][g];
        result = max(result, sum);
    }
    if (req->objective == POISE_OBJECTIVE_MICROBATCH)
        return result;
    result = 0;
    for (uint32_t g = 0; g < n_seg; g++)
        result += step[g];
    return result;
}

static bool counts_kept(const struct oracle *o)
{
    uint32_t count[MAX_CELLS] = {0}, in_cell[MAX_CELLS] = {0}, least = UINT32_MAX, most = 0;

    for (uint32_t s = 0; s < o->c->n; s++) {
        count[o->cell[s] / o->n_mb]++;
        if (++in_cell[o->cell[s]] > o->c->req.micro_batch_size && o->c->req.micro_batch_size)
            return false;
    }
    for (uint32_t r = 0; r < o->c->req.n_ranks; r++) {
        if (o->c->req.count == POISE_COUNT_EQUAL && count[r] != o->c->n_samples[r])
            return false;
        least = count[r] < least ? count[r] : least;
        most = count[r] > most ? count[r] : most;
    }
    return o->c->req.count != POISE_COUNT_BOUNDED || most - least <= 1;
}

static void try_all(struct oracle *o, uint32_t s)
{
    if (s == o->c->n) {
        if (counts_kept(o)) {
            uint64_t x = objective(o);
            o->best = x < o->best ? x : o->best;
        }
        return;
    }
    for (o->cell[s] = 0; o->cell[s] < o->c->req.n_ranks * o->n_mb; o->cell[s]++)
        try_all(o, s + 1);
}

static void small_case(struct plan_case *c, uint64_t *seed)
{
    static const char *const presets[] = {"length", "length_squared", "qwen2.5-vl-7b"};
    static uint32_t speed[4], set[4];
    static uint64_t no_cap[POISE_MAX_PHASES];
    uint32_t n_ranks = 2 + (uint32_t)plan_random_below(seed, 2), n[4], total = 0;

    do {
        total = 0;
        for (uint32_t r = 0; r < n_ranks; r++)
            total += n[r] = (uint32_t)plan_random_below(seed, 4);
    } while (total > MAX_SAMPLES || total == 0);
    plan_case_new(c, presets[plan_random_below(seed, 3)], n_ranks, total);
    memcpy(c->n_samples, n, n_ranks * sizeof *n);
    for (uint32_t s = 0; s < total * c->req.n_phases; s++)
        c->length[s] = s < total && plan_random_below(seed, 6) == 0 ? 0 : 1 + plan_random_below(seed, 60);
    for (uint32_t r = 0; r < n_ranks; r++) {
        speed[r] = 500000 + (uint32_t)plan_random_below(seed, 1000000);
        set[r] = (uint32_t)plan_random_below(seed, 2);
    }
    for (uint32_t p = 0; p < POISE_MAX_PHASES; p++)
        no_cap[p] = POISE_NO_CAP;
    c->req.cap_length_rank = c->req.cap_length_micro_batch = no_cap;
    c->req.cap_bytes_rank = POISE_NO_CAP;
    c->req.objective = (uint32_t)plan_random_below(seed, 3);
    c->req.count = (uint32_t)plan_random_below(seed, 3);
    c->req.stages = 1 + (uint32_t)plan_random_below(seed, 4);
    c->req.tolerance_ppm = 1;
    c->req.cut = plan_random_below(seed, 2) ? POISE_CUT_BY_COST : POISE_CUT_FIXED;
    c->req.micro_batch_size = c->req.cut == POISE_CUT_FIXED ? 2 : 0;
    c->req.n_micro_batches = 2;
    if (plan_random_below(seed, 4) == 0)
        c->req.speed_ppm = speed;
    if (plan_random_below(seed, 3) == 0)
        c->req.sync_set = set;
    if (plan_random_below(seed, 4) == 0 && c->req.objective != POISE_OBJECTIVE_PIPELINE)
        c->phases[0].flags |= POISE_PHASE_BARRIER;
    if (plan_random_below(seed, 4) == 0)
        c->phases[c->req.n_phases - 1].flags |= POISE_PHASE_PADDED;
}

/* Where the plan stands between the best (0) and arrival order (1). */
static double check(struct plan_case *c)
{
    struct oracle o = {.c = c, .n_mb = 2, .best = UINT64_MAX};
    const struct poise_quality *q = &c->plan.quality;
    int rc = plan_make(&c->req, &c->plan, &c->err);

    if (rc < 0) /* three samples of one rank and two micro-batches of two may be too many for a count */
        return 0;
    cr_assert_eq(c->plan.n_micro_batches, 2);
    plan_case_check_conserved(c);
    for (uint32_t s = 0; s < c->n; s++)
        o.cell[s] = c->plan.rank[s] * 2 + c->plan.micro_batch[s];
    cr_assert_eq(objective(&o), q->objective_after, "the plan claims %llu, it is %llu",
                 (unsigned long long)q->objective_after, (unsigned long long)objective(&o));
    bool kept = counts_kept(&o); /* arrival order need not keep the count, and may then be below the best that does */
    try_all(&o, 0);
    cr_assert_leq(q->objective_bound, o.best, "a bound of %llu, the best is %llu",
                  (unsigned long long)q->objective_bound, (unsigned long long)o.best);
    if (kept)
        cr_assert_geq(q->objective_after, o.best);
    if (q->objective_before <= o.best) /* arrival order may break the count, and then be lower */
        return 0;
    return (double)(q->objective_after - o.best) / (double)(q->objective_before - o.best);
}

static double run(const char *algorithm, uint32_t n_cases)
{
    uint64_t base = plan_seed();
    double sum = 0;

    for (uint32_t i = 0; i < n_cases; i++) {
        struct plan_case c;
        uint64_t state = current = base + i;
        small_case(&c, &state);
        c.req.algorithm = algorithm;
        sum += check(&c);
        plan_case_free(&c);
    }
    return sum / n_cases;
}

Test(plan_oracle, identity_is_judged_right)
{
    run("identity", 60);
}

/* Lacking phases are guarded too, so the best of all may be forbidden; on the mean a plan is near it. */
Test(plan_oracle, least_move_is_near_the_best)
{
    double left = run("least_move", 120);

    cr_assert_lt(left, 0.5, "%.3f of what could be gained is left", left);
    fprintf(stderr, "least_move leaves %.3f of what could be gained\n", left);
}

Test(plan_oracle, auto_is_near_the_best)
{
    double left = run("auto", 120);

    cr_assert_lt(left, 0.5, "%.3f of what could be gained is left", left);
    fprintf(stderr, "auto leaves %.3f of what could be gained\n", left);
}

/* --------------------------------------------------------------------------------------------------------------- 1F1B
 */

#define STAGES 8
#define MICRO 16

/* The time of a 1F1B schedule: each stage runs warm-up forwards, then one backward and one forward in turn. A
 * micro-batch's cost on a stage is a third forward and two thirds backward. */
static uint64_t one_f_one_b(uint32_t stages, uint32_t n, const uint64_t cost[MICRO])
{
    uint64_t forward[STAGES + 1][MICRO] = {{0}}, backward[STAGES + 1][MICRO] = {{0}}, free_at[STAGES] = {0};
    uint32_t f[STAGES] = {0}, b[STAGES] = {0};
    bool moved = true;

    while (moved) {
        moved = false;
        for (uint32_t s = 0; s < stages; s++) {
            uint32_t warm = stages - 1 - s < n ? stages - 1 - s : n;
            bool next_forward = f[s] < n && (f[s] < warm || f[s] - b[s] <= warm);
            if (next_forward && f[s] - b[s] <= warm && (s == 0 || f[s - 1] > f[s]) && f[s] - b[s] < warm + 1) {
                uint64_t start = max(free_at[s], s ? forward[s - 1][f[s]] : 0);
                forward[s][f[s]] = free_at[s] = start + cost[f[s]];
                f[s]++;
                moved = true;
            } else if (b[s] < f[s] && (s == stages - 1 || b[s + 1] > b[s])) {
                uint64_t start = max(free_at[s], s == stages - 1 ? forward[s][b[s]] : backward[s + 1][b[s]]);
                backward[s][b[s]] = free_at[s] = start + 2 * cost[b[s]];
                b[s]++;
                moved = true;
            }
        }
    }
    cr_assert_eq(b[0], n);
    return free_at[0];
}

/* Exact where micro-batches are alike, which is what a plan strives for; else stages wait for each other a little more
 * or less than the formula says. */
Test(plan_oracle, pipeline_objective_is_what_1f1b_takes)
{
    uint64_t seed = current = plan_seed(), times = 0, claims = 0;

    for (uint32_t i = 0; i < 500; i++) {
        uint32_t stages = 1 + (uint32_t)plan_random_below(&seed, STAGES);
        uint32_t n = stages + (uint32_t)plan_random_below(&seed, MICRO - STAGES + 1);
        uint64_t cost[MICRO], sum = 0, largest = 0, least = UINT64_MAX;
        bool alike = plan_random_below(&seed, 3) == 0;
        for (uint32_t m = 0; m < n; m++) {
            cost[m] = alike ? 70 : 10 + plan_random_below(&seed, 100);
            sum += 3 * cost[m];
            largest = max(largest, 3 * cost[m]);
            least = 3 * cost[m] < least ? 3 * cost[m] : least;
        }
        uint64_t time = one_f_one_b(stages, n, cost), claimed = sum + (stages - 1) * largest;
        if (alike || stages == 1)
            cr_assert_eq(time, claimed);
        cr_assert_leq(time, (n + stages - 1) * largest); /* what micro-batches all as large as the largest take */
        cr_assert_geq(time, sum + (stages - 1) * least);
        times += time;
        claims += claimed;
    }
    cr_assert(times > claims * 9 / 10 && times < claims * 11 / 10, "on the mean within a tenth");
}

/* The slowest pipeline's time under a plan, micro-batches in their order. */
static uint64_t slowest(const struct plan_case *c, uint32_t stages)
{
    uint64_t longest = 0;

    for (uint32_t r = 0; r < c->req.n_ranks; r++) {
        uint64_t cost[MICRO] = {0};
        for (uint32_t s = 0; s < c->n; s++)
            if (c->plan.rank[s] == r)
                cost[c->plan.micro_batch[s]] += c->length[s];
        longest = max(longest, one_f_one_b(stages, c->plan.n_micro_batches, cost));
    }
    return longest;
}

Test(plan_oracle, a_plan_for_pipelines_shortens_1f1b)
{
    uint64_t seed = current = plan_seed(), before = 0, after = 0;

    for (uint32_t i = 0; i < 40; i++) {
        struct plan_case c;
        plan_case_new(&c, "length", 4, 64);
        for (uint32_t r = 0; r < 4; r++)
            c.n_samples[r] = 16;
        for (uint32_t s = 0; s < c.n; s++)
            c.length[s] = 10 + plan_random_below(&seed, plan_random_below(&seed, 4) ? 50 : 400);
        c.req.objective = POISE_OBJECTIVE_PIPELINE;
        c.req.stages = 4;
        c.req.micro_batch_size = 2;
        cr_assert_eq(plan_arrival(&c.req, &c.plan, &c.err), 0);
        before += slowest(&c, 4);
        plan_case_make(&c);
        cr_assert_leq(c.plan.quality.objective_after, c.plan.quality.objective_before);
        after += slowest(&c, 4);
        plan_case_free(&c);
    }
    cr_assert_lt(after, before * 9 / 10, "%llu before, %llu after", (unsigned long long)before,
                 (unsigned long long)after);
}
