/* SPDX-License-Identifier: Apache-2.0 */
/* The options of poise_open() with defaults and environment filled in and every value checked. */
#ifndef POISE_CLIENT_SETTINGS_H
#define POISE_CLIENT_SETTINGS_H

#include "proto/local.h"
#include "proto/options.h"
#include "proto/wire.h"

#define SETTINGS_LOCAL_SOCK "local.sock"
#define SETTINGS_INTERFACE_BYTES 256

struct settings {
    struct wire_join join;  /* who this process is; its options and coordinators are owned by this struct */
    struct options options; /* what must agree over the group */
    char socket_dir[LOCAL_PATH_BYTES];
    uint32_t mode; /* POISE_MODE_*: the starting mode */
    uint32_t speed_ppm;
    bool plan_only, debug_slots;
    uint64_t memory_budget; /* 0: not given */
    char *record;           /* the file that this process writes; NULL: none. Owned */
    uint64_t record_max_bytes;
    uint32_t prefetch_depth, n_iterators, verify_first, verify_every;
    uint64_t daemon_timeout_ms, open_timeout_ms, peer_timeout_ms, node_timeout_ms, close_timeout_ms;
    char interface[SETTINGS_INTERFACE_BYTES]; /* for endpoint_local_address(); "": not given */
    uint64_t max_bytes_per_s; /* of payload that this node serves to others; 0: no limit */
    uint32_t payload_threads; /* ZeroMQ's, for payload between nodes */
};

/* Reads the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT,
 * POISE_JOB, POISE_SOCKET_DIR, POISE_INTERFACE, those of coordinators.c), the clock and the random source. Copies.
 * *ret_settings: caller frees with settings_free(). Errors: -EINVAL and the like, naming the option or variable, its
 * value and what is allowed. */
int settings_resolve(const struct poise_options *opt, struct settings *ret_settings, struct poise_err *err);

void settings_free(struct settings *settings);

#endif
