/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator alone: simulated nodes of 8 ranks each send the metadata of image-text batches (two phases, one ragged
 * axis) to one coordinator and take their slices. Two ways: a real poised over ZeroMQ (steps a second, bytes a sample, CPU and
 * memory), and the pure core in this process, where the time of decoding, deciding and encoding is told apart.
 *
 *   coordinator [--quick] [--steps N] [--samples N (a rank, 32)] [--nodes LIST (1,8,64,512)] [--algorithm NAME]
 *               [--micro-batch SIZE (4)]
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "daemon/core/coordinator.h"
#include "daemon/planner/planner.h"
#include "proto/options.h"
#include "proto/schema.h"

#define RANKS 8u /* a node */
#define PHASES 2u
static const char *algorithm = "least_move";
static uint32_t micro_batch = 4;

#define AHEAD 2u /* steps on their way: trainers submit ahead, so the next one is here when one is decided */

struct fleet {
    uint32_t n_nodes, n_ranks, n_samples;
    struct wire_option *options;
    uint32_t n_options;
    struct wire_id epoch;
    struct wire_field field;
    struct wire_table table;
    uint64_t *bytes, *loss, *length; /* of one node's step: [RANKS][..] */
    uint32_t *extent;
    uint64_t up, down; /* bytes of steps */
};

struct cost {
    double wall_s, cpu_s, decode_s, decide_s, encode_s;
    uint64_t rss_before, rss_after;
    uint64_t roster; /* bytes, to one node */
    double open_s;   /* from the first MEMBERS to the last ROSTER */
    uint32_t n_steps;
};

static double now_s(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "coordinator: %s: %s\n", what, why);
    exit(1);
}

/* -------------------------------------------------------------------------------------------------------------- messages */

static void fleet_new(struct fleet *f, uint32_t n_nodes, uint32_t n_samples)
{
    struct options options = {.n_phases = PHASES, .tolerance_ppm = 10000, .micro_batch_size = micro_batch, .stages = 1};
    size_t n = (size_t)RANKS * n_samples;
    struct poise_err err;

    memset(f, 0, sizeof *f);
    f->n_nodes = n_nodes;
    f->n_ranks = n_nodes * RANKS;
    f->n_samples = n_samples;
    snprintf(options.algorithm, sizeof options.algorithm, "%s", algorithm);
    strcpy(options.phases[0].name, "vision");
    strcpy(options.phases[1].name, "llm");
    options.phases[0].linear = 50;
    options.phases[1].linear = 400;
    options.phases[0].passes = options.phases[1].passes = 3;
    if (options_write(&options, &f->options, &f->n_options, &err) < 0)
        die("options", err.text);
    strcpy(f->field.name, "input_ids");
    f->field.dtype = POISE_I64;
    f->field.assembly = POISE_PADDED;
    f->field.n_dims = 1;
    f->field.shape[0] = -1;
    strcpy(f->field.axis_name[0], "tokens");
    f->field.pad_multiple = 1;
    f->table = (struct wire_table){1, &f->field};
    f->bytes = calloc(n, sizeof *f->bytes);
    f->loss = calloc(n, sizeof *f->loss);
    f->length = calloc(n * PHASES, sizeof *f->length);
    f->extent = calloc(n, sizeof *f->extent);
    if (!f->bytes || !f->loss || !f->length || !f->extent)
        die("memory", strerror(ENOMEM));
}

static void fleet_free(struct fleet *f)
{
    options_free(f->options, f->n_options);
    free(f->bytes);
    free(f->loss);
    free(f->length);
    free(f->extent);
}

static void members(struct fleet *f, uint32_t node, struct wire_join joins[RANKS], struct wire_message *msg)
{
    static char none[] = "";

    memset(msg, 0, sizeof *msg);
    memset(joins, 0, RANKS * sizeof *joins);
    msg->type = WIRE_MEMBERS;
    msg->members.instance = (struct wire_id){7, node + 1};
    snprintf(msg->members.name, sizeof msg->members.name, "node%u", node);
    msg->members.n_joins = RANKS;
    msg->members.joins = joins;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct wire_join *join = &joins[i];

        strcpy(join->job, "bench");
        strcpy(join->group, "dp");
        join->rank = node * RANKS + i;
        join->n_ranks = f->n_ranks;
        join->n_replicas = 1;
        join->incarnation.random = join->rank + 1;
        join->wire_version = WIRE_VERSION;
        join->planner_version = PLANNER_VERSION;
        join->pid = 1000 + i;
        join->coordinators = none;
        join->options = f->options;
        join->n_options = f->n_options;
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    return x ^ x >> 32;
}

/* Text of 20 to 1,000 tokens; seven of eight samples have an image of 64 to 4,096 patches, which are a quarter of that in tokens. */
static void metas(struct fleet *f, uint32_t node, uint64_t step, struct wire_meta metas[RANKS], struct wire_message *msg)
{
    memset(msg, 0, sizeof *msg);
    memset(metas, 0, RANKS * sizeof *metas);
    msg->type = WIRE_META;
    msg->meta.n_metas = RANKS;
    msg->meta.metas = metas;
    for (uint32_t r = 0; r < RANKS; r++) {
        size_t at = (size_t)r * f->n_samples;
        struct wire_meta *meta = &metas[r];

        *meta = (struct wire_meta){.epoch = f->epoch, .step = step, .rank = node * RANKS + r, .speed_ppm = 1000000,
                                   .n_samples = f->n_samples, .n_phases = PHASES, .n_extents = 1, .has_columns = true,
                                   .bytes = f->bytes + at, .loss_tokens = f->loss + at, .length = f->length + at * PHASES,
                                   .extent = f->extent + at, .table = step == 0 ? &f->table : NULL};
        meta->incarnation.random = meta->rank + 1;
        meta->table_hash = schema_hash(&f->table);
        for (uint32_t i = 0; i < f->n_samples; i++) {
            uint64_t x = mix((step << 32) + meta->rank * 4096u + i + 1), text = 20 + x % 981 * (x / 1024 % 1000) / 1000;
            uint64_t patches = x % 8 ? 64 + (x >> 20) % 64 * ((x >> 30) % 64) : 0;

            meta->length[i] = patches;
            meta->length[f->n_samples + i] = text + patches / 4;
            meta->loss_tokens[i] = text / 2;
            meta->extent[i] = (uint32_t)(text + patches / 4);
            meta->bytes[i] = 8 * (text + patches / 4) + 2352 * patches;
        }
        meta->digest = (struct wire_id){step + 1, meta->rank + 1};
    }
}

/* ----------------------------------------------------------------------------------------------------------- pure core */

static uint64_t memory_of(pid_t pid, const char *key)
{
    char path[64], line[200];
    uint64_t kb = 0;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kb = strtoull(line + strlen(key) + 1, NULL, 10);
    if (file)
        fclose(file);
    return kb << 10;
}

/* Applies what the core says: encodes each message as the shell would. Steps decided so far come back. */
static void take_update(struct fleet *f, const struct core_update *up, struct cost *cost, uint32_t *n_decided)
{
    double start = now_s(CLOCK_PROCESS_CPUTIME_ID);
    struct poise_err err;
    uint64_t step = UINT64_MAX;

    for (uint32_t i = 0; i < up->n_sends; i++) {
        const struct wire_message *msg = up->sends[i].msg;
        size_t n_bytes;
        uint8_t *bytes;

        if (wire_encode(msg, &bytes, &n_bytes, &err) < 0)
            die("encode", err.text);
        if (msg->type == WIRE_ROSTER)
            f->epoch = msg->roster.epoch;
        if (msg->type == WIRE_OUTCOME) {
            if (msg->outcome.kind != WIRE_OUTCOME_PLAN)
                die("no plan", msg->outcome.error.text);
            f->down += n_bytes;
            *n_decided += msg->outcome.step != step;
            step = msg->outcome.step;
        }
        free(bytes);
    }
    cost->encode_s += now_s(CLOCK_PROCESS_CPUTIME_ID) - start;
}

static void core_event(struct fleet *f, struct coordinator *c, uint32_t node, const struct wire_message *msg,
                       struct cost *cost, uint32_t *n_decided)
{
    struct coordinator_event event = {.now_ms = (uint64_t)(now_s(CLOCK_MONOTONIC) * 1000), .kind = COORDINATOR_FROM_NODE,
                                      .link = node + 1};
    struct wire_message *decoded;
    struct core_update up;
    struct poise_err err;
    size_t n_bytes;
    uint8_t *bytes;
    double start;

    if (wire_encode(msg, &bytes, &n_bytes, &err) < 0)
        die("encode", err.text);
    if (msg->type == WIRE_META)
        f->up += n_bytes;
    start = now_s(CLOCK_PROCESS_CPUTIME_ID);
    if (wire_decode(bytes, n_bytes, 0, &decoded, &err) < 0)
        die("decode", err.text);
    cost->decode_s += now_s(CLOCK_PROCESS_CPUTIME_ID) - start;
    start = now_s(CLOCK_PROCESS_CPUTIME_ID);
    event.msg = decoded;
    if (coordinator_step(c, &event, &up, &err) < 0)
        die("step", err.text);
    cost->decide_s += now_s(CLOCK_PROCESS_CPUTIME_ID) - start;
    take_update(f, &up, cost, n_decided);
    wire_free(decoded);
    free(bytes);
}

static void run_core(struct fleet *f, struct cost *cost)
{
    struct coordinator_config config = {.instance = {1, 1}, .beacon_ms = 250, .node_timeout_ms = 1000000, .warn_ms = 60000,
                                        .forget_ms = 1000000};
    struct wire_join joins[RANKS];
    struct wire_meta list[RANKS];
    struct coordinator *c;
    struct wire_message msg;
    uint32_t n_decided = 0, n_steps = cost->n_steps;

    if (coordinator_new(&config, &c) < 0)
        die("memory", strerror(ENOMEM));
    for (uint32_t node = 0; node < f->n_nodes; node++) {
        members(f, node, joins, &msg);
        core_event(f, c, node, &msg, cost, &n_decided);
    }
    memset(cost, 0, sizeof *cost);
    cost->n_steps = n_steps;
    for (uint32_t step = 0; step < n_steps; step++)
        for (uint32_t node = 0; node < f->n_nodes; node++) {
            metas(f, node, step, list, &msg);
            core_event(f, c, node, &msg, cost, &n_decided);
        }
    if (n_decided != n_steps)
        die("core", "not every step was decided");
    coordinator_free(c);
}

/* ---------------------------------------------------------------------------------------------------------- real poised */

struct daemon {
    pid_t pid;
    char dir[64], endpoint[100];
    void *context, **nodes; /* a DEALER each */
};

static void daemon_start(struct daemon *d, const struct fleet *f)
{
    char program[1024], flag[16], byte;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    int ready[2];

    snprintf(d->dir, sizeof d->dir, "/tmp/poise-bench-XXXXXX");
    if (n < 0 || !mkdtemp(d->dir) || pipe(ready) < 0)
        die("start", strerror(errno));
    program[n] = 0;
    strcpy(strrchr(program, '/'), "/../poised");
    snprintf(d->endpoint, sizeof d->endpoint, "ipc://%s/coordinator", d->dir);
    snprintf(flag, sizeof flag, "%d", ready[1]);
    d->pid = fork();
    if (d->pid == 0) {
        execl(program, "poised", "--config", "/dev/null", "--socket-dir", d->dir, "--listen", d->endpoint, "--ready-fd", flag,
              "--log-level", "warning", (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        die(program, "does not start");
    close(ready[0]);
    d->context = zmq_ctx_new();
    zmq_ctx_set(d->context, ZMQ_MAX_SOCKETS, (int)f->n_nodes + 16);
    d->nodes = calloc(f->n_nodes, sizeof *d->nodes);
    for (uint32_t i = 0; i < f->n_nodes; i++) {
        int none = 0;

        d->nodes[i] = zmq_socket(d->context, ZMQ_DEALER);
        if (!d->nodes[i])
            die("socket", zmq_strerror(errno));
        zmq_setsockopt(d->nodes[i], ZMQ_LINGER, &none, sizeof none);
        if (zmq_connect(d->nodes[i], d->endpoint) < 0)
            die("connect", zmq_strerror(errno));
    }
}

static void daemon_stop(struct daemon *d, const struct fleet *f)
{
    int status;

    for (uint32_t i = 0; i < f->n_nodes; i++)
        zmq_close(d->nodes[i]);
    zmq_ctx_term(d->context);
    free(d->nodes);
    kill(d->pid, SIGTERM);
    if (waitpid(d->pid, &status, 0) < 0 || status != 0)
        die("poised", "did not end well");
    rmdir(d->dir);
}

static uint64_t send_to(struct daemon *d, uint32_t node, const struct wire_message *msg)
{
    struct poise_err err;
    size_t n_bytes;
    uint8_t *bytes;

    if (wire_encode(msg, &bytes, &n_bytes, &err) < 0)
        die("encode", err.text);
    if (zmq_send(d->nodes[node], bytes, n_bytes, 0) < 0)
        die("send", zmq_strerror(errno));
    free(bytes);
    return n_bytes;
}

/* The next message of that type to a node; others are skipped. Returns its bytes. Decoded where asked for. */
static uint64_t receive(struct daemon *d, uint32_t node, enum wire_type type, struct wire_message **ret_msg)
{
    int limit = 120000;

    zmq_setsockopt(d->nodes[node], ZMQ_RCVTIMEO, &limit, sizeof limit);
    for (;;) {
        struct wire_message *msg;
        struct poise_err err;
        zmq_msg_t frame;
        uint64_t n_bytes;
        bool right;

        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, d->nodes[node], 0) < 0)
            die("receive", zmq_strerror(errno));
        n_bytes = zmq_msg_size(&frame);
        if (wire_decode(zmq_msg_data(&frame), n_bytes, 0, &msg, &err) < 0)
            die("decode", err.text);
        zmq_msg_close(&frame);
        right = msg->type == type;
        if (right && type == WIRE_OUTCOME && msg->outcome.kind != WIRE_OUTCOME_PLAN)
            die("no plan", msg->outcome.error.text);
        if (right && ret_msg)
            *ret_msg = msg;
        else
            wire_free(msg);
        if (right)
            return n_bytes;
    }
}

static double cpu_of(pid_t pid)
{
    char path[64], text[1024];
    unsigned long long user = 0, system = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(text, sizeof text, file) && strrchr(text, ')'))
        sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system);
    if (file)
        fclose(file);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static void send_step(struct fleet *f, struct daemon *d, uint32_t step)
{
    struct wire_meta list[RANKS];
    struct wire_message msg;

    for (uint32_t node = 0; node < f->n_nodes; node++) {
        metas(f, node, step, list, &msg);
        f->up += send_to(d, node, &msg);
    }
}

static void run_poised(struct fleet *f, struct cost *cost)
{
    struct wire_join joins[RANKS];
    struct wire_message msg, *roster;
    struct daemon d;

    daemon_start(&d, f);
    cost->open_s = -now_s(CLOCK_MONOTONIC);
    for (uint32_t node = 0; node < f->n_nodes; node++) {
        members(f, node, joins, &msg);
        send_to(&d, node, &msg);
    }
    for (uint32_t node = 0; node < f->n_nodes; node++) {
        cost->roster = receive(&d, node, WIRE_ROSTER, &roster);
        f->epoch = roster->roster.epoch;
        wire_free(roster);
    }
    cost->open_s += now_s(CLOCK_MONOTONIC);
    cost->rss_before = memory_of(d.pid, "VmRSS:");
    cost->cpu_s = -cpu_of(d.pid);
    cost->wall_s = -now_s(CLOCK_MONOTONIC);
    for (uint32_t step = 0; step < AHEAD && step < cost->n_steps; step++)
        send_step(f, &d, step);
    for (uint32_t step = 0; step < cost->n_steps; step++) {
        if (step + AHEAD < cost->n_steps)
            send_step(f, &d, step + AHEAD);
        for (uint32_t node = 0; node < f->n_nodes; node++)
            f->down += receive(&d, node, WIRE_OUTCOME, NULL);
    }
    cost->wall_s += now_s(CLOCK_MONOTONIC);
    cost->cpu_s += cpu_of(d.pid);
    cost->rss_after = memory_of(d.pid, "VmHWM:");
    daemon_stop(&d, f);
}

/* ----------------------------------------------------------------------------------------------------------------- main */

static void one_size(uint32_t n_nodes, uint32_t n_samples, uint32_t n_steps, FILE *json, bool first)
{
    struct cost core = {.n_steps = n_steps}, real = {.n_steps = n_steps};
    double n_all = (double)n_nodes * RANKS * n_samples, ms = 1e3 / n_steps, up, down;
    struct fleet f;

    fleet_new(&f, n_nodes, n_samples);
    run_core(&f, &core);
    f.up = f.down = 0;
    run_poised(&f, &real);
    up = (double)f.up / n_steps / n_all;
    down = (double)f.down / n_steps / n_all;
    printf("%4u ranks x %u on %3u nodes: %7.1f steps/s, poised %7.2f ms CPU a step; up %5.1f down %5.1f bytes a sample; memory "
           "%.1f -> %.1f MB (%.0f bytes a sample)\n",
           n_nodes * RANKS, n_samples, n_nodes, n_steps / real.wall_s, real.cpu_s * ms, up, down, (double)real.rss_before / 1e6,
           (double)real.rss_after / 1e6, ((double)real.rss_after - (double)real.rss_before) / n_all);
    printf("        the core alone, ms CPU a step: decode %.2f, collect and decide %.2f, encode %.2f\n", core.decode_s * ms,
           core.decide_s * ms, core.encode_s * ms);
    printf("        opening: %.2f s, a roster of %llu bytes to each node\n", real.open_s, (unsigned long long)real.roster);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s{\"ranks\": %u, \"samples\": %u, \"steps_a_second\": %.2f, \"cpu_ms\": %.3f, \"up_bytes\": %.2f, "
                "\"down_bytes\": %.2f, \"memory_bytes\": %llu, \"decode_ms\": %.3f, \"decide_ms\": %.3f, \"encode_ms\": %.3f}",
                first ? "" : ", ", n_nodes * RANKS, n_samples, n_steps / real.wall_s, real.cpu_s * ms, up, down,
                (unsigned long long)real.rss_after, core.decode_s * ms, core.decide_s * ms, core.encode_s * ms);
    fleet_free(&f);
}

int main(int argc, char *argv[])
{
    static const struct option options[] = {{"quick", no_argument, NULL, 'q'}, {"steps", required_argument, NULL, 's'},
                                            {"samples", required_argument, NULL, 'k'}, {"nodes", required_argument, NULL, 'n'},
                                            {"algorithm", required_argument, NULL, 'a'},
                                            {"micro-batch", required_argument, NULL, 'm'},
                                            {0}};
    const char *nodes = "1,8,64,512", *path = getenv("BENCH_JSON");
    uint32_t n_steps = 0, n_samples = 32;
    bool quick = false, first = true;
    FILE *json;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        quick |= option == 'q';
        if (option == 's')
            n_steps = (uint32_t)atoi(optarg);
        else if (option == 'k')
            n_samples = (uint32_t)atoi(optarg);
        else if (option == 'n')
            nodes = optarg;
        else if (option == 'a')
            algorithm = optarg;
        else if (option == 'm')
            micro_batch = (uint32_t)atoi(optarg);
        else if (option == '?')
            return 2;
    }
    if (quick)
        nodes = "1,64";
    json = path && *path ? fopen(path, "w") : NULL;
    if (json)
        fprintf(json, "{\"sizes\": [");
    for (const char *at = nodes; *at; at += strcspn(at, ","), at += *at == ',') {
        uint32_t n = (uint32_t)atoi(at);

        one_size(n, n_samples, n_steps ? n_steps : quick ? 20 : n >= 256 ? 40 : 200, json, first);
        first = false;
    }
    if (json) {
        fprintf(json, "]}\n");
        fclose(json);
    }
    return 0;
}
