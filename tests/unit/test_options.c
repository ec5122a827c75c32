/* SPDX-License-Identifier: Apache-2.0 */
/* Options as text: every member survives the way there and back, every bad text is named, differences are put in words.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/memory.h"
#include "proto/options.h"

static struct options full(void)
{
    struct options options = {
        .n_phases = 2,
        .algorithm = "least_move",
        .objective = POISE_OBJECTIVE_PIPELINE,
        .count = POISE_COUNT_FREE,
        .cut = POISE_CUT_AS_NEEDED,
        .tolerance_ppm = 10001,
        .micro_batch_size = 2,
        .n_micro_batches = 3,
        .stages = 4,
        .end = POISE_END_CONTINUE,
        .image_encoder_dp = 5,
        .plan_only = 1,
        .cap_samples_rank = 6,
        .cap_samples_micro_batch = UINT64_MAX,
        .cap_bytes_rank = POISE_NO_CAP,
        .cap_length_rank = {0, POISE_NO_CAP},
        .cap_length_micro_batch = {7, 8},
        .record = 1,
        .audit = 50,
        .payload = OPTIONS_PAYLOAD_PLAIN,
    };
    options.phases[0] = (struct poise_phase){"vision", 1, 2, 3, 4, POISE_PHASE_BARRIER};
    options.phases[1] = (struct poise_phase){"a linear=7 name", UINT64_MAX, 0, UINT64_MAX, UINT32_MAX, 0};
    return options;
}

static struct wire_option *text_of(const struct options *options, uint32_t *ret_n)
{
    struct wire_option *list;
    struct poise_err err;

    cr_assert(options_write(options, &list, ret_n, &err) == 0, "%s", err.text);
    return list;
}

static struct wire_option *find(struct wire_option *list, uint32_t n, const char *key)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].key, key) == 0)
            return &list[i];
    cr_assert(false, "no option %s", key);
    return NULL;
}

Test(options, every_member_survives)
{
    struct options cases[2] = {full()}, back;
    struct poise_err err;

    for (int i = 0; i < 2; i++) {
        uint32_t n;
        struct wire_option *list = text_of(&cases[i], &n);
        for (uint32_t k = 1; k < n; k++)
            cr_assert(strcmp(list[k - 1].key, list[k].key) < 0, "%s before %s", list[k - 1].key, list[k].key);
        memset(&back, 0xa5, sizeof back);
        cr_assert(options_read(list, n, &back, &err) == 0, "%s", err.text);
        cr_assert(memcmp(&back, &cases[i], sizeof back) == 0);
        options_free(list, n);
    }
    options_free(NULL, 0);
}

Test(options, values_read_as_a_user_knows_them)
{
    struct options options = full();
    uint32_t n;
    struct wire_option *list = text_of(&options, &n);

    cr_assert(strcmp(find(list, n, "phase.0")->value, "vision linear=1 quadratic=2 constant=3 passes=4 flags=2") == 0);
    cr_assert(strcmp(find(list, n, "count")->value, "free") == 0);
    cr_assert(strcmp(find(list, n, "cap_bytes_rank")->value, "none") == 0);
    cr_assert(strcmp(find(list, n, "cap_length_rank")->value, "default none") == 0);
    cr_assert(strcmp(find(list, n, "cap_length_micro_batch")->value, "7 8") == 0);
    options_free(list, n);
}

Test(options, values_that_stand_for_nothing_are_not_written)
{
    struct wire_option *list = NULL;
    uint32_t n = 0;
#define NOT_WRITTEN(part, ...)                                                                                         \
    do {                                                                                                               \
        struct options bad = full();                                                                                   \
        struct poise_err err = {0};                                                                                    \
        __VA_ARGS__;                                                                                                   \
        cr_assert(options_write(&bad, &list, &n, &err) == -EINVAL, "%s", part);                                        \
        cr_assert(strstr(err.text, part), "%s", err.text);                                                             \
        cr_assert(list == NULL && n == 0);                                                                             \
    } while (0)
    NOT_WRITTEN("9 phases", bad.n_phases = 9);
    NOT_WRITTEN("count is 3", bad.count = 3);
    NOT_WRITTEN("end is 2", bad.end = 2);
    NOT_WRITTEN("objective is 4294967295", bad.objective = UINT32_MAX);
    NOT_WRITTEN("phase 1: its name", bad.phases[1].name[0] = 0);
    NOT_WRITTEN("phase 0: its name", memset(bad.phases[0].name, 'x', POISE_MAX_NAME));
    NOT_WRITTEN("algorithm", bad.algorithm[0] = '\xff');
    NOT_WRITTEN("algorithm", memset(bad.algorithm, 'x', POISE_MAX_NAME));
}

/* Reads the full options with one value replaced. */
static void refused_value(const char *key, const char *value)
{
    struct options options = full(), back;
    struct poise_err err = {0};
    uint32_t n;
    struct wire_option *list = text_of(&options, &n);

    find(list, n, key)->value = (char *)value;
    cr_assert(options_read(list, n, &back, &err) == -EINVAL, "%s = \"%s\" is accepted", key, value);
    cr_assert(strstr(err.text, key), "%s", err.text);
    options_free(list, n);
}

Test(options, a_bad_value_is_named)
{
    static const char *const numbers[] = {"",   "-1",  "+1",  " 1",         "1 ",
                                          "01", "0x1", "1e3", "4294967296", "99999999999999999999999"};
    static const char *const phases[] = {
        "",
        "vision",
        " linear=1 quadratic=2 constant=3 passes=4 flags=2",
        "v linear=1 quadratic=2 constant=3 passes=4",
        "v linear=1 quadratic=2 constant=3 passes=4 flags=2 ",
        "v linear=1 quadratic=2 constant=3 passes=4294967296 flags=2",
        "v linear= quadratic=2 constant=3 passes=4 flags=2",
        "v linear=1 constant=3 quadratic=2 passes=4 flags=2",
        "a-name-of-sixty-four-bytes-which-is-one-more-than-there-is-room- linear=1 quadratic=2 constant=3 passes=4 "
        "flags=2",
    };
    static const char *const caps[] = {"", "0", "None", "default ", "-1", "18446744073709551615", "1 2"};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        refused_value("micro_batch_size", numbers[i]);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        refused_value("phase.0", phases[i]);
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++)
        refused_value("cap_bytes_rank", caps[i]);
    refused_value("cap_samples_rank", "18446744073709551616");
    refused_value("cap_length_rank", "default");
    refused_value("cap_length_rank", "1 2 3");
    refused_value("cap_length_rank", "1  2");
    refused_value("cap_length_rank", "1 2 ");
    refused_value("cap_length_rank", "1 2 3 4 5 6 7 8 9");
    refused_value("count", "Free");
    refused_value("count", "");
    refused_value("audit", "0");
    refused_value("audit", "18446744073709551616");
    refused_value("payload", "curve");
    refused_value("payload", "tls");
    refused_value("record", "no"); /* it is said by not saying it */
    refused_value("algorithm", "a-name-of-sixty-four-bytes-which-is-one-more-than-there-is-room-");
}

Test(options, an_unknown_missing_or_doubled_key_is_named)
{
    struct options options = full(), back;
    struct poise_err err = {0};
    uint32_t n;
    struct wire_option *list = text_of(&options, &n), *changed = find(list, n, "count");
    char *count = changed->key;

    changed->key = (char *)"warp";
    cr_assert(options_read(list, n, &back, &err) == -EINVAL && strstr(err.text, "option warp (free) is not known"),
              "%s", err.text);
    changed->key = (char *)"phase.2"; /* before phase.0 */
    cr_assert(options_read(list, n, &back, &err) == -EINVAL && strstr(err.text, "phase.2"), "%s", err.text);
    changed->key = (char *)"cut";
    cr_assert(options_read(list, n, &back, &err) == -EINVAL, "cut has the value of count");
    changed->value = (char *)"fixed";
    cr_assert(options_read(list, n, &back, &err) == -EINVAL && strstr(err.text, "cut is there twice"), "%s", err.text);
    changed->key = count;
    changed->value = (char *)"free";
    cr_assert(options_read(list, n - 1, &back, &err) == -EINVAL && strstr(err.text, "tolerance_ppm is missing"), "%s",
              err.text);
    cr_assert(options_read(NULL, 0, &back, &err) == -EINVAL);
    options_free(list, n);
}

Test(options, a_difference_is_said_in_words)
{
    struct options options = full();
    struct wire_join a = {.rank = 0, .n_ranks = 4, .n_replicas = 1, .wire_version = 1}, b = a;
    char text[512] = "";
    uint32_t n;
    struct wire_option *list = text_of(&options, &n), *other;

    b.rank = 3;
    options.micro_batch_size = 4;
    other = text_of(&options, &n);
    a.options = b.options = list;
    a.n_options = b.n_options = n;
    cr_assert(options_differ(&a, &b, text, sizeof text) == 0);
    b.options = other;
    cr_assert(options_differ(&a, &b, text, sizeof text) == 1);
    cr_assert(strcmp(text, "micro_batch_size is 2 on rank 0 and 4 on rank 3") == 0, "%s", text);
    cr_assert(options_differ(&a, &b, text, 10) == 1 && strlen(text) == 9);

    a.n_replicas = b.n_replicas = 2;
    b.rank = 0;
    b.replica = 1;
    cr_assert(options_differ(&b, &a, text, sizeof text) == 1);
    cr_assert(strcmp(text, "micro_batch_size is 4 on rank 0, replica 1 and 2 on rank 0, replica 0") == 0, "%s", text);

    b.options = list;
    b.n_options = n - 1;
    cr_assert(options_differ(&a, &b, text, sizeof text) == 1);
    cr_assert(strcmp(text, "tolerance_ppm is 10001 on rank 0, replica 0 and not set on rank 0, replica 1") == 0, "%s",
              text);
    cr_assert(options_differ(&b, &a, text, sizeof text) == 1);
    cr_assert(strcmp(text, "tolerance_ppm is not set on rank 0, replica 1 and 10001 on rank 0, replica 0") == 0, "%s",
              text);

    b.n_ranks = 8;
    cr_assert(options_differ(&a, &b, text, sizeof text) == 1);
    cr_assert(strcmp(text, "n_ranks is 4 on rank 0, replica 0 and 8 on rank 0, replica 1") == 0, "%s", text);
    options_free(list, n);
    options_free(other, n);
}

static void *no_memory(size_t n_bytes)
{
    (void)n_bytes;
    return NULL;
}

Test(options, writing_without_memory_is_an_error)
{
    struct options options = full();
    struct wire_option *list;
    struct poise_err err;
    uint32_t n;

    wire_malloc = no_memory;
    cr_assert(options_write(&options, &list, &n, &err) == -ENOMEM);
    wire_malloc = malloc;
}

Test(options, the_request_has_them_all)
{
    struct options options = full();
    struct poise_plan_request req;

    options_request(&options, &req);
    cr_assert(req.size == sizeof req && req.n_phases == 2 && req.phases == options.phases &&
              req.phase_size == sizeof *req.phases);
    cr_assert(req.algorithm == options.algorithm && req.objective == options.objective && req.count == options.count);
    cr_assert(req.cut == options.cut && req.stages == 4 && req.tolerance_ppm == 10001 && req.micro_batch_size == 2);
    cr_assert(req.n_micro_batches == 3 && req.image_encoder_dp == 5 && req.cap_samples_rank == 6);
    cr_assert(req.cap_samples_micro_batch == UINT64_MAX && req.cap_bytes_rank == POISE_NO_CAP);
    cr_assert(req.cap_length_rank == options.cap_length_rank &&
              req.cap_length_micro_batch == options.cap_length_micro_batch);
    options.algorithm[0] = 0;
    options_request(&options, &req);
    cr_assert(req.algorithm == NULL);
}
