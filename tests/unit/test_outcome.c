/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a step's outcome, one by one, and what slices say. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/core/mem.h"
#include "tests/unit/core_case.h"

#define MAX_RANKS 8

#define STEP 7

struct step { /* n ranks x m replicas of a step */
    uint32_t n, m;
    uint64_t number; /* STEP unless a case says otherwise */
    struct options options;
    struct case_meta metas[MAX_RANKS * 3];
    const struct wire_meta *list[MAX_RANKS * 3];
    uint32_t node[MAX_RANKS], sync_set[MAX_RANKS];
    struct outcome *outcome;
};

static void step_new(struct step *s, uint32_t n, uint32_t m)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->m = m;
    s->number = STEP;
    case_options(&s->options);
    for (uint32_t i = 0; i < n * m; i++) {
        case_meta(&s->metas[i], i / m, i % m, 7, NULL, 0);
        s->list[i] = &s->metas[i].meta;
    }
}

static int step_try(struct step *s)
{
    struct tables tables = {0};
    struct wire_id hashes[MAX_RANKS];
    struct schema *schema = NULL;
    struct outcome_input in = {.step = s->number, .n_ranks = s->n, .n_replicas = s->m, .options = &s->options, .node = s->node,
                               .sync_set = s->sync_set, .metas = s->list};
    int r = 0;

    outcome_free(s->outcome);
    s->outcome = NULL;
    for (uint32_t rank = 0; rank < s->n && r >= 0; rank++) {
        const struct case_meta *meta = &s->metas[rank * s->m];

        hashes[rank] = meta->meta.table_hash;
        if (meta->meta.table)
            r = tables_add(&tables, &meta->table, meta->meta.table_hash, 7);
    }
    if (r >= 0)
        r = schema_new(&tables, hashes, s->n, &schema);
    in.schema = schema;
    if (r >= 0)
        r = outcome_make(&in, &s->outcome);
    schema_unref(schema);
    tables_free(&tables);
    return r;
}

static void step_make(struct step *s, uint32_t kind)
{
    cr_assert_eq(step_try(s), 0);
    cr_assert_eq(s->outcome->kind, kind, "kind %u: %s", s->outcome->kind, s->outcome->error.text);
    cr_assert_eq(s->outcome->step, s->number);
}

static void step_free(struct step *s)
{
    outcome_free(s->outcome);
    s->outcome = NULL;
}

/* Every sample at one place, and there where its origin thinks. */
static void check_conserved(const struct step *s)
{
    uint32_t n_in = 0, n_out = 0;

    for (uint32_t rank = 0; rank < s->n; rank++) {
        const struct wire_slice *slice = &s->outcome->slices[rank];

        n_in += slice->n_in;
        n_out += slice->n_out;
        cr_assert_eq(slice->rank, rank);
        for (uint32_t i = 0; i < slice->n_out; i++) {
            const struct wire_slice *to = &s->outcome->slices[slice->out_rank[i]];
            uint32_t place = slice->out_place[i], first = 0;

            cr_assert(to->in_rank[place] == rank && to->in_index[place] == i);
            cr_assert_eq(to->in_bytes[place], s->metas[rank * s->m].bytes[i]);
            for (uint32_t mb = 0; mb < slice->out_micro_batch[i]; mb++)
                first += to->count[mb];
            cr_assert_eq(place, first + slice->out_row[i]);
        }
    }
    cr_assert_eq(n_in, n_out);
}

Test(outcome, a_plan_and_its_totals)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(100, 4, 7));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(4, 100));
    step_make(&s, WIRE_OUTCOME_PLAN);
    check_conserved(&s);
    cr_assert_eq(s.outcome->totals.n_samples, 5);
    cr_assert_eq(s.outcome->totals.loss_tokens, 215);
    cr_assert_eq(s.outcome->totals.bytes, 860);
    cr_assert_eq(s.outcome->totals.arrival_micro_batches, 3); /* of two samples: 2 on rank 0, 1 on rank 1 */
    cr_assert_eq(s.outcome->totals.plan_ns, 0);
    cr_assert_leq(s.outcome->totals.cost_after, s.outcome->totals.cost_before);
    cr_assert_eq(s.outcome->n_micro_batches, 2);
    cr_assert(!wire_id_none(s.outcome->plan_id));
    cr_assert_eq(s.outcome->n_dropped, 0);
    step_free(&s);
}

Test(outcome, nothing_at_all_is_a_plan)
{
    struct step s;

    step_new(&s, 3, 1);
    step_make(&s, WIRE_OUTCOME_PLAN);
    check_conserved(&s);
    cr_assert_eq(s.outcome->totals.n_samples, 0);
    step_free(&s);
}

Test(outcome, replicas_that_differ_are_named)
{
    struct step s;

    step_new(&s, 2, 3);
    for (uint32_t k = 0; k < 3; k++)
        case_meta(&s.metas[3 + k], 1, k, 7, LENGTHS(5, 6));
    step_make(&s, WIRE_OUTCOME_PLAN);
    case_meta(&s.metas[5], 1, 2, 7, LENGTHS(5, 7));
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "rank 1: replicas 0 and 2 submitted different samples"), "%s",
              s.outcome->error.text);
    cr_assert_eq(s.outcome->error.rank, 1);
    cr_assert_eq(s.outcome->error.step, 7);
    cr_assert_eq(s.outcome->n_dropped, 2);
    step_free(&s);
}

Test(outcome, a_replica_that_fails_alone_says_why)
{
    struct step s;

    step_new(&s, 1, 2);
    s.metas[1].meta.kind = WIRE_META_BAD;
    strcpy(s.metas[1].meta.error.text, "no such file");
    case_seal(&s.metas[1]);
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "rank 0: replica 1 failed the step and replica 0 did not: no such file"), "%s",
              s.outcome->error.text);
    step_free(&s);
}

static void make_bad(struct step *s, uint32_t rank, const char *text)
{
    struct wire_meta *meta = &s->metas[rank].meta;

    meta->kind = WIRE_META_BAD;
    meta->error.code = -EINVAL;
    meta->error.rank = 99; /* what a rank says of its number does not count */
    meta->error.sample = 4;
    strcpy(meta->error.field, "pixels");
    strcpy(meta->error.text, text);
    case_seal(&s->metas[rank]);
}

Test(outcome, the_lowest_bad_rank_is_the_error)
{
    struct step s;

    step_new(&s, 4, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(1, 2, 3));
    make_bad(&s, 3, "third");
    make_bad(&s, 2, "it broke");
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert_str_eq(s.outcome->error.text, "rank 2: it broke");
    cr_assert_eq(s.outcome->error.rank, 2);
    cr_assert_eq(s.outcome->error.sample, 4);
    cr_assert_str_eq(s.outcome->error.field, "pixels");
    cr_assert_eq(s.outcome->n_dropped, 3);
    make_bad(&s, 2, "on rank 2 it broke");
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert_str_eq(s.outcome->error.text, "on rank 2 it broke");
    make_bad(&s, 2, "rank 21 is fine");
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert_str_eq(s.outcome->error.text, "rank 2: rank 21 is fine");
    step_free(&s);
}

Test(outcome, tables_that_cannot_be_merged_are_an_error)
{
    struct step s;

    step_new(&s, 2, 1);
    case_field(&s.metas[0], "ids", "tokens");
    case_field(&s.metas[1], "ids", "tokens");
    s.metas[1].fields[0].dtype = POISE_F32;
    case_seal(&s.metas[1]);
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "ids") && strstr(s.outcome->error.text, "float32"), "%s",
              s.outcome->error.text);
    cr_assert_null(s.outcome->schema);
    step_free(&s);
}

Test(outcome, bad_comes_before_the_end_and_the_end_before_the_tables)
{
    struct step s;

    step_new(&s, 3, 1);
    case_field(&s.metas[0], "ids", "tokens");
    case_field(&s.metas[1], "ids", "tokens");
    s.metas[1].fields[0].dtype = POISE_F32;
    s.metas[2].meta.kind = WIRE_META_END;
    for (int i = 0; i < 3; i++)
        case_seal(&s.metas[i]);
    step_make(&s, WIRE_OUTCOME_END);
    cr_assert_null(s.outcome->schema);
    make_bad(&s, 2, "bad");
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert_str_eq(s.outcome->error.text, "rank 2: bad");
    step_free(&s);
}

Test(outcome, the_end_stops_at_the_first_or_goes_on)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(9, 9));
    s.metas[1].meta.kind = WIRE_META_END;
    case_seal(&s.metas[1]);
    step_make(&s, WIRE_OUTCOME_END);
    cr_assert_eq(s.outcome->n_dropped, 2);
    s.options.end = POISE_END_CONTINUE;
    step_make(&s, WIRE_OUTCOME_PLAN);
    check_conserved(&s);
    cr_assert_eq(s.outcome->totals.n_samples, 2);
    s.metas[0].meta.kind = WIRE_META_END;
    step_make(&s, WIRE_OUTCOME_END);
    step_free(&s);
}

Test(outcome, metadata_that_does_not_fit_the_group_is_an_error)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(9, 9));
    s.metas[1].meta.n_phases = 2;
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "rank 1 sent lengths of 2 phases, the group's cost has 1"), "%s",
              s.outcome->error.text);
    s.metas[1].meta.n_phases = 1;
    s.metas[1].meta.has_columns = false;
    step_make(&s, WIRE_OUTCOME_ERROR);
    s.metas[1].meta.has_columns = true;
    s.metas[1].meta.n_extents = 1;
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "extents"), "%s", s.outcome->error.text);
    step_free(&s);
}

Test(outcome, sums_that_do_not_fit_name_rank_and_sample)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(1));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(1, 2));
    s.metas[1].loss[1] = UINT64_MAX;
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "rank 1 sample 1"), "%s", s.outcome->error.text);
    cr_assert_eq(s.outcome->error.code, -ERANGE);
    cr_assert_eq(s.outcome->error.rank, 1);
    cr_assert_eq(s.outcome->error.sample, 1);
    step_free(&s);
}

Test(outcome, attention_that_some_give_and_some_do_not)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(1, 2));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(1, 1ull << 33)); /* its square does not fit, and nobody looks at it */
    s.metas[0].attention[0] = 1;
    s.metas[0].attention[1] = 4;
    s.metas[0].meta.attention = s.metas[0].attention;
    s.metas[1].bytes[1] = 4;
    step_make(&s, WIRE_OUTCOME_PLAN);
    s.options.phases[0].quadratic = 1;
    step_make(&s, WIRE_OUTCOME_ERROR);
    cr_assert(strstr(s.outcome->error.text, "rank 1"), "%s", s.outcome->error.text);
    step_free(&s);
}

Test(outcome, extents_are_put_in_the_merged_order)
{
    struct step s;

    /* Rank 0 has axes (m); rank 1 has (a, z); merged (a, m, z). */
    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(1, 2));
    case_field(&s.metas[0], "x", "m");
    s.metas[0].extent[0] = 30;
    s.metas[0].extent[1] = 31;
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(1, 2));
    case_field(&s.metas[1], "p", "z");
    case_field(&s.metas[1], "q", "a");
    memcpy(s.metas[1].extent, (uint32_t[]){5, 6, 70, 71}, 16); /* a: 5, 6; z: 70, 71 */
    step_make(&s, WIRE_OUTCOME_PLAN);
    cr_assert_eq(s.outcome->n_extents, 3);
    cr_assert_eq(s.outcome->extent[0], 6);
    cr_assert_eq(s.outcome->extent[1], 31);
    cr_assert_eq(s.outcome->extent[2], 71);
    cr_assert_eq(s.outcome->schema->merged.n_fields, 3);
    step_free(&s);
}

Test(outcome, arrival_micro_batches_that_some_give_and_some_do_not)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(1, 2, 3, 4));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(1, 2, 3, 4));
    memcpy(s.metas[0].micro_batch, (uint32_t[]){0, 0, 0, 0}, 16);
    s.metas[0].meta.micro_batch = s.metas[0].micro_batch;
    s.metas[0].meta.mode = POISE_MODE_OFF;
    step_make(&s, WIRE_OUTCOME_PLAN);
    check_conserved(&s);
    cr_assert_eq(s.outcome->totals.arrival_micro_batches, 3); /* 1 as said, 2 by default */
    cr_assert_eq(s.outcome->slices[0].count[0], 4);
    cr_assert_eq(s.outcome->slices[1].count[0], 2);
    step_free(&s);
}

Test(outcome, default_pieces_are_counted_as_the_planner_cuts_them)
{
    uint64_t lengths[CASE_MAX_SAMPLES] = {0};

    for (uint32_t size = 0; size < 4; size++)
        for (uint32_t pieces = 0; pieces < 6; pieces++)
            for (uint32_t n = 0; n < 14; n++) {
                uint64_t n_full = 0;
                struct step s;

                if (size && pieces && pieces * size < n + 3)
                    continue;
                step_new(&s, 2, 1);
                s.options.micro_batch_size = size;
                s.options.n_micro_batches = pieces;
                case_meta(&s.metas[0], 0, 0, 7, lengths, n);
                case_meta(&s.metas[1], 1, 0, 7, lengths, n + 3);
                s.metas[0].meta.mode = POISE_MODE_OFF; /* arrival order as the planner sees it */
                step_make(&s, WIRE_OUTCOME_PLAN);
                for (uint32_t rank = 0; rank < 2; rank++)
                    for (uint32_t mb = 0; mb < s.outcome->n_micro_batches; mb++)
                        n_full += s.outcome->slices[rank].count[mb] > 0;
                cr_assert_eq(s.outcome->totals.arrival_micro_batches, n_full, "size %u, pieces %u, %u samples", size, pieces,
                             n);
                step_free(&s);
            }
}

Test(outcome, the_most_cautious_stamp_wins)
{
    static const uint32_t stamps[][3] = {{0, 0, 0}, {0, 1, 1}, {1, 2, 2}, {2, 0, 2}};
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(100, 100));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(1, 1));
    for (size_t i = 0; i < sizeof stamps / sizeof *stamps; i++) {
        bool moved = false;

        s.metas[0].meta.mode = stamps[i][0];
        s.metas[1].meta.mode = stamps[i][1];
        step_make(&s, WIRE_OUTCOME_PLAN);
        check_conserved(&s);
        cr_assert_eq(s.outcome->totals.mode, stamps[i][2]);
        for (uint32_t k = 0; k < 2; k++)
            moved |= s.outcome->slices[0].in_rank[k] != 0;
        cr_assert_eq(moved, stamps[i][2] == POISE_MODE_ON);
        /* Shadow tells what the plan would have done. */
        cr_assert_eq(s.outcome->totals.samples_moved > 0, stamps[i][2] != POISE_MODE_OFF);
    }
    step_free(&s);
}

/* Blocks of an audit follow from the step's number and K alone; the plan is made and told in both. */
Test(outcome, an_audit_balances_every_other_block)
{
    static const struct {
        uint64_t audit, step;
        bool balanced;
    } cases[] = {{0, 7, true},  {1, 6, true},  {1, 7, false}, {3, 0, true}, {3, 2, true}, {3, 3, false},
                 {3, 5, false}, {3, 6, true},  {UINT64_MAX, INT64_MAX, true}, {1, INT64_MAX, false}};
    struct step s;

    step_new(&s, 2, 1);
    s.options.micro_batch_size = 2;
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(100, 90));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(4, 4));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.options.audit = cases[i].audit;
        s.number = cases[i].step;
        s.metas[0].meta.mode = s.metas[1].meta.mode = POISE_MODE_ON;
        step_make(&s, WIRE_OUTCOME_PLAN);
        check_conserved(&s);
        cr_assert_eq(s.outcome->totals.mode, cases[i].balanced ? POISE_MODE_ON : POISE_MODE_SHADOW, "case %zu", i);
        cr_assert_eq(s.outcome->slices[0].in_rank[0] == 0 && s.outcome->slices[0].in_rank[1] == 0, !cases[i].balanced,
                     "case %zu", i);
        cr_assert(s.outcome->totals.cost_after < s.outcome->totals.cost_before, "case %zu", i);
        s.metas[1].meta.mode = POISE_MODE_OFF; /* a person's word is more cautious still */
        step_make(&s, WIRE_OUTCOME_PLAN);
        cr_assert_eq(s.outcome->totals.mode, POISE_MODE_OFF);
    }
    step_free(&s);
}

Test(outcome, a_refusal_of_the_planner_does_not_hurt_who_only_looks_on)
{
    struct step s;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(3, 2, 1));
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(1, 1));
    strcpy(s.options.algorithm, "post_global_balancing_greedy_without_pad"); /* wants a total that is a multiple */
    s.options.micro_batch_size = 4;
    step_make(&s, WIRE_OUTCOME_ERROR);
    s.metas[0].meta.mode = POISE_MODE_SHADOW;
    step_make(&s, WIRE_OUTCOME_PLAN);
    check_conserved(&s);
    step_free(&s);
}

Test(outcome, transposed_units_stand_first_members_first)
{
    struct step s;

    /* Three pairs in one micro-batch, between two samples that stand alone. */
    step_new(&s, 1, 1);
    s.options.micro_batch_size = 8;
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(9, 1, 2, 3, 4, 5, 6, 9));
    memcpy(s.metas[0].unit, (uint64_t[]){0, 7, 7, 8, 8, 9, 9, 0}, 64);
    memset(s.metas[0].layout, POISE_UNIT_TRANSPOSED, 8);
    s.metas[0].meta.unit = s.metas[0].unit;
    s.metas[0].meta.unit_layout = s.metas[0].layout;
    case_seal(&s.metas[0]);
    step_make(&s, WIRE_OUTCOME_PLAN);
    check_conserved(&s);
    {
        const uint32_t *in = s.outcome->slices[0].in_index;
        uint32_t firsts = 0, seconds = 0, at[8];

        for (uint32_t i = 0; i < 8; i++)
            at[in[i]] = i;
        for (uint32_t i = 0; i < 8; i++)
            if (in[i] != 0 && in[i] != 7) {
                bool second = in[i] % 2 == 0;

                cr_assert(second || seconds == 0, "a first member after a second");
                firsts += !second;
                seconds += second;
            }
        cr_assert(firsts == 3 && seconds == 3);
        /* Units keep one order in both halves. */
        for (uint32_t a = 1; a < 7; a += 2)
            for (uint32_t b = 1; b < 7; b += 2)
                cr_assert_eq(at[a] < at[b], at[a + 1] < at[b + 1]);
    }
    memset(s.metas[0].layout, POISE_UNIT_TOGETHER, 8);
    step_make(&s, WIRE_OUTCOME_PLAN);
    for (uint32_t i = 0; i + 1 < 8; i++)
        if (s.outcome->slices[0].in_index[i] % 2 == 1 && s.outcome->slices[0].in_index[i] < 7)
            cr_assert_eq(s.outcome->slices[0].in_index[i + 1], s.outcome->slices[0].in_index[i] + 1);
    step_free(&s);
}

Test(outcome, one_function_of_the_input)
{
    uint64_t seed = getenv("POISE_SEED") ? strtoull(getenv("POISE_SEED"), NULL, 0) : (uint64_t)time(NULL);

    printf("one_function_of_the_input: POISE_SEED=%lu\n", (unsigned long)seed);
    srand48((long)seed);
    for (int run = 0; run < 200; run++) {
        uint64_t lengths[CASE_MAX_SAMPLES];
        struct wire_id id;
        struct step s;

        step_new(&s, 1 + (uint32_t)(lrand48() % MAX_RANKS), 1);
        for (uint32_t rank = 0; rank < s.n; rank++) {
            uint32_t n = (uint32_t)(lrand48() % 20);

            for (uint32_t i = 0; i < n; i++)
                lengths[i] = (uint64_t)(lrand48() % (lrand48() % 5 ? 50 : 5000));
            case_meta(&s.metas[rank], rank, 0, 7, lengths, n);
            s.node[rank] = rank / 2;
        }
        s.options.count = (uint32_t)(lrand48() % 3);
        step_make(&s, WIRE_OUTCOME_PLAN);
        check_conserved(&s);
        id = s.outcome->plan_id;
        step_make(&s, WIRE_OUTCOME_PLAN);
        cr_assert(wire_id_is(id, s.outcome->plan_id));
        step_free(&s);
    }
}

Test(outcome, out_of_memory_has_no_outcome)
{
    struct step s;
    int64_t n = 0;
    int r;

    step_new(&s, 2, 1);
    case_meta(&s.metas[0], 0, 0, 7, LENGTHS(100, 4, 7));
    case_field(&s.metas[0], "ids", "tokens");
    case_meta(&s.metas[1], 1, 0, 7, LENGTHS(4, 100));
    do {
        core_fault = (struct core_fault){.countdown = n++};
        r = step_try(&s);
        cr_assert(r == 0 || r == -ENOMEM);
        cr_assert_eq(r == 0, s.outcome != NULL);
    } while (r == -ENOMEM);
    core_fault.countdown = -1;
    cr_assert_gt(n, 20);
    check_conserved(&s);
    step_free(&s);
}
