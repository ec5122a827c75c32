/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines on standard error: with the syslog priority in front (<6>) under systemd, with the time otherwise. Lines of the
 * same shape (equal but for digits) are limited to a burst in a while; how many were left out is said. One thread.
 */
#ifndef POISE_SHELL_LOG_H
#define POISE_SHELL_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LINE_ERROR 3 /* syslog's */
#define LOG_LINE_WARNING 4
#define LOG_LINE_INFO 6
#define LOG_LINE_DEBUG 7

/* Lines above `level` are not written. Finds out whether the journal reads. */
void log_init(uint32_t level);

/* Whether lines go to the journal, which takes their priority from <N> in front. */
bool log_in_journal(void);

void log_level(uint32_t level);

void log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says how many lines were left out and not told yet: before the process ends. */
void log_flush(void);

#endif
