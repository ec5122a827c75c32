/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors as one line of text. It lives with the planner because everything else links the planner: daemon, library and
 * tool fill a struct poise_err in the same way. A text that does not fit is cut, never refused: an error about an error
 * helps nobody.
 */
#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* vsnprintf cuts between bytes; a cut inside a UTF-8 sequence would make the text invalid for JSON and for the wire. */
static void cut_at_boundary(char *text, size_t n_text)
{
    size_t n = strnlen(text, n_text - 1);
    size_t lead = n;

    text[n] = 0;
    while (lead > 0 && n - lead < 3 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0)
        return;
    unsigned char c = (unsigned char)text[lead - 1];
    size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    if (n - (lead - 1) < need)
        text[lead - 1] = 0;
}

static int set(struct poise_err *err, int code, uint32_t rank, uint32_t sample, const char *field, const char *format,
               va_list args)
{
    if (!err)
        return code;
    memset(err, 0, sizeof *err);
    err->code = code;
    err->rank = rank;
    err->sample = sample;
    if (field) {
        snprintf(err->field, sizeof err->field, "%s", field);
        cut_at_boundary(err->field, sizeof err->field);
    }
    vsnprintf(err->text, sizeof err->text, format, args);
    cut_at_boundary(err->text, sizeof err->text);
    for (char *c = err->text; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    return code;
}

int (err_set)(struct poise_err *err, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    set(err, code, POISE_NONE, POISE_NONE, NULL, format, args);
    va_end(args);
    return code;
}

int (err_set_at)(struct poise_err *err, int code, uint32_t rank, uint32_t sample, const char *field, const char *format,
                 ...)
{
    va_list args;

    va_start(args, format);
    set(err, code, rank, sample, field, format, args);
    va_end(args);
    return code;
}
