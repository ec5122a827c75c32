/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out what a file's columns say: by their usual names, or by --columns ROLE=COLUMN. The kind of file follows from
 * the roles that were named, else from the richest set of columns that is there.
 */
#include "client/ctl/dataset_columns.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

static const struct {
    const char *name;
    const char *usual[TEXT_COLUMNS + 1]; /* column names that are taken without being told, the first found */
} roles[N_ROLES] = {
    [LENGTH] = {"length", {"length"}},
    [WIDTH] = {"width", {"width"}},
    [HEIGHT] = {"height", {"height"}},
    [IMAGE_SIZES] = {"image_sizes", {"image_sizes"}},
    [FRAMES] = {"frames", {"frames"}},
    [PER_SECOND] = {"fps", {"fps"}},
    [TILES] = {"tiles", {"vit_tiles", "tiles"}},
    [TOKENS] = {"tokens", {"llm_tokens", "tokens"}},
    [SECONDS] = {"seconds", {"seconds", "duration"}},
    [TEXT] = {"text", {"text_tokens", "prompt_tokens", "question_tokens", "answer_tokens"}}, /* all that are there */
    [BYTES] = {"bytes", {"bytes"}},
};

#define N_NEEDS 3
static const struct { /* the first kind whose needs are met; those that name more come first */
    enum dataset_kind kind;
    int needs[N_NEEDS]; /* -1: none */
    const char *text;
} kinds[] = {
    {DATASET_VIDEO, {FRAMES, WIDTH, HEIGHT}, "frames, width and height"},
    {DATASET_IMAGES, {IMAGE_SIZES, -1, -1}, "image_sizes"},
    {DATASET_IMAGE, {WIDTH, HEIGHT, -1}, "width and height"},
    {DATASET_TILES, {TILES, TOKENS, -1}, "tiles and tokens"},
    {DATASET_AUDIO, {SECONDS, -1, -1}, "seconds"},
    {DATASET_LENGTH, {LENGTH, -1, -1}, "length"},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static int find_column(const struct csv *csv, const char *name, struct poise_err *err)
{
    char list[320];
    int at = csv_find(csv, name);

    if (at == -EEXIST)
        return err_set(err, -EINVAL, "%s: several columns are called %.60s: make their names differ", csv->path, name);
    if (at < 0)
        return err_set(err, -EINVAL, "%s has no column %.60s. There are: %s", csv->path, name,
                       csv_list(csv, list, sizeof list));
    return at;
}

static int unknown_role(const char *name, struct poise_err *err)
{
    char list[160] = "";

    for (int r = 0; r < N_ROLES; r++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", r ? ", " : "", roles[r].name);
    return err_set(err, -EINVAL, "--columns: nothing is called %.60s. There are: %s", name, list);
}

/* One "text=question+answer". */
static int assign(const struct csv *csv, char *word, struct columns *columns, struct poise_err *err)
{
    char *name = strchr(word, '='), *next;
    int r = 0, n = 0;

    if (!name || !name[1])
        return err_set(err, -EINVAL, "--columns %.60s: must be WHAT=COLUMN, as length=tokens, separated by commas",
                       word);
    *name++ = 0;
    while (r < N_ROLES && strcmp(roles[r].name, word) != 0)
        r++;
    if (r == N_ROLES)
        return unknown_role(word, err);
    if (columns->at[r] >= 0)
        return err_set(err, -EINVAL, "--columns names %s twice", word);
    for (char *save = NULL; (next = strtok_r(name, "+", &save)); name = NULL, n++) {
        int at = find_column(csv, next, err);
        if (at < 0)
            return at;
        if (n >= (r == TEXT ? TEXT_COLUMNS : 1))
            return err_set(err, -EINVAL, "--columns: %s takes %s", roles[r].name,
                           r == TEXT ? "at most 4 columns" : "one column; only text is a sum of several");
        columns->at[r] = at;
        if (r == TEXT)
            columns->text[columns->n_text++] = at;
    }
    return 0;
}

static int assign_all(const struct csv *csv, const char *option, struct columns *columns, struct poise_err *err)
{
    char *copy = strdup(option), *words = copy, *save = NULL, *word;
    int rc = copy ? 0 : err_set(err, -ENOMEM, "no memory for --columns");

    while (rc == 0 && (word = strtok_r(words, ",", &save))) {
        rc = assign(csv, word, columns, err);
        words = NULL;
    }
    free(copy);
    return rc;
}

/* Takes the usual names for what was not named. A usual name that stands twice is nobody's. */
static void assign_usual(const struct csv *csv, struct columns *columns)
{
    const bool text_named = columns->n_text > 0;

    for (int r = 0; r < N_ROLES; r++)
        for (int u = 0; columns->at[r] < 0 && roles[r].usual[u]; u++) {
            int at = csv_find(csv, roles[r].usual[u]);
            if (at >= 0)
                columns->at[r] = at;
        }
    for (int u = 0; !text_named && roles[TEXT].usual[u]; u++) {
        int at = csv_find(csv, roles[TEXT].usual[u]);
        if (at >= 0)
            columns->text[columns->n_text++] = at;
    }
}

/* How many of a kind's needs were named; -1 if one is missing altogether. */
static int count_named(size_t kind, const struct columns *columns, const bool named[N_ROLES])
{
    int n = 0;

    for (int i = 0; i < N_NEEDS && kinds[kind].needs[i] >= 0; i++) {
        if (columns->at[kinds[kind].needs[i]] < 0)
            return -1;
        n += named[kinds[kind].needs[i]];
    }
    return n;
}

static int find_kind(const struct csv *csv, struct columns *columns, const bool named[N_ROLES], struct poise_err *err)
{
    char list[200];
    int best = -1;

    for (size_t k = 0; k < N_KINDS; k++) {
        int n = count_named(k, columns, named);
        if (n > best) {
            best = n;
            columns->kind = kinds[k].kind;
        }
    }
    if (best >= 0)
        return 0;
    return err_set(err, -EINVAL,
                   "%s: no columns that say sizes. Needed is one of: length; width and height; image_sizes; "
                   "frames, width and height; tiles and tokens; seconds. It has: %s. Name them: --columns "
                   "length=COLUMN",
                   csv->path, csv_list(csv, list, sizeof list));
}

int columns_find(const struct csv *csv, const char *option, struct columns *ret_columns, struct poise_err *err)
{
    struct columns columns = {0};
    bool named[N_ROLES];
    int rc = 0;

    for (int r = 0; r < N_ROLES; r++)
        columns.at[r] = -1;
    if (option)
        rc = assign_all(csv, option, &columns, err);
    for (int r = 0; r < N_ROLES; r++)
        named[r] = columns.at[r] >= 0;
    assign_usual(csv, &columns);
    if (rc == 0)
        rc = find_kind(csv, &columns, named, err);
    if (rc < 0)
        return rc;
    if ((columns.kind == DATASET_LENGTH || columns.kind == DATASET_TILES) && !named[TEXT])
        columns.n_text = 0; /* these count the text already */
    *ret_columns = columns;
    return 0;
}

void columns_text(const struct csv *csv, const struct columns *columns, char *text, size_t n_text)
{
    size_t k = 0, n = 0;

    text[0] = 0;
    while (kinds[k].kind != columns->kind)
        k++;
    for (int i = 0; i < N_NEEDS && kinds[k].needs[i] >= 0 && n < n_text; i++)
        n += (size_t)snprintf(text + n, n_text - n, "%s%.40s", i ? ", " : "",
                              csv->column[columns->at[kinds[k].needs[i]]]);
    for (uint32_t i = 0; i < columns->n_text && n < n_text; i++)
        n += (size_t)snprintf(text + n, n_text - n, "%s%.40s", i ? " + " : ", ", csv->column[columns->text[i]]);
    if (columns->at[BYTES] >= 0 && n < n_text)
        snprintf(text + n, n_text - n, ", %.40s", csv->column[columns->at[BYTES]]);
}
