/* SPDX-License-Identifier: Apache-2.0 */
/* CURVE on the sockets between nodes: what to set on them, and who may come in. */
#ifndef POISE_SHELL_CURVE_H
#define POISE_SHELL_CURVE_H

#include "client/keys.h"
#include "daemon/shell/zpoll.h"

#define CURVE_DOMAIN "nodes" /* ZAP's, of sockets that nodes connect to */

struct curve_counters {
    uint64_t admitted, denied; /* handshakes */
};

struct curve { /* answers ZeroMQ's questions whom to admit (ZAP) */
    const struct keys *keys; /* borrowed */
    uint8_t public[32];
    void *socket; /* NULL: not in use */
    struct zpoll zpoll;
    struct curve_counters counters;
};

/* Begins to answer in that context; nothing where the keys are not set. Before any socket that it answers for is
 * bound. */
int curve_init(struct curve *curve, uv_loop_t *loop, void *context, const struct keys *keys, struct poise_err *err);

/* Closes; nothing where it is not in use. curve_fini() frees, after the loop has ended and before the context goes. */
void curve_close(struct curve *curve);
void curve_fini(struct curve *curve);

/* Makes a socket a server or a client with these keys; nothing where they are not set. 0 or -errno. */
int curve_serve(void *socket, const struct keys *keys);
int curve_connect(void *socket, const struct keys *keys);

#endif
