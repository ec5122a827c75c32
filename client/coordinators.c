/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All processes of a job must name the same coordinators, or they wait for each other at different places. What they
 * all have alike is the launcher's: the host that it meets at, and how many processes there are in all and on one host.
 * The poised of that host coordinates; it listens there as soon as it has keys (see poised.conf). A job of one host
 * needs nobody else: its own poised does it.
 */
#include "client/coordinators.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/address.h"
#include "daemon/planner/err.h"

static const char *env_text(const char *value)
{
    return value && *value ? value : NULL;
}

static int count(const char *text, const char *name, unsigned long *ret_n, struct poise_err *err)
{
    char *end;

    errno = 0;
    *ret_n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        return err_set(err, -EINVAL, "environment variable %s is \"%.40s\": it must be a number", name, text);
    return 0;
}

/* torchrun and what imitates it say how many processes a host has; srun says how many hosts. */
static int spans_hosts(bool *ret_spans, struct poise_err *err)
{
    const char *all = env_text(getenv("WORLD_SIZE")), *local = env_text(getenv("LOCAL_WORLD_SIZE"));
    const char *nodes = env_text(getenv("SLURM_STEP_NUM_NODES"));
    unsigned long n_all = 0, n_local = 0;
    int rc = 0;

    *ret_spans = false;
    if (all && local) {
        rc = count(all, "WORLD_SIZE", &n_all, err);
        if (rc == 0)
            rc = count(local, "LOCAL_WORLD_SIZE", &n_local, err);
        *ret_spans = rc == 0 && n_all > n_local;
    } else if (nodes) {
        rc = count(nodes, "SLURM_STEP_NUM_NODES", &n_all, err);
        *ret_spans = rc == 0 && n_all > 1;
    }
    return rc;
}

int coordinators_resolve(const char *option, char *ret_list, size_t n_list, struct poise_err *err)
{
    const char *env = getenv("POISE_COORDINATORS"), *text = option ? option : env ? env : "";
    const char *what = option ? "coordinators" : "environment variable POISE_COORDINATORS";
    const char *master = env_text(getenv("MASTER_ADDR"));
    char made[300];
    bool spans;

    if (!option && !env && master && !address_is_loopback(master)) {
        int rc = spans_hosts(&spans, err);

        if (rc < 0)
            return rc;
        if (spans) {
            snprintf(made, sizeof made, strchr(master, ':') && *master != '[' ? "tcp://[%.253s]:%d" : "tcp://%.253s:%d",
                     master, COORDINATORS_PORT);
            text = made;
            what = "environment variable MASTER_ADDR";
        }
    }
    if (strlen(text) >= n_list)
        return err_set(err, -EINVAL, "%s has %zu bytes: at most %zu are allowed (\"%.40s...\")", what, strlen(text),
                       n_list - 1, text);
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return err_set(err, -EINVAL, "%s has a control character (code %d) at byte %zu", what, *at,
                           (size_t)(at - text));
    strcpy(ret_list, text);
    return 0;
}
