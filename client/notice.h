/* SPDX-License-Identifier: Apache-2.0 */
/* The bounded queue behind poise_notice(): the library never logs. Not thread-safe: under the handle's lock. */
#ifndef POISE_CLIENT_NOTICE_H
#define POISE_CLIENT_NOTICE_H

#include <stdarg.h>

#include "poise.h"

#define NOTICE_MAX 64u /* more than a trainer that polls once a step can be behind; 34 KB a handle */

struct notices {
    struct poise_note ring[NOTICE_MAX];
    uint32_t first, n;
    uint32_t dropped; /* since the last one taken */
};

/* Adds one; when full the oldest goes and is counted. */
void notice_add(struct notices *notices, uint64_t step, uint32_t severity, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));

/* 1 and the oldest, or 0. */
int notice_take(struct notices *notices, struct poise_note *ret_note);

#endif
