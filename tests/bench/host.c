/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and ends what a benchmark measures. All children die with the driver; one that ends early is named with its
 * status, so that nobody waits for it.
 */
#include "tests/bench/host.h"

#include <errno.h>
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

#define TURN_NS 60000000000u /* the slowest takes a second */
#define END_NS 5000000000u   /* closing a handle, ending an MPI job */
#define PRIORITY -20

static int fail(const struct poise_err *err)
{
    fprintf(stderr, "bench: %s\n", err->text);
    return -1;
}

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

/* The pid, or -1 after a message. */
static pid_t spawn(const struct host *host, char *const argv[], bool log)
{
    struct process_start start = {.argv = argv, .pass_fd = -1, .out_fd = -1, .err_fd = -1, .death_signal = SIGKILL};
    struct poise_err err;
    int log_fd = log ? private_open_log(&host->poised, &err) : -1;
    pid_t pid;

    if (log_fd < 0 && log)
        return fail(&err);
    start.out_fd = start.err_fd = log_fd;
    pid = process_start(&start, &err);
    if (log_fd >= 0)
        close(log_fd);
    return pid < 0 ? fail(&err) : pid;
}

int host_spawn(struct host *host, int crew, char *const argv[], bool log)
{
    for (int i = 0; i < HOST_CHILDREN; i++) {
        struct host_child *child = &host->children[i];
        if (child->pid > 0)
            continue;
        child->pid = spawn(host, argv, log);
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

int host_turn(struct host *host, struct bench_board *board, int crew, char ret_why[700])
{
    const uint64_t begin_ns = bench_now_ns();
    char how[100];

    crew_begin(board, crew);
    while (!crew_done(board, crew)) {
        struct host_child *child = reap(host, crew);
        if (child && !board->crews[crew].text[0]) {
            snprintf(ret_why, 700, "a process %s", process_how_it_ended(child->status, how, sizeof how));
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
    struct process_signals none = {.fd = -1};
    char binary[PATH_MAX + 16];
    struct poise_err err;

    host->poised = PRIVATE_POISED_NONE;
    if (process_own_dir(host->bin, sizeof host->bin, &err) < 0)
        return fail(&err);
    snprintf(binary, sizeof binary, "%s/../poised", host->bin);
    if (private_start(&host->poised, binary, "bench", false, &none, &err) == 0)
        return 0;
    fail(&err);
    private_print_log(&host->poised);
    return -1;
}

void host_stop(struct host *host)
{
    struct process_signals none = {.fd = -1};
    struct poise_err err;

    host_dismiss(host, NULL);
    if (private_stop(&host->poised, &none, &err) < 0)
        fail(&err);
}

uint64_t host_poised_cpu_ns(const struct host *host)
{
    struct timespec used = {0};
    clockid_t clock;

    if (clock_getcpuclockid(host->poised.pid, &clock) == 0)
        clock_gettime(clock, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
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
