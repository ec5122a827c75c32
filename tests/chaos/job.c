/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training job under chaos: starts a trainer a rank, judges every step that all ranks are past, and when a fault
 * made the epoch end, waits until every rank has ended with an error that names the cause, and starts the next attempt
 * where the slowest rank was. A trainer that ends otherwise, or a job that stands still, is what chaos is looking for.
 */
#include "tests/chaos/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOARD_FD 9
#define HUNG_MS 60000 /* no step for so long: above what any fault lasts with the node timeout */
#define DUE_MS 25000  /* for every rank to end after a death: node_timeout and what a busy machine adds */

int job_new(struct chaos_job *job, struct chaos_net *net, uint32_t ranks_a_host, uint64_t seed)
{
    int fd = memfd_create("chaos-board", MFD_CLOEXEC);

    *job = (struct chaos_job){.net = net, .ranks_a_host = ranks_a_host, .n_ranks = net->n_hosts * ranks_a_host};
    if (fd < 0 || ftruncate(fd, sizeof *job->board) < 0)
        return -1;
    job->board_fd = fcntl(fd, F_DUPFD_CLOEXEC, BOARD_FD + 1);
    close(fd);
    job->board = mmap(NULL, sizeof *job->board, PROT_READ | PROT_WRITE, MAP_SHARED, job->board_fd, 0);
    if (job->board == MAP_FAILED)
        return -1;
    job->board->seed = seed;
    job->board->n_ranks = job->n_ranks;
    atomic_store(&job->board->end_step, UINT64_MAX);
    return 0;
}

void job_free(struct chaos_job *job)
{
    if (job->board && job->board != MAP_FAILED)
        munmap(job->board, sizeof *job->board);
    close(job->board_fd);
}

static void become_trainer(const struct chaos_job *job, uint32_t rank, pid_t parent)
{
    const struct chaos_host *host = &job->net->hosts[rank / job->ranks_a_host];
    char binary[] = "/proc/self/exe", board[16], rank_text[16], name[48], attempt[16], step[24];
    char *argv[] = {(char *)"chaos", (char *)"--worker", board, rank_text, name, attempt, step, NULL};

    snprintf(board, sizeof board, "%d", BOARD_FD);
    snprintf(rank_text, sizeof rank_text, "%u", rank);
    snprintf(name, sizeof name, "chaos-%llu", (unsigned long long)job->board->seed);
    snprintf(attempt, sizeof attempt, "%u", job->attempt);
    snprintf(step, sizeof step, "%llu", (unsigned long long)job->first_step);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    if (getppid() != parent || dup2(job->board_fd, BOARD_FD) < 0 || hosts_enter(job->net, host->number) < 0)
        _exit(126);
    cgroup_enter(host);
    setenv("POISE_SOCKET_DIR", host->dir, 1);
    setenv("POISE_COORDINATORS", job->net->coordinators, 1);
    setenv("POISE_PAYLOAD", job->net->keys ? "curve" : "plain", 1);
    execv(binary, argv);
    _exit(127);
}

int job_start(struct chaos_job *job)
{
    const pid_t parent = getpid();

    for (uint32_t r = 0; r < job->n_ranks; r++) {
        struct chaos_rank *rank = &job->board->ranks[r];
        memset(&rank->attempt, 0, sizeof rank->attempt);
        atomic_store(&rank->attempt.done, job->first_step);
    }
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        job->pids[r] = fork();
        if (job->pids[r] == 0)
            become_trainer(job, r, parent);
        if (job->pids[r] < 0)
            return -1;
    }
    job->attempts++;
    job->progress_ms = chaos_now_ms();
    return 0;
}

void job_kill_all(struct chaos_job *job)
{
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        if (job->pids[r] <= 0)
            continue;
        fprintf(stderr, "chaos: rank %u is killed; it said: %s%s\n", r, job->board->ranks[r].attempt.error,
                job->board->ranks[r].attempt.complaint);
        kill(job->pids[r], SIGKILL);
        waitpid(job->pids[r], NULL, 0);
        job->pids[r] = 0;
    }
}

bool job_ended(const struct chaos_job *job)
{
    for (uint32_t r = 0; r < job->n_ranks; r++)
        if (job->pids[r] || !atomic_load(&job->board->ranks[r].attempt.left))
            return false;
    return true;
}

uint64_t job_slowest(const struct chaos_job *job)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t r = 0; r < job->n_ranks; r++) {
        const uint64_t done = atomic_load(&job->board->ranks[r].attempt.done);
        least = done < least ? done : least;
    }
    return least;
}

/* --------------------------------------------------------------------------------------------------------- judging */

static void judge_step(struct chaos_job *job, uint64_t step)
{
    uint32_t bad_rank;
    const bool bad = chaos_is_bad(job->board, step, &bad_rank);

    for (uint32_t r = 0; r < job->n_ranks; r++) {
        const uint32_t n = chaos_n_samples(job->board, step, r);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t came = atomic_exchange(&job->board->came[step % CHAOS_WINDOW][r][i], 0);
            if (bad && r != bad_rank)
                job->dropped_bad++;
            if (came == (bad ? 0 : 1))
                continue;
            fprintf(stderr, "chaos: step %llu: sample %u of rank %u came %u times%s\n", (unsigned long long)step, i, r,
                    came, bad ? " although the step is bad" : "");
            job->lost += came == 0;
            job->doubled += came > 1 || bad;
        }
    }
    job->steps++;
}

static void judge(struct chaos_job *job)
{
    const uint64_t slowest = job_slowest(job);

    if (job->checked < slowest)
        job->progress_ms = chaos_now_ms();
    for (; job->checked < slowest; job->checked++)
        judge_step(job, job->checked);
}

/* What the ranks counted in an attempt that is over. */
static void add_up(struct chaos_job *job)
{
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        const struct chaos_rank *rank = &job->board->ranks[r];
        job->samples_in += atomic_load(&rank->attempt.samples_in);
        job->samples_out += atomic_load(&rank->attempt.samples_out);
        job->corrupt += atomic_load(&rank->attempt.corrupt);
        job->strays += atomic_load(&rank->attempt.strays);
        job->step_errors += atomic_load(&rank->attempt.step_errors);
    }
    /* Steps that an abort cut off: what came of them does not count, they are loaded again. */
    for (uint64_t step = job->checked; step < job->checked + CHAOS_WINDOW; step++)
        for (uint32_t r = 0; r < job->n_ranks; r++)
            for (uint32_t i = 0; i < CHAOS_SAMPLES; i++)
                job->dropped_abort += atomic_exchange(&job->board->came[step % CHAOS_WINDOW][r][i], 0);
}

/* ----------------------------------------------------------------------------------------------------- ends of ranks
 */

/* "rank 1" of a text that says "rank 12" is another one. */
static bool names_rank(const char *text, uint32_t rank)
{
    char name[32];
    const int n = snprintf(name, sizeof name, "rank %u", rank);

    while ((text = strstr(text, name)) && text[n] >= '0' && text[n] <= '9')
        text += n;
    return text;
}

static bool names_cause(const struct chaos_job *job, const char *text)
{
    char host[32];

    snprintf(host, sizeof host, "host%u", job->due_host);
    if (strstr(text, host))
        return true;
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        const bool is_cause = job->due == DUE_KILLED_RANK ? r == job->due_rank : r / job->ranks_a_host == job->due_host;
        if (is_cause && names_rank(text, r))
            return true;
    }
    return false;
}

/* A trainer has ended. 0: that was due, or is the end. */
static int judge_end(struct chaos_job *job, uint32_t r, int status)
{
    const struct chaos_rank *rank = &job->board->ranks[r];
    const uint64_t error_ms = atomic_load(&rank->attempt.error_ms);
    const bool dead = job->due == DUE_KILLED_RANK     ? r == job->due_rank
                      : job->due == DUE_VANISHED_HOST ? r / job->ranks_a_host == job->due_host
                                                      : false;

    job->pids[r] = 0;
    if (atomic_load(&rank->attempt.complained))
        fprintf(stderr, "chaos: %s\n", rank->attempt.complaint);
    if (dead || (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !atomic_load(&rank->attempt.complained)))
        return 0;
    if (job->due != DUE_NOTHING && WIFEXITED(status) && WEXITSTATUS(status) == CHAOS_EXIT_ABORTED) {
        if (error_ms > job->due_ms && error_ms - job->due_ms > job->named_ms_max && job->due_clean)
            job->named_ms_max = error_ms - job->due_ms;
        if (!names_cause(job, rank->attempt.error)) {
            job->not_named += job->due_clean;
            job->second_hand += !job->due_clean;
            fprintf(stderr, "chaos: rank %u does not name the cause (rank %u on host %u): %s\n", r, job->due_rank,
                    job->due_host, rank->attempt.error);
        }
        return 0;
    }
    job->undue++;
    fprintf(stderr, "chaos: rank %u ended with %s %d at step %llu, which no fault explains: %s\n", r,
            WIFEXITED(status) ? "status" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
            (unsigned long long)atomic_load(&rank->attempt.done), rank->attempt.error);
    return -1;
}

static int reap(struct chaos_job *job, uint32_t *ret_alive)
{
    int rc = 0;

    *ret_alive = 0;
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        int status;
        if (job->pids[r] > 0 && waitpid(job->pids[r], &status, WNOHANG) == job->pids[r] &&
            judge_end(job, r, status) < 0)
            rc = -1;
        *ret_alive += job->pids[r] > 0;
    }
    return rc;
}

static int look_at_daemons(struct chaos_job *job)
{
    for (uint32_t h = 0; h < job->net->n_hosts; h++) {
        struct chaos_host *host = &job->net->hosts[h];
        int status;
        if (host->daemon <= 0 || waitpid(host->daemon, &status, WNOHANG) != host->daemon)
            continue;
        fprintf(stderr, "chaos: the daemon of host %u died by itself (status %d): see %s\n", h, status, host->log);
        host->daemon = 0;
        job->undue++;
        return -1;
    }
    return 0;
}

static int stands_still(struct chaos_job *job, const char *what)
{
    fprintf(stderr, "chaos: %s (step %llu)\n", what, (unsigned long long)job_slowest(job));
    for (uint32_t r = 0; r < job->n_ranks; r++)
        fprintf(stderr, "chaos:   rank %u: pid %d, step %llu %s\n", r, (int)job->pids[r],
                (unsigned long long)atomic_load(&job->board->ranks[r].attempt.done),
                job->board->ranks[r].attempt.error);
    for (uint32_t h = 0; h < job->net->n_hosts; h++)
        hosts_show_status(job->net, h);
    job->undue++;
    return -1;
}

int job_look(struct chaos_job *job)
{
    uint32_t n_alive;
    const int rc = reap(job, &n_alive);
    uint64_t now_ms;

    judge(job);
    now_ms = chaos_now_ms();
    if (rc < 0 || look_at_daemons(job) < 0)
        return -1;
    if (job->due == DUE_NOTHING || n_alive > 0) {
        if (job->due != DUE_NOTHING && now_ms - job->due_ms > DUE_MS)
            return stands_still(job, "ranks did not end although one is dead");
        if (n_alive > 0 && now_ms - job->progress_ms > HUNG_MS)
            return stands_still(job, "no step is finished any more");
        return 0;
    }
    if (job->host_away)
        return 0;
    add_up(job);
    job->due = DUE_NOTHING;
    job->attempt++;
    job->first_step = job->checked;
    return job_start(job);
}

int job_finish(struct chaos_job *job)
{
    judge(job);
    add_up(job);
    if (job->attempts == 1 && job->samples_in != job->samples_out + job->dropped_bad) {
        fprintf(stderr, "chaos: %llu samples went in, %llu came out and %llu were dropped with their step\n",
                (unsigned long long)job->samples_in, (unsigned long long)job->samples_out,
                (unsigned long long)job->dropped_bad);
        job->strays++;
        return -1;
    }
    return 0;
}
