/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step directory: what is written is what is read, and whatever else lies there is an error and never an access out
 * of bounds. Segments and directories are heap blocks of just their size, so that AddressSanitizer sees one byte too
 * many.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/directory.h"
#include "samples.h"

#define N_SAMPLES 5u
#define STEP 42u
#define RANK 3u

struct world { /* one sender with two segments, its own and the merged table */
    struct wire_field own_fields[3], merged_fields[4];
    struct wire_table own, merged;
    unsigned char *segment[2];
    uint64_t segment_bytes[2];
    unsigned char *directory;
    uint64_t bytes;
    struct directory_sample samples[N_SAMPLES];
};

static bool lookup(void *context, uint32_t segment, uint32_t generation, const void **ret_base, uint64_t *ret_bytes)
{
    struct world *w = context;

    if (segment >= 2 || generation != 1)
        return false;
    *ret_base = w->segment[segment];
    *ret_bytes = w->segment_bytes[segment];
    return true;
}

/* Sample i: pixels [i, 4] of bf16 (none for sample 2), ids [i + 1] of i32 at the very end of its segment for the last.
 * */
static void write_directory(struct world *w)
{
    uint64_t n_values = 2 * N_SAMPLES - 1, at = 0;
    struct directory_writer writer;

    w->bytes = directory_bytes(N_SAMPLES, n_values, 3);
    w->directory = calloc(1, w->bytes);
    directory_begin(w->directory, STEP, &w->own, N_SAMPLES, n_values, &writer);
    for (uint32_t i = 0; i < N_SAMPLES; i++) {
        struct directory_value values[2];
        uint32_t n = 0;

        if (i != 2) {
            values[n++] = (struct directory_value){ .field = 1, .segment = 0, .generation = 1, .n_dims = 2,
                                                    .offset = at, .shape = { i, 4 } };
            at += i * 8;
        }
        values[n++] = (struct directory_value){ .field = 0, .segment = 1, .generation = 1, .n_dims = 1,
                                                .offset = w->segment_bytes[1] - (i + 1) * 4, .shape = { i + 1 } };
        w->samples[i] = (struct directory_sample){ .tag = 100 + i, .loss_tokens = i, .arrival_loss_tokens = 7,
                                                   .bytes = (i == 2 ? 0 : i * 8) + (i + 1) * 4, .hash = 5,
                                                   .arrival_micro_batch = i / 2 };
        directory_add(&writer, &w->samples[i], values, n);
    }
}

static void make(struct world *w)
{
    *w = (struct world){ .segment_bytes = { 64, 20 } };
    w->own_fields[0] = samples_field("ids", POISE_I32, POISE_PADDED, 0, 1, SHAPE(-1));
    w->own_fields[1] = samples_field("pixels", POISE_BF16, POISE_CONCAT, 0, 2, SHAPE(-1, 4));
    w->own_fields[2] = samples_field("unknown_to_others", POISE_U8, POISE_OPAQUE, 0, 1, SHAPE(-1));
    w->merged_fields[0] = samples_field("audio", POISE_F32, POISE_CONCAT, 0, 1, SHAPE(-1));
    w->merged_fields[1] = w->own_fields[0];
    w->merged_fields[2] = w->own_fields[1];
    w->own = (struct wire_table){ .n_fields = 3, .fields = w->own_fields };
    w->merged = (struct wire_table){ .n_fields = 3, .fields = w->merged_fields };
    for (int i = 0; i < 2; i++) {
        w->segment[i] = malloc(w->segment_bytes[i]);
        memset(w->segment[i], 0x10 + i, w->segment_bytes[i]);
    }
    write_directory(w);
}

static void end(struct world *w)
{
    free(w->segment[0]);
    free(w->segment[1]);
    free(w->directory);
}

/* Opens and reads all; touches every byte of what was accepted. Returns how many samples were. */
static uint32_t read_all(struct world *w)
{
    struct directory dir;
    struct directory_sample sample;
    struct value values[4];
    uint32_t n = 0;
    volatile unsigned char sum = 0;

    if (directory_open(w->directory, w->bytes, STEP, RANK, N_SAMPLES, &w->merged, &dir, NULL) < 0)
        return 0;
    for (uint32_t i = 0; i < N_SAMPLES; i++) {
        uint64_t total = 0, bytes;
        int rc = directory_read(&dir, i, w->samples[i].bytes, lookup, w, &sample, values, NULL);

        cr_assert(rc == 0 || rc == -EPROTO || rc == -EAGAIN);
        if (rc < 0)
            continue;
        n++;
        for (uint32_t f = 0; f < w->merged.n_fields; f++) {
            cr_assert_eq(value_check(&values[f], &w->merged_fields[f], 0, 0, &bytes, NULL), 0);
            total += bytes;
            for (uint64_t k = 0; k < bytes; k++)
                sum += ((const unsigned char *)values[f].data)[k];
        }
        cr_assert_eq(total, w->samples[i].bytes);
    }
    directory_close(&dir);
    return n;
}

Test(directory, what_is_written_is_read)
{
    struct world w;
    struct directory dir;
    struct directory_sample sample;
    struct value values[4];
    struct poise_err err;

    make(&w);
    cr_assert(directory_open(w.directory, w.bytes, STEP, RANK, N_SAMPLES, &w.merged, &dir, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < N_SAMPLES; i++) {
        cr_assert(directory_read(&dir, i, w.samples[i].bytes, lookup, &w, &sample, values, &err) == 0, "%s", err.text);
        cr_assert(sample.tag == 100 + i && sample.loss_tokens == i && sample.arrival_loss_tokens == 7 &&
                  sample.bytes == w.samples[i].bytes && sample.hash == 5 && sample.arrival_micro_batch == i / 2);
        cr_assert(!values[0].present, "a field that this rank never had");
        cr_assert(values[1].present && values[1].n_dims == 1 && values[1].shape[0] == i + 1);
        cr_assert(values[1].data == w.segment[1] + 20 - (i + 1) * 4);
        cr_assert_eq(values[2].present, i != 2);
        if (i != 2)
            cr_assert(values[2].shape[0] == i && values[2].shape[1] == 4);
    }
    directory_close(&dir);
    cr_assert_eq(read_all(&w), N_SAMPLES);
    end(&w);
}

Test(directory, no_samples_and_no_fields)
{
    struct wire_table none = { 0 };
    struct directory_writer writer;
    struct directory dir;
    struct poise_err err;
    uint64_t bytes = directory_bytes(0, 0, 0);
    void *memory = malloc(bytes);

    directory_begin(memory, 1, &none, 0, 0, &writer);
    cr_assert(directory_open(memory, bytes, 1, 0, 0, &none, &dir, &err) == 0, "%s", err.text);
    cr_assert_eq(directory_read(&dir, 0, 0, lookup, NULL, NULL, NULL, &err), -EPROTO);
    directory_close(&dir);
    free(memory);
}

Test(directory, more_than_announced_does_not_overflow)
{
    struct wire_table none = { 0 };
    struct directory_writer writer;
    struct directory_sample sample = { 0 };
    struct directory_value value = { 0 };
    void *memory = malloc(directory_bytes(1, 1, 0));

    directory_begin(memory, 1, &none, 1, 1, &writer);
    directory_add(&writer, &sample, &value, 1);
    directory_add(&writer, &sample, &value, 1);
    free(memory);
    cr_assert_eq(directory_bytes(1, UINT64_MAX / 2, 1), UINT64_MAX);
}

Test(directory, a_plan_that_says_another_size_is_an_error_naming_rank_and_sample)
{
    struct world w;
    struct directory dir;
    struct directory_sample sample;
    struct value values[4];
    struct poise_err err;

    make(&w);
    cr_assert_eq(directory_open(w.directory, w.bytes, STEP, RANK, N_SAMPLES, &w.merged, &dir, NULL), 0);
    cr_assert_eq(directory_read(&dir, 4, w.samples[4].bytes + 1, lookup, &w, &sample, values, &err), -EPROTO);
    cr_assert(err.rank == RANK && err.sample == 4 && strstr(err.text, "rank 3, sample 4"), "%s", err.text);
    cr_assert(strstr(err.text, "52 bytes, the plan says 53"), "%s", err.text);
    cr_assert_eq(directory_read(&dir, 4, DIRECTORY_ANY_BYTES, lookup, &w, &sample, values, &err), 0);
    cr_assert_eq(directory_read(&dir, N_SAMPLES, 0, lookup, &w, &sample, values, &err), -EPROTO);
    cr_assert_eq(directory_read(&dir, UINT32_MAX, 0, lookup, &w, &sample, values, &err), -EPROTO);
    directory_close(&dir);
    end(&w);
}

Test(directory, one_of_another_step_or_count_is_refused)
{
    struct world w;
    struct directory dir;
    struct poise_err err;

    make(&w);
    cr_assert_eq(directory_open(w.directory, w.bytes, STEP + 1, RANK, N_SAMPLES, &w.merged, &dir, &err), -EPROTO);
    cr_assert_eq(directory_open(w.directory, w.bytes, STEP, RANK, N_SAMPLES + 1, &w.merged, &dir, &err), -EPROTO);
    cr_assert_eq(directory_open(w.directory, w.bytes - 1, STEP, RANK, N_SAMPLES, &w.merged, &dir, &err), -EPROTO);
    cr_assert_eq(directory_open(w.directory, 0, STEP, RANK, N_SAMPLES, &w.merged, &dir, &err), -EPROTO);
    cr_assert_eq(err.rank, RANK);
    end(&w);
}

Test(directory, a_segment_that_is_not_here_yet_is_asked_for_again)
{
    struct world w;
    struct directory dir;
    struct directory_sample sample = { .tag = 1 };
    struct value values[4];
    struct poise_err err;
    struct directory_value *first;

    make(&w);
    first = (struct directory_value *)(w.directory + directory_bytes(N_SAMPLES, 0, 3));
    first[2].generation = 2;
    cr_assert_eq(directory_open(w.directory, w.bytes, STEP, RANK, N_SAMPLES, &w.merged, &dir, NULL), 0);
    cr_assert_eq(directory_read(&dir, 1, w.samples[1].bytes, lookup, &w, &sample, values, &err), -EAGAIN);
    cr_assert(sample.tag == 1 && strstr(err.text, "generation 2"), "%s", err.text);
    first[2].generation = 1;
    cr_assert_eq(directory_read(&dir, 1, w.samples[1].bytes, lookup, &w, &sample, values, &err), 0);
    directory_close(&dir);
    end(&w);
}

Test(directory, hostile_every_byte_changed)
{
    struct world w;
    uint32_t refused = 0;

    make(&w);
    for (uint64_t at = 0; at < w.bytes; at++) {
        static const unsigned char with[] = { 0x01, 0x80, 0xff, 0x7f };

        for (size_t k = 0; k < sizeof with; k++) {
            w.directory[at] ^= with[k];
            refused += read_all(&w) < N_SAMPLES;
            w.directory[at] ^= with[k];
        }
    }
    cr_assert(refused > w.bytes / 2);
    cr_assert_eq(read_all(&w), N_SAMPLES, "all changes were taken back");
    end(&w);
}

Test(directory, hostile_every_number_replaced)
{
    static const uint64_t with[] = { 0, 1, 2, 8, INT32_MAX, UINT32_MAX, (uint64_t)UINT32_MAX << 32, INT64_MAX,
                                     (uint64_t)INT64_MAX + 1, UINT64_MAX, UINT64_MAX / 4, UINT64_MAX / 8 + 1 };
    struct world w;

    make(&w);
    for (uint64_t at = 0; at + 8 <= w.bytes; at += 4)
        for (size_t k = 0; k < sizeof with / sizeof *with; k++) {
            unsigned char saved[8];

            memcpy(saved, w.directory + at, 8);
            memcpy(w.directory + at, &with[k], 8);
            read_all(&w);
            memcpy(w.directory + at, &with[k], 4);
            memcpy(w.directory + at + 4, saved + 4, 4);
            read_all(&w);
            memcpy(w.directory + at, saved, 8);
        }
    cr_assert_eq(read_all(&w), N_SAMPLES);
    end(&w);
}

Test(directory, hostile_random)
{
    uint64_t seed = samples_seed("directory");
    struct world w;
    unsigned char *good;

    make(&w);
    good = malloc(w.bytes);
    memcpy(good, w.directory, w.bytes);
    for (int i = 0; i < 20000; i++) {
        memcpy(w.directory, good, w.bytes);
        for (uint64_t n = 1 + samples_below(&seed, 8); n > 0; n--) {
            /* Mostly the entries: the header is soon refused. */
            uint64_t first = samples_below(&seed, 8) == 0 ? 0 : directory_bytes(0, 0, 3);
            uint64_t at = first + samples_below(&seed, w.bytes - first);

            w.directory[at] = (unsigned char)samples_below(&seed, samples_below(&seed, 2) ? 256 : 9);
        }
        read_all(&w);
    }
    free(good);
    end(&w);
}

struct torn {
    struct world *w;
    uint64_t seed;
    atomic_bool stop;
};

/* The owner writes while we read: plain stores of single bytes, as a hostile process would do. */
static __attribute__((no_sanitize("thread"))) void *scribble(void *arg)
{
    struct torn *torn = arg;
    volatile unsigned char *to = torn->w->directory;

    while (!atomic_load(&torn->stop)) {
        uint64_t at = samples_below(&torn->seed, torn->w->bytes);
        unsigned char old = to[at];

        to[at] = (unsigned char)samples_random(&torn->seed);
        to[at] = old;
    }
    return NULL;
}

Test(directory, torn_while_it_is_read)
{
    struct world w;
    struct torn torn = { .w = &w, .seed = samples_seed("directory, torn") };
    pthread_t thread;

    make(&w);
    cr_assert_eq(pthread_create(&thread, NULL, scribble, &torn), 0);
    for (int i = 0; i < 5000; i++)
        read_all(&w);
    atomic_store(&torn.stop, true);
    pthread_join(thread, NULL);
    cr_assert_eq(read_all(&w), N_SAMPLES);
    end(&w);
}
