/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's request from JSON, and its parts that several keys share. */
#ifndef POISE_CTL_PLAN_REQUEST_H
#define POISE_CTL_PLAN_REQUEST_H

#include <jansson.h>
#include <stdbool.h>

#include "poise.h"

struct plan_request {
    struct poise_plan_request req; /* points into the members below */
    uint32_t n_total;              /* samples of all ranks */
    struct poise_phase phases[POISE_MAX_PHASES];
    void *memory[24]; /* the columns, freed with the request */
    uint32_t n_memory;
};

/* Checks every key and value. On success: caller frees with plan_request_fini(). Borrows root, which must outlive it.
 * -EINVAL with a text that names the key, rank and sample; -ENOMEM. */
int plan_request_read(json_t *root, struct plan_request *ret_request, struct poise_err *err);
void plan_request_fini(struct plan_request *request);

/* plan_where.c: the path of what follows the first n bytes of a JSON text, "lengths[3][17]"; "" at its top. */
void plan_where(const char *text, size_t n, char *ret_where, size_t n_where);

/* plan_columns.c: */

#define PLAN_MOST INT64_MAX /* what a JSON integer can hold, and no length is larger */

/* n * size bytes, zeroed, freed with the request. NULL: err is filled. */
void *plan_memory(struct plan_request *request, size_t n, size_t size, struct poise_err *err);

/* A whole number from least to most. where: "lengths[3][0]". */
int plan_number(const json_t *value, const char *where, uint64_t least, uint64_t most, uint64_t *ret_number,
                struct poise_err *err);

/* A list a rank of a value a sample, each a number (width 1: also [number]) or a list of width numbers, as columns
 * [width][samples]. The ranks and samples must be those of "lengths". */
int plan_column64(struct plan_request *request, const json_t *list, const char *key, uint32_t width, uint64_t most,
                  const uint64_t **ret_column, struct poise_err *err);
int plan_column32(struct plan_request *request, const json_t *list, const char *key, uint32_t width,
                  const uint32_t **ret_column, struct poise_err *err);

/* A list with a number a rank. */
int plan_ranks32(struct plan_request *request, const json_t *list, const char *key, const uint32_t **ret_column,
                 struct poise_err *err);

/* A list of n caps: numbers, null (default) or "none". */
int plan_caps(struct plan_request *request, const json_t *list, const char *key, uint32_t n, const uint64_t **ret_caps,
              struct poise_err *err);
int plan_cap(const json_t *value, const char *where, uint64_t *ret_cap, struct poise_err *err);

#endif
