/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what `poisectl plan` reads: any JSON is refused with a text, or is a request that the planner refuses with a
 * text or plans. */
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/plan_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

#define SAMPLES_MAX 200u /* more only take time */

static void must(bool fine)
{
    if (!fine)
        abort();
}

static void plan(const struct plan_request *request)
{
    static uint32_t rank[SAMPLES_MAX + 1], micro_batch[SAMPLES_MAX + 1], row[SAMPLES_MAX + 1];
    static uint8_t reason[SAMPLES_MAX + 1];
    struct poise_plan plan = {
        .size = sizeof plan, .rank = rank, .micro_batch = micro_batch, .row = row, .reason = reason};
    struct poise_err err = {0};

    if (request->n_total > SAMPLES_MAX || request->req.n_ranks > SAMPLES_MAX ||
        request->req.n_micro_batches > SAMPLES_MAX)
        return;
    int rc = poise_plan(&request->req, &plan, &err);
    must(rc == 0 || (rc < 0 && err.code == rc && err.text[0]));
    for (uint32_t i = 0; rc == 0 && i < request->n_total; i++)
        must(rank[i] < request->req.n_ranks && micro_batch[i] < plan.n_micro_batches && reason[i] < POISE_N_REASONS);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct plan_request request;
    struct poise_err err = {0};
    json_error_t error;
    char where[64];

    plan_where((const char *)bytes, n_bytes, where, sizeof where);
    must(strlen(where) < sizeof where);
    json_t *root = json_loadb((const char *)bytes, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return 0;
    int rc = plan_request_read(root, &request, &err);
    must(rc == 0 || (rc < 0 && err.code == rc && err.text[0]));
    if (rc == 0) {
        plan(&request);
        plan_request_fini(&request);
    }
    json_decref(root);
    return 0;
}
