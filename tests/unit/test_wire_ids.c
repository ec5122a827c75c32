/* SPDX-License-Identifier: Apache-2.0 */
/* Ids, the order of incarnations, and what the hashes that all sides compute depend on. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"

Test(ids, an_id_is_32_digits)
{
    char text[WIRE_ID_TEXT];

    cr_assert(strcmp(wire_id_format((struct wire_id){0x0123456789abcdef, 0xf}, text),
                     "0123456789abcdef000000000000000f") == 0);
    cr_assert(wire_id_format((struct wire_id){0}, text) == text && strlen(text) == 32);
}

Test(ids, every_type_has_a_name_of_its_own)
{
    for (enum wire_type a = 1; a < WIRE_N_TYPES; a++) {
        cr_assert(strcmp(wire_type_name(a), "?") != 0);
        for (enum wire_type b = 1; b < a; b++)
            cr_assert(strcmp(wire_type_name(a), wire_type_name(b)) != 0);
    }
    cr_assert(strcmp(wire_type_name(0), "?") == 0 && strcmp(wire_type_name(WIRE_N_TYPES), "?") == 0);
    cr_assert(strcmp(wire_type_name((enum wire_type) - 1), "?") == 0);
}

Test(ids, incarnations_are_ordered_by_attempt_then_time_then_random)
{
    static const struct wire_incarnation sorted[] = {
        {0, 0, 0}, {0, 0, UINT64_MAX}, {0, 1, 0}, {0, UINT64_MAX, 5}, {1, 0, 0}, {1, 2, 3}, {UINT32_MAX, 0, 0}};

    for (size_t i = 0; i < sizeof sorted / sizeof *sorted; i++)
        for (size_t k = 0; k < sizeof sorted / sizeof *sorted; k++) {
            int order = wire_incarnation_compare(&sorted[i], &sorted[k]);
            cr_assert(i < k ? order < 0 : i > k ? order > 0 : order == 0);
        }
}

/* Replicas must find differences in what the plan depends on, and none in what they may hold differently. */
Test(ids, the_digest_sees_features_and_nothing_else)
{
    uint64_t tags[2] = {1, 2}, bytes[2] = {3, 4}, loss[2] = {5, 6}, length[4] = {7, 8, 9, 10},
             squares[4] = {49, 64, 81, 100};
    uint64_t unit[2] = {0, 9}, no_unit[2] = {0, 0};
    uint32_t micro_batch[2] = {0, 0};
    uint8_t layout[2] = {0, 1};
    struct wire_meta meta = {.n_samples = 2, .n_phases = 2, .bytes = bytes, .loss_tokens = loss, .length = length},
                     other;
    const struct wire_id first = wire_meta_digest(&meta, tags);

    cr_assert(!wire_id_none(first));
#define SEEN(change)                                                                                                   \
    do {                                                                                                               \
        other = meta;                                                                                                  \
        change;                                                                                                        \
        cr_assert(!wire_id_is(first, wire_meta_digest(&other, tags)), #change);                                        \
    } while (0)
#define NOT_SEEN(change)                                                                                               \
    do {                                                                                                               \
        other = meta;                                                                                                  \
        change;                                                                                                        \
        cr_assert(wire_id_is(first, wire_meta_digest(&other, tags)), #change);                                         \
    } while (0)
    SEEN(other.kind = WIRE_META_END);
    SEEN(other.n_samples = 1);
    SEEN(other.n_phases = 1);
    SEEN(other.length = squares);
    SEEN(other.loss_tokens = bytes);
    SEEN(other.attention = length);
    SEEN(other.micro_batch = micro_batch);
    SEEN(other.unit = unit);
    cr_assert(!wire_id_is(first, wire_meta_digest(&meta, bytes)), "tags");
    NOT_SEEN(other.attention = squares);
    NOT_SEEN(other.unit = no_unit);
    NOT_SEEN(other.unit_layout = layout);
    NOT_SEEN(other.bytes = loss);
    NOT_SEEN(other.replica = 1);
    NOT_SEEN(other.rank = 7);
    NOT_SEEN(other.mode = POISE_MODE_OFF);
    NOT_SEEN(other.has_columns = true);

    meta.unit = unit;
    struct wire_id with_unit = wire_meta_digest(&meta, tags);
    meta.unit_layout = layout;
    cr_assert(!wire_id_is(with_unit, wire_meta_digest(&meta, tags)), "layout of units");
    struct wire_meta empty = {.kind = WIRE_META_END};
    cr_assert(!wire_id_none(wire_meta_digest(&empty, NULL)));
}

/* Fixed for ever: another value would split a job whose nodes run different builds of the same wire version. */
Test(ids, hashes_do_not_change_between_builds)
{
    struct wire_meta meta = {.kind = WIRE_META_END};
    char text[WIRE_ID_TEXT];

    wire_id_format(wire_meta_digest(&meta, NULL), text);
    cr_assert(strcmp(text, "31b7f49a67492e8d008c7d2d35a0e4b5") == 0, "%s", text);
    struct wire_join join = {.job = "job", .group = "dp", .n_ranks = 1, .n_replicas = 1};
    const struct wire_join *joins[] = {&join};
    wire_id_format(wire_epoch_id(joins, (uint32_t[]){0}), text);
    cr_assert(strcmp(text, "fa1308f374aa2e6bf4be741de8c0fe96") == 0, "%s", text);
}

Test(ids, an_epoch_is_its_members_and_options)
{
    struct wire_option options[2] = {{(char *)"a", (char *)"1"}, {(char *)"b", (char *)"2"}}, changed[2];
    struct wire_join all[4];
    const struct wire_join *joins[4] = {&all[0], &all[1], &all[2], &all[3]};
    uint32_t nodes[4] = {0, 0, 1, 1};

    for (uint32_t i = 0; i < 4; i++)
        all[i] = (struct wire_join){.job = "job",
                                    .group = "dp",
                                    .rank = i / 2,
                                    .n_ranks = 2,
                                    .replica = i % 2,
                                    .n_replicas = 2,
                                    .incarnation = {0, 100 + i, 5},
                                    .first_step = 3,
                                    .wire_version = 1,
                                    .planner_version = 1,
                                    .n_options = 2,
                                    .options = options};
    const struct wire_id first = wire_epoch_id(joins, nodes);
    cr_assert(!wire_id_none(first) && wire_id_is(first, wire_epoch_id(joins, nodes)));
#define NEW_EPOCH(change)                                                                                              \
    do {                                                                                                               \
        struct wire_join kept[4];                                                                                      \
        uint32_t kept_nodes[4];                                                                                        \
        memcpy(kept, all, sizeof all);                                                                                 \
        memcpy(kept_nodes, nodes, sizeof nodes);                                                                       \
        memcpy(changed, options, sizeof options);                                                                      \
        change;                                                                                                        \
        cr_assert(!wire_id_is(first, wire_epoch_id(joins, nodes)), #change);                                           \
        memcpy(all, kept, sizeof all);                                                                                 \
        memcpy(nodes, kept_nodes, sizeof nodes);                                                                       \
    } while (0)
    NEW_EPOCH(all[0].job[0] = 'J');
    NEW_EPOCH(all[0].group[0] = 'D');
    NEW_EPOCH(all[0].first_step = 4);
    NEW_EPOCH(all[0].wire_version = 2);
    NEW_EPOCH(all[0].planner_version = 2);
    NEW_EPOCH(all[0].n_options = 1);
    NEW_EPOCH(changed[1].value = (char *)"3"; all[0].options = changed);
    NEW_EPOCH(changed[1].key = (char *)"c"; all[0].options = changed);
    NEW_EPOCH(all[3].incarnation.attempt = 1);
    NEW_EPOCH(all[3].incarnation.opened_ns++);
    NEW_EPOCH(all[3].incarnation.random++);
    NEW_EPOCH(all[2].sync_set = 1);
    NEW_EPOCH(nodes[3] = 2);
    NEW_EPOCH(all[0].n_ranks = 4; all[0].n_replicas = 1);
}

Test(ids, dtypes_have_names_and_sizes)
{
    cr_assert(strcmp(poise_dtype_name(POISE_BF16), "bfloat16") == 0 && poise_dtype_bytes(POISE_BF16) == 2);
    cr_assert(strcmp(poise_dtype_name(POISE_BYTES), "bytes") == 0 && poise_dtype_bytes(POISE_C128) == 16);
    for (uint32_t i = 0; i < POISE_N_DTYPES; i++)
        cr_assert(poise_dtype_name(i) && poise_dtype_bytes(i) > 0);
    cr_assert(poise_dtype_name(POISE_N_DTYPES) == NULL && poise_dtype_bytes(POISE_N_DTYPES) == 0);
    cr_assert(poise_dtype_name(UINT32_MAX) == NULL && poise_dtype_bytes(UINT32_MAX) == 0);
}
