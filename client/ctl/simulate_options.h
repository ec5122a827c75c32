/* SPDX-License-Identifier: Apache-2.0 */
/* Words of simulate's command line to numbers. Errors name the option and what it takes. */
#ifndef POISE_CTL_SIMULATE_OPTIONS_H
#define POISE_CTL_SIMULATE_OPTIONS_H

#include "client/ctl/simulate.h"

struct simulate_words { /* as given */
    uint64_t ranks, per_rank, micro_batch, stages, nodes, batches, seed;
    const char *objective, *count, *cost, *max_pixels, *algorithm, *tolerance, *fixed_fraction, *columns, *report;
    bool json;
};

/* Fills sim->setup, rule and fixed; not the samples. */
int simulate_options_read(const struct simulate_words *words, struct simulate *sim, struct poise_err *err);

/* The names in --algorithm, or all there are (NULL); each is known. names: static, or in copy. */
int simulate_options_algorithms(const char *text, char *copy, size_t n_copy, const char *names[SIMULATE_ALGORITHMS],
                                uint32_t *ret_n, struct poise_err *err);

#endif
