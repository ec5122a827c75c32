/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a coordinator is: tcp://HOST[:PORT], tcp://[IPV6][:PORT] or ipc:///PATH. Its beacons come from beside it: of
 * tcp from PORT + 1, of ipc from PATH.beacon; so one endpoint is all that anybody has to name.
 */
#ifndef POISE_SHELL_ENDPOINT_H
#define POISE_SHELL_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include "poise.h"

/* Beside the ports that torchrun takes by default on the same host (29400 and 29500), not on them. */
#define ENDPOINT_PORT 29410
#define ENDPOINT_BYTES 300
#define ENDPOINTS_MAX 8 /* coordinators of a job that a node connects to; endpoints that a coordinator listens on */

enum endpoint_use { ENDPOINT_LISTEN, ENDPOINT_CONNECT };

struct endpoint {
    char control[ENDPOINT_BYTES]; /* for ZeroMQ, with the port */
    char beacon[ENDPOINT_BYTES];
    bool is_ipc;
    bool is_loopback; /* of tcp, by its text */
    bool is_any;      /* of tcp, where to listen: all addresses of this host */
    uint32_t port;    /* of tcp */
};

/* One endpoint, n_text bytes. Beyond loopback only where that is `allowed`: there are keys, or the operator wants none.
 * Errors: -EINVAL, -EPERM naming the endpoint and what is wrong with it. */
int endpoint_parse(const char *text, size_t n_text, enum endpoint_use use, bool allowed, struct endpoint *ret_endpoint,
                   struct poise_err *err);

/* A list with commas in between, at most ENDPOINTS_MAX. ret_endpoints [ENDPOINTS_MAX] may be NULL: only checks. Errors:
 * those of endpoint_parse(). */
int endpoints_parse(const char *list, enum endpoint_use use, bool allowed, struct endpoint *ret_endpoints,
                    uint32_t *ret_n, struct poise_err *err);

/* Makes it leave from that address of this host, "10.0.0.1" or "[fd00::1]"; nothing of ipc. */
void endpoint_leave_from(struct endpoint *endpoint, const char *address);

/* The file of an ipc endpoint's text. */
const char *endpoint_path(const char *text);

#endif
