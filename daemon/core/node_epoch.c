/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An epoch as its node sees it: it begins with the roster (or with a process that says it is in it, when this poised is new),
 * and ends with an abort, from a coordinator or because a local process died. A local death is told to the local processes
 * at once; coordinators are told until they echo it. That a node is silent is believed when every coordinator that is heard
 * here says so.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/mem.h"
#include "daemon/core/membership.h"
#include "daemon/core/node_state.h"
#include "daemon/core/rules.h"
#include "daemon/planner/err.h"
#include "proto/options.h"

static const struct {
    enum local_epoch_state from, to;
} turns[] = {{LOCAL_RUNNING, LOCAL_LEAVING}, {LOCAL_RUNNING, LOCAL_ENDED},   {LOCAL_RUNNING, LOCAL_ABORTED},
             {LOCAL_LEAVING, LOCAL_ENDED},   {LOCAL_LEAVING, LOCAL_ABORTED}, {LOCAL_ENDED, LOCAL_ABORTED}};

static const char *const state_names[LOCAL_N_STATES] = {"running", "leaving", "ended", "aborted"};

void local_epoch_turn(struct node *node, struct local_epoch *epoch, enum local_epoch_state to, const char *why)
{
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        if (turns[i].from != epoch->state || turns[i].to != to)
            continue;
        out_log(&node->out, LOG_LEVEL_INFO, "node: group %s: %s after %llu ms %s: %.130s", epoch->label, state_names[to],
                (unsigned long long)(node->now_ms - epoch->state_ms), state_names[epoch->state], why);
        epoch->state = to;
        epoch->state_ms = node->now_ms;
        return;
    }
}

/* ------------------------------------------------------------------------------------------------------------- lifetime */

void local_epoch_free(struct local_epoch *epoch)
{
    if (!epoch)
        return;
    local_slots_free(epoch);
    tables_free(&epoch->tables);
    core_free(epoch->locals);
    core_free(epoch);
}

struct local_epoch *local_epoch_new(struct node *node, struct job *job, const struct wire_join *join, struct wire_id id)
{
    struct local_epoch **grown, *epoch;
    struct options options;

    if (node->n_epochs == node->cap_epochs) {
        grown = core_grow(node->epochs, node->cap_epochs * 2 + 4, sizeof *grown);
        if (!grown)
            return NULL;
        node->epochs = grown;
        node->cap_epochs = node->cap_epochs * 2 + 4;
    }
    epoch = core_alloc(1, sizeof *epoch);
    if (!epoch)
        return NULL;
    epoch->id = id;
    epoch->job = job;
    epoch->n_ranks = join->n_ranks;
    epoch->n_replicas = join->n_replicas;
    epoch->first_step = join->first_step;
    epoch->state = LOCAL_RUNNING;
    epoch->state_ms = node->now_ms;
    epoch->tables.limit = 2 * NODE_SLOTS;
    audit_init(&epoch->audit, options_read(join->options, join->n_options, &options, NULL) == 0 ? options.audit : 0);
    snprintf(epoch->label, sizeof epoch->label, "%s/%s", job->job, job->group);
    return epoch;
}

/* Gathered metadata is indexed by local process: every slot grows with them. */
static int grow_slot(const struct local_epoch *epoch, struct local_slot *slot, uint32_t cap)
{
    struct wire_meta *gathered;
    struct wire_message **kept;
    uint32_t *at;

    if (!slot->gathered && !slot->kept && !slot->at)
        return 0;
    gathered = core_grow(slot->gathered, cap, sizeof *gathered);
    if (!gathered)
        return -ENOMEM;
    slot->gathered = gathered;
    kept = core_grow(slot->kept, cap, sizeof *kept);
    if (!kept)
        return -ENOMEM;
    slot->kept = kept;
    at = core_grow(slot->at, cap, sizeof *at);
    if (!at)
        return -ENOMEM;
    if (slot->at)
        memset(at + epoch->cap_locals, 0, (cap - epoch->cap_locals) * sizeof *at);
    else
        memset(at, 0, cap * sizeof *at);
    slot->at = at;
    return 0;
}

int local_epoch_reserve(struct local_epoch *epoch, uint32_t n_locals)
{
    struct local *locals;

    if (n_locals <= epoch->cap_locals)
        return 0;
    n_locals += n_locals / 4;
    for (uint32_t i = 0; i < NODE_SLOTS; i++)
        if (grow_slot(epoch, &epoch->slots[i], n_locals) < 0)
            return -ENOMEM; /* slots that grew are larger than they say: harmless */
    locals = core_grow(epoch->locals, n_locals, sizeof *locals);
    if (!locals)
        return -ENOMEM;
    epoch->locals = locals;
    epoch->cap_locals = n_locals;
    return 0;
}

void local_epoch_attach(struct local_epoch *epoch, struct session *session)
{
    const struct wire_join *join = &session->join->join;
    uint32_t i = 0;

    while (i < epoch->n_locals && (epoch->locals[i].rank != join->rank || epoch->locals[i].replica != join->replica))
        i++;
    if (i == epoch->n_locals)
        epoch->n_locals++;
    else
        epoch->n_awaited -= epoch->locals[i].awaited;
    epoch->locals[i] = (struct local){join->rank, join->replica, join->incarnation, session, false};
    epoch->n_live++;
    session->epoch = epoch;
    session->local = i;
}

/* ------------------------------------------------------------------------------------------------------------ beginning */

static const struct wire_member *member_of(const struct wire_roster *roster, const struct session *session)
{
    const struct wire_join *join = &session->join->join;
    uint64_t i = (uint64_t)join->rank * roster->n_replicas + join->replica;
    const struct wire_member *member;

    if (join->rank >= roster->n_ranks || join->replica >= roster->n_replicas || i >= roster->n_members)
        return NULL;
    member = &roster->members[i];
    if (member->rank != join->rank || member->replica != join->replica ||
        wire_incarnation_compare(&member->incarnation, &join->incarnation) != 0)
        return NULL;
    return member;
}

static bool of_roster(const struct session *session, const struct wire_roster *roster)
{
    return session->job && session->job->uid == roster->uid && strcmp(session->job->job, roster->job) == 0 &&
           strcmp(session->job->group, roster->group) == 0 &&
           (session->state == SESSION_JOINING || session->state == SESSION_RUNNING);
}

/* This roster cannot come true: say so to who sent it. */
static void object(struct node *node, uint64_t link, const struct wire_roster *roster, uint32_t rank, uint32_t replica,
                   const char *text)
{
    struct wire_message *msg = out_message(&node->out, WIRE_ABORT);

    msg->abort.epoch = roster->epoch;
    memcpy(msg->abort.job, roster->job, sizeof msg->abort.job);
    memcpy(msg->abort.group, roster->group, sizeof msg->abort.group);
    msg->abort.rank = rank;
    msg->abort.replica = replica;
    err_set_at(&msg->abort.error, -ESHUTDOWN, rank, POISE_NONE, NULL, "rank %u %s", rank, text);
    out_send(&node->out, link, true, msg);
}

/* Is this one of the members that the roster counts to this node, and not known here? */
static bool absent(const struct local_epoch *epoch, const struct wire_member *member, uint32_t number)
{
    if (member->node != number)
        return false;
    for (uint32_t i = 0; i < epoch->n_locals; i++)
        if (epoch->locals[i].rank == member->rank && epoch->locals[i].replica == member->replica)
            return false;
    return true;
}

static uint32_t count_absent(const struct local_epoch *epoch, const struct wire_roster *roster, uint32_t number)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < roster->n_members; i++)
        n += absent(epoch, &roster->members[i], number);
    return n;
}

/* A process that joined and is not here when the epoch begins: its death was overtaken. */
static void object_to_absent(struct node *node, struct local_epoch *epoch, uint64_t link, const struct wire_roster *roster,
                             uint32_t number)
{
    for (uint32_t i = 0; i < roster->n_members; i++)
        if (absent(epoch, &roster->members[i], number)) {
            object(node, link, roster, roster->members[i].rank, roster->members[i].replica,
                   "was gone before the epoch began");
            return;
        }
}

/* This poised was restarted, and not all of its processes are back: each has node_timeout to come. There is room. */
static void await_absent(struct node *node, struct local_epoch *epoch, const struct wire_roster *roster, uint32_t number)
{
    for (uint32_t i = 0; i < roster->n_members; i++) {
        const struct wire_member *member = &roster->members[i];

        if (!absent(epoch, member, number))
            continue;
        epoch->locals[epoch->n_locals++] =
            (struct local){member->rank, member->replica, member->incarnation, NULL, true};
        epoch->n_awaited++;
        epoch->awaited_ms = node->now_ms;
    }
}

static void begin_session(struct node *node, struct local_epoch *epoch, struct session *session,
                          const struct wire_message *roster)
{
    if (session->state == SESSION_JOINING) {
        local_epoch_attach(epoch, session);
        session_turn(node, session, SESSION_RUNNING, "the epoch begins");
    }
    if (session->epoch == epoch && !session->rostered) {
        session->rostered = true;
        out_send(&node->out, session->id, false, roster);
    }
}

static int count_joining(const struct node *node, const struct wire_roster *roster, const struct session **ret_any,
                         const struct session **ret_elsewhere)
{
    int n = 0;

    for (uint32_t i = 0; i < node->n_sessions; i++) {
        const struct session *session = node->sessions[i];

        if (!of_roster(session, roster) || !member_of(roster, session))
            continue;
        *ret_any = session;
        if (session->state == SESSION_JOINING)
            n++;
        else if (!wire_id_is(session->epoch->id, roster->epoch))
            *ret_elsewhere = session;
    }
    return n;
}

/* Takes the local processes of a roster in. There is room. */
static void begin_sessions(struct node *node, struct local_epoch *epoch, const struct wire_message *msg)
{
    for (uint32_t i = 0; i < node->n_sessions; i++)
        if (of_roster(node->sessions[i], &msg->roster) && member_of(&msg->roster, node->sessions[i]))
            begin_session(node, epoch, node->sessions[i], msg);
}

/* What the others offered while a process was away is lost to it, and they were perhaps told before it was back: when one
 * gets the roster, all here get it again, and offer what they have. */
static void tell_all_again(struct node *node, const struct wire_roster *roster)
{
    bool any = false;

    for (uint32_t i = 0; i < node->n_sessions; i++)
        any |= of_roster(node->sessions[i], roster) && member_of(roster, node->sessions[i]) &&
               !node->sessions[i]->rostered;
    for (uint32_t i = 0; any && i < node->n_sessions; i++)
        if (of_roster(node->sessions[i], roster) && member_of(roster, node->sessions[i]))
            node->sessions[i]->rostered = false;
}

/* Whom to ask where all coordinators of the list are gone. The first that says so holds: all nodes have the same from it. */
static void take_listens(struct local_epoch *epoch, const struct wire_roster *roster, uint32_t number)
{
    if (epoch->n_listens)
        return;
    epoch->number = number;
    epoch->n_listens = roster->n_listens;
    for (uint32_t i = 0; i < roster->n_listens; i++)
        epoch->listens[i] = roster->listens[i];
}

static int begin_epoch(struct node *node, uint64_t link, const struct wire_message *msg, const struct session *any, int n)
{
    const struct wire_roster *roster = &msg->roster;
    struct local_epoch *epoch = local_epoch_new(node, any->job, &any->join->join, roster->epoch);

    if (!epoch || local_epoch_reserve(epoch, (uint32_t)n) < 0) {
        local_epoch_free(epoch);
        return -ENOMEM;
    }
    node->epochs[node->n_epochs++] = epoch;
    epoch->job->n_epochs++;
    out_log(&node->out, LOG_LEVEL_INFO, "node: group %s: running with %d of %u processes here", epoch->label, n,
            roster->n_members);
    take_listens(epoch, roster, member_of(roster, any)->node);
    begin_sessions(node, epoch, msg);
    object_to_absent(node, epoch, link, roster, member_of(roster, any)->node);
    return 0;
}

/* The roster of an epoch that runs here: for processes that came back, or of a coordinator that was restarted. */
static int continue_epoch(struct node *node, struct local_epoch *epoch, uint64_t link, const struct wire_message *msg,
                          const struct session *any, int n)
{
    uint32_t number = member_of(&msg->roster, any)->node, index = job_link(epoch->job, link);

    if (epoch->state == LOCAL_ABORTED)
        return 0; /* told up already, and again until it is echoed */
    if (local_epoch_reserve(epoch, epoch->n_locals + (uint32_t)n + count_absent(epoch, &msg->roster, number)) < 0)
        return -ENOMEM;
    take_listens(epoch, &msg->roster, number);
    tell_all_again(node, &msg->roster);
    begin_sessions(node, epoch, msg);
    await_absent(node, epoch, &msg->roster, number);
    local_epoch_resend(node, epoch, link);
    if (epoch->tell_up && index != POISE_NONE)
        epoch->links[index].echoed = false;
    return 0;
}

int node_on_roster(struct node *node, uint64_t link, const struct wire_message *msg)
{
    const struct wire_roster *roster = &msg->roster;
    const struct session *any = NULL, *elsewhere = NULL;
    struct local_epoch *epoch = node_epoch(node, roster->epoch);
    int n = count_joining(node, roster, &any, &elsewhere);

    if (!any)
        return 0;
    if (elsewhere) {
        object(node, link, roster, elsewhere->join->join.rank, elsewhere->join->join.replica, "is in another epoch");
        return 0;
    }
    return epoch ? continue_epoch(node, epoch, link, msg, any, n) : begin_epoch(node, link, msg, any, n);
}

/* --------------------------------------------------------------------------------------------------------------- ending */

static void tell_links(struct node *node, struct local_epoch *epoch)
{
    struct wire_message *msg = NULL;

    for (uint32_t i = 0; i < epoch->job->n_links; i++) {
        if (epoch->links[i].echoed)
            continue;
        if (!msg) {
            msg = out_message(&node->out, WIRE_ABORT);
            msg->abort = epoch->abort;
        }
        out_send(&node->out, epoch->job->links[i], true, msg);
    }
}

static void tell_processes(struct node *node, struct local_epoch *epoch, const struct session *except)
{
    for (uint32_t i = 0; i < epoch->n_locals; i++) {
        struct session *session = epoch->locals[i].session;

        if (session && session != except && session->state == SESSION_RUNNING)
            session_abort(node, session, &epoch->abort);
    }
}

void local_epoch_end(struct node *node, struct local_epoch *epoch, const struct wire_abort *abort, bool tell_up,
                     const struct session *except)
{
    bool again = epoch->state == LOCAL_LEAVING && abort->left;

    if (epoch->state == LOCAL_ABORTED || (abort->left && epoch->state == LOCAL_ENDED))
        return;
    if (again && (int64_t)(abort->step - epoch->abort.step) >= 0)
        return; /* someone left before */
    local_epoch_turn(node, epoch, abort->left ? LOCAL_LEAVING : LOCAL_ABORTED, abort->error.text);
    epoch->abort = *abort;
    epoch->abort.epoch = epoch->id;
    memcpy(epoch->abort.job, epoch->job->job, sizeof epoch->abort.job);
    memcpy(epoch->abort.group, epoch->job->group, sizeof epoch->abort.group);
    epoch->tell_up = tell_up;
    for (uint32_t i = 0; i < NODE_MAX_LINKS; i++)
        epoch->links[i].echoed = false;
    tell_processes(node, epoch, except);
    if (tell_up)
        tell_links(node, epoch);
}

/* Is there an outcome to come for a process here? After the end, or a leave, those that have all they can get need nobody:
 * that coordinators or other nodes are gone then is no harm. */
static bool needs_more(const struct local_epoch *epoch)
{
    uint64_t wanted = epoch->abort.step + 1 - epoch->first_step;

    if (epoch->state != LOCAL_LEAVING)
        return epoch->state == LOCAL_RUNNING;
    for (uint32_t i = 0; i < epoch->n_locals; i++)
        if (epoch->locals[i].session && epoch->locals[i].session->decided < wanted)
            return true;
    return false;
}

/* Every coordinator that is heard here says that a node is silent: now it is proof, told as any other end. */
void node_check_votes(struct node *node, struct local_epoch *epoch)
{
    const struct wire_abort *vote = NULL;
    struct wire_abort abort;

    for (uint32_t i = 0; i < epoch->job->n_links && needs_more(epoch); i++) {
        const struct epoch_link *link = &epoch->links[i];
        bool heard = node->now_ms < node->links[epoch->job->links[i]].heard_ms + node->config.silence_ms;

        if (link->vote_ms && node->now_ms < link->vote_ms + NODE_VOTE_MS)
            vote = &link->vote;
        else if (heard && RULE_HOLDS(RULE_VOTE))
            return;
    }
    if (!vote)
        return;
    abort = *vote;
    abort.left = false;
    abort.error.code = -ETIMEDOUT;
    local_epoch_end(node, epoch, &abort, true, NULL);
}

/* An attempt to open failed. Its text has no uid, so two users whose jobs have one name are told one by one (REFUSED). */
static void end_attempt(struct node *node, uint64_t link, const struct wire_abort *abort)
{
    struct job *job = NULL;

    for (uint32_t i = 0; i < node->n_jobs; i++) {
        struct job *other = node->jobs[i];

        if (strcmp(other->job, abort->job) != 0 || strcmp(other->group, abort->group) != 0 ||
            job_link(other, link) == POISE_NONE)
            continue;
        if (job)
            return;
        job = other;
    }
    for (uint32_t i = 0; job && i < node->n_sessions; i++)
        if (node->sessions[i]->job == job && node->sessions[i]->state == SESSION_JOINING)
            session_abort(node, node->sessions[i], abort);
}

static void echo(struct local_epoch *epoch, uint32_t index, const struct wire_abort *abort)
{
    if (epoch->state == LOCAL_ABORTED)
        epoch->links[index].echoed |= !abort->left;
    else if (epoch->state == LOCAL_LEAVING)
        epoch->links[index].echoed |= !abort->left || (int64_t)(abort->step - epoch->abort.step) <= 0;
}

void node_on_abort(struct node *node, uint64_t link, const struct wire_message *msg)
{
    const struct wire_abort *abort = &msg->abort;
    struct local_epoch *epoch;
    uint32_t index;

    if (wire_id_none(abort->epoch)) {
        end_attempt(node, link, abort);
        return;
    }
    epoch = node_epoch(node, abort->epoch);
    index = epoch ? job_link(epoch->job, link) : POISE_NONE;
    if (index == POISE_NONE) {
        node->stale++;
        return;
    }
    if (abort->error.code == -EHOSTDOWN) {
        epoch->links[index].vote_ms = node->now_ms;
        epoch->links[index].vote = *abort;
        node_check_votes(node, epoch);
        return;
    }
    local_epoch_end(node, epoch, abort, epoch->job->n_links > 1, NULL); /* the others may not have heard it */
    echo(epoch, index, abort);
}

/* --------------------------------------------------------------------------------------------------------------- timers */

/* No coordinator at all for so long: nothing will be decided any more. */
static void check_silence(struct node *node, struct local_epoch *epoch)
{
    struct wire_abort abort = {.rank = POISE_NONE, .replica = POISE_NONE};
    char list[380] = "";

    if (!needs_more(epoch))
        return;
    node_ask_further(node, epoch);
    for (uint32_t i = 0; i < epoch->job->n_links; i++) {
        const struct node_link *link = &node->links[epoch->job->links[i]];

        if (node->now_ms < link->heard_ms + node->config.node_timeout_ms)
            return;
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s",
                 link->endpoint[0] ? link->endpoint : "(the local daemon)");
    }
    err_set(&abort.error, -ETIMEDOUT, "no coordinator of %s answers for %llu ms:%s", epoch->label,
            (unsigned long long)node->config.node_timeout_ms, list);
    local_epoch_end(node, epoch, &abort, true, NULL);
}

/* A process that was here before this poised was restarted and does not come back: its death was nobody's to see. */
static void check_awaited(struct node *node, struct local_epoch *epoch)
{
    struct wire_abort abort = {.left = false};
    const struct local *local = epoch->locals;
    char who[48];

    if (epoch->state != LOCAL_RUNNING) /* who left before the restart does not come back */
        return;
    if (!epoch->n_awaited || node->now_ms < epoch->awaited_ms + node->config.node_timeout_ms)
        return;
    while (!local->awaited)
        local++;
    abort.rank = local->rank;
    abort.replica = local->replica;
    err_set_at(&abort.error, -ESHUTDOWN, local->rank, POISE_NONE, NULL,
               "job %s: %s did not come back to node %s within %llu ms after its poised was restarted", epoch->job->job,
               member_name(local->rank, local->replica, epoch->n_replicas, who, sizeof who), node->config.name,
               (unsigned long long)node->config.node_timeout_ms);
    local_epoch_end(node, epoch, &abort, true, NULL);
}

/* Kept as long as a process needs it, or a coordinator has to be told. */
static bool finished(const struct node *node, const struct local_epoch *epoch)
{
    bool told = !epoch->tell_up || node->now_ms >= epoch->state_ms + node->config.node_timeout_ms;

    if (epoch->n_live)
        return false;
    for (uint32_t i = 0; i < epoch->job->n_links && !told; i++) {
        if (!epoch->links[i].echoed)
            return false;
    }
    return true;
}

void node_tick_epochs(struct node *node)
{
    bool beat = node->now_ms >= node->beat_ms;
    uint32_t n = 0;

    for (uint32_t i = 0; i < node->n_epochs; i++) {
        struct local_epoch *epoch = node->epochs[i];

        if (epoch->state != LOCAL_ABORTED) {
            check_silence(node, epoch);
            check_awaited(node, epoch);
            local_epoch_pull_proven(node, epoch);
        }
        if (beat && epoch->tell_up && RULE_HOLDS(RULE_ECHO))
            tell_links(node, epoch);
        if (finished(node, epoch)) {
            if (--epoch->job->n_epochs == 0)
                epoch->job->n_links = epoch->job->n_listed;
            epoch->next_dead = node->dead_epochs;
            node->dead_epochs = epoch;
        } else {
            node->epochs[n++] = epoch;
        }
    }
    node->n_epochs = n;
}
