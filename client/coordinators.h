/* SPDX-License-Identifier: Apache-2.0 */
/* Where a job's coordinators are, if nobody says it. */
#ifndef POISE_CLIENT_COORDINATORS_H
#define POISE_CLIENT_COORDINATORS_H

#include <stddef.h>

#include "poise.h"

#define COORDINATORS_PORT 29410 /* the default of poised's `listen` */

/*
 * The list of endpoints, the same text in all processes of a job: `option` where it is not NULL, else
 * POISE_COORDINATORS, else tcp://MASTER_ADDR:29410 where the launcher's variables say that the job spans hosts, else ""
 * (the local daemon). Errors: -EINVAL naming the variable.
 */
int coordinators_resolve(const char *option, char *ret_list, size_t n_list, struct poise_err *err);

#endif
