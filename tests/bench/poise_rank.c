/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the real library a turn, from poise_submit() to the last micro-batch: metadata, plan, slices, shuffle and
 * assembly, one after the other, since nothing is submitted ahead. The samples are written before (a loader's work).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/ranks.h"

#define MAX_MICRO_BATCHES 64
#define STATS_MS 1000 /* the engine counts a step right after handing it over */

struct rank {
    struct bench_board *board;
    uint32_t rank;
    struct poise *poise;
    struct payload *payloads;
    struct poise_sample *samples;
    int64_t *length;
    const struct poise_batch *held[MAX_MICRO_BATCHES];
    uint32_t n_held;
    uint64_t shuffle_ns; /* counted so far */
};

static int open_handle(struct rank *r, struct poise_err *err)
{
    const struct bench_board *board = r->board;
    struct poise_options opt = {.size = sizeof opt, .job = board->job, .rank = r->rank, .n_ranks = board->n_ranks,
                                .cost = "length", .algorithm = board->algorithm[0] ? board->algorithm : NULL,
                                .micro_batch_size = board->micro_batch, .socket_dir = board->socket_dir,
                                .verify_first = board->warm_turns, .verify_every = board->verify_every,
                                .open_timeout_ms = 60000, .peer_timeout_ms = 60000};
    int rc = poise_open(&opt, &r->poise, err);

    return rc < 0 ? rc : poise_declare(r->poise, payload_fields, PAYLOAD_FIELDS, sizeof *payload_fields, err);
}

static int prepare(void *context, uint32_t turn, struct poise_err *err)
{
    struct rank *r = context;
    int rc = r->poise ? 0 : open_handle(r, err);

    for (uint32_t i = 0; rc == 0 && i < r->board->per_rank; i++) {
        const struct bench_sample *sample = &r->board->samples[r->rank * r->board->per_rank + i];
        const struct payload_origin origin = {r->rank, i, turn - 1};
        void *memory;

        rc = poise_alloc(r->poise, sample->bytes, -1, &memory, err);
        if (rc < 0)
            return rc;
        payload_build(&origin, &sample->size, memory, &r->payloads[i], &r->samples[i]);
        r->length[i] = sample->length;
        r->samples[i].length = &r->length[i];
    }
    return rc;
}

static int work(void *context, uint32_t turn, struct poise_err *err)
{
    struct rank *r = context;
    int rc = poise_submit(r->poise, turn - 1, r->samples, r->board->per_rank, sizeof *r->samples, -1, err);

    for (bool last = false; rc == 0 && !last;) {
        const struct poise_batch *batch;

        if (r->n_held == MAX_MICRO_BATCHES)
            abort(); /* the driver makes two */
        rc = poise_next(r->poise, 0, -1, &batch, err);
        if (rc < 0)
            return rc;
        r->held[r->n_held++] = batch;
        last = batch->micro_batch + 1 == batch->n_micro_batches;
    }
    return rc;
}

/* Every byte of every micro-batch. */
static int check(struct rank *r, struct poise_err *err)
{
    struct payload_size sizes[BENCH_MAX_SAMPLES];
    bool ok[BENCH_MAX_SAMPLES];
    uint32_t n_wrong = 0;

    for (uint32_t b = 0; b < r->n_held; b++) {
        for (uint32_t s = 0; s < r->held[b]->n_samples; s++) {
            const struct poise_row *row = &r->held[b]->rows[s];
            sizes[s] = r->board->samples[row->origin_rank * r->board->per_rank + row->origin_index].size;
        }
        n_wrong += payload_check(r->held[b], sizes, ok);
    }
    if (n_wrong)
        snprintf(err->text, sizeof err->text, "%u samples are not as they were sent", n_wrong);
    return n_wrong ? -EIO : 0;
}

/* So that MPI moves the very same samples to the same ranks. */
static void tell_mapping(struct rank *r)
{
    const struct poise_mapping *mapping = r->held[0]->mapping;

    for (uint32_t i = 0; i < mapping->n_out; i++) {
        struct bench_sample *sample = &r->board->samples[r->rank * r->board->per_rank + i];
        sample->rank = mapping->out[i].rank;
        sample->place = mapping->out[i].place;
    }
}

static void read_times(struct rank *r, struct crew_rank *mine)
{
    const struct timespec pause = {.tv_nsec = 100000};
    struct poise_stats stats;
    uint64_t before = r->shuffle_ns;

    for (int i = 0; i < STATS_MS * 10; i++) {
        poise_stats(r->poise, &stats, sizeof stats);
        if (stats.shuffle_ns_total != before)
            break;
        nanosleep(&pause, NULL);
    }
    r->shuffle_ns = stats.shuffle_ns_total;
    mine->shuffle_ns = r->shuffle_ns - before;
    mine->pipeline_ns = stats.pipeline_ns_last;
}

static int finish(void *context, uint32_t turn, struct crew_rank *mine, struct poise_err *err)
{
    struct rank *r = context;
    int rc = turn <= r->board->warm_turns ? check(r, err) : 0;

    if (turn == 1)
        tell_mapping(r);
    read_times(r, mine);
    for (uint32_t b = 0; b < r->n_held; b++)
        poise_release(r->held[b]);
    r->n_held = 0;
    return rc;
}

int poise_rank(struct bench_board *board, uint32_t rank)
{
    static const struct crew_work does = {prepare, work, finish};
    struct rank r = {.board = board, .rank = rank};
    int status = 1;

    r.payloads = calloc(board->per_rank, sizeof *r.payloads);
    r.samples = calloc(board->per_rank, sizeof *r.samples);
    r.length = calloc(board->per_rank, sizeof *r.length);
    if (r.payloads && r.samples && r.length)
        status = crew_serve(board, CREW_POISE, rank, &does, &r);
    poise_close(r.poise, NULL);
    free(r.payloads);
    free(r.samples);
    free(r.length);
    return status;
}
