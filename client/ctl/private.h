/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A private poised in a private folder: for the demo, for a command, for a benchmark. However its owner ends, kill -9
 * included, poised dies and the folder goes.
 */
#ifndef POISE_CTL_PRIVATE_H
#define POISE_CTL_PRIVATE_H

#include "client/ctl/process.h"

struct private_poised {
    char dir[80]; /* its sockets, its log, and whatever the owner puts there; "": not made */
    pid_t pid;    /* 0: none, or it has ended */
    pid_t guard;
    int guard_fd;
};
#define PRIVATE_POISED_NONE ((struct private_poised){.guard_fd = -1})

/*
 * The folder $TMPDIR/poise-NAME-XXXXXX, and poised in it, ready. With log_to_stderr its log goes there, else to a file
 * of the folder. private_stop() in any case. Errors: -EINTR a signal that asks for an end came (signals->caught), else
 * what went wrong; the log may say more.
 */
int private_start(struct private_poised *poised, const char *binary, const char *name, bool log_to_stderr,
                  struct process_signals *signals, struct poise_err *err);

/* Has poised ended by itself? Then *err says how. Tells it once. */
bool private_gone(struct private_poised *poised, struct poise_err *err);

/* Ends poised in order and removes the folder; whatever is there of them. An error if poised did not end well. */
int private_stop(struct private_poised *poised, struct process_signals *signals, struct poise_err *err);

void private_print_log(const struct private_poised *poised); /* its end, on stderr */

/* A descriptor that appends to the log's file. */
int private_open_log(const struct private_poised *poised, struct poise_err *err);

/* private_dir.c: the folder, and who removes it. dir is "" where it could not be made. */
int private_dir_make(struct private_poised *poised, const char *name, struct poise_err *err);
void private_dir_remove(struct private_poised *poised);

#endif
