/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/payload_case.h"

#include <string.h>

struct wire_table payload_case_table(void)
{
    static struct wire_field fields[PAYLOAD_CASE_FIELDS] = {
        {.name = "ids", .dtype = POISE_I32, .assembly = POISE_PADDED, .n_dims = 1, .shape = {-1}, .axis_name = {"seq"}},
        {.name = "pixels", .dtype = POISE_BF16, .assembly = POISE_CONCAT, .n_dims = 2, .shape = {-1, 8}},
        {.name = "caption", .dtype = POISE_BYTES, .assembly = POISE_OPAQUE, .n_dims = 1, .shape = {-1}},
    };

    return (struct wire_table){.n_fields = PAYLOAD_CASE_FIELDS, .fields = fields};
}

/* Two entries: one with all fields, one without the second. */
static size_t make_entries(unsigned char *room)
{
    struct value values[PAYLOAD_CASE_FIELDS] = {{.present = true, .n_dims = 1, .shape = {5}},
                                                {.present = true, .n_dims = 2, .shape = {3, 8}},
                                                {.present = true, .n_dims = 1, .shape = {7}}};
    struct directory_sample sample = {.tag = 11, .loss_tokens = 5, .arrival_loss_tokens = 9, .bytes = 20 + 48 + 7,
                                      .hash = 77, .arrival_micro_batch = 2};
    size_t n = payload_put_entry(room, &sample, values, PAYLOAD_CASE_FIELDS);

    values[1].present = false;
    sample.bytes -= 48;
    return n + payload_put_entry(room + n, &sample, values, PAYLOAD_CASE_FIELDS);
}

size_t payload_case_make(uint32_t type, unsigned char frame[PAYLOAD_CASE_BYTES])
{
    unsigned char items[PAYLOAD_CASE_BYTES - PAYLOAD_HEADER_BYTES];
    struct payload_message msg = {.type = type,
                                  .request = 7,
                                  .epoch = {1, 2},
                                  .step = 40,
                                  .plan_id = {3, 4},
                                  .table_hash = {5, 6},
                                  .rank = 9,
                                  .replica = 1,
                                  .incarnation = {.attempt = 1, .opened_ns = 99, .random = 1234567},
                                  .items = items};

    if (type == PAYLOAD_ASK_ENTRIES) {
        msg.count = 3;
        for (uint32_t i = 0; i < 3; i++)
            payload_put_index(items, i, 10 * i);
        msg.n_item_bytes = 12;
    } else if (type == PAYLOAD_ASK_DATA) {
        struct payload_extent extents[2] = {{.index = 3, .bytes = 100, .offset = 50}, {.index = 4, .bytes = 1000}};
        msg.count = 2;
        for (uint32_t i = 0; i < 2; i++)
            payload_put_extent(items, i, &extents[i]);
        msg.n_item_bytes = 2 * PAYLOAD_EXTENT_BYTES;
    } else if (type == PAYLOAD_ENTRIES) {
        msg.count = 2;
        msg.n_item_bytes = make_entries(items);
    } else if (type == PAYLOAD_REFUSED) {
        msg.code = PAYLOAD_NOT_YOURS;
        msg.count = 4;
        msg.n_item_bytes = 4;
        memcpy(items, "why?", 4);
    } else if (type == PAYLOAD_DATA) {
        msg.bytes = 1100;
    }
    payload_wire_encode(&msg, frame);
    return payload_wire_bytes(&msg);
}
