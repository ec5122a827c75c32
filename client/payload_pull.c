/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks are cut so that an answer is at most one piece: a large sample takes several, and of small ones many go into
 * one. Nothing is counted as here before it was checked and written, and only once: when an ask is answered it is
 * gone, so a second answer finds none.
 */
#include "client/payload_pull.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "client/scatter.h"
#include "daemon/planner/err.h"

int pull_new(const struct transport_step *step, struct source *source, struct pull **ret_pull, struct poise_err *err)
{
    struct pull *pull = calloc(1, sizeof *pull);

    if (!pull)
        return err_set(err, -ENOMEM, "out of memory");
    pull->step = step;
    pull->source = source;
    *ret_pull = pull;
    return 0;
}

void pull_free(struct pull *pull)
{
    if (!pull)
        return;
    while (pull->asks)
        pull_forget(pull, pull->asks);
    free(pull);
}

static uint64_t bytes_of(const struct pull *pull, uint32_t sample)
{
    return pull->step->samples[pull->source->at[sample]].bytes;
}

void pull_begin_payload(struct pull *pull)
{
    pull->fetching = true;
    for (uint32_t i = 0; i < pull->source->n; i++)
        pull->n_left += bytes_of(pull, i);
}

/* ----------------------------------------------------------------------------------------------------------- asking */

static struct ask *add(struct pull *pull, uint32_t request)
{
    struct ask *ask = calloc(1, sizeof *ask), **last = &pull->asks;

    if (!ask)
        return NULL;
    ask->request = request;
    while (*last)
        last = &(*last)->next;
    *last = ask;
    pull->n_asks++;
    return ask;
}

/* As many as certainly fit one answer. */
static int next_entries(struct pull *pull, uint32_t request, struct ask **ret_ask)
{
    uint32_t n_fields = pull->step->merged->table.n_fields, left = pull->source->n - pull->next_entry;
    uint32_t fit = PAYLOAD_PIECE_BYTES / (PAYLOAD_ENTRY_BYTES / POISE_MAX_FIELDS * (n_fields + 1));
    struct ask *ask;

    if (left == 0)
        return 0;
    ask = add(pull, request);
    if (!ask)
        return -ENOMEM;
    fit = fit > PAYLOAD_MAX_ITEMS ? PAYLOAD_MAX_ITEMS : fit;
    ask->entries = true;
    ask->first = pull->next_entry;
    ask->n = left < fit ? left : fit;
    pull->next_entry += ask->n;
    *ret_ask = ask;
    return 0;
}

static void skip_empty(struct pull *pull)
{
    while (pull->next < pull->source->n && pull->next_offset >= bytes_of(pull, pull->next)) {
        pull->next++;
        pull->next_offset = 0;
    }
}

static int next_payload(struct pull *pull, uint64_t max_bytes, uint32_t request, struct ask **ret_ask)
{
    struct ask *ask;

    skip_empty(pull);
    if (pull->next == pull->source->n)
        return 0;
    ask = add(pull, request);
    if (!ask)
        return -ENOMEM;
    ask->first = pull->next;
    ask->offset = pull->next_offset;
    while (pull->next < pull->source->n && ask->n_bytes < max_bytes && ask->n < PAYLOAD_MAX_ITEMS) {
        uint64_t left = bytes_of(pull, pull->next) - pull->next_offset, room = max_bytes - ask->n_bytes;
        uint64_t n = left < room ? left : room;

        ask->n_bytes += n;
        ask->n += n > 0;
        pull->next_offset += n;
        skip_empty(pull);
    }
    pull->n_asked_bytes += ask->n_bytes;
    *ret_ask = ask;
    return 0;
}

int pull_next(struct pull *pull, bool entries, uint64_t max_bytes, uint32_t request, struct ask **ret_ask)
{
    *ret_ask = NULL;
    if (max_bytes > PAYLOAD_PIECE_BYTES)
        max_bytes = PAYLOAD_PIECE_BYTES;
    return entries ? next_entries(pull, request, ret_ask) : next_payload(pull, max_bytes, request, ret_ask);
}

struct ask *pull_find(const struct pull *pull, uint32_t request)
{
    struct ask *ask = pull->asks;

    while (ask && ask->request != request)
        ask = ask->next;
    return ask;
}

void pull_forget(struct pull *pull, struct ask *ask)
{
    struct ask **at = &pull->asks;

    while (*at != ask)
        at = &(*at)->next;
    *at = ask->next;
    pull->n_asks--;
    pull->n_asked_bytes -= ask->n_bytes;
    free(ask);
}

static uint32_t put_extents(const struct pull *pull, const struct ask *ask, unsigned char *room)
{
    uint64_t left = ask->n_bytes, offset = ask->offset;
    uint32_t n = 0;

    for (uint32_t i = ask->first; left > 0; i++, offset = 0) {
        uint64_t rest = bytes_of(pull, i) - offset;
        struct payload_extent extent = {.index = pull->step->slice->in_index[pull->source->at[i]], .offset = offset};

        if (rest == 0)
            continue;
        extent.bytes = (uint32_t)(rest < left ? rest : left);
        payload_put_extent(room, n++, &extent);
        left -= extent.bytes;
    }
    return n;
}

void pull_message(const struct pull *pull, const struct ask *ask, const struct payload_group *group,
                  unsigned char *room, struct payload_message *ret_msg)
{
    const struct transport_step *step = pull->step;
    struct payload_message msg = {.type = ask->entries ? PAYLOAD_ASK_ENTRIES : PAYLOAD_ASK_DATA,
                                  .request = ask->request,
                                  .epoch = group->epoch,
                                  .step = step->step,
                                  .plan_id = step->plan_id,
                                  .table_hash = step->merged->hash,
                                  .rank = group->rank,
                                  .replica = group->replica,
                                  .incarnation = group->incarnation,
                                  .items = room};

    for (uint32_t i = 0; ask->entries && i < ask->n; i++)
        payload_put_index(room, i, step->slice->in_index[pull->source->at[ask->first + i]]);
    msg.count = ask->entries ? ask->n : put_extents(pull, ask, room);
    msg.n_item_bytes = (size_t)msg.count * (ask->entries ? sizeof(uint32_t) : PAYLOAD_EXTENT_BYTES);
    *ret_msg = msg;
}

/* ---------------------------------------------------------------------------------------------------------- answers */

int pull_take_entries(struct pull *pull, struct ask *ask, const struct payload_message *msg, struct poise_err *err)
{
    const struct transport_step *step = pull->step;
    const struct wire_table *table = &step->merged->table;
    struct payload_entries entries;

    if (msg->count > ask->n)
        return err_set_at(err, -EPROTO, pull->source->rank, POISE_NONE, NULL,
                          "rank %" PRIu32 " answers %" PRIu32 " entries with %" PRIu32, pull->source->rank, ask->n,
                          msg->count);
    payload_entries_begin(msg, table, pull->source->rank, &entries);
    for (uint32_t i = 0; i < msg->count; i++) {
        uint32_t at = pull->source->at[ask->first + i];
        uint64_t in_bytes = step->any_bytes ? DIRECTORY_ANY_BYTES : step->slice->in_bytes[at];
        int rc = payload_next_entry(&entries, step->slice->in_index[at], in_bytes, &step->samples[at],
                                    step->values + (size_t)at * table->n_fields, err);
        if (rc < 0)
            return rc;
    }
    if (entries.n_left)
        return err_set_at(err, -EPROTO, pull->source->rank, POISE_NONE, NULL,
                          "rank %" PRIu32 " sends %zu bytes more than its entries have", pull->source->rank,
                          entries.n_left);
    pull->source->n_entries += msg->count;
    ask->first += msg->count;
    ask->n -= msg->count;
    ask->sent = false; /* what was left out is asked for again, under the same number */
    if (ask->n == 0)
        pull_forget(pull, ask);
    return 0;
}

void pull_at_begin(struct pull *pull, const struct ask *ask, struct pull_at *ret_at)
{
    *ret_at = (struct pull_at){.pull = pull, .sample = ask->first, .offset = ask->offset, .n_left = ask->n_bytes};
}

int pull_put(struct pull_at *at, const void *bytes, size_t n_bytes, struct poise_err *err)
{
    const struct transport_step *step = at->pull->step;
    const struct wire_table *table = &step->merged->table;
    const unsigned char *from = bytes;

    if (n_bytes > at->n_left)
        return err_set_at(err, -EPROTO, at->pull->source->rank, POISE_NONE, NULL,
                          "rank %" PRIu32 " sends more payload than was asked for", at->pull->source->rank);
    while (n_bytes > 0) {
        uint32_t place = at->pull->source->at[at->sample];
        size_t first = (size_t)place * table->n_fields;
        struct scatter scatter;
        uint64_t n;

        scatter_begin(&scatter, table, step->values + first, step->tensors + first, at->offset);
        n = scatter_put(&scatter, from, n_bytes);
        from += n;
        n_bytes -= n;
        at->n_left -= n;
        at->offset += n;
        at->pull->n_left -= n;
        if (n > 0)
            step->arrived(step->context, place, n);
        if (at->offset >= bytes_of(at->pull, at->sample)) { /* also past those without bytes */
            at->sample++;
            at->offset = 0;
        }
    }
    return 0;
}
