/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes for tests of the client: see ranks.h. They are forked from the test, which never opens a handle
 * before. */
#include "ranks.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#define PROCESS_SECONDS 100     /* a process that hangs ends itself, and the test with it */
#define POLL_NS         2000000 /* between two looks at a flag of the board */

/* -------------------------------------------------------------------------------------------------------- the board */

struct board *board_new(void)
{
    void *board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(board, MAP_FAILED);
    return board;
}

void board_free(struct board *board)
{
    munmap(board, sizeof *board);
}

void board_raise(struct board *board, uint32_t flag)
{
    atomic_fetch_add(&board->flag[flag], 1);
}

void board_wait(struct board *board, uint32_t flag, uint32_t n)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};

    for (uint64_t waited = 0; atomic_load(&board->flag[flag]) < n; waited += POLL_NS) {
        if (waited > UINT64_C(30000000000)) {
            fprintf(stderr, "flag %u stayed at %u of %u\n", flag, atomic_load(&board->flag[flag]), n);
            abort();
        }
        nanosleep(&pause, NULL);
    }
}

void board_check(const struct board *board, uint64_t step, uint32_t n_ranks,
                 uint32_t (*n_of)(uint64_t step, uint32_t rank))
{
    uint32_t total = 0;

    for (uint32_t r = 0; r < n_ranks; r++) {
        for (uint32_t i = 0; i < RANKS_SAMPLES; i++)
            cr_assert_eq(board->got[step][r][i], i < n_of(step, r), "step %d: sample %u of rank %u came %u times",
                         (int)step, i, r, board->got[step][r][i]);
        total += n_of(step, r);
    }
    if (total == 0)
        return;
    cr_assert_float_eq((double)board->weight_ppb[step], 1e9, 1e3, "step %d: weights add up to %f", (int)step,
                       (double)board->weight_ppb[step] * 1e-9);
    cr_assert_float_eq((double)board->arrival_ppb[step], 1e9, 1e3, "step %d: arrival weights add up to %f", (int)step,
                       (double)board->arrival_ppb[step] * 1e-9);
}

/* -------------------------------------------------------------------------------------------------------- processes */

/* _exit() would skip it. */
static int check_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
    return __lsan_do_recoverable_leak_check();
#else
    return 0;
#endif
}

pid_t rank_start(const struct rank_context *context, int (*run)(const struct rank_context *))
{
    fflush(NULL);
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGALRM, SIG_DFL);
    alarm(PROCESS_SECONDS);
    int status = run(context);
    _exit(check_leaks() ? 23 : status);
}

int rank_wait(pid_t pid)
{
    int status;

    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void ranks_run(uint32_t n, const char *dir, struct board *board, int (*run)(const struct rank_context *),
               const void *arg)
{
    pid_t pid[RANKS_MAX];

    for (uint32_t r = 0; r < n; r++) {
        struct rank_context context = {.rank = r, .n_ranks = n, .dir = dir, .board = board, .arg = arg};
        pid[r] = rank_start(&context, run);
    }
    int bad = 0;
    for (uint32_t r = 0; r < n; r++) {
        int status = rank_wait(pid[r]);
        if (status)
            fprintf(stderr, "rank %u ended with %d\n", r, status);
        bad += status != 0;
    }
    cr_assert_eq(bad, 0, "%d of %u processes failed", bad, n);
}

static const struct poise_phase phases[2] = {{.name = "vision", .linear = 10, .passes = 3},
                                             {.name = "text", .linear = 4, .quadratic = 1, .passes = 3}};

struct poise_options rank_options(const struct rank_context *context, const char *job)
{
    return (struct poise_options){.size = sizeof(struct poise_options),
                                  .job = job,
                                  .rank = context->rank,
                                  .n_ranks = context->n_ranks,
                                  .replica = context->replica,
                                  .socket_dir = context->dir,
                                  .phases = phases,
                                  .phase_size = sizeof *phases,
                                  .n_phases = 2,
                                  .count = POISE_COUNT_FREE,
                                  .micro_batch_size = 2,
                                  .memory_budget = 32 << 20,
                                  .open_timeout_ms = 20000,
                                  .peer_timeout_ms = 20000,
                                  .close_timeout_ms = 20000};
}

struct poise *rank_open(const struct poise_options *opt)
{
    struct poise_err err = {0};
    struct poise *p = NULL;
    int rc = poise_open(opt, &p, &err);

    EXPECT(rc == 0, "rank %u: %d %s", opt->rank, rc, err.text);
    return p;
}

void rank_close(struct poise *p)
{
    struct poise_err err = {0};
    int rc = poise_close(p, &err);

    EXPECT(rc == 0, "close: %d %s", rc, err.text);
}
