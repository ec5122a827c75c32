/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl plan: one request in, one plan out, without a daemon. All input is checked before anything is planned, and
 * stdout stays empty unless the plan is complete, so a script may read it without looking at half an answer.
 */
#include "client/ctl/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/plan_request.h"
#include "daemon/planner/err.h"

#define INPUT_MOST ((size_t)1 << 30) /* bytes: a request of a few hundred thousand samples has a few million */

/* Room for a plan of n samples, in one piece. */
struct room {
    struct poise_plan plan;
    uint32_t *order; /* [n] samples by destination, micro-batch, row */
    uint32_t *begin; /* [n_ranks + 1] where each destination's samples begin in order */
};

static int room_new(uint32_t n_samples, uint32_t n_ranks, struct room *ret_room, struct poise_err *err)
{
    uint32_t *memory = calloc((size_t)n_samples * 4 + n_ranks + 2, sizeof *memory);

    if (!memory)
        return err_set(err, -ENOMEM, "no memory for a plan of %u samples", n_samples);
    *ret_room = (struct room){.plan = {.size = sizeof ret_room->plan,
                                       .rank = memory,
                                       .micro_batch = memory + n_samples,
                                       .row = memory + (size_t)n_samples * 2},
                              .order = memory + (size_t)n_samples * 3,
                              .begin = memory + (size_t)n_samples * 4};
    return 0;
}

static const struct poise_plan *sorted; /* qsort has no argument of its own; this program has one thread */

static int by_place(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (sorted->rank[i] != sorted->rank[j])
        return sorted->rank[i] < sorted->rank[j] ? -1 : 1;
    if (sorted->micro_batch[i] != sorted->micro_batch[j])
        return sorted->micro_batch[i] < sorted->micro_batch[j] ? -1 : 1;
    return sorted->row[i] < sorted->row[j] ? -1 : sorted->row[i] > sorted->row[j];
}

static void sort_samples(struct room *room, uint32_t n_samples, uint32_t n_ranks)
{
    for (uint32_t i = 0; i < n_samples; i++) {
        room->order[i] = i;
        room->begin[room->plan.rank[i] + 1]++;
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        room->begin[r + 1] += room->begin[r];
    sorted = &room->plan;
    qsort(room->order, n_samples, sizeof *room->order, by_place);
}

/* [origin rank, index] of the sample in column i. */
static json_t *origin(const struct poise_plan_request *req, const uint32_t *first, uint32_t i)
{
    uint32_t low = 0, high = req->n_ranks - 1;

    while (low < high) { /* the last rank whose first column is <= i */
        uint32_t middle = low + (high - low + 1) / 2;
        if (first[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return json_pack("[i, i]", (int)low, (int)(i - first[low]));
}

/* Both tables; first: [n_ranks] the first column of each rank. */
static void add_tables(json_t *out, const struct poise_plan_request *req, const struct room *room,
                       const uint32_t *first)
{
    json_t *table = json_array(), *cuts = json_array();

    for (uint32_t r = 0; r < req->n_ranks; r++) {
        json_t *row = json_array(), *cut = json_array();
        for (uint32_t k = 0; k < room->plan.n_micro_batches; k++)
            json_array_append_new(cut, json_array());
        for (uint32_t p = room->begin[r]; p < room->begin[r + 1]; p++) {
            json_t *pair = origin(req, first, room->order[p]);
            json_array_append(json_array_get(cut, room->plan.micro_batch[room->order[p]]), pair);
            json_array_append_new(row, pair);
        }
        json_array_append_new(table, row);
        json_array_append_new(cuts, cut);
    }
    json_object_set_new(out, "rank_table", table);
    json_object_set_new(out, "microbatches", cuts);
}

/* Whole numbers only: JSON's readers lose digits above 2^53 of a double, ours are exact to 2^63 and saturate there. */
static json_t *number(uint64_t value)
{
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *numbers(const uint64_t *values, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, number(values[i]));
    return list;
}

static json_t *quality(const struct poise_quality *q, uint32_t n_phases)
{
    const struct {
        const char *name;
        uint64_t value;
    } plain[] = {
        {"objective_before", q->objective_before},
        {"objective_after", q->objective_after},
        {"objective_bound", q->objective_bound},
        {"rank_max_before", q->rank_max_before},
        {"rank_max_after", q->rank_max_after},
        {"rank_mean", q->rank_mean},
        {"samples_moved", q->samples_moved},
        {"bytes_moved", q->bytes_moved},
        {"bytes_total", q->bytes_total},
        {"bytes_floor", q->bytes_floor},
        {"bytes_between_nodes", q->bytes_between_nodes},
        {"bytes_rank_before", q->bytes_rank_before},
        {"bytes_rank_after", q->bytes_rank_after},
        {"lacking_before", q->lacking_before},
        {"lacking_after", q->lacking_after},
        {"oversize", q->oversize},
    };
    json_t *out = json_object();

    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        json_object_set_new(out, plain[i].name, number(plain[i].value));
    json_object_set_new(out, "length_micro_batch_before", numbers(q->length_micro_batch_before, n_phases));
    json_object_set_new(out, "length_micro_batch_after", numbers(q->length_micro_batch_after, n_phases));
    json_object_set_new(out, "length_rank_before", numbers(q->length_rank_before, n_phases));
    json_object_set_new(out, "length_rank_after", numbers(q->length_rank_after, n_phases));
    return out;
}

static json_t *answer(const struct plan_request *request, struct room *room)
{
    const struct poise_plan_request *req = &request->req;
    uint32_t *first = calloc(req->n_ranks, sizeof *first);
    json_t *out = json_object();
    char id[33];

    if (!first || !out) {
        free(first);
        json_decref(out);
        return NULL;
    }
    for (uint32_t r = 1; r < req->n_ranks; r++)
        first[r] = first[r - 1] + req->n_samples[r - 1];
    sort_samples(room, request->n_total, req->n_ranks);
    add_tables(out, req, room, first);
    json_object_set_new(out, "quality", quality(&room->plan.quality, req->n_phases));
    for (int i = 0; i < 16; i++)
        snprintf(id + (size_t)i * 2, 3, "%02x", room->plan.plan_id[i]);
    json_object_set_new(out, "plan_id", json_string(id));
    free(first);
    return out;
}

/* All of standard input; *ret_text: caller frees. 0 or -errno. */
static int read_all(char **ret_text, size_t *ret_n)
{
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room), *larger;

    while (text && !feof(stdin)) {
        n += fread(text + n, 1, room - n, stdin);
        if (ferror(stdin)) {
            free(text);
            return errno ? -errno : -EIO;
        }
        if (n < room)
            continue;
        if (room >= INPUT_MOST) {
            free(text);
            return -EFBIG;
        }
        larger = realloc(text, room * 2);
        if (!larger)
            free(text);
        text = larger;
        room *= 2;
    }
    if (!text)
        return -ENOMEM;
    *ret_text = text;
    *ret_n = n;
    return 0;
}

static json_t *read_input(const struct ctl_command *command)
{
    char *text = NULL, where[160];
    json_error_t error;
    json_t *root;
    size_t n = 0;
    int rc;

    if (isatty(STDIN_FILENO))
        fprintf(stderr, "poisectl plan: reads a request as JSON from the terminal; poisectl plan --help explains it\n");
    rc = read_all(&text, &n);
    if (rc < 0) {
        ctl_fail(command, 0, "standard input cannot be read: %s", strerror(-rc));
        return NULL;
    }
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        plan_where(text, error.position > 0 && (size_t)error.position <= n ? (size_t)error.position : n, where,
                   sizeof where);
        ctl_fail(command, 0, "standard input is not JSON: line %d, column %d%s%s: %s", error.line, error.column,
                 *where ? ", at " : "", where, error.text);
    }
    free(text);
    return root;
}

int plan_command(const struct ctl_command *command, int argc, char **argv)
{
    struct plan_request request;
    struct room room = {0};
    struct poise_err err = {0};
    json_t *root, *out = NULL;
    int rc, status;

    if (ctl_parse(command, NULL, 0, argc, argv, NULL, 0, &status) != 0)
        return status;
    root = read_input(command);
    if (!root)
        return CTL_BAD_INPUT;
    rc = plan_request_read(root, &request, &err);
    if (rc == 0) {
        rc = room_new(request.n_total, request.req.n_ranks, &room, &err);
        if (rc == 0)
            rc = poise_plan(&request.req, &room.plan, &err);
        if (rc == 0) {
            out = answer(&request, &room);
            rc = out ? 0 : err_set(&err, -ENOMEM, "no memory for the answer");
        }
        free(room.plan.rank);
        plan_request_fini(&request);
    }
    json_decref(root);
    if (rc < 0)
        return ctl_fail(command, rc == -ENOMEM ? CTL_FAILED : CTL_BAD_INPUT, "%s", err.text);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
    return CTL_OK;
}
