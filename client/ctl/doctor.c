/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl doctor: what would stop or slow a job on this machine, asked before it starts, as the user who would start
 * it. Every check tries the thing itself where that is possible, as limits of containers show nowhere else.
 */
#include "client/ctl/doctor.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const levels[] = {"ok", "warn", "fail"};

void doctor_say(struct doctor *doctor, const char *check, enum doctor_level level, const char *todo,
                const char *format, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    doctor->n[level]++;
    if (doctor->checks) {
        json_t *words = json_string(text); /* NULL where a path is no UTF-8 */

        json_array_append_new(doctor->checks,
                              json_pack("{s:s, s:s, s:o, s:s?}", "check", check, "level", levels[level], "text",
                                        words ? words : json_string("?"), "todo", todo));
        return;
    }
    printf("%-4s  %-12s  %s\n", levels[level], check, text);
    if (todo)
        printf("%20s%s\n", "-> ", todo);
}

static int print_json(struct doctor *doctor)
{
    json_t *report = json_pack("{s:b, s:i, s:i, s:i, s:o}", "ok", doctor->n[DOCTOR_FAIL] == 0, "n_ok",
                               (int)doctor->n[DOCTOR_OK], "n_warn", (int)doctor->n[DOCTOR_WARN], "n_fail",
                               (int)doctor->n[DOCTOR_FAIL], "checks", doctor->checks);
    int rc = report ? json_dumpf(report, stdout, JSON_INDENT(2)) : -1;

    printf("\n");
    json_decref(report);
    return rc < 0 ? ctl_fail(doctor->command, CTL_FAILED, "the report cannot be written") : CTL_OK;
}

int doctor_command(const struct ctl_command *command, int argc, char **argv)
{
    const char *dir = NULL;
    bool json = false;
    struct doctor doctor = {.command = command};
    const struct ctl_option options[] = {
        {"socket-dir", CTL_STRING, &dir, "DIR", "poised's folder; default: $POISE_SOCKET_DIR, else /run/poise", 0, 0},
        {"coordinators", CTL_STRING, &doctor.coordinators, "LIST", "also connect to these endpoints, with commas", 0,
         0},
        {"json", CTL_FLAG, &json, NULL, "print one JSON object", 0, 0},
    };
    int status;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, NULL, 0, &status) != 0)
        return status;
    doctor.dir = ctl_socket_dir(dir);
    if (json && !(doctor.checks = json_array()))
        return ctl_fail(command, CTL_FAILED, "no memory");
    doctor_daemon(&doctor);
    doctor_coordinators(&doctor);
    doctor_machine(&doctor);
    if (json) {
        status = print_json(&doctor);
    } else {
        printf("%u ok, %u to look at, %u failed\n", doctor.n[DOCTOR_OK], doctor.n[DOCTOR_WARN], doctor.n[DOCTOR_FAIL]);
        status = CTL_OK;
    }
    return doctor.n[DOCTOR_FAIL] ? CTL_FAILED : status;
}
