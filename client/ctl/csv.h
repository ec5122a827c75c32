/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a table in a text file: RFC 4180 (quotes, doubled quotes, line breaks inside quotes, CRLF), the first line
 * names the columns. Commas; tabs or semicolons where the header has no comma.
 */
#ifndef POISE_CTL_CSV_H
#define POISE_CTL_CSV_H

#include <stddef.h>
#include <stdint.h>

#include "poise.h"

struct csv {
    uint32_t n_columns;
    char **column;    /* [n_columns] names, without spaces around them */
    char **field;     /* [n_columns] of the row that csv_next() read, valid until the next call; "" where it is short */
    uint64_t line;    /* where that row begins, from 1 */
    char problem[80]; /* why that row cannot be trusted; "" if nothing is wrong with it */
    /* private */
    char *path, *text, *at, *end;
    uint64_t next_line;
    char delimiter;
};

/* Reads the whole file (also a pipe) and its header. Errors that name the path: what open() says, -EISDIR, -EINVAL
 * (empty, binary, no header), -EFBIG, -ENOMEM. Caller frees with csv_close(). */
int csv_open(const char *path, struct csv *ret_csv, struct poise_err *err);
void csv_close(struct csv *csv); /* also one that was zeroed */

/* The next row: 1; 0 at the end; -EINVAL a quote is never closed (with its line). Blank lines are skipped. */
int csv_next(struct csv *csv, struct poise_err *err);

/* The column of that name; -ENOENT; -EEXIST several have it. */
int csv_find(const struct csv *csv, const char *name);

/* "width, height, ...": the columns for a message, cut to fit. Returns list. */
const char *csv_list(const struct csv *csv, char *list, size_t n_list);

/* A number of at most `most`: digits, as a decimal if it has a fraction. NULL, or what is wrong: static. */
const char *csv_number(const char *text, double most, double *ret_number);

#endif
