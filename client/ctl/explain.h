/* SPDX-License-Identifier: Apache-2.0 */
/* poisectl explain: a recorded step, planned again and put in words. */
#ifndef POISE_CTL_EXPLAIN_H
#define POISE_CTL_EXPLAIN_H

#include "client/ctl/ctl.h"
#include "client/ctl/recorded.h"

#define EXPLAIN_LIMITS 8u

struct explain_flow { /* samples that go the same way for the same reason */
    uint32_t from, to, reason, n;
    uint64_t bytes;
    double cost;
    uint32_t first; /* in moved */
};

struct explain {
    const struct recorded *rec;
    struct recorded_step step;
    uint32_t rank; /* POISE_NONE: all */
    bool json;
    bool planned;           /* all below is there */
    struct poise_plan plan; /* what the planner makes of it, also in a mode that did not deliver it */
    unsigned char id[16];   /* of what was delivered, made again */
    bool same;              /* as the recorded one */
    uint32_t n_reason[POISE_N_REASONS];
    uint32_t *moved; /* [n_moved] samples, by flow */
    uint32_t n_moved;
    struct explain_flow *flows; /* [n_flows] the most cost first */
    uint32_t n_flows;
    char limits[EXPLAIN_LIMITS][256]; /* what kept the plan from being better */
    uint32_t n_limits;
};

/* explain_plan.c: plans the step again. Errors: what the planner says, -ENOMEM. */
int explain_make(struct explain *explain, struct poise_err *err);
void explain_free(struct explain *explain);
const char *explain_mode(uint32_t mode);
/* A cost over the mean rank's. */
double explain_ratio(const struct explain *explain, double cost);

/* explain_print.c */
void explain_print(const struct explain *explain);
/* One line of a list. */
void explain_print_line(const struct explain *explain);
int explain_print_json(const struct explain *explain, struct poise_err *err);

#endif
