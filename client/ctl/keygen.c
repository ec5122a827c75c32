/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl keygen: makes the file that the nodes of a cluster share. As root it becomes the property of the user that
 * the systemd unit runs as, where there is one: a file that poised cannot read is what everybody would get otherwise.
 */
#include "client/ctl/ctl.h"

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/keys.h"

#define UNIT_USER "poise" /* systemd/poise.sysusers.conf */

static int show(const struct ctl_command *command, const char *path)
{
    struct poise_err err;
    struct keys keys;

    if (keys_read(path, &keys, &err) < 0)
        return ctl_fail(command, CTL_FAILED, "%s", err.text);
    printf("%s\n", keys.public);
    explicit_bzero(&keys, sizeof keys);
    return CTL_OK;
}

static int make(const struct ctl_command *command, const char *path)
{
    const struct passwd *user = geteuid() == 0 ? getpwnam(UNIT_USER) : NULL;
    struct poise_err err;
    struct keys keys;
    int rc = keys_make(&keys, &err);

    if (rc == 0)
        rc = keys_write(path, &keys, user ? user->pw_uid : POISE_NONE, user ? user->pw_gid : POISE_NONE, &err);
    if (rc < 0) {
        explicit_bzero(&keys, sizeof keys);
        return ctl_fail(command, CTL_FAILED, "%s", err.text);
    }
    printf("%s: a new key, mode 0600%s%s; its public half is %s\n"
           "Copy it to every node of the cluster, over ssh or with your configuration tool, and set in poised.conf "
           "there:\n"
           "  keys = %s\n",
           path, user ? ", of user " : "", user ? UNIT_USER : "", keys.public, path);
    explicit_bzero(&keys, sizeof keys);
    return CTL_OK;
}

int keygen_command(const struct ctl_command *command, int argc, char **argv)
{
    const char *words[1];
    bool show_public = false;
    const struct ctl_option options[] = {
        {"show-public", CTL_FLAG, &show_public, NULL,
         "print the public half of a FILE that exists: compare nodes by it", 0, 0},
    };
    int status;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, words, 1, &status) != 0)
        return status;
    if (!*words[0])
        return ctl_fail(command, CTL_BAD_INPUT, "the name of the file is empty");
    return show_public ? show(command, words[0]) : make(command, words[0]);
}
