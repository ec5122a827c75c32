/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mark is a mapped file, so that writing it costs a few stores a step and the kernel keeps it when the process dies. A
 * fatal signal during a plan is the plan's fault (also the watchdog's SIGABRT, where a plan does not end); SIGKILL in the same
 * moment is mostly chance: an operator, the OOM killer. That input is tried again, and counts only when the same step was
 * being planned at the second death too. So the page has the step at hand, which signal came, and the steps that killed.
 *
 * The handler of fatal signals only notes the signal and puts back what was there before, so that core files, sanitizers and
 * exit statuses are as without it.
 */
#include "daemon/shell/mark.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/planner/planner.h"
#include "daemon/shell/log.h"

#define MAGIC 0x314b524d45534f50u /* "POSEMRK1": another format gets another one */
#define N_PAST 16u                /* as many as the coordinator remembers for ever */
#define TRIES 2u                  /* deaths without a signal of their own until a step counts as their cause */

struct past {
    struct coordinator_mark what;
    uint32_t deaths, signal;
    char build[48];
};

struct mark_page {
    uint64_t magic;
    struct coordinator_mark now;
    volatile sig_atomic_t signal; /* that ended the process; 0: none was seen */
    char build[48];               /* of the process that wrote this */
    uint32_t n_past;              /* of all times: a ring */
    struct past past[N_PAST];
};

static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
#define N_FATAL (sizeof fatal / sizeof *fatal)
static struct sigaction before[N_FATAL];
static struct mark_page *watched;

static void on_fatal(int number)
{
    for (size_t i = 0; i < N_FATAL; i++)
        if (fatal[i] == number)
            sigaction(number, &before[i], NULL);
    if (watched)
        watched->signal = number;
    /* Returning runs the faulting instruction again, now with the old handler. A signal that was sent must be sent on. */
    raise(number);
}

static void watch_signals(struct mark_page *page)
{
    static uint64_t stack[8192]; /* a plan may have run out of stack */
    stack_t old, own = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_fatal, .sa_flags = SA_ONSTACK};
    watched = page;
    if (sigaltstack(NULL, &old) == 0 && (old.ss_flags & SS_DISABLE))
        sigaltstack(&own, NULL);
    for (size_t i = 0; i < N_FATAL; i++)
        sigaction(fatal[i], &action, &before[i]);
}

static void forget_signals(void)
{
    for (size_t i = 0; watched && i < N_FATAL; i++)
        sigaction(fatal[i], &before[i], NULL);
    watched = NULL;
}

/* The daemon before this one died while it planned. */
static void note_death(struct mark_page *page)
{
    struct past *past = NULL;
    for (uint32_t i = 0; i < N_PAST && !past; i++)
        if (page->past[i].what.check && memcmp(&page->past[i].what, &page->now, sizeof page->now) == 0)
            past = &page->past[i];
    if (!past) {
        past = &page->past[page->n_past++ % N_PAST];
        *past = (struct past){.what = page->now};
    }
    past->deaths++;
    if (page->signal)
        past->signal = (uint32_t)page->signal;
    memcpy(past->build, page->build, sizeof past->build);
    past->build[sizeof past->build - 1] = 0;
    log_line(LOG_LINE_WARNING, "the poised before this one died (%u. time) while it planned step %llu%s", past->deaths,
             (unsigned long long)past->what.step, past->signal || past->deaths >= TRIES ? "" : ": it is tried once more");
}

static struct mark_page *map_page(const char *path)
{
    struct mark_page *page = MAP_FAILED;
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return NULL;
    /* Its blocks are made now: a full disk would be SIGBUS at the first store. */
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ftruncate(fd, sizeof *page) == 0 &&
        (errno = posix_fallocate(fd, 0, sizeof *page)) == 0)
        page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? NULL : page;
}

void mark_open(struct mark *mark, const char *dir)
{
    snprintf(mark->path, sizeof mark->path, "%s/poised.mark", dir);
    struct mark_page *page = map_page(mark->path);
    mark->page = page;
    if (!page) {
        log_line(LOG_LINE_WARNING, "%s: %s: an input that kills the planner will not be known", mark->path, strerror(errno));
        return;
    }
    if (page->magic != MAGIC)
        memset(page, 0, sizeof *page);
    page->magic = MAGIC;
    if (page->now.check && page->now.check == coordinator_mark_check(&page->now))
        note_death(page);
    page->now.check = 0;
    page->signal = 0;
    snprintf(page->build, sizeof page->build, "poised %s, planner %u", POISE_VERSION, PLANNER_VERSION);
    watch_signals(page);
}

struct coordinator_mark *mark_memory(const struct mark *mark)
{
    return mark->page ? &mark->page->now : NULL;
}

bool mark_poison(const struct mark *mark, uint32_t i, const char *node_name, struct coordinator_mark *ret_what,
                 char *ret_who, size_t n_who)
{
    for (uint32_t at = 0; mark->page && at < N_PAST; at++) {
        const struct past *past = &mark->page->past[at];
        char cause[32] = "no signal of its own";
        if (past->what.check != coordinator_mark_check(&past->what) || (!past->signal && past->deaths < TRIES) || i-- > 0)
            continue;
        if (past->signal)
            snprintf(cause, sizeof cause, "signal %u", past->signal);
        snprintf(ret_who, n_who, "of node %s (%s; %.47s)", node_name, cause, past->build);
        *ret_what = past->what;
        return true;
    }
    return false;
}

void mark_close(struct mark *mark)
{
    if (!mark->page)
        return;
    forget_signals();
    unlink(mark->path);
    munmap(mark->page, sizeof *mark->page);
    mark->page = NULL;
}
