/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of presets against values computed by hand from the models' configurations, and the limits of integers. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "plan_case.h"

static struct poise_phase phase_of(const char *preset, uint32_t p, uint32_t n_phases)
{
    struct poise_phase phases[POISE_MAX_PHASES];
    uint32_t n = 0;
    struct poise_err err;

    cr_assert_eq(poise_preset(preset, phases, sizeof *phases, &n, &err), 0, "%s", err.text);
    cr_assert_eq(n, n_phases);
    return phases[p];
}

/* FLOP in units of 1,024; every preset is a whole number of them. */
static void check(const char *preset, uint32_t p, uint32_t n_phases, uint64_t linear, uint64_t quadratic,
                  uint64_t constant)
{
    struct poise_phase phase = phase_of(preset, p, n_phases);

    cr_assert_eq(phase.linear * 1024, linear, "%s linear %lu", preset, (unsigned long)phase.linear);
    cr_assert_eq(phase.quadratic * 1024, quadratic, "%s quadratic", preset);
    cr_assert_eq(phase.constant, constant);
    cr_assert_eq(phase.passes, 3);
}

Test(plan_cost, presets_are_what_a_hand_computes)
{
    /* 2 FLOP a multiply-add: d_in * d_out * 2 a token. */
    uint64_t vit_io = 2 * 1176 * 1280 + (2 * 5120 * 5120 + 2 * 5120 * 3584) / 4;
    uint64_t attention_io = 2 * 1280 * 3 * 1280 + 2 * 1280 * 1280;
    uint64_t qwen25 = vit_io + 32 * (attention_io + 3 * 2 * 1280 * 3420) + 28 * 4 * 64 * 1280;
    uint64_t qwen2 = vit_io + 32 * (attention_io + 2 * 2 * 1280 * 5120);
    uint64_t llm = 28ull * (2 * 3584 * (3584 + 2 * 512 + 3584) + 3ull * 2 * 3584 * 18944) + 2ull * 3584 * 152064;
    check("qwen2.5-vl-7b", 0, 2, qwen25, 4 * 4 * 1280, 0);
    check("qwen2.5-vl-7b", 1, 2, llm, 28 * 4 * 3584 / 2, 0);
    check("qwen2.5-vl-vit", 0, 1, qwen25, 4 * 4 * 1280, 0);
    check("qwen2-vl-7b", 0, 2, qwen2, 32 * 4 * 1280, 0);
    check("qwen2-vl-7b", 1, 2, llm, 28 * 4 * 3584 / 2, 0);
    check("qwen2.5-7b", 0, 1, llm, 28 * 4 * 3584 / 2, 0);

    check("decoder:layers=28,hidden=3584,heads=28,kv_heads=4,intermediate=18944,vocab=152064,passes=3", 0, 1, llm,
          28 * 4 * 3584 / 2, 0);

    uint64_t tile = 1024ull * 2 * 588 * 1024 + 1025ull * 24 * (2 * 1024 * 4 * 1024 + 2 * 2 * 1024 * 4096) +
                    24ull * 4 * 1024 * 1025 * 1025 + 256ull * 2 * (2 * 4096 * 4096);
    uint64_t internlm = 32ull * (2 * 4096 * (4096 + 2 * 1024 + 4096) + 3ull * 2 * 4096 * 14336) + 2ull * 4096 * 92553;
    check("internvl2.5-8b", 0, 2, tile, 0, 0);
    check("internvl2.5-8b", 1, 2, internlm, 32 * 4 * 4096 / 2, 0);

    uint64_t whisper =
        2 * 2 * 3 * 128 * 1280 + 2 * 3 * 1280 * 1280 + 32ull * (4 * 2 * 1280 * 1280 + 2 * 2 * 1280 * 5120);
    uint64_t qwen = 32ull * (4 * 2 * 4096 * 4096 + 3ull * 2 * 4096 * 11008) + 2ull * 4096 * 156032;
    check("whisper-large-v3", 0, 1, whisper, 32 * 4 * 1280, 0);
    check("qwen2-audio-7b", 0, 2, whisper + 2 * 1280 * 4096 / 2, 32 * 4 * 1280, 0);
    check("qwen2-audio-7b", 1, 2, qwen, 32 * 4 * 4096 / 2, 0);
}

Test(plan_cost, every_preset_has_a_text_and_fills_phases)
{
    uint32_t i = 0;

    for (; poise_preset_name(i); i++) {
        struct poise_phase phases[POISE_MAX_PHASES];
        uint32_t n = 0;
        cr_assert_not_null(poise_preset_text(i));
        cr_assert_eq(poise_preset(poise_preset_name(i), phases, sizeof *phases, &n, NULL), 0);
        cr_assert(n >= 1 && n <= POISE_MAX_PHASES);
        for (uint32_t p = 0; p < n; p++)
            cr_assert_neq(phases[p].name[0], 0);
    }
    cr_assert_geq(i, 5);
    cr_assert_null(poise_preset_text(i));
    cr_assert_null(poise_preset_name(UINT32_MAX));
}

Test(plan_cost, a_sample_costs_its_phases)
{
    uint64_t length[2] = {400, 130}, attention[2] = {400 * 200, 130 * 130}, cost = 0;
    struct poise_phase phases[POISE_MAX_PHASES];
    struct poise_err err;
    uint32_t n;

    cr_assert_eq(poise_preset("qwen2.5-vl-7b", phases, sizeof *phases, &n, &err), 0);
    cr_assert_eq(plan_sample_cost(phases, 2, length, attention, &cost, &err), 0);
    cr_assert_eq(cost, 3ull * (1264060 * 400 + 20 * 80000) + 3ull * (13809152ull * 130 + 196 * 16900));
    cr_assert_eq(plan_sample_cost(phases, 2, length, NULL, &cost, &err), 0);
    cr_assert_eq(cost, 3ull * (1264060 * 400 + 20 * 160000) + 3ull * (13809152ull * 130 + 196 * 16900));
    phases[0].constant = 5; /* only for a sample that has the phase */
    length[0] = attention[0] = 0;
    cr_assert_eq(plan_sample_cost(phases, 2, length, attention, &cost, &err), 0);
    cr_assert_eq(cost, 3ull * (13809152ull * 130 + 196 * 16900));
}

Test(plan_cost, limits)
{
    struct poise_phase one = {.name = "x", .linear = 1}; /* passes 0 is taken as 1 */
    uint64_t length = INT64_MAX, attention = 0, cost = 0;
    struct poise_err err;

    cr_assert_eq(plan_sample_cost(&one, 1, &length, &attention, &cost, &err), 0);
    cr_assert_eq(cost, INT64_MAX);
    length++;
    cr_assert_eq(plan_sample_cost(&one, 1, &length, &attention, &cost, &err), -ERANGE);
    cr_assert_eq(cost, INT64_MAX, "output touched");
    length = 1;
    one.passes = 4;
    one.linear = INT64_MAX;
    cr_assert_eq(plan_sample_cost(&one, 1, &length, &attention, &cost, NULL), -ERANGE);
    one = (struct poise_phase){.name = "x", .quadratic = 1, .passes = 1};
    length = 4294967296;
    cr_assert_eq(plan_sample_cost(&one, 1, &length, NULL, &cost, &err), -ERANGE);
    struct poise_phase two[2] = {{.name = "a", .linear = 1}, {.name = "b", .linear = 1}};
    uint64_t both[2] = {INT64_MAX, 1};
    cr_assert_eq(plan_sample_cost(two, 2, both, both, &cost, &err), -ERANGE);
}

Test(plan_cost, an_older_phase_struct_is_filled_without_loss)
{
    unsigned char room[POISE_MAX_PHASES * 128];
    struct poise_err err;
    uint32_t n;

    /* One that ends before `flags`, which are 0 in this preset; one that ends before what matters; a longer one. */
    cr_assert_eq(poise_preset("length", (void *)room, offsetof(struct poise_phase, flags), &n, &err), 0);
    cr_assert_eq(poise_preset("length", (void *)room, offsetof(struct poise_phase, passes), &n, &err), -E2BIG);
    memset(room, 0xff, sizeof room);
    cr_assert_eq(poise_preset("qwen2-vl-7b", (void *)room, sizeof(struct poise_phase) + 8, &n, &err), 0);
    cr_assert_str_eq((char *)room + sizeof(struct poise_phase) + 8, "llm");
    cr_assert_eq(room[sizeof(struct poise_phase)], 0);
}

static void bad_decoder(const char *name, const char *text)
{
    struct poise_phase phases[POISE_MAX_PHASES];
    struct poise_err err;
    uint32_t n = 77;

    cr_assert_eq(poise_preset(name, phases, sizeof *phases, &n, &err), -EINVAL, "%s", name);
    cr_assert(strstr(err.text, text), "%s", err.text);
    cr_assert_eq(n, 77);
}

Test(plan_cost, a_decoder_is_refused_by_the_key_that_is_wrong)
{
    bad_decoder("decoder:", "layers is missing");
    bad_decoder("decoder:layers=2,hidden=64,heads=4", "intermediate is missing");
    bad_decoder("decoder:layers=two", "layers=two");
    bad_decoder("decoder:layers=-2", "layers=-2");
    bad_decoder("decoder:layers=2,depth=3", "depth=3");
    bad_decoder("decoder:layers=99999999999999999999", "layers=9");
    bad_decoder("decoder:layers=2,hidden=64,heads=4,kv_heads=8,intermediate=256", "kv_heads 8 of 4");
}
