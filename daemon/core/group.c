/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a group. It forms while members come (join.c), runs when it is whole, and ends in one of three ways: END was
 * decided; someone left in order, so that steps up to its last are still decided and delivered; or on proof that someone is
 * gone, which ends it for everyone at once.
 *
 * A silent node is no proof. This coordinator then says what it sees (ABORT with -EHOSTDOWN, again and again); a node ends
 * the epoch when every coordinator that it hears says the same, and its word is proof.
 */
#include "daemon/core/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/planner/err.h"

static const struct {
    enum group_state from;
    enum group_change change;
    enum group_state to;
} table[] = {
    {GROUP_FORMING, GROUP_WHOLE, GROUP_RUNNING},  {GROUP_FORMING, GROUP_ABORT, GROUP_ABORTED},
    {GROUP_RUNNING, GROUP_LEAVE, GROUP_LEAVING},  {GROUP_RUNNING, GROUP_END, GROUP_ENDED},
    {GROUP_RUNNING, GROUP_ABORT, GROUP_ABORTED},  {GROUP_LEAVING, GROUP_END, GROUP_ENDED},
    {GROUP_LEAVING, GROUP_ABORT, GROUP_ABORTED},  {GROUP_LEAVING, GROUP_GONE, GROUP_ENDED},
    {GROUP_RUNNING, GROUP_GONE, GROUP_ENDED},
    {GROUP_ENDED, GROUP_ABORT, GROUP_ABORTED},    {GROUP_ENDED, GROUP_JOIN, GROUP_FORMING},
    {GROUP_ABORTED, GROUP_JOIN, GROUP_FORMING},
};

const char *group_state_name(enum group_state state)
{
    static const char *const names[GROUP_N_STATES] = {"forming", "running", "leaving", "ended", "aborted"};

    return state < GROUP_N_STATES ? names[state] : "?";
}

struct group *group_new(const struct wire_join *join, uint64_t now_ms)
{
    struct group *group = core_alloc(1, sizeof *group);

    if (!group)
        return NULL;
    memcpy(group->job, join->job, sizeof group->job);
    memcpy(group->name, join->group, sizeof group->name);
    group->uid = join->uid;
    group->state = GROUP_FORMING;
    group->state_ms = now_ms;
    return group;
}

void group_free(struct group *group)
{
    if (!group)
        return;
    membership_clear(&group->forming);
    membership_clear(&group->claims);
    membership_clear(&group->past);
    epoch_free(group->epoch);
    core_free(group);
}

void group_turn(struct group *group, const struct group_env *env, enum group_change change, const char *why)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].from != group->state || table[i].change != change)
            continue;
        out_log(env->out, LOG_LEVEL_INFO, "group %s/%s: %s after %llu ms %s: %.120s", group->job, group->name,
                group_state_name(table[i].to), (unsigned long long)(env->now_ms - group->state_ms),
                group_state_name(group->state), why);
        group->state = table[i].to;
        group->state_ms = env->now_ms;
        return;
    }
}

uint32_t group_n_nodes(const struct group *group)
{
    return group->forming.n_nodes + group->claims.n_nodes + (group->epoch ? group->epoch->n_nodes : 0);
}

bool group_empty(const struct group *group)
{
    return !group->forming.members && !group->claims.members && !group->epoch && !group->past.members;
}

/* --------------------------------------------------------------------------------------------------------------- endings */

void group_bury(const struct group_env *env, const struct wire_abort *abort)
{
    struct grave *grave = &env->graves[GROUP_POISONS + (*env->next_grave)++ % (GROUP_GRAVES - GROUP_POISONS)];

    grave->epoch = abort->epoch;
    grave->abort = *abort;
}

const struct grave *group_find_grave(const struct group_env *env, struct wire_id epoch)
{
    for (uint32_t i = 0; i < GROUP_GRAVES; i++)
        if (wire_id_is(env->graves[i].epoch, epoch))
            return &env->graves[i];
    return NULL;
}

void group_send_abort(const struct group_env *env, const struct membership *set, const struct wire_abort *abort)
{
    struct wire_message *msg = out_message(env->out, WIRE_ABORT);

    msg->abort = *abort;
    for (uint32_t i = 0; i < set->n_nodes; i++)
        if (set->nodes[i].linked)
            out_send(env->out, set->nodes[i].link, false, msg);
}

/* Puts a finished set away: its incarnations may not come again. */
static void put_away(struct group *group, const struct group_env *env, struct membership *set, const struct poise_err *why)
{
    membership_clear(&group->past);
    group->past = *set;
    memset(set, 0, sizeof *set);
    group->past_attempt = false;
    group->over = *why;
    group->over_ms = env->now_ms;
}

static void let_go(struct group *group, const struct group_env *env)
{
    group_report_epoch(group->epoch, env->now_ms, &group->final);
    group->final.samples_dropped += epoch_n_open(group->epoch); /* never silently */
    group->epoch->next_dead = *env->dead;
    *env->dead = group->epoch;
    group->epoch = NULL;
}

static void end_epoch(struct group *group, const struct group_env *env, const struct wire_abort *why)
{
    group_bury(env, why);
    put_away(group, env, &group->epoch->set, &why->error);
    let_go(group, env);
}

/* No node speaks of it: all are gone, or this coordinator is cut off from them. So it is not ended, only forgotten: if they
 * come back they claim it. */
static void forget_epoch(struct group *group, const struct group_env *env)
{
    group_turn(group, env, GROUP_GONE, "no node speaks of it any more");
    let_go(group, env);
}

void group_abort(struct group *group, const struct group_env *env, const struct wire_abort *abort)
{
    struct wire_abort final = *abort; /* what everybody is told */

    memcpy(final.job, group->job, sizeof final.job);
    memcpy(final.group, group->name, sizeof final.group);
    final.left = false;
    if (group->epoch && wire_id_is(group->epoch->id, abort->epoch)) {
        final.step = epoch_oldest_open(group->epoch);
        out_log(env->out, LOG_LEVEL_WARNING, "group %s/%s: aborting step %llu: %.150s", group->job, group->name,
                (unsigned long long)final.step, final.error.text);
        group_turn(group, env, GROUP_ABORT, final.error.text);
        group_send_abort(env, &group->epoch->set, &final);
        end_epoch(group, env, &final);
    } else if (group->claims.members && wire_id_is(group->claims.claim, abort->epoch)) {
        group_send_abort(env, &group->claims, &final);
        group_bury(env, &final);
        membership_drop_guests(&group->claims); /* they wait for another epoch: nothing of theirs is over */
        put_away(group, env, &group->claims, &final.error);
        group_turn(group, env, GROUP_ABORT, final.error.text);
    }
}

/* A node repeats what it tells until it hears it back. */
static void answer(const struct group_env *env, const struct wire_abort *abort)
{
    struct wire_message *msg = out_message(env->out, WIRE_ABORT);

    msg->abort = *abort;
    out_send(env->out, env->link, false, msg);
}

static void take_leave(struct group *group, const struct group_env *env, const struct wire_abort *abort)
{
    struct epoch *epoch = group->epoch;

    epoch->leaving = true;
    epoch->leave = *abort;
    memcpy(epoch->leave.job, group->job, sizeof epoch->leave.job);
    memcpy(epoch->leave.group, group->name, sizeof epoch->leave.group);
    group_turn(group, env, GROUP_LEAVE, abort->error.text);
    group_send_abort(env, &epoch->set, &epoch->leave);
}

/* Someone left in order. Only an earlier step than known is news: 4,096 ranks that leave are not 4,096 rounds. */
static void left(struct group *group, const struct group_env *env, const struct wire_abort *abort)
{
    struct epoch *epoch = group->epoch;

    if (!epoch) { /* a claim, which will not be complete without it: the others must know why */
        if (!group->claims.leaving || (int64_t)(abort->step - group->claims.leave.step) < 0) {
            group->claims.leaving = true;
            group->claims.leave = *abort;
            group_send_abort(env, &group->claims, abort);
        }
        answer(env, &group->claims.leave);
        return;
    }
    if (epoch->ended || (epoch->leaving && (int64_t)(abort->step - epoch->leave.step) >= 0)) {
        answer(env, epoch->leaving ? &epoch->leave : abort);
        return;
    }
    take_leave(group, env, abort);
}

void group_from_node(struct group *group, const struct group_env *env, const struct wire_abort *abort)
{
    if (abort->left)
        left(group, env, abort);
    else
        group_abort(group, env, abort);
}

/* ------------------------------------------------------------------------------------------------------------ beginnings */

static void gone(struct group *group, const struct group_env *env)
{
    struct wire_abort why = {.epoch = group->epoch->id, .rank = POISE_NONE, .replica = POISE_NONE};

    err_set(&why.error, -ESHUTDOWN, "the epoch has ended: all its processes have left");
    memcpy(why.job, group->job, sizeof why.job);
    memcpy(why.group, group->name, sizeof why.group);
    group_turn(group, env, GROUP_GONE, "no process speaks of it any more");
    end_epoch(group, env, &why);
}

static void run(struct group *group, const struct group_env *env, struct epoch *epoch)
{
    char why[120];

    if (group->epoch)
        gone(group, env);
    group_turn(group, env, GROUP_JOIN, "all members are here");
    group->epoch = epoch;
    snprintf(why, sizeof why, "%u ranks x %u replicas on %u nodes, from step %llu", epoch->n_ranks, epoch->n_replicas,
             epoch->n_nodes, (unsigned long long)epoch->first_step);
    group_turn(group, env, GROUP_WHOLE, why);
    epoch_send_rosters(epoch, env->out);
}

/* It cannot begin yet, or not at all: its members are as before. */
static void take_back(struct membership *set, struct epoch *epoch)
{
    *set = epoch->set;
    memset(&epoch->set, 0, sizeof epoch->set);
    epoch_free(epoch);
}

static void start_forming(struct group *group, const struct group_env *env)
{
    struct epoch *epoch;
    struct poise_err err;
    int r = epoch_new(&group->forming, env->now_ms, &epoch, &err), key = 0;

    if (r == 0 && (key = epoch_check_key(epoch, &err)) == 0)
        run(group, env, epoch);
    else if (r == 0)
        take_back(&group->forming, epoch);
    if (r == -ENOMEM)
        group->pending = true;
    else if (r < 0 || (key < 0 && key != -EAGAIN)) /* -EAGAIN: rank 0's node says it as soon as its connection is secure */
        group_fail(group, env, &err);
}

/* An epoch that this coordinator does not know runs again when all its processes are here and their hash is its id. Until a
 * stale entry of a restarted node is gone the hash may differ: that proves nothing. */
static void start_claims(struct group *group, const struct group_env *env)
{
    struct wire_id claim = group->claims.claim;
    struct epoch *epoch;
    struct poise_err err;
    int r = epoch_new(&group->claims, env->now_ms, &epoch, &err);

    if (r == -ENOMEM)
        group->pending = true;
    if (r < 0)
        return;
    if (wire_id_is(epoch->id, claim)) {
        run(group, env, epoch);
        if (epoch->set.leaving) /* told while it was a claim, and echoed: nobody says it again */
            take_leave(group, env, &epoch->set.leave);
        return;
    }
    take_back(&group->claims, epoch);
}

static void publish(struct group *group, const struct group_env *env)
{
    struct wire_message *msg = out_message(env->out, WIRE_BEACON);

    epoch_beacon(group->epoch, env->config->instance, msg);
    out_publish(env->out, msg);
    group->epoch->next_beacon_ms = env->now_ms + env->config->beacon_ms;
}

void group_settle(struct group *group, const struct group_env *env)
{
    int r;

    group->pending = false;
    if (membership_whole(&group->forming) && (!group->epoch || group->state != GROUP_RUNNING))
        start_forming(group, env);
    else if (membership_whole(&group->claims) && !group->epoch)
        start_claims(group, env);
    if (!group->epoch)
        return;
    r = epoch_decide(group->epoch, env->config->mark, env->now_ms, env->out);
    if (r < 0)
        out_log(env->out, LOG_LEVEL_ERROR, "group %s/%s: no memory for the plan of a step, trying again", group->job,
                group->name);
    group->pending |= r != 0; /* another one may be complete */
    if (r > 0)
        publish(group, env);
    group->pending |= epoch_ask_far(group->epoch, env->now_ms, env->out);
    if (group->epoch->ended)
        group_turn(group, env, GROUP_END, "the data has ended");
}

/* ---------------------------------------------------------------------------------------------------------------- timers */

/* Says who is silent, to all others, once a second while it lasts. */
static void vote(const struct group_env *env, const struct group *group, const struct membership *set, struct wire_id epoch,
                 uint32_t rank, uint32_t replica, const char *text)
{
    struct wire_abort abort = {.epoch = epoch, .rank = rank, .replica = replica};

    memcpy(abort.job, group->job, sizeof abort.job);
    memcpy(abort.group, group->name, sizeof abort.group);
    err_set_at(&abort.error, -EHOSTDOWN, rank, POISE_NONE, NULL, "%s", text);
    group_send_abort(env, set, &abort);
}

static void check_nodes(struct group *group, const struct group_env *env)
{
    struct epoch *epoch = group->epoch;
    uint64_t limit = env->config->node_timeout_ms;
    char text[300], who[48];

    if (group->state == GROUP_ENDED || env->now_ms < epoch->vote_ms)
        return;
    for (uint32_t i = 0; i < epoch->n_nodes; i++) {
        const struct member_node *node = &epoch->set.nodes[i];
        uint64_t heard = group->state == GROUP_LEAVING ? node->alive_ms : node->heard_ms;
        uint32_t rank = epoch->node_ranks[epoch->node_first[i]];

        if (env->now_ms < heard + limit)
            continue;
        member_name(rank, 0, 1, who, sizeof who);
        snprintf(text, sizeof text, "the poised of node %s (%s%s) is silent for %llu ms", node->name, who,
                 epoch->node_first[i + 1] - epoch->node_first[i] > 1 ? " and others" : "",
                 (unsigned long long)(env->now_ms - heard));
        out_log(env->out, LOG_LEVEL_WARNING, "group %s: %s", epoch->label, text);
        vote(env, group, &epoch->set, epoch->id, rank, POISE_NONE, text);
        epoch->vote_ms = env->now_ms + 1000;
        return;
    }
}

static void check_claims(struct group *group, const struct group_env *env)
{
    struct membership *claims = &group->claims;
    char text[300], who[48];

    membership_expire(claims, env->now_ms < env->config->node_timeout_ms ? 0 : env->now_ms - env->config->node_timeout_ms);
    if (claims->members && env->now_ms >= claims->since_ms + env->config->node_timeout_ms)
        membership_drop_guests(claims); /* they are not the ones that are missed */
    if (!claims->members || membership_whole(claims) || env->now_ms < claims->since_ms + env->config->node_timeout_ms ||
        env->now_ms < group->vote_ms)
        return;
    snprintf(text, sizeof text, "%s did not come back within %llu ms after the coordinator was restarted",
             membership_missing(claims, who, sizeof who), (unsigned long long)env->config->node_timeout_ms);
    vote(env, group, claims, claims->claim, POISE_NONE, POISE_NONE, text);
    group->vote_ms = env->now_ms + 1000;
}

/* Alive and slow is worth one line. */
static void check_slow(struct group *group, const struct group_env *env)
{
    struct epoch_slot *slot = epoch_find(group->epoch, epoch_oldest_open(group->epoch));
    uint32_t ranks[4], n;
    char list[64] = "";

    if (!slot || slot->warned || env->now_ms < slot->since_ms + env->config->warn_ms)
        return;
    n = epoch_missing(group->epoch, ranks, 4);
    for (uint32_t i = 0; i < n && i < 4; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %u", ranks[i]);
    out_log(env->out, LOG_LEVEL_WARNING, "group %s: step %llu waits %llu ms for rank%s%s%s", group->epoch->label,
            (unsigned long long)slot->step, (unsigned long long)(env->now_ms - slot->since_ms), n > 1 ? "s" : "", list,
            n > 4 ? " and others" : "");
    slot->warned = true;
}

static void tick_epoch(struct group *group, const struct group_env *env)
{
    struct epoch *epoch = group->epoch;

    if (env->now_ms >= epoch->heard_ms + env->config->forget_ms) {
        if (group->state == GROUP_ENDED)
            gone(group, env);
        else
            forget_epoch(group, env);
        return;
    }
    check_nodes(group, env);
    check_slow(group, env);
    group->pending |= epoch_ask_far(epoch, env->now_ms, env->out);
    if (env->now_ms >= epoch->next_beacon_ms)
        publish(group, env);
}

uint64_t group_tick(struct group *group, const struct group_env *env)
{
    uint64_t timeout = env->config->node_timeout_ms;

    if (group->forming.members)
        membership_expire(&group->forming, env->now_ms < timeout ? 0 : env->now_ms - timeout);
    if (group->claims.members)
        check_claims(group, env);
    if (group->epoch)
        tick_epoch(group, env);
    if (group->past.members && env->now_ms >= group->over_ms + env->config->forget_ms)
        membership_clear(&group->past);
    return group->pending ? env->now_ms + 1 : env->now_ms + env->config->beacon_ms;
}

void group_restart_timers(struct group *group, uint64_t now_ms)
{
    struct membership *sets[] = {&group->forming, &group->claims, group->epoch ? &group->epoch->set : NULL};

    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct membership *set = sets[i];

        if (!set || !set->members)
            continue;
        set->since_ms = now_ms;
        for (uint32_t j = 0; j < set->n_nodes; j++)
            set->nodes[j].alive_ms = set->nodes[j].heard_ms = now_ms;
        for (size_t j = 0; j < (size_t)set->n_ranks * set->n_replicas; j++)
            if (set->members[j])
                set->members[j]->heard_ms = now_ms;
    }
    if (group->epoch)
        group->epoch->heard_ms = now_ms;
}

void group_link_down(struct group *group, uint64_t link)
{
    struct membership *sets[] = {&group->forming, &group->claims, group->epoch ? &group->epoch->set : NULL};

    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        for (uint32_t j = 0; sets[i] && j < sets[i]->n_nodes; j++)
            if (sets[i]->nodes[j].linked && sets[i]->nodes[j].link == link)
                sets[i]->nodes[j].linked = false;
}
