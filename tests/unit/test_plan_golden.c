/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's algorithms must return exactly what the reference returns. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "plan_case.h"

static void load_lengths(struct plan_case *c, const json_t *entry)
{
    const json_t *lengths = json_object_get(entry, "lengths");
    uint32_t n = 0, s = 0;

    for (size_t r = 0; r < json_array_size(lengths); r++)
        n += (uint32_t)json_array_size(json_array_get(lengths, r));
    plan_case_new(c, "length_squared", (uint32_t)json_array_size(lengths), n);
    for (uint32_t r = 0; r < c->req.n_ranks; r++) {
        const json_t *rank = json_array_get(lengths, r);
        c->n_samples[r] = (uint32_t)json_array_size(rank);
        for (uint32_t i = 0; i < c->n_samples[r]; i++)
            c->length[s++] = (uint64_t)json_integer_value(json_array_get(rank, i));
    }
}

/* Where [rank, index] stands in the plan, against its place in the table. */
static void check_table(const struct plan_case *c, const json_t *table, size_t entry)
{
    uint32_t first[64] = {0}, k = c->req.micro_batch_size ? c->req.micro_batch_size : UINT32_MAX;

    for (uint32_t r = 0; r < c->req.n_ranks; r++)
        first[r + 1] = first[r] + c->n_samples[r];
    cr_assert_eq(json_array_size(table), c->req.n_ranks);
    for (uint32_t r = 0; r < c->req.n_ranks; r++) {
        const json_t *rank = json_array_get(table, r);
        cr_assert_eq(json_array_size(rank), plan_case_count(c, r), "entry %zu rank %u", entry, r);
        for (uint32_t i = 0; i < json_array_size(rank); i++) {
            const json_t *pair = json_array_get(rank, i);
            uint32_t s = first[json_integer_value(json_array_get(pair, 0))] +
                         (uint32_t)json_integer_value(json_array_get(pair, 1));
            cr_assert_eq(c->plan.rank[s], r, "entry %zu rank %u place %u", entry, r, i);
            cr_assert_eq(c->plan.micro_batch[s], i / k);
            cr_assert_eq(c->plan.row[s], i % k, "entry %zu rank %u place %u", entry, r, i);
        }
    }
}

Test(plan_golden, equals_every_entry_of_the_reference)
{
    json_error_t error;
    json_t *all = json_load_file("tests/data/golden/reference_rank_tables.json", 0, &error);

    cr_assert_not_null(all, "%s", error.text);
    cr_assert_geq(json_array_size(all), 49);
    for (size_t e = 0; e < json_array_size(all); e++) {
        const json_t *entry = json_array_get(all, e);
        struct plan_case c;
        load_lengths(&c, entry);
        c.req.algorithm = json_string_value(json_object_get(entry, "algorithm"));
        c.req.micro_batch_size = (uint32_t)json_integer_value(json_object_get(entry, "micro_batch_size"));
        c.req.image_encoder_dp = (uint32_t)json_integer_value(json_object_get(entry, "image_encoder_dp"));
        cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), 0, "entry %zu: %s", e, c.err.text);
        plan_case_check_conserved(&c);
        check_table(&c, json_object_get(entry, "rank_table"), e);
        plan_case_free(&c);
    }
    json_decref(all);
}

static void refused(const char *lengths, uint32_t k, uint32_t dp, const char *text)
{
    struct plan_case c;

    plan_case_parse(&c, "length_squared", lengths);
    c.req.algorithm = "post_global_balancing_greedy_without_pad";
    c.req.micro_batch_size = k;
    c.req.image_encoder_dp = dp;
    cr_assert_eq(plan_make(&c.req, &c.plan, &c.err), -EINVAL);
    cr_assert(strstr(c.err.text, text), "%s", c.err.text);
    plan_case_free(&c);
}

Test(plan_golden, global_names_the_numbers_that_do_not_divide)
{
    refused("1,2,3,4 ; 1,2,3", 2, 0, "7 samples");
    refused("1,2 ; 1,2", 2, 8, "image_encoder_dp 8 hold 0");
    refused("1,2 ; 1 ; 3", 1, 0, "4 slots of 1 samples cannot");
}
