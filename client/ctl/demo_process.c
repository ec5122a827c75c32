/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo's processes: one poised for all runs, and for each run a trainer a rank. Whatever ends before it should is
 * named with its reason; then all others are killed, since trainers that wait at the barrier for a dead one would wait
 * for ever.
 */
#include "client/ctl/demo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define PROGRESS_MS 200        /* between two redrawings */
#define STALL_NS 120000000000u /* no rank ends a step for so long: the largest step takes seconds */
#define GRACE_NS 1000000000u   /* for the others to say why they end, when one has */
/* Of a trainer's waits: shorter than STALL_NS, so that its own error, which names what is waited for, comes first. */
#define TRAINER_TIMEOUT_MS "60000"

struct child {
    pid_t pid; /* 0: ended */
    int status;
    bool killed; /* by us */
};

struct watch {              /* of one run */
    struct child *children; /* [n] by rank */
    uint32_t n, n_alive;
    uint64_t failed_ns; /* when the first one failed; 0 */
    uint32_t done;      /* steps of all ranks */
    uint64_t done_ns;   /* when the last of them ended */
};

/* Has poised ended by itself? Then says so. */
static bool poised_gone(struct demo *demo)
{
    struct poise_err err;

    if (!private_gone(&demo->poised, &err))
        return false;
    ctl_fail(demo->command, CTL_FAILED, "%s", err.text);
    private_print_log(&demo->poised);
    return true;
}

int demo_start(struct demo *demo)
{
    char binary[sizeof demo->bin + 16];
    struct poise_err err;
    int rc = process_signals_start(&demo->signals, &err);

    snprintf(binary, sizeof binary, "%s/poised", demo->bin);
    if (rc == 0)
        rc = private_start(&demo->poised, binary, "demo", false, &demo->signals, &err);
    if (rc == 0)
        return CTL_OK;
    if (!demo->signals.caught) {
        ctl_fail(demo->command, CTL_FAILED, "%s", err.text);
        private_print_log(&demo->poised);
    }
    return CTL_FAILED;
}

int demo_stop(struct demo *demo)
{
    struct poise_err err;
    int rc = private_stop(&demo->poised, &demo->signals, &err);

    process_signals_end(&demo->signals);
    return rc == 0 ? CTL_OK : ctl_fail(demo->command, CTL_FAILED, "%s", err.text);
}

/* -------------------------------------------------------------------------------------------------------- trainers */

static int spawn_trainers(struct demo *demo, const struct demo_run *run, int board_fd, struct watch *watch)
{
    char rank[16], ranks[16], steps[16], per_rank[16], micro_batch[16], job[32];
    /* clang-format off */
    char *argv[] = {demo->trainer, "--rank", rank, "--ranks", ranks, "--steps", steps, "--per-rank", per_rank,
                    "--micro-batch", micro_batch, "--job", job, "--socket-dir", demo->poised.dir, "--board", "3",
                    "--timeout-ms", TRAINER_TIMEOUT_MS, "--depth", (char *)run->depth, "--mode", (char *)run->mode,
                    "--algorithm", (char *)run->algorithm, NULL};
    /* clang-format on */
    const struct process_start start = {.argv = argv,
                                        .pass_fd = board_fd,
                                        .out_fd = 2, /* stdout is for the table */
                                        .err_fd = -1,
                                        .apart = true,
                                        .death_signal = SIGKILL};
    struct poise_err err;

    snprintf(ranks, sizeof ranks, "%u", watch->n);
    snprintf(steps, sizeof steps, "%u", run->n_steps);
    snprintf(per_rank, sizeof per_rank, "%llu", (unsigned long long)demo->opt.per_rank);
    snprintf(micro_batch, sizeof micro_batch, "%llu", (unsigned long long)demo->opt.micro_batch);
    snprintf(job, sizeof job, "demo-%u", run->number);
    if (!run->algorithm)
        argv[sizeof argv / sizeof *argv - 3] = NULL;
    for (uint32_t r = 0; r < watch->n; r++) {
        snprintf(rank, sizeof rank, "%u", r);
        pid_t pid = process_start(&start, &err);
        if (pid < 0)
            return ctl_fail(demo->command, CTL_FAILED, "%s", err.text);
        watch->children[r].pid = pid;
        watch->n_alive++;
    }
    return CTL_OK;
}

static void reap(struct watch *watch)
{
    for (uint32_t r = 0; r < watch->n; r++) {
        struct child *child = &watch->children[r];
        if (child->pid <= 0 || waitpid(child->pid, &child->status, WNOHANG) != child->pid)
            continue;
        child->pid = -child->pid; /* kept for messages */
        watch->n_alive--;
        if (child->status != 0 && !watch->failed_ns)
            watch->failed_ns = board_now_ns();
    }
}

static void kill_all(struct watch *watch)
{
    for (uint32_t r = 0; r < watch->n; r++) {
        struct child *child = &watch->children[r];
        if (child->pid <= 0)
            continue;
        child->killed = true;
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, &child->status, 0) < 0 && errno == EINTR)
            continue;
        child->pid = -child->pid;
        watch->n_alive--;
    }
}

static void show_progress(const struct demo *demo, const struct demo_run *run, const struct watch *watch)
{
    if (demo->terminal)
        fprintf(stderr, "\r\033[K%s: step %u of %u", run->title, watch->done / watch->n, run->n_steps);
}

/* Counts what the ranks have done; false if nothing was for too long. */
static bool look_at_board(const struct board *board, struct watch *watch)
{
    uint32_t done = 0;

    for (uint32_t r = 0; r < watch->n; r++)
        done += atomic_load(&board->ranks[r].steps);
    if (done != watch->done) {
        watch->done = done;
        watch->done_ns = board_now_ns();
    }
    return board_now_ns() - watch->done_ns < STALL_NS;
}

/* Until all have ended. CTL_OK does not yet say that they ended well. */
static int watch_trainers(struct demo *demo, const struct demo_run *run, const struct board *board, struct watch *watch)
{
    while (watch->n_alive > 0) {
        process_await(&demo->signals, -1, PROGRESS_MS);
        reap(watch);
        if (demo->signals.caught || poised_gone(demo))
            return CTL_FAILED;
        if (watch->failed_ns && board_now_ns() - watch->failed_ns > GRACE_NS)
            return CTL_OK;
        if (!look_at_board(board, watch))
            return ctl_fail(demo->command, CTL_FAILED, "no trainer has ended a step for %u s, the last was step %u",
                            (unsigned)(STALL_NS / 1000000000u), watch->done / watch->n);
        show_progress(demo, run, watch);
    }
    return CTL_OK;
}

static void print_failure(const struct demo *demo, const struct board *board, const struct watch *watch, uint32_t r)
{
    char text[96];

    ctl_fail(demo->command, CTL_FAILED, "trainer of rank %u (pid %d) %s%s%s", r, -watch->children[r].pid,
             process_how_it_ended(watch->children[r].status, text, sizeof text),
             atomic_load(&board->ranks[r].failed) ? ": " : "",
             atomic_load(&board->ranks[r].failed) ? board->ranks[r].text : "");
}

/* Who was killed by somebody else comes first: the others failed because of it. */
static int name_failures(const struct demo *demo, const struct board *board, const struct watch *watch)
{
    uint32_t n_printed = 0;

    for (uint32_t r = 0; r < watch->n; r++)
        if (WIFSIGNALED(watch->children[r].status) && !watch->children[r].killed && ++n_printed)
            print_failure(demo, board, watch, r);
    for (uint32_t r = 0; r < watch->n && n_printed < 2; r++)
        if (WIFEXITED(watch->children[r].status) && watch->children[r].status != 0 && ++n_printed)
            print_failure(demo, board, watch, r);
    return n_printed > 0 ? CTL_FAILED : CTL_OK;
}

int demo_run(struct demo *demo, const struct demo_run *run, const struct board *board, int board_fd)
{
    const uint64_t begin_ns = board_now_ns();
    struct watch watch = {.n = (uint32_t)demo->opt.ranks, .done_ns = begin_ns};
    int rc;

    watch.children = calloc(watch.n, sizeof *watch.children);
    if (!watch.children)
        return ctl_fail(demo->command, CTL_FAILED, "no memory");
    rc = spawn_trainers(demo, run, board_fd, &watch);
    if (rc == CTL_OK)
        rc = watch_trainers(demo, run, board, &watch);
    kill_all(&watch);
    if (demo->terminal)
        fprintf(stderr, "\r\033[K");
    if (rc == CTL_OK)
        rc = name_failures(demo, board, &watch);
    if (rc == CTL_OK)
        fprintf(stderr, "%s: %u steps in %.1f s\n", run->title, run->n_steps,
                (double)(board_now_ns() - begin_ns) * 1e-9);
    free(watch.children);
    return rc;
}
