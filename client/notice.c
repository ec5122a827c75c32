/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices: things a trainer may want to print, in a ring of fixed size. A trainer that never polls must cost nothing
 * and lose the oldest, not the newest: the last one before a failure is the one that explains it.
 */
#include "client/notice.h"

#include <stdio.h>
#include <string.h>

void notice_add(struct notices *notices, uint64_t step, uint32_t severity, const char *format, va_list args)
{
    struct poise_note *note;

    if (notices->n == NOTICE_MAX) {
        notices->first = (notices->first + 1) % NOTICE_MAX;
        notices->n--;
        notices->dropped++;
    }
    note = &notices->ring[(notices->first + notices->n++) % NOTICE_MAX];
    memset(note, 0, sizeof *note);
    note->step = step;
    note->severity = severity;
    vsnprintf(note->text, sizeof note->text, format, args);
}

int notice_take(struct notices *notices, struct poise_note *ret_note)
{
    if (notices->n == 0)
        return 0;
    *ret_note = notices->ring[notices->first];
    ret_note->dropped = notices->dropped;
    notices->dropped = 0;
    notices->first = (notices->first + 1) % NOTICE_MAX;
    notices->n--;
    return 1;
}
