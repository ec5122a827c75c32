/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes messages about payload between ranks: what decodes keeps its bounds, and entries never lead outside of it. */
#include <errno.h>
#include <stdlib.h>

#include "tests/unit/payload_case.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void read_asks(const struct payload_message *msg)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < msg->count; i++) {
        if (msg->type == PAYLOAD_ASK_ENTRIES) {
            sum += payload_index(msg, i) != UINT32_MAX;
        } else {
            struct payload_extent extent = payload_extent(msg, i);
            sum += extent.bytes;
            if (extent.bytes == 0 || extent.offset > INT64_MAX)
                abort();
        }
    }
    if (sum > PAYLOAD_PIECE_BYTES)
        abort();
}

static void read_entries(const struct payload_message *msg)
{
    struct wire_table table = payload_case_table();
    struct value values[PAYLOAD_CASE_FIELDS];
    struct directory_sample sample;
    struct payload_entries entries;
    struct poise_err err = {0};

    payload_entries_begin(msg, &table, msg->rank, &entries);
    for (uint32_t i = 0; i < msg->count; i++) {
        int rc = payload_next_entry(&entries, i, DIRECTORY_ANY_BYTES, &sample, values, &err);
        if (rc < 0 && (rc != -EPROTO || err.code != rc || !err.text[0]))
            abort();
        if (rc < 0)
            return;
        for (uint32_t f = 0; f < PAYLOAD_CASE_FIELDS; f++) {
            uint64_t n;
            if (values[f].present && (value_bytes(&values[f], table.fields[f].dtype, &n) < 0 || n > sample.bytes))
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct payload_message msg;
    struct poise_err err = {0};
    int rc = payload_wire_decode(bytes, n_bytes, &msg, &err);

    if (rc < 0) {
        if ((rc != -EPROTO && rc != -EPROTONOSUPPORT) || err.code != rc || !err.text[0])
            abort();
        return 0;
    }
    if (payload_wire_bytes(&msg) != n_bytes || msg.rank >= WIRE_MAX_RANKS)
        abort();
    if (msg.type == PAYLOAD_ASK_ENTRIES || msg.type == PAYLOAD_ASK_DATA)
        read_asks(&msg);
    if (msg.type == PAYLOAD_ENTRIES)
        read_entries(&msg);
    return 0;
}
