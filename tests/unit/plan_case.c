/* SPDX-License-Identifier: Apache-2.0 */
/* The checks here count everything again from the request, in the plainest way: they share no code with the planner. */
#include "plan_case.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *must(void *p)
{
    cr_assert_not_null(p);
    return p;
}

void plan_case_new(struct plan_case *c, const char *cost, uint32_t n_ranks, uint32_t n)
{
    uint32_t n_phases;

    memset(c, 0, sizeof *c);
    cr_assert_eq(poise_preset(cost, c->phases, sizeof *c->phases, &n_phases, &c->err), 0, "%s", c->err.text);
    c->n = n;
    c->n_samples = must(calloc(n_ranks + 1, sizeof *c->n_samples));
    c->length = must(calloc((size_t)n * n_phases + 1, sizeof *c->length));
    c->req = (struct poise_plan_request){.size = sizeof c->req,
                                         .n_ranks = n_ranks,
                                         .n_phases = n_phases,
                                         .n_samples = c->n_samples,
                                         .length = c->length,
                                         .phases = c->phases,
                                         .phase_size = sizeof *c->phases};
    c->plan = (struct poise_plan){.size = sizeof c->plan,
                                  .rank = must(calloc(n + 1, 4)),
                                  .micro_batch = must(calloc(n + 1, 4)),
                                  .row = must(calloc(n + 1, 4)),
                                  .reason = must(calloc(n + 1, 1))};
}

void plan_case_parse(struct plan_case *c, const char *cost, const char *lengths)
{
    uint32_t n_ranks = 1, n = 0, rank = 0;
    char *end;

    for (const char *p = lengths; *p; p++)
        n_ranks += *p == ';';
    plan_case_new(c, cost, n_ranks, (uint32_t)strlen(lengths));
    for (const char *p = lengths; *p; p = end) {
        uint64_t x = strtoull(p, &end, 10);
        if (end != p) {
            c->length[n++] = x;
            c->n_samples[rank]++;
        } else {
            rank += *p == ';';
            end = (char *)p + 1;
        }
    }
    c->n = n;
}

void plan_case_free(struct plan_case *c)
{
    free(c->n_samples);
    free(c->length);
    free(c->plan.rank);
    free(c->plan.micro_batch);
    free(c->plan.row);
    free(c->plan.reason);
    memset(c, 0, sizeof *c);
}

uint32_t plan_case_count(const struct plan_case *c, uint32_t rank)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < c->n; s++)
        n += c->plan.rank[s] == rank;
    return n;
}

uint64_t plan_case_sum(const struct plan_case *c, uint32_t phase, uint32_t rank)
{
    uint64_t sum = 0;

    for (uint32_t s = 0; s < c->n; s++)
        if (c->plan.rank[s] == rank)
            sum += c->length[(size_t)phase * c->n + s];
    return sum;
}

uint64_t plan_case_max_sum(const struct plan_case *c)
{
    uint64_t max = 0;

    for (uint32_t r = 0; r < c->req.n_ranks; r++) {
        uint64_t sum = plan_case_sum(c, 0, r);
        max = sum > max ? sum : max;
    }
    return max;
}

void plan_case_check_conserved(const struct plan_case *c)
{
    size_t n_cells = (size_t)c->req.n_ranks * c->plan.n_micro_batches;
    uint32_t *rows = must(calloc(n_cells + 1, sizeof *rows)), *high = must(calloc(n_cells + 1, sizeof *high));
    uint64_t *seen = must(calloc(c->n + 1, sizeof *seen));

    cr_assert_geq(c->plan.n_micro_batches, 1);
    for (uint32_t s = 0; s < c->n; s++) {
        cr_assert_lt(c->plan.rank[s], c->req.n_ranks, "sample %u goes to rank %u", s, c->plan.rank[s]);
        cr_assert_lt(c->plan.micro_batch[s], c->plan.n_micro_batches);
        size_t cell = (size_t)c->plan.rank[s] * c->plan.n_micro_batches + c->plan.micro_batch[s];
        rows[cell]++;
        high[cell] = c->plan.row[s] + 1 > high[cell] ? c->plan.row[s] + 1 : high[cell];
        cr_assert_lt(c->plan.reason[s], POISE_N_REASONS);
    }
    for (size_t i = 0; i < n_cells; i++)
        cr_assert_eq(rows[i], high[i], "rows of cell %zu are not 0 ... n - 1", i);
    uint32_t *first = must(calloc(n_cells + 2, sizeof *first));
    for (size_t i = 0; i < n_cells; i++)
        first[i + 1] = first[i] + rows[i];
    for (uint32_t s = 0; s < c->n; s++) {
        size_t cell = (size_t)c->plan.rank[s] * c->plan.n_micro_batches + c->plan.micro_batch[s];
        cr_assert_eq(seen[first[cell] + c->plan.row[s]]++, 0, "two samples in one row");
    }
    free(rows);
    free(high);
    free(seen);
    free(first);
}

static void check_counts(const struct plan_case *c)
{
    uint32_t least = UINT32_MAX, most = 0;

    for (uint32_t r = 0; r < c->req.n_ranks; r++) {
        uint32_t n = plan_case_count(c, r);
        if (c->req.count == POISE_COUNT_EQUAL)
            cr_assert_eq(n, c->n_samples[r], "rank %u has %u samples, had %u", r, n, c->n_samples[r]);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    if (c->req.count == POISE_COUNT_BOUNDED)
        cr_assert_leq(most - least, 1);
}

void plan_case_check_invariants(const struct plan_case *c)
{
    const struct poise_quality *q = &c->plan.quality;

    check_counts(c);
    cr_assert_leq(q->objective_after, q->objective_before, "worse than arrival order");
    cr_assert_leq(q->lacking_after, q->lacking_before, "emptier than arrival order");
    cr_assert_geq(q->objective_after, q->objective_bound, "below what no plan can be below");
    cr_assert_geq(q->objective_before, q->objective_bound);
    for (uint32_t p = 0; p < c->req.n_phases; p++) {
        if (!c->req.cap_length_micro_batch || !c->req.cap_length_micro_batch[p])
            cr_assert_leq(q->length_micro_batch_after[p], q->length_micro_batch_before[p], "a bigger micro-batch");
        if (!c->req.cap_length_rank || !c->req.cap_length_rank[p])
            cr_assert_leq(q->length_rank_after[p], q->length_rank_before[p], "a longer rank");
    }
    if (!c->req.cap_bytes_rank)
        cr_assert_leq(q->bytes_rank_after, q->bytes_rank_before, "more bytes on a rank");
}

void plan_case_make(struct plan_case *c)
{
    int rc = plan_make(&c->req, &c->plan, &c->err);

    cr_assert_eq(rc, 0, "%s", c->err.text);
    plan_case_check_conserved(c);
    plan_case_check_invariants(c);
}

uint64_t plan_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t plan_random_below(uint64_t *state, uint64_t n)
{
    return plan_random(state) % n;
}

uint64_t plan_seed(void)
{
    const char *text = getenv("POISE_SEED");
    struct timespec now;

    if (text)
        return strtoull(text, NULL, 0);
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
