/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation's parts that can be checked without a planner: its random order, costs on the command line, its
 * options. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "client/ctl/simulate_options.h"

/* The same on every machine: these numbers are for ever. */
Test(simulate, the_random_order_is_written_down)
{
    static const uint32_t seed1[8] = {173, 725, 123, 392, 23, 222, 494, 294},
                          seed2[8] = {354, 919, 267, 799, 762, 408, 435, 210};
    struct simulate_draw draw;

    cr_assert(simulate_draw_init(&draw, 1000, 1, NULL) == 0);
    for (int i = 0; i < 8; i++)
        cr_expect_eq(simulate_draw_next(&draw), seed1[i]);
    simulate_draw_free(&draw);
    cr_assert(simulate_draw_init(&draw, 1000, 2, NULL) == 0);
    for (int i = 0; i < 8; i++)
        cr_expect_eq(simulate_draw_next(&draw), seed2[i]);
    simulate_draw_free(&draw);
}

Test(simulate, every_row_once_before_any_again)
{
    for (uint32_t n = 1; n < 40; n += 13) {
        struct simulate_draw draw;
        uint32_t seen[40] = {0};

        cr_assert(simulate_draw_init(&draw, n, 7, NULL) == 0);
        for (uint32_t round = 1; round <= 5; round++) {
            for (uint32_t i = 0; i < n; i++)
                seen[simulate_draw_next(&draw)]++;
            for (uint32_t i = 0; i < n; i++)
                cr_assert(seen[i] == round);
        }
        simulate_draw_free(&draw);
    }
}

/* Each place of the order gets each row about as often: 60,000 draws of 6, 10,000 each, 5 deviations are 456. */
Test(simulate, no_row_is_preferred)
{
    uint32_t first[6] = {0};

    for (uint32_t seed = 0; seed < 60000; seed++) {
        struct simulate_draw draw;
        cr_assert(simulate_draw_init(&draw, 6, seed, NULL) == 0);
        first[simulate_draw_next(&draw)]++;
        simulate_draw_free(&draw);
    }
    for (int i = 0; i < 6; i++)
        cr_expect(first[i] > 9544 && first[i] < 10456, "row %d: %u", i, first[i]);
}

static int read_cost(const char *text, enum dataset_kind kind, struct simulate_cost *cost, struct poise_err *err)
{
    struct dataset data = {.kind = kind};

    memset(err, 0, sizeof *err);
    return simulate_cost_read(text, &data, cost, err);
}

Test(simulate, costs)
{
    struct simulate_cost cost;
    struct poise_err err;

    cr_assert(read_cost(NULL, DATASET_IMAGE, &cost, &err) == 0 && cost.by_default && cost.n_phases == 2);
    cr_assert(cost.size[0] == DATASET_VISION && cost.size[1] == DATASET_TOKENS && !cost.tiles);
    cr_assert_str_eq(cost.unit[0], "patches");
    cr_assert(read_cost("internvl2.5-8b", DATASET_IMAGE, &cost, &err) == 0 && cost.tiles && !cost.by_default);
    cr_assert(read_cost(NULL, DATASET_TILES, &cost, &err) == 0 && cost.tiles);
    cr_assert(read_cost(NULL, DATASET_AUDIO, &cost, &err) == 0 && cost.size[0] == DATASET_SOUND);
    cr_assert(read_cost(NULL, DATASET_LENGTH, &cost, &err) == 0 && cost.size[0] == DATASET_PLAIN);
    cr_assert(read_cost("qwen2.5-vl-vit", DATASET_LENGTH, &cost, &err) == 0 && cost.size[0] == DATASET_PLAIN);
    cr_assert(read_cost("length_squared", DATASET_VIDEO, &cost, &err) == 0 && cost.size[0] == DATASET_TOKENS);

    cr_assert(read_cost("5,6,7", DATASET_IMAGE, &cost, &err) == 0 && cost.size[0] == DATASET_TOKENS);
    cr_assert(cost.phases[0].linear == 5 && cost.phases[0].quadratic == 6 && cost.phases[0].constant == 7);
    cr_assert(cost.phases[0].passes == 1);
    cr_assert(read_cost("vision=1,2,3,4+llm=5,6,7", DATASET_IMAGE, &cost, &err) == 0 && cost.n_phases == 2);
    cr_assert(cost.phases[0].passes == 4 && cost.size[0] == DATASET_VISION);
    cr_assert_str_eq(cost.phases[1].name, "llm");

    static const char *const wrong[] = {"1",          "1,2",
                                        "1,2,",       "1,2,3,4,5",
                                        "1,2,x",      "1.5,2,3",
                                        "-1,2,3",     "llm=",
                                        "llm=1,2",    "eyes=1,2,3",
                                        "",           "99999999999999999999,1,1",
                                        "1,2,3,9999", "vision=1,2,3+1,2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect(read_cost(wrong[i], DATASET_IMAGE, &cost, &err) == -EINVAL && err.text[0], "\"%s\" is taken",
                  wrong[i]);
    cr_assert(read_cost("qwen2.5-vl-7b", DATASET_TILES, &cost, &err) == -EINVAL);
    cr_assert(strstr(err.text, "internvl2.5-8b"), "%s", err.text);
    cr_assert(read_cost("whisper-large-v3", DATASET_IMAGE, &cost, &err) == -EINVAL);
    cr_assert(read_cost("qwen2.5-vl-7b", DATASET_AUDIO, &cost, &err) == -EINVAL);
}

static uint32_t tolerance_of(const char *text)
{
    struct simulate_words words = {.ranks = 8,
                                   .per_rank = 8,
                                   .stages = 1,
                                   .nodes = 1,
                                   .batches = 1,
                                   .objective = "step",
                                   .count = "equal",
                                   .max_pixels = "1280x28x28",
                                   .tolerance = text,
                                   .fixed_fraction = "0"};
    struct simulate sim = {0};

    return simulate_options_read(&words, &sim, NULL) == 0 ? sim.setup.tolerance_ppm : 0;
}

Test(simulate, tolerances)
{
    cr_assert(tolerance_of("0.01") == 10000 && tolerance_of("1%") == 10000 && tolerance_of("10000ppm") == 10000);
    cr_assert(tolerance_of("10000") == 10000 && tolerance_of("0.1%") == 1000 && tolerance_of("1ppm") == 1);
    cr_assert(tolerance_of("100%") == 1000000);
    static const char *const wrong[] = {"0", "1", "5", "-1", "101%", "x", "", "1 %", "nan", "inf", "0.0000001", "1e9"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect(tolerance_of(wrong[i]) == 0, "\"%s\" is taken", wrong[i]);
}

static uint64_t pixels_of(const char *text)
{
    struct simulate_words words = {.ranks = 8,
                                   .per_rank = 8,
                                   .stages = 1,
                                   .nodes = 1,
                                   .batches = 1,
                                   .objective = "step",
                                   .count = "equal",
                                   .max_pixels = text,
                                   .tolerance = "1%",
                                   .fixed_fraction = "0"};
    struct simulate sim = {0};

    return simulate_options_read(&words, &sim, NULL) == 0 ? sim.rule.max_pixels : 0;
}

Test(simulate, pixels)
{
    cr_assert(pixels_of("1280x28x28") == 1003520 && pixels_of("1003520") == 1003520 &&
              pixels_of("16384*28*28") == 12845056);
    static const char *const wrong[] = {"",   "0",   "28",       "28x", "x28", "1280x28x28x", "99999999x99999999",
                                        "-5", "1e6", "1280 x 28"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect(pixels_of(wrong[i]) == 0, "\"%s\" is taken", wrong[i]);
}
