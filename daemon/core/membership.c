/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is in a group. A coordinator keeps two such sets a group at most: one that forms anew, one that claims an epoch. What
 * every member must agree on is compared with the lowest member that is here, so that the text names the same two whatever
 * the order in which they came (where the wrong one is not the lowest, which is the usual case).
 *
 * Options are kept once, of the first member: equal for all, and 4,096 copies of them would be most of the memory.
 */
#include "daemon/core/membership.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/planner/err.h"
#include "proto/options.h"

static size_t n_places(const struct membership *set)
{
    return (size_t)set->n_ranks * set->n_replicas;
}

void membership_clear(struct membership *set)
{
    if (set->members)
        for (size_t i = 0; i < n_places(set); i++)
            core_free(set->members[i]);
    core_free(set->members);
    core_free(set->nodes);
    wire_free(set->reference);
    memset(set, 0, sizeof *set);
}

const char *member_name(uint32_t rank, uint32_t replica, uint32_t n_replicas, char *text, size_t n_text)
{
    if (n_replicas > 1)
        snprintf(text, n_text, "rank %u replica %u", rank, replica);
    else
        snprintf(text, n_text, "rank %u", rank);
    return text;
}

int membership_check(const struct wire_join *join, struct poise_err *err)
{
    if (join->wire_version != WIRE_VERSION)
        return err_set_at(err, -EPROTONOSUPPORT, join->rank, POISE_NONE, NULL,
                          "rank %u speaks wire version %u, this daemon %u: install the same version of poise everywhere",
                          join->rank, join->wire_version, WIRE_VERSION);
    if (join->job[0] == 0 || join->group[0] == 0)
        return err_set_at(err, -EINVAL, join->rank, POISE_NONE, NULL, "rank %u names no job or group", join->rank);
    if (join->n_ranks == 0 || join->n_replicas == 0 ||
        (uint64_t)join->n_ranks * join->n_replicas > WIRE_MAX_RANKS)
        return err_set_at(err, -EINVAL, join->rank, POISE_NONE, NULL,
                          "rank %u opens a group of %u ranks and %u replicas: at least 1 each, at most %u processes",
                          join->rank, join->n_ranks, join->n_replicas, WIRE_MAX_RANKS);
    if (join->rank >= join->n_ranks)
        return err_set_at(err, -EINVAL, join->rank, POISE_NONE, NULL,
                          "rank %u is out of range: the group has %u ranks, numbered from 0", join->rank, join->n_ranks);
    if (join->replica >= join->n_replicas)
        return err_set_at(err, -EINVAL, join->rank, POISE_NONE, NULL,
                          "rank %u: replica %u is out of range: the group has %u replicas, numbered from 0", join->rank,
                          join->replica, join->n_replicas);
    return 0;
}

int membership_open(struct membership *set, const struct wire_join *join, uint64_t now_ms)
{
    struct wire_message msg = {.type = WIRE_JOIN, .join = *join};
    struct wire_message *reference;
    struct member **members;
    struct member_node *nodes;

    if (set->n_nodes == set->cap_nodes) {
        nodes = core_grow(set->nodes, set->cap_nodes * 2 + 4, sizeof *nodes);
        if (!nodes)
            return -ENOMEM;
        set->nodes = nodes;
        set->cap_nodes = set->cap_nodes * 2 + 4;
    }
    if (set->members)
        return 0;
    if (core_copy(&msg, &reference) < 0)
        return -ENOMEM;
    members = core_alloc((size_t)join->n_ranks * join->n_replicas, sizeof *members);
    if (!members) {
        wire_free(reference);
        return -ENOMEM;
    }
    set->members = members;
    set->reference = reference;
    set->n_ranks = join->n_ranks;
    set->n_replicas = join->n_replicas;
    set->claim = join->epoch;
    set->since_ms = now_ms;
    return 0;
}

/* The lowest member that is here; NULL in an empty set. */
static const struct member *lowest(const struct membership *set)
{
    for (size_t i = 0; set->members && i < n_places(set); i++)
        if (set->members[i])
            return set->members[i];
    return NULL;
}

static int number_differs(const struct wire_join *a, const struct wire_join *b, const char *what, uint64_t va, uint64_t vb,
                          struct poise_err *err)
{
    return err_set_at(err, -EINVAL, b->rank, POISE_NONE, NULL, "%s is %llu on rank %u and %llu on rank %u: make them agree",
                      what, (unsigned long long)va, a->rank, (unsigned long long)vb, b->rank);
}

/* Who names others waits elsewhere for the same group; those that overlap meet here. */
static const char *coordinators_of(const struct wire_join *join)
{
    return join->coordinators ? join->coordinators : "";
}

int membership_fits(const struct membership *set, const struct wire_join *join, struct poise_err *err)
{
    const struct member *other = lowest(set);
    const struct wire_join *a, *b;
    char text[400];

    if (!other) /* opened for another process that was refused */
        return join->n_ranks == set->n_ranks && join->n_replicas == set->n_replicas
                   ? 0
                   : number_differs(&set->reference->join, join, "n_ranks x n_replicas",
                                    (uint64_t)set->n_ranks * set->n_replicas, (uint64_t)join->n_ranks * join->n_replicas,
                                    err);
    a = other->join.rank <= join->rank ? &other->join : join;
    b = a == join ? &other->join : join;
    if (a->n_ranks != b->n_ranks)
        return number_differs(a, b, "n_ranks", a->n_ranks, b->n_ranks, err);
    if (a->n_replicas != b->n_replicas)
        return number_differs(a, b, "n_replicas", a->n_replicas, b->n_replicas, err);
    if (a->first_step != b->first_step)
        return number_differs(a, b, "first_step", a->first_step, b->first_step, err);
    if (a->planner_version != b->planner_version)
        return number_differs(a, b, "the planner's version", a->planner_version, b->planner_version, err);
    if (strcmp(coordinators_of(&set->reference->join), coordinators_of(join)) != 0)
        return err_set_at(err, -EINVAL, join->rank, POISE_NONE, NULL,
                          "rank %u names the coordinators \"%.120s\", rank %u \"%.120s\": make them agree", join->rank,
                          coordinators_of(join), set->reference->join.rank, coordinators_of(&set->reference->join));
    if (options_differ(a, b, text, sizeof text) != 0)
        return err_set_at(err, -EINVAL, b->rank, POISE_NONE, NULL, "%s: make them agree", text);
    return 0;
}

struct member *membership_find(const struct membership *set, uint32_t rank, uint32_t replica)
{
    if (!set->members || rank >= set->n_ranks || replica >= set->n_replicas)
        return NULL;
    return set->members[(size_t)rank * set->n_replicas + replica];
}

uint32_t membership_node(struct membership *set, struct wire_id instance, const char *name, uint64_t link, uint64_t now_ms)
{
    struct member_node *node;
    uint32_t i = 0;

    while (i < set->n_nodes && !wire_id_is(set->nodes[i].instance, instance))
        i++;
    if (i == set->cap_nodes)
        return POISE_NONE; /* membership_open() makes room */
    node = &set->nodes[i];
    if (i == set->n_nodes) {
        set->n_nodes++;
        memset(node, 0, sizeof *node);
        node->instance = instance;
        snprintf(node->name, sizeof node->name, "%s", name);
    }
    node->link = link;
    node->linked = true;
    node->alive_ms = node->heard_ms = now_ms;
    return i;
}

void membership_put(struct membership *set, struct member *member)
{
    struct member **at = &set->members[(size_t)member->join.rank * set->n_replicas + member->join.replica];

    member->join.options = set->reference->join.options;
    member->join.n_options = set->reference->join.n_options;
    member->join.coordinators = set->reference->join.coordinators;
    if (*at)
        core_free(*at);
    else
        set->n_here++;
    *at = member;
    if (member->join.incarnation.attempt > set->max_attempt)
        set->max_attempt = member->join.incarnation.attempt;
}

static void drop_at(struct membership *set, size_t i)
{
    core_free(set->members[i]);
    set->members[i] = NULL;
    set->n_here--;
}

void membership_drop(struct membership *set, uint32_t rank, uint32_t replica)
{
    if (!membership_find(set, rank, replica))
        return;
    drop_at(set, (size_t)rank * set->n_replicas + replica);
    if (set->n_here == 0)
        membership_clear(set);
}

uint32_t membership_retain(struct membership *set, uint32_t node, uint32_t seen)
{
    uint32_t n = 0;

    for (size_t i = 0; set->members && i < n_places(set); i++)
        if (set->members[i] && set->members[i]->node == node && set->members[i]->seen != seen) {
            drop_at(set, i);
            n++;
        }
    if (set->members && set->n_here == 0)
        membership_clear(set);
    return n;
}

uint32_t membership_expire(struct membership *set, uint64_t since_ms)
{
    uint32_t n = 0;

    for (size_t i = 0; set->members && i < n_places(set); i++)
        if (set->members[i] && set->members[i]->heard_ms < since_ms) {
            drop_at(set, i);
            n++;
        }
    if (set->members && set->n_here == 0)
        membership_clear(set);
    return n;
}

void membership_drop_guests(struct membership *set)
{
    for (size_t i = 0; set->members && i < n_places(set); i++)
        if (set->members[i] && set->members[i]->guest)
            drop_at(set, i);
    if (set->members && set->n_here == 0)
        membership_clear(set);
}

bool membership_whole(const struct membership *set)
{
    return set->members && set->n_here == n_places(set);
}

int membership_number(struct membership *set, struct wire_id *ret_epoch)
{
    const struct wire_join **joins = core_alloc(n_places(set), sizeof *joins);
    uint32_t *nodes = core_alloc(n_places(set), sizeof *nodes);
    uint32_t *number = core_alloc(set->n_nodes, sizeof *number); /* new number of an old index, plus 1 */
    struct member_node *sorted = core_alloc(set->n_nodes, sizeof *sorted);
    uint32_t n = 0;
    int r = -ENOMEM;

    if (!joins || !nodes || !number || !sorted)
        goto out;
    for (size_t i = 0; i < n_places(set); i++) {
        struct member *member = set->members[i];

        if (number[member->node] == 0) {
            sorted[n] = set->nodes[member->node];
            number[member->node] = ++n;
        }
        member->node = number[member->node] - 1;
        joins[i] = &member->join;
        nodes[i] = member->node;
    }
    *ret_epoch = wire_epoch_id(joins, nodes);
    core_free(set->nodes);
    set->nodes = sorted;
    set->n_nodes = set->cap_nodes = n;
    sorted = NULL;
    r = 0;
out:
    core_free(joins);
    core_free(nodes);
    core_free(number);
    core_free(sorted);
    return r;
}

const char *membership_missing(const struct membership *set, char *text, size_t n_text)
{
    text[0] = 0;
    for (size_t i = 0; set->members && i < n_places(set); i++)
        if (!set->members[i])
            return member_name((uint32_t)(i / set->n_replicas), (uint32_t)(i % set->n_replicas), set->n_replicas, text,
                               n_text);
    return text;
}
