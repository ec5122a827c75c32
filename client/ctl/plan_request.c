/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table of keys makes a JSON object a planner's request: "lengths" first, since it says how many ranks, samples and
 * phases there are; then "cost", which must agree with it; then the rest, in any order. Unknown keys are refused: a
 * misspelt "tolerance" must not silently plan something else. null stands for the default everywhere.
 */
#include "client/ctl/plan_request.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

struct key {
    const char *name;
    int (*read)(struct plan_request *request, const json_t *value, struct poise_err *err);
};

static int read_text(const json_t *value, const char *key, const char **ret_text, struct poise_err *err)
{
    if (!json_is_string(value))
        return err_set(err, -EINVAL, "\"%s\" must be a text", key);
    *ret_text = json_string_value(value);
    return 0;
}

static int read_u32(const json_t *value, const char *key, uint32_t least, uint32_t *ret_number, struct poise_err *err)
{
    uint64_t number;
    char where[POISE_MAX_NAME];
    int rc;

    snprintf(where, sizeof where, "\"%s\"", key);
    rc = plan_number(value, where, least, UINT32_MAX - 1, &number, err);
    if (rc == 0)
        *ret_number = (uint32_t)number;
    return rc;
}

/* One of a few words, in the order of their codes; words ends with NULL. */
static int read_word(const json_t *value, const char *key, const char *const *words, uint32_t *ret_code,
                     struct poise_err *err)
{
    char list[128] = "";
    const char *text = NULL;
    int rc = read_text(value, key, &text, err);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; words[i]; i++) {
        if (!strcmp(words[i], text)) {
            *ret_code = i;
            return 0;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", words[i]);
    }
    return err_set(err, -EINVAL, "\"%s\" is \"%.60s\": it must be one of %s", key, text, list);
}

/* ------------------------------------------------------------------------------------------------- lengths and cost */

/* How many phases: as many numbers as the first sample has; 1 where no rank has a sample. */
static int count_phases(const json_t *lengths, uint32_t *ret_n_phases, struct poise_err *err)
{
    const json_t *rank;
    size_t r;

    json_array_foreach(lengths, r, rank)
    {
        const json_t *first = json_array_get(rank, 0);
        if (!first)
            continue;
        *ret_n_phases = json_is_array(first) ? (uint32_t)json_array_size(first) : 1;
        if (json_is_array(first) && (json_array_size(first) < 1 || json_array_size(first) > POISE_MAX_PHASES))
            return err_set(err, -EINVAL, "lengths[%zu][0] has %zu numbers: it must have one a phase, 1 to %d", r,
                           json_array_size(first), POISE_MAX_PHASES);
        return 0;
    }
    *ret_n_phases = 0; /* as the cost says */
    return 0;
}

static int read_lengths(struct plan_request *request, const json_t *lengths, struct poise_err *err)
{
    const json_t *rank;
    uint32_t *n_samples;
    uint64_t total = 0;
    size_t r;

    if (!lengths || json_is_null(lengths))
        return err_set(err, -EINVAL, "\"lengths\" is missing: a list a rank of the lengths of its samples");
    if (!json_is_array(lengths) || json_array_size(lengths) == 0)
        return err_set(err, -EINVAL, "\"lengths\" must be a list with a list for each rank, at least one");
    n_samples = plan_memory(request, json_array_size(lengths), sizeof *n_samples, err);
    if (!n_samples)
        return -ENOMEM;
    json_array_foreach(lengths, r, rank)
    {
        if (!json_is_array(rank))
            return err_set(err, -EINVAL, "lengths[%zu] must be a list: the lengths of rank %zu's samples", r, r);
        n_samples[r] = (uint32_t)json_array_size(rank);
        total += n_samples[r];
    }
    if (total > INT_MAX)
        return err_set(err, -EINVAL, "%llu samples are too many", (unsigned long long)total);
    request->req.n_ranks = (uint32_t)json_array_size(lengths);
    request->req.n_samples = n_samples;
    request->n_total = (uint32_t)total;
    return count_phases(lengths, &request->req.n_phases, err);
}

static int read_phase_flag(const json_t *value, const char *where, uint32_t flag, struct poise_phase *phase,
                           struct poise_err *err)
{
    if (!json_is_boolean(value))
        return err_set(err, -EINVAL, "%s must be true or false", where);
    if (json_is_true(value))
        phase->flags |= flag;
    return 0;
}

static int read_phase_key(const char *key, const json_t *value, const char *where, struct poise_phase *phase,
                          struct poise_err *err)
{
    uint64_t passes;
    int rc;

    if (!strcmp(key, "name")) {
        if (!json_is_string(value) || json_string_length(value) >= sizeof phase->name)
            return err_set(err, -EINVAL, "%s must be a text of at most %zu bytes", where, sizeof phase->name - 1);
        snprintf(phase->name, sizeof phase->name, "%s", json_string_value(value));
        return 0;
    }
    if (!strcmp(key, "linear"))
        return plan_number(value, where, 0, PLAN_MOST, &phase->linear, err);
    if (!strcmp(key, "quadratic"))
        return plan_number(value, where, 0, PLAN_MOST, &phase->quadratic, err);
    if (!strcmp(key, "constant"))
        return plan_number(value, where, 0, PLAN_MOST, &phase->constant, err);
    if (!strcmp(key, "padded"))
        return read_phase_flag(value, where, POISE_PHASE_PADDED, phase, err);
    if (!strcmp(key, "barrier"))
        return read_phase_flag(value, where, POISE_PHASE_BARRIER, phase, err);
    if (strcmp(key, "passes") != 0)
        return err_set(err, -EINVAL,
                       "%s is unknown. A phase has: name, linear, quadratic, constant, passes, padded, barrier", where);
    rc = plan_number(value, where, 1, 1000, &passes, err);
    if (rc == 0)
        phase->passes = (uint32_t)passes;
    return rc;
}

static int read_phases(struct plan_request *request, const json_t *list, struct poise_err *err)
{
    const json_t *item, *value;
    const char *key;
    size_t i;

    if (json_array_size(list) < 1 || json_array_size(list) > POISE_MAX_PHASES)
        return err_set(err, -EINVAL, "\"cost\" has %zu phases: it must have 1 to %d", json_array_size(list),
                       POISE_MAX_PHASES);
    json_array_foreach(list, i, item)
    {
        struct poise_phase *phase = &request->phases[i];
        char where[96];
        if (!json_is_object(item))
            return err_set(err, -EINVAL, "cost[%zu] must be an object with name, linear, quadratic, constant, passes",
                           i);
        snprintf(phase->name, sizeof phase->name, "phase%zu", i);
        json_object_foreach((json_t *)item, key, value)
        {
            int rc;
            snprintf(where, sizeof where, "cost[%zu].%.40s", i, key);
            rc = read_phase_key(key, value, where, phase, err);
            if (rc < 0)
                return rc;
        }
    }
    request->req.phases = request->phases;
    request->req.phase_size = sizeof *request->phases;
    return 0;
}

static int read_cost(struct plan_request *request, const json_t *cost, struct poise_err *err)
{
    uint32_t n = 0;
    int rc;

    if (cost && json_is_array(cost)) {
        rc = read_phases(request, cost, err);
        n = (uint32_t)json_array_size(cost);
    } else if (cost && !json_is_null(cost) && !json_is_string(cost)) {
        return err_set(err, -EINVAL, "\"cost\" must be the name of a preset or a list of phases");
    } else {
        const char *name = json_is_string(cost) ? json_string_value(cost) : "length_squared";
        if (!json_is_string(cost) && request->req.n_phases > 1)
            return err_set(err, -EINVAL, "samples have %u lengths, so say what they cost: \"cost\"",
                           request->req.n_phases);
        rc = poise_preset(name, request->phases, sizeof *request->phases, &n, err);
    }
    if (rc < 0)
        return rc;
    if (request->req.n_phases == 0)
        request->req.n_phases = n;
    if (request->req.n_phases != n)
        return err_set(err, -EINVAL,
                       "\"cost\" has %u phases (the first is %s), but samples have %u lengths: make them agree", n,
                       request->phases[0].name, request->req.n_phases);
    request->req.phases = request->phases;
    request->req.phase_size = sizeof *request->phases;
    return 0;
}

/* ----------------------------------------------------------------------------------------------- all the other keys */

static int read_algorithm(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return read_text(value, "algorithm", &request->req.algorithm, err);
}

static int read_objective(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    static const char *const words[] = {"step", "microbatch", "pipeline", NULL};
    return read_word(value, "objective", words, &request->req.objective, err);
}

static int read_count(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    static const char *const words[] = {"equal", "bounded", "free", NULL};
    return read_word(value, "count", words, &request->req.count, err);
}

static int read_cut(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    static const char *const words[] = {"fixed", "by_cost", "as_needed", NULL};
    return read_word(value, "cut", words, &request->req.cut, err);
}

static int read_tolerance(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return read_u32(value, "tolerance_ppm", 1, &request->req.tolerance_ppm, err);
}

static int read_micro_batch_size(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return read_u32(value, "micro_batch_size", 1, &request->req.micro_batch_size, err);
}

static int read_n_micro_batches(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return read_u32(value, "num_microbatches", 1, &request->req.n_micro_batches, err);
}

static int read_stages(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return read_u32(value, "stages", 1, &request->req.stages, err);
}

static int read_image_encoder_dp(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return read_u32(value, "image_encoder_dp", 1, &request->req.image_encoder_dp, err);
}

static int read_attention(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_column64(request, value, "attention", request->req.n_phases, PLAN_MOST, &request->req.attention, err);
}

static int read_bytes(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_column64(request, value, "bytes", 1, PLAN_MOST, &request->req.bytes, err);
}

static int read_packed_bytes(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_column64(request, value, "packed_bytes", 1, PLAN_MOST, &request->req.packed_bytes, err);
}

static int read_units(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_column64(request, value, "units", 1, PLAN_MOST, &request->req.unit, err);
}

static int read_micro_batches(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_column32(request, value, "micro_batches", 1, &request->req.micro_batch, err);
}

static int read_nodes(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_ranks32(request, value, "nodes", &request->req.node, err);
}

static int read_speeds(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_ranks32(request, value, "speeds", &request->req.speed_ppm, err);
}

static int read_sync_sets(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    return plan_ranks32(request, value, "sync_sets", &request->req.sync_set, err);
}

static int read_caps(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    struct poise_plan_request *req = &request->req;
    const json_t *cap;
    const char *key;
    int rc = 0;

    if (!json_is_object(value))
        return err_set(err, -EINVAL, "\"caps\" must be an object");
    json_object_foreach((json_t *)value, key, cap)
    {
        if (!strcmp(key, "samples_rank"))
            rc = plan_cap(cap, "caps.samples_rank", &req->cap_samples_rank, err);
        else if (!strcmp(key, "samples_micro_batch"))
            rc = plan_cap(cap, "caps.samples_micro_batch", &req->cap_samples_micro_batch, err);
        else if (!strcmp(key, "bytes_rank"))
            rc = plan_cap(cap, "caps.bytes_rank", &req->cap_bytes_rank, err);
        else if (!strcmp(key, "length_rank") && !json_is_null(cap))
            rc = plan_caps(request, cap, key, req->n_phases, &req->cap_length_rank, err);
        else if (!strcmp(key, "length_micro_batch") && !json_is_null(cap))
            rc = plan_caps(request, cap, key, req->n_phases, &req->cap_length_micro_batch, err);
        else if (!json_is_null(cap))
            rc = err_set(err, -EINVAL,
                         "caps.%.40s is unknown. There are: samples_rank, samples_micro_batch, bytes_rank, "
                         "length_rank, length_micro_batch",
                         key);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_pad(const json_t *item, size_t at, struct poise_pad *pad, struct poise_err *err)
{
    const json_t *axes = json_object_get(item, "axes"), *fixed = json_object_get(item, "fixed"), *value;
    uint64_t number;
    size_t i;
    int rc =
        plan_number(json_object_get(item, "unit_bytes"), "a pad's \"unit_bytes\"", 1, PLAN_MOST, &pad->unit_bytes, err);

    if (rc == 0 && json_object_get(item, "multiple")) {
        rc = plan_number(json_object_get(item, "multiple"), "a pad's \"multiple\"", 1, UINT32_MAX - 1, &number, err);
        pad->multiple = rc == 0 ? (uint32_t)number : 0;
    }
    if (rc == 0 &&
        (!json_is_array(axes) || (fixed && (!json_is_array(fixed) || json_array_size(fixed) > POISE_MAX_EXTENTS))))
        rc = err_set(err, -EINVAL, "pads[%zu] needs \"axes\", a list of extents; \"fixed\" is a list of at most %d", at,
                     POISE_MAX_EXTENTS);
    json_array_foreach(axes, i, value)
    {
        if (rc == 0)
            rc = plan_number(value, "a pad's axis", 0, POISE_MAX_EXTENTS - 1, &number, err);
        if (rc == 0)
            pad->axis_mask |= 1u << number;
    }
    json_array_foreach(fixed, i, value)
    {
        if (rc == 0)
            rc = plan_number(value, "a pad's fixed extent", 0, PLAN_MOST, &pad->fixed[i], err);
    }
    return rc;
}

static int read_pads(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    struct poise_pad *pads;
    const json_t *item;
    size_t i;

    if (!json_is_array(value))
        return err_set(err, -EINVAL, "\"pads\" must be a list");
    pads = plan_memory(request, json_array_size(value), sizeof *pads, err);
    if (!pads)
        return -ENOMEM;
    json_array_foreach(value, i, item)
    {
        static const char *const known[] = {"axes", "fixed", "multiple", "unit_bytes"};
        const json_t *part;
        const char *key;
        int rc = json_is_object(item) && json_object_get(item, "unit_bytes")
                     ? 0
                     : err_set(err, -EINVAL, "pads[%zu] must be an object with \"axes\" and \"unit_bytes\"", i);
        if (rc == 0)
            json_object_foreach((json_t *)item, key, part)
            {
                size_t k = 0;
                while (k < 4 && strcmp(known[k], key))
                    k++;
                if (k == 4)
                    rc = err_set(err, -EINVAL,
                                 "pads[%zu].%.40s is unknown. There are: axes, multiple, fixed, unit_bytes", i, key);
            }
        if (rc == 0)
            rc = read_pad(item, i, &pads[i], err);
        if (rc < 0)
            return rc;
    }
    request->req.pads = pads;
    request->req.pad_size = sizeof *pads;
    request->req.n_pads = (uint32_t)json_array_size(value);
    return 0;
}

/* Their number is that of the first sample. */
static int read_extents(struct plan_request *request, const json_t *value, struct poise_err *err)
{
    int rc = count_phases(value, &request->req.n_extents, err);

    if (rc == 0 && request->req.n_extents > POISE_MAX_EXTENTS)
        rc = err_set(err, -EINVAL, "\"extents\" has %u numbers a sample: at most %d", request->req.n_extents,
                     POISE_MAX_EXTENTS);
    return rc < 0 ? rc : plan_column32(request, value, "extents", request->req.n_extents, &request->req.extent, err);
}

static const struct key keys[] = {
    {"lengths", NULL}, /* read first */
    {"cost", NULL},    /* second */
    {"algorithm", read_algorithm},
    {"micro_batch_size", read_micro_batch_size},
    {"num_microbatches", read_n_micro_batches},
    {"image_encoder_dp", read_image_encoder_dp},
    {"objective", read_objective},
    {"count", read_count},
    {"cut", read_cut},
    {"tolerance_ppm", read_tolerance},
    {"stages", read_stages},
    {"attention", read_attention},
    {"bytes", read_bytes},
    {"packed_bytes", read_packed_bytes},
    {"units", read_units},
    {"micro_batches", read_micro_batches},
    {"nodes", read_nodes},
    {"speeds", read_speeds},
    {"sync_sets", read_sync_sets},
    {"caps", read_caps},
    {"extents", read_extents},
    {"pads", read_pads},
};
#define N_KEYS (sizeof keys / sizeof *keys)

static int unknown_key(const char *key, struct poise_err *err)
{
    char list[384] = "";

    for (size_t i = 0; i < N_KEYS; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", keys[i].name);
    return err_set(err, -EINVAL, "the key \"%.40s\" is unknown. There are: %s", key, list);
}

int plan_request_read(json_t *root, struct plan_request *ret_request, struct poise_err *err)
{
    struct plan_request *request = ret_request;
    json_t *value;
    const char *key;
    int rc;

    if (!json_is_object(root))
        return err_set(err, -EINVAL, "the request must be a JSON object, {\"lengths\": ...}");
    memset(request, 0, sizeof *request);
    request->req.size = sizeof request->req;
    rc = read_lengths(request, json_object_get(root, "lengths"), err);
    if (rc == 0)
        rc = read_cost(request, json_object_get(root, "cost"), err);
    if (rc == 0)
        rc = plan_column64(request, json_object_get(root, "lengths"), "lengths", request->req.n_phases, PLAN_MOST,
                           &request->req.length, err);
    json_object_foreach(root, key, value)
    {
        size_t i = 0;
        while (i < N_KEYS && strcmp(keys[i].name, key) != 0)
            i++;
        if (rc == 0 && i == N_KEYS)
            rc = unknown_key(key, err);
        if (rc == 0 && keys[i].read && !json_is_null(value))
            rc = keys[i].read(request, value, err);
    }
    if (rc < 0)
        plan_request_fini(request);
    return rc;
}

void plan_request_fini(struct plan_request *request)
{
    for (uint32_t i = 0; i < request->n_memory; i++)
        free(request->memory[i]);
    request->n_memory = 0;
}
