/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options as sorted keys and values. One table says every key once, with its kind; writing, reading and checking walk
 * it. A value has one spelling only, so options that are equal are equal as text, and a difference is shown as a user
 * knows it: words for choices, "default" and "none" for caps.
 */
#include "proto/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "proto/codec.h"

enum kind {
    NUMBER32,
    NUMBER64,
    CAP,        /* a number, "default" (0) or "none" (POISE_NO_CAP) */
    PHASE_CAPS, /* one CAP a phase */
    CHOICE,     /* a word of `words`, by its number */
    ASKED,      /* the same, and its first word is never written: a group that does not ask is one of older libraries */
    ASKED64,    /* a number, and 0 is never written */
    TEXT,       /* an array of POISE_MAX_NAME */
    PHASES      /* one key each: phase.0, phase.1 ... */
};

/* Longest value: a phase with its name and five numbers, or 8 caps. */
#define VALUE_BYTES 320
#define KEY_BYTES 32

static const struct key {
    const char *name;
    size_t offset;
    enum kind kind;
    const char *words[4];
} keys[] = {
#define AT(member) offsetof(struct options, member)
    /* Sorted: in a message they must be. */
    {"algorithm", AT(algorithm), TEXT, {0}},
    {"audit", AT(audit), ASKED64, {0}},
    {"cap_bytes_rank", AT(cap_bytes_rank), CAP, {0}},
    {"cap_length_micro_batch", AT(cap_length_micro_batch), PHASE_CAPS, {0}},
    {"cap_length_rank", AT(cap_length_rank), PHASE_CAPS, {0}},
    {"cap_samples_micro_batch", AT(cap_samples_micro_batch), NUMBER64, {0}},
    {"cap_samples_rank", AT(cap_samples_rank), NUMBER64, {0}},
    {"count", AT(count), CHOICE, {"equal", "bounded", "free"}},
    {"cut", AT(cut), CHOICE, {"fixed", "by_cost", "as_needed"}},
    {"end", AT(end), CHOICE, {"stop", "continue"}},
    {"image_encoder_dp", AT(image_encoder_dp), NUMBER32, {0}},
    {"micro_batch_size", AT(micro_batch_size), NUMBER32, {0}},
    {"n_micro_batches", AT(n_micro_batches), NUMBER32, {0}},
    {"objective", AT(objective), CHOICE, {"step", "microbatch", "pipeline"}},
    {"payload", AT(payload), ASKED, {"curve", "plain"}},
    {"phase.", AT(phases), PHASES, {0}},
    {"plan_only", AT(plan_only), CHOICE, {"no", "yes"}},
    {"record", AT(record), ASKED, {"no", "yes"}},
    {"stages", AT(stages), NUMBER32, {0}},
    {"tolerance_ppm", AT(tolerance_ppm), NUMBER32, {0}},
#undef AT
};
#define N_KEYS (sizeof keys / sizeof *keys)

static const void *member(const struct key *key, const struct options *options)
{
    return (const char *)options + key->offset;
}

/* ---------------------------------------------------------------------------------------------------------- writing */

static size_t print_cap(uint64_t cap, char *text, size_t n_text)
{
    if (cap == 0)
        return (size_t)snprintf(text, n_text, "default");
    if (cap == POISE_NO_CAP)
        return (size_t)snprintf(text, n_text, "none");
    return (size_t)snprintf(text, n_text, "%" PRIu64, cap);
}

static void print_phase_caps(const uint64_t *caps, uint32_t n_phases, char text[VALUE_BYTES])
{
    size_t n = 0;

    text[0] = 0;
    for (uint32_t p = 0; p < n_phases; p++) {
        if (p > 0)
            text[n++] = ' ';
        n += print_cap(caps[p], text + n, VALUE_BYTES - n);
    }
}

static int print_phase(const struct poise_phase *phase, uint32_t i, char text[VALUE_BYTES], struct poise_err *err)
{
    size_t n = strnlen(phase->name, sizeof phase->name);

    if (n == 0 || n == sizeof phase->name || !wire_text_valid(phase->name, n))
        return err_set(err, -EINVAL, "phase %u: its name must have 1 to %d bytes of UTF-8", i, POISE_MAX_NAME - 1);
    snprintf(text, VALUE_BYTES, "%s linear=%" PRIu64 " quadratic=%" PRIu64 " constant=%" PRIu64 " passes=%u flags=%u",
             phase->name, phase->linear, phase->quadratic, phase->constant, phase->passes, phase->flags);
    return 0;
}

static int print_text(const char *from, const char *key, char text[VALUE_BYTES], struct poise_err *err)
{
    size_t n = strnlen(from, POISE_MAX_NAME);

    if (n == POISE_MAX_NAME || !wire_text_valid(from, n))
        return err_set(err, -EINVAL, "option %s: at most %d bytes of UTF-8", key, POISE_MAX_NAME - 1);
    memcpy(text, from, n);
    text[n] = 0;
    return 0;
}

static int print_choice(const struct key *key, uint32_t value, char text[VALUE_BYTES], struct poise_err *err)
{
    if (value >= sizeof key->words / sizeof *key->words || !key->words[value])
        return err_set(err, -EINVAL, "option %s is %u, which stands for nothing", key->name, value);
    snprintf(text, VALUE_BYTES, "%s", key->words[value]);
    return 0;
}

/* All kinds but PHASES. */
static int print(const struct key *key, const struct options *options, char text[VALUE_BYTES], struct poise_err *err)
{
    const void *value = member(key, options);

    switch (key->kind) {
    case NUMBER32:
        snprintf(text, VALUE_BYTES, "%u", *(const uint32_t *)value);
        return 0;
    case NUMBER64:
    case ASKED64:
        snprintf(text, VALUE_BYTES, "%" PRIu64, *(const uint64_t *)value);
        return 0;
    case CAP:
        print_cap(*(const uint64_t *)value, text, VALUE_BYTES);
        return 0;
    case PHASE_CAPS:
        print_phase_caps(value, options->n_phases, text);
        return 0;
    case CHOICE:
    case ASKED:
        return print_choice(key, *(const uint32_t *)value, text, err);
    case TEXT:
        return print_text(value, key->name, text, err);
    case PHASES:
        break;
    }
    return -EINVAL;
}

/* Is it what a group has that does not ask? */
static bool unasked(const struct key *key, const struct options *options)
{
    return (key->kind == ASKED && *(const uint32_t *)member(key, options) == 0) ||
           (key->kind == ASKED64 && *(const uint64_t *)member(key, options) == 0);
}

static char *put_text(struct block *block, const char *text)
{
    size_t n = strlen(text) + 1;
    char *to = block_take(block, n);

    return to ? memcpy(to, text, n) : NULL;
}

static void put(struct block *block, struct wire_option *list, uint32_t *n, const char *key, const char *value)
{
    struct wire_option option = {.key = put_text(block, key), .value = put_text(block, value)};

    if (list)
        list[*n] = option;
    ++*n;
}

/* Runs twice, see memory.h. */
static int write_all(const struct options *options, struct block *block, struct wire_option **ret_list, uint32_t *ret_n,
                     struct poise_err *err)
{
    struct wire_option *list = block_take(block, (N_KEYS + POISE_MAX_PHASES) * sizeof *list);
    char value[VALUE_BYTES], name[KEY_BYTES];
    uint32_t n = 0;

    for (size_t k = 0; k < N_KEYS; k++) {
        if (keys[k].kind != PHASES) {
            if (print(&keys[k], options, value, err) < 0)
                return -EINVAL;
            if (unasked(&keys[k], options))
                continue;
            put(block, list, &n, keys[k].name, value);
            continue;
        }
        for (uint32_t p = 0; p < options->n_phases; p++) {
            if (print_phase(&options->phases[p], p, value, err) < 0)
                return -EINVAL;
            snprintf(name, sizeof name, "%s%u", keys[k].name, p);
            put(block, list, &n, name, value);
        }
    }
    *ret_list = list;
    *ret_n = n;
    return 0;
}

int options_write(const struct options *options, struct wire_option **ret_options, uint32_t *ret_n_options,
                  struct poise_err *err)
{
    struct block block = {0};
    struct wire_option *list;
    uint32_t n;

    if (options->n_phases > POISE_MAX_PHASES)
        return err_set(err, -EINVAL, "%u phases: at most %d", options->n_phases, POISE_MAX_PHASES);
    int rc = write_all(options, &block, &list, &n, err);
    if (rc < 0)
        return rc;
    block = (struct block){.base = wire_malloc(block.used)};
    if (!block.base)
        return err_set(err, -ENOMEM, "no memory for %u options", n);
    write_all(options, &block, &list, &n, err); /* cannot fail now */
    *ret_options = list;
    *ret_n_options = n;
    return 0;
}

void options_free(struct wire_option *options, uint32_t n_options)
{
    (void)n_options; /* one block, the list first */
    free(options);
}

/* ---------------------------------------------------------------------------------------------------------- reading */

/* A decimal number as print() writes it, up to its end or a space; NULL if it is none. */
static const char *scan_number(const char *text, uint64_t max, uint64_t *ret_value)
{
    uint64_t value = 0;
    const char *s = text;

    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value))
            return NULL;
    if (s == text || (text[0] == '0' && s - text > 1) || value > max || (*s != 0 && *s != ' '))
        return NULL;
    *ret_value = value;
    return s;
}

static const char *scan_word(const char *text, const char *word)
{
    size_t n = strlen(word);

    return strncmp(text, word, n) == 0 && (text[n] == 0 || text[n] == ' ') ? text + n : NULL;
}

static const char *scan_cap(const char *text, uint64_t *ret_cap)
{
    const char *end;

    if ((end = scan_word(text, "default"))) {
        *ret_cap = 0;
        return end;
    }
    if ((end = scan_word(text, "none"))) {
        *ret_cap = POISE_NO_CAP;
        return end;
    }
    end = scan_number(text, POISE_NO_CAP - 1, ret_cap);
    return end && *ret_cap == 0 ? NULL : end;
}

/* As many as there are phases: checked when these are known. */
static bool scan_phase_caps(const char *text, uint64_t *caps, uint32_t *ret_n)
{
    uint32_t n = 0;

    while (*text) {
        if (n == POISE_MAX_PHASES || !(text = scan_cap(text, &caps[n])))
            return false;
        n++;
        if (*text == ' ' && *++text == 0)
            return false;
    }
    *ret_n = n;
    return true;
}

/* " linear=5": moves *text behind it. */
static bool scan_member(const char **text, const char *name, uint64_t max, uint64_t *ret_value)
{
    size_t n = strlen(name);

    if (strncmp(*text, name, n) != 0)
        return false;
    *text = scan_number(*text + n, max, ret_value);
    return *text != NULL;
}

static bool scan_phase(const char *text, struct poise_phase *phase)
{
    const char *numbers = NULL;
    uint64_t passes, flags;

    /* The name may hold spaces, even these words: the last ones count. */
    for (const char *at = strstr(text, " linear="); at; at = strstr(at + 1, " linear="))
        numbers = at;
    if (!numbers || numbers == text || numbers - text >= POISE_MAX_NAME)
        return false;
    memcpy(phase->name, text, (size_t)(numbers - text));
    if (!scan_member(&numbers, " linear=", UINT64_MAX, &phase->linear) ||
        !scan_member(&numbers, " quadratic=", UINT64_MAX, &phase->quadratic) ||
        !scan_member(&numbers, " constant=", UINT64_MAX, &phase->constant) ||
        !scan_member(&numbers, " passes=", UINT32_MAX, &passes) ||
        !scan_member(&numbers, " flags=", UINT32_MAX, &flags))
        return false;
    phase->passes = (uint32_t)passes;
    phase->flags = (uint32_t)flags;
    return *numbers == 0;
}

static bool scan_choice(const struct key *key, const char *text, uint32_t *ret_value)
{
    for (uint32_t i = key->kind == ASKED; i < sizeof key->words / sizeof *key->words && key->words[i]; i++) {
        if (strcmp(key->words[i], text) == 0) {
            *ret_value = i;
            return true;
        }
    }
    return false;
}

struct reader {
    struct options options;
    uint32_t n_caps[N_KEYS]; /* of PHASE_CAPS */
    bool seen[N_KEYS];
};

static bool scan(const struct key *key, const char *text, struct reader *reader)
{
    void *to = (char *)&reader->options + key->offset;
    uint64_t number;
    const char *end;

    switch (key->kind) {
    case NUMBER32:
        end = scan_number(text, UINT32_MAX, &number);
        if (!end || *end)
            return false;
        *(uint32_t *)to = (uint32_t)number;
        return true;
    case NUMBER64:
    case ASKED64:
        end = scan_number(text, UINT64_MAX, &number);
        if (!end || *end || (key->kind == ASKED64 && number == 0))
            return false;
        *(uint64_t *)to = number;
        return true;
    case CAP:
        end = scan_cap(text, to);
        return end && *end == 0;
    case PHASE_CAPS:
        return scan_phase_caps(text, to, &reader->n_caps[key - keys]);
    case CHOICE:
    case ASKED:
        return scan_choice(key, text, to);
    case TEXT:
        if (strlen(text) >= POISE_MAX_NAME)
            return false;
        memcpy(to, text, strlen(text));
        return true;
    case PHASES: /* they come in order, so each is the next */
        return reader->options.n_phases < POISE_MAX_PHASES &&
               scan_phase(text, &reader->options.phases[reader->options.n_phases++]);
    }
    return false;
}

/* For PHASES only the key of the next phase fits. */
static const struct key *find_key(const char *name, const struct reader *reader)
{
    char phase[KEY_BYTES];

    for (size_t k = 0; k < N_KEYS; k++) {
        snprintf(phase, sizeof phase, "%s%u", keys[k].name, reader->options.n_phases);
        if (strcmp(name, keys[k].kind == PHASES ? phase : keys[k].name) == 0)
            return &keys[k];
    }
    return NULL;
}

static int check_complete(const struct reader *reader, struct poise_err *err)
{
    for (size_t k = 0; k < N_KEYS; k++) {
        if (keys[k].kind == PHASES || keys[k].kind == ASKED || keys[k].kind == ASKED64)
            continue;
        if (!reader->seen[k])
            return err_set(err, -EINVAL, "option %s is missing: an older library; install the same version everywhere",
                           keys[k].name);
        if (keys[k].kind == PHASE_CAPS && reader->n_caps[k] != reader->options.n_phases)
            return err_set(err, -EINVAL, "option %s has %u caps for %u phases", keys[k].name, reader->n_caps[k],
                           reader->options.n_phases);
    }
    return 0;
}

int options_read(const struct wire_option *list, uint32_t n_options, struct options *ret_options, struct poise_err *err)
{
    struct reader reader = {0};

    for (uint32_t i = 0; i < n_options; i++) {
        const struct key *key = find_key(list[i].key, &reader);
        if (!key)
            return err_set(
                err, -EINVAL,
                "option %.80s (%.80s) is not known here: a newer library; install the same version everywhere",
                list[i].key, list[i].value);
        if (key->kind != PHASES && reader.seen[key - keys])
            return err_set(err, -EINVAL, "option %s is there twice", key->name);
        if (!scan(key, list[i].value, &reader))
            return err_set(err, -EINVAL, "option %.80s has a value that it cannot have: %.160s", list[i].key,
                           list[i].value);
        reader.seen[key - keys] = true;
    }
    if (check_complete(&reader, err) < 0)
        return -EINVAL;
    *ret_options = reader.options;
    return 0;
}
