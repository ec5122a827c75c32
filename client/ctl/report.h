/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation as one self-contained HTML file. */
#ifndef POISE_CTL_REPORT_H
#define POISE_CTL_REPORT_H

#include "client/ctl/simulate.h"

/* Whether a report can be written there; before a long simulation. Errors name the path. */
int report_check(const char *path, struct poise_err *err);

/* Writes all of it or nothing: an older file of that name stays until the new one is complete. */
int report_write(const char *path, const struct simulate *sim, struct poise_err *err);

/* report_html.c, report_svg.c, report_style.c: to out, errors show in ferror(out). */
void report_html(FILE *out, const struct simulate *sim);
void report_text(FILE *out, const char *text); /* escaped */
void report_bars(FILE *out, const struct simulate *sim);
void report_gaps(FILE *out, const struct simulate *sim);
void report_bytes(FILE *out, const struct simulate *sim);
extern const char *const report_style;

#endif
