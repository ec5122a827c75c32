/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table lists every setting once; flags, file, --help and --check-config all read that table, so they cannot drift
 * apart. A bad value never starts a daemon: the error names where it stands and what would be right. Values are applied
 * from the weakest source to the strongest: defaults, file, environment, flags.
 */
#include "daemon/shell/config.h"

#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/shell/endpoint.h"

enum kind { KIND_TEXT, KIND_NUMBER, KIND_LEVEL, KIND_MODE, KIND_BOOL };

struct setting {
    const char *name;
    enum kind kind;
    size_t offset, size; /* in struct config */
    uint64_t min, max;   /* KIND_NUMBER */
    const char *fallback; /* NULL: left as it is */
    bool flag_only;
    const char *argument, *help;
};

#define PLACE(member) offsetof(struct config, member), sizeof(((struct config *)0)->member)
#define MS_MAX 86400000u /* a day: nobody means more, and sums of such never overflow */

/* Defaults of the state machines are those of daemon/core's headers. */
static const struct setting settings[] = {
    {"socket-dir", KIND_TEXT, PLACE(socket_dir), 0, 0, CONFIG_SOCKET_DIR, false, "DIR",
     "folder of the sockets; made if it is missing"},
    {"config", KIND_TEXT, PLACE(config), 0, 0, NULL, true, "FILE",
     "configuration file (default " CONFIG_FILE ", if it exists)"},
    {"log-level", KIND_LEVEL, PLACE(log_level), 0, 0, "info", false, "LEVEL", "error, warning, info or debug"},
    {"mode", KIND_MODE, PLACE(mode), 0, 0, "on", false, "MODE",
     "on, shadow or off, of jobs that were not told another"},
    {"node-name", KIND_TEXT, PLACE(node_name), 0, 0, "", false, "NAME",
     "in messages and status (default: the host's name)"},
    {"listen", KIND_TEXT, PLACE(listen), 0, 0, "auto", false, "LIST",
     "where nodes of other poised reach this one as coordinator: tcp://HOST[:PORT], ipc:///PATH, none, or auto: "
     "tcp://* "
     "with keys, none without"},
    {"keys", KIND_TEXT, PLACE(keys), 0, 0, "none", false, "FILE",
     "the cluster's key, the same file on all nodes (poisectl keygen), or none"},
    {"interface", KIND_TEXT, PLACE(interface), 0, 0, "auto", false, "NAMES",
     "by which other nodes are reached, as NCCL_SOCKET_IFNAME has it (eth0,ib or =eth0 or ^docker), or an address"},
    {"insecure", KIND_BOOL, PLACE(insecure), 0, 0, "no", false, "YES|NO",
     "allow endpoints beyond loopback although nothing is encrypted"},
    {"max-processes", KIND_NUMBER, PLACE(max_processes), 1, 100000, "4096", false, "N", "processes served at once"},
    {"heartbeat-ms", KIND_NUMBER, PLACE(heartbeat_ms), 10, MS_MAX, "1000", false, "MS", "node to coordinators"},
    {"pull-delay-ms", KIND_NUMBER, PLACE(pull_delay_ms), 1, MS_MAX, "20", false, "MS",
     "before an outcome that did not come is asked for"},
    {"silence-ms", KIND_NUMBER, PLACE(silence_ms), 10, MS_MAX, "2000", false, "MS",
     "without a beacon, a coordinator is silent"},
    {"node-timeout-ms", KIND_NUMBER, PLACE(node_timeout_ms), 10, MS_MAX, "10000", false, "MS",
     "silent for so long, a node is lost"},
    {"beacon-ms", KIND_NUMBER, PLACE(beacon_ms), 10, MS_MAX, "250", false, "MS", "between a coordinator's beacons"},
    {"warn-ms", KIND_NUMBER, PLACE(warn_ms), 10, MS_MAX, "60000", false, "MS",
     "a rank that is waited for longer is logged"},
    {"forget-ms", KIND_NUMBER, PLACE(forget_ms), 10, MS_MAX, "30000", false, "MS",
     "how long a failed attempt to open is told to late joiners"},
    {"ready-fd", KIND_NUMBER, PLACE(ready_fd), 0, 1 << 20, NULL, true, "N",
     "file descriptor that gets one byte when all sockets are bound"},
};
#define N_SETTINGS (sizeof settings / sizeof *settings)

static const struct option switches[] = {
    {"check-config", no_argument, NULL, CONFIG_CHECK},
    {"help", no_argument, NULL, CONFIG_HELP},
    {"version", no_argument, NULL, CONFIG_VERSION},
};
#define N_SWITCHES (sizeof switches / sizeof *switches)

struct word {
    const char *text;
    uint32_t value;
};
static const struct word levels[] = {{"error", 3}, {"warning", 4}, {"info", 6}, {"debug", 7}, {NULL, 0}};
static const struct word modes[] = {{"on", POISE_MODE_ON}, {"shadow", POISE_MODE_SHADOW}, {"off", POISE_MODE_OFF},
                                    {NULL, 0}};

static const struct word bools[] = {{"yes", true}, {"no", false}, {NULL, 0}};

static const struct word *words_of(enum kind kind)
{
    return kind == KIND_LEVEL ? levels : kind == KIND_MODE ? modes : bools;
}

static int set_number(const struct setting *s, const char *value, uint64_t *place, struct poise_err *err)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || number < s->min || number > s->max)
        return err_set(err, -EINVAL, "%s: '%s' is no whole number from %llu to %llu", s->name, value,
                       (unsigned long long)s->min, (unsigned long long)s->max);
    *place = number;
    return 0;
}

static int set_word(const struct setting *s, const char *value, uint32_t *place, struct poise_err *err)
{
    for (const struct word *w = words_of(s->kind); w->text; w++) {
        if (strcmp(w->text, value) == 0) {
            *place = w->value;
            return 0;
        }
    }
    return err_set(err, -EINVAL, "%s: '%s' is none of %s", s->name, value,
                   s->kind == KIND_LEVEL ? "error, warning, info, debug"
                   : s->kind == KIND_MODE ? "on, shadow, off"
                                          : "yes, no");
}

static int set_value(const struct setting *s, const char *value, struct config *config, struct poise_err *err)
{
    void *place = (char *)config + s->offset;
    if (s->kind == KIND_NUMBER)
        return set_number(s, value, place, err);
    if (s->kind != KIND_TEXT)
        return set_word(s, value, place, err);
    if (strlen(value) >= s->size)
        return err_set(err, -EINVAL, "%s: '%.40s...' is longer than %zu bytes", s->name, value, s->size - 1);
    if (!*value && s->fallback != value)
        return err_set(err, -EINVAL, "%s: the value is empty", s->name);
    strcpy(place, value);
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- the file */

struct reader {
    struct config *config;
    bool seen[N_SETTINGS];
    struct poise_err error; /* the first */
};

static int read_pair(struct reader *r, const char *section, const char *name, const char *value)
{
    if (*section && strcmp(section, "poised") != 0)
        return err_set(&r->error, -EINVAL, "section [%s]: only [poised] is known", section);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (settings[i].flag_only || strcmp(settings[i].name, name) != 0)
            continue;
        if (r->seen[i]) /* also what libinih makes of an indented line after it */
            return err_set(&r->error, -EINVAL, "%s: '%s' is its second value", name, value);
        r->seen[i] = true;
        return set_value(&settings[i], value, r->config, &r->error);
    }
    return err_set(&r->error, -EINVAL, "%s: unknown key (value '%s'); `poised --help` lists all", name, value);
}

static int on_pair(void *user, const char *section, const char *name, const char *value)
{
    struct reader *r = user;
    return r->error.code || read_pair(r, section, name, value) == 0;
}

/* The default file may be missing; a named one may not. */
static int read_file(const char *path, bool named, struct config *config, struct poise_err *err)
{
    FILE *file = fopen(path, "re");
    if (!file && !named && errno == ENOENT)
        return 0;
    struct stat st;
    if (!file || fstat(fileno(file), &st) < 0) {
        int code = -errno;
        if (file)
            fclose(file);
        return err_set(err, code, "%s: cannot be read: %s", path, strerror(-code));
    }
    if (S_ISDIR(st.st_mode)) {
        fclose(file);
        return err_set(err, -EISDIR, "%s: a folder, not a configuration file", path);
    }
    struct reader reader = {.config = config};
    int line = ini_parse_file(file, on_pair, &reader);
    bool bad = ferror(file);
    fclose(file);
    if (bad || line == -1)
        return err_set(err, -EIO, "%s: cannot be read", path);
    if (line == -2)
        return err_set(err, -ENOMEM, "%s: no memory to read it", path);
    if (line > 0 && !reader.error.code)
        return err_set(err, -EINVAL, "%s:%d: neither KEY = VALUE nor [poised] nor a # comment", path, line);
    if (line > 0)
        return err_set(err, reader.error.code, "%s:%d: %s", path, line, reader.error.text);
    snprintf(config->config, sizeof config->config, "%s", path);
    return 0;
}

/* -------------------------------------------------------------------------------------------------------- the flags */

/* Splits argv into one text a setting and the last action; changes nothing else. */
static int scan_flags(int argc, char *const argv[], const char *flags[N_SETTINGS], uint32_t *ret_action,
                      struct poise_err *err)
{
    struct option options[N_SETTINGS + N_SWITCHES + 1] = {0};
    for (size_t i = 0; i < N_SETTINGS; i++)
        options[i] = (struct option){settings[i].name, required_argument, NULL, 256 + (int)i};
    memcpy(options + N_SETTINGS, switches, sizeof switches);
    optind = 0; /* 0 restarts getopt of glibc from scratch */
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":hV", options, NULL)) != -1;) {
        const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
        if (c >= 256)
            flags[c - 256] = optarg;
        else if (c == 'h' || c == 'V')
            *ret_action = c == 'h' ? CONFIG_HELP : CONFIG_VERSION;
        else if (c == ':')
            return err_set(err, -EINVAL, "%s needs a value; see `poised --help`", word);
        else if (c == '?')
            return err_set(err, -EINVAL, "%s: no such flag, or short for several; see `poised --help`", word);
        else
            *ret_action = (uint32_t)c;
    }
    if (optind < argc)
        return err_set(err, -EINVAL, "'%s': poised takes flags only; see `poised --help`", argv[optind]);
    return 0;
}

bool config_beyond_loopback(const struct config *config)
{
    return config->insecure || strcmp(config->keys, "none") != 0;
}

const char *config_listen(const struct config *config)
{
    if (strcmp(config->listen, "auto") != 0)
        return config->listen;
    return strcmp(config->keys, "none") != 0 ? "tcp://*" : "none";
}

const char *config_interface(const struct config *config)
{
    return strcmp(config->interface, "auto") == 0 ? NULL : config->interface;
}

static int check_together(struct config *c, struct poise_err *err)
{
    if (c->heartbeat_ms >= c->node_timeout_ms)
        return err_set(err, -EINVAL, "node-timeout-ms (%llu) must be above heartbeat-ms (%llu)",
                       (unsigned long long)c->node_timeout_ms, (unsigned long long)c->heartbeat_ms);
    if (c->beacon_ms >= c->silence_ms)
        return err_set(err, -EINVAL, "silence-ms (%llu) must be above beacon-ms (%llu)",
                       (unsigned long long)c->silence_ms, (unsigned long long)c->beacon_ms);
    struct poise_err detail;
    int rc = strcmp(config_listen(c), "none") == 0
                 ? 0
                 : endpoints_parse(config_listen(c), ENDPOINT_LISTEN, config_beyond_loopback(c), NULL, NULL, &detail);
    if (rc < 0)
        return err_set(err, rc, "listen: %s", detail.text);
    if (!c->node_name[0] && gethostname(c->node_name, sizeof c->node_name - 1) < 0)
        snprintf(c->node_name, sizeof c->node_name, "localhost");
    return 0;
}

int config_parse(int argc, char *const argv[], struct config *ret_config, struct poise_err *err)
{
    struct config config = {.ready_fd = CONFIG_NO_FD, .action = CONFIG_RUN};
    const char *flags[N_SETTINGS] = {NULL};
    int rc = scan_flags(argc, argv, flags, &config.action, err);
    for (size_t i = 0; rc == 0 && i < N_SETTINGS; i++)
        if (settings[i].fallback)
            rc = set_value(&settings[i], settings[i].fallback, &config, err);
    if (rc < 0 || config.action == CONFIG_HELP || config.action == CONFIG_VERSION)
        goto done;
    const char *file = NULL;
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (strcmp(settings[i].name, "config") == 0)
            file = flags[i];
    rc = read_file(file ? file : CONFIG_FILE, file != NULL, &config, err);
    struct poise_err detail;
    const char *dir = getenv("POISE_SOCKET_DIR");
    if (rc == 0 && dir && *dir && (rc = set_value(&settings[0], dir, &config, &detail)) < 0)
        err_set(err, rc, "environment POISE_SOCKET_DIR: %s", detail.text);
    for (size_t i = 0; rc == 0 && i < N_SETTINGS; i++)
        if (flags[i] && (rc = set_value(&settings[i], flags[i], &config, &detail)) < 0)
            err_set(err, rc, "--%s", detail.text);
    if (rc == 0)
        rc = check_together(&config, err);
done:
    if (rc == 0)
        *ret_config = config;
    return rc;
}

void config_describe(FILE *out)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        char left[64];
        snprintf(left, sizeof left, "--%s %s", s->name, s->argument);
        fprintf(out, "  %-24s %s", left, s->help);
        if (s->fallback && *s->fallback)
            fprintf(out, " (default %s)", s->fallback);
        fprintf(out, "%s\n", s->flag_only ? " [flag only]" : "");
    }
}

static void print_value(const struct setting *s, const void *place, FILE *out)
{
    if (s->kind == KIND_TEXT)
        fprintf(out, "%s = %s\n", s->name, (const char *)place);
    else if (s->kind == KIND_NUMBER)
        fprintf(out, "%s = %llu\n", s->name, (unsigned long long)*(const uint64_t *)place);
    for (const struct word *w = words_of(s->kind); s->kind > KIND_NUMBER && w->text; w++)
        if (w->value == *(const uint32_t *)place)
            fprintf(out, "%s = %s\n", s->name, w->text);
}

void config_print(const struct config *config, FILE *out)
{
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (!settings[i].flag_only)
            print_value(&settings[i], (const char *)config + settings[i].offset, out);
}
