/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine can do: one memcpy() of all that a rank receives, shared memory to private memory, on as many
 * processes at once. It plans nothing, assembles nothing, and is one large copy where the library makes one a field of
 * a sample.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bench/ranks.h"

struct rank {
    struct bench_board *board;
    uint32_t rank;
    uint64_t area_bytes, received_bytes;
    unsigned char *shared, *own; /* [BENCH_SETS][n_ranks][area_bytes], [BENCH_SETS][received_bytes] */
};

static unsigned char *area(const struct rank *r, uint32_t set, uint32_t rank)
{
    return r->shared + ((uint64_t)set * r->board->n_ranks + rank) * r->area_bytes;
}

/* Writes this rank's area: data comes fresh from a loader in each step. */
static int prepare(void *context, uint32_t turn, struct poise_err *err)
{
    struct rank *r = context;
    uint64_t *words = (uint64_t *)(void *)area(r, turn % BENCH_SETS, r->rank);

    if (!r->own) {
        r->received_bytes = bench_received_bytes(r->board, r->rank);
        r->own = bench_memory(BENCH_SETS * r->received_bytes + 1);
    }
    if (!r->own) {
        snprintf(err->text, sizeof err->text, "no memory to copy to");
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < r->area_bytes / 8; i++)
        words[i] = turn * UINT64_C(0x9e3779b97f4a7c15) + i + r->rank;
    return 0;
}

static int work(void *context, uint32_t turn, struct poise_err *err)
{
    struct rank *r = context;

    (void)err;
    memcpy(r->own + turn % BENCH_SETS * r->received_bytes,
           area(r, turn % BENCH_SETS, (r->rank + 1) % r->board->n_ranks), r->received_bytes);
    return 0;
}

static int finish(void *context, uint32_t turn, struct crew_rank *mine, struct poise_err *err)
{
    struct rank *r = context;

    (void)mine;
    if (!memcmp(r->own + turn % BENCH_SETS * r->received_bytes,
                area(r, turn % BENCH_SETS, (r->rank + 1) % r->board->n_ranks),
                r->received_bytes < 8 ? r->received_bytes : 8))
        return 0;
    snprintf(err->text, sizeof err->text, "the copy is not what was copied");
    return -EIO;
}

int copy_rank(struct bench_board *board, uint32_t rank, int shared_fd, uint64_t area_bytes)
{
    static const struct crew_work does = {prepare, work, finish};
    struct rank r = {.board = board, .rank = rank, .area_bytes = area_bytes};

    r.shared = mmap(NULL, BENCH_SETS * board->n_ranks * area_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                    shared_fd, 0);
    if (r.shared == MAP_FAILED) {
        struct poise_err err;
        snprintf(err.text, sizeof err.text, "the shared memory cannot be mapped: %s", strerror(errno));
        crew_fail(board, CREW_COPY, rank, &err);
        return 1;
    }
    return crew_serve(board, CREW_COPY, rank, &does, &r);
}
