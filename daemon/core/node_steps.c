/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps at a node. Up: the metadata of its processes is gathered, and goes to every coordinator in one message when it is
 * complete; parts go alone only when a coordinator asked for them. Down: the first outcome that comes is kept and handed to
 * each process with the slice of its rank. A step that a beacon proves to be decided, and that does not come by itself, is
 * asked for.
 *
 * All of it is a cache of what the processes know: what is not here is asked of them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/node_state.h"
#include "daemon/core/rules.h"

static void reset(struct local_epoch *epoch, struct local_slot *slot, uint64_t step)
{
    for (uint32_t i = 0; i < slot->n; i++)
        wire_free(slot->kept[i]);
    wire_free(slot->outcome);
    slot->outcome = NULL;
    slot->n = slot->sent = 0;
    slot->needed = false;
    slot->proven_ms = slot->pulled_ms = 0;
    slot->step = step;
    slot->used = true;
    if (slot->at)
        memset(slot->at, 0, epoch->cap_locals * sizeof *slot->at);
}

void local_slots_free(struct local_epoch *epoch)
{
    for (uint32_t i = 0; i < NODE_SLOTS; i++) {
        struct local_slot *slot = &epoch->slots[i];

        for (uint32_t j = 0; j < slot->n; j++)
            wire_free(slot->kept[j]);
        wire_free(slot->outcome);
        core_free(slot->gathered);
        core_free(slot->kept);
        core_free(slot->at);
    }
}

static struct local_slot *find(struct local_epoch *epoch, uint64_t step)
{
    struct local_slot *slot = &epoch->slots[step % NODE_SLOTS];

    return slot->used && slot->step == step ? slot : NULL;
}

static bool acceptable(const struct local_epoch *epoch, uint64_t step)
{
    return step >= epoch->first_step && step - epoch->first_step + NODE_SLOTS >= epoch->highest;
}

/* The slot of an acceptable step. */
static struct local_slot *claim(struct local_epoch *epoch, uint64_t step)
{
    struct local_slot *slot = &epoch->slots[step % NODE_SLOTS];

    if (!slot->used || slot->step != step)
        reset(epoch, slot, step);
    if (step - epoch->first_step + 1 > epoch->highest)
        epoch->highest = step - epoch->first_step + 1;
    return slot;
}

/* Memory for gathering: made when the first metadata of a slot comes, since a slot may hold an outcome alone. */
static int make_room(const struct local_epoch *epoch, struct local_slot *slot)
{
    if (!slot->gathered)
        slot->gathered = core_alloc(epoch->cap_locals, sizeof *slot->gathered);
    if (!slot->kept)
        slot->kept = core_alloc(epoch->cap_locals, sizeof *slot->kept);
    if (!slot->at)
        slot->at = core_alloc(epoch->cap_locals, sizeof *slot->at);
    return slot->gathered && slot->kept && slot->at ? 0 : -ENOMEM;
}

static struct wire_message *meta_message(struct node *node, struct local_slot *slot, uint32_t first, uint32_t n)
{
    struct wire_message *msg = out_message(&node->out, WIRE_META);

    msg->meta.n_metas = n;
    msg->meta.metas = slot->gathered + first;
    return msg;
}

/* ------------------------------------------------------------------------------------------------------------------- up */

static bool complete(const struct local_epoch *epoch, const struct local_slot *slot)
{
    for (uint32_t i = 0; i < epoch->n_locals; i++)
        if (!slot->at[i] && epoch->locals[i].session)
            return false;
    return true;
}

static void send_gathered(struct node *node, struct local_epoch *epoch, struct local_slot *slot)
{
    if (slot->sent == slot->n || (!slot->needed && !complete(epoch, slot)))
        return;
    job_send_up(node, epoch->job, meta_message(node, slot, slot->sent, slot->n - slot->sent));
    slot->sent = slot->n;
}

/* It was here already. Its field table is news if someone asked for it; other words than before are not. */
static int gather_again(struct node *node, struct local_epoch *epoch, struct local_slot *slot, uint32_t index,
                        const struct wire_message *msg)
{
    struct wire_meta *old = &slot->gathered[index];
    const struct wire_meta *meta = &msg->meta.metas[0];
    struct wire_message *copy;

    if (!wire_id_is(old->digest, meta->digest)) {
        epoch->conflicts++;
        out_log(&node->out, LOG_LEVEL_WARNING, "group %s: rank %u changes its metadata of step %llu, the first stays",
                epoch->label, meta->rank, (unsigned long long)meta->step);
        return 0;
    }
    if (!meta->table || old->table)
        return 0;
    if (core_copy(msg, &copy) < 0)
        return -ENOMEM;
    wire_free(slot->kept[index]);
    slot->kept[index] = copy;
    *old = copy->meta.metas[0];
    if (index < slot->sent)
        job_send_up(node, epoch->job, meta_message(node, slot, index, 1));
    return 0;
}

static bool belongs(const struct session *session, const struct wire_meta *meta)
{
    const struct local *local = &session->epoch->locals[session->local];

    return wire_id_is(meta->epoch, session->epoch->id) && meta->rank == local->rank && meta->replica == local->replica &&
           wire_incarnation_compare(&meta->incarnation, &local->incarnation) == 0;
}

int node_on_meta(struct node *node, struct session *session, const struct wire_message *msg)
{
    const struct wire_meta *meta = msg->meta.n_metas == 1 ? &msg->meta.metas[0] : NULL;
    struct local_epoch *epoch = session->epoch;
    struct wire_message *copy;
    struct local_slot *slot;
    uint32_t index;

    if (!meta || !epoch || session->state != SESSION_RUNNING || !belongs(session, meta) ||
        !acceptable(epoch, meta->step)) {
        node->stale++;
        return 0;
    }
    if (epoch->state == LOCAL_ABORTED ||
        (epoch->state == LOCAL_LEAVING && (int64_t)(meta->step - epoch->abort.step) > 0))
        return 0; /* it will never be decided, and the process was told so */
    slot = find(epoch, meta->step);
    if (slot && slot->at && slot->at[session->local])
        return gather_again(node, epoch, slot, slot->at[session->local] - 1, msg);
    if (make_room(epoch, &epoch->slots[meta->step % NODE_SLOTS]) < 0 || core_copy(msg, &copy) < 0)
        return -ENOMEM;
    slot = claim(epoch, meta->step);
    index = slot->n++;
    slot->kept[index] = copy;
    slot->gathered[index] = copy->meta.metas[0];
    slot->at[session->local] = index + 1;
    send_gathered(node, epoch, slot);
    return 0;
}

/* To a coordinator that begins or takes up the epoch: what is still open. */
void local_epoch_resend(struct node *node, struct local_epoch *epoch, uint64_t link)
{
    for (uint32_t i = 0; i < NODE_SLOTS; i++) {
        struct local_slot *slot = &epoch->slots[i];

        if (slot->used && !slot->outcome && slot->n)
            out_send(&node->out, link, true, meta_message(node, slot, 0, slot->n));
    }
}

void node_on_need(struct node *node, uint64_t link, const struct wire_message *msg)
{
    struct local_epoch *epoch = node_epoch(node, msg->ask.epoch);
    struct wire_message *ask = NULL;
    struct local_slot *slot;

    if (!epoch || epoch->state == LOCAL_ABORTED)
        return;
    slot = find(epoch, msg->ask.step);
    if (slot && slot->n)
        out_send(&node->out, link, true, meta_message(node, slot, 0, slot->n));
    if (slot) {
        slot->needed = true;
        if (slot->sent < slot->n)
            slot->sent = slot->n; /* these went to the one who asked; others ask for themselves */
    }
    for (uint32_t i = 0; i < epoch->n_locals; i++) {
        const struct wire_meta *meta = slot && slot->at && slot->at[i] ? &slot->gathered[slot->at[i] - 1] : NULL;
        bool lacks_table = msg->ask.want_table && meta && !meta->table && !wire_id_none(meta->table_hash);

        if (!epoch->locals[i].session || (meta && !lacks_table))
            continue;
        if (!ask) {
            ask = out_message(&node->out, WIRE_NEED);
            ask->ask = msg->ask;
        }
        out_send(&node->out, epoch->locals[i].session->id, false, ask);
    }
}

/* ----------------------------------------------------------------------------------------------------------------- down */

static int compare_rank(uint32_t rank, const struct wire_slice *slice)
{
    return rank < slice->rank ? -1 : rank > slice->rank;
}

static struct wire_slice *slice_of(const struct wire_outcome *outcome, uint32_t rank)
{
    uint32_t low = 0, high = outcome->n_slices;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = compare_rank(rank, &outcome->slices[mid]);

        if (order == 0)
            return &outcome->slices[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

/* A coordinator lists slices by rank; bytes from outside need not. */
static bool slices_sorted(const struct wire_outcome *outcome)
{
    for (uint32_t i = 1; i < outcome->n_slices; i++)
        if (outcome->slices[i].rank <= outcome->slices[i - 1].rank)
            return false;
    return true;
}

/* Hands an outcome to a process, with its rank's slice, and with the merged table if it lacks that and it is here. */
static bool hand(struct node *node, struct local_epoch *epoch, const struct local_slot *slot, struct session *session,
                 bool want_table)
{
    const struct wire_outcome *outcome = &slot->outcome->outcome;
    struct wire_slice *slice = slice_of(outcome, epoch->locals[session->local].rank);
    bool wants = !wire_id_none(outcome->table_hash) && (want_table || !wire_id_is(session->told, outcome->table_hash));
    struct table_entry *entry = wants ? tables_find(&epoch->tables, outcome->table_hash) : NULL;
    struct wire_message *msg;

    if (outcome->kind == WIRE_OUTCOME_PLAN && !slice)
        return false; /* of a coordinator that takes this process for another node's */
    msg = out_message(&node->out, WIRE_OUTCOME);
    msg->outcome = *outcome;
    msg->outcome.slices = slice;
    msg->outcome.n_slices = slice ? 1 : 0;
    msg->outcome.table = entry ? &entry->table : NULL;
    if (entry)
        session->told = outcome->table_hash;
    if (slot->step - epoch->first_step + 1 > session->decided)
        session->decided = slot->step - epoch->first_step + 1;
    out_send(&node->out, session->id, false, msg);
    return !wants || entry;
}

static void pull(struct node *node, struct local_epoch *epoch, uint64_t step, bool want_table, uint32_t link_mask)
{
    struct wire_message *msg = out_message(&node->out, WIRE_PULL);

    msg->ask.epoch = epoch->id;
    msg->ask.step = step;
    msg->ask.want_table = want_table;
    for (uint32_t i = 0; i < epoch->job->n_links; i++)
        if (link_mask >> i & 1)
            out_send(&node->out, epoch->job->links[i], true, msg);
    node->pulls++;
}

static void hand_to_all(struct node *node, struct local_epoch *epoch, const struct local_slot *slot)
{
    bool all = true;

    for (uint32_t i = 0; i < epoch->n_locals; i++)
        if (epoch->locals[i].session && epoch->locals[i].session->state == SESSION_RUNNING)
            all &= hand(node, epoch, slot, epoch->locals[i].session, false);
    if (!all) /* the message with the table was lost, or went to the poised before this one */
        pull(node, epoch, slot->step, true, UINT32_MAX);
}

/* One that is here already. It may bring the table that was lacking. */
static void outcome_again(struct node *node, struct local_epoch *epoch, const struct local_slot *slot,
                          const struct wire_outcome *outcome, bool new_table)
{
    if (!wire_id_is(slot->outcome->outcome.plan_id, outcome->plan_id) || slot->outcome->outcome.kind != outcome->kind) {
        epoch->conflicts++;
        out_log(&node->out, LOG_LEVEL_ERROR, "group %s: two coordinators disagree about step %llu, the first counts",
                epoch->label, (unsigned long long)slot->step);
        return;
    }
    for (uint32_t i = 0; new_table && i < epoch->n_locals; i++) {
        struct session *session = epoch->locals[i].session;

        if (session && session->state == SESSION_RUNNING && !wire_id_is(session->told, outcome->table_hash))
            hand(node, epoch, slot, session, false);
    }
}

int node_on_outcome(struct node *node, const struct wire_message *msg)
{
    const struct wire_outcome *outcome = &msg->outcome;
    struct local_epoch *epoch = node_epoch(node, outcome->epoch);
    struct local_slot *slot;
    struct wire_message *copy;
    int new_table = 0;

    if (!epoch || epoch->state == LOCAL_ABORTED || !acceptable(epoch, outcome->step) || !slices_sorted(outcome)) {
        node->stale++;
        return 0;
    }
    if (outcome->table)
        new_table = tables_add(&epoch->tables, outcome->table, outcome->table_hash, outcome->step);
    if (new_table == -ENOMEM)
        return new_table;
    slot = find(epoch, outcome->step);
    if (slot && slot->outcome) {
        outcome_again(node, epoch, slot, outcome, new_table > 0);
        return 0;
    }
    if (core_copy(msg, &copy) < 0)
        return -ENOMEM;
    slot = claim(epoch, outcome->step);
    slot->outcome = copy;
    if (slot->step - epoch->first_step + 1 > epoch->highest_outcome)
        epoch->highest_outcome = slot->step - epoch->first_step + 1;
    hand_to_all(node, epoch, slot);
    node_audit(epoch, outcome);
    if (outcome->kind == WIRE_OUTCOME_END)
        local_epoch_turn(node, epoch, LOCAL_ENDED, "the data has ended");
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- asking */

void node_on_pull(struct node *node, struct session *session, const struct wire_message *msg)
{
    struct local_epoch *epoch = session->epoch;
    struct local_slot *slot;

    if (!epoch || session->state != SESSION_RUNNING || epoch->state == LOCAL_ABORTED ||
        !wire_id_is(msg->ask.epoch, epoch->id) || !acceptable(epoch, msg->ask.step)) {
        node->stale++;
        return;
    }
    slot = find(epoch, msg->ask.step);
    if (slot && slot->outcome && hand(node, epoch, slot, session, msg->ask.want_table))
        return;
    if (slot && slot->pulled_ms && node->now_ms < slot->pulled_ms + NODE_PULL_MS)
        return;
    if (slot)
        slot->pulled_ms = node->now_ms;
    pull(node, epoch, msg->ask.step, msg->ask.want_table, UINT32_MAX);
}

/* 20 to 40 ms: a hash of node and step, so that 512 nodes do not ask at once. */
static uint64_t pull_delay(const struct node *node, uint64_t step)
{
    uint64_t x = (node->config.instance.lo ^ step) * 0x9e3779b97f4a7c15u;

    return node->config.pull_delay_ms + (x >> 40) % (node->config.pull_delay_ms + 1);
}

/* The lowest step that a beacon with this count proves and that may still matter. */
static uint64_t first_proven(const struct local_epoch *epoch, uint64_t decided)
{
    return epoch->first_step + (decided > WIRE_WINDOW ? decided - WIRE_WINDOW : 0);
}

void node_on_beacon(struct node *node, uint64_t link, const struct wire_message *msg)
{
    const struct wire_beacon *beacon = &msg->beacon;
    struct local_epoch *epoch = node_epoch(node, beacon->epoch);
    uint32_t index = epoch ? job_link(epoch->job, link) : POISE_NONE;

    if (index == POISE_NONE || epoch->state == LOCAL_ABORTED)
        return;
    if (beacon->decided > epoch->links[index].decided)
        epoch->links[index].decided = beacon->decided;
    for (uint64_t step = first_proven(epoch, beacon->decided); step < epoch->first_step + beacon->decided; step++) {
        struct local_slot *slot = acceptable(epoch, step) ? claim(epoch, step) : NULL;

        if (slot && !slot->outcome && !slot->proven_ms)
            slot->proven_ms = node->now_ms;
    }
}

/* When a proven step that is not here is asked for. */
static uint64_t due(const struct node *node, const struct local_slot *slot)
{
    uint64_t first = slot->proven_ms + pull_delay(node, slot->step);
    uint64_t again = slot->pulled_ms ? slot->pulled_ms + NODE_PULL_MS : 0;

    return first > again ? first : again;
}

/* What is a window behind the newest decided step no process needs any more. */
static uint64_t oldest_wanted(const struct local_epoch *epoch)
{
    uint64_t decided = 0;

    for (uint32_t i = 0; i < epoch->job->n_links; i++)
        if (epoch->links[i].decided > decided)
            decided = epoch->links[i].decided;
    return first_proven(epoch, decided);
}

static bool wanted(const struct local_slot *slot, uint64_t oldest)
{
    return slot->used && !slot->outcome && slot->proven_ms && slot->step >= oldest;
}

void local_epoch_pull_proven(struct node *node, struct local_epoch *epoch)
{
    uint64_t oldest = oldest_wanted(epoch);
    uint32_t n = 0;

    for (uint32_t i = 0; RULE_HOLDS(RULE_PULL) && i < NODE_SLOTS && n < WIRE_WINDOW; i++) {
        struct local_slot *slot = &epoch->slots[i];
        uint32_t mask = 0;

        if (!wanted(slot, oldest) || node->now_ms < due(node, slot))
            continue;
        for (uint32_t j = 0; j < epoch->job->n_links; j++)
            if (slot->step - epoch->first_step < epoch->links[j].decided)
                mask |= 1u << j;
        pull(node, epoch, slot->step, false, mask);
        slot->pulled_ms = node->now_ms;
        n++;
    }
}

uint64_t local_epoch_next_ms(const struct node *node, const struct local_epoch *epoch)
{
    uint64_t next = UINT64_MAX, oldest = oldest_wanted(epoch);

    for (uint32_t i = 0; i < NODE_SLOTS; i++) {
        const struct local_slot *slot = &epoch->slots[i];

        if (wanted(slot, oldest) && due(node, slot) < next)
            next = due(node, slot);
    }
    return next;
}

/* The oldest step that is gathered and undecided, else the one after the newest outcome. */
void local_epoch_beat(const struct local_epoch *epoch, struct wire_heartbeat_epoch *beat)
{
    const struct local_slot *oldest = NULL;

    memset(beat, 0, sizeof *beat);
    beat->epoch = epoch->id;
    for (uint32_t i = 0; i < NODE_SLOTS; i++) {
        const struct local_slot *slot = &epoch->slots[i];

        if (slot->used && !slot->outcome && slot->n && (!oldest || slot->step < oldest->step))
            oldest = slot;
    }
    beat->oldest_open = oldest ? oldest->step : epoch->first_step + epoch->highest_outcome;
    for (uint32_t i = 0; i < epoch->n_locals; i++) {
        if (!epoch->locals[i].session || (oldest && oldest->at[i]))
            continue;
        if (beat->n_missing < 16)
            beat->missing[beat->n_missing++] = epoch->locals[i].rank;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- record */

/* The metadata of all ranks of a step, for the process that records. Nothing is kept here: it asks again. */
int node_on_record(struct node *node, const struct wire_message *msg)
{
    struct local_epoch *epoch = msg->meta.n_metas ? node_epoch(node, msg->meta.metas[0].epoch) : NULL;

    if (!epoch || epoch->state == LOCAL_ABORTED) {
        node->stale++;
        return 0;
    }
    for (uint32_t i = 0; i < epoch->n_locals; i++) {
        const struct local *local = &epoch->locals[i];

        if (local->rank != 0 || local->replica != 0 || !local->session || local->session->state != SESSION_RUNNING)
            continue;
        if (core_copy(msg, &node->passed) < 0)
            return -ENOMEM;
        out_send(&node->out, local->session->id, false, node->passed);
        return 0;
    }
    return 0;
}

void node_on_record_need(struct node *node, struct session *session, const struct wire_message *msg)
{
    const struct local_epoch *epoch = session->epoch;
    struct wire_message *ask;

    if (!epoch || session->state != SESSION_RUNNING || epoch->state == LOCAL_ABORTED ||
        !wire_id_is(msg->ask.epoch, epoch->id) || epoch->locals[session->local].rank != 0 ||
        epoch->locals[session->local].replica != 0) {
        node->stale++;
        return;
    }
    ask = out_message(&node->out, WIRE_NEED);
    ask->ask = msg->ask;
    job_send_up(node, epoch->job, ask);
}
