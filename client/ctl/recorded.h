/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a record (proto/record.h) as the coordinator saw them: the planner's request made of the recorded metadata
 * by the coordinator's own code, so that the plan comes out the same, or another planner's does.
 */
#ifndef POISE_CTL_RECORDED_H
#define POISE_CTL_RECORDED_H

#include "daemon/core/outcome.h"
#include "proto/record.h"

struct recorded {
    const char *path;
    const uint8_t *bytes;       /* mapped */
    size_t n_bytes, at;         /* at: of the next block */
    struct wire_message *group; /* JOIN of rank 0 */
    struct options options;
    char end[256]; /* why the record is not whole, "" where it is; known when all blocks were read */
    bool closed;   /* its writer closed it, or stopped at its limit */
};

/* Whether the file begins as a record does. */
bool recorded_is(const char *path);

/* Errors name the path. *ret_rec: recorded_close(). */
int recorded_open(const char *path, struct recorded *ret_rec, struct poise_err *err);
void recorded_close(struct recorded *rec);

/* The next step's block: 1, or 0 at the end, also where that is torn: see end. */
int recorded_next(struct recorded *rec, struct record_block *ret_block);

struct recorded_step {
    uint64_t step;
    struct wire_message *outcome; /* NULL: not recorded */
    struct wire_message *metas;   /* NULL: they never came */
    struct wire_id *hashes;       /* [n_ranks] of field tables */
    struct tables tables;
    struct schema *schema;
    struct columns columns;           /* of a PLAN with metadata: columns.req is the request */
    uint32_t *sync_set, *node;        /* [n_ranks] */
    const struct wire_meta **by_rank; /* [n_ranks] */
};

/* Errors: -EPROTO what the record holds does not fit together, -ENOMEM. *ret_step: recorded_step_free(). */
int recorded_step_make(const struct recorded *rec, const struct record_block *block, struct recorded_step *ret_step,
                       struct poise_err *err);
void recorded_step_free(struct recorded_step *step);

/* Room for a plan of the step, with reasons: recorded_plan_free(). */
int recorded_plan_new(const struct recorded_step *step, struct poise_plan *ret_plan, struct poise_err *err);
void recorded_plan_free(struct poise_plan *plan);

/* The rank that a sample of the step came from. */
uint32_t recorded_origin(const struct recorded_step *step, uint32_t sample);

/* A sample's cost in all phases, saturated. */
double recorded_cost(const struct recorded_step *step, uint32_t sample);

/* poisectl simulate on a record: simulate_record.c. Returns the exit status. */
struct ctl_command;
int simulate_record(const struct ctl_command *command, const char *path, const char *algorithms, bool json);

#endif
