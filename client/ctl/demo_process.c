/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo's processes: one poised for all runs, and for each run a trainer a rank. Whatever ends before it should is
 * named with its reason; then all others are killed, since trainers that wait at the barrier for a dead one would wait
 * for ever. Signals come through one descriptor, so there is one place that waits, and no handler.
 */
#include "client/ctl/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 10000         /* poised binds a few sockets: far less, also under sanitizers */
#define PROGRESS_MS 200        /* between two redrawings */
#define STALL_NS 120000000000u /* no rank ends a step for so long: the largest step takes seconds */
#define GRACE_NS 1000000000u   /* for the others to say why they end, when one has */
#define STOP_MS 3000           /* for poised to end in order */
#define LOG_TAIL 2000          /* bytes of poised's log that an error shows */
#define PASSED_FD 3
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

/* ----------------------------------------------------------------------------------------------------- one process */

static _Noreturn void become(char *const argv[], pid_t parent, int pass_fd, int log_fd)
{
    sigset_t none;

    setpgid(0, 0); /* Ctrl-C is for poisectl, which ends the others in order */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    dup2(open("/dev/null", O_RDONLY), 0);
    if (log_fd >= 0)
        dup2(log_fd, 2);
    dup2(2, 1); /* stdout is for the table */
    if (pass_fd == PASSED_FD)
        fcntl(PASSED_FD, F_SETFD, 0);
    else
        dup2(pass_fd, PASSED_FD);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

pid_t demo_spawn(struct demo *demo, char *const argv[], int pass_fd, int log_fd)
{
    const pid_t parent = getpid();
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        become(argv, parent, pass_fd, log_fd);
    if (pid < 0)
        ctl_fail(demo->command, CTL_FAILED, "%s cannot be started: %s", argv[0], strerror(errno));
    return pid;
}

/* Waits at most timeout_ms for a signal (-1: for ever) or for fd. Notes one that ends the demo. 0 on the timeout. */
static int await(struct demo *demo, int fd, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = demo->signal_fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    struct signalfd_siginfo info;
    int n = poll(fds, fd < 0 ? 1 : 2, timeout_ms);

    if (n > 0 && fds[0].revents && read(demo->signal_fd, &info, sizeof info) == sizeof info &&
        info.ssi_signo != SIGCHLD)
        demo->caught = (int)info.ssi_signo;
    return n;
}

static const char *how_it_ended(int status, char *text, size_t n_text)
{
    if (WIFSIGNALED(status))
        snprintf(text, n_text, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, n_text, "ended with status %d", WEXITSTATUS(status));
    return text;
}

/* ---------------------------------------------------------------------------------------------------------- poised */

static void print_log(const struct demo *demo)
{
    char path[sizeof demo->dir + 16], text[LOG_TAIL + 1];
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "%s/poised.log", demo->dir);
    file = fopen(path, "re");
    if (!file)
        return;
    if (fseek(file, -LOG_TAIL, SEEK_END) < 0)
        rewind(file);
    n = fread(text, 1, LOG_TAIL, file);
    fclose(file);
    if (n > 0)
        fprintf(stderr, "poised's log ends with:\n%.*s%s", (int)n, text, text[n - 1] == '\n' ? "" : "\n");
}

/* Has poised ended by itself? Then says so. */
static bool poised_gone(struct demo *demo)
{
    char text[96];
    int status;

    if (demo->poised <= 0 || waitpid(demo->poised, &status, WNOHANG) != demo->poised)
        return false;
    ctl_fail(demo->command, CTL_FAILED, "poised (pid %d) %s", demo->poised, how_it_ended(status, text, sizeof text));
    demo->poised = 0;
    print_log(demo);
    return true;
}

static int await_ready(struct demo *demo, int ready_fd)
{
    const uint64_t begin_ns = board_now_ns();
    char byte;

    for (;;) {
        const uint64_t ms = (board_now_ns() - begin_ns) / 1000000;
        struct pollfd ready = {.fd = ready_fd, .events = POLLIN};
        if (demo->caught)
            return CTL_FAILED;
        if (poll(&ready, 1, 0) > 0 && read(ready_fd, &byte, 1) == 1)
            return CTL_OK;
        if (poised_gone(demo))
            return CTL_FAILED;
        if (ms >= READY_MS) {
            print_log(demo);
            return ctl_fail(demo->command, CTL_FAILED, "poised is not ready after %d s", READY_MS / 1000);
        }
        await(demo, ready.revents & POLLHUP ? -1 : ready_fd, (int)(READY_MS - ms));
    }
}

static int start_poised(struct demo *demo)
{
    char binary[sizeof demo->bin + 16], log[sizeof demo->dir + 16];
    char *argv[] = {binary, "--socket-dir", demo->dir, "--ready-fd", "3", NULL};
    int fds[2], log_fd, rc;

    snprintf(binary, sizeof binary, "%s/poised", demo->bin);
    snprintf(log, sizeof log, "%s/poised.log", demo->dir);
    log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return ctl_fail(demo->command, CTL_FAILED, "%s: %s", log, strerror(errno));
    if (pipe2(fds, O_CLOEXEC) < 0) {
        close(log_fd);
        return ctl_fail(demo->command, CTL_FAILED, "no pipe: %s", strerror(errno));
    }
    demo->poised = demo_spawn(demo, argv, fds[1], log_fd);
    close(fds[1]);
    close(log_fd);
    rc = demo->poised < 0 ? CTL_FAILED : await_ready(demo, fds[0]);
    close(fds[0]);
    return rc;
}

int demo_start(struct demo *demo)
{
    sigset_t set;
    int rc = demo_guard_start(demo);

    if (rc != CTL_OK)
        return rc;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (signal(SIGHUP, SIG_DFL) == SIG_IGN) /* nohup: stay so */
        signal(SIGHUP, SIG_IGN);
    else
        sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    demo->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (demo->signal_fd < 0)
        return ctl_fail(demo->command, CTL_FAILED, "no signalfd: %s", strerror(errno));
    return start_poised(demo);
}

int demo_stop(struct demo *demo)
{
    const uint64_t begin_ns = board_now_ns();
    int status = 0, rc = CTL_OK;
    char text[96];

    if (demo->poised > 0) {
        kill(demo->poised, SIGTERM);
        while (waitpid(demo->poised, &status, WNOHANG) == 0) {
            if ((board_now_ns() - begin_ns) / 1000000 >= STOP_MS)
                kill(demo->poised, SIGKILL);
            await(demo, -1, 100);
        }
        if (status != 0)
            rc = ctl_fail(demo->command, CTL_FAILED, "poised (pid %d) %s when told to end", demo->poised,
                          how_it_ended(status, text, sizeof text));
        if (status != 0)
            print_log(demo);
        demo->poised = 0;
    }
    if (demo->signal_fd >= 0)
        close(demo->signal_fd);
    demo->signal_fd = -1;
    demo_guard_end(demo);
    return rc;
}

/* -------------------------------------------------------------------------------------------------------- trainers */

static int spawn_trainers(struct demo *demo, const struct demo_run *run, int board_fd, struct watch *watch)
{
    char rank[16], ranks[16], steps[16], per_rank[16], micro_batch[16], job[32];
    /* clang-format off */
    char *argv[] = {demo->trainer, "--rank", rank, "--ranks", ranks, "--steps", steps, "--per-rank", per_rank,
                    "--micro-batch", micro_batch, "--job", job, "--socket-dir", demo->dir, "--board", "3",
                    "--timeout-ms", TRAINER_TIMEOUT_MS, "--depth", (char *)run->depth, "--mode", (char *)run->mode,
                    "--algorithm", (char *)run->algorithm, NULL};
    /* clang-format on */

    snprintf(ranks, sizeof ranks, "%u", watch->n);
    snprintf(steps, sizeof steps, "%u", run->n_steps);
    snprintf(per_rank, sizeof per_rank, "%llu", (unsigned long long)demo->opt.per_rank);
    snprintf(micro_batch, sizeof micro_batch, "%llu", (unsigned long long)demo->opt.micro_batch);
    snprintf(job, sizeof job, "demo-%u", run->number);
    if (!run->algorithm)
        argv[sizeof argv / sizeof *argv - 3] = NULL;
    for (uint32_t r = 0; r < watch->n; r++) {
        snprintf(rank, sizeof rank, "%u", r);
        watch->children[r].pid = demo_spawn(demo, argv, board_fd, -1);
        if (watch->children[r].pid < 0) {
            watch->children[r].pid = 0;
            return CTL_FAILED;
        }
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
        await(demo, -1, PROGRESS_MS);
        reap(watch);
        if (demo->caught || poised_gone(demo))
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
             how_it_ended(watch->children[r].status, text, sizeof text),
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
