/* SPDX-License-Identifier: Apache-2.0 */
/* --help is the first page that many read: what this is, how to run it, how to look at it, then the flags. */
#include "daemon/shell/usage.h"

#include "daemon/shell/config.h"

static const char head[] =
    "poised " POISE_VERSION " - keeps the data-parallel ranks of a training run evenly loaded\n"
    "\n"
    "USAGE\n"
    "  poised [FLAGS]\n"
    "\n"
    "One poised runs on each machine. Trainers that link libpoise connect to its sockets, tell it what each of their\n"
    "samples costs, and are told which rank trains on which sample; the samples themselves never pass through it.\n"
    "It stays in the foreground, logs to standard error, and needs no configuration and no root.\n"
    "\n"
    "EXAMPLES\n"
    "  poised                                      serve this machine (as root, or under systemd)\n"
    "  poised --socket-dir /tmp/poise-$USER        serve yourself; trainers need POISE_SOCKET_DIR=/tmp/poise-$USER\n"
    "  poised --mode shadow                        plan and report, move nothing\n"
    "  poised --keys /etc/poise/keys               coordinate for the other nodes of a cluster too, at port 29410;\n"
    "                                              poisectl keygen makes the file, the same for all nodes\n"
    "  poised --config poised.conf --check-config  check a file, print what would be used\n"
    "  poisectl status                             what every group does, and what it waits for\n"
    "  curl --unix-socket /run/poise/status.sock http://poised/status\n"
    "  curl --unix-socket /run/poise/status.sock -X POST 'http://poised/mode?job=JOB&mode=off'\n"
    "\n"
    "FLAGS\n";

static const char tail[] =
    "  --check-config           check flags and file, print the settings, start nothing\n"
    "  -h, --help               this text\n"
    "  -V, --version            the version\n"
    "\n"
    "CONFIGURATION FILE\n"
    "  The same names without dashes in front, one a line; # begins a comment. Unknown keys and bad values are\n"
    "  errors.\n"
    "      [poised]\n"
    "      socket-dir = /run/poise\n"
    "      log-level = info\n"
    "  A flag beats the environment, the environment beats the file, the file beats the default.\n"
    "\n"
    "ENVIRONMENT\n"
    "  POISE_SOCKET_DIR         as --socket-dir; libpoise and poisectl read it too\n"
    "  NOTIFY_SOCKET, WATCHDOG_USEC, JOURNAL_STREAM    set by systemd\n"
    "\n"
    "FILES (in the socket folder)\n"
    "  local.sock               processes connect here first; anybody may, the kernel says who they are\n"
    "  poised.zmq               metadata and plans (ZeroMQ)\n"
    "  status.sock              HTTP: /status (JSON), /metrics (Prometheus), /healthz, POST /mode\n"
    "  poised.lock              held by the one poised that serves this folder\n"
    "\n"
    "SIGNALS\n"
    "  SIGTERM, SIGINT          end in order: sockets are removed; trainers wait for a new poised (node-timeout-ms)\n"
    "  SIGHUP                   read the configuration again, and take its log-level\n"
    "\n"
    "EXIT STATUS\n"
    "  0 ended by a signal, or nothing to do; 1 it could not start or serve; 2 bad flags or configuration\n";

void usage_print(FILE *out)
{
    fputs(head, out);
    config_describe(out);
    fputs(tail, out);
}
