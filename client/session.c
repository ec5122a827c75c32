/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine says to poised and hears from it: joining, the roster, offers of segments, outcomes, aborts. Whatever
 * is heard may be old, doubled or out of order, and poised may be another one than a moment ago: after each new
 * connection the process joins with its epoch, and when the roster comes again, offers its segments again, says its
 * undecided metadata again and asks for the outcomes that it lacks. All of that is idempotent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/handle.h"
#include "daemon/planner/err.h"

#define OFFER_RETRY_MS 10   /* poised empties its queue of packets within a turn of its loop */
#define PULL_MS        2000 /* while waiting; an outcome that exists comes by itself within milliseconds */

static bool is_ours(const struct poise *p, struct wire_id epoch)
{
    return !wire_id_none(p->epoch) && wire_id_is(p->epoch, epoch);
}

/* ----------------------------------------------------------------------------------------------------------- saying */

static bool send_or_notice(struct poise *p, const struct wire_message *msg)
{
    struct poise_err why;
    int rc = link_send(p->link, msg, &why);

    if (rc == 0 || rc == -EAGAIN)
        return true;
    pthread_mutex_lock(&p->lock);
    handle_notice(p, p->cursor, POISE_WARNING, "a message to poised could not be sent: %s", why.text);
    pthread_mutex_unlock(&p->lock);
    return false;
}

static void ask_outcome(struct poise *p, uint64_t step, bool want_table)
{
    struct wire_message msg = {.type = WIRE_PULL, .ask = {.epoch = p->epoch, .step = step, .want_table = want_table}};

    send_or_notice(p, &msg);
}

void session_pull(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t first = ledger_next_decide(p->ledger), end = ledger_next_submit(p->ledger);
    pthread_mutex_unlock(&p->lock);

    for (uint64_t step = first; step != end; step++)
        ask_outcome(p, step, p->wants_table && step == first);
    p->pull_ms = handle_now_ms() + PULL_MS;
}

static void say_again(struct poise *p, uint64_t step, bool want_table)
{
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;

    pthread_mutex_lock(&p->lock);
    int rc = submit_again(p, step, want_table, &bytes, &n_bytes, NULL);
    pthread_mutex_unlock(&p->lock);
    if (rc == 0)
        link_send_bytes(p->link, bytes, n_bytes);
    free(bytes);
}

void session_outbox(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    struct outgoing *out = p->outbox;
    p->outbox = NULL;
    p->outbox_tail = &p->outbox;
    pthread_mutex_unlock(&p->lock);

    while (out) {
        struct outgoing *next = out->next;
        if (p->rostered) /* else it is said again when the roster comes */
            link_send_bytes(p->link, out->bytes, out->n_bytes);
        free(out->bytes);
        free(out);
        out = next;
    }
}

static uint32_t waits_for(struct poise *p)
{
    const struct step *record = handle_step(p, p->cursor);

    if (p->group_ended)
        return WIRE_WAIT_NOTHING;
    if (!record)
        return WIRE_WAIT_LOADER;
    if (record->state == STEP_SUBMITTED)
        return WIRE_WAIT_PLAN;
    if (record->n_ready == record->n_micro_batches || p->shuffle_wait == SHUFFLE_WAITS_ROOM)
        return WIRE_WAIT_TRAINER;
    return WIRE_WAIT_SHUFFLE;
}

void session_report(struct poise *p)
{
    uint64_t first = p->settings.join.first_step;
    struct wire_message msg = {.type = WIRE_REPORT};
    struct wire_report *report = &msg.report;
    struct receive_stats receive = {0};
    struct computed computed[WIRE_WINDOW];
    uint32_t n_computed;

    if (!p->settings.plan_only)
        receive_stats(p->receive, &receive);
    pthread_mutex_lock(&p->lock);
    *report = (struct wire_report){
        .epoch = p->epoch,
        .rank = p->settings.join.rank,
        .replica = p->settings.join.replica,
        .step = p->cursor > first ? p->cursor - 1 : first,
        .submitted = ledger_next_submit(p->ledger) - first,
        .waiting = waits_for(p),
        .compute_ns = p->compute_ns,
        .report_step = p->report_step,
        .pipeline_ns = p->stats.pipeline_ns_last,
        .exposed_ns = p->exposed_ns,
        .arena_bytes = p->stats.arena_bytes + receive.bytes,
        .budget_bytes = p->stats.budget_bytes,
        .samples_in = p->stats.samples_in,
        .samples_out = p->stats.samples_out,
        .samples_dropped = p->stats.samples_dropped,
        .samples_verified = p->stats.samples_verified,
        .samples_corrupt = p->stats.samples_corrupt,
    };
    p->report_due = false;
    n_computed = p->n_computed;
    memcpy(computed, p->computed, sizeof computed);
    p->n_computed = 0;
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i + 1 < n_computed; i++) { /* the newest goes with the last one */
        report->report_step = computed[i].step;
        report->compute_ns = computed[i].ns;
        link_send(p->link, &msg, NULL);
    }
    if (n_computed > 0) {
        report->report_step = computed[n_computed - 1].step;
        report->compute_ns = computed[n_computed - 1].ns;
    }
    link_send(p->link, &msg, NULL); /* what is lost of it the next one says again */
}

/* What is lost of the metadata that a coordinator sends is asked for again. */
void session_record(struct poise *p, uint64_t now_ms)
{
    struct wire_message msg = {.type = WIRE_NEED, .ask = {.epoch = p->epoch}};
    char text[RECORDER_TEXT];
    uint32_t severity;
    uint64_t step;

    while (recorder_turn(p->recorder, now_ms, p->rostered && !p->leave_sent ? &msg.ask.step : NULL))
        link_send(p->link, &msg, NULL);
    if (!recorder_note(p->recorder, &severity, &step, text))
        return;
    pthread_mutex_lock(&p->lock);
    handle_notice(p, step, severity, "%s", text);
    pthread_mutex_unlock(&p->lock);
}

void session_leave(struct poise *p)
{
    struct wire_message msg = {.type = WIRE_LEAVE};

    if (p->leave_sent || !p->rostered)
        return;
    pthread_mutex_lock(&p->lock);
    msg.leave.epoch = p->epoch;
    msg.leave.submitted = ledger_next_submit(p->ledger) - p->settings.join.first_step;
    msg.leave.ended = p->group_ended;
    pthread_mutex_unlock(&p->lock);
    send_or_notice(p, &msg);
    p->leave_sent = true;
}

/* ----------------------------------------------------------------------------------------------------------- offers */

static int offer(struct poise *p, uint32_t type, uint32_t kind, uint32_t segment, uint32_t generation, uint64_t bytes,
                 int fd)
{
    struct local_message packet = {.magic = LOCAL_MAGIC,
                                   .version = WIRE_VERSION,
                                   .type = type,
                                   .kind = kind,
                                   .segment = segment,
                                   .generation = generation,
                                   .rank = p->settings.join.rank,
                                   .replica = p->settings.join.replica,
                                   .bytes = bytes,
                                   .epoch = p->epoch};

    return link_send_local(p->link, &packet, fd);
}

/* The engine's own picture of its arena, so that reading own samples needs no lock. Under produce. */
static void note_own(struct poise *p, const struct arena_change *change)
{
    struct own_segment *own = &p->own[change->segment];

    *own = (struct own_segment){.generation = change->generation};
    if (change->offer && !arena_lookup(p->arena, change->segment, change->generation, &own->base, &own->bytes))
        own->base = NULL;
}

/* The next change of the arena, if the arena is not being worked on. */
static bool next_change(struct poise *p)
{
    struct arena_stats stats;
    bool found;

    atomic_store(&p->wants_produce, 1);
    if (pthread_mutex_trylock(&p->produce) != 0)
        return false;
    atomic_store(&p->wants_produce, 0);
    if (p->arena_again)
        arena_offer_again(p->arena);
    p->arena_again = false;
    found = arena_next_change(p->arena, &p->change);
    if (found)
        note_own(p, &p->change);
    arena_stats(p->arena, &stats);
    pthread_mutex_unlock(&p->produce);
    pthread_mutex_lock(&p->lock);
    p->stats.arena_bytes = stats.bytes;
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* 0 or the error of the first packet that could not be sent. */
static int send_offers(struct poise *p)
{
    int rc = 0;

    if (!p->control_offered) {
        rc = offer(p, LOCAL_OFFER, LOCAL_CONTROL, 0, 0, p->control.segment.bytes, p->control.segment.fd);
        p->control_offered = rc == 0;
    }
    if (rc == 0 && !p->doorbell_offered) {
        rc = offer(p, LOCAL_OFFER, LOCAL_DOORBELL, 0, 0, 0, p->doorbell_fd);
        p->doorbell_offered = rc == 0;
    }
    while (rc == 0 && (p->change_waits || next_change(p))) {
        const struct arena_change *change = &p->change;
        rc = offer(p, change->offer ? LOCAL_OFFER : LOCAL_RETRACT, LOCAL_ARENA, change->segment, change->generation,
                   change->bytes, change->offer ? change->fd : -1);
        p->change_waits = rc < 0;
    }
    return rc;
}

void session_offers(struct poise *p, uint64_t now_ms)
{
    if (!p->rostered || p->leave_sent || p->settings.plan_only)
        return;
    p->offer_ms = send_offers(p) < 0 ? now_ms + OFFER_RETRY_MS : 0;
}

static void segment(void *context, const struct local_message *what, int fd)
{
    struct poise *p = context;
    struct poise_err why;
    int rc = 0;

    if (p->settings.plan_only || (!wire_id_none(p->epoch) && !wire_id_is(p->epoch, what->epoch))) {
        if (fd >= 0)
            close(fd);
        return;
    }
    if (what->type == LOCAL_RETRACT)
        peers_retract(p->peers, what);
    else
        rc = peers_offer(p->peers, what, fd, &why);
    if (rc == 0 || rc == -EALREADY || rc == -ESTALE)
        return;
    pthread_mutex_lock(&p->lock);
    handle_notice(p, p->cursor, POISE_WARNING, "the memory that rank %u offers cannot be used: %s", what->rank,
                  why.text);
    pthread_mutex_unlock(&p->lock);
}

/* ---------------------------------------------------------------------------------------------------------- joining */

static void more_cautious(struct poise *p, uint32_t mode)
{
    pthread_mutex_lock(&p->lock);
    if (mode <= POISE_MODE_OFF && mode > p->mode)
        p->mode = mode;
    pthread_mutex_unlock(&p->lock);
}

static void up(void *context, const struct wire_message *welcome)
{
    struct poise *p = context;
    struct wire_message msg = {.type = WIRE_JOIN, .join = p->settings.join};

    more_cautious(p, welcome->welcome.mode);
    msg.join.epoch = p->epoch;
    if (p->tcp)
        transport_tcp_join(p->tcp, &msg.join);
    if (!send_or_notice(p, &msg))
        link_renew(p->link); /* without JOIN nothing would ever come */
}

static void down(void *context, const char *why)
{
    struct poise *p = context;
    uint64_t now_ms = handle_now_ms();

    p->rostered = false;
    pthread_mutex_lock(&p->lock);
    if (p->lost_ms == 0)
        p->lost_ms = now_ms;
    if (!p->leave_sent)
        handle_notice(p, p->cursor, POISE_WARNING, "the connection to poised is lost and will be made again: %s", why);
    pthread_mutex_unlock(&p->lock);
}

int session_memory(struct poise *p, uint32_t n_local, struct poise_err *err)
{
    struct memory_free mem;
    uint64_t budget = p->settings.memory_budget;
    int rc = 0;

    if (p->settings.plan_only)
        return 0;
    if (budget == 0) {
        rc = memory_free_read("", &mem, err);
        if (rc < 0)
            return rc;
        budget = memory_budget(&mem, n_local);
    }
    /* Halves: a sender must never wait for memory that its own receiving side holds. */
    rc = receive_new(budget / 2, p->settings.debug_slots ? POISE_DEBUG_SLOTS : 0, &p->receive, err);
    if (rc == 0)
        rc = arena_new(budget / 2, 0, &p->arena, err);
    p->receive_budget = budget / 2;
    p->stats.budget_bytes = budget;
    return rc;
}

/* Which node this process is on, and whether some of those that it exchanges payload with are on others. */
static int check_roster(const struct poise *p, const struct wire_roster *roster, uint32_t *ret_n_local,
                        bool *ret_spans, struct poise_err *err)
{
    const struct wire_join *join = &p->settings.join;
    const struct wire_member *own = NULL;
    uint32_t n_local = 0;
    bool spans = false;

    if (roster->n_ranks != join->n_ranks || roster->n_replicas != join->n_replicas ||
        roster->first_step != join->first_step)
        return err_set(err, -EPROTO,
                       "the roster of job %s is for %u ranks x %u replicas from step %llu, not for this group",
                       roster->job, roster->n_ranks, roster->n_replicas, (unsigned long long)roster->first_step);
    for (uint32_t i = 0; i < roster->n_members; i++) {
        if (roster->members[i].rank == join->rank && roster->members[i].replica == join->replica)
            own = &roster->members[i];
    }
    if (!own || wire_incarnation_compare(&own->incarnation, &join->incarnation) != 0)
        return err_set(err, -EPROTO, "the roster of job %s does not name this process as rank %u", roster->job,
                       join->rank);
    for (uint32_t i = 0; i < roster->n_members; i++) {
        const struct wire_member *member = &roster->members[i];
        n_local += member->node == own->node;
        spans |= !p->settings.plan_only && member->replica == join->replica && member->node != own->node;
    }
    *ret_n_local = n_local;
    *ret_spans = spans;
    return 0;
}

/* Payload between nodes, where the roster says that there is some. */
static int start_tcp(struct poise *p, const struct wire_roster *roster, struct poise_err *err)
{
    int rc;

    if (!p->tcp)
        return err_set(err, -EOPNOTSUPP,
                       "the group spans %u nodes, but rank %u named no coordinators, so it serves no payload to other "
                       "nodes: set coordinators (POISE_COORDINATORS) alike on every rank",
                       roster->n_nodes, p->settings.join.rank);
    p->remote_done = calloc(roster->n_ranks, sizeof *p->remote_done);
    if (!p->remote_done)
        return err_set(err, -ENOMEM, "no memory for %u peers", roster->n_ranks);
    rc = transport_tcp_start(p->tcp, roster, err);
    return rc;
}

static void refuse_open(struct poise *p, const struct poise_err *why)
{
    pthread_mutex_lock(&p->lock);
    handle_abort(p, why);
    pthread_mutex_unlock(&p->lock);
}

static void begin_epoch(struct poise *p, const struct wire_roster *roster)
{
    struct poise_err why;
    uint32_t n_local = 0;
    bool spans = false;
    int rc = check_roster(p, roster, &n_local, &spans, &why);

    if (rc == 0)
        rc = session_memory(p, n_local, &why);
    p->stats.epoch_n_local = n_local;
    if (rc == 0 && spans)
        rc = start_tcp(p, roster, &why);
    if (rc < 0) {
        refuse_open(p, &why);
        return;
    }
    p->rostered = true;
    pthread_mutex_lock(&p->lock);
    p->epoch = roster->epoch;
    p->stats.epoch_n_local = n_local;
    p->state = HANDLE_RUNNING;
    handle_changed(p);
    pthread_mutex_unlock(&p->lock);
}

static void rejoin(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t first = ledger_next_decide(p->ledger), end = ledger_next_submit(p->ledger);
    if (p->lost_ms)
        handle_notice(p, p->cursor, POISE_INFO, "connected to poised again after %llu ms",
                      (unsigned long long)(handle_now_ms() - p->lost_ms));
    p->lost_ms = 0;
    pthread_mutex_unlock(&p->lock);

    p->rostered = true;
    p->control_offered = p->doorbell_offered = p->change_waits = false;
    p->arena_again = true;
    for (uint64_t step = first; step != end; step++)
        say_again(p, step, true);
    session_pull(p);
}

static void take_roster(struct poise *p, const struct wire_roster *roster)
{
    if (p->state == HANDLE_OPENING)
        begin_epoch(p, roster);
    else if (is_ours(p, roster->epoch) && !p->leave_sent)
        rejoin(p);
}

/* --------------------------------------------------------------------------------------------------------- messages */

static void take_abort(struct poise *p, const struct wire_abort *abort)
{
    bool own = abort->rank == p->settings.join.rank && abort->replica == p->settings.join.replica;

    if (p->state == HANDLE_OPENING) {
        refuse_open(p, &abort->error);
        return;
    }
    if (!is_ours(p, abort->epoch) || (abort->left && own))
        return;
    pthread_mutex_lock(&p->lock);
    if (abort->left)
        handle_left(p, abort->step, &abort->error);
    else
        handle_abort(p, &abort->error);
    handle_notice(p, p->cursor, abort->left ? POISE_WARNING : POISE_ERROR, "%s", abort->error.text);
    pthread_mutex_unlock(&p->lock);
    if (abort->left && abort->replica == p->settings.join.replica) {
        retire_forget(p, abort->rank);
        if (p->tcp)
            transport_tcp_forget(p->tcp, abort->rank);
    }
}

static void take_refused(struct poise *p, const struct poise_err *why)
{
    pthread_mutex_lock(&p->lock);
    handle_abort(p, why);
    pthread_mutex_unlock(&p->lock);
}

static void take_mode(struct poise *p, struct wire_id epoch, uint32_t mode)
{
    if (mode > POISE_MODE_OFF || !(wire_id_none(epoch) || is_ours(p, epoch)))
        return;
    pthread_mutex_lock(&p->lock);
    p->mode = mode;
    pthread_mutex_unlock(&p->lock);
}

static void message(void *context, struct wire_message *msg)
{
    struct poise *p = context;

    switch (msg->type) {
    case WIRE_ROSTER:
        take_roster(p, &msg->roster);
        break;
    case WIRE_OUTCOME:
        if (is_ours(p, msg->outcome.epoch) && decide_take(p, msg))
            return; /* the ledger keeps it */
        break;
    case WIRE_META: /* of all ranks */
        if (p->recorder && msg->meta.n_metas && is_ours(p, msg->meta.metas[0].epoch)) {
            recorder_metas(p->recorder, msg);
            return; /* taken */
        }
        break;
    case WIRE_ABORT:
        take_abort(p, &msg->abort);
        break;
    case WIRE_FORMING:
        if (p->state == HANDLE_OPENING || p->lost_ms)
            p->forming = msg->forming; /* the engine's alone */
        break;
    case WIRE_REFUSED:
        take_refused(p, &msg->refused.error);
        break;
    case WIRE_NEED:
        if (is_ours(p, msg->ask.epoch))
            say_again(p, msg->ask.step, msg->ask.want_table);
        break;
    case WIRE_MODE:
        take_mode(p, msg->mode.epoch, msg->mode.mode);
        break;
    default: /* none that a process gets */
        break;
    }
    wire_free(msg);
}

const struct link_calls session_calls = {.up = up, .down = down, .message = message, .segment = segment};
