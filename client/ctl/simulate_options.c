/* SPDX-License-Identifier: Apache-2.0 */
/* All words are checked before a file is opened or a batch is planned, so that a typing error costs no waiting. */
#include "client/ctl/simulate_options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/sizes.h"
#include "daemon/planner/err.h"

#define MOST_PIXELS (1u << 30) /* 32,768 pixels a side: its patches squared still fit */
#define LEAST_PPM_WORD 100     /* a plain tolerance of 100 or more can only be parts a million */

static int read_choice(const char *option, const char *word, const char *const names[3], uint32_t *ret_value,
                       struct poise_err *err)
{
    for (uint32_t i = 0; i < 3; i++)
        if (!strcmp(word, names[i])) {
            *ret_value = i;
            return 0;
        }
    return err_set(err, -EINVAL, "--%s %.60s: there are %s, %s and %s", option, word, names[0], names[1], names[2]);
}

/* "0.01", "1%", "10000ppm", and 10000 alone. */
static int read_tolerance(const char *word, uint32_t *ret_ppm, struct poise_err *err)
{
    char *end;
    double value = strtod(word, &end);

    if (isdigit((unsigned char)*word) || *word == '.') {
        if (!strcmp(end, "%"))
            value *= 1e4;
        else if (!*end && value < 1)
            value *= 1e6;
        else if (strcmp(end, "ppm") != 0 && (*end || value < LEAST_PPM_WORD))
            value = 0;
        if (value >= 1 && value <= 1e6) {
            *ret_ppm = (uint32_t)(value + 0.5);
            return 0;
        }
    }
    return err_set(err, -EINVAL, "--tolerance %.60s: a fraction as 0.01, 1%% or 10000ppm; at most 100%%", word);
}

static int read_fraction(const char *word, double *ret_fraction, struct poise_err *err)
{
    char *end;
    double value = strtod(word, &end);

    if (!isdigit((unsigned char)word[*word == '.']) || *end || value > 100)
        return err_set(err, -EINVAL,
                       "--fixed-fraction %.60s: a number as 0.25, the fixed part of a step over the mean "
                       "compute of a rank",
                       word);
    *ret_fraction = value;
    return 0;
}

/* "1280x28x28" or a plain number. */
static int read_pixels(const char *word, uint64_t *ret_pixels, struct poise_err *err)
{
    uint64_t product = 1;
    const char *at = word;
    char *end = NULL;

    do {
        uint64_t factor = isdigit((unsigned char)*at) ? strtoull(at, &end, 10) : 0;
        if (factor == 0 || factor > MOST_PIXELS || (product *= factor) > MOST_PIXELS ||
            (*end && *end != 'x' && *end != '*')) {
            product = 0;
            break;
        }
        at = end + 1;
    } while (*end);
    if (product < SIZES_MIN_PIXELS)
        return err_set(err, -EINVAL, "--max-pixels %.60s: a number of pixels as 1280x28x28, from %u to %u", word,
                       SIZES_MIN_PIXELS, MOST_PIXELS);
    *ret_pixels = product;
    return 0;
}

static int check_together(const struct simulate_words *words, const struct simulate *sim, struct poise_err *err)
{
    if (words->nodes > words->ranks)
        return err_set(err, -EINVAL, "--nodes %llu: more than the %llu ranks", (unsigned long long)words->nodes,
                       (unsigned long long)words->ranks);
    if (sim->setup.objective == POISE_OBJECTIVE_PIPELINE && words->stages < 2)
        return err_set(err, -EINVAL, "--objective pipeline needs --stages, the number of pipeline stages: 2 or more");
    if (sim->setup.objective != POISE_OBJECTIVE_PIPELINE && words->stages > 1)
        return err_set(err, -EINVAL, "--stages %llu: only --objective pipeline has stages",
                       (unsigned long long)words->stages);
    return 0;
}

int simulate_options_read(const struct simulate_words *words, struct simulate *sim, struct poise_err *err)
{
    static const char *const objectives[3] = {"step", "microbatch", "pipeline"};
    static const char *const counts[3] = {"equal", "bounded", "free"};
    struct simulate_setup *setup = &sim->setup;
    int rc = read_choice("objective", words->objective, objectives, &setup->objective, err);

    if (rc == 0)
        rc = read_choice("count", words->count, counts, &setup->count, err);
    if (rc == 0)
        rc = read_tolerance(words->tolerance, &setup->tolerance_ppm, err);
    if (rc == 0)
        rc = read_fraction(words->fixed_fraction, &sim->fixed, err);
    if (rc == 0)
        rc = read_pixels(words->max_pixels, &sim->rule.max_pixels, err);
    if (rc == 0)
        rc = check_together(words, sim, err);
    if (rc < 0)
        return rc;
    sim->rule.max_tiles = DATASET_MAX_TILES;
    setup->n_ranks = (uint32_t)words->ranks;
    setup->per_rank = (uint32_t)words->per_rank;
    setup->micro_batch =
        (uint32_t)(words->micro_batch && words->micro_batch < words->per_rank ? words->micro_batch : words->per_rank);
    setup->stages = (uint32_t)words->stages;
    setup->n_nodes = (uint32_t)words->nodes;
    setup->n_batches = (uint32_t)words->batches;
    setup->seed = words->seed;
    return 0;
}

static int unknown_algorithm(const char *name, struct poise_err *err)
{
    char list[400] = "";

    for (uint32_t i = 0; poise_algorithm_name(i); i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", poise_algorithm_name(i));
    return err_set(err, -EINVAL, "--algorithm: none is called %.60s. There are: %s", name, list);
}

int simulate_options_algorithms(const char *text, char *copy, size_t n_copy, const char *names[SIMULATE_ALGORITHMS],
                                uint32_t *ret_n, struct poise_err *err)
{
    char *save = NULL, *word;
    uint32_t n = 0, i;

    if (!text) {
        while (n < SIMULATE_ALGORITHMS && (names[n] = poise_algorithm_name(n)))
            n++;
        *ret_n = n;
        return 0;
    }
    if ((size_t)snprintf(copy, n_copy, "%s", text) >= n_copy)
        return err_set(err, -EINVAL, "--algorithm %.60s...: too many names", text);
    for (; (word = strtok_r(n ? NULL : copy, ",", &save)); n++) {
        for (i = 0; poise_algorithm_name(i) && strcmp(poise_algorithm_name(i), word) != 0; i++)
            ;
        if (!poise_algorithm_name(i))
            return unknown_algorithm(word, err);
        if (n == SIMULATE_ALGORITHMS)
            return err_set(err, -EINVAL, "--algorithm: at most %u names", SIMULATE_ALGORITHMS);
        names[n] = poise_algorithm_name(i);
    }
    if (n == 0)
        return unknown_algorithm(text, err);
    *ret_n = n;
    return 0;
}
