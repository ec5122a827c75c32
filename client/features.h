/* SPDX-License-Identifier: Apache-2.0 */
/* A submission turned into metadata: every feature checked, columns, what the step directory needs besides. */
#ifndef POISE_CLIENT_FEATURES_H
#define POISE_CLIENT_FEATURES_H

#include "client/settings.h"
#include "client/stage.h"

struct features {
    struct wire_meta meta; /* n_samples, columns and digest; the rest is the caller's to fill. Borrows from below */
    uint64_t n_values;     /* of all samples */
    struct stage_sample *checked; /* [n_samples] */
    uint64_t *tag;                /* [n_samples] */
    uint32_t *arrival; /* [n_samples] arrival micro-batch, also where the metadata leaves it to the default */
    uint64_t *arrival_loss_tokens; /* [n_samples] of all samples of that micro-batch */
    uint64_t padded_bytes;         /* that this rank's own samples take when they are assembled as they arrived */
    void *block;
};

/* table: this rank's own. samples: n_samples of sample_size each, borrowed for the call. *ret_features:
 * features_fini(). Errors: -EINVAL and -ERANGE naming sample and field, -ENOMEM. */
int features_make(const struct settings *settings, const struct wire_table *table, const struct poise_sample *samples,
                  uint32_t n_samples, size_t sample_size, struct features *ret_features, struct poise_err *err);

void features_fini(struct features *features);

#endif
