/* SPDX-License-Identifier: Apache-2.0 */
/* Planning without a group: poise_plan() for callers of any version of the header. Its request and plan are copied, since the
 * planner itself knows this build's sizes only. */
#include <errno.h>

#include "client/sized.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

/* Of the first release; a later one keeps these numbers. */
#define REQUEST_BYTES_0_1 sizeof(struct poise_plan_request)
#define PLAN_BYTES_0_1    sizeof(struct poise_plan)
#define PHASE_BYTES_0_1   sizeof(struct poise_phase)
#define PAD_BYTES_0_1     sizeof(struct poise_pad)
#define MAX_PADS          POISE_MAX_FIELDS

/* The planner reads arrays of this build's element size. */
static int copy_phases(struct poise_plan_request *req, struct poise_phase *phases, struct poise_err *err)
{
    if (req->n_phases > POISE_MAX_PHASES)
        return err_set(err, -EINVAL, "n_phases is %u: at most %d are allowed", req->n_phases, POISE_MAX_PHASES);
    if (req->n_phases && !req->phases)
        return err_set(err, -EINVAL, "phases is NULL with n_phases %u", req->n_phases);
    for (uint32_t i = 0; i < req->n_phases; i++) {
        int rc = sized_in(&phases[i], sizeof phases[i], (const unsigned char *)req->phases + i * req->phase_size,
                          req->phase_size, PHASE_BYTES_0_1, "struct poise_phase", err);
        if (rc < 0)
            return rc;
    }
    req->phases = phases;
    req->phase_size = sizeof *phases;
    return 0;
}

static int copy_pads(struct poise_plan_request *req, struct poise_pad *pads, struct poise_err *err)
{
    if (req->n_pads > MAX_PADS)
        return err_set(err, -EINVAL, "n_pads is %u: at most %d are allowed", req->n_pads, MAX_PADS);
    if (req->n_pads && !req->pads)
        return err_set(err, -EINVAL, "pads is NULL with n_pads %u", req->n_pads);
    for (uint32_t i = 0; i < req->n_pads; i++) {
        int rc = sized_in(&pads[i], sizeof pads[i], (const unsigned char *)req->pads + i * req->pad_size, req->pad_size,
                          PAD_BYTES_0_1, "struct poise_pad", err);
        if (rc < 0)
            return rc;
    }
    req->pads = pads;
    req->pad_size = sizeof *pads;
    return 0;
}

int poise_plan(const struct poise_plan_request *req, struct poise_plan *plan, struct poise_err *err)
{
    struct poise_plan_request own_req;
    struct poise_plan own_plan;
    struct poise_phase phases[POISE_MAX_PHASES];
    struct poise_pad pads[MAX_PADS];
    size_t plan_size;
    int rc;

    if (!req || !plan)
        return err_set(err, -EINVAL, "poise_plan: %s is NULL", req ? "plan" : "req");
    rc = sized_in(&own_req, sizeof own_req, req, req->size, REQUEST_BYTES_0_1, "struct poise_plan_request", err);
    if (rc == 0)
        rc = sized_in(&own_plan, sizeof own_plan, plan, plan->size, PLAN_BYTES_0_1, "struct poise_plan", err);
    if (rc == 0)
        rc = copy_phases(&own_req, phases, err);
    if (rc == 0)
        rc = copy_pads(&own_req, pads, err);
    if (rc < 0)
        return rc;
    own_req.size = sizeof own_req;
    plan_size = plan->size;
    own_plan.size = sizeof own_plan;
    rc = plan_make(&own_req, &own_plan, err);
    if (rc < 0)
        return rc;
    own_plan.size = plan_size;
    sized_out(plan, plan_size, &own_plan, sizeof own_plan);
    return 0;
}
