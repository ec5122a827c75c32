/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the SEQPACKET connection between a process and its poised: what only a unix socket can carry
 * (credentials, file descriptors, the end of a process). One fixed struct a packet, in the machine's byte order: both
 * ends are on one machine. No I/O here: checks of what came in.
 */
#ifndef POISE_PROTO_LOCAL_H
#define POISE_PROTO_LOCAL_H

#include "wire.h"

#define LOCAL_MAGIC 0x6573696f70u /* "poise", little endian */
#define LOCAL_MAX_SEGMENTS 16u
#define LOCAL_PATH_BYTES 108

#define LOCAL_TOKEN 1   /* poised -> process, first: token, instance, the path of the ZeroMQ socket */
#define LOCAL_PIDFD 2   /* process -> poised, with its own pidfd: pids mean nothing across pid namespaces */
#define LOCAL_OFFER 3   /* process -> poised, with one fd -> same-node peers of its replica number: a segment */
#define LOCAL_RETRACT 4 /* process -> poised -> the same: that segment is given back, unmap it */
#define LOCAL_REFUSED 5 /* poised -> process, then closes: text says why */

#define LOCAL_CONTROL 1  /* segment kinds: done[][] and the step table, mapped read-only by peers */
#define LOCAL_ARENA 2    /* payload and step directories, mapped read-only by peers */
#define LOCAL_DOORBELL 3 /* an eventfd that wakes the owner's engine */

struct local_message {
    uint64_t magic;
    uint32_t version; /* WIRE_VERSION */
    uint32_t type;    /* LOCAL_* */
    uint32_t kind;    /* of a segment */
    uint32_t segment; /* number, below LOCAL_MAX_SEGMENTS for arenas */
    uint32_t generation; /* counts the segments that had this number */
    uint32_t rank, replica; /* filled by poised: whose segment it is */
    uint32_t reserved;
    uint64_t bytes; /* of the segment */
    struct wire_id token, instance, epoch;
    char text[LOCAL_PATH_BYTES + 148]; /* LOCAL_TOKEN: path of the ZeroMQ socket; LOCAL_REFUSED: the reason */
};

/* Checks a packet of n_bytes that came with n_fds descriptors, from a process (from_process) or from poised. Errors:
 * -EPROTO naming the member and the value, -EPROTONOSUPPORT another version. */
int local_check(const void *packet, size_t n_bytes, uint32_t n_fds, bool from_process, struct poise_err *err);

#endif
