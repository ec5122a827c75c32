/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated changes share. Internal to simulate_helps.c and simulate_images.c. */
#ifndef POISE_CTL_SIMULATE_HELPS_H
#define POISE_CTL_SIMULATE_HELPS_H

#include "client/ctl/simulate.h"

struct simulate_tally { /* means over batches, in units of cost */
    double mean, before, after, moved;
};

/* base: the chosen plan, with the same batches. devices: that one rank stands for. scale: samples of a rank over
 * base's. */
void simulate_help_add(struct simulate *sim, const struct simulate_tally *base, const struct simulate_tally *with,
                       double devices, double scale, const char *key, const char *title, const char *note);

/* Images of several-image samples are encoded wherever there is room (simulate_images.c). */
int simulate_help_images(struct simulate *sim, const struct simulate_setup *setup, const struct simulate_tally *base,
                         struct poise_err *err);

#endif
