/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the planner reaches: gap to the lower bound, bytes moved against the floor, time of one thread. Batches are
 * random draws from real sample sizes (tests/data), or from a log-normal distribution. Ratios are means over batches.
 *
 *     bench_planner [--batches N] [--seed S] [--only TEXT] [--algorithm NAME]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/planner/planner.h"

#define PATCH 14
#define MERGED 28
#define PATCH_BYTES (1176 * 2) /* bfloat16 pixel rows */

struct sizes { /* one row of a table */
    uint64_t patches, attention, tokens;
};

struct table {
    struct sizes *rows;
    size_t n;
};

static uint64_t state;

static uint64_t next_random(void)
{
    uint64_t x = state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double next_unit(void)
{
    return (double)((next_random() >> 11) + 1) / 9007199254740993.0;
}

/* Qwen2-VL's smart_resize; 0 patches where it refuses the image. */
static uint64_t patches_of(double w, double h, double max_pixels)
{
    double rh = nearbyint(h / MERGED) * MERGED, rw = nearbyint(w / MERGED) * MERGED, scale;

    if (h < MERGED || w < MERGED || fmax(h, w) / fmin(h, w) > 200)
        return 0;
    if (rh * rw > max_pixels) {
        scale = sqrt(h * w / max_pixels);
        rh = floor(h / scale / MERGED) * MERGED;
        rw = floor(w / scale / MERGED) * MERGED;
    } else if (rh * rw < 56 * 56) {
        scale = sqrt(56 * 56 / (h * w));
        rh = ceil(h * scale / MERGED) * MERGED;
        rw = ceil(w * scale / MERGED) * MERGED;
    }
    return (uint64_t)(rh / PATCH) * (uint64_t)(rw / PATCH);
}

static void add_row(struct table *t, struct sizes row)
{
    if ((t->n & (t->n - 1)) == 0 && !(t->rows = realloc(t->rows, (t->n ? 2 * t->n : 1) * sizeof row)))
        abort();
    t->rows[t->n++] = row;
}

static void load_images(struct table *t)
{
    FILE *file = fopen("tests/data/image_text.csv", "r");
    char line[512];
    double w, h;
    unsigned prompt, answer;

    while (file && fgets(line, sizeof line, file)) {
        char *p = strchr(line, ',');
        p = p ? strchr(p + 1, ',') : NULL;
        if (!p || sscanf(p, ",%lf,%lf", &w, &h) != 2)
            continue;
        char *last = strrchr(line, ','), *before = last;
        while (before > line && before[-1] != ',')
            before--;
        prompt = (unsigned)strtoul(before, NULL, 10);
        answer = (unsigned)strtoul(last + 1, NULL, 10);
        uint64_t n = patches_of(w, h, 1280 * 28 * 28);
        if (n)
            add_row(t, (struct sizes){n, n * n, n / 4 + 2 + prompt + answer});
    }
    if (file)
        fclose(file);
}

static void load_videos(struct table *t)
{
    FILE *file = fopen("tests/data/video_qa.csv", "r");
    char line[512];
    double frames, w, h;
    unsigned question, answer;

    while (file && fgets(line, sizeof line, file)) {
        char *p = strchr(line, ',');
        p = p ? strchr(p + 1, ',') : NULL;
        if (!p || sscanf(p, ",%lf,%lf,%lf,%u,%u", &frames, &w, &h, &question, &answer) != 5)
            continue;
        double n = fmin(fmax(floor(frames / 29.97 * 2 / 2) * 2, 4), 768);
        double max = fmax(fmin(768. * 784, 24576. * 784 / n * 2), 1.05 * 128 * 784);
        uint64_t slice = patches_of(w, h, max), slices = (uint64_t)n / 2;
        if (slice)
            add_row(t, (struct sizes){slice * slices, slice * slice * slices, slice * slices / 4 + question + answer});
    }
    if (file)
        fclose(file);
}

static void draw_log_normal(struct table *t, double mu, double sigma)
{
    for (int i = 0; i < 100000; i++) {
        double z = sqrt(-2 * log(next_unit())) * cos(2 * 3.14159265358979 * next_unit());
        uint64_t n = (uint64_t)fmax(1, exp(mu + sigma * z));
        add_row(t, (struct sizes){n, n * n, n});
    }
}

struct row {
    const char *name, *data, *cost;
    uint32_t n_ranks, per_rank, count, tolerance_ppm, text_percent, micro_batch, objective;
    const char *algorithm;
    int lift;          /* no caps on tokens */
    uint32_t per_node; /* ranks */
    int barrier;       /* ranks meet after the first phase */
};

struct batch {
    struct poise_plan_request req;
    struct poise_plan plan;
    struct poise_phase phases[POISE_MAX_PHASES];
    uint64_t *length, *attention, *bytes;
    uint32_t *n_samples, *node;
};

static void fill(struct batch *b, const struct row *row, const struct table *t)
{
    uint32_t n = row->n_ranks * row->per_rank;

    for (uint32_t r = 0; r < row->n_ranks; r++)
        b->n_samples[r] = row->per_rank;
    for (uint32_t s = 0; s < n; s++) {
        struct sizes x = t->rows[next_random() % t->n];
        if (next_random() % 100 < row->text_percent)
            x = (struct sizes){0, 0, 32 + (uint64_t)exp(next_unit() * 7)};
        b->length[s] = x.patches;
        b->attention[s] = x.attention;
        if (b->req.n_phases == 2) {
            b->length[n + s] = x.tokens;
            b->attention[n + s] = x.tokens * x.tokens;
        }
        b->bytes[s] = !strcmp(row->data, "log") ? x.patches
                                                : x.patches * PATCH_BYTES + (b->req.n_phases == 2 ? x.tokens * 17 : 0);
    }
}

static void prepare(struct batch *b, const struct row *row)
{
    static uint64_t none[2] = {POISE_NO_CAP, POISE_NO_CAP};
    uint32_t n = row->n_ranks * row->per_rank, n_phases = 0;

    memset(b, 0, sizeof *b);
    if (poise_preset(row->cost, b->phases, sizeof *b->phases, &n_phases, NULL) < 0)
        abort();
    b->length = calloc(2 * (size_t)n, 8);
    b->attention = calloc(2 * (size_t)n, 8);
    b->bytes = calloc(n, 8);
    b->n_samples = calloc(row->n_ranks, 4);
    b->plan = (struct poise_plan){.size = sizeof b->plan,
                                  .rank = calloc(n, 4),
                                  .micro_batch = calloc(n, 4),
                                  .row = calloc(n, 4),
                                  .reason = calloc(n, 1)};
    b->req = (struct poise_plan_request){.size = sizeof b->req,
                                         .n_ranks = row->n_ranks,
                                         .n_phases = n_phases,
                                         .n_samples = b->n_samples,
                                         .length = b->length,
                                         .attention = b->attention,
                                         .bytes = b->bytes,
                                         .phases = b->phases,
                                         .phase_size = sizeof *b->phases,
                                         .count = row->count,
                                         .tolerance_ppm = row->tolerance_ppm,
                                         .micro_batch_size = row->micro_batch,
                                         .objective = row->objective,
                                         .algorithm = row->algorithm};
    if (row->per_node) {
        b->node = calloc(row->n_ranks, 4);
        for (uint32_t r = 0; r < row->n_ranks; r++)
            b->node[r] = r / row->per_node;
        b->req.node = b->node;
    }
    if (row->barrier)
        b->phases[0].flags |= POISE_PHASE_BARRIER;
    if (row->objective == POISE_OBJECTIVE_PIPELINE)
        b->req.stages = 4;
    if (row->lift)
        b->req.cap_length_micro_batch = b->req.cap_length_rank = none, b->req.cap_bytes_rank = POISE_NO_CAP;
}

static void clean(struct batch *b)
{
    free(b->length);
    free(b->attention);
    free(b->bytes);
    free(b->n_samples);
    free(b->node);
    free(b->plan.rank);
    free(b->plan.micro_batch);
    free(b->plan.row);
    free(b->plan.reason);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : part ? INFINITY : 1;
}

static void run(const struct row *row, const struct table *t, int n_batches)
{
    double gap = 0, worst = 0, ratio = 0, moved = 0, floor = 0, before = 0, after = 0, ms[1000];
    double between = 0;
    uint64_t lacking = 0, ratio_moved = 0, ratio_floor = 0;
    struct batch b;
    struct poise_err err;

    if (t->n == 0) {
        printf("%-34s no data\n", row->name);
        return;
    }
    prepare(&b, row);
    for (int i = 0; i < n_batches; i++) {
        struct timespec from, to;
        fill(&b, row, t);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        if (plan_make(&b.req, &b.plan, &err) < 0) {
            printf("%-34s %s\n", row->name, err.text);
            break;
        }
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        const struct poise_quality *q = &b.plan.quality;
        double g = share(q->objective_after, q->objective_bound) - 1;
        gap += g;
        worst = fmax(worst, g);
        ratio_moved += q->bytes_moved / n_batches;
        ratio_floor += q->bytes_floor / n_batches;
        ratio += share(q->bytes_moved, q->bytes_floor);
        moved += share(q->bytes_moved, q->bytes_total);
        between += share(q->bytes_between_nodes, q->bytes_moved + !q->bytes_moved);
        floor += share(q->bytes_floor, q->bytes_total);
        before += share(q->objective_before, q->rank_mean);
        after += share(q->objective_after, q->rank_mean);
        lacking += q->lacking_after > q->lacking_before;
        ms[i] = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
    }
    qsort(ms, (size_t)n_batches, sizeof *ms, by_value);
    double n = n_batches;
    printf("%-34s %6.3f -> %5.3f  gap %6.3f%% (max %6.3f%%)  moved %5.1f%% floor %5.1f%%  x%5.2f (%5.2f)  %7.3f ms "
           "(min %6.3f)%s\n",
           row->name, before / n, after / n, gap / n * 100, worst * 100, moved / n * 100, floor / n * 100, ratio / n,
           share(ratio_moved, ratio_floor), ms[n_batches / 2], ms[0], lacking ? " EMPTIER" : "");
    if (row->per_node)
        printf("%-34s %5.1f%% of what moved went between nodes\n", "", between / n * 100);
    clean(&b);
}

#define VIT "qwen2.5-vl-vit"
#define VL "qwen2.5-vl-7b"
static const struct row rows[] = {
    {.name = "8x8 free", .data = "img", .cost = VIT, .n_ranks = 8, .per_rank = 8, .count = 2},
    {.name = "64x8 free", .data = "img", .cost = VIT, .n_ranks = 64, .per_rank = 8, .count = 2},
    {.name = "512x8 free", .data = "img", .cost = VIT, .n_ranks = 512, .per_rank = 8, .count = 2},
    {.name = "8x8 equal", .data = "img", .cost = VIT, .n_ranks = 8, .per_rank = 8},
    {.name = "64x8 equal", .data = "img", .cost = VIT, .n_ranks = 64, .per_rank = 8},
    {.name = "512x8 equal", .data = "img", .cost = VIT, .n_ranks = 512, .per_rank = 8},
    {.name = "4096x8 equal", .data = "img", .cost = VIT, .n_ranks = 4096, .per_rank = 8},
    {.name = "64x32 free", .data = "img", .cost = VIT, .n_ranks = 64, .per_rank = 32, .count = 2},
    {.name = "64x32 equal", .data = "img", .cost = VIT, .n_ranks = 64, .per_rank = 32},
    {.name = "64x32 free 0.1%",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .count = 2,
     .tolerance_ppm = 1000},
    {.name = "64x32 equal 0.1%", .data = "img", .cost = VIT, .n_ranks = 64, .per_rank = 32, .tolerance_ppm = 1000},
    {.name = "1024x32 free", .data = "img", .cost = VIT, .n_ranks = 1024, .per_rank = 32, .count = 2},
    {.name = "1024x32 equal", .data = "img", .cost = VIT, .n_ranks = 1024, .per_rank = 32},
    {.name = "4096x64 free", .data = "img", .cost = VIT, .n_ranks = 4096, .per_rank = 64, .count = 2},
    {.name = "4096x64 equal", .data = "img", .cost = VIT, .n_ranks = 4096, .per_rank = 64},
    {.name = "64x32 whole 0% free", .data = "img", .cost = VL, .n_ranks = 64, .per_rank = 32, .count = 2},
    {.name = "64x32 whole 10% free",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .count = 2,
     .text_percent = 10},
    {.name = "64x32 whole 20% free",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .count = 2,
     .text_percent = 20},
    {.name = "64x32 whole 20% equal mb4",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .text_percent = 20,
     .micro_batch = 4},
    {.name = "64x32 whole 20% free mb2",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .count = 2,
     .text_percent = 20,
     .micro_batch = 2},
    {.name = "video 64x8 free", .data = "vid", .cost = VIT, .n_ranks = 64, .per_rank = 8, .count = 2},
    {.name = "video 64x32 free", .data = "vid", .cost = VIT, .n_ranks = 64, .per_rank = 32, .count = 2},
    {.name = "log-normal 64x32 free", .data = "log", .cost = "length", .n_ranks = 64, .per_rank = 32, .count = 2},
    {.name = "log-normal 64x32 equal", .data = "log", .cost = "length", .n_ranks = 64, .per_rank = 32},
    {.name = "nodes of 8 64x32 free",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .count = 2,
     .per_node = 8},
    {.name = "nodes of 8 64x8 equal", .data = "img", .cost = VIT, .n_ranks = 64, .per_rank = 8, .per_node = 8},
    {.name = "barrier 64x32 10% free",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .count = 2,
     .text_percent = 10,
     .barrier = 1},
    {.name = "barrier 64x32 10% equal",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .text_percent = 10,
     .barrier = 1},
    {.name = "pipeline 64x32 mb4 free",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 4,
     .count = 2,
     .objective = 2},
    {.name = "pipeline 64x32 mb4 equal",
     .data = "img",
     .cost = VL,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 4,
     .objective = 2},
    {.name = "micro 64x32 mb1 lifted",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 1,
     .objective = 1,
     .lift = 1},
    {.name = "micro 64x32 mb2 lifted",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 2,
     .objective = 1,
     .lift = 1},
    {.name = "micro 64x32 mb4 lifted",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 4,
     .objective = 1,
     .lift = 1},
    {.name = "micro 64x32 mb8 lifted",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 8,
     .objective = 1,
     .lift = 1},
    {.name = "micro 64x32 mb1",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 1,
     .objective = 1},
    {.name = "micro 64x32 mb2",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 2,
     .objective = 1},
    {.name = "micro 64x32 mb4",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 4,
     .objective = 1},
    {.name = "micro 1024x32 mb4",
     .data = "img",
     .cost = VIT,
     .n_ranks = 1024,
     .per_rank = 32,
     .micro_batch = 4,
     .objective = 1},
    {.name = "micro 64x32 mb8",
     .data = "img",
     .cost = VIT,
     .n_ranks = 64,
     .per_rank = 32,
     .micro_batch = 8,
     .objective = 1},
};

int main(int argc, char **argv)
{
    struct table images = {0}, videos = {0}, logs = {0};
    const char *only = "", *algorithm = NULL;
    int n_batches = 50;

    state = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--batches"))
            n_batches = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed"))
            state = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--only"))
            only = argv[i + 1];
        else if (!strcmp(argv[i], "--algorithm"))
            algorithm = argv[i + 1];
    }
    n_batches = n_batches < 1 ? 1 : n_batches > 1000 ? 1000 : n_batches;
    load_images(&images);
    load_videos(&videos);
    draw_log_normal(&logs, 6.5, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct row row = rows[i];
        if (!strstr(row.name, only))
            continue;
        row.algorithm = algorithm ? algorithm : row.algorithm;
        run(&row,
            *row.data == 'i'   ? &images
            : *row.data == 'v' ? &videos
                               : &logs,
            row.n_ranks > 1000 ? (n_batches + 4) / 5 : n_batches);
    }
    free(images.rows);
    free(videos.rows);
    free(logs.rows);
    return 0;
}
