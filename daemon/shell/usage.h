/* SPDX-License-Identifier: Apache-2.0 */
/* The text of `poised --help`. */
#ifndef POISE_SHELL_USAGE_H
#define POISE_SHELL_USAGE_H

#include <stdio.h>

void usage_print(FILE *out);

#endif
