/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes options_read() with lines "key=value", and options_differ() with two such lists (an empty line between them).
 * What is read must be written as the same text.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

#define MAX_OPTIONS 64

static void must(bool fine)
{
    if (!fine)
        abort();
}

/* Cuts the text into options up to an empty line; returns where it stopped. */
static char *cut(char *text, struct wire_option *list, uint32_t *ret_n)
{
    *ret_n = 0;
    while (text && *text && *text != '\n' && *ret_n < MAX_OPTIONS) {
        char *line = text, *end = strchr(text, '\n');
        if (end)
            *end++ = 0;
        char *equals = strchr(line, '=');
        if (equals)
            *equals = 0;
        list[(*ret_n)++] = (struct wire_option){.key = line, .value = equals ? equals + 1 : line + strlen(line)};
        text = end;
    }
    return text && *text == '\n' ? text + 1 : text;
}

static bool is_sorted(const struct wire_option *list, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (strcmp(list[i - 1].key, list[i].key) >= 0)
            return false;
    return true;
}

static void read_and_write(const struct wire_option *list, uint32_t n)
{
    struct options options;
    struct wire_option *back;
    struct poise_plan_request req;
    struct poise_err err = {0};
    uint32_t n_back;

    int rc = options_read(list, n, &options, &err);
    if (rc < 0) {
        must(rc == -EINVAL && err.code == rc && err.text[0]);
        return;
    }
    options_request(&options, &req);
    rc = options_write(&options, &back, &n_back, &err);
    if (rc < 0) { /* a name that is not UTF-8 never comes out of a message, but it may come in here */
        must(strstr(err.text, "UTF-8") != NULL);
        return;
    }
    must(n_back == n);
    for (uint32_t i = 0; i < n && is_sorted(list, n); i++)
        must(strcmp(list[i].key, back[i].key) == 0 && strcmp(list[i].value, back[i].value) == 0);
    options_free(back, n_back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct wire_option first[MAX_OPTIONS], second[MAX_OPTIONS];
    struct wire_join a = {.options = first, .n_ranks = 2, .n_replicas = 1},
                     b = {.rank = 1, .options = second, .n_ranks = 2, .n_replicas = 1};
    char *text = malloc(n_bytes + 1), words[200];

    if (!text)
        return 0;
    memcpy(text, bytes, n_bytes);
    text[n_bytes] = 0;
    cut(cut(text, first, &a.n_options), second, &b.n_options);
    read_and_write(first, a.n_options);
    must(options_differ(&a, &b, words, sizeof words) == options_differ(&b, &a, words, sizeof words));
    must(options_differ(&a, &a, words, sizeof words) == 0);
    free(text);
    return 0;
}
