/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of poisectl share: the table's row, exit statuses, options, words for messages. */
#ifndef POISE_CTL_CTL_H
#define POISE_CTL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CTL_OK 0        /* done */
#define CTL_FAILED 1    /* it could not be done, or what was checked is not right */
#define CTL_BAD_INPUT 2 /* the command line or the input is wrong: trying again does not help */

enum ctl_kind { CTL_FLAG, CTL_STRING, CTL_NUMBER };

struct ctl_option {
    const char *name; /* without its dashes */
    enum ctl_kind kind;
    void *value;          /* bool *, const char ** or uint64_t *: holds the default before, the user's value after */
    const char *argument; /* its word in help; NULL for a flag */
    const char *help;     /* one line */
    uint64_t least, most; /* of a number, inclusive */
};

struct ctl_command {
    const char *name;
    int (*run)(const struct ctl_command *command, int argc, char **argv); /* returns the exit status */
    const char *summary;                                                  /* one line */
    const char *positional; /* words after the options, for help and errors; "" */
    const char *help;       /* what it does, with an example */
};

extern const struct ctl_command ctl_commands[]; /* ends with a row without a name */

/*
 * Reads options (in any order, --name value or --name=value) and exactly n_words other words. 0: go on. Else the caller
 * returns *ret_status: help was printed, or an error that lists what there is.
 */
int ctl_parse(const struct ctl_command *command, const struct ctl_option *options, size_t n_options, int argc,
              char **argv, const char **words, size_t n_words, int *ret_status);

/* "poisectl COMMAND: TEXT" on stderr; returns status, so that failing is one line. */
int ctl_fail(const struct ctl_command *command, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same directory that libpoise and poised take: the option, else POISE_SOCKET_DIR, else /run/poise. */
const char *ctl_socket_dir(const char *option);

int plan_command(const struct ctl_command *command, int argc, char **argv);
int explain_command(const struct ctl_command *command, int argc, char **argv);
int simulate_command(const struct ctl_command *command, int argc, char **argv);
int status_command(const struct ctl_command *command, int argc, char **argv);
int doctor_command(const struct ctl_command *command, int argc, char **argv);
int top_command(const struct ctl_command *command, int argc, char **argv);
int mode_command(const struct ctl_command *command, int argc, char **argv);
int run_command(const struct ctl_command *command, int argc, char **argv);
int keygen_command(const struct ctl_command *command, int argc, char **argv);
int demo_command(const struct ctl_command *command, int argc, char **argv);

#endif
