/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and ends what a benchmark measures. All children die with the driver; one that ends early is named with its
 * status, so that nobody waits for it.
 */
#include "tests/bench/host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/csv.h"
#include "client/ctl/sizes.h"

#define READY_MS 20000
#define READY_FD 3
#define TURN_NS 60000000000u /* the slowest takes a second */
#define END_NS 5000000000u   /* closing a handle, ending an MPI job */
#define LOG_TAIL 2000
#define PRIORITY -20

double quantile(double *values, uint32_t n, double q)
{
    for (uint32_t i = 1; i < n; i++) /* few, and mostly sorted already when asked again */
        for (uint32_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
            double x = values[j];
            values[j] = values[j - 1];
            values[j - 1] = x;
        }
    double at = q * (n - 1);
    uint32_t low = (uint32_t)at, high = low + 1 < n ? low + 1 : low;
    return n ? values[low] + (values[high] - values[low]) * (at - low) : 0;
}

/* -------------------------------------------------------------------------------------------------------- processes */

static _Noreturn void become(char *const argv[], pid_t parent, int log_fd, int ready_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    if (log_fd >= 0) {
        dup2(log_fd, 1);
        dup2(log_fd, 2);
    }
    if (ready_fd >= 0)
        dup2(ready_fd, READY_FD);
    execvp(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int open_log(const struct host *host)
{
    char path[sizeof host->dir + 16];

    snprintf(path, sizeof path, "%s/log", host->dir);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static pid_t spawn(const struct host *host, char *const argv[], bool log, int ready_fd)
{
    const pid_t parent = getpid();
    int log_fd = log ? open_log(host) : -1;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        become(argv, parent, log_fd, ready_fd);
    if (log_fd >= 0)
        close(log_fd);
    return pid;
}

int host_spawn(struct host *host, int crew, char *const argv[], bool log)
{
    for (int i = 0; i < HOST_CHILDREN; i++) {
        struct host_child *child = &host->children[i];
        if (child->pid > 0)
            continue;
        child->pid = spawn(host, argv, log, -1);
        child->crew = crew;
        return child->pid > 0 ? 0 : -1;
    }
    return -1;
}

/* The first child of that crew (-1: any) that ended, or NULL. */
static struct host_child *reap(struct host *host, int crew)
{
    for (int i = 0; i < HOST_CHILDREN; i++) {
        struct host_child *child = &host->children[i];
        if (child->pid > 0 && (crew < 0 || child->crew == crew) &&
            waitpid(child->pid, &child->status, WNOHANG) == child->pid) {
            child->pid = 0;
            return child;
        }
    }
    return NULL;
}

static void describe(int status, char *text, size_t n)
{
    if (WIFSIGNALED(status))
        snprintf(text, n, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, n, "ended with status %d", WEXITSTATUS(status));
}

int host_turn(struct host *host, struct bench_board *board, int crew, char ret_why[700])
{
    const uint64_t begin_ns = bench_now_ns();
    char how[100];

    crew_begin(board, crew);
    while (!crew_done(board, crew)) {
        struct host_child *child = reap(host, crew);
        if (child && !board->crews[crew].text[0]) {
            describe(child->status, how, sizeof how);
            snprintf(ret_why, 700, "a process %s", how);
            return -1;
        }
        if (bench_now_ns() - begin_ns > TURN_NS) {
            snprintf(ret_why, 700, "a turn took more than %u s", (unsigned)(TURN_NS / 1000000000u));
            return -1;
        }
    }
    if (!atomic_load(&board->crews[crew].failed))
        return 0;
    snprintf(ret_why, 700, "%s", board->crews[crew].text);
    return -1;
}

static uint32_t n_alive(const struct host *host)
{
    uint32_t n = 0;

    for (int i = 0; i < HOST_CHILDREN; i++)
        n += host->children[i].pid > 0;
    return n;
}

void host_dismiss(struct host *host, struct bench_board *board)
{
    const uint64_t begin_ns = bench_now_ns();
    const struct timespec pause = {.tv_nsec = 5000000};

    for (int crew = 0; board && crew < N_CREWS; crew++)
        crew_dismiss(board, crew);
    while (n_alive(host) > 0) {
        if (reap(host, -1))
            continue;
        for (int i = 0; (!board || bench_now_ns() - begin_ns > END_NS) && i < HOST_CHILDREN; i++)
            if (host->children[i].pid > 0)
                kill(host->children[i].pid, SIGKILL);
        nanosleep(&pause, NULL);
    }
}

/* ----------------------------------------------------------------------------------------------------------- poised */

static int await_ready(struct host *host, int ready_fd)
{
    struct pollfd ready = {.fd = ready_fd, .events = POLLIN};
    char byte;

    if (poll(&ready, 1, READY_MS) == 1 && read(ready_fd, &byte, 1) == 1)
        return 0;
    fprintf(stderr, "bench: poised does not become ready\n");
    host_print_log(host);
    return -1;
}

static int start_poised(struct host *host)
{
    char binary[PATH_MAX + 16], fd[8];
    char *argv[] = {binary, "--socket-dir", host->dir, "--ready-fd", fd, NULL};
    int fds[2], rc;

    snprintf(binary, sizeof binary, "%s/../poised", host->bin);
    snprintf(fd, sizeof fd, "%d", READY_FD);
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    if (fds[1] == READY_FD) /* dup2 onto itself would leave it to be closed */
        fcntl(fds[1], F_SETFD, 0);
    host->poised = spawn(host, argv, true, fds[1]);
    close(fds[1]);
    rc = host->poised > 0 ? await_ready(host, fds[0]) : -1;
    close(fds[0]);
    return rc;
}

/*
 * Who else runs on the machine shall wait, as far as one may ask (root), and all that is measured shall count as one
 * group to the scheduler: it shares processors between sessions first.
 */
static void come_first(void)
{
    FILE *group;

    setsid();
    setpriority(PRIO_PROCESS, 0, PRIORITY);
    group = fopen("/proc/self/autogroup", "we");
    if (group) {
        fprintf(group, "%d", PRIORITY);
        fclose(group);
    }
}

void host_apart(void)
{
    pid_t parent = getpid(), pid = fork();
    int status;

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        come_first();
    }
    if (pid <= 0) /* without: noisier */
        return;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

int host_start(struct host *host)
{
    const char *tmp = getenv("TMPDIR");
    ssize_t n = readlink("/proc/self/exe", host->bin, sizeof host->bin - 1);

    if (n <= 0)
        return -1;
    host->bin[n] = 0;
    *strrchr(host->bin, '/') = 0;
    /* The path of a unix socket has about 100 bytes. */
    snprintf(host->dir, sizeof host->dir, "%s/poise-bench-XXXXXX", tmp && *tmp && strlen(tmp) < 60 ? tmp : "/tmp");
    if (!mkdtemp(host->dir)) {
        fprintf(stderr, "bench: %s: %s\n", host->dir, strerror(errno));
        host->dir[0] = 0;
        return -1;
    }
    return start_poised(host);
}

static void remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(path);
}

void host_stop(struct host *host)
{
    const uint64_t begin_ns = bench_now_ns();
    const struct timespec pause = {.tv_nsec = 5000000};

    host_dismiss(host, NULL);
    if (host->poised > 0)
        kill(host->poised, SIGTERM);
    while (host->poised > 0 && waitpid(host->poised, NULL, WNOHANG) == 0) {
        if (bench_now_ns() - begin_ns > END_NS)
            kill(host->poised, SIGKILL);
        nanosleep(&pause, NULL);
    }
    host->poised = 0;
    if (host->dir[0])
        remove_dir(host->dir);
}

uint64_t host_poised_cpu_ns(const struct host *host)
{
    struct timespec used = {0};
    clockid_t clock;

    if (clock_getcpuclockid(host->poised, &clock) == 0)
        clock_gettime(clock, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

void host_print_log(const struct host *host)
{
    char path[sizeof host->dir + 16], text[LOG_TAIL + 1];
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "%s/log", host->dir);
    file = fopen(path, "re");
    if (!file)
        return;
    if (fseek(file, -LOG_TAIL, SEEK_END) < 0)
        rewind(file);
    n = fread(text, 1, LOG_TAIL, file);
    fclose(file);
    if (n)
        fprintf(stderr, "the log ends with:\n%.*s\n", (int)n, text);
}

/* ------------------------------------------------------------------------------------------------------------ sizes */

static bool number(const struct csv *csv, int column, double *ret_number)
{
    return column >= 0 && !csv_number(csv->field[column], 1e6, ret_number);
}

/* Reservoir sampling with a fixed generator: any n rows of the whole file, the same ones every time. */
uint32_t host_read_sizes(const char *path, struct payload_size *ret_sizes, uint32_t n)
{
    uint64_t seen = 0, state = 1;
    struct poise_err err;
    struct csv csv = {0};

    if (csv_open(path, &csv, &err) < 0) {
        fprintf(stderr, "bench: %s\n", err.text);
        return 0;
    }
    const int w = csv_find(&csv, "width"), h = csv_find(&csv, "height"), p = csv_find(&csv, "prompt_tokens"),
              a = csv_find(&csv, "answer_tokens");
    while (csv_next(&csv, &err) > 0) {
        double width, height, prompt, answer;
        struct sizes_image image;
        uint64_t at = seen;

        if (csv.problem[0] || !number(&csv, w, &width) || !number(&csv, h, &height) || !number(&csv, p, &prompt) ||
            !number(&csv, a, &answer) || sizes_image((uint32_t)width, (uint32_t)height, SIZES_Q1280, &image) < 0)
            continue;
        if (seen++ >= n) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            at = (state >> 20) % seen;
        }
        if (at < n)
            ret_sizes[at] = (struct payload_size){image.grid_h, image.grid_w,
                                                  (uint32_t)(prompt + (double)image.tokens + SIZES_IMAGE_MARKERS),
                                                  (uint32_t)answer, 64};
    }
    csv_close(&csv);
    return (uint32_t)(seen < n ? seen : n);
}
