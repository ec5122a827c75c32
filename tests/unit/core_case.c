/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/core_case.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/planner.h"
#include "proto/schema.h"

void case_options(struct options *options)
{
    *options = (struct options){.n_phases = 1, .algorithm = "greedy", .tolerance_ppm = 10000, .micro_batch_size = 2,
                                .stages = 1};
    strcpy(options->phases[0].name, "llm");
    options->phases[0].linear = 1;
    options->phases[0].passes = 1;
}

void case_meta(struct case_meta *to, uint32_t rank, uint32_t replica, uint64_t step, const uint64_t *lengths, uint32_t n)
{
    struct wire_meta *meta = &to->meta;

    memset(to, 0, sizeof *to);
    cr_assert_leq(n, CASE_MAX_SAMPLES);
    meta->rank = rank;
    meta->replica = replica;
    meta->step = step;
    meta->incarnation = (struct wire_incarnation){0, 100 + rank, replica};
    meta->n_samples = n;
    meta->n_phases = 1;
    meta->has_columns = replica == 0;
    meta->bytes = to->bytes;
    meta->loss_tokens = to->loss;
    meta->length = to->length;
    for (uint32_t i = 0; i < n; i++) {
        to->length[i] = to->loss[i] = lengths[i];
        to->bytes[i] = 4 * lengths[i];
        to->tags[i] = (uint64_t)rank << 32 | i;
    }
    case_seal(to);
}

void case_field(struct case_meta *to, const char *field, const char *axis)
{
    struct wire_field *f = &to->fields[to->table.n_fields++];

    snprintf(f->name, sizeof f->name, "%s", field);
    f->dtype = POISE_I32;
    f->assembly = POISE_PADDED;
    f->n_dims = 1;
    f->shape[0] = -1;
    f->pad_multiple = 1;
    snprintf(f->axis_name[0], sizeof f->axis_name[0], "%s", axis);
    to->meta.extent = to->extent;
    case_seal(to);
}

void case_seal(struct case_meta *to)
{
    const char *axes[POISE_MAX_EXTENTS];

    to->table.fields = to->fields;
    to->meta.n_extents = schema_axes(&to->table, axes);
    to->meta.table_hash = schema_hash(&to->table);
    to->meta.table = to->table.n_fields ? &to->table : NULL;
    to->meta.digest = wire_meta_digest(&to->meta, to->tags);
}

static struct wire_option *options_of(uint32_t micro_batch_size, uint32_t *ret_n)
{
    static struct wire_option *made[8];
    static uint32_t n;
    struct options options;
    struct poise_err err;

    cr_assert_lt(micro_batch_size, 8);
    case_options(&options);
    options.micro_batch_size = micro_batch_size;
    if (!made[micro_batch_size])
        cr_assert_eq(options_write(&options, &made[micro_batch_size], &n, &err), 0, "%s", err.text);
    *ret_n = n;
    return made[micro_batch_size];
}

void case_join(struct wire_join *join, uint32_t rank, uint32_t n_ranks, uint32_t replica, uint32_t n_replicas)
{
    static char local[] = "";

    memset(join, 0, sizeof *join);
    strcpy(join->job, "qwen");
    strcpy(join->group, "dp");
    join->rank = rank;
    join->n_ranks = n_ranks;
    join->replica = replica;
    join->n_replicas = n_replicas;
    join->incarnation = (struct wire_incarnation){0, 100 + rank, replica};
    join->wire_version = WIRE_VERSION;
    join->planner_version = PLANNER_VERSION;
    join->pid = 4200 + 10 * rank + replica;
    join->uid = 1000;
    strcpy(join->host, "h");
    join->coordinators = local;
    case_join_size(join, 2);
}

void case_join_size(struct wire_join *join, uint32_t micro_batch_size)
{
    join->options = options_of(micro_batch_size, &join->n_options);
}

const struct core_send *case_sent(const struct core_update *up, enum wire_type type, uint32_t i)
{
    for (uint32_t k = 0; k < up->n_sends; k++)
        if (up->sends[k].msg->type == type && i-- == 0)
            return &up->sends[k];
    return NULL;
}

uint32_t case_count(const struct core_update *up, enum wire_type type)
{
    uint32_t n = 0;

    while (case_sent(up, type, n))
        n++;
    return n;
}

bool case_logged(const struct core_update *up, const char *text)
{
    for (uint32_t i = 0; i < up->n_logs; i++)
        if (strstr(up->logs[i].text, text))
            return true;
    return false;
}
