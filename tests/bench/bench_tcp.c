/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload between nodes beside a raw TCP copy of the same bytes: two processes on loopback, the sender's memory in the
 * one, the receiver's slot in the other. The library's two halves (payload_server.c, payload_client.c) with entries,
 * asks, pieces and assembly against write() from the same memory and read() into the same slot. They take turns, who
 * is first changes, and each round's ratio is of that round; plain and encrypted. All of it twice: with the C
 * library's allocator as it comes, and as docs/benchmarks.md says it should be set for such traffic.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "client/assemble.h"
#include "client/payload_client.h"
#include "client/payload_server.h"
#include "client/payload_socket.h"

#define MAX_SAMPLES 1024u
#define MAX_ROUNDS  101u
#define N_FIELDS    2u
#define COLUMNS     1176  /* of pixel rows, bfloat16 */
#define N_IDS       512   /* token ids at most, 64 bit, padded on the left */
#define WARM        3u    /* rounds before it counts */
#define N_SLOTS     2u    /* so that no round writes what the one before has in the caches */
#define TUNED       "POISE_BENCH_TCP_TUNED"

static uint32_t n_warm = WARM;

static struct tcp_case {
    const char *name;
    uint32_t n_samples, rows;
} cases[] = {{"4MB", 16, 1783}, {"1MB", 64, 446}, {"75KB", 800, 32}};

enum turn { TURN_POISE, TURN_RAW, TURN_END };

struct shared {
    pthread_barrier_t barrier;
    enum turn turn;
    uint64_t step;
    char endpoint[WIRE_ADDRESS_BYTES];
    uint16_t raw_port;
    _Atomic uint64_t done; /* steps that the receiver has */
    _Atomic uint64_t cpu_ns[2]; /* of both processes, by turn */
};

struct bench { /* both processes have one; samples are made before the fork */
    const struct tcp_case *at;
    bool curve;
    struct payload_key key;
    struct shared *shared;
    struct wire_field fields[N_FIELDS];
    struct merged merged;
    struct value sent[MAX_SAMPLES * N_FIELDS];
    struct directory_sample samples[MAX_SAMPLES];
    uint32_t out_rank[MAX_SAMPLES], at_place[MAX_SAMPLES], in_rank[MAX_SAMPLES];
    uint64_t in_bytes[MAX_SAMPLES], total;
    struct payload_member members[2];
    struct payload_group group;
    atomic_uint flying;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void __attribute__((noreturn)) die(const char *what)
{
    fprintf(stderr, "bench_tcp: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *memory(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

static void note(void *context, uint64_t step, uint32_t severity, const char *text)
{
    (void)context, (void)step, (void)severity;
    fprintf(stderr, "bench_tcp: %s\n", text);
}

/* Samples of one size in one stretch of memory, as a loader that uses poise_alloc() leaves them. */
static void make(struct bench *b)
{
    uint64_t pixels = (uint64_t)b->at->rows * COLUMNS * 2, ids = N_IDS * 8, one = (pixels + ids + 127) / 64 * 64;
    unsigned char *data = memory(one * b->at->n_samples);

    b->fields[0] = (struct wire_field){.name = "pixels", .dtype = POISE_BF16, .assembly = POISE_CONCAT, .n_dims = 2,
                                       .shape = {-1, COLUMNS}};
    b->fields[1] = (struct wire_field){.name = "ids", .dtype = POISE_I64, .assembly = POISE_PADDED, .n_dims = 1,
                                       .shape = {-1}, .axis_name = {"seq"}, .pad_side = POISE_PAD_LEFT};
    b->merged = (struct merged){.hash = {5, 6}, .table = {.n_fields = N_FIELDS, .fields = b->fields}};
    for (uint32_t i = 0; i < b->at->n_samples; i++, data += one) {
        int64_t n_ids = N_IDS - (int64_t)(i % 100);
        b->sent[i * N_FIELDS] =
            (struct value){.data = data, .present = true, .n_dims = 2, .shape = {b->at->rows, COLUMNS}};
        b->sent[i * N_FIELDS + 1] =
            (struct value){.data = data + pixels, .present = true, .n_dims = 1, .shape = {n_ids}};
        b->samples[i] = (struct directory_sample){.tag = i, .bytes = pixels + (uint64_t)n_ids * 8};
        b->out_rank[i] = 1;
        b->at_place[i] = i;
        b->in_bytes[i] = b->samples[i].bytes;
        b->total += b->samples[i].bytes;
        memset(data, (int)(i + 1), one);
    }
}

static void join(struct bench *b, uint32_t rank, void *zmq)
{
    for (uint32_t r = 0; r < 2; r++)
        b->members[r].incarnation.random = 1 + r;
    b->group = (struct payload_group){.zmq = zmq, .epoch = {1, 2}, .rank = rank, .n_ranks = 2,
                                      .incarnation = b->members[rank].incarnation, .members = b->members, .note = note,
                                      .key = b->curve ? &b->key : NULL};
    zmq_ctx_set(zmq, ZMQ_IO_THREADS, 2);
}

/* ----------------------------------------------------------------------------------------------------------- sender */

static int step_of(void *context, uint64_t step, struct payload_step *ret_step)
{
    struct bench *b = context;
    (void)step;
    *ret_step = (struct payload_step){.plan_id = {3, 4}, .table_hash = b->merged.hash, .table = &b->merged.table,
                                      .n_out = b->at->n_samples, .out_rank = b->out_rank, .flying = &b->flying};
    return 0;
}

static int sample_of(void *context, uint64_t step, uint32_t index, struct directory_sample *ret_sample,
                     struct value *values, struct poise_err *err)
{
    struct bench *b = context;
    (void)step, (void)err;
    *ret_sample = b->samples[index];
    memcpy(values, b->sent + (size_t)index * N_FIELDS, N_FIELDS * sizeof *values);
    return 0;
}

static void on_done(void *context, uint64_t step, uint32_t rank)
{
    struct bench *b = context;
    (void)rank;
    atomic_store(&b->shared->done, step + 1);
}

static void on_landed(void *context)
{
    (void)context;
}

static void send_raw(const struct bench *b, int fd)
{
    for (uint32_t i = 0; i < b->at->n_samples * N_FIELDS; i++) {
        const unsigned char *from = b->sent[i].data;
        uint64_t left = 0;
        value_bytes(&b->sent[i], b->fields[i % N_FIELDS].dtype, &left);
        while (left > 0) {
            ssize_t n = write(fd, from, left < PAYLOAD_PIECE_BYTES ? left : PAYLOAD_PIECE_BYTES);
            if (n < 0)
                die("write");
            from += n;
            left -= (uint64_t)n;
        }
    }
}

static int raw_listen(struct shared *shared)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, n) < 0 || listen(fd, 1) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &n) < 0)
        die("listen");
    shared->raw_port = address.sin_port;
    return fd;
}

static void serve_until_done(struct bench *b, struct payload_server *server, void *router, struct payload_zap *zap)
{
    while (atomic_load(&b->shared->done) <= b->shared->step) {
        struct pollfd fds[2] = {{.fd = payload_socket_fd(router), .events = POLLIN},
                                {.fd = zap ? payload_zap_fd(zap) : -1, .events = POLLIN}};
        bool any = zap && payload_zap_turn(zap, NULL, NULL) > 0;
        any |= payload_server_turn(server, now_ns());
        if (!any)
            poll(fds, 2, 10);
    }
}

static void be_sender(struct bench *b)
{
    static const struct payload_server_calls calls = {step_of, sample_of, on_done, on_landed};
    struct payload_server *server;
    struct payload_zap *zap = NULL;
    struct poise_err err;
    size_t n = sizeof b->shared->endpoint;
    int one = 1, listening = raw_listen(b->shared), raw;
    void *router, *zmq = zmq_ctx_new();

    join(b, 0, zmq);
    if ((b->curve && payload_zap_new(zmq, &b->key, &zap, &err) < 0) ||
        payload_socket_new(zmq, true, b->group.key, &router) < 0 || zmq_bind(router, "tcp://127.0.0.1:*") < 0 ||
        zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, b->shared->endpoint, &n) < 0 ||
        payload_server_new(&b->group, router, 0, &calls, b, &server, &err) < 0)
        die("sender");
    pthread_barrier_wait(&b->shared->barrier);
    raw = accept(listening, NULL, NULL);
    if (raw < 0 || setsockopt(raw, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
        die("accept");
    for (;;) {
        pthread_barrier_wait(&b->shared->barrier);
        if (b->shared->turn == TURN_END)
            break;
        uint64_t before_ns = cpu_ns();
        enum turn turn = b->shared->turn; /* the receiver goes on to the next when it has all */
        if (turn == TURN_POISE)
            serve_until_done(b, server, router, zap);
        else
            send_raw(b, raw);
        atomic_fetch_add(&b->shared->cpu_ns[turn], cpu_ns() - before_ns);
        pthread_barrier_wait(&b->shared->barrier);
    }
    payload_zap_free(zap);
    zmq_close(router);
    zmq_ctx_term(zmq);
    payload_server_free(server);
    exit(0);
}

/* --------------------------------------------------------------------------------------------------------- receiver */

struct receiver {
    struct payload_client *client;
    int raw;
    unsigned char *slots[N_SLOTS];
    uint32_t slot;
    struct directory_sample *samples;
    struct value *values;
    struct poise_tensor *tensors, fields[N_FIELDS];
};

static void arrived(void *context, uint32_t at, uint64_t n_bytes)
{
    (void)context, (void)at, (void)n_bytes;
}

static void rest(struct payload_client *client)
{
    struct pollfd fds[16];
    uint32_t n = payload_client_poll(client, fds, 16);
    if (!payload_client_turn(client, now_ns() / 1000000))
        poll(fds, n, 10);
}

/* As shuffle.c: entries, layout, places, bytes, padding, done. */
static uint64_t fetch(struct bench *b, struct receiver *r)
{
    struct wire_slice slice = {.rank = 1, .n_in = b->at->n_samples, .in_rank = b->in_rank, .in_index = b->at_place,
                               .in_bytes = b->in_bytes};
    struct transport_step step = {.step = b->shared->step, .plan_id = {3, 4}, .slice = &slice, .merged = &b->merged,
                                  .samples = r->samples, .values = r->values, .arrived = arrived};
    struct source source = {.rank = 0, .n = b->at->n_samples, .at = b->at_place};
    struct assemble_input in = {.table = &b->merged.table, .n_samples = b->at->n_samples, .values = r->values,
                                .step_extent = (uint32_t[POISE_MAX_EXTENTS]){0}};
    uint64_t begin_ns = now_ns(), n_bytes;
    struct poise_err err;
    int rc;

    while ((rc = payload_client_entries(r->client, &step, &source, &err)) == -EAGAIN)
        rest(r->client);
    if (rc == 0)
        rc = assemble_layout(&in, r->fields, &n_bytes, &err);
    if (rc < 0)
        die(err.text);
    assemble_place(&in, r->slots[r->slot++ % N_SLOTS], r->fields, r->tensors);
    step.tensors = r->tensors;
    payload_client_fetch(r->client, &step, &source, &err);
    assemble_pad(&in, r->fields, r->tensors, 0, b->at->n_samples);
    while ((rc = payload_client_fetch(r->client, &step, &source, &err)) == -EAGAIN)
        rest(r->client);
    if (rc < 0)
        die(err.text);
    begin_ns = now_ns() - begin_ns;
    payload_client_close(r->client, &source);
    payload_client_done(r->client, b->shared->step, 0);
    while (!payload_client_is_idle(r->client))
        rest(r->client);
    return begin_ns;
}

static uint64_t receive_raw(struct bench *b, struct receiver *r)
{
    unsigned char *to = r->slots[r->slot++ % N_SLOTS];
    uint64_t begin_ns = now_ns(), left = b->total;

    while (left > 0) {
        ssize_t n = read(r->raw, to, left);
        if (n <= 0)
            die("read");
        to += n;
        left -= (uint64_t)n;
    }
    return now_ns() - begin_ns;
}

static void check(const struct bench *b, const struct receiver *r)
{
    for (uint32_t i = 0; i < b->at->n_samples; i++) {
        const struct poise_tensor *pixels = &r->tensors[i * N_FIELDS];
        if (memcmp(pixels->data, b->sent[i * N_FIELDS].data, pixels->bytes) != 0) {
            errno = EBADMSG;
            die("a sample differs");
        }
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t n, double q)
{
    qsort(values, n, sizeof *values, compare);
    return values[(uint32_t)((n - 1) * q + 0.5)];
}

static void open_receiver(struct bench *b, struct receiver *r)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = b->shared->raw_port};
    struct poise_err err;

    join(b, 1, zmq_ctx_new());
    memcpy(b->members[0].address, b->shared->endpoint, sizeof b->members[0].address);
    r->raw = socket(AF_INET, SOCK_STREAM, 0);
    if (payload_client_new(&b->group, &r->client, &err) < 0 || r->raw < 0 ||
        connect(r->raw, (struct sockaddr *)&address, sizeof address) < 0)
        die("receiver");
    for (uint32_t i = 0; i < N_SLOTS; i++)
        r->slots[i] = memory(b->total + b->at->n_samples * N_IDS * 8 + 4096);
    r->samples = calloc(MAX_SAMPLES, sizeof *r->samples);
    r->values = calloc(MAX_SAMPLES * N_FIELDS, sizeof *r->values);
    r->tensors = calloc(MAX_SAMPLES * N_FIELDS, sizeof *r->tensors);
}

static uint64_t take_turn(struct bench *b, struct receiver *r, enum turn turn)
{
    b->shared->turn = turn;
    b->shared->step++;
    pthread_barrier_wait(&b->shared->barrier);
    uint64_t before_ns = cpu_ns(), ns = turn == TURN_RAW ? receive_raw(b, r) : fetch(b, r);
    atomic_fetch_add(&b->shared->cpu_ns[turn], cpu_ns() - before_ns);
    pthread_barrier_wait(&b->shared->barrier);
    if (turn == TURN_POISE)
        check(b, r);
    return ns;
}

static void be_receiver(struct bench *b, uint32_t n_rounds, FILE *json, bool first)
{
    double poise_gbs[MAX_ROUNDS], raw_gbs[MAX_ROUNDS], ratio[MAX_ROUNDS], p, w, m, q1, q3;
    struct receiver r = {0};
    const char *tuned = getenv(TUNED) ? "raised" : "default";

    pthread_barrier_wait(&b->shared->barrier);
    open_receiver(b, &r);
    for (uint32_t i = 0; i < n_rounds + n_warm; i++) {
        uint64_t ns[2];
        for (uint32_t k = 0; k < 2; k++)
            ns[(i + k) % 2] = take_turn(b, &r, (i + k) % 2 ? TURN_RAW : TURN_POISE);
        if (i + 1 == n_warm)
            b->shared->cpu_ns[TURN_POISE] = b->shared->cpu_ns[TURN_RAW] = 0;
        if (i < n_warm)
            continue;
        poise_gbs[i - n_warm] = (double)b->total / (double)ns[0];
        raw_gbs[i - n_warm] = (double)b->total / (double)ns[1];
        ratio[i - n_warm] = (double)ns[1] / (double)ns[0];
    }
    b->shared->turn = TURN_END;
    pthread_barrier_wait(&b->shared->barrier);
    payload_client_free(r.client);
    zmq_ctx_term(b->group.zmq);
    p = median(poise_gbs, n_rounds, 0.5);
    w = median(raw_gbs, n_rounds, 0.5);
    double cpu = (double)b->shared->cpu_ns[TURN_RAW] / (double)b->shared->cpu_ns[TURN_POISE];
    q1 = median(ratio, n_rounds, 0.25);
    m = median(ratio, n_rounds, 0.5);
    q3 = median(ratio, n_rounds, 0.75);
    printf("%-6s %-7s %-9s %8.2f %8.2f    %.2f [%.2f-%.2f]  %.2f\n", b->at->name, b->curve ? "curve" : "plain",
           tuned, p, w, m, q1, q3, cpu);
    fflush(stdout);
    if (json)
        fprintf(json, "%s{\"name\": \"%s\", \"payload\": \"%s\", \"malloc\": \"%s\", \"gb_s\": %.3f, "
                "\"raw_gb_s\": %.3f, \"ratio\": {\"median\": %.3f, \"q1\": %.3f, \"q3\": %.3f}, \"cpu\": %.3f}",
                first ? "" : ", ", b->at->name, b->curve ? "curve" : "plain", tuned, p, w, m, q1, q3, cpu);
}

static void run(const struct tcp_case *at, bool curve, uint32_t n_rounds, FILE *json, bool first)
{
    struct bench *b = calloc(1, sizeof *b);
    uint8_t secret[WIRE_KEY_BYTES];
    pthread_barrierattr_t shared;
    struct poise_err err;
    int status;
    pid_t pid;

    b->at = at;
    b->curve = curve;
    b->shared = mmap(NULL, sizeof *b->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&b->shared->barrier, &shared, 2);
    if (curve && (payload_key_make(secret, &err) < 0 || payload_key_load(secret, &b->key, &err) < 0))
        die(err.text);
    make(b);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_sender(b);
    }
    pid_t receiver = fork(); /* each case in processes of its own: what the allocator learned stays there */
    if (receiver == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_receiver(b, n_rounds, json, first);
        if (json)
            fflush(json);
        _exit(0);
    }
    if (waitpid(receiver, &status, 0) < 0 || status != 0) {
        kill(pid, SIGKILL);
        exit(1);
    }
    waitpid(pid, &status, 0);
    munmap(b->shared, sizeof *b->shared);
    free(b);
}

int main(int argc, char **argv)
{
    const char *path = getenv("BENCH_JSON"), *only = NULL;
    bool tuned = getenv(TUNED) != NULL, first = !tuned;
    uint32_t n_rounds = 21;
    FILE *json = path ? fopen(path, "ae") : NULL;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) {
            n_rounds = 2;
            n_warm = 1;
            for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
                cases[c].n_samples /= 8;
        }
        else if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
            n_rounds = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--case") && i + 1 < argc)
            only = argv[++i];
        else
            return fprintf(stderr, "usage: bench_tcp [--quick] [--rounds N] [--case NAME]\n"), 2;
    }
    if (n_rounds < 1 || n_rounds > MAX_ROUNDS)
        return fprintf(stderr, "bench_tcp: 1 to %u rounds\n", MAX_ROUNDS), 2;
    if (!tuned)
        printf("%-6s %-7s %-9s %8s %8s    %s\n", "case", "payload", "malloc", "GB/s", "raw GB/s", "poise / raw        cpu");
    if (json && !tuned)
        fprintf(json, "{\"rows\": [");
    fflush(stdout);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int curve = 0; curve < 2; curve++) {
            if (only && strcmp(only, cases[c].name) != 0)
                continue;
            run(&cases[c], curve, n_rounds, json, first);
            first = false;
        }
    if (json && tuned)
        fprintf(json, "]}\n");
    if (json && fclose(json) != 0)
        die(path);
    if (tuned)
        return 0;
    /* What docs/benchmarks.md names: blocks of a piece stay in the process, and its heap does not shrink. */
    setenv("MALLOC_MMAP_THRESHOLD_", "67108864", 1);
    setenv("MALLOC_TRIM_THRESHOLD_", "536870912", 1);
    setenv("MALLOC_TOP_PAD_", "67108864", 1);
    setenv(TUNED, "1", 1);
    execv("/proc/self/exe", argv);
    die("execv");
}
