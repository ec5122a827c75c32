/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a step's samples change ranks on one node: the real library with a poised of its own, beside memcpy() of the
 * same bytes by as many processes, and beside MPI_Alltoallv with packing and unpacking. All live at the same time and
 * take turns, so each round has a time of each, and what is shown are medians of the ratios within a round.
 *
 *     bench_shuffle [--quick] [--rounds N] [--ranks N] [--case NAME] [--mpi PROGRAM | --no-mpi]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/host.h"
#include "tests/bench/ranks.h"

#define MOST_ROUNDS 200
#define DATA "tests/data/image_text.csv"

/* Fast turns first touch memory, grow the arenas and verify hashes: after so many nothing is made any more. */
#define WARM_TURNS 8
#define WARM_OTHERS BENCH_SETS /* copying and MPI: every buffer once */

struct bench_case {
    const char *name, *algorithm;
    uint32_t per_step;         /* samples, over all ranks */
    struct payload_size fixed; /* {0}: sizes of real images */
    int verify;                /* hashes in every step */
};

/* greedy does not look at where samples are, so that (n - 1) / n of them move; the default moves as few as it can. */
static const struct bench_case cases[] = {
    {"images", "greedy", 32, {0}, 0},
    {"1MB", "greedy", 64, {20, 22, 112, 30, 64}, 0},
    {"75KB", "greedy", 512, {4, 8, 12, 30, 64}, 0},
    {"default", "", 32, {0}, 0},
    {"verified", "greedy", 32, {0}, 1},
};
#define N_CASES (sizeof cases / sizeof *cases)

struct bench {
    struct host host;
    const char *only, *mpi; /* mpi: the program, NULL: none */
    char why_no_mpi[700];
    uint32_t ranks, rounds;
    int quick;
    FILE *json;
    uint32_t n_rows;
};

struct row { /* of each round; seconds */
    uint32_t n;
    double step[MOST_ROUNDS], shuffle[MOST_ROUNDS], cpu[MOST_ROUNDS];
    double copy[MOST_ROUNDS], copy_cpu[MOST_ROUNDS], mpi[MOST_ROUNDS];
    bool has_mpi;
    double bytes, moved; /* of a step */
};

/* --------------------------------------------------------------------------------------------------------- one case */

/* Samples of one size would all stay where they are, so the planner is told that half of the ranks have larger ones. */
static int64_t uneven_length(const struct bench_board *board, uint32_t s)
{
    return 100 + (int64_t)(s * UINT64_C(2654435761) % 4093) + (s / board->per_rank % 2 ? 4000 : 0);
}

static int make_samples(struct bench_board *board, const struct bench_case *c)
{
    static struct payload_size sizes[BENCH_MAX_SAMPLES];
    uint32_t n = board->n_ranks * board->per_rank;

    if (!c->fixed.grid_h && host_read_sizes(DATA, sizes, n) < n)
        return -1;
    for (uint32_t s = 0; s < n; s++) {
        struct bench_sample *sample = &board->samples[s];
        sample->size = c->fixed.grid_h ? c->fixed : sizes[s];
        sample->bytes = payload_bytes(&sample->size);
        sample->length = c->fixed.grid_h ? uneven_length(board, s) : payload_patches(&sample->size);
        sample->rank = UINT32_MAX;
    }
    return 0;
}

static struct bench_board *make_board(struct bench *b, const struct bench_case *c, uint32_t n_ranks, char *path,
                                      size_t n)
{
    struct bench_board *board;

    snprintf(path, n, "%s/board-%s-%u", b->host.poised.dir, c->name, n_ranks);
    board = bench_board_map(path, true);
    if (!board)
        return NULL;
    board->driver = getpid();
    board->n_ranks = n_ranks;
    board->per_rank = c->per_step / n_ranks;
    board->micro_batch = board->per_rank / 2;
    board->warm_turns = WARM_TURNS;
    board->verify_every = c->verify ? 1 : POISE_NONE;
    snprintf(board->algorithm, sizeof board->algorithm, "%s", c->algorithm);
    snprintf(board->job, sizeof board->job, "bench-%s-%u", c->name, n_ranks);
    snprintf(board->socket_dir, sizeof board->socket_dir, "%s", b->host.poised.dir);
    if (make_samples(board, c) == 0)
        return board;
    munmap(board, sizeof *board);
    return NULL;
}

static int spawn_ranks(struct bench *b, uint32_t n_ranks, int crew, char *board_path, char *fd, char *area)
{
    char self[PATH_MAX + 32], kind[8], rank[16];
    char *argv[] = {self, "--rank", kind, rank, board_path, fd, area, NULL};

    snprintf(self, sizeof self, "/proc/self/exe");
    snprintf(kind, sizeof kind, "%d", crew);
    for (uint32_t r = 0; r < n_ranks; r++) {
        snprintf(rank, sizeof rank, "%u", r);
        if (host_spawn(&b->host, crew, argv, false) < 0)
            return -1;
    }
    return 0;
}

/* In the first turn poise tells the mapping, which the others follow. */
static int spawn_poise(struct bench *b, struct bench_board *board, char *board_path)
{
    char why[700] = "no process";
    int rc = spawn_ranks(b, board->n_ranks, CREW_POISE, board_path, "-1", "0");

    for (uint32_t turn = 0; rc == 0 && turn < WARM_TURNS; turn++)
        rc = host_turn(&b->host, board, CREW_POISE, why);
    if (rc < 0)
        fprintf(stderr, "bench_shuffle: poise: %s\n", why);
    return rc;
}

static int spawn_copy(struct bench *b, struct bench_board *board, char *board_path)
{
    char fd_text[16], area_text[32], why[700] = "no process";
    uint64_t area = 0;
    int rc, fd = memfd_create("bench-copy", 0); /* inherited */

    for (uint32_t r = 0; r < board->n_ranks; r++)
        area = bench_received_bytes(board, r) > area ? bench_received_bytes(board, r) : area;
    area = (area + 4095) / 4096 * 4096;
    if (fd < 0 || ftruncate(fd, (off_t)(BENCH_SETS * board->n_ranks * area)) < 0)
        return -1;
    snprintf(fd_text, sizeof fd_text, "%d", fd);
    snprintf(area_text, sizeof area_text, "%llu", (unsigned long long)area);
    rc = spawn_ranks(b, board->n_ranks, CREW_COPY, board_path, fd_text, area_text);
    close(fd);
    for (uint32_t turn = 0; rc == 0 && turn < WARM_OTHERS; turn++)
        rc = host_turn(&b->host, board, CREW_COPY, why);
    if (rc < 0)
        fprintf(stderr, "bench_shuffle: memcpy: %s\n", why);
    return rc;
}

/* Without MPI the rest is of use, too. */
static bool spawn_mpi(struct bench *b, struct bench_board *board, char *board_path)
{
    char n[16], program[PATH_MAX];
    char *argv[] = {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1",
                    "--mca", "btl", "self,vader", "--mca", "mpi_yield_when_idle", "1", "-n", n, program,
                    board_path, NULL};

    if (!b->mpi)
        return false;
    snprintf(n, sizeof n, "%u", board->n_ranks);
    snprintf(program, sizeof program, "%s", b->mpi);
    if (host_spawn(&b->host, CREW_MPI, argv, true) < 0)
        return false;
    for (uint32_t turn = 0; turn < WARM_OTHERS; turn++)
        if (host_turn(&b->host, board, CREW_MPI, b->why_no_mpi) < 0) {
            fprintf(stderr, "bench_shuffle: MPI is left out: %s\n", b->why_no_mpi);
            private_print_log(&b->host.poised);
            b->mpi = NULL;
            return false;
        }
    return true;
}

/* From the first that began to the last that ended. */
static double wall(const struct bench_board *board, int crew)
{
    const struct crew_rank *ranks = board->crews[crew].ranks;
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;

    for (uint32_t r = 0; r < board->n_ranks; r++) {
        begin_ns = ranks[r].begin_ns < begin_ns ? ranks[r].begin_ns : begin_ns;
        end_ns = ranks[r].end_ns > end_ns ? ranks[r].end_ns : end_ns;
    }
    return (double)(end_ns - begin_ns) * 1e-9;
}

static double cpu(const struct bench_board *board, int crew)
{
    double sum = 0;

    for (uint32_t r = 0; r < board->n_ranks; r++)
        sum += (double)board->crews[crew].ranks[r].cpu_ns * 1e-9;
    return sum;
}

/* From the first rank that knew the outcome to the last that had all: both are told as times since the last rank's
 * submission. */
static double shuffle_wall(const struct bench_board *board)
{
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;

    for (uint32_t r = 0; r < board->n_ranks; r++) {
        const struct crew_rank *rank = &board->crews[CREW_POISE].ranks[r];
        uint64_t known_ns = rank->pipeline_ns - rank->shuffle_ns;
        begin_ns = known_ns < begin_ns ? known_ns : begin_ns;
        end_ns = rank->pipeline_ns > end_ns ? rank->pipeline_ns : end_ns;
    }
    return (double)(end_ns - begin_ns) * 1e-9;
}

static void note_poise(const struct bench_board *board, struct row *row, uint64_t poised_ns)
{
    row->step[row->n] = wall(board, CREW_POISE);
    row->shuffle[row->n] = shuffle_wall(board);
    row->cpu[row->n] = cpu(board, CREW_POISE) + (double)poised_ns * 1e-9;
}

/* Each crew once, another one first in every round. */
static int one_round(struct bench *b, struct bench_board *board, struct row *row, char why[700])
{
    uint64_t poised_ns;

    for (uint32_t i = 0; i < N_CREWS; i++) {
        int crew = (int)((i + row->n) % N_CREWS);
        if (crew == CREW_MPI && !row->has_mpi)
            continue;
        poised_ns = host_poised_cpu_ns(&b->host);
        if (host_turn(&b->host, board, crew, why) < 0)
            return -1;
        if (crew == CREW_POISE)
            note_poise(board, row, host_poised_cpu_ns(&b->host) - poised_ns);
        else if (crew == CREW_COPY)
            row->copy[row->n] = wall(board, crew), row->copy_cpu[row->n] = cpu(board, crew);
        else
            row->mpi[row->n] = wall(board, crew);
    }
    row->n++;
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------- tables */

struct ratio {
    double low, median, high; /* quartiles */
};

static struct ratio ratio_of(const double *a, const double *b, uint32_t n)
{
    double x[MOST_ROUNDS];

    for (uint32_t i = 0; i < n; i++)
        x[i] = b[i] > 0 ? a[i] / b[i] : 0;
    return (struct ratio){quantile(x, n, 0.25), quantile(x, n, 0.5), quantile(x, n, 0.75)};
}

static double median(const double *values, uint32_t n)
{
    double x[MOST_ROUNDS];

    memcpy(x, values, n * sizeof *x);
    return quantile(x, n, 0.5);
}

static void print_head(const struct bench *b)
{
    printf("Same-node shuffle. GB/s: medians of the rounds; ratios: median [quartiles] of the ratios within a round,\n"
           "above 1 poise is faster. shuffle: first rank knows the outcome to last has all; step: poise_submit() to the\n"
           "last poise_next(), with metadata, plan and slices; cpu: processor time of memcpy's processes over that of\n"
           "poise's and poised.\n");
    if (!b->mpi)
        printf("MPI_Alltoallv: skipped: %s\n", b->why_no_mpi);
    printf("\n%-9s %5s %6s %6s | %7s %7s %7s %7s | %-18s %-18s %5s | %-18s %-18s\n", "case", "ranks", "MB", "moved",
           "shuffle", "step", "memcpy", "MPI", "shuffle/memcpy", "step/memcpy", "cpu", "shuffle/MPI", "step/MPI");
}

static void print_ratio(const struct ratio *r)
{
    char text[40];

    snprintf(text, sizeof text, "%.2f [%.2f-%.2f]", r->median, r->low, r->high);
    printf(" %-18s", text);
}

static void json_ratio(FILE *json, const char *key, const struct ratio *r)
{
    fprintf(json, ", \"%s\": {\"median\": %.4f, \"quartiles\": [%.4f, %.4f]}", key, r->median, r->low, r->high);
}

static void print_row(struct bench *b, const struct bench_case *c, uint32_t n_ranks, const struct row *row)
{
    const double gb = row->bytes * 1e-9;
    struct ratio shuffle = ratio_of(row->copy, row->shuffle, row->n), step = ratio_of(row->copy, row->step, row->n);
    struct ratio cpu_ratio = ratio_of(row->copy_cpu, row->cpu, row->n);
    struct ratio mpi = ratio_of(row->mpi, row->shuffle, row->n), step_mpi = ratio_of(row->mpi, row->step, row->n);
    double shuffle_s = median(row->shuffle, row->n), step_s = median(row->step, row->n),
           copy_s = median(row->copy, row->n), mpi_s = median(row->mpi, row->n);

    printf("%-9s %5u %6.1f %5.0f%% | %7.2f %7.2f %7.2f ", c->name, n_ranks, row->bytes * 1e-6,
           row->moved / row->bytes * 100, gb / shuffle_s, gb / step_s, gb / copy_s);
    if (row->has_mpi)
        printf("%7.2f |", gb / mpi_s);
    else
        printf("%7s |", "-");
    print_ratio(&shuffle);
    print_ratio(&step);
    printf(" %5.2f |", cpu_ratio.median);
    if (row->has_mpi) {
        print_ratio(&mpi);
        print_ratio(&step_mpi);
    }
    printf("\n");
    fflush(stdout);
    if (!b->json)
        return;
    fprintf(b->json, "%s\n    {\"case\": \"%s\", \"ranks\": %u, \"rounds\": %u, \"bytes\": %.0f, "
            "\"bytes_moved\": %.0f, "
            "\"shuffle_gbps\": %.3f, \"step_gbps\": %.3f, \"memcpy_gbps\": %.3f", b->n_rows++ ? "," : "",
            c->name, n_ranks, row->n, row->bytes, row->moved, gb / shuffle_s, gb / step_s, gb / copy_s);
    json_ratio(b->json, "shuffle_to_memcpy", &shuffle);
    json_ratio(b->json, "step_to_memcpy", &step);
    json_ratio(b->json, "cpu_to_memcpy", &cpu_ratio);
    if (row->has_mpi) {
        fprintf(b->json, ", \"mpi_gbps\": %.3f", gb / mpi_s);
        json_ratio(b->json, "shuffle_to_mpi", &mpi);
        json_ratio(b->json, "step_to_mpi", &step_mpi);
    }
    fprintf(b->json, "}");
}

/* ------------------------------------------------------------------------------------------------------------- runs */

static void count_bytes(const struct bench_board *board, struct row *row)
{
    for (uint32_t s = 0; s < board->n_ranks * board->per_rank; s++) {
        row->bytes += (double)board->samples[s].bytes;
        row->moved += board->samples[s].rank != s / board->per_rank ? (double)board->samples[s].bytes : 0;
    }
}

static int run_case(struct bench *b, const struct bench_case *c, uint32_t n_ranks)
{
    char path[256], why[700] = "";
    struct bench_board *board = make_board(b, c, n_ranks, path, sizeof path);
    static struct row row;
    int rc;

    if (!board) {
        fprintf(stderr, "bench_shuffle: no board: %s\n", strerror(errno));
        return -1;
    }
    row = (struct row){0};
    rc = spawn_poise(b, board, path);
    if (rc == 0)
        rc = spawn_copy(b, board, path);
    row.has_mpi = rc == 0 && spawn_mpi(b, board, path);
    while (rc == 0 && row.n < b->rounds)
        rc = one_round(b, board, &row, why);
    if (why[0])
        fprintf(stderr, "bench_shuffle: %s, %u ranks: %s\n", c->name, n_ranks, why);
    if (rc == 0) {
        count_bytes(board, &row);
        print_row(b, c, n_ranks, &row);
    }
    host_dismiss(&b->host, board);
    munmap(board, sizeof *board);
    unlink(path);
    return rc;
}

static int run(struct bench *b)
{
    static const uint32_t ranks[] = {2, 4, 8};

    print_head(b);
    for (size_t c = 0; c < N_CASES; c++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
            bool wanted = b->ranks ? ranks[i] == b->ranks : b->quick ? ranks[i] == 2 : c < 3 || ranks[i] == 4;
            if (b->only ? !strcmp(b->only, cases[c].name) && wanted : wanted && (!b->quick || c == 0 || c == 2))
                if (run_case(b, &cases[c], ranks[i]) < 0)
                    return -1;
        }
    return 0;
}

static int be_rank(char **argv)
{
    struct bench_board *board = bench_board_map(argv[4], false);
    uint32_t rank = (uint32_t)strtoul(argv[3], NULL, 10);

    if (!board)
        return 2;
    return atoi(argv[2]) == CREW_POISE ? poise_rank(board, rank)
                                       : copy_rank(board, rank, atoi(argv[5]), strtoull(argv[6], NULL, 10));
}

static int parse(struct bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--quick"))
            b->quick = 1;
        else if (!strcmp(argv[i], "--no-mpi"))
            b->mpi = NULL;
        else if (!strcmp(argv[i], "--rounds") && ++i)
            b->rounds = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--ranks") && ++i)
            b->ranks = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--case") && ++i)
            b->only = value;
        else if (!strcmp(argv[i], "--mpi") && ++i)
            b->mpi = value;
        else
            return fprintf(stderr, "usage: bench_shuffle [--quick] [--rounds N] [--ranks 2|4|8] [--case NAME] "
                                   "[--mpi PROGRAM]\n"), -1;
    }
    if (b->rounds == 0)
        b->rounds = b->quick ? 3 : 21;
    b->rounds = b->rounds > MOST_ROUNDS ? MOST_ROUNDS : b->rounds;
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.why_no_mpi = "not asked for"};
    const char *json = getenv("BENCH_JSON");
    int rc;

    if (argc == 7 && !strcmp(argv[1], "--rank"))
        return be_rank(argv);
    if (parse(&b, argc, argv) < 0)
        return 2;
    if (b.mpi && access(b.mpi, X_OK) < 0) {
        snprintf(b.why_no_mpi, sizeof b.why_no_mpi, "Open MPI (openmpi-bin, libopenmpi-dev) is not installed");
        b.mpi = NULL;
    }
    host_apart();
    if (json && *json && !(b.json = fopen(json, "we"))) {
        fprintf(stderr, "bench_shuffle: %s: %s\n", json, strerror(errno));
        return 1;
    }
    if (b.json)
        fprintf(b.json, "{\"rows\": [");
    rc = host_start(&b.host);
    if (rc == 0)
        rc = run(&b);
    host_stop(&b.host);
    if (b.json)
        fprintf(b.json, "\n  ], \"mpi\": %s}\n", b.mpi ? "true" : "false");
    if (b.json && fclose(b.json) != 0)
        rc = -1;
    return rc == 0 ? 0 : 1;
}
