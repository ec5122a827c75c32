/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl run: a private poised for the life of one command, so that a first try is one line. The command runs as if
 * it had been started directly: our standard streams, process group, signal mask and exit status; only its environment
 * says where the sockets are and, from a build tree, where the library and the Python package are. However poisectl
 * ends, nothing is left: see private.h.
 */
#include "client/ctl/ctl.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/private.h"
#include "daemon/planner/err.h"

#define NO_DAEMON 125 /* as timeout(1) and env(1) answer where they fail themselves: no status of the command */
#define N_VARIABLES 4 /* pairs of the command's environment */
#define PATH_ROOM (PATH_MAX + 64)

struct run {
    const struct ctl_command *command;
    char *const *argv; /* of the user's command */
    bool verbose;
    char bin[PATH_MAX]; /* where poisectl is */
    char binary[PATH_ROOM], library[PATH_ROOM], python[PATH_ROOM];
    const char *env[2 * N_VARIABLES + 1];
    struct private_poised poised;
    struct process_signals signals;
    pid_t pid;
};

/* ----------------------------------------------------------------------------------------------- what belongs to it */

/* Beside poisectl, else where PATH finds it. */
static int find_poised(struct run *run, struct poise_err *err)
{
    const char *path = getenv("PATH");
    int rc = process_own_dir(run->bin, sizeof run->bin, err);

    if (rc < 0)
        return rc;
    snprintf(run->binary, sizeof run->binary, "%s/poised", run->bin);
    if (access(run->binary, X_OK) == 0)
        return 0;
    for (const char *at = path ? path : ""; *at;) {
        size_t n = strcspn(at, ":");
        snprintf(run->binary, sizeof run->binary, "%.*s/poised", n ? (int)n : 1, n ? at : ".");
        if (n < PATH_MAX && access(run->binary, X_OK) == 0)
            return 0;
        at += n + (at[n] == ':');
    }
    return err_set(err, -ENOENT, "poised is neither beside poisectl (%s) nor on PATH: install it, or run make",
                   run->bin);
}

static void add(struct run *run, const char *name, const char *value)
{
    size_t n = 0;

    while (run->env[n])
        n += 2;
    run->env[n] = name;
    run->env[n + 1] = value;
}

/* A build tree has the library beside poisectl, and the Python package in the sources one or two folders up. */
static void find_build_tree(struct run *run)
{
    static const char *const places[] = {"../client/python", "../../client/python"};
    const char *before = getenv("PYTHONPATH");

    snprintf(run->library, sizeof run->library, "%s/libpoise.so", run->bin);
    if (access(run->library, R_OK) < 0)
        return;
    if (!getenv("POISE_LIBRARY"))
        add(run, "POISE_LIBRARY", run->library);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char tried[PATH_ROOM + 32], package[PATH_MAX];
        snprintf(tried, sizeof tried, "%s/%s/poise/__init__.py", run->bin, places[i]);
        if (access(tried, R_OK) < 0)
            continue;
        *strstr(tried, "/poise/__init__.py") = 0;
        if (!realpath(tried, package))
            return;
        if (snprintf(run->python, sizeof run->python, "%s%s%s", package, before && *before ? ":" : "",
                     before ? before : "") < (int)sizeof run->python)
            add(run, "PYTHONPATH", run->python);
        return;
    }
}

/* ------------------------------------------------------------------------------------------------------ the command */

static int start_command(struct run *run, struct poise_err *err)
{
    const struct process_start start = {.argv = run->argv,
                                        .pass_fd = -1,
                                        .out_fd = -1,
                                        .err_fd = -1,
                                        .death_signal = SIGTERM, /* launchers end their workers at it */
                                        .mask = &run->signals.before,
                                        .env = run->env};
    pid_t pid;

    add(run, "POISE_SOCKET_DIR", run->poised.dir);
    if (!getenv("POISE_COORDINATORS")) /* this daemon alone, wherever the launcher's master is */
        add(run, "POISE_COORDINATORS", "");
    pid = process_start(&start, err);
    if (pid < 0)
        return pid;
    run->pid = pid;
    return 0;
}

/* What poisectl alone was told goes on to the command; what a terminal sent has reached it already. */
static void forward(struct run *run)
{
    if (run->signals.caught && !run->signals.by_terminal)
        kill(run->pid, run->signals.caught);
    run->signals.caught = 0;
}

static void look_at_poised(struct run *run)
{
    struct poise_err err;

    if (!private_gone(&run->poised, &err))
        return;
    ctl_fail(run->command, NO_DAEMON, "%s while the command runs", err.text);
    private_print_log(&run->poised);
}

/* The command's status, as a shell gives it. */
static int await_command(struct run *run)
{
    int status;

    while (waitpid(run->pid, &status, WNOHANG) != run->pid) {
        process_await(&run->signals, -1, -1);
        forward(run);
        look_at_poised(run);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int start_all(struct run *run, struct poise_err *err)
{
    int rc = find_poised(run, err);

    if (rc == 0)
        rc = process_signals_start(&run->signals, err);
    if (rc == 0)
        rc = private_start(&run->poised, run->binary, "run", run->verbose, &run->signals, err);
    if (rc < 0)
        return rc;
    find_build_tree(run);
    return start_command(run, err);
}

static int run_all(struct run *run)
{
    struct poise_err err;
    int status, rc = start_all(run, &err);

    if (rc == 0) {
        status = await_command(run);
    } else if (run->signals.caught) {
        status = 128 + run->signals.caught;
    } else {
        status = ctl_fail(run->command, NO_DAEMON, "%s", err.text);
        if (!run->verbose)
            private_print_log(&run->poised);
    }
    if (private_stop(&run->poised, &run->signals, &err) < 0)
        ctl_fail(run->command, NO_DAEMON, "%s", err.text);
    process_signals_end(&run->signals);
    return status;
}

int run_command(const struct ctl_command *command, int argc, char **argv)
{
    struct run run = {.command = command, .poised = PRIVATE_POISED_NONE, .signals = {.fd = -1}};
    const struct ctl_option options[] = {
        {"verbose", CTL_FLAG, &run.verbose, NULL, "poised's log goes to standard error", 0, 0},
    };
    int n = 1, status; /* words of ours: the command's own options are not for us */

    while (n < argc && argv[n][0] == '-' && strcmp(argv[n], "--") != 0)
        n++;
    if (ctl_parse(command, options, sizeof options / sizeof *options, n, argv, NULL, 0, &status) != 0)
        return status;
    n += n < argc && strcmp(argv[n], "--") == 0;
    if (n >= argc)
        return ctl_fail(command, CTL_BAD_INPUT, "give COMMAND; see poisectl run --help");
    run.argv = argv + n;
    return run_all(&run);
}
