/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of steps of an epoch at a coordinator: a ring of 2 W slots. Metadata fills a slot, whatever the order of steps
 * and nodes; when it is complete the outcome is made and sent to each node with the slices of its ranks; afterwards only the
 * digests (so that a second, different word of a rank is still noticed) and the outcome stay.
 *
 * Each step is decided by itself, since its outcome depends on nothing else: a coordinator that missed some simply has holes.
 */
#include <errno.h>
#include <string.h>

#include "daemon/core/epoch.h"
#include "daemon/core/mem.h"
#include "daemon/core/poison.h"

static void drop_metas(struct epoch_slot *slot)
{
    for (uint32_t i = 0; i < slot->n_kept; i++)
        wire_free(slot->kept[i]);
    slot->n_kept = 0;
}

static void reset(const struct epoch *epoch, struct epoch_slot *slot, uint64_t step)
{
    drop_metas(slot);
    outcome_free(slot->outcome);
    core_free(slot->node_slices);
    core_free(slot->record);
    slot->outcome = NULL;
    slot->node_slices = NULL;
    slot->record = NULL;
    slot->used = true;
    slot->step = step;
    slot->n_here = 0;
    slot->since_ms = slot->need_ms = 0;
    slot->warned = false;
    memset(slot->here, 0, epoch->n_members);
    memset(slot->metas, 0, epoch->n_members * sizeof *slot->metas);
}

void epoch_steps_free(struct epoch *epoch)
{
    for (uint32_t i = 0; i < EPOCH_SLOTS; i++) {
        struct epoch_slot *slot = &epoch->slots[i];

        drop_metas(slot);
        outcome_free(slot->outcome);
        core_free(slot->node_slices);
        core_free(slot->record);
        core_free(slot->kept);
        core_free(slot->here);
        core_free(slot->digests);
        core_free(slot->metas);
    }
}

struct epoch_slot *epoch_find(const struct epoch *epoch, uint64_t step)
{
    struct epoch_slot *slot = (struct epoch_slot *)&epoch->slots[step % EPOCH_SLOTS];

    return slot->used && slot->step == step ? slot : NULL;
}

/* The slot of an acceptable step; older ones that it pushes out of the window are forgotten. NULL: no memory, no effect. */
static struct epoch_slot *claim(struct epoch *epoch, uint64_t step)
{
    struct epoch_slot *slot = &epoch->slots[step % EPOCH_SLOTS];
    size_t n = epoch->n_members;

    if (slot->used && slot->step == step)
        return slot;
    if (!slot->here)
        slot->here = core_alloc(n, sizeof *slot->here);
    if (!slot->digests)
        slot->digests = core_alloc(n, sizeof *slot->digests);
    if (!slot->metas)
        slot->metas = core_alloc(n, sizeof *slot->metas);
    if (!slot->here || !slot->digests || !slot->metas)
        return NULL;
    reset(epoch, slot, step);
    if (step - epoch->first_step + 1 > epoch->highest)
        epoch->highest = step - epoch->first_step + 1;
    return slot;
}

/* ------------------------------------------------------------------------------------------------------------- metadata */

/* The member that a meta is of, if it is of this epoch's incarnation; n_members otherwise. */
static uint32_t member_of(const struct epoch *epoch, const struct wire_meta *meta)
{
    const struct member *member = membership_find(&epoch->set, meta->rank, meta->replica);

    if (!member || (RULE_HOLDS(RULE_INCARNATION) &&
                    wire_incarnation_compare(&member->join.incarnation, &meta->incarnation) != 0))
        return epoch->n_members;
    return meta->rank * epoch->n_replicas + meta->replica;
}

static void refuse(struct epoch *epoch, const struct wire_meta *meta, uint64_t link, struct core_out *out)
{
    struct wire_message *msg = out_message(out, WIRE_REFUSED);

    epoch->stale++;
    memcpy(msg->refused.who.job, epoch->roster.roster.job, sizeof msg->refused.who.job);
    memcpy(msg->refused.who.group, epoch->roster.roster.group, sizeof msg->refused.who.group);
    msg->refused.who.rank = meta->rank;
    msg->refused.who.replica = meta->replica;
    msg->refused.who.incarnation = meta->incarnation;
    msg->refused.error.code = -ESTALE;
    msg->refused.error.rank = meta->rank;
    msg->refused.error.sample = POISE_NONE;
    strcpy(msg->refused.error.text, "this process is not a member of the epoch that it speaks of");
    out_send(out, link, false, msg);
    out_log(out, LOG_LEVEL_DEBUG, "group %s: stale metadata of rank %u for step %llu dropped", epoch->label, meta->rank,
            (unsigned long long)meta->step);
}

/* How many metas of the message are news; refuses stale ones, counts those that contradict. */
static uint32_t look(struct epoch *epoch, const struct epoch_slot *slot, const struct wire_message *msg, uint64_t link,
                     struct core_out *out)
{
    uint32_t n_new = 0;
    bool refused = false;

    for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
        const struct wire_meta *meta = &msg->meta.metas[i];
        uint32_t at = member_of(epoch, meta);

        if (at == epoch->n_members) {
            if (!refused)
                refuse(epoch, meta, link, out);
            refused = true;
        } else if (!slot || !slot->here[at] || (!RULE_HOLDS(RULE_WRITE_ONCE) && !slot->outcome)) {
            n_new++;
        } else if (!wire_id_is(slot->digests[at], meta->digest)) {
            epoch->conflicts++;
            out_log(out, LOG_LEVEL_WARNING, "group %s: rank %u changes its metadata of step %llu, the first stays",
                    epoch->label, meta->rank, (unsigned long long)meta->step);
        }
    }
    return n_new;
}

static int add_tables(struct epoch *epoch, const struct wire_message *msg, struct core_out *out)
{
    for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
        const struct wire_meta *meta = &msg->meta.metas[i];
        int r;

        if (!meta->table || member_of(epoch, meta) == epoch->n_members)
            continue;
        r = tables_add(&epoch->tables, meta->table, meta->table_hash, meta->step);
        if (r == -ENOMEM)
            return r;
        if (r < 0)
            out_log(out, LOG_LEVEL_WARNING, "group %s: rank %u sends a field table that is not the one it names",
                    epoch->label, meta->rank);
    }
    return 0;
}

static int keep(struct epoch_slot *slot, const struct wire_message *msg)
{
    struct wire_message **grown, *copy;

    if (slot->n_kept == slot->cap_kept) {
        grown = core_grow(slot->kept, slot->cap_kept * 2 + 8, sizeof *grown);
        if (!grown)
            return -ENOMEM;
        slot->kept = grown;
        slot->cap_kept = slot->cap_kept * 2 + 8;
    }
    if (core_copy(msg, &copy) < 0)
        return -ENOMEM;
    slot->kept[slot->n_kept++] = copy;
    return 0;
}

/* One step a message: what a node sends is one. The others of a mixed one are as good as lost. */
static bool one_step(const struct wire_message *msg)
{
    for (uint32_t i = 1; i < msg->meta.n_metas; i++)
        if (msg->meta.metas[i].step != msg->meta.metas[0].step ||
            !wire_id_is(msg->meta.metas[i].epoch, msg->meta.metas[0].epoch))
            return false;
    return msg->meta.n_metas > 0;
}

static bool in_window(struct epoch *epoch, const struct wire_message *msg, uint64_t link, struct core_out *out)
{
    const struct member_node *node = epoch_node_by_link(epoch, link);
    uint64_t step = msg->meta.metas[0].step;
    enum epoch_place place;

    for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
        uint32_t at = member_of(epoch, &msg->meta.metas[i]);

        if (at < epoch->n_members)
            epoch_reached_meta(epoch, node, at, step);
    }
    place = epoch_place(epoch, step);
    if (place != EPOCH_FAR)
        return place == EPOCH_HERE;
    epoch->n_far += msg->meta.n_metas;
    epoch_far(epoch, step);
    out_log(out, LOG_LEVEL_DEBUG, "group %s: metadata of node %s for step %llu is beyond the window, dropped", epoch->label,
            node ? node->name : "?", (unsigned long long)step);
    return false;
}

int epoch_meta(struct epoch *epoch, const struct wire_message *msg, uint64_t link, uint64_t now_ms, struct core_out *out)
{
    struct epoch_slot *slot;
    uint64_t step;

    if (!one_step(msg) || !in_window(epoch, msg, link, out)) {
        epoch->stale++;
        return 0;
    }
    step = msg->meta.metas[0].step;
    if (add_tables(epoch, msg, out) < 0)
        return -ENOMEM;
    if (look(epoch, epoch_find(epoch, step), msg, link, out) == 0)
        return 0;
    slot = claim(epoch, step);
    if (!slot || keep(slot, msg) < 0)
        return -ENOMEM;
    msg = slot->kept[slot->n_kept - 1];
    if (!slot->since_ms)
        slot->since_ms = now_ms;
    for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
        const struct wire_meta *meta = &msg->meta.metas[i];
        uint32_t at = member_of(epoch, meta);

        if (at == epoch->n_members || (slot->here[at] && RULE_HOLDS(RULE_WRITE_ONCE)))
            continue;
        slot->n_here += !slot->here[at];
        slot->here[at] = 1;
        slot->digests[at] = meta->digest;
        slot->metas[at] = meta;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- decision */

static const struct wire_meta *first_replica(const struct epoch *epoch, const struct epoch_slot *slot, uint32_t rank)
{
    return slot->metas[(size_t)rank * epoch->n_replicas];
}

static bool table_unknown(const struct epoch *epoch, const struct wire_meta *meta)
{
    struct table_entry *entry;

    if (!meta || wire_id_none(meta->table_hash))
        return false;
    entry = tables_find(&epoch->tables, meta->table_hash);
    if (entry && entry->used < meta->step)
        entry->used = meta->step;
    return !entry;
}

static bool tables_known(const struct epoch *epoch, const struct epoch_slot *slot)
{
    for (uint32_t rank = 0; rank < epoch->n_ranks; rank++)
        if (table_unknown(epoch, first_replica(epoch, slot, rank)))
            return false;
    return true;
}

/* The schema of the step's tables: nearly always the one of the step before. */
static int schema_of(const struct epoch *epoch, const struct epoch_slot *slot, struct schema **ret_schema)
{
    struct wire_id *hashes = core_alloc(epoch->n_ranks, sizeof *hashes);
    int r = 0;

    if (!hashes)
        return -ENOMEM;
    for (uint32_t rank = 0; rank < epoch->n_ranks; rank++)
        hashes[rank] = first_replica(epoch, slot, rank)->table_hash;
    if (epoch->schema && memcmp(epoch->schema->hashes, hashes, epoch->n_ranks * sizeof *hashes) == 0)
        *ret_schema = schema_ref(epoch->schema);
    else
        r = schema_new(&epoch->tables, hashes, epoch->n_ranks, ret_schema);
    core_free(hashes);
    return r;
}

static int make(const struct epoch *epoch, const struct epoch_slot *slot, struct schema *schema, struct outcome **ret_outcome,
                struct wire_slice **ret_slices)
{
    struct outcome_input in = {.step = slot->step,
                               .n_ranks = epoch->n_ranks,
                               .n_replicas = epoch->n_replicas,
                               .options = &epoch->options,
                               .node = epoch->node,
                               .sync_set = epoch->sync_set,
                               .metas = slot->metas,
                               .schema = schema};
    uint32_t n = epoch->node_first[epoch->n_nodes];
    struct wire_slice *slices = core_alloc(n, sizeof *slices);
    int r = slices ? outcome_make(&in, ret_outcome) : -ENOMEM;

    if (r < 0) {
        core_free(slices);
        return r;
    }
    for (uint32_t i = 0; (*ret_outcome)->kind == WIRE_OUTCOME_PLAN && i < n; i++)
        slices[i] = (*ret_outcome)->slices[epoch->node_ranks[i]];
    *ret_slices = slices;
    return 0;
}

static void send_outcome(struct epoch *epoch, const struct epoch_slot *slot, struct member_node *node, bool want_table,
                         struct core_out *out)
{
    const struct outcome *outcome = slot->outcome;
    uint32_t index = (uint32_t)(node - epoch->set.nodes), first = epoch->node_first[index];
    struct wire_message *msg;
    bool with_table;

    if (!node->linked)
        return;
    msg = out_message(out, WIRE_OUTCOME);
    with_table = outcome->schema && (want_table || !wire_id_is(node->told, outcome->schema->hash));
    outcome_message(outcome, epoch->id, with_table, slot->node_slices + first, epoch->node_first[index + 1] - first, msg);
    if (outcome->schema)
        node->told = outcome->schema->hash;
    out_send(out, node->link, false, msg);
}

/* ---------------------------------------------------------------------------------------------------------------- record */

#define RECORD_TABLES 16u /* different field tables of a step that are sent once each; of more, some are sent again */

/* What rank 0 records of a step: replica 0 of every rank, as it counted. NULL: no memory. */
static struct wire_meta *record_of(const struct epoch *epoch, const struct epoch_slot *slot)
{
    struct wire_meta *record = core_alloc(epoch->n_ranks, sizeof *record);

    for (uint32_t rank = 0; record && rank < epoch->n_ranks; rank++) {
        record[rank] = *first_replica(epoch, slot, rank);
        record[rank].node = epoch->node[rank];
        record[rank].sync_set = epoch->sync_set[rank];
    }
    return record;
}

/* Each table with the first rank that has it. One that was forgotten meanwhile is missing in the record. */
static void attach_tables(const struct epoch *epoch, struct wire_meta *record)
{
    struct wire_id seen[RECORD_TABLES];
    uint32_t n_seen = 0;

    for (uint32_t rank = 0; rank < epoch->n_ranks; rank++) {
        struct table_entry *entry = NULL;
        bool known = wire_id_none(record[rank].table_hash);

        for (uint32_t i = 0; !known && i < n_seen; i++)
            known = wire_id_is(seen[i], record[rank].table_hash);
        if (!known)
            entry = tables_find(&epoch->tables, record[rank].table_hash);
        record[rank].table = entry ? &entry->table : NULL;
        if (entry && n_seen < RECORD_TABLES)
            seen[n_seen++] = entry->hash;
    }
}

static void send_record(const struct epoch *epoch, const struct epoch_slot *slot, struct core_out *out)
{
    const struct member_node *node = &epoch->set.nodes[epoch->node[0]];
    struct wire_message *msg;

    if (!node->linked)
        return;
    attach_tables(epoch, slot->record); /* again each time: tables may have been forgotten since */
    msg = out_message(out, WIRE_META);
    msg->meta.n_metas = epoch->n_ranks;
    msg->meta.metas = slot->record;
    out_send(out, node->link, false, msg);
}

/* -------------------------------------------------------------------------------------------------------------- decided */

static void add_up(struct epoch *epoch, const struct outcome *outcome)
{
    if (outcome->kind == WIRE_OUTCOME_PLAN) {
        epoch->planned++;
        epoch->samples += outcome->totals.n_samples;
        epoch->bytes += outcome->totals.bytes;
        if (outcome->totals.mode == POISE_MODE_ON) {
            epoch->samples_moved += outcome->totals.samples_moved;
            epoch->bytes_moved += outcome->totals.bytes_moved;
            epoch->bytes_between_nodes += outcome->totals.bytes_between_nodes;
        }
        epoch->last = outcome->totals;
    }
    epoch->errors += outcome->kind == WIRE_OUTCOME_ERROR;
    epoch->ended |= outcome->kind == WIRE_OUTCOME_END;
    epoch->samples_dropped += outcome->n_dropped;
}

static void log_outcome(const struct epoch *epoch, const struct outcome *outcome, struct core_out *out)
{
    unsigned long long step = outcome->step;

    if (outcome->kind == WIRE_OUTCOME_ERROR)
        out_log(out, LOG_LEVEL_WARNING, "group %s: step %llu is an error: %.150s", epoch->label, step, outcome->error.text);
    else if (outcome->kind == WIRE_OUTCOME_END)
        out_log(out, LOG_LEVEL_INFO, "group %s: the data ends at step %llu", epoch->label, step);
    else
        out_log(out, LOG_LEVEL_DEBUG, "group %s: step %llu planned, %llu of %llu samples move", epoch->label, step,
                (unsigned long long)outcome->totals.samples_moved, (unsigned long long)outcome->totals.n_samples);
}

/* Equal sizes may be an accident once; the tags are hashed too, so three times in a row is not. */
static void look_for_twins(struct epoch *epoch, const struct epoch_slot *slot, struct core_out *out)
{
    uint64_t at = slot->step - epoch->first_step;
    uint32_t a, b;

    if (at >= 3 || !epoch_twins(epoch, slot, &a, &b) || ++epoch->n_twins < 3)
        return;
    out_log(out, LOG_LEVEL_WARNING,
            "group %s: ranks %u and %u submit the same samples, step after step: are they replicas of one rank?",
            epoch->label, a, b);
}

static int decide_slot(struct epoch *epoch, struct epoch_slot *slot, struct coordinator_mark *mark, struct core_out *out)
{
    struct schema *schema;
    struct outcome *outcome;
    struct wire_slice *slices;
    struct wire_meta *record;
    int r;

    mark_set(mark, epoch->id, slot->step);
    r = schema_of(epoch, slot, &schema);
    if (r < 0) {
        mark_clear(mark);
        return r;
    }
    record = epoch->options.record ? record_of(epoch, slot) : NULL;
    r = epoch->options.record && !record ? -ENOMEM : make(epoch, slot, schema, &outcome, &slices);
    mark_clear(mark);
    if (r < 0) {
        core_free(record);
        schema_unref(schema);
        return r;
    }
    schema_unref(epoch->schema);
    epoch->schema = schema;
    slot->outcome = outcome;
    slot->node_slices = slices;
    slot->record = record;
    look_for_twins(epoch, slot, out);
    if (!record) /* else they stay as long as the outcome: rank 0 may ask for them again */
        drop_metas(slot);
    memset(slot->metas, 0, epoch->n_members * sizeof *slot->metas);
    if (slot->step - epoch->first_step + 1 > epoch->decided)
        epoch->decided = slot->step - epoch->first_step + 1;
    add_up(epoch, outcome);
    for (uint32_t i = 0; i < epoch->n_nodes; i++)
        send_outcome(epoch, slot, &epoch->set.nodes[i], false, out);
    if (record) /* after the outcomes, which training waits for */
        send_record(epoch, slot, out);
    log_outcome(epoch, outcome, out);
    return 1;
}

int epoch_decide(struct epoch *epoch, struct coordinator_mark *mark, uint64_t now_ms, struct core_out *out)
{
    struct epoch_slot *lowest = NULL, *lacking = NULL;

    for (uint32_t i = 0; i < EPOCH_SLOTS; i++) {
        struct epoch_slot *slot = &epoch->slots[i];

        if (!slot->used || slot->outcome || slot->n_here < epoch->n_members)
            continue;
        if (!tables_known(epoch, slot))
            lacking = !lacking || slot->step < lacking->step ? slot : lacking;
        else
            lowest = !lowest || slot->step < lowest->step ? slot : lowest;
    }
    if (lacking)
        epoch_need(epoch, lacking->step, now_ms, out);
    return lowest ? decide_slot(epoch, lowest, mark, out) : 0;
}

uint64_t epoch_n_open(const struct epoch *epoch)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < EPOCH_SLOTS; i++)
        for (uint32_t rank = 0; epoch->slots[i].used && !epoch->slots[i].outcome && rank < epoch->n_ranks; rank++) {
            const struct wire_meta *meta = first_replica(epoch, &epoch->slots[i], rank);

            n += meta && meta->kind == WIRE_META_SAMPLES ? meta->n_samples : 0;
        }
    return n;
}

/* ------------------------------------------------------------------------------------------------------------ questions */

struct lack {
    bool metas, tables;
};

/* What of a step that should have come from a node is not here. */
static struct lack lack_of(const struct epoch *epoch, const struct epoch_slot *slot, uint32_t node)
{
    struct lack lack = {.metas = !slot};

    for (uint32_t j = epoch->node_first[node]; slot && j < epoch->node_first[node + 1]; j++) {
        uint32_t rank = epoch->node_ranks[j];

        lack.tables |= table_unknown(epoch, first_replica(epoch, slot, rank));
        for (uint32_t k = 0; k < epoch->n_replicas; k++) {
            size_t at = (size_t)rank * epoch->n_replicas + k;

            lack.metas |= !slot->here[at] && epoch->set.members[at]->node == node;
        }
    }
    return lack;
}

/* Too soon to ask again? A step of which nothing came has no slot (a question makes none, or a wrong number would push good
 * steps out), so the newest question of that kind is remembered beside. */
static bool asked_lately(struct epoch *epoch, struct epoch_slot *slot, uint64_t step, uint64_t now_ms)
{
    uint64_t *at = slot ? &slot->need_ms : &epoch->asked_ms;
    bool same = slot || epoch->asked_step == step;

    if (same && *at && now_ms < *at + EPOCH_NEED_MS)
        return true;
    *at = now_ms;
    if (!slot)
        epoch->asked_step = step;
    return false;
}

void epoch_need(struct epoch *epoch, uint64_t step, uint64_t now_ms, struct core_out *out)
{
    struct epoch_slot *slot = epoch_find(epoch, step);
    struct wire_message *asks[2] = {NULL, NULL}; /* without and with table */

    enum epoch_place place = epoch_place(epoch, step);

    if (place == EPOCH_FAR)
        epoch_far(epoch, step);
    if (place != EPOCH_HERE || !RULE_HOLDS(RULE_NEED) || (slot && slot->outcome) || asked_lately(epoch, slot, step, now_ms))
        return;
    for (uint32_t node = 0; node < epoch->n_nodes; node++) {
        struct lack lack = lack_of(epoch, slot, node);
        struct wire_message **ask = &asks[lack.tables];

        if ((!lack.metas && !lack.tables) || !epoch->set.nodes[node].linked)
            continue;
        if (!*ask) {
            *ask = out_message(out, WIRE_NEED);
            (*ask)->ask.epoch = epoch->id;
            (*ask)->ask.step = step;
            (*ask)->ask.want_table = lack.tables;
        }
        out_send(out, epoch->set.nodes[node].link, false, *ask);
    }
}

void epoch_pull(struct epoch *epoch, struct member_node *node, uint64_t step, bool want_table, uint64_t now_ms,
                struct core_out *out)
{
    struct epoch_slot *slot = epoch_find(epoch, step);

    if (slot && slot->outcome)
        send_outcome(epoch, slot, node, want_table, out);
    else
        epoch_need(epoch, step, now_ms, out);
}

void epoch_need_record(struct epoch *epoch, struct member_node *node, uint64_t step, uint64_t now_ms, struct core_out *out)
{
    const struct epoch_slot *slot = epoch_find(epoch, step);

    if (!epoch->options.record || node != &epoch->set.nodes[epoch->node[0]])
        return;
    if (slot && slot->record)
        send_record(epoch, slot, out);
    else /* this coordinator missed the step: it is decided here too, to the same outcome */
        epoch_need(epoch, step, now_ms, out);
}
