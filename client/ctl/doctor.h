/* SPDX-License-Identifier: Apache-2.0 */
/* What poisectl doctor looks at: every check says its findings, one line each. */
#ifndef POISE_CTL_DOCTOR_H
#define POISE_CTL_DOCTOR_H

#include <jansson.h>

#include "client/ctl/ctl.h"

enum doctor_level { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor {
    const struct ctl_command *command;
    const char *dir;          /* of the sockets */
    const char *coordinators; /* list, or NULL */
    json_t *checks;           /* of --json; NULL: print lines */
    uint32_t n[DOCTOR_FAIL + 1];
};

/* A finding: what was looked at, what it is, and what to do about it (NULL: nothing). */
void doctor_say(struct doctor *doctor, const char *check, enum doctor_level level, const char *todo,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

void doctor_machine(struct doctor *doctor);      /* kernel, memory, limits */
void doctor_daemon(struct doctor *doctor);       /* folder, permissions, who answers */
void doctor_coordinators(struct doctor *doctor); /* whether each can be connected */

#endif
