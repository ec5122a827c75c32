/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a record. The file is mapped, since a step of interest is somewhere in a gigabyte; a block is decoded only
 * when it is asked for. What a killed writer left at the end is named, never an error.
 */
#include "client/ctl/recorded.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

bool recorded_is(const char *path)
{
    uint8_t bytes[RECORD_START_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t n = 0;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) /* a pipe would lose what is read here */
        n = read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    return n > 0 && record_is(bytes, (size_t)n);
}

static int map_file(const char *path, struct recorded *rec, struct poise_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    void *bytes;

    if (fd < 0 || fstat(fd, &st) < 0) {
        int code = -errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, code, "%.300s: %s", path, strerror(-code));
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        close(fd);
        return err_set(err, -EINVAL, "%.300s %s", path, S_ISREG(st.st_mode) ? "is empty" : "is no regular file");
    }
    bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return err_set(err, -errno, "%.300s cannot be mapped: %s", path, strerror(errno));
    rec->bytes = bytes;
    rec->n_bytes = (size_t)st.st_size;
    return 0;
}

static int name_path(const char *path, int code, struct poise_err *err)
{
    struct poise_err inner = *err;

    return err_set(err, code, "%.200s: %s", path, inner.text);
}

int recorded_open(const char *path, struct recorded *ret_rec, struct poise_err *err)
{
    struct recorded rec = {.path = path};
    struct record_block block;
    int rc = map_file(path, &rec, err);

    if (rc < 0)
        return rc;
    rc = record_open(rec.bytes, rec.n_bytes, &rec.at, err);
    if (rc == 0)
        rc = record_next(rec.bytes, rec.n_bytes, &rec.at, &block, err);
    if (rc == 0)
        rc = err_set(err, -ENODATA, "the record was cut before its first block");
    if (rc > 0)
        rc = record_read_group(&block, &rec.group, err);
    if (rc == 0)
        rc = options_read(rec.group->join.options, rec.group->join.n_options, &rec.options, err);
    if (rc < 0) {
        recorded_close(&rec);
        return name_path(path, rc, err);
    }
    *ret_rec = rec;
    return 0;
}

void recorded_close(struct recorded *rec)
{
    wire_free(rec->group);
    if (rec->bytes)
        munmap((void *)(uintptr_t)rec->bytes, rec->n_bytes);
    memset(rec, 0, sizeof *rec);
}

int recorded_next(struct recorded *rec, struct record_block *ret_block)
{
    struct poise_err why;
    int rc;

    while ((rc = record_next(rec->bytes, rec->n_bytes, &rec->at, ret_block, &why)) > 0) {
        if (ret_block->kind == RECORD_STEP || ret_block->kind == RECORD_MISSING)
            return 1;
        rec->closed |= ret_block->kind == RECORD_END || ret_block->kind == RECORD_FULL;
        if (ret_block->kind == RECORD_FULL)
            snprintf(rec->end, sizeof rec->end, "recording stopped before step %" PRIu64 ": the file was at its limit",
                     ret_block->step);
    }
    if (rc < 0)
        snprintf(rec->end, sizeof rec->end, "%.200s", why.text);
    else if (!rec->closed)
        snprintf(rec->end, sizeof rec->end, "its writer did not close it: it was killed, or writes on");
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------------
 * steps */

static int add_tables(struct recorded_step *step, uint32_t n_ranks, struct poise_err *err)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        const struct wire_meta *meta = step->by_rank[r];
        int rc = meta->table ? tables_add(&step->tables, meta->table, meta->table_hash, step->step) : 0;

        if (rc < 0)
            return err_set(err, rc, "step %" PRIu64 ": the field table of rank %u is not the one that it names",
                           step->step, r);
        step->hashes[r] = meta->table_hash;
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (!wire_id_none(step->hashes[r]) && !tables_find(&step->tables, step->hashes[r]))
            return err_set(err, -EPROTO, "step %" PRIu64 ": the field table of rank %u was not recorded", step->step,
                           r);
    }
    return 0;
}

static int make_request(const struct recorded *rec, struct recorded_step *step, struct poise_err *err)
{
    uint32_t n_ranks = rec->group->join.n_ranks;
    struct outcome_input in = {.step = step->step, .n_ranks = n_ranks, .n_replicas = 1, .options = &rec->options};
    int rc = -ENOMEM;

    step->hashes = calloc(n_ranks, sizeof *step->hashes);
    step->by_rank = calloc(n_ranks, sizeof *step->by_rank);
    step->node = calloc(n_ranks, sizeof *step->node);
    step->sync_set = calloc(n_ranks, sizeof *step->sync_set);
    if (!step->hashes || !step->by_rank || !step->node || !step->sync_set)
        return err_set(err, rc, "no memory for %u ranks", n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        step->by_rank[r] = &step->metas->meta.metas[r];
        step->node[r] = step->by_rank[r]->node;
        step->sync_set[r] = step->by_rank[r]->sync_set;
    }
    rc = add_tables(step, n_ranks, err);
    if (rc == 0 && schema_new(&step->tables, step->hashes, n_ranks, &step->schema) < 0)
        rc = err_set(err, -ENOMEM, "no memory for the field tables");
    if (rc == 0 && step->schema->error.code) {
        *err = step->schema->error;
        rc = -EPROTO;
    }
    in.node = step->node;
    in.sync_set = step->sync_set;
    in.metas = step->by_rank;
    in.schema = step->schema;
    return rc < 0 ? rc : columns_make(&in, &step->columns, err);
}

int recorded_step_make(const struct recorded *rec, const struct record_block *block, struct recorded_step *ret_step,
                       struct poise_err *err)
{
    struct recorded_step step = {.step = block->step};
    int rc = record_read_step(block, rec->group->join.n_ranks, &step.outcome, &step.metas, err);

    if (rc == 0 && step.metas && step.outcome->outcome.kind == WIRE_OUTCOME_PLAN)
        rc = make_request(rec, &step, err);
    if (rc < 0) {
        recorded_step_free(&step);
        return name_path(rec->path, rc, err);
    }
    *ret_step = step; /* the request points into arrays, not into this struct */
    ret_step->columns.req.pads = ret_step->columns.pads;
    return 0;
}

void recorded_step_free(struct recorded_step *step)
{
    columns_free(&step->columns);
    schema_unref(step->schema);
    tables_free(&step->tables);
    wire_free(step->outcome);
    wire_free(step->metas);
    free(step->hashes);
    free(step->by_rank);
    free(step->node);
    free(step->sync_set);
    memset(step, 0, sizeof *step);
}

int recorded_plan_new(const struct recorded_step *step, struct poise_plan *ret_plan, struct poise_err *err)
{
    size_t n = (size_t)step->columns.n_total + 1;
    uint32_t *memory = calloc(n, 3 * sizeof *memory + 1);

    if (!memory)
        return err_set(err, -ENOMEM, "no memory for a plan of %zu samples", n - 1);
    *ret_plan = (struct poise_plan){.size = sizeof *ret_plan,
                                    .rank = memory,
                                    .micro_batch = memory + n,
                                    .row = memory + 2 * n,
                                    .reason = (uint8_t *)(memory + 3 * n)};
    return 0;
}

void recorded_plan_free(struct poise_plan *plan)
{
    free(plan->rank);
    memset(plan, 0, sizeof *plan);
}

uint32_t recorded_origin(const struct recorded_step *step, uint32_t sample)
{
    uint32_t low = 0, high = step->columns.req.n_ranks - 1;

    while (low < high) { /* the last rank whose first sample is at or before it */
        uint32_t middle = low + (high - low + 1) / 2;

        if (step->columns.first[middle] <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

double recorded_cost(const struct recorded_step *step, uint32_t sample)
{
    const struct poise_plan_request *req = &step->columns.req;
    uint64_t length[POISE_MAX_PHASES], attention[POISE_MAX_PHASES], cost;

    for (uint32_t p = 0; p < req->n_phases; p++) {
        length[p] = req->length[(size_t)p * step->columns.n_total + sample];
        if (req->attention)
            attention[p] = req->attention[(size_t)p * step->columns.n_total + sample];
        else if (__builtin_mul_overflow(length[p], length[p], &attention[p]))
            attention[p] = UINT64_MAX;
    }
    return plan_sample_cost(req->phases, req->n_phases, length, attention, &cost, NULL) < 0 ? 0 : (double)cost;
}
