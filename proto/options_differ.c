/* SPDX-License-Identifier: Apache-2.0 */
/* What two processes do not agree on, in words; and the planner's request from the options. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/options.h"

/* "rank 3", with the replica where there are several. */
static void print_who(const struct wire_join *join, char text[48])
{
    if (join->n_replicas > 1)
        snprintf(text, 48, "rank %u, replica %u", join->rank, join->replica);
    else
        snprintf(text, 48, "rank %u", join->rank);
}

static int say(const struct wire_join *a, const struct wire_join *b, const char *key, const char *value_a,
               const char *value_b, char *text, size_t n_text)
{
    char who_a[48], who_b[48];

    print_who(a, who_a);
    print_who(b, who_b);
    snprintf(text, n_text, "%.63s is %.140s on %s and %.140s on %s", key, value_a ? value_a : "not set", who_a,
             value_b ? value_b : "not set", who_b);
    return 1;
}

/* What a group must agree on besides its options. */
static int differ_numbers(const struct wire_join *a, const struct wire_join *b, char *text, size_t n_text)
{
    const struct {
        const char *name;
        uint64_t a, b;
    } numbers[] = {
        {"wire version", a->wire_version, b->wire_version},
        {"planner version", a->planner_version, b->planner_version},
        {"n_ranks", a->n_ranks, b->n_ranks},
        {"n_replicas", a->n_replicas, b->n_replicas},
        {"first_step", a->first_step, b->first_step},
    };
    char value_a[24], value_b[24];

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].a == numbers[i].b)
            continue;
        snprintf(value_a, sizeof value_a, "%" PRIu64, numbers[i].a);
        snprintf(value_b, sizeof value_b, "%" PRIu64, numbers[i].b);
        return say(a, b, numbers[i].name, value_a, value_b, text, n_text);
    }
    return 0;
}

int options_differ(const struct wire_join *a, const struct wire_join *b, char *text, size_t n_text)
{
    uint32_t i = 0, k = 0;

    if (differ_numbers(a, b, text, n_text))
        return 1;
    while (i < a->n_options || k < b->n_options) { /* both are sorted */
        const struct wire_option *x = i < a->n_options ? &a->options[i] : NULL;
        const struct wire_option *y = k < b->n_options ? &b->options[k] : NULL;
        int order = !x ? 1 : !y ? -1 : strcmp(x->key, y->key);
        if (order < 0)
            return say(a, b, x->key, x->value, NULL, text, n_text);
        if (order > 0)
            return say(a, b, y->key, NULL, y->value, text, n_text);
        if (strcmp(x->value, y->value) != 0)
            return say(a, b, x->key, x->value, y->value, text, n_text);
        i++;
        k++;
    }
    return 0;
}

void options_request(const struct options *options, struct poise_plan_request *ret_req)
{
    *ret_req = (struct poise_plan_request){
        .size = sizeof *ret_req,
        .n_phases = options->n_phases,
        .phases = options->phases,
        .phase_size = sizeof *options->phases,
        .algorithm = options->algorithm[0] ? options->algorithm : NULL,
        .objective = options->objective,
        .count = options->count,
        .cut = options->cut,
        .stages = options->stages,
        .tolerance_ppm = options->tolerance_ppm,
        .micro_batch_size = options->micro_batch_size,
        .n_micro_batches = options->n_micro_batches,
        .image_encoder_dp = options->image_encoder_dp,
        .cap_samples_rank = options->cap_samples_rank,
        .cap_samples_micro_batch = options->cap_samples_micro_batch,
        .cap_bytes_rank = options->cap_bytes_rank,
        .cap_length_rank = options->cap_length_rank,
        .cap_length_micro_batch = options->cap_length_micro_batch,
    };
}
