/* SPDX-License-Identifier: Apache-2.0 */
/* poisectl top: a frame from two reports of the daemon, and the terminal that it is shown on. */
#ifndef POISE_CTL_TOP_H
#define POISE_CTL_TOP_H

#include <jansson.h>

#include "client/ctl/ctl.h"

#define TOP_BOLD '\1' /* begins a line that stands out; control characters of names never come through */

/*
 * Lines of a frame, each ended by a newline. before: an earlier report for rates, NULL: none. now: NULL: the daemon
 * does not answer, and dir names it. n_lines: how many there is room for; ranks are left out first, and it is said.
 * NULL: no memory. Caller frees with free().
 */
char *top_frame(const json_t *before, const json_t *now, const char *dir, unsigned n_lines);

struct top_screen {
    int signals; /* signalfd */
    unsigned n_rows, n_columns;
};

/* Takes the terminal: the other screen, keys at once, no cursor. 0 or -errno. */
int top_screen_open(struct top_screen *screen);

/* Gives it back as it was. */
void top_screen_close(struct top_screen *screen);

/* All at once, so that nothing flickers; lines are cut at the right edge. */
void top_screen_draw(const struct top_screen *screen, const char *frame);

enum top_event { TOP_TIME, TOP_RESIZED, TOP_QUIT };

/* Waits for a key, a signal, or so long. */
enum top_event top_screen_wait(struct top_screen *screen, int timeout_ms);

#endif
