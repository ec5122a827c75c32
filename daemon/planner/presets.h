/* SPDX-License-Identifier: Apache-2.0 */
/* Presets that are computed. Internal to the planner. */
#ifndef POISE_PLANNER_PRESETS_H
#define POISE_PLANNER_PRESETS_H

#include "err.h"

#define DECODER_PREFIX "decoder:"

/* The phase of a name that begins with DECODER_PREFIX. -EINVAL names the key or value. */
int decoder_preset(const char *text, struct poise_phase *ret_phase, struct poise_err *err);

#endif
