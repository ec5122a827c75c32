/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sample is taken to cost: a preset, or coefficients on the command line; and which size of the data is the
 * length of each phase. A cost that the data cannot feed (patches of a file that has only lengths) is an error, not a
 * guess.
 */
#include "client/ctl/simulate.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

static const char *default_name(enum dataset_kind kind)
{
    switch (kind) {
    case DATASET_LENGTH:
        return "length";
    case DATASET_TILES:
        return "internvl2.5-8b";
    case DATASET_AUDIO:
        return "qwen2-audio-7b";
    case DATASET_IMAGE:
    case DATASET_IMAGES:
    case DATASET_VIDEO:
        break;
    }
    return "qwen2.5-vl-7b";
}

static int custom_error(const char *text, struct poise_err *err)
{
    return err_set(err, -EINVAL,
                   "--cost %.60s: coefficients are LINEAR,QUADRATIC,CONSTANT[,PASSES] in whole units, or "
                   "vision=...+llm=... for several phases",
                   text);
}

/* "vision=1264060,20,0,3"; the name may be left out. */
static int read_phase(const char *text, char *word, struct poise_phase *phase, struct poise_err *err)
{
    char *numbers = strchr(word, '='), *end;
    uint64_t value[4] = {0, 0, 0, 1};
    int n = 0;

    memset(phase, 0, sizeof *phase);
    snprintf(phase->name, sizeof phase->name, "%.*s", numbers ? (int)(numbers - word) : 6, numbers ? word : "length");
    for (numbers = numbers ? numbers + 1 : word; n < 4; numbers = end + 1) {
        errno = 0;
        value[n++] = strtoull(numbers, &end, 10);
        if (!isdigit((unsigned char)*numbers) || errno || (*end && *end != ','))
            return custom_error(text, err);
        if (!*end)
            break;
    }
    if (n < 3 || *end || value[3] > 1000)
        return custom_error(text, err);
    phase->linear = value[0];
    phase->quadratic = value[1];
    phase->constant = value[2];
    phase->passes = (uint32_t)value[3];
    return 0;
}

static int read_custom(const char *text, struct simulate_cost *cost, struct poise_err *err)
{
    char copy[512], *words = copy, *save = NULL, *word;
    int rc = 0;

    if (strlen(text) >= sizeof copy)
        return custom_error(text, err);
    strcpy(copy, text);
    for (; rc == 0 && (word = strtok_r(words, "+", &save)); words = NULL)
        rc = cost->n_phases == POISE_MAX_PHASES ? custom_error(text, err)
                                                : read_phase(text, word, &cost->phases[cost->n_phases++], err);
    return rc;
}

static const char *kind_text(enum dataset_kind kind)
{
    static const char *const text[] = {"lengths",         "images", "images", "videos", "tiles of 448 pixels",
                                       "seconds of sound"};

    return text[kind];
}

static int choose_size(struct simulate_cost *cost, uint32_t p, const struct dataset *data, struct poise_err *err)
{
    const bool sees = data->kind == DATASET_IMAGE || data->kind == DATASET_IMAGES || data->kind == DATASET_VIDEO;
    const char *phase = cost->phases[p].name;
    const char *unit = "tokens";
    enum dataset_size size = DATASET_TOKENS;

    if (data->kind == DATASET_LENGTH) {
        if (cost->n_phases > 1)
            return err_set(err, -EINVAL,
                           "cost %s has %u phases, the data only one length: name columns of images (--columns "
                           "width=W,height=H), or take --cost length",
                           cost->name, cost->n_phases);
        size = DATASET_PLAIN;
        unit = "units of length";
    } else if (!strcmp(phase, "vision")) {
        if (!sees && (data->kind != DATASET_TILES || !cost->tiles))
            return err_set(err, -EINVAL, "cost %s counts %s, the data has %s: take --cost %s", cost->name,
                           cost->tiles ? "tiles of images" : "patches of images", kind_text(data->kind),
                           default_name(data->kind));
        size = DATASET_VISION;
        unit = cost->tiles ? "tiles" : "patches";
    } else if (!strcmp(phase, "audio")) {
        if (data->kind != DATASET_AUDIO)
            return err_set(err, -EINVAL, "cost %s counts seconds of sound, the data has %s: take --cost %s", cost->name,
                           kind_text(data->kind), default_name(data->kind));
        size = DATASET_SOUND;
        unit = "positions";
    } else if (strcmp(phase, "llm") != 0 && strcmp(phase, "length") != 0) {
        return err_set(err, -EINVAL, "--cost: phase %.40s is unknown. There are: vision, llm, audio, length", phase);
    }
    cost->size[p] = size;
    snprintf(cost->unit[p], sizeof cost->unit[p], "%s", unit);
    return 0;
}

int simulate_cost_read(const char *text, const struct dataset *data, struct simulate_cost *ret_cost,
                       struct poise_err *err)
{
    struct simulate_cost cost = {.by_default = !text};
    int rc;

    if (!text)
        text = default_name(data->kind);
    snprintf(cost.name, sizeof cost.name, "%s", text);
    if (isdigit((unsigned char)*text) || strchr(text, '='))
        rc = read_custom(text, &cost, err);
    else
        rc = poise_preset(text, cost.phases, sizeof *cost.phases, &cost.n_phases, err);
    cost.tiles = data->kind == DATASET_TILES ? strncmp(text, "qwen", 4) != 0 : !strncmp(text, "intern", 6);
    for (uint32_t p = 0; rc == 0 && p < cost.n_phases; p++)
        rc = choose_size(&cost, p, data, err);
    if (rc == 0)
        *ret_cost = cost;
    return rc;
}
