/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of the fuzzers, the same every time: `make fuzz-seeds-write` after the protocol has changed. A seed
 * is a valid input of each kind, from which mutations reach the code behind the first checks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/directory.h"
#include "proto/local.h"
#include "proto/options.h"
#include "proto/schema.h"
#include "tests/unit/messages.h"
#include "tests/unit/payload_case.h"
#include "tests/unit/record_case.h"

static const char *folder;

static void write_seed(const char *fuzzer, const char *name, const void *bytes, size_t n_bytes)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s/%s", folder, fuzzer, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n_bytes, file) != n_bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void write_message(const struct wire_message *msg, const char *variant)
{
    struct poise_err err;
    uint8_t *bytes;
    size_t n_bytes;
    char name[64];

    if (wire_encode(msg, &bytes, &n_bytes, &err) < 0) {
        fprintf(stderr, "%s: %s\n", wire_type_name(msg->type), err.text);
        exit(1);
    }
    snprintf(name, sizeof name, "%s_%s", wire_type_name(msg->type), variant);
    write_seed("wire", name, bytes, n_bytes);
    free(bytes);
}

static void wire_seeds(void)
{
    for (enum wire_type type = 1; type < WIRE_N_TYPES; type++) {
        struct message_maker defaults = {.random = 1, .defaults = true}, full = {.random = 7};
        write_message(message_make(&defaults, type), "defaults");
        write_message(message_make(&full, type), "full");
        message_done(&defaults);
        message_done(&full);
    }
}

static struct options usual(void)
{
    struct options options = {.n_phases = 2,
                              .algorithm = "least_move",
                              .count = POISE_COUNT_FREE,
                              .tolerance_ppm = 10000,
                              .micro_batch_size = 2,
                              .stages = 1,
                              .cap_length_rank = {0, POISE_NO_CAP}};

    options.phases[0] = (struct poise_phase){"vision", 52, 1, 3, 3, 0};
    options.phases[1] = (struct poise_phase){"llm", 14000, 28, 0, 3, POISE_PHASE_BARRIER};
    return options;
}

static size_t print_options(const struct options *options, char *text, size_t n_text)
{
    struct wire_option *list;
    uint32_t n;
    size_t used = 0;

    if (options_write(options, &list, &n, NULL) < 0)
        exit(1);
    for (uint32_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, n_text - used, "%s=%s\n", list[i].key, list[i].value);
    options_free(list, n);
    return used;
}

static void options_seeds(void)
{
    struct options options = usual(), other = usual();
    char text[8192];

    size_t n = print_options(&options, text, sizeof text);
    write_seed("options", "one", text, n);
    other.micro_batch_size = 4;
    other.n_phases = 1;
    text[n++] = '\n';
    n += print_options(&other, text + n, sizeof text - n);
    write_seed("options", "two", text, n);
}

/* A JOIN whose options can be read, and a META and an OUTCOME whose table passes every check. */
static void deep_seeds(void)
{
    static const struct poise_field declared[] = {
        {.name = "image_grid", .dtype = POISE_I64, .n_dims = 2, .shape = {-1, 3}},
        {.name = "input_ids",
         .dtype = POISE_I64,
         .assembly = POISE_PADDED,
         .n_dims = 1,
         .shape = {-1},
         .axis_name = {"tokens"}},
        {.name = "pixel_values",
         .dtype = POISE_BF16,
         .n_dims = 2,
         .shape = {-1, 1176},
         .rows_of = "image_grid",
         .n_divisors = 3,
         .divisor = {1, 2, 2}},
    };
    struct wire_field fields[3];
    struct wire_table table = {3, fields};
    struct options options = usual();
    struct message_maker maker = {.random = 3};
    struct wire_message *msg = message_make(&maker, WIRE_JOIN);

    if (options_write(&options, &msg->join.options, &msg->join.n_options, NULL) < 0)
        exit(1);
    write_message(msg, "usual");
    options_free(msg->join.options, msg->join.n_options);
    for (int i = 0; i < 3; i++)
        if (schema_field(&declared[i], &fields[i], NULL) < 0)
            exit(1);
    msg = message_make(&maker, WIRE_META);
    msg->meta.metas[0].table = &table;
    write_message(msg, "usual");
    msg = message_make(&maker, WIRE_OUTCOME);
    msg->outcome.table = &table;
    write_message(msg, "usual");
    message_done(&maker);
}

static void local_seeds(void)
{
    static const struct {
        const char *name;
        uint32_t type, n_fds;
        bool from_process;
    } kinds[] = {
        {"token", LOCAL_TOKEN, 0, false},       {"pidfd", LOCAL_PIDFD, 1, true},
        {"offer_up", LOCAL_OFFER, 1, true},     {"offer_down", LOCAL_OFFER, 1, false},
        {"retract_up", LOCAL_RETRACT, 0, true}, {"refused", LOCAL_REFUSED, 0, false},
    };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct local_message msg = {.magic = LOCAL_MAGIC,
                                    .version = WIRE_VERSION,
                                    .type = kinds[i].type,
                                    .kind = LOCAL_ARENA,
                                    .segment = 1,
                                    .bytes = 4096,
                                    .token = {1, 2},
                                    .instance = {3, 4},
                                    .epoch = {5, 6},
                                    .text = "/run/poise/poised.zmq"};
        uint8_t bytes[1 + sizeof msg];
        bytes[0] = (uint8_t)(kinds[i].n_fds << 1 | kinds[i].from_process);
        memcpy(bytes + 1, &msg, sizeof msg);
        write_seed("local", kinds[i].name, bytes, sizeof bytes);
    }
}

/* A whole file, and parts as fuzz_record.c takes them: kind, where to cut, two messages. */
static void record_seeds(void)
{
    struct record_case record = record_case_make();
    struct record_block block;
    size_t at;

    write_seed("record", "file", record.bytes, record.n_bytes);
    if (record_open(record.bytes, record.n_bytes, &at, NULL) < 0)
        exit(1);
    while (record_next(record.bytes, record.n_bytes, &at, &block, NULL) == 1) {
        size_t n = (size_t)block.n_first + block.n_second;
        uint8_t parts[4096] = {(uint8_t)block.kind, (uint8_t)block.n_first, (uint8_t)(block.n_first >> 8)};
        char name[32];
        if (n == 0 || n > sizeof parts - 3)
            continue;
        memcpy(parts + 3, block.first, n);
        snprintf(name, sizeof name, "parts_%u", block.kind);
        write_seed("record", name, parts, n + 3);
    }
    record_case_free(&record);
}

static void payload_seeds(void)
{
    for (uint32_t type = 1; type < PAYLOAD_N_TYPES; type++) {
        unsigned char frame[PAYLOAD_CASE_BYTES];
        size_t n = payload_case_make(type, frame);
        write_seed("payload", payload_type_name(type), frame, n);
    }
}

/* Files that people write. */
static void text_seeds(void)
{
    static const struct {
        const char *fuzzer, *name, *text;
    } seeds[] = {
        {"csv", "length", "length,group\n12,1\n7,\"a \"\"b\"\"\"\n"},
        {"csv", "sizes", "width;height;name\r\n640;480;a\r\n\r\n1.5;x;b\r\n"},
        {"csv", "marked", "\xef\xbb\xbflength\tattention\n1e3\t2\n"},
        {"config", "usual", "# as shipped\n[poised]\nsocket-dir = /run/poise\nlog-level = debug\nmode = shadow\n"},
        {"config", "listen", "listen = tcp://127.0.0.1:29410,ipc:///tmp/x\nheartbeat-ms = 500\nbeacon-ms=100\n"},
        {"plan", "usual",
         "{\"lengths\": [[100, 4], [4, 100]], \"cost\": \"length_squared\", \"micro_batch_size\": 1}"},
        {"plan", "phases",
         "{\"lengths\": [[[8, 2]], [[4, 2], [0, 9]]], \"phases\": [{\"name\": \"vision\", \"linear\": 3}, "
         "{\"name\": \"llm\", \"linear\": 5, \"quadratic\": 1, \"passes\": 3}], \"count\": \"free\", \"algorithm\": \"greedy\"}"},
    };

    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        write_seed(seeds[i].fuzzer, seeds[i].name, seeds[i].text, strlen(seeds[i].text));
}

/* Two samples of two fields, behind the number of samples that is told beside it. */
static void directory_seeds(void)
{
    static const struct poise_field declared[] = {
        {.name = "image_grid", .dtype = POISE_I64, .n_dims = 2, .shape = {-1, 3}},
        {.name = "pixel_values", .dtype = POISE_BF16, .n_dims = 2, .shape = {-1, 4}},
    };
    static uint64_t memory[512];
    struct directory_writer writer;
    struct wire_field fields[2];
    struct wire_table table = {2, fields};
    uint64_t n = directory_bytes(2, 4, 2);
    uint8_t seed[1 + sizeof memory];

    for (int i = 0; i < 2; i++)
        if (schema_field(&declared[i], &fields[i], NULL) < 0 || n > sizeof memory)
            exit(1);
    directory_begin(memory, 7, &table, 2, 4, &writer);
    for (uint32_t s = 0; s < 2; s++) {
        const struct directory_sample sample = {.tag = s, .loss_tokens = 5, .arrival_loss_tokens = 10, .bytes = 24 + 16};
        const struct directory_value values[] = {
            {.field = 0, .segment = 0, .n_dims = 2, .offset = 64 * s, .shape = {1, 3}},
            {.field = 1, .segment = 1, .n_dims = 2, .offset = 64 * s, .shape = {2, 4}},
        };
        directory_add(&writer, &sample, values, 2);
    }
    seed[0] = 2;
    memcpy(seed + 1, memory, n);
    write_seed("directory", "two", seed, n + 1);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    wire_seeds();
    deep_seeds();
    options_seeds();
    local_seeds();
    record_seeds();
    payload_seeds();
    text_seeds();
    directory_seeds();
    return 0;
}
