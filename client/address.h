/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of this machine's addresses others shall use: for payload (libpoise) and for this node's coordinator (poised).
 * By a named interface, else the variables that NCCL and gloo use for theirs, else whatever the kernel would route by.
 */
#ifndef POISE_CLIENT_ADDRESS_H
#define POISE_CLIENT_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "poise.h"

#define ADDRESS_BYTES 64 /* an IPv6 address in brackets has at most 47 */

/*
 * An address of this host, as it stands in an endpoint: "10.1.2.3" or "[fd00::7]".
 *
 * toward     an endpoint (tcp://HOST[:PORT], the first of a list counts), a HOST, or NULL. Looked up where it is a
 *            name, which may block as long as the resolver does.
 * interface  names as NCCL_SOCKET_IFNAME has them ("eth0,ib", "=eth0", "^docker,lo"), or an address of this host; NULL
 *            or "": NCCL_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME, else the route to `toward`.
 *
 * Without an interface, of an ipc endpoint, a loopback address and of no `toward` at all it is 127.0.0.1 or [::1]. A
 * NAME that is this host's own and that /etc/hosts has as loopback (127.0.1.1 of Debian) is of no use to other hosts:
 * then it is the address of the default route. Errors: -ENODEV no interface that is up matches (lists those that are),
 * -EINVAL, -EHOSTUNREACH naming the host and why.
 */
int endpoint_local_address(const char *toward, const char *interface, char *ret_addr, size_t n_addr,
                           struct poise_err *err);

/* Whether a list in the syntax of NCCL_SOCKET_IFNAME takes the interface of that name. */
bool address_matches(const char *list, const char *name);

/* Whether a HOST is loopback by its text: 127.0.0.0/8, ::1 or localhost; brackets are allowed. */
bool address_is_loopback(const char *host);

#endif
