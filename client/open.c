/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning and the end of a handle. Open makes everything that may fail here, starts the engine, and waits until
 * the engine is in an epoch or knows why there will be none. Close lets the engine serve peers until they have what
 * they were promised, says goodbye, and frees all but what held batches need.
 */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/forks.h"
#include "client/handle.h"
#include "daemon/planner/err.h"

#define N_FDS           48u /* 16 segments, libzmq's 10, ours, and some for offers on their way */
#define MAX_LOCAL_RANKS 64u /* more on one node would be news */

/* In the child of a fork: what tells peers that the parent lives is closed. Async-signal-safe; locks may be held. */
static void child(struct poise *p)
{
    if (p->link)
        link_forked(p->link);
    if (p->peers)
        peers_child(p->peers);
    if (p->arena)
        arena_child(p->arena);
    if (p->control.page)
        control_child(&p->control);
    if (p->tcp)
        transport_tcp_child(p->tcp);
    wake_child(p->wake);
    if (p->doorbell_fd >= 0)
        close(p->doorbell_fd);
    p->doorbell_fd = -1;
}

/* Names go over the wire, whose encoder is strict: what it refuses is an error here, not a message that never leaves.
 */
static int check_join(const struct settings *settings, struct poise_err *err)
{
    struct wire_message msg = {.type = WIRE_JOIN, .join = settings->join};
    uint8_t *bytes;
    size_t n_bytes;
    int rc = wire_encode(&msg, &bytes, &n_bytes, err);

    if (rc == 0)
        free(bytes);
    return rc;
}

/* libzmq aborts the process where it cannot make its descriptors, and peers' doorbells take one each: better to know
 * now. */
static int check_descriptors(const struct settings *settings, struct poise_err *err)
{
    uint32_t n_ranks = settings->join.n_ranks, need = N_FDS + (n_ranks < MAX_LOCAL_RANKS ? n_ranks : MAX_LOCAL_RANKS) +
                                                      transport_tcp_n_fds(settings),
             n_open = 0;
    struct rlimit limit;
    DIR *dir = opendir("/proc/self/fd");

    if (!dir && errno != EMFILE)
        return 0; /* no /proc: found out later */
    while (dir && readdir(dir))
        n_open++;
    if (dir)
        closedir(dir);
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || (dir && limit.rlim_cur >= (rlim_t)n_open + need))
        return 0;
    return err_set(err, -EMFILE,
                   "%u more file descriptors are needed, and %u of the limit of %llu are in use: raise `ulimit -n`",
                   need, n_open, (unsigned long long)limit.rlim_cur);
}

/* Memory that peers see. The arena and the receive slots wait for the roster: their size depends on the local ranks. */
static int make_shared(struct poise *p, struct poise_err *err)
{
    const struct wire_join *join = &p->settings.join;
    int rc;

    if (p->settings.plan_only)
        return 0;
    transport_memory_init(&p->memory, p);
    rc = transport_tcp_wanted(&p->settings) ? transport_tcp_new(p, &p->tcp, err) : 0;
    if (rc < 0)
        return rc;
    rc = control_new(join->rank, join->n_ranks, &p->control, err);
    if (rc == 0)
        rc = peers_new(join->n_ranks, join->rank, NULL, &p->control, &p->peers, err);
    if (rc < 0)
        return rc;
    p->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->doorbell_fd < 0)
        return err_set(err, -errno, "eventfd: %s%s", strerror(errno), errno == EMFILE ? ": raise `ulimit -n`" : "");
    return 0;
}

static int make_parts(struct poise *p, struct poise_err *err)
{
    const struct settings *s = &p->settings;
    int rc = wake_new(&p->wake, err);

    if (rc == 0)
        rc = make_shared(p, err);
    if (rc == 0)
        rc = shuffle_new(s->join.first_step, s->join.n_ranks, &p->shuffle, err);
    if (rc == 0 && ledger_new(s->join.first_step, WIRE_WINDOW, &p->ledger) < 0)
        rc = err_set(err, -ENOMEM, "no memory for the ledger");
    if (rc == 0 && s->record)
        rc = recorder_new(s->record, s->record_max_bytes, &s->join, &p->recorder, err);
    if (rc == 0)
        rc = link_new(s->socket_dir, s->daemon_timeout_ms, &session_calls, p, &p->link, err);
    return rc;
}

/* Ends the engine and everything else. */
static void take_down(struct poise *p)
{
    forks_remove(p);
    engine_join(p);
    handle_free(p);
}

/* The engine keeps all deadlines of opening, so this wait needs none. */
static int wait_open(struct poise *p, struct poise_err *err)
{
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (p->state == HANDLE_OPENING) {
        p->n_waiting++;
        pthread_cond_wait(&p->cond, &p->lock);
        p->n_waiting--;
    }
    if (p->state == HANDLE_ABORTED) {
        rc = p->error.code < 0 ? p->error.code : -ESHUTDOWN;
        if (err)
            *err = p->error;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static int start(struct poise *p, struct poise_err *err)
{
    int rc = make_parts(p, err);

    if (rc == 0)
        rc = forks_add(p, child, err);
    if (rc < 0) {
        link_free(p->link, 0);
        handle_free(p);
        return rc;
    }
    rc = engine_start(p, err);
    if (rc < 0) {
        forks_remove(p);
        link_free(p->link, 0);
        handle_free(p);
        return rc;
    }
    rc = wait_open(p, err);
    if (rc < 0)
        take_down(p);
    return rc;
}

int poise_open(const struct poise_options *opt, struct poise **ret_p, struct poise_err *err)
{
    struct settings settings;
    struct poise *p;
    int rc;

    if (!ret_p)
        return err_set(err, -EINVAL, "poise_open: ret_p is NULL");
    rc = settings_resolve(opt, &settings, err);
    if (rc < 0)
        return rc;
    rc = check_join(&settings, err);
    if (rc == 0)
        rc = check_descriptors(&settings, err);
    if (rc == 0)
        rc = handle_new(&settings, &p, err);
    if (rc < 0) {
        settings_free(&settings);
        return rc;
    }
    rc = start(p, err);
    if (rc == 0)
        *ret_p = p;
    return rc;
}

/* Until peers have what this rank promised them. */
static int serve(struct poise *p, struct poise_err *err)
{
    uint64_t deadline_ms = handle_now_ms() + p->settings.close_timeout_ms;
    char text[HANDLE_MISSING_TEXT];
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    handle_interrupted(p); /* what came before was for others: peers still need what this rank promised them */
    p->closing = true;
    handle_changed(p);
    wake_ring(p->wake);
    while (rc == 0 && !p->served && !atomic_load(&p->hurried))
        rc = handle_wait(p, p->progress, deadline_ms);
    if (rc == -EINTR)
        err_set(err, rc, "poise_interrupt() was called while peers still read what this rank sent");
    if (rc == -ETIMEDOUT && p->sent_rank != POISE_NONE)
        err_set(err, rc, "rank %u still reads step %llu after %llu ms (close_timeout_ms)", p->sent_rank,
                (unsigned long long)p->sent_step, (unsigned long long)p->settings.close_timeout_ms);
    else if (rc == -ETIMEDOUT)
        err_set(err, rc, "step %llu is not decided after %llu ms (close_timeout_ms): %s",
                (unsigned long long)ledger_next_decide(p->ledger), (unsigned long long)p->settings.close_timeout_ms,
                handle_missing(p, ledger_next_decide(p->ledger), text));
    while (p->n_waiting || atomic_load(&p->n_producing)) { /* they find it closing and go */
        pthread_cond_broadcast(&p->cond);
        pthread_mutex_unlock(&p->lock);
        sched_yield();
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int poise_close(struct poise *p, struct poise_err *err)
{
    int rc;

    if (!p)
        return 0;
    rc = handle_check(p, err);
    if (rc < 0)
        return rc;
    rc = serve(p, err);
    take_down(p);
    return rc;
}
