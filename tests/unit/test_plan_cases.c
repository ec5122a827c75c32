/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs that broke other systems of this kind, each named for its symptom. Lengths by rank, `;` between ranks. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan_case.h"

/* Algorithms that keep the invariants. */
static const char *const algorithms[] = {"least_move", "greedy", "identity", NULL};
#define EACH_ALGORITHM(name)                                                                                           \
    for (const char *const *name = algorithms; name < algorithms + sizeof algorithms / sizeof *algorithms; name++)

Test(plan_cases, two_large_samples_put_on_one_rank)
{
    EACH_ALGORITHM(name)
    {
        struct plan_case c;
        plan_case_parse(&c, "length_squared", "100,4 ; 4,100");
        c.req.algorithm = *name;
        c.req.micro_batch_size = 1;
        plan_case_make(&c);
        cr_assert_eq(c.plan.quality.objective_after, 10016);
        cr_assert_eq(c.plan.quality.bytes_moved, 0);
        plan_case_free(&c);
    }
}

Test(plan_cases, an_empty_rank_crashes)
{
    EACH_ALGORITHM(name)
    {
        struct plan_case c;
        plan_case_parse(&c, "length", "5 ; 1 ; 2 ; ");
        c.req.algorithm = *name;
        plan_case_make(&c);
        cr_assert_eq(c.plan.quality.samples_moved, 0);
        plan_case_free(&c);
    }
}

Test(plan_cases, a_step_without_samples_is_an_error)
{
    EACH_ALGORITHM(name)
    {
        struct plan_case c;
        plan_case_parse(&c, "length", " ; ");
        c.req.algorithm = *name;
        c.req.n_micro_batches = 3;
        plan_case_make(&c);
        cr_assert_eq(c.plan.n_micro_batches, 3);
        plan_case_free(&c);
    }
}

Test(plan_cases, a_rank_without_samples_never_gets_one)
{
    struct plan_case c;

    plan_case_parse(&c, "length", "16,4 ; ");
    c.req.count = POISE_COUNT_FREE;
    plan_case_make(&c);
    cr_assert_eq(plan_case_count(&c, 1), 1);
    plan_case_free(&c);
    plan_case_parse(&c, "length", "16,4 ; ");
    c.req.count = POISE_COUNT_FREE;
    c.req.micro_batch_size = 1;
    plan_case_make(&c);
    cr_assert_eq(plan_case_count(&c, 1), 1);
    cr_assert_eq(c.plan.n_micro_batches, 2);
    plan_case_free(&c);
}

Test(plan_cases, five_samples_on_four_ranks_are_lost_or_doubled)
{
    static const char *const lengths[] = {"3,1,4,1,5 ; ; ; ", "1 ; 1 ; 1 ; 1,1", "9,9 ; 9,9 ; 9 ; ",
                                          " ; ; ; 7,7,7,7,7"};

    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct plan_case c;
        uint32_t with_two = 0;
        plan_case_parse(&c, "length", lengths[i]);
        c.req.count = POISE_COUNT_BOUNDED;
        cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), 0, "%s", c.err.text);
        plan_case_check_conserved(&c);
        for (uint32_t r = 0; r < 4; r++) {
            cr_assert(plan_case_count(&c, r) == 1 || plan_case_count(&c, r) == 2);
            with_two += plan_case_count(&c, r) == 2;
        }
        cr_assert_eq(with_two, 1);
        plan_case_free(&c);
    }
}

Test(plan_cases, equal_samples_are_shuffled_for_nothing)
{
    EACH_ALGORITHM(name)
    {
        struct plan_case c;
        plan_case_parse(&c, "length_squared", "4,4 ; 4,4 ; 4,4 ; 4,4");
        c.req.algorithm = *name;
        plan_case_make(&c);
        cr_assert_eq(c.plan.quality.samples_moved, 0);
        plan_case_free(&c);
    }
}

Test(plan_cases, more_is_added_to_the_giants_rank)
{
    for (uint32_t count = POISE_COUNT_EQUAL; count <= POISE_COUNT_FREE; count++) {
        struct plan_case c;
        plan_case_parse(&c, "length_squared", "50000,1,1,1 ; 2,7,3,4");
        c.req.count = count;
        plan_case_make(&c);
        uint32_t giant = c.plan.rank[0];
        for (uint32_t s = 4; s < 8; s++)
            cr_assert(c.plan.rank[s] != giant || giant == 1, "a sample of rank 1 joins the giant");
        cr_assert_geq(c.plan.quality.objective_after, 2500000000u);
        cr_assert_leq(c.plan.quality.objective_after, 2500000003u);
        plan_case_free(&c);
    }
}

Test(plan_cases, squares_wrap_at_32_bits)
{
    struct plan_case c;

    plan_case_parse(&c, "length_squared", "2147483648,1 ; 2,3 ");
    plan_case_make(&c);
    cr_assert_geq(c.plan.quality.objective_after, 4611686018427387904u);
    plan_case_free(&c);
    plan_case_parse(&c, "length", "4294967296,4294967297 ; 1,2");
    plan_case_make(&c);
    cr_assert_eq(c.plan.quality.rank_mean, (4294967296u + 4294967297u + 3) / 2);
    plan_case_free(&c);
}

Test(plan_cases, a_cost_that_does_not_fit_wraps_in_silence)
{
    struct plan_case c;

    plan_case_parse(&c, "length_squared", "1,2 ; 3,4294967296");
    cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), -ERANGE);
    cr_assert_eq(c.err.rank, 1);
    cr_assert_eq(c.err.sample, 1);
    cr_assert(strstr(c.err.text, "4294967296"), "%s", c.err.text);
    plan_case_free(&c);

    /* Costs near 2^63 each: sums need more than 64 bits, and the plan is still right. */
    plan_case_parse(&c, "length", "9223372036854775807,1 ; 1,1");
    plan_case_make(&c);
    cr_assert_eq(c.plan.quality.objective_after, 9223372036854775808u);
    plan_case_free(&c);
    plan_case_parse(&c, "length", "9223372036854775808 ; 1");
    cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), -ERANGE);
    plan_case_free(&c);
}

Test(plan_cases, sums_of_costs_wrap_at_64_bits)
{
    uint64_t length[8] = {3000000000u, 3000000000u, 3000000000u, 3000000000u, 1, 1, 1, 1};
    struct plan_case c;

    plan_case_parse(&c, "length_squared", "3000000000,3000000000,3000000000,3000000000 ; 1,1,1,1");
    plan_case_make(&c);
    cr_assert_eq(memcmp(length, c.length, sizeof length), 0);
    cr_assert_eq(c.plan.quality.rank_max_before, UINT64_MAX, "saturated");
    cr_assert_eq(plan_case_max_sum(&c), 6000000002u, "two giants each");
    plan_case_free(&c);
}

Test(plan_cases, a_sample_longer_than_the_cap_loops_for_ever)
{
    uint64_t cap = 10;

    for (uint32_t cut = POISE_CUT_FIXED; cut <= POISE_CUT_AS_NEEDED; cut++) {
        struct plan_case c;
        plan_case_parse(&c, "length", "50,3,4 ; 5,6,4");
        c.req.cut = cut;
        c.req.count = POISE_COUNT_EQUAL;
        c.req.n_micro_batches = cut == POISE_CUT_AS_NEEDED ? 0 : 3;
        c.req.cap_length_micro_batch = &cap;
        cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), 0, "%s", c.err.text);
        plan_case_check_conserved(&c);
        cr_assert_eq(c.plan.quality.oversize, 1);
        for (uint32_t s = 1; s < c.n; s++)
            cr_assert(c.plan.rank[s] != c.plan.rank[0] || c.plan.micro_batch[s] != c.plan.micro_batch[0]);
        plan_case_free(&c);
    }
}

Test(plan_cases, samples_of_one_video_are_torn_apart)
{
    uint64_t unit[] = {7, 0, 7, 9, 9, 0, 0, 0};
    EACH_ALGORITHM(name)
    {
        struct plan_case c;
        plan_case_parse(&c, "length", "100,90,80,70,60,50 ; 1,1");
        c.req.algorithm = *name;
        c.req.unit = unit;
        c.req.count = POISE_COUNT_FREE;
        plan_case_make(&c);
        cr_assert_eq(c.plan.rank[0], c.plan.rank[2]);
        cr_assert_eq(c.plan.rank[3], c.plan.rank[4]);
        cr_assert_eq(c.plan.micro_batch[0], c.plan.micro_batch[2]);
        if (*name == NULL || strcmp(*name, "identity")) {
            cr_assert_eq(c.plan.row[2], c.plan.row[0] + 1);
            cr_assert_eq(c.plan.row[4], c.plan.row[3] + 1);
            cr_assert_gt(c.plan.quality.samples_moved, 0);
        }
        plan_case_free(&c);
    }
}

Test(plan_cases, ranks_end_up_with_different_numbers_of_micro_batches)
{
    struct plan_case c;

    plan_case_parse(&c, "length", "9,8,7,6,5 ; 1 ; 2,2,2");
    c.req.micro_batch_size = 2;
    plan_case_make(&c);
    cr_assert_eq(c.plan.n_micro_batches, 3);
    plan_case_free(&c);
}

/* Image and text lengths of `n` samples a rank; one in `text_in` is text only. */
static void mixed(struct plan_case *c, uint32_t n_ranks, uint32_t per_rank, uint32_t text_percent, uint64_t seed)
{
    plan_case_new(c, "qwen2.5-vl-7b", n_ranks, n_ranks * per_rank);
    for (uint32_t r = 0; r < n_ranks; r++)
        c->n_samples[r] = per_rank;
    for (uint32_t s = 0; s < c->n; s++) {
        bool text = plan_random_below(&seed, 100) < text_percent;
        uint64_t patches = text ? 0 : 4 * (16 + plan_random_below(&seed, 1200));
        c->length[s] = patches;
        c->length[c->n + s] = patches / 4 + 20 + plan_random_below(&seed, text ? 1500 : 200);
    }
}

Test(plan_cases, text_only_samples_pile_up_on_one_rank)
{
    uint64_t seed = plan_seed();

    for (uint32_t percent = 0; percent <= 20; percent += 10)
        for (uint32_t count = POISE_COUNT_EQUAL; count <= POISE_COUNT_FREE; count++) {
            struct plan_case c;
            mixed(&c, 8, 16, percent, seed + percent);
            c.req.count = count;
            c.req.micro_batch_size = 4;
            plan_case_make(&c); /* tokens and images are in the invariants */
            cr_assert_lt(c.plan.quality.objective_after, c.plan.quality.objective_before, "seed %llu: nothing gained",
                         (unsigned long long)seed);
            plan_case_free(&c);
        }
}

Test(plan_cases, samples_that_cost_nothing_are_moved)
{
    uint64_t seed = plan_seed();
    struct plan_case c;

    mixed(&c, 8, 16, 20, seed);
    c.req.count = POISE_COUNT_FREE;
    c.phases[1].linear = c.phases[1].quadratic = 0; /* the vision phase alone is balanced */
    plan_case_make(&c);
    for (uint32_t s = 0; s < c.n; s++)
        if (c.length[s] == 0) {
            cr_assert_eq(c.plan.rank[s], s / 16, "seed %llu: sample %u", (unsigned long long)seed, s);
            cr_assert(c.plan.reason[s] == POISE_REASON_ZERO || c.plan.reason[s] == POISE_REASON_NOT_WORSE ||
                      c.plan.reason[s] == POISE_REASON_CAP);
        }
    plan_case_free(&c);
}

Test(plan_cases, counts_above_255_wrap)
{
    static const uint32_t counts[] = {128, 200, 256, 300};
    uint64_t seed = plan_seed();
    struct plan_case c;
    uint32_t n = 0;

    plan_case_new(&c, "length", 4, 884);
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t i = 0; i < counts[r]; i++, c.n_samples[r]++)
            c.length[n++] = 1 + plan_random_below(&seed, 1000);
    plan_case_make(&c); /* counts are checked there */
    plan_case_free(&c);
}

Test(plan_cases, thirty_thousand_samples_take_seconds)
{
    uint64_t seed = plan_seed();
    struct plan_case c;

    plan_case_new(&c, "length", 1024, 30720);
    for (uint32_t r = 0; r < 1024; r++)
        c.n_samples[r] = 30;
    for (uint32_t s = 0; s < c.n; s++)
        c.length[s] = 1 + plan_random_below(&seed, 8192);
    plan_case_make(&c); /* its time is the benchmark's; here that it ends, and is near the bound */
    cr_assert_leq(c.plan.quality.objective_after,
                  c.plan.quality.objective_bound + c.plan.quality.objective_bound / 100);
    plan_case_free(&c);
}

Test(plan_cases, unknown_names_do_not_list_what_there_is)
{
    struct plan_case c;
    uint32_t n;

    plan_case_parse(&c, "length", "1 ; 2");
    c.req.algorithm = "greedie";
    cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), -EINVAL);
    cr_assert(strstr(c.err.text, "greedie") && strstr(c.err.text, "greedy"), "%s", c.err.text);
    cr_assert_eq(poise_preset("qwen", c.phases, sizeof *c.phases, &n, &c.err), -EINVAL);
    cr_assert(strstr(c.err.text, "qwen2.5-vl-7b") && strstr(c.err.text, "length_squared"), "%s", c.err.text);
    plan_case_free(&c);
}

Test(plan_cases, a_slow_rank_gets_as_much_as_a_fast_one)
{
    uint32_t speed[4] = {500000, 1000000, 1000000, 1500000};
    uint64_t seed = plan_seed();
    struct plan_case c;

    plan_case_new(&c, "length", 4, 128);
    for (uint32_t r = 0; r < 4; r++)
        c.n_samples[r] = 32;
    for (uint32_t s = 0; s < c.n; s++)
        c.length[s] = 1 + plan_random_below(&seed, 1000);
    uint64_t no_cap = POISE_NO_CAP;
    c.req.speed_ppm = speed;
    c.req.count = POISE_COUNT_FREE;
    c.req.cap_length_rank = c.req.cap_length_micro_batch = &no_cap; /* the fast one gets more tokens than any had */
    c.req.cap_bytes_rank = POISE_NO_CAP;
    plan_case_make(&c);
    cr_assert_leq(c.plan.quality.objective_after, c.plan.quality.objective_bound * 102 / 100 + 2, "seed %llu",
                  (unsigned long long)seed);
    cr_assert_lt(plan_case_sum(&c, 0, 0) * 2, plan_case_sum(&c, 0, 3));
    plan_case_free(&c);
}

Test(plan_cases, ranks_of_one_node_send_samples_to_others)
{
    uint32_t node[4] = {7, 7, 3, 3};
    struct plan_case c;

    /* Rank 0 has too much, ranks 1 and 2 have the same room: rank 1 is on its node. */
    plan_case_parse(&c, "length", "40,40,40,40,40 ; 100 ; 100 ; 160");
    c.req.node = node;
    c.req.count = POISE_COUNT_FREE;
    c.req.tolerance_ppm = 80000;
    plan_case_make(&c);
    cr_assert_eq(c.plan.quality.samples_moved, 1);
    cr_assert_eq(c.plan.quality.bytes_between_nodes, 0);
    plan_case_free(&c);
}

Test(plan_cases, padding_makes_a_rank_larger_than_its_memory)
{
    uint32_t extent[8] = {500, 10, 10, 10, 400, 10, 10, 10};
    struct poise_pad pad = {.axis_mask = 1, .unit_bytes = 100, .multiple = 16};
    uint64_t packed[8] = {0};
    struct plan_case c;

    plan_case_parse(&c, "length", "500,10,10,10 ; 400,10,10,10");
    c.req.extent = extent;
    c.req.n_extents = 1;
    c.req.pads = &pad;
    c.req.pad_size = sizeof pad;
    c.req.n_pads = 1;
    c.req.packed_bytes = packed;
    uint64_t bytes[8] = {50000, 1000, 1000, 1000, 40000, 1000, 1000, 1000};
    c.req.bytes = bytes;
    c.req.micro_batch_size = 2;
    plan_case_make(&c);
    /* 500 rounded up to 512, two rows; 10 to 16, two rows */
    cr_assert_eq(c.plan.quality.bytes_rank_before, 2 * 512 * 100 + 2 * 16 * 100);
    cr_assert_leq(c.plan.quality.bytes_rank_after, c.plan.quality.bytes_rank_before);
    plan_case_free(&c);
}
