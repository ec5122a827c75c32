/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: one thread a handle that does everything which must not wait for the trainer, with all signals blocked.
 * One turn: read packets and messages, send what waits, do a piece of the shuffle, recycle, look at the clock; then
 * sleep until a descriptor or a deadline wakes it. It never blocks in a send and never waits for a lock that is held
 * while payload is copied, so it always answers, whatever the trainer or a peer does.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/handle.h"
#include "daemon/planner/err.h"

#define REPORT_MS  1000  /* also the longest sleep: a lost ring of a peer costs at most this */
#define CLOSING_MS 50    /* the same while the handle closes, when somebody waits */
#define MISSING_MS 100   /* between two looks at who is late, while somebody waits */
#define WARN_MS    60000 /* alive and slow is worth a notice */
#define RECORD_MS  200   /* between two looks at what the record lacks */
#define RECORD_CLOSE_MS 1000 /* so long a closing handle waits for the record's last steps, which come at once */
#define DONE_CLOSE_MS 2000 /* so long a closing handle tries to tell senders on other nodes that it is done */
#define FLUSH_MS   200   /* for LEAVE to leave this process; poised waits a moment for it when the connection ends */

void engine_fail(struct poise *p, const struct poise_err *why)
{
    struct poise_err ignored;
    bool told = false;

    pthread_mutex_lock(&p->lock);
    if (p->state != HANDLE_ABORTED) {
        bool running = p->state == HANDLE_RUNNING;
        handle_abort(p, why);
        handle_notice(p, why->step, POISE_ERROR, "%s", why->text);
        told = running && !p->group_ended && submit_bad(p, why, &ignored) == 0;
    }
    pthread_mutex_unlock(&p->lock);
    if (told)
        session_outbox(p);
    session_leave(p);
}

/* ----------------------------------------------------------------------------------------------------------- aborts */

/* Under lock: submitted steps that will never be decided. */
static void drop_undecided(struct poise *p)
{
    for (uint32_t i = 0; i < HANDLE_STEPS; i++) {
        struct step *record = &p->steps[i];
        if (record->state != STEP_SUBMITTED || handle_dead(p, record->step, NULL) == 0)
            continue;
        p->stats.samples_dropped += record->n_samples;
        retire_drop(p, record->step);
        record->state = STEP_NONE;
    }
}

/* After an abort nobody reads on: what was under way is given back. Peers that still copy from this rank's memory have
 * it mapped themselves, and nothing is written there any more. */
static void settle(struct poise *p)
{
    if (p->state == HANDLE_ABORTED || p->closing)
        shuffle_abandon(p);
    pthread_mutex_lock(&p->lock);
    drop_undecided(p);
    if (p->state == HANDLE_ABORTED || p->closing)
        iterate_drop(p);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; p->state == HANDLE_ABORTED && i < HANDLE_STEPS; i++) {
        if (p->sent[i].active)
            retire_drop(p, p->sent[i].step);
    }
}

/* Nothing is left that others could want of a handle that closes. */
static bool is_served(struct poise *p)
{
    bool undecided;

    if (p->state == HANDLE_ABORTED || !p->rostered)
        return true;
    if (p->recorder && recorder_waits(p->recorder, handle_now_ms(), RECORD_CLOSE_MS))
        return false;
    pthread_mutex_lock(&p->lock);
    undecided = !p->group_ended && ledger_next_decide(p->ledger) != ledger_next_submit(p->ledger) &&
                handle_dead(p, ledger_next_decide(p->ledger), NULL) == 0;
    pthread_mutex_unlock(&p->lock);
    if (undecided || !retire_idle(p))
        return false;
    return !p->tcp || transport_tcp_is_idle(p->tcp) || handle_now_ms() >= p->closing_ms + DONE_CLOSE_MS;
}

/* ----------------------------------------------------------------------------------------------------------- clocks */

/* "it waits for ranks 3, 5 and 2 more"; in a group with replicas they are processes: "3.1" is replica 1 of rank 3. */
static void print_missing(const struct poise *p, char *text, size_t n_text)
{
    const struct wire_forming *forming = &p->forming;
    const bool replicas = p->settings.join.n_replicas > 1;
    const uint32_t n_all = forming->missing_total, n_shown = forming->n_missing < 8 ? forming->n_missing : 8;
    size_t n = 0;

    if (n_all == 0 || n_shown == 0) {
        snprintf(text, n_text, "`poisectl status` shows who is missing");
        return;
    }
    n += (size_t)snprintf(text, n_text, replicas ? "it waits for rank.replica" : n_all > 1 ? "it waits for ranks"
                                                                                          : "it waits for rank");
    for (uint32_t i = 0; i < n_shown; i++) {
        n += (size_t)snprintf(text + n, n_text - n, i ? ", %u" : " %u", forming->missing[i]);
        if (replicas)
            n += (size_t)snprintf(text + n, n_text - n, ".%u", forming->missing_replica[i]);
    }
    if (n_all > n_shown)
        snprintf(text + n, n_text - n, " and %u more", n_all - n_shown);
}

static void fail_open(struct poise *p, uint64_t now_ms)
{
    struct poise_err why;
    char missing[192];

    if (p->state != HANDLE_OPENING || now_ms < p->opened_ms + p->settings.open_timeout_ms)
        return;
    print_missing(p, missing, sizeof missing);
    err_set(&why, -ETIMEDOUT,
            "job %s, group %s: not all of the %u ranks x %u replicas opened it within %llu ms, %s: start them, or raise "
            "open_timeout_ms",
            p->settings.join.job, p->settings.join.group, p->settings.join.n_ranks, p->settings.join.n_replicas,
            (unsigned long long)p->settings.open_timeout_ms, missing);
    pthread_mutex_lock(&p->lock);
    handle_abort(p, &why);
    pthread_mutex_unlock(&p->lock);
}

/* All that will ever be decided is: poised's end does not matter any more. */
static bool needs_nothing(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    bool nothing = p->group_ended ||
                   (p->state == HANDLE_LEFT && (int64_t)(ledger_next_decide(p->ledger) - p->last_step) > 0);
    pthread_mutex_unlock(&p->lock);
    return nothing;
}

static void fail_lost(struct poise *p, uint64_t now_ms)
{
    struct poise_err why;
    char missing[192] = "";

    if (p->state == HANDLE_OPENING || p->state == HANDLE_ABORTED || p->lost_ms == 0 || needs_nothing(p) ||
        now_ms < p->lost_ms + p->settings.node_timeout_ms)
        return;
    if (link_is_up(p->link))
        print_missing(p, missing, sizeof missing);
    err_set(&why, -ESHUTDOWN, "poised on this node is gone for %llu ms (node_timeout_ms): %s%s",
            (unsigned long long)(now_ms - p->lost_ms),
            link_is_up(p->link) ? "it is back, but the group did not come together again, " : link_trouble(p->link),
            missing);
    pthread_mutex_lock(&p->lock);
    handle_abort(p, &why);
    handle_notice(p, p->cursor, POISE_ERROR, "%s", why.text);
    pthread_mutex_unlock(&p->lock);
}

/* Under lock: a step of this rank is in, its outcome is not. */
static bool is_undecided(const struct poise *p)
{
    return p->state == HANDLE_RUNNING && !p->group_ended &&
           ledger_next_decide(p->ledger) != ledger_next_submit(p->ledger);
}

/* Who is late, as far as this node's control segments tell: a rank publishes every step before it says so to poised. */
static void look_for_missing(struct poise *p, uint64_t now_ms)
{
    uint32_t n_missing = 0, lowest = POISE_NONE;
    uint64_t step;

    if (p->settings.plan_only || now_ms < p->missing_ms)
        return;
    p->missing_ms = now_ms + MISSING_MS;
    pthread_mutex_lock(&p->lock);
    bool undecided = is_undecided(p);
    step = ledger_next_decide(p->ledger);
    pthread_mutex_unlock(&p->lock);

    for (uint32_t rank = 0; undecided && rank < p->settings.join.n_ranks; rank++) {
        struct control_view view;
        struct control_place place;
        if (!peers_control(p->peers, rank, &view) || control_read(view, step, &place) != -EAGAIN)
            continue;
        lowest = n_missing++ ? lowest : rank;
    }
    pthread_mutex_lock(&p->lock);
    p->missing_step = step;
    p->missing_rank = lowest;
    p->n_missing = n_missing;
    pthread_mutex_unlock(&p->lock);
}

/* Under lock: the step that this rank waits for, and what for; NULL if it does not wait. */
static const char *long_wait(const struct poise *p, uint64_t *ret_step, char text[HANDLE_MISSING_TEXT])
{
    *ret_step = ledger_next_decide(p->ledger);
    if (is_undecided(p))
        return handle_missing(p, *ret_step, text);
    *ret_step = p->shuffle_at;
    if (p->shuffle_wait == SHUFFLE_WAITS_ROOM && p->n_waiting)
        return "there is no memory to receive it: the trainer holds batches of older steps; release them or raise "
               "memory_budget";
    if (p->shuffle_wait == SHUFFLE_WAITS_SEGMENT)
        return "its sender has not offered its memory yet";
    if (p->shuffle_wait == SHUFFLE_WAITS_PEER)
        return p->shuffle_text;
    return NULL;
}

/* One notice for each long wait. */
static void warn_slow(struct poise *p, uint64_t now_ms)
{
    char text[HANDLE_MISSING_TEXT];
    uint64_t step;

    pthread_mutex_lock(&p->lock);
    const char *what = long_wait(p, &step, text);
    if (!what || step != p->waiting_step || p->waiting_since_ms == 0) {
        p->waiting_step = step;
        p->waiting_since_ms = what ? now_ms : 0;
    } else if (p->waiting_since_ms != UINT64_MAX && now_ms - p->waiting_since_ms >= WARN_MS) {
        handle_notice(p, step, POISE_WARNING, "step %llu is waited for since %u s: %s", (unsigned long long)step,
                      WARN_MS / 1000u, what);
        p->waiting_since_ms = UINT64_MAX;
    }
    pthread_mutex_unlock(&p->lock);
}

static void look_at_clock(struct poise *p, uint64_t now_ms)
{
    fail_open(p, now_ms);
    fail_lost(p, now_ms);
    if (p->state != HANDLE_RUNNING && p->state != HANDLE_LEFT)
        return;
    look_for_missing(p, now_ms);
    warn_slow(p, now_ms);
    if (!p->rostered || p->leave_sent)
        return;
    if (p->report_due || now_ms >= p->report_ms) {
        session_report(p);
        p->report_ms = now_ms + REPORT_MS;
    }
    if (now_ms >= p->pull_ms)
        session_pull(p);
}

static int sleep_ms(struct poise *p, uint64_t now_ms)
{
    uint64_t until = now_ms + (p->closing ? CLOSING_MS : REPORT_MS), link_ms = link_next_ms(p->link);
    uint64_t tcp_ms = p->tcp ? transport_tcp_next_ms(p->tcp, now_ms) : UINT64_MAX;

    pthread_mutex_lock(&p->lock);
    if (p->n_waiting && is_undecided(p))
        until = now_ms + MISSING_MS;
    pthread_mutex_unlock(&p->lock);

    if (link_ms < until)
        until = link_ms;
    if (tcp_ms < until)
        until = tcp_ms;
    if (p->recorder && recorder_waits(p->recorder, now_ms, UINT64_MAX) && now_ms + RECORD_MS < until)
        until = now_ms + RECORD_MS;
    if (p->offer_ms && p->offer_ms < until)
        until = p->offer_ms;
    if (p->state == HANDLE_OPENING && p->opened_ms + p->settings.open_timeout_ms < until)
        until = p->opened_ms + p->settings.open_timeout_ms;
    if (p->lost_ms && p->state != HANDLE_OPENING && p->lost_ms + p->settings.node_timeout_ms < until &&
        p->lost_ms + p->settings.node_timeout_ms > now_ms)
        until = p->lost_ms + p->settings.node_timeout_ms;
    return until > now_ms ? (int)(until - now_ms) : 0;
}

/* ------------------------------------------------------------------------------------------------------------ turns */

/* Wakes who waits where somebody else asked for it: a signal handler, or the trainer's thread in a hurry. */
static void wake_waiters(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    if (p->n_waiting && handle_interrupted(p))
        p->wakes_due = true;
    if (p->wakes_due)
        pthread_cond_broadcast(&p->cond);
    p->wakes_due = false;
    pthread_mutex_unlock(&p->lock);
}

static void send_ends(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    while (submit_end(p, NULL) == 0)
        ;
    pthread_mutex_unlock(&p->lock);
}

/* After LEAVE poised may end the connection; it is not made again. */
static void run_link(struct poise *p, uint64_t now_ms)
{
    struct poise_err why;

    if (p->leave_sent && !link_is_up(p->link))
        return;
    if (p->state == HANDLE_ABORTED && !link_is_up(p->link))
        return;
    if (link_step(p->link, now_ms, &why) < 0) {
        pthread_mutex_lock(&p->lock);
        handle_abort(p, &why);
        pthread_mutex_unlock(&p->lock);
    }
}

static void answer_close(struct poise *p)
{
    if (p->closing && p->closing_ms == 0)
        p->closing_ms = handle_now_ms();
    if (!p->closing || !is_served(p))
        return;
    pthread_mutex_lock(&p->lock);
    p->served = true;
    handle_changed(p);
    pthread_mutex_unlock(&p->lock);
}

/* True: there is more to do at once. */
static bool turn(struct poise *p)
{
    uint64_t now_ms = handle_now_ms();
    bool more = false;

    wake_waiters(p);
    run_link(p, now_ms);
    if (p->rank_ended)
        send_ends(p);
    session_offers(p, now_ms);
    session_outbox(p);
    if (p->state != HANDLE_OPENING && p->state != HANDLE_ABORTED)
        more = shuffle_step(p);
    if (p->state == HANDLE_LEFT || p->state == HANDLE_ABORTED || p->closing)
        settle(p);
    if (!p->settings.plan_only && p->state != HANDLE_OPENING && p->arena)
        retire_check(p);
    look_at_clock(p, now_ms);
    if (p->recorder)
        session_record(p, now_ms);
    answer_close(p);
    if (p->tcp)
        more |= transport_tcp_turn(p->tcp);
    return link_drain(p->link) > 0 || more;
}

static void drain_doorbell(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count); /* EAGAIN: nobody rang */

    (void)n;
}

static void rest(struct poise *p, int timeout_ms)
{
    struct pollfd fds[LINK_N_FDS + 2 + TRANSPORT_TCP_MAX_FDS];
    nfds_t n = LINK_N_FDS + 2;

    link_poll(p->link, fds);
    if (p->leave_sent && !link_is_up(p->link))
        fds[0].fd = fds[1].fd = -1;
    fds[LINK_N_FDS] = (struct pollfd){.fd = wake_fd(p->wake), .events = POLLIN};
    fds[LINK_N_FDS + 1] = (struct pollfd){.fd = p->doorbell_fd, .events = POLLIN};
    if (p->tcp) /* what it has to tell is looked at in the next turn, all of it */
        n += transport_tcp_poll(p->tcp, fds + n);
    if (poll(fds, n, timeout_ms) <= 0)
        return;
    if (fds[LINK_N_FDS].revents)
        wake_drain(p->wake);
    if (fds[LINK_N_FDS + 1].revents)
        drain_doorbell(p->doorbell_fd);
}

/* Its work is throughput ahead of time: being woken is no reason to take the processor from a trainer's thread. Where the
 * policy may not be set (a sandbox), all works the same. */
static void yield_to_trainers(void)
{
    struct sched_param none = {0};

    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

static void *run(void *context)
{
    struct poise *p = context;
    bool stop = false;

    yield_to_trainers();
    while (!stop) {
        if (!turn(p))
            rest(p, sleep_ms(p, handle_now_ms()));
        pthread_mutex_lock(&p->lock);
        stop = p->stop;
        pthread_mutex_unlock(&p->lock);
    }
    if (p->closing)
        settle(p); /* a close in a hurry may not have left a turn for it */
    if (p->state != HANDLE_ABORTED)
        session_leave(p);
    struct link *link = p->link;
    p->link = NULL;
    link_free(link, p->leave_sent ? FLUSH_MS : 0);
    return NULL;
}

int engine_start(struct poise *p, struct poise_err *err)
{
    sigset_t all, old;
    int rc;

    p->opened_ms = handle_now_ms();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_set(err, -rc, "the engine's thread could not be made: %s", strerror(rc));
    pthread_setname_np(p->thread, "poise-engine");
    return 0;
}

void engine_join(struct poise *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_mutex_unlock(&p->lock);
    wake_ring(p->wake);
    pthread_join(p->thread, NULL);
}
