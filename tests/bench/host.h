/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of a benchmark: a private poised, processes, a directory for all of it. Messages go to stderr. */
#ifndef POISE_BENCH_HOST_H
#define POISE_BENCH_HOST_H

#include <limits.h>
#include <sys/types.h>

#include "client/ctl/private.h"
#include "tests/bench/crew.h"

#define HOST_CHILDREN (2 * BENCH_MAX_RANKS + 1)

struct host {
    char bin[PATH_MAX]; /* where this program lies; poised is beside its folder */
    struct private_poised poised; /* and a folder for sockets, log, boards */
    struct host_child {
        pid_t pid; /* 0: ended */
        int crew, status;
    } children[HOST_CHILDREN];
};

/* First of all: the rest of the program runs in a child, a session of its own that goes before other programs. */
void host_apart(void);

/* Makes the directory and starts poised there, ready. 0 or -1. host_stop() in any case. */
int host_start(struct host *host);
void host_stop(struct host *host);

/* fork and exec; log: the output goes to poised's log file. 0 or -1. */
int host_spawn(struct host *host, int crew, char *const argv[], bool log);

/* A turn of a crew: 0 when all its ranks are done; -1 when one failed, ended or took too long: *ret_why. */
int host_turn(struct host *host, struct bench_board *board, int crew, char ret_why[700]);

/* Ends the children: in order where they do within some seconds. */
void host_dismiss(struct host *host, struct bench_board *board);

uint64_t host_poised_cpu_ns(const struct host *host);

/* Medians and other quantiles; sorts. */
double quantile(double *values, uint32_t n, double q);

/* Sizes of real images and texts: rows of the file, shuffled in a fixed way; returns how many, at most n. */
uint32_t host_read_sizes(const char *path, struct payload_size *ret_sizes, uint32_t n);

#endif
