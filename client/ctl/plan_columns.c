/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads numbers and per-sample lists of a JSON request into the planner's columns. Every refusal says where: a list of
 * a thousand ranks is no place to search by hand.
 */
#include "client/ctl/plan_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

#define WHERE_BYTES 96 /* "attention[4294967295][4294967295][7]" and room */

static const char *type_words(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
        return "a number";
    case JSON_REAL:
        return "a number with a fraction or an exponent";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

void *plan_memory(struct plan_request *request, size_t n, size_t size, struct poise_err *err)
{
    void *memory;

    if (request->n_memory == sizeof request->memory / sizeof *request->memory) {
        err_set(err, -EINVAL, "too many columns");
        return NULL;
    }
    memory = calloc(n > 0 ? n : 1, size);
    if (!memory)
        err_set(err, -ENOMEM, "no memory for %zu values", n);
    else
        request->memory[request->n_memory++] = memory;
    return memory;
}

int plan_number(const json_t *value, const char *where, uint64_t least, uint64_t most, uint64_t *ret_number,
                struct poise_err *err)
{
    json_int_t number;

    if (!json_is_integer(value))
        return err_set(err, -EINVAL, "%s is %s: it must be a whole number from %llu to %llu", where, type_words(value),
                       (unsigned long long)least, (unsigned long long)most);
    number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < least || (uint64_t)number > most)
        return err_set(err, -EINVAL, "%s is %lld: it must be a whole number from %llu to %llu", where,
                       (long long)number, (unsigned long long)least, (unsigned long long)most);
    *ret_number = (uint64_t)number;
    return 0;
}

/* One sample's width numbers to column[phase * stride]. */
static int read_sample(const json_t *value, const char *key, size_t rank, size_t index, uint32_t width, uint64_t most,
                       uint64_t *column, size_t stride, struct poise_err *err)
{
    char where[WHERE_BYTES];
    int rc;

    if (!json_is_array(value) && width == 1) {
        snprintf(where, sizeof where, "%s[%zu][%zu]", key, rank, index);
        return plan_number(value, where, 0, most, column, err);
    }
    if (!json_is_array(value) || json_array_size(value) != width)
        return err_set_at(err, -EINVAL, (uint32_t)rank, (uint32_t)index, NULL,
                          "%s[%zu][%zu] must be a list of %u numbers, as the first sample's", key, rank, index, width);
    for (uint32_t i = 0; i < width; i++) {
        snprintf(where, sizeof where, "%s[%zu][%zu][%u]", key, rank, index, i);
        rc = plan_number(json_array_get(value, i), where, 0, most, &column[i * stride], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_shape(const struct plan_request *request, const json_t *list, const char *key, struct poise_err *err)
{
    if (!json_is_array(list) || json_array_size(list) != request->req.n_ranks)
        return err_set(err, -EINVAL, "\"%s\" must be a list of %u lists, one a rank, as \"lengths\" is", key,
                       request->req.n_ranks);
    for (uint32_t r = 0; r < request->req.n_ranks; r++) {
        const json_t *rank = json_array_get(list, r);
        if (!json_is_array(rank) || json_array_size(rank) != request->req.n_samples[r])
            return err_set_at(err, -EINVAL, r, POISE_NONE, NULL, "%s[%u] must be a list of %u, as lengths[%u] is", key,
                              r, request->req.n_samples[r], r);
    }
    return 0;
}

int plan_column64(struct plan_request *request, const json_t *list, const char *key, uint32_t width, uint64_t most,
                  const uint64_t **ret_column, struct poise_err *err)
{
    size_t at = 0;
    uint64_t *column;
    int rc = check_shape(request, list, key, err);

    if (rc < 0)
        return rc;
    column = plan_memory(request, (size_t)request->n_total * width, sizeof *column, err);
    if (!column)
        return err ? err->code : -ENOMEM;
    for (uint32_t r = 0; r < request->req.n_ranks; r++) {
        const json_t *rank = json_array_get(list, r);
        for (uint32_t i = 0; i < request->req.n_samples[r]; i++, at++) {
            rc = read_sample(json_array_get(rank, i), key, r, i, width, most, &column[at], request->n_total, err);
            if (rc < 0)
                return rc;
        }
    }
    *ret_column = column;
    return 0;
}

int plan_column32(struct plan_request *request, const json_t *list, const char *key, uint32_t width,
                  const uint32_t **ret_column, struct poise_err *err)
{
    const uint64_t *wide;
    uint32_t *column;
    size_t n = (size_t)request->n_total * width;
    int rc = plan_column64(request, list, key, width, UINT32_MAX - 1, &wide, err);

    if (rc < 0)
        return rc;
    column = plan_memory(request, n, sizeof *column, err);
    if (!column)
        return err ? err->code : -ENOMEM;
    for (size_t i = 0; i < n; i++)
        column[i] = (uint32_t)wide[i];
    *ret_column = column;
    return 0;
}

int plan_ranks32(struct plan_request *request, const json_t *list, const char *key, const uint32_t **ret_column,
                 struct poise_err *err)
{
    char where[WHERE_BYTES];
    uint32_t *column;

    if (!json_is_array(list) || json_array_size(list) != request->req.n_ranks)
        return err_set(err, -EINVAL, "\"%s\" must be a list of %u numbers, one a rank", key, request->req.n_ranks);
    column = plan_memory(request, request->req.n_ranks, sizeof *column, err);
    if (!column)
        return err ? err->code : -ENOMEM;
    for (uint32_t r = 0; r < request->req.n_ranks; r++) {
        uint64_t number;
        int rc;
        snprintf(where, sizeof where, "%s[%u]", key, r);
        rc = plan_number(json_array_get(list, r), where, 0, UINT32_MAX - 1, &number, err);
        if (rc < 0)
            return rc;
        column[r] = (uint32_t)number;
    }
    *ret_column = column;
    return 0;
}

int plan_cap(const json_t *value, const char *where, uint64_t *ret_cap, struct poise_err *err)
{
    if (json_is_null(value)) {
        *ret_cap = 0;
        return 0;
    }
    if (json_is_string(value) && !strcmp(json_string_value(value), "none")) {
        *ret_cap = POISE_NO_CAP;
        return 0;
    }
    if (!json_is_integer(value))
        return err_set(err, -EINVAL, "%s is %s: it must be a number, null (the default) or \"none\"", where,
                       type_words(value));
    return plan_number(value, where, 1, PLAN_MOST, ret_cap, err);
}

int plan_caps(struct plan_request *request, const json_t *list, const char *key, uint32_t n, const uint64_t **ret_caps,
              struct poise_err *err)
{
    char where[WHERE_BYTES];
    uint64_t *caps;

    if (!json_is_array(list) || json_array_size(list) != n)
        return err_set(err, -EINVAL, "caps.%s must be a list of %u, one a phase", key, n);
    caps = plan_memory(request, n, sizeof *caps, err);
    if (!caps)
        return err ? err->code : -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        int rc;
        snprintf(where, sizeof where, "caps.%s[%u]", key, i);
        rc = plan_cap(json_array_get(list, i), where, &caps[i], err);
        if (rc < 0)
            return rc;
    }
    *ret_caps = caps;
    return 0;
}
