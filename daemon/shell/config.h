/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What poised was told: flags, the environment, a file, defaults, in this order of precedence. Names are the same in
 * flags (--node-timeout-ms 5000) and in the file (node-timeout-ms = 5000).
 */
#ifndef POISE_SHELL_CONFIG_H
#define POISE_SHELL_CONFIG_H

#include <stdbool.h>
#include <stdio.h>

#include "poise.h"

#define CONFIG_FILE "/etc/poise/poised.conf" /* read where it exists and --config names no other */
#define CONFIG_SOCKET_DIR "/run/poise"
#define CONFIG_PATH_BYTES 512
#define CONFIG_LISTEN_BYTES 2048
#define CONFIG_INTERFACE_BYTES 256

enum config_action { CONFIG_RUN, CONFIG_CHECK, CONFIG_HELP, CONFIG_VERSION };

struct config {
    char socket_dir[CONFIG_PATH_BYTES];
    char config[CONFIG_PATH_BYTES]; /* the file; "" none was read */
    char node_name[POISE_MAX_NAME];
    char listen[CONFIG_LISTEN_BYTES]; /* endpoints of this coordinator, see endpoint.h; "none", "auto": see
                                       * config_listen() */
    char keys[CONFIG_PATH_BYTES];     /* the file, see client/keys.h; "none" */
    char interface[CONFIG_INTERFACE_BYTES]; /* see client/address.h; "auto": not given */
    uint32_t insecure;                /* bool: endpoints beyond loopback are allowed, without keys */
    uint32_t action;    /* enum config_action */
    uint32_t log_level; /* syslog's: 3 error, 4 warning, 6 info, 7 debug */
    uint32_t mode;      /* POISE_MODE_*: of jobs without one of their own */
    uint64_t ready_fd;  /* gets one byte when all sockets are bound; CONFIG_NO_FD */
    uint64_t max_processes; /* on this node, over all users */
    uint64_t heartbeat_ms, pull_delay_ms, silence_ms, node_timeout_ms; /* struct node_config */
    uint64_t beacon_ms, warn_ms, forget_ms;                            /* struct coordinator_config */
};
#define CONFIG_NO_FD UINT64_MAX

/* Fills *ret_config. Errors: -EINVAL naming the flag, or the file, its line, the key and the value; -ENOENT and the
 * like for a file that was named and cannot be read. Not thread-safe: getopt_long() has global state. */
int config_parse(int argc, char *const argv[], struct config *ret_config, struct poise_err *err);

/* Whether endpoints beyond loopback are allowed. */
bool config_beyond_loopback(const struct config *config);

/* Where the coordinator listens, for endpoints_parse(), or "none": "auto" is every address as soon as there are
 * keys. */
const char *config_listen(const struct config *config);

/* The interface as endpoint_local_address() takes it; NULL: not given. */
const char *config_interface(const struct config *config);

/* The options as a table of lines for --help: name, meaning, default. */
void config_describe(FILE *out);

/* The configuration as a file that would give it again. */
void config_print(const struct config *config, FILE *out);

#endif
