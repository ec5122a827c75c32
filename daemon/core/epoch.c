/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does not change while an epoch runs (members, their nodes, options, the roster) and what is said about it: beacons and
 * who is missing. Made in one go from a whole membership, so there is never half an epoch.
 */
#include "daemon/core/epoch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

void epoch_free(struct epoch *epoch)
{
    if (!epoch)
        return;
    epoch_steps_free(epoch);
    membership_clear(&epoch->set);
    tables_free(&epoch->tables);
    schema_unref(epoch->schema);
    core_free(epoch->node);
    core_free(epoch->sync_set);
    core_free(epoch->node_first);
    core_free(epoch->node_ranks);
    core_free(epoch->roster_members);
    core_free(epoch->reached);
    core_free(epoch);
}

/* Options are read once, and refused here rather than at the first step: open fails on every rank with the reason. */
static int read_options(struct epoch *epoch, const struct membership *set, struct poise_err *err)
{
    const struct wire_join *join = &set->reference->join;
    struct poise_plan_request req;
    int r = options_read(join->options, join->n_options, &epoch->options, err);

    if (r < 0)
        return r;
    options_request(&epoch->options, &req);
    req.n_ranks = set->n_ranks;
    return plan_check_options(&req, err);
}

/* Ranks by node, each once a node, ascending: members come in that order. */
static int list_node_ranks(struct epoch *epoch, const struct membership *set)
{
    uint32_t *last = core_alloc(set->n_nodes, sizeof *last); /* the rank that a node had last, plus 1 */
    uint32_t *fill = core_alloc(set->n_nodes, sizeof *fill);

    epoch->node_first = core_alloc((size_t)set->n_nodes + 1, sizeof *epoch->node_first);
    epoch->node_ranks = core_alloc(epoch->n_members, sizeof *epoch->node_ranks);
    if (!last || !fill || !epoch->node_first || !epoch->node_ranks) {
        core_free(last);
        core_free(fill);
        return -ENOMEM;
    }
    for (int pass = 0; pass < 2; pass++) {
        memset(last, 0, set->n_nodes * sizeof *last);
        for (uint32_t i = 0; i < epoch->n_members; i++) {
            uint32_t node = set->members[i]->node, rank = i / epoch->n_replicas;

            if (last[node] == rank + 1)
                continue;
            last[node] = rank + 1;
            if (pass == 0)
                epoch->node_first[node + 1]++;
            else
                epoch->node_ranks[epoch->node_first[node] + fill[node]++] = rank;
        }
        for (uint32_t node = 0; pass == 0 && node < set->n_nodes; node++)
            epoch->node_first[node + 1] += epoch->node_first[node];
    }
    core_free(last);
    core_free(fill);
    return 0;
}

static int fill_members(struct epoch *epoch, const struct membership *set)
{
    epoch->node = core_alloc(epoch->n_ranks, sizeof *epoch->node);
    epoch->sync_set = core_alloc(epoch->n_ranks, sizeof *epoch->sync_set);
    epoch->roster_members = core_alloc(epoch->n_members, sizeof *epoch->roster_members);
    epoch->reached = core_alloc(epoch->n_members, sizeof *epoch->reached);
    if (!epoch->node || !epoch->sync_set || !epoch->roster_members || !epoch->reached)
        return -ENOMEM;
    for (uint32_t i = 0; i < epoch->n_members; i++) {
        const struct member *member = set->members[i];
        struct wire_member *to = &epoch->roster_members[i];

        to->rank = member->join.rank;
        to->replica = member->join.replica;
        to->node = member->node;
        to->pid = member->join.pid;
        to->incarnation = member->join.incarnation;
        snprintf(to->host, sizeof to->host, "%s", member->join.host);
        memcpy(to->payload, member->join.payload, sizeof to->payload);
        if (member->join.replica == 0) {
            epoch->node[member->join.rank] = member->node;
            epoch->sync_set[member->join.rank] = member->join.sync_set;
        }
    }
    return list_node_ranks(epoch, set);
}

/* The first nodes that can be asked when the coordinators of the list are gone. */
static uint32_t fill_listens(struct epoch *epoch, const struct membership *set)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < set->n_nodes && n < WIRE_MAX_LISTENS; i++) {
        if (!set->nodes[i].listen[0])
            continue;
        epoch->listens[n].node = i;
        memcpy(epoch->listens[n++].endpoint, set->nodes[i].listen, WIRE_LISTEN_BYTES);
    }
    return n;
}

static void fill_roster(struct epoch *epoch, const struct membership *set, const struct wire_join *join)
{
    struct wire_roster *roster = &epoch->roster.roster;

    epoch->roster.type = WIRE_ROSTER;
    roster->epoch = epoch->id;
    memcpy(roster->job, join->job, sizeof roster->job);
    memcpy(roster->group, join->group, sizeof roster->group);
    roster->uid = join->uid;
    roster->n_ranks = epoch->n_ranks;
    roster->n_replicas = epoch->n_replicas;
    roster->n_nodes = epoch->n_nodes;
    roster->first_step = epoch->first_step;
    roster->n_members = epoch->n_members;
    roster->members = epoch->roster_members;
    roster->n_listens = fill_listens(epoch, set);
    roster->listens = epoch->listens;
    epoch->bare_roster = epoch->roster;
    if (!epoch_moves_payload(epoch) || epoch->options.payload != OPTIONS_PAYLOAD_CURVE)
        return;
    memcpy(epoch->payload_key, join->payload_key, sizeof epoch->payload_key);
    if (wire_key_there(epoch->payload_key))
        roster->payload_key = epoch->payload_key;
}

/* Whether two of one replica number, who exchange payload, are on different nodes, and say where they serve it. */
bool epoch_moves_payload(const struct epoch *epoch)
{
    for (uint32_t i = epoch->n_replicas; i < epoch->n_members; i++) {
        const struct wire_member *member = &epoch->roster_members[i];

        if (member->payload[0] && member->node != epoch->roster_members[i % epoch->n_replicas].node)
            return !epoch->options.plan_only;
    }
    return false;
}

int epoch_check_key(const struct epoch *epoch, struct poise_err *err)
{
    const struct member_node *first = &epoch->set.nodes[epoch->roster_members[0].node];
    const struct member_node *open = NULL;

    if (!epoch_moves_payload(epoch) || epoch->options.payload != OPTIONS_PAYLOAD_CURVE)
        return 0;
    for (uint32_t i = 0; i < epoch->n_nodes && !open; i++)
        open = epoch->set.nodes[i].secure ? NULL : &epoch->set.nodes[i];
    if (!open)
        return wire_key_there(epoch->payload_key) ? 0 : -EAGAIN;
    return err_set(err, -ENOKEY,
                   "group %s spans %u nodes, and the key of its payload cannot travel: the connection of node %s to its "
                   "coordinator is not encrypted; give every poised keys (`poisectl keygen`), or set payload=plain "
                   "where the network is trusted",
                   epoch->label, epoch->n_nodes, (first->secure ? open : first)->name);
}

void epoch_send_roster(const struct epoch *epoch, struct core_out *out, uint64_t link)
{
    bool secure = false;

    for (uint32_t i = 0; i < epoch->n_nodes; i++)
        secure |= epoch->set.nodes[i].linked && epoch->set.nodes[i].link == link && epoch->set.nodes[i].secure;
    out_send(out, link, false, secure ? &epoch->roster : &epoch->bare_roster);
}

void epoch_send_rosters(const struct epoch *epoch, struct core_out *out)
{
    for (uint32_t i = 0; i < epoch->n_nodes; i++)
        if (epoch->set.nodes[i].linked)
            epoch_send_roster(epoch, out, epoch->set.nodes[i].link);
}

int epoch_new(struct membership *set, uint64_t now_ms, struct epoch **ret_epoch, struct poise_err *err)
{
    const struct wire_join *join = &set->members[0]->join;
    struct epoch *epoch = core_alloc(1, sizeof *epoch);
    int r;

    if (!epoch)
        return -ENOMEM;
    epoch->n_ranks = set->n_ranks;
    epoch->n_replicas = set->n_replicas;
    epoch->n_members = set->n_ranks * set->n_replicas;
    epoch->first_step = join->first_step;
    epoch->heard_ms = epoch->next_beacon_ms = now_ms;
    epoch->tables.limit = 2 * epoch->n_ranks + 64;
    snprintf(epoch->label, sizeof epoch->label, "%s/%s", join->job, join->group);
    r = read_options(epoch, set, err);
    if (r == 0)
        r = membership_number(set, &epoch->id); /* harmless if the rest fails: nodes are only sorted */
    epoch->n_nodes = set->n_nodes;
    if (r == 0)
        r = fill_members(epoch, set);
    if (r < 0) {
        epoch_free(epoch);
        return r;
    }
    fill_roster(epoch, set, join);
    for (uint32_t i = 0; i < set->n_nodes; i++)
        set->nodes[i].alive_ms = set->nodes[i].heard_ms = now_ms;
    epoch->set = *set;
    memset(set, 0, sizeof *set);
    *ret_epoch = epoch;
    return 0;
}

struct member_node *epoch_node_by_link(struct epoch *epoch, uint64_t link)
{
    for (uint32_t i = 0; i < epoch->n_nodes; i++)
        if (epoch->set.nodes[i].linked && epoch->set.nodes[i].link == link)
            return &epoch->set.nodes[i];
    return NULL;
}

struct member_node *epoch_node_by_instance(struct epoch *epoch, struct wire_id instance)
{
    for (uint32_t i = 0; i < epoch->n_nodes; i++)
        if (wire_id_is(epoch->set.nodes[i].instance, instance))
            return &epoch->set.nodes[i];
    return NULL;
}

void epoch_send_all(const struct epoch *epoch, struct core_out *out, const struct wire_message *msg)
{
    for (uint32_t i = 0; i < epoch->n_nodes; i++)
        if (epoch->set.nodes[i].linked)
            out_send(out, epoch->set.nodes[i].link, false, msg);
}

uint64_t epoch_oldest_open(const struct epoch *epoch)
{
    return epoch->first_step + epoch->decided;
}

uint32_t epoch_missing(const struct epoch *epoch, uint32_t *ranks, uint32_t max)
{
    const struct epoch_slot *slot = epoch_find(epoch, epoch_oldest_open(epoch));
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < epoch->n_ranks; rank++) {
        bool missing = !slot;

        for (uint32_t k = 0; slot && k < epoch->n_replicas; k++)
            missing |= !slot->here[(size_t)rank * epoch->n_replicas + k];
        if (!missing)
            continue;
        if (n < max)
            ranks[n] = rank;
        n++;
    }
    return n;
}

void epoch_beacon(const struct epoch *epoch, struct wire_id instance, struct wire_message *msg)
{
    struct wire_beacon *beacon = &msg->beacon;
    uint32_t n = epoch->decided < WIRE_WINDOW ? (uint32_t)epoch->decided : WIRE_WINDOW;

    beacon->instance = instance;
    beacon->epoch = epoch->id;
    beacon->decided = epoch->decided;
    beacon->n_plans = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct epoch_slot *slot = epoch_find(epoch, epoch_oldest_open(epoch) - n + i);

        if (slot && slot->outcome)
            beacon->plan_id[i] = slot->outcome->plan_id;
    }
    beacon->missing_total = epoch_missing(epoch, beacon->missing, 16);
    beacon->n_missing = beacon->missing_total < 16 ? beacon->missing_total : 16;
}
