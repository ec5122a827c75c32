/* SPDX-License-Identifier: Apache-2.0 */
/* Bad options and columns are refused by name; errors are one line; ids tell requests apart; memory may run out. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "plan_case.h"

static void refused(struct plan_case *c, const char *text)
{
    struct poise_plan before = c->plan;

    cr_assert_eq(plan_make(&c->req, &c->plan, &c->err), -EINVAL, "not refused: %s", text);
    cr_assert_eq(c->err.code, -EINVAL);
    cr_assert(strstr(c->err.text, text), "%s", c->err.text);
    cr_assert(!memcmp(&before, &c->plan, sizeof before), "output touched");
    cr_assert_eq(plan_make(&c->req, &c->plan, NULL), -EINVAL);
    plan_case_free(c);
}

#define REFUSED(text, ...)                                                                                             \
    do {                                                                                                               \
        struct plan_case c;                                                                                            \
        plan_case_parse(&c, "length", "1,2,3 ; 4,5");                                                                  \
        __VA_ARGS__;                                                                                                   \
        refused(&c, text);                                                                                             \
    } while (0)

Test(plan_options, what_makes_no_sense_is_refused_by_name)
{
    uint32_t micro_batch[5] = {0, 1, 2, 0, 9}, speed[2] = {1, 0};
    uint64_t bytes[5] = {1, 1, 1, 1, 1}, packed[5] = {1, 1, 1, 1, 2};

    REFUSED("n_ranks", c.req.n_ranks = 0);
    REFUSED("objective is 3", c.req.objective = 3);
    REFUSED("stages is 5000", c.req.stages = 5000);
    REFUSED("count is 9", c.req.count = 9);
    REFUSED("cut is 3", c.req.cut = 3);
    REFUSED("wants a cap", c.req.cut = POISE_CUT_AS_NEEDED);
    REFUSED("n_micro_batches is 2", c.req.cut = POISE_CUT_AS_NEEDED; c.req.n_micro_batches = 2);
    REFUSED("n_phases is 0", c.req.n_phases = 0);
    REFUSED("n_phases is 9", c.req.n_phases = 9);
    REFUSED("unknown flags 0x80", c.phases[0].flags = 0x80);
    REFUSED("barrier", c.phases[0].flags = POISE_PHASE_BARRIER; c.req.objective = POISE_OBJECTIVE_PIPELINE);
    REFUSED("phase_size", c.req.phase_size = 8);
    REFUSED("has no end", memset(c.phases[0].name, 'x', sizeof c.phases[0].name));
    REFUSED("3 samples on a rank need 3 micro-batches of 1", c.req.n_micro_batches = 2; c.req.micro_batch_size = 1;
            c.req.micro_batch = (uint32_t[]){0, 0, 1, 0, 1});
    REFUSED("rank 0 sample 2 arrives in micro-batch 2 of 2", c.req.n_micro_batches = 2; c.req.micro_batch_size = 1);
    REFUSED("rank 1 sample 1 arrives in micro-batch 9 of 3", c.req.n_micro_batches = 3;
            c.req.micro_batch = micro_batch);
    REFUSED("micro-batches on", c.req.n_micro_batches = UINT32_MAX);
    REFUSED("cap_samples_rank is 2", c.req.cap_samples_rank = 2);
    REFUSED("cannot hold 5 samples", c.req.cap_samples_rank = 2; c.req.count = POISE_COUNT_FREE);
    REFUSED("rank 1 has speed_ppm 0", c.req.speed_ppm = speed);
    REFUSED("rank 1 sample 1 has 2 packed bytes of 1", c.req.bytes = bytes; c.req.packed_bytes = packed);
    REFUSED("n_extents", c.req.n_extents = 5);
    REFUSED("length is NULL", c.req.length = NULL);
    REFUSED("n_samples is NULL", c.req.n_samples = NULL);
}

Test(plan_options, the_text_is_cut_between_characters)
{
    struct poise_err err;
    char text[600];

    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 0, sizeof text);
        memset(text, 'a', shift);
        for (size_t i = shift; i + 4 < sizeof text; i += 4)
            memcpy(text + i, "\xf0\x9f\x99\x82", 4);
        cr_assert_eq(err_set(&err, -EIO, "%s", text), -EIO);
        cr_assert_eq(strlen(err.text), shift + (511 - shift) / 4 * 4);
    }
    cr_assert_eq(err_set_at(&err, -EPROTO, 3, 7, "pixel_values", "two\nlines"), -EPROTO);
    cr_assert_str_eq(err.text, "two lines");
    cr_assert_str_eq(err.field, "pixel_values");
    cr_assert(err.rank == 3 && err.sample == 7 && err.code == -EPROTO);
    cr_assert_eq(err_set(NULL, -EIO, "%d", 1), -EIO);
    err_set(&err, -EIO, "%s", "");
    cr_assert(err.rank == POISE_NONE && err.sample == POISE_NONE && err.field[0] == 0 && err.text[0] == 0);
}

static void id_of(struct plan_case *c, unsigned char id[16])
{
    cr_assert_eq(plan_make(&c->req, &c->plan, &c->err), 0, "%s", c->err.text);
    memcpy(id, c->plan.plan_id, 16);
}

Test(plan_options, an_id_names_what_the_plan_depends_on)
{
    uint64_t ones[5] = {1, 1, 1, 1, 1}, units[5] = {0, 0, 0, 0, 0};
    uint32_t arrival[5] = {0, 0, 0, 0, 0}, speed[2] = {1000000, 1000000};
    unsigned char a[16], b[16];
    struct plan_case c;

    plan_case_parse(&c, "length", "10,2,3 ; 4,5");
    id_of(&c, a);
    c.req.bytes = ones; /* the defaults, said aloud */
    c.req.unit = units;
    c.req.micro_batch = arrival;
    c.req.speed_ppm = speed;
    c.req.tolerance_ppm = 10000;
    c.req.stages = 1;
    id_of(&c, b);
    cr_assert(!memcmp(a, b, 16));
    c.req.tolerance_ppm = 10001;
    id_of(&c, b);
    cr_assert(memcmp(a, b, 16));
    c.req.tolerance_ppm = 0;
    c.length[0]++;
    id_of(&c, b);
    cr_assert(memcmp(a, b, 16));
    c.length[0]--;
    c.req.algorithm = "identity";
    id_of(&c, b);
    cr_assert(memcmp(a, b, 16));
    plan_case_free(&c);
}

Test(plan_options, tables_have_texts)
{
    for (uint32_t i = 0; i < POISE_N_REASONS; i++)
        cr_assert_not_null(poise_reason_text(i));
    cr_assert_null(poise_reason_text(POISE_N_REASONS));
    for (uint32_t i = 0; poise_algorithm_name(i); i++)
        cr_assert_not_null(poise_algorithm_text(i));
    cr_assert_null(poise_algorithm_name(1000));
    cr_assert_null(poise_algorithm_text(1000));
}
