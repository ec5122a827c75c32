/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes wire_decode(): any bytes are refused with a text or give a message that can be copied, encoded and decoded
 * again without a change. Also the deeper readers of what a message brings: field tables and options.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/options.h"
#include "proto/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void must(bool fine)
{
    if (!fine)
        abort();
}

static void use_table(const struct wire_table *table)
{
    const struct wire_table *twice[] = {table, table, NULL, table};
    const uint32_t extent[POISE_MAX_EXTENTS] = {1, UINT32_MAX, 0, 7};
    static struct poise_pad pads[POISE_MAX_FIELDS];
    struct wire_table merged;
    struct poise_err err;

    if (!table)
        return;
    schema_hash(table);
    if (schema_check(table, 3, &err) < 0)
        return;
    must(schema_pads(table, extent, pads) <= table->n_fields);
    must(schema_merge(twice, 4, &merged, &err) == 0); /* a table agrees with itself */
    must(wire_id_is(schema_hash(&merged), schema_hash(table)));
    free(merged.fields);
}

static void use_join(const struct wire_join *join)
{
    struct options options;
    struct wire_option *list;
    uint32_t n;
    char text[512];

    must(options_differ(join, join, text, sizeof text) == 0);
    if (options_read(join->options, join->n_options, &options, NULL) < 0)
        return;
    /* There is one spelling only, so what was read is written just so. */
    must(options_write(&options, &list, &n, NULL) == 0 && n == join->n_options);
    for (uint32_t i = 0; i < n; i++)
        must(strcmp(list[i].key, join->options[i].key) == 0 && strcmp(list[i].value, join->options[i].value) == 0);
    options_free(list, n);
}

static void use(const struct wire_message *msg)
{
    if (msg->type == WIRE_META) {
        for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
            use_table(msg->meta.metas[i].table);
            wire_meta_digest(&msg->meta.metas[i], msg->meta.metas[i].tag);
        }
    }
    if (msg->type == WIRE_OUTCOME)
        use_table(msg->outcome.table);
    if (msg->type == WIRE_JOIN)
        use_join(&msg->join);
    for (uint32_t i = 0; msg->type == WIRE_MEMBERS && i < msg->members.n_joins; i++)
        use_join(&msg->members.joins[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct wire_message *msg, *copy, *again;
    struct poise_err err = {0};
    uint8_t *first, *second;
    size_t n_first, n_second;

    int rc = wire_decode(bytes, n_bytes, 0, &msg, &err);
    if (rc < 0) {
        must((rc == -EPROTO || rc == -EPROTONOSUPPORT || rc == -E2BIG) && err.code == rc && err.text[0]);
        return 0;
    }
    must(wire_copy(msg, &copy) == 0);
    use(msg);
    wire_free(msg);
    must(wire_encode(copy, &first, &n_first, &err) == 0);
    must(wire_decode(first, n_first, 0, &again, &err) == 0);
    must(wire_encode(again, &second, &n_second, &err) == 0);
    must(n_first == n_second && memcmp(first, second, n_first) == 0);
    free(first);
    free(second);
    wire_free(copy);
    wire_free(again);
    return 0;
}
