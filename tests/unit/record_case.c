/* SPDX-License-Identifier: Apache-2.0 */
#include "record_case.h"

#include <stdlib.h>
#include <string.h>

static void append(struct record_case *record, const void *bytes, size_t n_bytes)
{
    record->bytes = realloc(record->bytes, record->n_bytes + n_bytes + 1);
    if (!record->bytes)
        abort();
    if (n_bytes)
        memcpy(record->bytes + record->n_bytes, bytes, n_bytes);
    record->n_bytes += n_bytes;
}

static uint8_t *encode(const struct wire_message *msg, uint32_t *ret_n)
{
    uint8_t *bytes = NULL;
    size_t n = 0;

    if (msg && wire_encode(msg, &bytes, &n, NULL) < 0)
        abort();
    *ret_n = (uint32_t)n;
    return bytes;
}

void record_case_add(struct record_case *record, uint32_t kind, uint64_t step, const struct wire_message *first,
                     const struct wire_message *second)
{
    struct record_block block = {.kind = kind, .step = step};
    uint8_t head[RECORD_HEAD_BYTES], *one = encode(first, &block.n_first), *two = encode(second, &block.n_second);

    block.first = one;
    block.second = two;
    record_head(&block, head);
    append(record, head, sizeof head);
    append(record, one, block.n_first);
    append(record, two, block.n_second);
    if (record->n_blocks < sizeof record->end / sizeof *record->end)
        record->end[record->n_blocks++] = record->n_bytes;
    free(one);
    free(two);
}

struct record_case record_case_make(void)
{
    struct wire_message join = {.type = WIRE_JOIN,
                                .join = {.job = "vlm", .group = "dp", .n_ranks = 2, .n_replicas = 1}};
    struct wire_message outcome = {.type = WIRE_OUTCOME,
                                   .outcome = {.step = 7, .plan_id = {1, 2}, .n_micro_batches = 1}};
    uint64_t bytes[2] = {8, 9}, tokens[2] = {1, 2}, length[2] = {30, 40}, tags[2] = {100, 101};
    struct wire_meta metas[2];
    struct wire_message meta = {.type = WIRE_META, .meta = {.n_metas = 2, .metas = metas}};
    struct record_case record = {0};
    uint8_t start[RECORD_START_BYTES];

    for (uint32_t r = 0; r < 2; r++)
        metas[r] = (struct wire_meta){.step = 7,
                                      .rank = r,
                                      .n_samples = 2,
                                      .n_phases = 1,
                                      .has_columns = true,
                                      .tag = tags,
                                      .bytes = bytes,
                                      .loss_tokens = tokens,
                                      .length = length,
                                      .node = 3,
                                      .sync_set = r};
    record_start(start);
    append(&record, start, sizeof start);
    record_case_add(&record, RECORD_GROUP, 0, &join, NULL);
    record_case_add(&record, RECORD_STEP, 7, &outcome, &meta);
    outcome.outcome.step = 8;
    record_case_add(&record, RECORD_MISSING, 8, &outcome, NULL);
    record_case_add(&record, RECORD_END, 9, NULL, NULL);
    return record;
}

void record_case_free(struct record_case *record)
{
    free(record->bytes);
    memset(record, 0, sizeof *record);
}
