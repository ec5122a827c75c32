/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of a state machine asks the shell to do: messages to send, connections to end, lines to log, and when to
 * call again. Valid until the next step of the same machine.
 */
#ifndef POISE_CORE_UPDATE_H
#define POISE_CORE_UPDATE_H

#include "proto/wire.h"

struct core_send {
    uint64_t to; /* session (to a process), link (node -> coordinator, coordinator -> node) */
    bool up;     /* node: to the coordinator link; else to a process. Coordinator: ignored, always to a node */
    const struct wire_message *msg; /* owned by the machine */
};

struct core_log {
    int level; /* syslog's: 3 error, 4 warning, 6 info, 7 debug */
    char text[256];
};

struct core_update {
    uint32_t n_sends;
    struct core_send *sends;
    uint32_t n_closes; /* sessions that the shell shall end after sending */
    uint64_t *closes;
    uint32_t n_publishes; /* coordinator: beacons for all */
    const struct wire_message **publishes;
    uint32_t n_logs;
    struct core_log *logs;
    uint64_t next_ms; /* call with a tick at this time at the latest; UINT64_MAX: no need */
};

#endif
