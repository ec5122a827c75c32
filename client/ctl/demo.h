/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of poisectl demo: its data, its processes, its figures. */
#ifndef POISE_CTL_DEMO_H
#define POISE_CTL_DEMO_H

#include "client/ctl/ctl.h"
#include "client/ctl/private.h"
#include "client/examples/demo_board.h"

struct demo_row { /* one usable row of the CSV */
    struct payload_size size;
};

struct demo_data {
    struct demo_row *rows; /* in a random order that is the same every time */
    uint32_t n_rows;
    uint32_t n_small, n_thin, n_bad;             /* left out: a side under 28 pixels, a ratio above 200, not numbers */
    struct poise_phase phases[POISE_MAX_PHASES]; /* of the planner's cost */
    struct poise_phase truth[POISE_MAX_PHASES];  /* of what trainers sleep by */
};

struct demo_options {
    uint64_t ranks, steps, per_rank, micro_batch, compute_ms;
    const char *algorithm, *data, *truth;
    bool json;
};

struct demo {
    const struct ctl_command *command;
    struct demo_options opt;
    bool exact; /* --truth exact */
    struct demo_data data;
    char bin[4096];          /* where poisectl and poised are */
    char trainer[4096 + 40]; /* beside them, or in libexec/poise of an installation */
    struct private_poised poised;
    struct process_signals signals;
    bool terminal;           /* stderr is one: redraw the progress line */
    double mean_ns;          /* of a rank's compute a step */
    uint64_t pipeline_p99_ns;
};

struct demo_run {
    const char *title, *algorithm, *mode; /* algorithm NULL: the default */
    uint32_t number, n_steps;             /* number: from 1; 0 is the calibration */
    const char *depth;                    /* steps submitted ahead; "0": the default */
};

struct demo_figures { /* of one run */
    uint64_t samples_in, samples_out, lost, doubled, corrupt;
    double step_imbalance, microbatch_imbalance; /* largest / mean rank cost, mean over steps; the planner's cost */
    double step_ms, ideal_ms; /* mean of a step as measured; were every rank as long as the mean one */
    double predicted_speedup, bytes_moved_fraction;
    double wait_p50_us, wait_p99_us; /* of a rank and step: all of poise_next */
    uint64_t pipeline_p50_ns, pipeline_p99_ns;
    uint64_t tokens_micro_batch; /* the largest */
    uint64_t without_image;      /* micro-batches */
    double weight_error;         /* largest |sum of weight_step x loss_tokens - 1| of a step */
};

/* demo_data.c. Errors: a text in *err. */
int demo_data_read(const char *path, struct demo_data *ret_data, struct poise_err *err); /* caller: demo_data_fini() */
void demo_data_fini(struct demo_data *data);
void demo_data_spoil(struct demo_data *data); /* makes the truth differ from what the planner knows */
/* Deals the rows out to ranks and steps. */
int demo_data_deal(const struct demo_data *data, struct board *board, struct poise_err *err);

/* demo_process.c: 0, or a CTL_* status after a message. */
int demo_start(struct demo *demo); /* folder and poised; demo_stop() in any case */
int demo_run(struct demo *demo, const struct demo_run *run, const struct board *board,
             int board_fd);       /* all its trainers */
int demo_stop(struct demo *demo); /* whatever is there of it */

/* demo_figures.c; first: steps before it are not timed */
uint32_t demo_first_timed(uint32_t n_steps);
void demo_figures(const struct board *board, uint32_t first, struct demo_figures *ret_figures);

/* demo_report.c */
void demo_report_table(const struct demo *demo, const struct demo_run *runs, const struct demo_figures *figures,
                       uint32_t n_runs, double seconds);
void demo_report_json(const struct demo *demo, const struct demo_run *runs, const struct demo_figures *figures,
                      uint32_t n_runs);
const char *demo_algorithm_name(const struct demo_run *run);

#endif
