/* SPDX-License-Identifier: Apache-2.0 */
/* Properties over random requests: conservation, counts, caps, invariant 3, determinism. POISE_SEED repeats a run. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_case.h"

struct columns {
    uint64_t attention[512], bytes[256], packed[256], unit[256], cap[8], cap_rank[8];
    uint32_t micro_batch[256], extent[512], node[16], speed[16], set[16];
    struct poise_pad pads[2];
};

#define COIN(k) (plan_random_below(seed, (k)) == 0)

/* A pick of lengths: uniform, heavy-tailed, few values, or all alike. */
static uint64_t random_length(uint64_t *seed, uint64_t kind)
{
    switch (kind) {
    case 0:
        return plan_random_below(seed, 1000);
    case 1:
        return (uint64_t)1 << plan_random_below(seed, 14);
    case 2:
        return 4 + 100 * plan_random_below(seed, 3);
    default:
        return 4;
    }
}

static void random_columns(struct plan_case *c, struct columns *x, uint64_t *seed)
{
    for (uint32_t i = 0; i < 512; i++) {
        x->attention[i] = 1 + plan_random_below(seed, 1000000);
        x->extent[i] = (uint32_t)plan_random_below(seed, 300);
    }
    for (uint32_t s = 0; s < c->n; s++) {
        x->bytes[s] = 100 + c->length[s] * 10;
        x->packed[s] = plan_random_below(seed, x->bytes[s]);
    }
    for (uint32_t r = 0; r < 16; r++) {
        x->node[r] = r / 2;
        x->speed[r] = 500000 + (uint32_t)plan_random_below(seed, 1000000);
        x->set[r] = r % 3 * 7;
    }
    if (COIN(2))
        c->req.attention = x->attention;
    if (COIN(2))
        c->req.bytes = x->bytes;
    if (c->req.bytes && COIN(2)) {
        c->req.packed_bytes = x->packed;
        c->req.extent = x->extent;
        c->req.n_extents = 2;
        c->req.pads = x->pads;
        c->req.pad_size = sizeof *x->pads;
        c->req.n_pads = 2;
        x->pads[0] = (struct poise_pad){.axis_mask = 1, .multiple = 8, .unit_bytes = 8};
        x->pads[1] = (struct poise_pad){.axis_mask = 3, .unit_bytes = 2, .fixed = {0, 64}};
    }
    if (COIN(3))
        c->req.node = x->node;
    if (COIN(4))
        c->req.speed_ppm = x->speed;
    if (COIN(3))
        c->req.sync_set = x->set;
}

/* Pairs and triples that stand together, so that arrival order does not split them where it has one micro-batch. */
static void random_units(struct plan_case *c, struct columns *x, uint64_t *seed)
{
    uint64_t name = 1;

    for (uint32_t r = 0, s = 0; r < c->req.n_ranks; r++)
        for (uint32_t end = s + c->n_samples[r]; s < end; s++) {
            x->unit[s] = COIN(3) ? 0 : name;
            name += COIN(2);
            if (s + 1 == end)
                name++;
        }
    c->req.unit = x->unit;
}

static void random_case(struct plan_case *c, struct columns *x, uint64_t *seed)
{
    static const char *const presets[] = {"length", "length_squared", "qwen2.5-vl-7b", "internvl2.5-8b",
                                          "qwen2-audio-7b"};
    uint32_t n_ranks = 1 + (uint32_t)plan_random_below(seed, 8), n[16], total = 0;
    uint64_t kind = plan_random_below(seed, 4), other = plan_random_below(seed, 4);
    bool uneven = COIN(3);
    uint32_t per_rank = (uint32_t)plan_random_below(seed, 17);

    for (uint32_t r = 0; r < n_ranks; r++)
        total += n[r] = uneven ? (uint32_t)plan_random_below(seed, 17) : per_rank;
    plan_case_new(c, presets[plan_random_below(seed, 5)], n_ranks, total);
    memcpy(c->n_samples, n, n_ranks * sizeof *n);
    for (uint32_t s = 0; s < total * c->req.n_phases; s++)
        c->length[s] = s < total && COIN(5) ? 0 : random_length(seed, s < total ? kind : other);
    random_columns(c, x, seed);
    c->req.objective = (uint32_t)plan_random_below(seed, 3);
    c->req.count = (uint32_t)plan_random_below(seed, 3);
    c->req.cut = (uint32_t)plan_random_below(seed, 3);
    c->req.stages = (uint32_t)plan_random_below(seed, 5);
    c->req.tolerance_ppm = COIN(2) ? 0 : 1 + (uint32_t)plan_random_below(seed, 50000);
    c->req.micro_batch_size = (uint32_t)plan_random_below(seed, 6);
    if (c->req.cut == POISE_CUT_AS_NEEDED && c->req.micro_batch_size == 0)
        c->req.cap_samples_micro_batch = 3;
    else if (c->req.cut != POISE_CUT_AS_NEEDED && COIN(3))
        c->req.n_micro_batches = c->req.micro_batch_size ? 16 : 1 + (uint32_t)plan_random_below(seed, 6);
    if (COIN(4) && c->req.micro_batch_size == 0 && c->req.n_micro_batches == 0)
        random_units(c, x, seed);
    if (COIN(4) && c->req.objective != POISE_OBJECTIVE_PIPELINE)
        c->phases[0].flags |= POISE_PHASE_BARRIER;
    if (COIN(4))
        c->phases[c->req.n_phases - 1].flags |= POISE_PHASE_PADDED;
}

/* Does arrival order keep the count? Then invariant 3 holds in full. */
static bool arrival_counts(const struct plan_case *c)
{
    uint32_t least = UINT32_MAX, most = 0;

    for (uint32_t r = 0; r < c->req.n_ranks; r++) {
        least = c->n_samples[r] < least ? c->n_samples[r] : least;
        most = c->n_samples[r] > most ? c->n_samples[r] : most;
    }
    return c->req.count != POISE_COUNT_BOUNDED || most - least <= 1;
}

static void check_units(const struct plan_case *c)
{
    for (uint32_t s = 1; c->req.unit && s < c->n; s++)
        if (c->req.unit[s] && c->req.unit[s] == c->req.unit[s - 1]) {
            cr_assert_eq(c->plan.rank[s], c->plan.rank[s - 1]);
            cr_assert_eq(c->plan.micro_batch[s], c->plan.micro_batch[s - 1]);
            cr_assert_eq(c->plan.row[s], c->plan.row[s - 1] + 1);
        }
}

static void check_again(struct plan_case *c)
{
    struct poise_plan first = c->plan;
    uint32_t *second = calloc(c->n * 3 + 1, 4);

    c->plan.rank = second;
    c->plan.micro_batch = second + c->n;
    c->plan.row = second + 2 * c->n;
    cr_assert_eq(plan_make(&c->req, &c->plan, &c->err), 0);
    cr_assert(!memcmp(first.rank, c->plan.rank, c->n * 4) &&
              !memcmp(first.micro_batch, c->plan.micro_batch, c->n * 4) && !memcmp(first.row, c->plan.row, c->n * 4) &&
              !memcmp(first.plan_id, c->plan.plan_id, 16));
    cr_assert(!memcmp(&first.quality, &c->plan.quality, sizeof first.quality));
    free(second);
    c->plan = first;
}

static void check_case(struct plan_case *c)
{
    int rc = plan_make(&c->req, &c->plan, &c->err);

    if (rc < 0) {
        /* Only a count that units cannot meet, or a cap that the new count cannot keep, may have no plan. */
        cr_assert_eq(rc, -EINVAL, "%s", c->err.text);
        cr_assert(!arrival_counts(c) || c->req.n_micro_batches || c->req.unit, "%s", c->err.text);
        cr_assert_neq(c->err.text[0], 0);
        return;
    }
    plan_case_check_conserved(c);
    if (arrival_counts(c) && c->req.cut != POISE_CUT_AS_NEEDED)
        plan_case_check_invariants(c);
    check_units(c);
    check_again(c);
}

static uint64_t current; /* the seed of the case at hand, printed at the end: after a failure it is the failed one's */

static void print_seed(void)
{
    fprintf(stderr, "last case: POISE_SEED=%llu\n", (unsigned long long)current);
}

TestSuite(plan_random, .fini = print_seed);

static void run(const char *algorithm, uint32_t n_cases)
{
    uint64_t base = plan_seed();

    for (uint32_t i = 0; i < n_cases; i++) {
        uint64_t state = base + i;
        static struct columns x;
        struct plan_case c;
        current = base + i;
        random_case(&c, &x, &state);
        c.req.algorithm = algorithm;
        check_case(&c);
        plan_case_free(&c);
    }
}

Test(plan_random, greedy)
{
    run("greedy", 800);
}
Test(plan_random, least_move)
{
    run("least_move", 800);
}
Test(plan_random, automatic)
{
    run("auto", 400);
}

Test(plan_random, arrival_order_is_never_an_error)
{
    uint64_t base = plan_seed();

    for (uint32_t i = 0; i < 400; i++) {
        uint64_t state = base + i;
        static struct columns x;
        struct plan_case c;
        random_case(&c, &x, &state);
        c.req.cap_samples_rank = 1;
        c.req.cap_bytes_rank = 1;
        cr_assert_eq(plan_arrival(&c.req, &c.plan, &c.err), 0, "POISE_SEED=%llu %s", (unsigned long long)(base + i),
                     c.err.text);
        plan_case_check_conserved(&c);
        for (uint32_t r = 0, s = 0; r < c.req.n_ranks; r++)
            for (uint32_t k = 0; k < c.n_samples[r]; k++, s++) {
                cr_assert_eq(c.plan.rank[s], r);
                cr_assert(k == 0 || c.plan.micro_batch[s] > c.plan.micro_batch[s - 1] ||
                          c.plan.row[s] == c.plan.row[s - 1] + 1);
            }
        plan_case_free(&c);
    }
}

/* Real-sized steps: heavy tails, bytes as the cost goes. */
static void sized_case(struct plan_case *c, uint64_t *bytes, uint64_t *seed)
{
    uint32_t per_rank = 4 + (uint32_t)plan_random_below(seed, 29);

    plan_case_new(c, "qwen2.5-vl-vit", 16, 16 * per_rank);
    for (uint32_t r = 0; r < 16; r++)
        c->n_samples[r] = per_rank;
    for (uint32_t s = 0; s < c->n; s++) {
        uint64_t a = 1 + plan_random_below(seed, 70), b = 1 + plan_random_below(seed, 70);
        c->length[s] = 4 * a * b;
        bytes[s] = 2352 * c->length[s];
    }
    c->req.bytes = bytes;
    c->req.count = plan_random_below(seed, 2) ? POISE_COUNT_FREE : POISE_COUNT_EQUAL;
}

Test(plan_random, least_move_moves_no_more_than_greedy)
{
    uint64_t base = plan_seed(), moved = 0, floor = 0;
    static uint64_t bytes[16 * 32];

    for (uint32_t i = 0; i < 100; i++) {
        uint64_t state = current = base + i;
        struct plan_case c;
        struct poise_quality greedy;
        sized_case(&c, bytes, &state);
        c.req.algorithm = "greedy";
        plan_case_make(&c);
        greedy = c.plan.quality;
        c.req.algorithm = "least_move";
        plan_case_make(&c);
        const struct poise_quality *q = &c.plan.quality;
        uint64_t target = q->objective_bound + q->objective_bound / 100;
        if (greedy.objective_after <= target)
            cr_assert_leq(q->objective_after, target, "greedy reaches the target, least_move does not");
        if (greedy.objective_after <= target && q->objective_after <= target)
            cr_assert_leq(q->bytes_moved, greedy.bytes_moved);
        if (q->objective_after <= target)
            cr_assert_geq(q->bytes_moved, q->bytes_floor, "fewer bytes than the floor");
        moved += q->bytes_moved;
        floor += q->bytes_floor;
        plan_case_free(&c);
    }
    cr_assert_lt(moved, floor * 3 / 2, "%.2f times the floor", (double)moved / (double)floor);
}

Test(plan_random, the_order_in_which_units_are_named_does_not_matter)
{
    uint64_t base = plan_seed();

    for (uint32_t i = 0; i < 200; i++) {
        uint64_t state = current = base + i;
        static struct columns x;
        struct plan_case c;
        random_case(&c, &x, &state);
        random_units(&c, &x, &state);
        c.req.micro_batch_size = c.req.n_micro_batches = 0;
        c.req.cut = POISE_CUT_FIXED;
        if (plan_make(&c.req, &c.plan, &c.err) == 0) {
            uint32_t *rank = calloc(c.n + 1, 4);
            memcpy(rank, c.plan.rank, c.n * 4);
            for (uint32_t s = 0; s < c.n; s++)
                x.unit[s] = x.unit[s] ? 1000000 - x.unit[s] * 7 : 0;
            cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), 0);
            cr_assert(!memcmp(rank, c.plan.rank, c.n * 4));
            free(rank);
        }
        plan_case_free(&c);
    }
}

/* Numbers at their limits: a plan or an error that says why, and nothing that a sanitizer sees. */
Test(plan_random, extremes)
{
    uint64_t base = plan_seed();

    for (uint32_t i = 0; i < 600; i++) {
        uint64_t state = current = base + i, *seed = &state;
        static struct columns x;
        struct plan_case c;
        random_case(&c, &x, seed);
        uint32_t bits = 1 + (uint32_t)plan_random_below(seed, 64),
                 byte_bits = 1 + (uint32_t)plan_random_below(seed, 64);
        for (uint32_t s = 0; s < c.n * c.req.n_phases; s++)
            c.length[s] = plan_random(seed) >> (64 - bits);
        for (uint32_t s = 0; s < c.n; s++) {
            x.bytes[s] = plan_random(seed) >> (64 - byte_bits);
            x.packed[s] = x.bytes[s] / 3;
            x.extent[s] = COIN(4) ? UINT32_MAX : x.extent[s];
        }
        for (uint32_t r = 0; r < 16; r++)
            x.speed[r] = 1 + (uint32_t)(plan_random(seed) >> (32 + plan_random_below(seed, 31)) >> 1);
        x.pads[0].unit_bytes = plan_random(seed);
        x.pads[1].fixed[1] = plan_random(seed);
        c.req.tolerance_ppm = COIN(3) ? UINT32_MAX : (uint32_t)plan_random(seed);
        c.req.stages = COIN(2) ? 4096 : c.req.stages;
        c.req.algorithm = poise_algorithm_name((uint32_t)plan_random_below(seed, 4));
        for (uint32_t p = 0; p < c.req.n_phases; p++)
            x.cap[p] = COIN(3) ? POISE_NO_CAP : plan_random(seed) >> plan_random_below(seed, 64);
        if (COIN(2))
            c.req.cap_length_micro_batch = x.cap;
        if (COIN(2))
            c.req.cap_length_rank = x.cap;
        if (COIN(3))
            c.req.cap_bytes_rank = plan_random(seed) >> byte_bits / 2;
        int rc = plan_make(&c.req, &c.plan, &c.err);
        if (rc == 0)
            plan_case_check_conserved(&c);
        else
            cr_assert(c.err.text[0] && (rc == -EINVAL || rc == -ERANGE), "%d %s", rc, c.err.text);
        plan_case_free(&c);
    }
}
