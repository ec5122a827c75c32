/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of poisectl and of the benchmarks: how they start and end, one place that waits for them and for
 * signals. */
#ifndef POISE_CTL_PROCESS_H
#define POISE_CTL_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "poise.h"

#define PROCESS_PASSED_FD 3
#define PROCESS_NOT_FOUND 127 /* exit statuses of a child that could not become its program, as a shell's */
#define PROCESS_NOT_RUN 126

struct process_start {
    char *const *argv;     /* [0]: a path, or a name that PATH finds */
    int pass_fd;           /* becomes PROCESS_PASSED_FD; -1: none */
    int out_fd, err_fd;    /* its standard output and error; -1: ours */
    bool apart;            /* a process group of its own, without input: Ctrl-C is for us, who end it in order */
    int death_signal;      /* that it gets when we die; 0: none */
    const sigset_t *mask;  /* of blocked signals; NULL: none */
    const char *const *env; /* NAME, VALUE, ..., NULL: set beside ours; value NULL: unset. NULL: only ours */
};

/* fork and exec. The child's pid, or a negative errno. */
pid_t process_start(const struct process_start *start, struct poise_err *err);

/* "was killed by signal 9 (Killed)", "ended with status 1": of a status of waitpid(). Returns text. */
const char *process_how_it_ended(int status, char *text, size_t n_text);

/* The folder of this program, without a slash at its end. */
int process_own_dir(char *ret_dir, size_t n_dir, struct poise_err *err);

/* The last few thousand bytes of a log on stderr: "WHAT ends with:". Nothing where it is empty or not there. */
void process_print_tail(const char *path, const char *what);

uint64_t process_now_ms(void); /* monotonic */

struct process_signals {
    int fd;               /* -1: signals are not watched */
    int caught;           /* the newest that asks for an end; 0: none. The owner may reset it */
    bool by_terminal;     /* it went to the whole foreground group, not to us alone */
    sigset_t before;      /* the mask that children want */
};

/* From now on SIGCHLD, SIGINT, SIGTERM and SIGHUP (unless it is ignored: nohup) come through a descriptor. */
int process_signals_start(struct process_signals *signals, struct poise_err *err);
void process_signals_end(struct process_signals *signals); /* they stay blocked; twice is fine */

/* Waits at most timeout_ms (-1: for ever) for a signal, SIGCHLD too, or for fd (-1: none). 0 on the timeout. */
int process_await(struct process_signals *signals, int fd, int timeout_ms);

/* Ends as the signal would have ended us, for a shell that looks. Returns where it is ignored. */
void process_die_of(int signal_number);

#endif
