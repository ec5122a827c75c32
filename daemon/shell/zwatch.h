/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to the connections of a ZeroMQ socket, as its monitor tells: at a socket that listens, who fails to come
 * in and why, one line an address and minute; at one that connects, the words for a failure.
 */
#ifndef POISE_SHELL_ZWATCH_H
#define POISE_SHELL_ZWATCH_H

#include "daemon/shell/zpoll.h"

#define ZWATCH_ADDRESS 72 /* "[IPV6]:PORT" or, of an ipc endpoint, "a process of this host" */
#define ZWATCH_FRESH 64   /* connections whose handshake is not over: more at once only lose their address in a line */
#define ZWATCH_TOLD 32    /* addresses that were logged lately */

struct zwatch {
    void *monitor; /* NULL: not in use */
    void *socket;  /* that is watched, borrowed */
    struct zpoll zpoll;
    bool has_keys;
    uint64_t failed; /* handshakes */
    const char *why; /* of the failure whose connection is about to end; NULL: none */
    bool perhaps;    /* it may also have been killed, or be no node: not worth a warning */
    struct zwatch_fresh {
        int fd; /* + 1; 0: free */
        char address[ZWATCH_ADDRESS];
    } fresh[ZWATCH_FRESH];
    uint32_t next_fresh;
    struct zwatch_told {
        char address[ZWATCH_ADDRESS];
        const char *why;
        uint64_t at_ms, n; /* since then */
    } told[ZWATCH_TOLD];
    uint32_t next_told;
};

/* Watches a socket that is about to listen; name is its monitor's, unique in the context. */
int zwatch_init(struct zwatch *watch, uv_loop_t *loop, void *context, void *socket, const char *name, bool has_keys,
                struct poise_err *err);

/* Closes; nothing where it is not in use. zwatch_fini() frees, after the loop has ended and before the socket
 * closes. */
void zwatch_close(struct zwatch *watch);
void zwatch_fini(struct zwatch *watch);

/* An event of a monitor. False: none is there. */
struct zwatch_event {
    int event, value; /* ZMQ_EVENT_*; the descriptor, or why a handshake failed */
};
bool zwatch_read(void *monitor, struct zwatch_event *ret_event);

/* An address as ZeroMQ has it without what an IPv4 one looks like to a socket of IPv6. */
const char *zwatch_plain(const char *address);

/* The ends of a connection's descriptor, as text; "" where they are not known. address [ZWATCH_ADDRESS] */
void zwatch_address(int fd, bool peer, char *address);

#endif
