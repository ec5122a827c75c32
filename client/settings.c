/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From struct poise_options to what the rest of the library uses. The caller's struct wins, then POISE_ variables, then
 * the launcher's (torchrun and what imitates it), then the defaults of poise.h. Nothing is corrected silently: a value
 * out of range is an error that names the option or the variable, the value and what is allowed.
 */
#include "client/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "client/coordinators.h"
#include "client/recorder.h"
#include "client/sized.h"
#include "daemon/planner/err.h"
#include "daemon/planner/planner.h"

#define OPTIONS_BYTES_0_1 offsetof(struct poise_options, record) /* of the first release; a later one keeps this number */
#define PHASE_BYTES_0_1   sizeof(struct poise_phase)

#define KNOWN_FLAGS            (POISE_PLAN_ONLY | POISE_DEBUG_SLOTS)
#define MAX_ITERATORS          64u /* virtual pipeline stages of one rank; real ones have at most 16 */
#define MAX_TIMEOUT_MS         INT64_C(1000000000000) /* 31 years: for ever, and additions do not overflow */
#define MAX_PAYLOAD_THREADS     64u
#define DEFAULT_PAYLOAD_THREADS 2u /* one that serves and one that fetches: both encrypt */
#define MAX_COORDINATORS_BYTES 1024
#define ONE_MILLION            1000000u

/* ---------------------------------------------------------------------------------------------------------- helpers */

/* A name that goes over the wire: 1 to n_room - 1 bytes, no control characters, UTF-8 (checked in full by the decoder).
 */
static int copy_name(char *to, size_t n_room, const char *from, const char *what, struct poise_err *err)
{
    size_t n = strlen(from);

    if (n == 0)
        return err_set(err, -EINVAL, "%s is empty: give it 1 to %zu bytes", what, n_room - 1);
    if (n >= n_room)
        return err_set(err, -EINVAL, "%s has %zu bytes: at most %zu are allowed (\"%.40s...\")", what, n, n_room - 1,
                       from);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)from[i] < 0x20 || from[i] == 0x7f)
            return err_set(err, -EINVAL, "%s has a control character (code %d) at byte %zu", what, from[i], i);
    }
    memcpy(to, from, n + 1);
    return 0;
}

/* A number from the environment. Returns 1 if it is there, 0 if not. */
static int env_number(const char *name, uint64_t max, uint64_t *ret_value, struct poise_err *err)
{
    const char *text = getenv(name);
    char *end;
    unsigned long long value;

    if (!text || !*text)
        return 0;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value > max)
        return err_set(err, -EINVAL, "environment variable %s is \"%.40s\": it must be a number from 0 to %llu", name,
                       text, (unsigned long long)max);
    *ret_value = value;
    return 1;
}

static int env_required(const char *name, uint64_t max, uint64_t *ret_value, struct poise_err *err)
{
    int rc = env_number(name, max, ret_value, err);

    if (rc == 0)
        return err_set(
            err, -EINVAL,
            "n_ranks is 0 and environment variable %s is not set: set rank and n_ranks, or start with a launcher "
            "that sets RANK and WORLD_SIZE",
            name);
    return rc < 0 ? rc : 0;
}

static int at_most(uint64_t value, uint64_t max, const char *what, struct poise_err *err)
{
    if (value > max)
        return err_set(err, -EINVAL, "%s is %llu: at most %llu is allowed", what, (unsigned long long)value,
                       (unsigned long long)max);
    return 0;
}

static int timeout(int64_t value, int64_t fallback, const char *what, uint64_t *ret_ms, struct poise_err *err)
{
    if (value < 0 || value > MAX_TIMEOUT_MS)
        return err_set(err, -EINVAL, "%s is %lld: it must be 0 (the default, %lld) to %lld milliseconds", what,
                       (long long)value, (long long)fallback, (long long)MAX_TIMEOUT_MS);
    *ret_ms = (uint64_t)(value ? value : fallback);
    return 0;
}

/* -------------------------------------------------------------------------------------------------------------- who */

/* Two jobs of one user must never meet: a launcher's run id may be "none", so everything that tells runs apart goes in.
 */
static int job_from_launcher(char *job, uint32_t attempt, struct poise_err *err)
{
    const char *run = getenv("TORCHELASTIC_RUN_ID"), *addr = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    char text[3 * WIRE_JOB_BYTES];

    if (!(run && *run) && !(addr && *addr))
        return err_set(err, -EINVAL,
                       "the job has no name: set poise_options.job or POISE_JOB, or start with a launcher that sets "
                       "TORCHELASTIC_RUN_ID or MASTER_ADDR and MASTER_PORT");
    snprintf(text, sizeof text, "%.127s@%.127s:%.20s#%u", run ? run : "", addr ? addr : "", port ? port : "", attempt);
    return copy_name(job, WIRE_JOB_BYTES, text,
                     "the job's name made from TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT and the restart count",
                     err);
}

static int resolve_job(const struct poise_options *opt, struct wire_join *join, struct poise_err *err)
{
    const char *env = getenv("POISE_JOB");

    if (opt->job)
        return copy_name(join->job, sizeof join->job, opt->job, "job", err);
    if (env && *env)
        return copy_name(join->job, sizeof join->job, env, "environment variable POISE_JOB", err);
    return job_from_launcher(join->job, join->incarnation.attempt, err);
}

static int resolve_rank(const struct poise_options *opt, struct wire_join *join, struct poise_err *err)
{
    uint64_t rank = opt->rank, n_ranks = opt->n_ranks;
    int rc = 0;

    join->replica = opt->replica;
    join->n_replicas = opt->n_replicas ? opt->n_replicas : 1;
    if (n_ranks == 0) {
        if (join->n_replicas > 1)
            return err_set(
                err, -EINVAL,
                "n_ranks is 0 with n_replicas %u: RANK and WORLD_SIZE count processes, not data-parallel ranks, so "
                "set rank and n_ranks",
                join->n_replicas);
        if (rank != 0)
            return err_set(err, -EINVAL, "rank is %u but n_ranks is 0: set both, or none to take RANK and WORLD_SIZE",
                           opt->rank);
        rc = env_required("RANK", WIRE_MAX_RANKS - 1, &rank, err);
        if (rc == 0)
            rc = env_required("WORLD_SIZE", WIRE_MAX_RANKS, &n_ranks, err);
        if (rc == 0 && n_ranks == 0)
            rc = err_set(err, -EINVAL, "environment variable WORLD_SIZE is 0: a group has at least one rank");
    }
    if (rc == 0)
        rc = at_most(n_ranks, WIRE_MAX_RANKS, "n_ranks", err);
    if (rc == 0)
        rc = at_most(join->n_replicas, WIRE_MAX_REPLICAS, "n_replicas", err);
    if (rc < 0)
        return rc;
    if (rank >= n_ranks)
        return err_set(err, -EINVAL, "rank is %llu of n_ranks %llu: ranks are numbered from 0",
                       (unsigned long long)rank, (unsigned long long)n_ranks);
    if (join->replica >= join->n_replicas)
        return err_set(err, -EINVAL, "replica is %u of n_replicas %u: replicas are numbered from 0", join->replica,
                       join->n_replicas);
    join->rank = (uint32_t)rank;
    join->n_ranks = (uint32_t)n_ranks;
    return 0;
}

static int resolve_attempt(const struct poise_options *opt, struct wire_join *join, struct poise_err *err)
{
    uint64_t attempt = opt->attempt;

    if (opt->attempt == POISE_NONE) {
        attempt = 0;
        int rc = env_number("TORCHELASTIC_RESTART_COUNT", POISE_NONE - 1, &attempt, err);
        if (rc < 0)
            return rc;
    }
    join->incarnation.attempt = (uint32_t)attempt;
    return 0;
}

static int make_incarnation(struct wire_join *join, struct poise_err *err)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    join->incarnation.opened_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (getrandom(&join->incarnation.random, sizeof join->incarnation.random, 0) != sizeof join->incarnation.random)
        return err_set(err, -EIO, "getrandom: %s", strerror(errno));
    join->pid = (uint32_t)getpid();
    join->uid = (uint32_t)getuid();
    join->wire_version = WIRE_VERSION;
    join->planner_version = PLANNER_VERSION;
    if (gethostname(join->host, sizeof join->host) < 0)
        strcpy(join->host, "?");
    join->host[sizeof join->host - 1] = 0;
    return 0;
}

static int resolve_coordinators(const struct poise_options *opt, struct wire_join *join, struct poise_err *err)
{
    char list[MAX_COORDINATORS_BYTES];
    int rc = coordinators_resolve(opt->coordinators, list, sizeof list, err);

    if (rc < 0)
        return rc;
    join->coordinators = strdup(list);
    return join->coordinators ? 0 : err_set(err, -ENOMEM, "no memory for the options");
}

static int resolve_who(const struct poise_options *opt, struct wire_join *join, struct poise_err *err)
{
    int rc = resolve_attempt(opt, join, err);

    if (rc == 0)
        rc = resolve_job(opt, join, err);
    if (rc == 0)
        rc = copy_name(join->group, sizeof join->group, opt->group ? opt->group : "dp", "group", err);
    if (rc == 0)
        rc = resolve_rank(opt, join, err);
    if (rc == 0 && opt->first_step > INT64_MAX)
        rc = err_set(err, -EINVAL, "first_step is %llu: at most %lld is allowed", (unsigned long long)opt->first_step,
                     (long long)INT64_MAX);
    join->first_step = opt->first_step;
    join->sync_set = opt->sync_set;
    if (rc == 0)
        rc = make_incarnation(join, err);
    return rc < 0 ? rc : resolve_coordinators(opt, join, err);
}

/* ------------------------------------------------------------------------------------------------------------- what */

static int check_phase(const struct poise_phase *phase, uint32_t i, struct poise_err *err)
{
    char checked[POISE_MAX_NAME], what[32];

    snprintf(what, sizeof what, "the name of phase %u", i);
    if (!memchr(phase->name, 0, sizeof phase->name))
        return err_set(err, -EINVAL, "%s does not end within %zu bytes", what, sizeof phase->name);
    if (phase->flags & ~(POISE_PHASE_PADDED | POISE_PHASE_BARRIER))
        return err_set(err, -EINVAL, "flags of phase %u (%s) are 0x%x: only POISE_PHASE_* are known", i, phase->name,
                       phase->flags);
    return copy_name(checked, sizeof checked, phase->name, what, err);
}

static int resolve_phases(const struct poise_options *opt, struct options *options, struct poise_err *err)
{
    if (opt->cost && opt->n_phases)
        return err_set(err, -EINVAL, "cost \"%.60s\" and %u phases are given: give one of the two", opt->cost,
                       opt->n_phases);
    if (opt->cost)
        return poise_preset(opt->cost, options->phases, sizeof *options->phases, &options->n_phases, err);
    if (opt->n_phases == 0)
        return err_set(err, -EINVAL,
                       "neither cost nor phases are given: set cost to a preset (\"qwen2.5-vl-7b\"), \"length\" "
                       "or \"length_squared\"");
    if (opt->n_phases > POISE_MAX_PHASES)
        return err_set(err, -EINVAL, "n_phases is %u: at most %d are allowed", opt->n_phases, POISE_MAX_PHASES);
    if (!opt->phases)
        return err_set(err, -EINVAL, "phases is NULL with n_phases %u", opt->n_phases);
    options->n_phases = opt->n_phases;
    for (uint32_t i = 0; i < opt->n_phases; i++) {
        const unsigned char *from = (const unsigned char *)opt->phases + i * opt->phase_size;
        int rc = sized_in(&options->phases[i], sizeof options->phases[i], from, opt->phase_size, PHASE_BYTES_0_1,
                          "struct poise_phase", err);
        if (rc == 0)
            rc = check_phase(&options->phases[i], i, err);
        if (rc < 0)
            return rc;
        if (options->phases[i].passes == 0)
            options->phases[i].passes = 1;
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(options->phases[k].name, options->phases[i].name) == 0)
                return err_set(err, -EINVAL, "phases %u and %u have the same name %s", k, i, options->phases[i].name);
        }
    }
    return 0;
}

static int check_codes(const struct poise_options *opt, struct poise_err *err)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } codes[] = {
        {"mode", opt->mode, POISE_MODE_OFF},
        {"objective", opt->objective, POISE_OBJECTIVE_PIPELINE},
        {"count", opt->count, POISE_COUNT_FREE},
        {"cut", opt->cut, POISE_CUT_AS_NEEDED},
        {"end", opt->end, POISE_END_CONTINUE},
        {"prefetch_depth", opt->prefetch_depth, WIRE_WINDOW},
        {"n_iterators", opt->n_iterators, MAX_ITERATORS},
        {"micro_batch_size", opt->micro_batch_size, WIRE_MAX_SAMPLES},
        {"n_micro_batches", opt->n_micro_batches, WIRE_MAX_SAMPLES},
    };

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        int rc = at_most(codes[i].value, codes[i].max, codes[i].name, err);
        if (rc < 0)
            return rc;
    }
    if (opt->flags & ~KNOWN_FLAGS)
        return err_set(err, -EINVAL, "flags are 0x%x: only POISE_PLAN_ONLY and POISE_DEBUG_SLOTS are known",
                       opt->flags);
    return 0;
}

static int resolve_what(const struct poise_options *opt, struct options *options, struct poise_err *err)
{
    int rc = check_codes(opt, err);

    if (rc == 0)
        rc = resolve_phases(opt, options, err);
    if (rc == 0 && opt->algorithm)
        rc = copy_name(options->algorithm, sizeof options->algorithm, opt->algorithm, "algorithm", err);
    if (rc < 0)
        return rc;
    options->objective = opt->objective;
    options->count = opt->count;
    options->cut = opt->cut;
    options->tolerance_ppm = opt->tolerance_ppm ? opt->tolerance_ppm : ONE_MILLION / 100;
    options->micro_batch_size = opt->micro_batch_size;
    options->n_micro_batches = opt->n_micro_batches;
    options->stages = opt->stages ? opt->stages : 1;
    options->end = opt->end;
    options->image_encoder_dp = opt->image_encoder_dp;
    options->plan_only = (opt->flags & POISE_PLAN_ONLY) != 0;
    options->cap_samples_rank = opt->cap_samples_rank;
    options->cap_samples_micro_batch = opt->cap_samples_micro_batch;
    options->cap_bytes_rank = opt->cap_bytes_rank;
    memcpy(options->cap_length_rank, opt->cap_length_rank, sizeof options->cap_length_rank);
    memcpy(options->cap_length_micro_batch, opt->cap_length_micro_batch, sizeof options->cap_length_micro_batch);
    return 0;
}

/* Combinations: the planner knows which go together. */
static int check_what(const struct settings *s, struct poise_err *err)
{
    struct poise_plan_request req = {.size = sizeof req};

    options_request(&s->options, &req);
    req.n_ranks = s->join.n_ranks;
    return plan_check_options(&req, err);
}

/* -------------------------------------------------------------------------------------------------------------- how */

static int resolve_socket_dir(const struct poise_options *opt, char *dir, struct poise_err *err)
{
    const char *env = getenv("POISE_SOCKET_DIR");
    const char *text = opt->socket_dir ? opt->socket_dir : env && *env ? env : "/run/poise";
    const char *what = opt->socket_dir || !(env && *env) ? "socket_dir" : "environment variable POISE_SOCKET_DIR";
    size_t room = LOCAL_PATH_BYTES - sizeof "/" SETTINGS_LOCAL_SOCK + 1; /* the kernel's limit on a socket's path */

    return copy_name(dir, room, text, what, err);
}

/* Where peers on other nodes reach this process; whether there is such an interface is seen when it is needed. */
static int resolve_interface(const struct poise_options *opt, struct settings *s, struct poise_err *err)
{
    const char *env = getenv("POISE_INTERFACE");
    const char *text = opt->interface ? opt->interface : env && *env ? env : NULL;

    return text ? copy_name(s->interface, sizeof s->interface, text,
                            opt->interface ? "interface" : "environment variable POISE_INTERFACE", err)
                : 0;
}

/* All ranks ask for the record, so that coordinators send its data; replica 0 of rank 0 writes it. A restart of the launcher
 * writes a file of its own: it must neither fail because of the first one's nor take its place. */
static int resolve_record(const struct poise_options *opt, struct settings *s, struct poise_err *err)
{
    const char *env = getenv("POISE_RECORD"), *path = opt->record ? opt->record : env && *env ? env : NULL;
    uint32_t attempt = s->join.incarnation.attempt;
    size_t room;

    s->record_max_bytes = opt->record_max_bytes ? opt->record_max_bytes : RECORDER_DEFAULT_BYTES;
    if (!path)
        return 0;
    if (!*path)
        return err_set(err, -EINVAL, "record is empty: give the name of a file, or NULL");
    if (s->record_max_bytes < RECORDER_MIN_BYTES)
        return err_set(err, -EINVAL, "record_max_bytes is %llu: at least %llu are needed, or 0 for the default",
                       (unsigned long long)s->record_max_bytes, (unsigned long long)RECORDER_MIN_BYTES);
    s->options.record = 1;
    if (s->join.rank != 0 || s->join.replica != 0)
        return 0;
    room = strlen(path) + sizeof ".4294967295";
    s->record = malloc(room);
    if (!s->record)
        return err_set(err, -ENOMEM, "no memory for the name of the record");
    snprintf(s->record, room, attempt ? "%s.%u" : "%s", path, attempt);
    return 0;
}

/* How payload goes between nodes. The limit and the threads are this node's own affair and need not agree. */
static int resolve_payload(const struct poise_options *opt, struct settings *s, struct poise_err *err)
{
    const char *env = getenv("POISE_PAYLOAD"), *text = opt->payload ? opt->payload : env && *env ? env : "curve";
    int rc = at_most(opt->payload_threads, MAX_PAYLOAD_THREADS, "payload_threads", err);

    s->max_bytes_per_s = opt->max_bytes_per_s;
    s->payload_threads = opt->payload_threads ? opt->payload_threads : DEFAULT_PAYLOAD_THREADS;
    if (rc < 0)
        return rc;
    if (strcmp(text, "curve") == 0)
        s->options.payload = OPTIONS_PAYLOAD_CURVE;
    else if (strcmp(text, "plain") == 0)
        s->options.payload = OPTIONS_PAYLOAD_PLAIN;
    else
        return err_set(err, -EINVAL, "%s is \"%.40s\": it must be \"curve\" (encrypted between nodes) or \"plain\"",
                       opt->payload ? "payload" : "environment variable POISE_PAYLOAD", text);
    return 0;
}

static int resolve_audit(const struct poise_options *opt, struct settings *s, struct poise_err *err)
{
    int rc = 0;

    s->options.audit = opt->audit;
    if (!opt->audit)
        rc = env_number("POISE_AUDIT", UINT64_MAX, &s->options.audit, err);
    return rc < 0 ? rc : 0;
}

static int resolve_how(const struct poise_options *opt, struct settings *s, struct poise_err *err)
{
    const struct {
        const char *name;
        int64_t value, fallback;
        uint64_t *to;
    } timeouts[] = {
        {"daemon_timeout_ms", opt->daemon_timeout_ms, 5000, &s->daemon_timeout_ms},
        {"open_timeout_ms", opt->open_timeout_ms, 600000, &s->open_timeout_ms},
        {"peer_timeout_ms", opt->peer_timeout_ms, 3600000, &s->peer_timeout_ms},
        {"node_timeout_ms", opt->node_timeout_ms, 10000, &s->node_timeout_ms},
        {"close_timeout_ms", opt->close_timeout_ms, 30000, &s->close_timeout_ms},
    };

    for (size_t i = 0; i < sizeof timeouts / sizeof *timeouts; i++) {
        int rc = timeout(timeouts[i].value, timeouts[i].fallback, timeouts[i].name, timeouts[i].to, err);
        if (rc < 0)
            return rc;
    }
    s->mode = opt->mode;
    s->speed_ppm = opt->speed_ppm ? opt->speed_ppm : ONE_MILLION;
    s->plan_only = (opt->flags & POISE_PLAN_ONLY) != 0;
    s->debug_slots = (opt->flags & POISE_DEBUG_SLOTS) != 0;
    s->memory_budget = opt->memory_budget;
    s->prefetch_depth = opt->prefetch_depth ? opt->prefetch_depth : 2;
    s->n_iterators = opt->n_iterators ? opt->n_iterators : 1;
    s->verify_first = opt->verify_first ? opt->verify_first : 20;
    s->verify_every = opt->verify_every ? opt->verify_every : 100;
    return resolve_socket_dir(opt, s->socket_dir, err);
}

int settings_resolve(const struct poise_options *opt, struct settings *ret_settings, struct poise_err *err)
{
    struct poise_options own;
    struct settings s;
    int rc;

    if (!opt)
        return err_set(err, -EINVAL, "poise_open: options are NULL");
    memset(&s, 0, sizeof s);
    rc = sized_in(&own, sizeof own, opt, opt->size, OPTIONS_BYTES_0_1, "struct poise_options", err);
    if (rc == 0)
        rc = resolve_how(&own, &s, err);
    if (rc == 0)
        rc = resolve_what(&own, &s.options, err);
    if (rc == 0)
        rc = resolve_who(&own, &s.join, err);
    if (rc == 0)
        rc = check_what(&s, err);
    if (rc == 0)
        rc = resolve_record(&own, &s, err);
    if (rc == 0)
        rc = resolve_audit(&own, &s, err);
    if (rc == 0)
        rc = resolve_interface(&own, &s, err);
    if (rc == 0)
        rc = resolve_payload(&own, &s, err);
    if (rc == 0)
        rc = options_write(&s.options, &s.join.options, &s.join.n_options, err);
    if (rc < 0) {
        free(s.join.coordinators);
        free(s.record);
        return rc;
    }
    *ret_settings = s;
    return 0;
}

void settings_free(struct settings *settings)
{
    if (!settings)
        return;
    options_free(settings->join.options, settings->join.n_options);
    free(settings->join.coordinators);
    free(settings->record);
    settings->record = NULL;
    settings->join.options = NULL;
    settings->join.coordinators = NULL;
}
