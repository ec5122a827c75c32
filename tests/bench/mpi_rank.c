/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same samples to the same ranks with MPI_Alltoallv, as a trainer would that already has the plan: pack what goes
 * to others by destination, exchange, put every sample into its place of the batch; own samples are copied straight
 * there. To its favour: the plan is known to it for nothing, no metadata is sent, a sample is one piece and not six
 * fields, and nothing is padded. Started by mpirun; the path of the board is its argument.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/crew.h"

struct rank {
    struct bench_board *board;
    uint32_t rank, n_received;
    unsigned char *own, *batch;  /* [BENCH_SETS][own bytes], [BENCH_SETS][received bytes] */
    unsigned char *packed, *got; /* what is sent to others, what comes from others */
    uint64_t own_bytes, received_bytes;
    int *send_bytes, *send_at, *get_bytes, *get_at; /* [n_ranks] */
    uint32_t order[BENCH_MAX_SAMPLES];              /* received, as the batch has them */
};

static void add_up(const int *bytes, int *at, uint32_t n)
{
    for (uint32_t r = 1; r < n; r++)
        at[r] = at[r - 1] + bytes[r - 1];
}

static int set_up(struct rank *r, struct poise_err *err)
{
    const struct bench_board *board = r->board;
    uint32_t n = board->n_ranks;

    r->own_bytes = bench_own_bytes(board, r->rank);
    r->received_bytes = bench_received_bytes(board, r->rank);
    r->n_received = bench_received(board, r->rank, r->order);
    r->send_bytes = calloc(4 * n, sizeof *r->send_bytes);
    r->own = bench_memory(BENCH_SETS * r->own_bytes + 1);
    r->batch = bench_memory(BENCH_SETS * r->received_bytes + 1);
    r->packed = bench_memory(r->own_bytes + 1);
    r->got = bench_memory(r->received_bytes + 1);
    if (!r->send_bytes || !r->own || !r->batch || !r->packed || !r->got) {
        snprintf(err->text, sizeof err->text, "no memory for the buffers");
        return -ENOMEM;
    }
    r->send_at = r->send_bytes + n;
    r->get_bytes = r->send_at + n;
    r->get_at = r->get_bytes + n;
    for (uint32_t s = 0; s < n * board->per_rank; s++) {
        const struct bench_sample *sample = &board->samples[s];
        uint32_t from = s / board->per_rank;
        if (from == r->rank && sample->rank != r->rank)
            r->send_bytes[sample->rank] += (int)sample->bytes;
        if (from != r->rank && sample->rank == r->rank)
            r->get_bytes[from] += (int)sample->bytes;
    }
    add_up(r->send_bytes, r->send_at, n);
    add_up(r->get_bytes, r->get_at, n);
    return 0;
}

static void own_places(const struct rank *r, uint32_t set, void **ret_memory)
{
    unsigned char *at = r->own + set * r->own_bytes;

    for (uint32_t i = 0; i < r->board->per_rank; i++) {
        ret_memory[i] = at;
        at += r->board->samples[r->rank * r->board->per_rank + i].bytes;
    }
}

static int prepare(void *context, uint32_t turn, struct poise_err *err)
{
    struct rank *r = context;
    void *memory[BENCH_MAX_SAMPLES];
    int rc = r->own ? 0 : set_up(r, err);

    if (rc < 0)
        return rc;
    own_places(r, turn % BENCH_SETS, memory);
    bench_build(r->board, r->rank, turn, memory);
    return 0;
}

/* By destination, and for each by origin index: both sides know this order. */
static void pack(struct rank *r, void *const *memory)
{
    int at[BENCH_MAX_RANKS];

    memcpy(at, r->send_at, r->board->n_ranks * sizeof *at);
    for (uint32_t i = 0; i < r->board->per_rank; i++) {
        const struct bench_sample *sample = &r->board->samples[r->rank * r->board->per_rank + i];
        if (sample->rank == r->rank)
            continue;
        memcpy(r->packed + at[sample->rank], memory[i], sample->bytes);
        at[sample->rank] += (int)sample->bytes;
    }
}

static void unpack(struct rank *r, void *const *memory, unsigned char *batch)
{
    const struct bench_board *board = r->board;
    const unsigned char *from[BENCH_MAX_SAMPLES];
    int at[BENCH_MAX_RANKS];

    memcpy(at, r->get_at, board->n_ranks * sizeof *at);
    for (uint32_t s = 0; s < board->n_ranks * board->per_rank; s++) {
        uint32_t origin = s / board->per_rank;
        if (board->samples[s].rank != r->rank)
            continue;
        from[s] = origin == r->rank ? memory[s % board->per_rank] : r->got + at[origin];
        at[origin] += origin == r->rank ? 0 : (int)board->samples[s].bytes;
    }
    for (uint32_t k = 0; k < r->n_received; k++) {
        memcpy(batch, from[r->order[k]], board->samples[r->order[k]].bytes);
        batch += board->samples[r->order[k]].bytes;
    }
}

static int work(void *context, uint32_t turn, struct poise_err *err)
{
    struct rank *r = context;
    void *memory[BENCH_MAX_SAMPLES];

    own_places(r, turn % BENCH_SETS, memory);
    pack(r, memory);
    if (MPI_Alltoallv(r->packed, r->send_bytes, r->send_at, MPI_BYTE, r->got, r->get_bytes, r->get_at, MPI_BYTE,
                      MPI_COMM_WORLD) != MPI_SUCCESS) {
        snprintf(err->text, sizeof err->text, "MPI_Alltoallv failed");
        return -EIO;
    }
    unpack(r, memory, r->batch + turn % BENCH_SETS * r->received_bytes);
    return 0;
}

/* In the warm-up, every byte of the batch against what its origin would build. */
static int finish(void *context, uint32_t turn, struct crew_rank *mine, struct poise_err *err)
{
    struct rank *r = context;
    const unsigned char *batch = r->batch + turn % BENCH_SETS * r->received_bytes;
    int rc = 0;

    (void)mine;
    for (uint32_t k = 0; rc == 0 && turn <= r->board->warm_turns && k < r->n_received; k++) {
        const struct bench_sample *sample = &r->board->samples[r->order[k]];
        const struct payload_origin origin = {r->order[k] / r->board->per_rank, r->order[k] % r->board->per_rank, turn};
        unsigned char *expected = aligned_alloc(64, sample->bytes);
        struct payload payload;
        struct poise_sample built;

        if (!expected)
            return -ENOMEM;
        memcpy(expected, batch, sample->bytes); /* what lies between the fields is not looked at */
        payload_build(&origin, &sample->size, expected, &payload, &built);
        if (memcmp(expected, batch, sample->bytes))
            rc = -EIO;
        batch += sample->bytes;
        free(expected);
    }
    if (rc < 0)
        snprintf(err->text, sizeof err->text, "a sample is not as it was sent");
    return rc;
}

int main(int argc, char **argv)
{
    static const struct crew_work does = {prepare, work, finish};
    static struct rank r;
    int rank, n_ranks, status;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    r.board = argc == 2 ? bench_board_map(argv[1], false) : NULL;
    if (!r.board || (uint32_t)n_ranks != r.board->n_ranks) {
        fprintf(stderr, "mpi_rank: started by bench_shuffle only\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    r.rank = (uint32_t)rank;
    status = crew_serve(r.board, CREW_MPI, r.rank, &does, &r);
    if (status != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
