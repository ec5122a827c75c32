/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a process gets into a group. A node names all its processes of a group in one MEMBERS message, again and again while
 * some of them wait, so a lost message costs a second and a process that it does not name any more is gone.
 *
 * A process wants a new epoch, or says which one it is in. Incarnations order those of one (rank, replica): a higher one is
 * proof that the lower one is over; a lower one is refused, naming the higher. One that was in an epoch or in a failed
 * attempt may not come again. What does not fit fails the attempt for all: each is told both processes and both values.
 */
#include "daemon/core/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/rules.h"
#include "daemon/planner/err.h"

struct joining { /* one process of a MEMBERS message */
    struct group *group;
    const struct group_env *env;
    const struct group_node *from;
    const struct wire_join *join;
    struct member **spare; /* memory for it; NULL once used */
    struct member **guest; /* likewise, for a second place */
};

static int compare(const struct joining *j, const struct member *member)
{
    return wire_incarnation_compare(&j->join->incarnation, &member->join.incarnation);
}

/* ------------------------------------------------------------------------------------------------------------- refusing */

static void refuse_at(const struct group_env *env, uint64_t link, const struct wire_join *who, const struct poise_err *err)
{
    struct wire_message *msg = out_message(env->out, WIRE_REFUSED);

    memcpy(msg->refused.who.job, who->job, sizeof msg->refused.who.job);
    memcpy(msg->refused.who.group, who->group, sizeof msg->refused.who.group);
    msg->refused.who.rank = who->rank;
    msg->refused.who.replica = who->replica;
    msg->refused.who.incarnation = who->incarnation;
    msg->refused.error = *err;
    out_send(env->out, link, false, msg);
}

static void refuse(const struct joining *j, const struct poise_err *err)
{
    out_log(j->env->out, LOG_LEVEL_INFO, "group %s/%s: rank %u (pid %u) refused: %.150s", j->group->job, j->group->name,
            j->join->rank, j->join->pid, err->text);
    refuse_at(j->env, j->env->link, j->join, err);
}

static void describe_superseded(const struct wire_join *old, const struct wire_join *by, struct poise_err *err)
{
    char who[48];

    err_set_at(err, -ESTALE, old->rank, POISE_NONE, NULL,
               "%s (pid %u on %s) was opened again by pid %u on %s: one process a rank, the newest counts",
               member_name(old->rank, old->replica, old->n_replicas, who, sizeof who), old->pid, old->host, by->pid,
               by->host);
}

static void refuse_superseded(const struct joining *j, const struct member *by)
{
    struct poise_err err;

    describe_superseded(j->join, &by->join, &err);
    refuse(j, &err);
}

static void abort_superseded(const struct joining *j, const struct member *old, struct wire_id epoch)
{
    struct wire_abort abort = {.epoch = epoch, .rank = old->join.rank, .replica = old->join.replica};

    describe_superseded(&old->join, j->join, &abort.error);
    abort.error.code = -ESHUTDOWN;
    group_abort(j->group, j->env, &abort);
}

void group_fail(struct group *group, const struct group_env *env, const struct poise_err *err)
{
    struct wire_abort abort = {.rank = err->rank, .replica = POISE_NONE, .error = *err};
    struct membership *set = &group->forming;
    bool told = false;

    memcpy(abort.job, group->job, sizeof abort.job);
    memcpy(abort.group, group->name, sizeof abort.group);
    group_send_abort(env, set, &abort);
    for (uint32_t i = 0; i < set->n_nodes; i++)
        told |= set->nodes[i].linked && set->nodes[i].link == env->link;
    if (!told && env->link != UINT64_MAX) {
        struct wire_message *msg = out_message(env->out, WIRE_ABORT);

        msg->abort = abort;
        out_send(env->out, env->link, false, msg);
    }
    membership_clear(&group->past);
    group->past = *set;
    memset(set, 0, sizeof *set);
    group->past_attempt = true;
    group->over = *err;
    group->over_ms = env->now_ms;
    if (!group->epoch)
        group_turn(group, env, GROUP_ABORT, err->text);
}

/* --------------------------------------------------------------------------------------------------------------- putting */

/* What others may have read is no key. */
static void take_key(const struct joining *j, struct member *member)
{
    if (j->env->secure && wire_key_there(j->join->payload_key))
        memcpy(member->join.payload_key, j->join->payload_key, sizeof member->join.payload_key);
}

static void put(const struct joining *j, struct membership *set, uint32_t node)
{
    struct member *member = *j->spare;

    *j->spare = NULL;
    member->join = *j->join;
    memset(member->join.payload_key, 0, sizeof member->join.payload_key);
    take_key(j, member);
    member->node = node;
    member->seen = j->from->serial;
    member->heard_ms = j->env->now_ms;
    membership_put(set, member);
}

/* Takes the process into a set, replacing an older incarnation. 0, or -ESTALE refused, or -EINVAL it does not fit. */
static int take(const struct joining *j, struct membership *set, struct poise_err *err)
{
    struct member *old = membership_find(set, j->join->rank, j->join->replica);
    uint32_t node;
    bool guest = old && old->guest; /* whoever claims it comes before one that stands in */
    int order = old && !guest ? compare(j, old) : 1;

    if (!set->members)
        return -ESTALE; /* the set ended while this message was read: the next one opens it again */
    if (order < 0) {
        refuse_superseded(j, old);
        return -ESTALE;
    }
    if (membership_fits(set, j->join, err) < 0)
        return -EINVAL;
    node = membership_node(set, j->from->instance, j->from->name, j->env->link, j->env->now_ms);
    snprintf(set->nodes[node].listen, sizeof set->nodes[node].listen, "%s", j->from->listen);
    set->nodes[node].secure = j->env->secure;
    if (order == 0) {
        old->node = node;
        old->seen = j->from->serial;
        old->heard_ms = j->env->now_ms;
        take_key(j, old);
        return 0;
    }
    if (old && !guest) {
        struct poise_err why;

        describe_superseded(&old->join, j->join, &why);
        if (set->nodes[old->node].linked)
            refuse_at(j->env, set->nodes[old->node].link, &old->join, &why);
    }
    put(j, set, node);
    return 0;
}

/*
 * A coordinator that died between its rosters leaves members that know of the epoch, and claim it, and members that do not, and
 * want a new one: neither set would ever be whole. So who wants a new one also stands in for what is missing in the
 * claim. If it is not the member that is missed, the hash of the set is not the claimed id, and nothing comes of it.
 */
static void stand_in(const struct joining *j)
{
    struct membership *set = &j->group->claims;
    struct member *old = membership_find(set, j->join->rank, j->join->replica);
    struct member *guest = *j->guest;
    uint32_t node;

    if (!RULE_HOLDS(RULE_GUEST) || !set->members || j->group->epoch || (old && !old->guest) ||
        membership_fits(set, j->join, NULL) < 0)
        return;
    node = membership_node(set, j->from->instance, j->from->name, j->env->link, j->env->now_ms);
    if (node == POISE_NONE)
        return;
    *j->guest = NULL;
    guest->join = *j->join;
    guest->node = node;
    guest->seen = j->from->serial;
    guest->heard_ms = j->env->now_ms;
    guest->guest = true;
    membership_put(set, guest);
}

/* A member of the running epoch says so again: its node may be another poised now, and may have missed the roster. */
static void welcome_back(const struct joining *j, struct epoch *epoch, struct member *member)
{
    struct member_node *node = &epoch->set.nodes[member->node];

    if (!wire_id_is(node->instance, j->from->instance)) {
        out_log(j->env->out, LOG_LEVEL_INFO, "group %s: node %s is back with a new poised", epoch->label, j->from->name);
        node->told = (struct wire_id){0, 0};
    }
    node->instance = j->from->instance;
    snprintf(node->name, sizeof node->name, "%s", j->from->name);
    node->link = j->env->link;
    node->linked = true;
    node->secure = j->env->secure;
    node->alive_ms = node->heard_ms = epoch->heard_ms = j->env->now_ms;
}

/* ------------------------------------------------------------------------------------------------------ to a new epoch */

/* Against the epoch that runs. True: dealt with. */
static bool meets_epoch(const struct joining *j, bool *ret_roster)
{
    struct epoch *epoch = j->group->epoch;
    struct member *member;
    struct poise_err err;
    int order;

    if (!epoch)
        return false;
    member = membership_find(&epoch->set, j->join->rank, j->join->replica);
    order = member ? compare(j, member) : 1;
    if (order == 0) {
        welcome_back(j, epoch, member);
        *ret_roster = true;
        return true;
    }
    if (order < 0) {
        refuse_superseded(j, member);
        return true;
    }
    if (j->group->state != GROUP_RUNNING)
        return false; /* it is over: this one waits for the next */
    if (!member) {
        err_set_at(&err, -EINVAL, j->join->rank, POISE_NONE, NULL,
                   "rank %u cannot join %s: it runs with %u ranks and %u replicas", j->join->rank, epoch->label,
                   epoch->n_ranks, epoch->n_replicas);
        refuse(j, &err);
        return true;
    }
    abort_superseded(j, member, epoch->id);
    return false;
}

/* Against what ended last. True: dealt with. */
static bool meets_past(const struct joining *j)
{
    struct group *group = j->group;
    struct membership *past = &group->past;
    struct member *member = membership_find(past, j->join->rank, j->join->replica);

    if (!past->members)
        return false;
    if (member && compare(j, member) <= 0) {
        refuse(j, &group->over);
        return true;
    }
    if (!group->past_attempt)
        return false;
    if (member || j->join->incarnation.attempt > past->max_attempt) {
        membership_clear(past); /* someone tries again: the old attempt is over for good */
        return false;
    }
    refuse(j, &group->over); /* late for an attempt that failed already */
    if (j->join->n_ranks == past->n_ranks && j->join->n_replicas == past->n_replicas)
        put(j, past, 0);
    return true;
}

static void join_new(const struct joining *j, bool *ret_roster)
{
    struct group *group = j->group;
    struct poise_err err;

    if (meets_epoch(j, ret_roster) || meets_past(j))
        return;
    if (take(j, &group->forming, &err) == -EINVAL) {
        bool fits = j->join->n_ranks == group->forming.n_ranks && j->join->n_replicas == group->forming.n_replicas;

        group_fail(group, j->env, &err);
        if (fits && *j->spare)
            put(j, &group->past, 0);
    } else if (!group->epoch) {
        group_turn(group, j->env, GROUP_JOIN, "a process wants to join");
    }
}

/* ------------------------------------------------------------------------------------------------------ to a known epoch */

static void join_claim(const struct joining *j, bool *ret_roster)
{
    struct group *group = j->group;
    struct epoch *epoch = group->epoch;
    const struct grave *grave = group_find_grave(j->env, j->join->epoch);
    struct member *member;
    struct poise_err err;

    if (grave) {
        struct wire_message *msg = out_message(j->env->out, WIRE_ABORT);

        msg->abort = grave->abort;
        out_send(j->env->out, j->env->link, false, msg);
        return;
    }
    member = epoch ? membership_find(&epoch->set, j->join->rank, j->join->replica) : NULL;
    if (epoch && wire_id_is(epoch->id, j->join->epoch)) {
        if (member && compare(j, member) == 0) {
            welcome_back(j, epoch, member);
            *ret_roster = true;
        } else {
            err_set_at(&err, -ESTALE, j->join->rank, POISE_NONE, NULL, "rank %u (pid %u) is not a member of its epoch",
                       j->join->rank, j->join->pid);
            refuse(j, &err);
        }
        return;
    }
    if (member && compare(j, member) <= 0) {
        refuse_superseded(j, member);
        return;
    }
    if (member && group->state == GROUP_RUNNING)
        abort_superseded(j, member, epoch->id);
    if (!wire_id_is(group->claims.claim, j->join->epoch))
        return; /* one claim at a time: what is in the way expires */
    if (take(j, &group->claims, &err) == -EINVAL)
        refuse(j, &err);
}

/* ---------------------------------------------------------------------------------------------------------------- public */

static void free_spares(struct member **spares, uint32_t n)
{
    for (uint32_t i = 0; spares && i < n; i++)
        core_free(spares[i]);
    core_free(spares);
}

static struct member **new_spares(uint32_t n)
{
    struct member **spares = core_alloc(n, sizeof *spares);

    for (uint32_t i = 0; spares && i < n; i++) {
        spares[i] = core_alloc(1, sizeof **spares);
        if (!spares[i]) {
            free_spares(spares, n);
            return NULL;
        }
    }
    return spares;
}

static void clear_unused(struct group *group)
{
    if (group->forming.members && group->forming.n_here == 0)
        membership_clear(&group->forming);
    if (group->claims.members && group->claims.n_here == 0)
        membership_clear(&group->claims);
}

/* Room in the sets that these joins may enter, so that nothing can fail later. */
static int open_sets(struct group *group, const struct wire_join *joins, uint32_t n_joins, uint64_t now_ms)
{
    bool forming = false, claims = false;
    int r = 0;

    for (uint32_t i = 0; i < n_joins && r == 0; i++) {
        bool *done = wire_id_none(joins[i].epoch) ? &forming : &claims;

        if (*done || membership_check(&joins[i], NULL) < 0)
            continue;
        *done = true;
        r = membership_open(done == &forming ? &group->forming : &group->claims, &joins[i], now_ms);
        if (r == 0 && done == &forming && group->claims.members) /* see stand_in() */
            r = membership_open(&group->claims, &joins[i], now_ms);
    }
    if (r < 0)
        clear_unused(group);
    return r;
}

static void retain(struct membership *set, const struct group_node *from)
{
    for (uint32_t i = 0; i < set->n_nodes; i++)
        if (wire_id_is(set->nodes[i].instance, from->instance)) {
            membership_retain(set, i, from->serial);
            return;
        }
}

/* What a node that was away may have missed. */
static void tell_news(const struct group *group, const struct group_env *env, bool roster)
{
    const struct wire_abort *leave = NULL;

    if (roster && group->epoch) {
        epoch_send_roster(group->epoch, env->out, env->link);
        leave = group->epoch->leaving ? &group->epoch->leave : NULL;
    } else if (!group->epoch && group->claims.leaving) {
        leave = &group->claims.leave;
    }
    if (leave) {
        struct wire_message *msg = out_message(env->out, WIRE_ABORT);

        msg->abort = *leave;
        out_send(env->out, env->link, false, msg);
    }
}

/* Who is missing, to a node whose processes wait: it asks again each second, and so hears of those that come. */
static void tell_missing(const struct membership *set, const struct group *group, const struct group_env *env)
{
    struct wire_message *msg;
    struct wire_forming *to;
    const uint32_t n = set->n_ranks * set->n_replicas;

    if (!set->members || membership_whole(set))
        return;
    msg = out_message(env->out, WIRE_FORMING);
    to = &msg->forming;
    memcpy(to->job, group->job, sizeof to->job);
    memcpy(to->group, group->name, sizeof to->group);
    to->uid = group->uid;
    to->missing_total = n - set->n_here;
    for (uint32_t i = 0; i < n && to->n_missing < sizeof to->missing / sizeof *to->missing; i++)
        if (!set->members[i]) {
            to->missing[to->n_missing] = i / set->n_replicas;
            to->missing_replica[to->n_missing++] = i % set->n_replicas;
        }
    out_send(env->out, env->link, false, msg);
}

int group_members(struct group *group, const struct group_env *env, const struct group_node *from,
                  const struct wire_join *joins, uint32_t n_joins)
{
    struct member **spares = new_spares(2 * n_joins);
    struct poise_err err;
    bool roster = false;

    if (!spares || open_sets(group, joins, n_joins, env->now_ms) < 0) {
        free_spares(spares, 2 * n_joins);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n_joins; i++) {
        struct joining j = {group, env, from, &joins[i], &spares[2 * i], &spares[2 * i + 1]};

        if (membership_check(&joins[i], &err) < 0) {
            refuse(&j, &err);
        } else if (wire_id_none(joins[i].epoch)) {
            join_new(&j, &roster);
            stand_in(&j);
        } else {
            join_claim(&j, &roster);
        }
    }
    free_spares(spares, 2 * n_joins);
    retain(&group->forming, from);
    retain(&group->claims, from);
    clear_unused(group);
    tell_news(group, env, roster);
    tell_missing(group->forming.members ? &group->forming : &group->claims, group, env);
    return 0;
}
