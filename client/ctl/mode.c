/* SPDX-License-Identifier: Apache-2.0 */
/* poisectl mode: asks poised to switch a job's group; the daemon checks who asks. */
#include "client/ctl/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One request; job NULL: all jobs, group NULL: all of its groups. */
static int ask(const struct ctl_command *command, const char *dir, const char *job, const char *group, const char *mode,
               long *ret_code, char **ret_body)
{
    char path[3072];
    char *job_text = http_escape(job ? job : ""), *group_text = http_escape(group ? group : "");
    int rc = CTL_FAILED;

    if (!job_text || !group_text)
        ctl_fail(command, CTL_FAILED, "no memory");
    else if ((size_t)snprintf(path, sizeof path, "/mode?job=%s&group=%s&mode=%s", job_text, group_text, mode) >=
             sizeof path)
        rc = ctl_fail(command, CTL_BAD_INPUT, "the name of a group has at most 64 bytes, that of a job a few hundred");
    else
        rc = http_ask(command, dir, path, true, ret_code, ret_body);
    free(job_text);
    free(group_text);
    return rc;
}

/* "JOB/GROUP", where JOB may have slashes of its own: what the daemon does not know as such may be all a job's name. */
static int ask_name(const struct ctl_command *command, const char *dir, const char *name, const char *mode,
                    long *ret_code, char **ret_body)
{
    const char *slash = strrchr(name, '/');
    int rc = CTL_OK;
    char *job;

    if (!strcmp(name, "all"))
        return ask(command, dir, NULL, NULL, mode, ret_code, ret_body);
    if (!slash)
        return ask(command, dir, name, NULL, mode, ret_code, ret_body);
    job = strndup(name, (size_t)(slash - name));
    rc = job ? ask(command, dir, job, slash + 1, mode, ret_code, ret_body) : ctl_fail(command, CTL_FAILED, "no memory");
    free(job);
    if (rc != CTL_OK || *ret_code != 404)
        return rc;
    free(*ret_body);
    return ask(command, dir, name, NULL, mode, ret_code, ret_body);
}

int mode_command(const struct ctl_command *command, int argc, char **argv)
{
    const char *dir = NULL, *words[2];
    const struct ctl_option options[] = {
        {"socket-dir", CTL_STRING, &dir, "DIR", "poised's folder; default: $POISE_SOCKET_DIR, else /run/poise", 0, 0},
    };
    char *body = NULL;
    long code = 0;
    int status;

    if (ctl_parse(command, options, 1, argc, argv, words, 2, &status) != 0)
        return status;
    if (strcmp(words[1], "on") && strcmp(words[1], "shadow") && strcmp(words[1], "off"))
        return ctl_fail(command, CTL_BAD_INPUT, "\"%s\": a mode is on, shadow or off", words[1]);
    if (!*words[0])
        return ctl_fail(command, CTL_BAD_INPUT, "the name of the group is empty: give JOB/GROUP, JOB or \"all\"");
    status = ask_name(command, ctl_socket_dir(dir), words[0], words[1], &code, &body);
    if (status != CTL_OK)
        return status;
    body[strcspn(body, "\n")] = 0;
    if (code == 200)
        printf("%s\n", body);
    else
        status = ctl_fail(command, CTL_FAILED, "%s", body);
    free(body);
    return status;
}
