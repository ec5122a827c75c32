/* SPDX-License-Identifier: Apache-2.0 */
/* Three handles and their end. A second SIGTERM while the first is being served changes nothing: the end never waits.
 * */
#include "daemon/shell/signals.h"

#include <signal.h>

#include "daemon/planner/err.h"

static void on_end(uv_signal_t *handle, int number)
{
    struct signals *signals = handle->data;
    signals->end(signals->data, number == SIGTERM ? "SIGTERM" : "SIGINT");
}

static void on_hangup(uv_signal_t *handle, int number)
{
    struct signals *signals = handle->data;
    (void)number;
    signals->reload(signals->data);
}

int signals_init(struct signals *signals, uv_loop_t *loop, void (*end)(void *, const char *), void (*reload)(void *),
                 void *data, struct poise_err *err)
{
    *signals = (struct signals){.end = end, .reload = reload, .data = data, .loop = loop, .n_open = 3};
    signal(SIGPIPE, SIG_IGN);
    uv_signal_init(loop, &signals->term);
    uv_signal_init(loop, &signals->interrupt);
    uv_signal_init(loop, &signals->hangup);
    signals->term.data = signals->interrupt.data = signals->hangup.data = signals;
    int rc = uv_signal_start(&signals->term, on_end, SIGTERM);
    if (rc == 0)
        rc = uv_signal_start(&signals->interrupt, on_end, SIGINT);
    if (rc == 0)
        rc = uv_signal_start(&signals->hangup, on_hangup, SIGHUP);
    return rc < 0 ? err_set(err, rc, "watching signals: %s", uv_strerror(rc)) : 0;
}

static void signals_maybe_closed(struct signals *signals)
{
    if (signals->n_open == 0 && signals->closed)
        signals->closed(signals);
}

static void on_closed(uv_handle_t *handle)
{
    struct signals *signals = handle->data;
    signals->n_open--;
    signals_maybe_closed(signals);
}

void signals_close(struct signals *signals, void (*closed)(struct signals *))
{
    if (!signals->loop)
        return;
    signals->loop = NULL;
    signals->closed = closed;
    uv_close((uv_handle_t *)&signals->term, on_closed);
    uv_close((uv_handle_t *)&signals->interrupt, on_closed);
    uv_close((uv_handle_t *)&signals->hangup, on_closed);
}
