/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children die with us (PR_SET_PDEATHSIG, and a look at the parent for one that died before), and signals come through
 * one descriptor: so there is one place that waits, no handler, and nothing is left behind.
 */
#include "client/ctl/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/planner/err.h"

#define LOG_TAIL 2000 /* bytes: the end of a log says why, all of it would hide what the error says */

static void set_environment(const char *const *env)
{
    for (; env && env[0]; env += 2) {
        if (env[1])
            setenv(env[0], env[1], 1);
        else
            unsetenv(env[0]);
    }
}

static void set_descriptors(const struct process_start *start)
{
    if (start->apart)
        dup2(open("/dev/null", O_RDONLY), 0);
    if (start->err_fd >= 0)
        dup2(start->err_fd, 2);
    if (start->out_fd >= 0)
        dup2(start->out_fd, 1);
    if (start->pass_fd == PROCESS_PASSED_FD) /* dup2 onto itself would leave it to be closed */
        fcntl(PROCESS_PASSED_FD, F_SETFD, 0);
    else if (start->pass_fd >= 0)
        dup2(start->pass_fd, PROCESS_PASSED_FD);
}

static _Noreturn void become(const struct process_start *start, pid_t parent)
{
    sigset_t none;

    if (start->apart)
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, start->death_signal);
    if (start->death_signal && getppid() != parent)
        _exit(PROCESS_NOT_FOUND);
    set_environment(start->env);
    set_descriptors(start);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, start->mask ? start->mask : &none, NULL);
    execvp(start->argv[0], start->argv);
    fprintf(stderr, "%s: %s\n", start->argv[0], strerror(errno));
    _exit(errno == ENOENT ? PROCESS_NOT_FOUND : PROCESS_NOT_RUN);
}

pid_t process_start(const struct process_start *start, struct poise_err *err)
{
    const pid_t parent = getpid();
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        become(start, parent);
    return pid > 0 ? pid : err_set(err, -errno, "%s cannot be started: %s", start->argv[0], strerror(errno));
}

const char *process_how_it_ended(int status, char *text, size_t n_text)
{
    if (WIFSIGNALED(status))
        snprintf(text, n_text, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, n_text, "ended with status %d", WEXITSTATUS(status));
    return text;
}

int process_own_dir(char *ret_dir, size_t n_dir, struct poise_err *err)
{
    ssize_t n = readlink("/proc/self/exe", ret_dir, n_dir);

    if (n <= 0)
        return err_set(err, -errno, "/proc/self/exe: %s", strerror(errno));
    if ((size_t)n >= n_dir)
        return err_set(err, -ENAMETOOLONG, "/proc/self/exe: its name has more than %zu bytes", n_dir - 1);
    ret_dir[n] = 0;
    *strrchr(ret_dir, '/') = 0;
    return 0;
}

void process_print_tail(const char *path, const char *what)
{
    char text[LOG_TAIL + 1];
    FILE *file = fopen(path, "re");
    size_t n;

    if (!file)
        return;
    if (fseek(file, -LOG_TAIL, SEEK_END) < 0)
        rewind(file);
    n = fread(text, 1, LOG_TAIL, file);
    fclose(file);
    if (n > 0)
        fprintf(stderr, "%s ends with:\n%.*s%s", what, (int)n, text, text[n - 1] == '\n' ? "" : "\n");
}

uint64_t process_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

int process_signals_start(struct process_signals *signals, struct poise_err *err)
{
    sigset_t set;

    *signals = (struct process_signals){.fd = -1};
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (signal(SIGHUP, SIG_DFL) == SIG_IGN)
        signal(SIGHUP, SIG_IGN);
    else
        sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, &signals->before);
    signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return signals->fd < 0 ? err_set(err, -errno, "no signalfd: %s", strerror(errno)) : 0;
}

void process_signals_end(struct process_signals *signals)
{
    if (signals->fd >= 0)
        close(signals->fd);
    signals->fd = -1;
}

int process_await(struct process_signals *signals, int fd, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = signals->fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    struct signalfd_siginfo info;
    int n = poll(fds, 2, timeout_ms); /* without those below 0 */

    if (n > 0 && fds[0].revents && read(signals->fd, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD) {
        signals->caught = (int)info.ssi_signo;
        signals->by_terminal = info.ssi_code == SI_KERNEL;
    }
    return n;
}

void process_die_of(int signal_number)
{
    sigset_t set;

    signal(signal_number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    raise(signal_number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}
