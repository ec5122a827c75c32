/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a struct poise_err. The setters return the code, so that failing is one line. */
#ifndef POISE_PLANNER_ERR_H
#define POISE_PLANNER_ERR_H

#include "poise.h"

/* Fills *err (may be NULL): rank, sample POISE_NONE, field "". The text is cut to fit, on a UTF-8 boundary. Returns
 * code. */
int err_set(struct poise_err *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same with whose input it was; field may be NULL. */
int err_set_at(struct poise_err *err, int code, uint32_t rank, uint32_t sample, const char *field, const char *format,
               ...) __attribute__((format(printf, 6, 7)));

#ifdef __clang_analyzer__
/* It sees one file at a time and takes it for possible that an error is a success; only its eyes get this. */
#define err_known_(code, call) \
    ({ \
        int code_ = (code); \
        (void)(call); \
        if (code_ >= 0) \
            __builtin_unreachable(); \
        code_; \
    })
#define err_set(err, code, ...) err_known_(code, (err_set)(err, code_, __VA_ARGS__))
#define err_set_at(err, code, ...) err_known_(code, (err_set_at)(err, code_, __VA_ARGS__))
#endif

#endif
