/* SPDX-License-Identifier: Apache-2.0 */
/* The options of poise_open(): defaults, the launcher's environment, and that every bad value is named. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/settings.h"

static const char *const variables[] = {"RANK",        "WORLD_SIZE",          "MASTER_ADDR",
                                        "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                        "POISE_JOB",   "POISE_SOCKET_DIR",    "POISE_RECORD", "POISE_PAYLOAD", "POISE_AUDIT",
                                        "POISE_COORDINATORS", "POISE_INTERFACE", "LOCAL_WORLD_SIZE",
                                        "SLURM_STEP_NUM_NODES"};

static void clean(void)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
}

static struct poise_options usual(void)
{
    return (struct poise_options){
        .size = sizeof(struct poise_options), .job = "j", .n_ranks = 4, .rank = 1, .cost = "length"};
}

static struct settings resolved(struct poise_options opt)
{
    struct settings settings;
    struct poise_err err = {0};

    cr_assert_eq(settings_resolve(&opt, &settings, &err), 0, "%s", err.text);
    return settings;
}

/* Resolving must fail with that code, naming both words. */
static void refused(struct poise_options opt, int code, const char *first, const char *second)
{
    struct settings settings;
    struct poise_err err = {0};
    int rc = settings_resolve(&opt, &settings, &err);

    cr_assert_eq(rc, code, "%d instead of %d: %s", rc, code, err.text);
    cr_assert_eq(err.code, code);
    cr_assert(strstr(err.text, first), "\"%s\" does not name %s", err.text, first);
    cr_assert(strstr(err.text, second), "\"%s\" does not name %s", err.text, second);
}

TestSuite(options_env, .init = clean);

Test(options_env, zero_is_the_default)
{
    struct settings s = resolved(usual());

    cr_assert_str_eq(s.join.group, "dp");
    cr_assert_eq(s.join.n_replicas, 1);
    cr_assert_eq(s.join.wire_version, WIRE_VERSION);
    cr_assert_str_eq(s.socket_dir, "/run/poise");
    cr_assert_str_eq(s.join.coordinators, "");
    cr_assert_eq(s.prefetch_depth, 2);
    cr_assert_eq(s.n_iterators, 1);
    cr_assert_eq(s.verify_first, 20);
    cr_assert_eq(s.verify_every, 100);
    cr_assert_eq(s.options.tolerance_ppm, 10000);
    cr_assert_eq(s.speed_ppm, 1000000);
    cr_assert_eq(s.daemon_timeout_ms, 5000);
    cr_assert_eq(s.open_timeout_ms, 600000);
    cr_assert_eq(s.peer_timeout_ms, 3600000);
    cr_assert_eq(s.node_timeout_ms, 10000);
    cr_assert_eq(s.close_timeout_ms, 30000);
    cr_assert_gt(s.join.incarnation.opened_ns, 0);
    settings_free(&s);
}

Test(options_env, two_openings_are_two_incarnations)
{
    struct settings a = resolved(usual()), b = resolved(usual());

    cr_assert_lt(wire_incarnation_compare(&a.join.incarnation, &b.join.incarnation), 0);
    settings_free(&a);
    settings_free(&b);
}

Test(options_env, launcher_names_job_rank_and_attempt)
{
    struct poise_options opt = {.size = sizeof opt, .cost = "length", .attempt = POISE_NONE};

    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("TORCHELASTIC_RUN_ID", "vlm", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    struct settings s = resolved(opt);
    cr_assert_eq(s.join.rank, 3);
    cr_assert_eq(s.join.n_ranks, 8);
    cr_assert_eq(s.join.incarnation.attempt, 2);
    cr_assert_str_eq(s.join.job, "vlm@10.0.0.1:29500#2");
    settings_free(&s);
}

/* torchrun calls every job "none" unless told: two of one user on one machine differ by port and by restarts. */
Test(options_env, jobs_of_one_run_id_do_not_meet)
{
    struct poise_options opt = usual();

    opt.job = NULL;
    opt.attempt = POISE_NONE;
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", "29500", 1);
    struct settings a = resolved(opt);
    setenv("MASTER_PORT", "29501", 1);
    struct settings b = resolved(opt);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    struct settings c = resolved(opt);
    cr_assert_str_neq(a.join.job, b.join.job);
    cr_assert_str_neq(b.join.job, c.join.job);
    settings_free(&a);
    settings_free(&b);
    settings_free(&c);
}

Test(options_env, own_variables_beat_the_launcher_and_options_beat_both)
{
    struct poise_options opt = usual();

    setenv("POISE_JOB", "mine", 1);
    setenv("POISE_SOCKET_DIR", "/tmp/p", 1);
    setenv("TORCHELASTIC_RUN_ID", "other", 1);
    opt.job = NULL;
    struct settings s = resolved(opt);
    cr_assert_str_eq(s.join.job, "mine");
    cr_assert_str_eq(s.socket_dir, "/tmp/p");
    settings_free(&s);
    opt.job = "j";
    opt.socket_dir = "/tmp/q";
    s = resolved(opt);
    cr_assert_str_eq(s.join.job, "j");
    cr_assert_str_eq(s.socket_dir, "/tmp/q");
    settings_free(&s);
}

Test(options_env, bad_variables_are_named)
{
    struct poise_options opt = {.size = sizeof opt, .cost = "length", .job = "j"};

    refused(opt, -EINVAL, "RANK", "n_ranks");
    setenv("RANK", "one", 1);
    refused(opt, -EINVAL, "RANK", "one");
    setenv("RANK", "1", 1);
    refused(opt, -EINVAL, "WORLD_SIZE", "n_ranks");
    setenv("WORLD_SIZE", "0", 1);
    refused(opt, -EINVAL, "WORLD_SIZE", "0");
    setenv("WORLD_SIZE", "1", 1);
    refused(opt, -EINVAL, "rank is 1", "n_ranks 1");
    setenv("WORLD_SIZE", "99999999999999999999", 1);
    refused(opt, -EINVAL, "WORLD_SIZE", "99999999999999999999");
    setenv("WORLD_SIZE", "2", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "-1", 1);
    opt.attempt = POISE_NONE;
    refused(opt, -EINVAL, "TORCHELASTIC_RESTART_COUNT", "-1");
    opt.attempt = 0;
    setenv("POISE_JOB", "", 1);
    opt.job = NULL;
    refused(opt, -EINVAL, "job", "POISE_JOB");
}

#define REFUSED(member, value, first, second)                                                                          \
    do {                                                                                                               \
        struct poise_options opt = usual();                                                                            \
        opt.member = value;                                                                                            \
        refused(opt, -EINVAL, first, second);                                                                          \
    } while (0)

Test(options_env, bad_values_are_named)
{
    char long_job[200];

    memset(long_job, 'x', sizeof long_job - 1);
    long_job[sizeof long_job - 1] = 0;
    REFUSED(job, long_job, "job", "199");
    REFUSED(job, "", "job", "empty");
    REFUSED(job, "a\nb", "job", "control");
    REFUSED(group, "", "group", "empty");
    REFUSED(rank, 4, "rank is 4", "n_ranks 4");
    REFUSED(n_ranks, WIRE_MAX_RANKS + 1, "n_ranks", "1048577");
    REFUSED(replica, 1, "replica is 1", "n_replicas 1");
    REFUSED(n_replicas, WIRE_MAX_REPLICAS + 1, "n_replicas", "4097");
    REFUSED(flags, 8, "flags", "0x8");
    REFUSED(first_step, UINT64_MAX, "first_step", "18446744073709551615");
    REFUSED(cost, NULL, "cost", "phases");
    REFUSED(cost, "no such model", "no such model", "length");
    REFUSED(mode, 3, "mode", "3");
    REFUSED(objective, 9, "objective", "9");
    REFUSED(count, 7, "count", "7");
    REFUSED(cut, 3, "cut", "3");
    REFUSED(end, 2, "end", "2");
    REFUSED(algorithm, "best", "best", "greedy");
    REFUSED(prefetch_depth, 9, "prefetch_depth", "9");
    REFUSED(n_iterators, 65, "n_iterators", "65");
    REFUSED(daemon_timeout_ms, -1, "daemon_timeout_ms", "-1");
    REFUSED(open_timeout_ms, INT64_MAX, "open_timeout_ms", "9223372036854775807");
    REFUSED(close_timeout_ms, -2, "close_timeout_ms", "-2");
    REFUSED(socket_dir, long_job, "socket_dir", "199");
    REFUSED(n_phases, 2, "phases", "length");
}

Test(options_env, bad_phases_are_named)
{
    struct poise_phase phases[2] = {{.name = "vision", .linear = 1}, {.name = "vision", .linear = 2}};
    struct poise_options opt = usual();

    opt.cost = NULL;
    opt.n_phases = 2;
    refused(opt, -EINVAL, "phases", "NULL");
    opt.phases = phases;
    refused(opt, -EINVAL, "struct poise_phase", "size");
    opt.phase_size = sizeof *phases;
    refused(opt, -EINVAL, "vision", "same name");
    phases[1].name[0] = 0;
    refused(opt, -EINVAL, "phase 1", "empty");
    strcpy(phases[1].name, "text");
    phases[1].flags = 16;
    refused(opt, -EINVAL, "text", "0x10");
    phases[1].flags = 0;
    struct settings s = resolved(opt);
    cr_assert_eq(s.options.n_phases, 2);
    cr_assert_eq(s.options.phases[1].passes, 1);
    settings_free(&s);
    opt.n_phases = POISE_MAX_PHASES + 1;
    refused(opt, -EINVAL, "n_phases", "9");
}

Test(options_env, struct_sizes_of_other_headers)
{
    struct {
        struct poise_options opt;
        uint64_t later[2];
    } newer = {.opt = usual()};
    struct settings s;
    struct poise_err err;

    newer.opt.size = 0;
    cr_assert_eq(settings_resolve(&newer.opt, &s, &err), -EINVAL);
    cr_assert(strstr(err.text, "sizeof"), "%s", err.text);
    newer.opt.size = sizeof newer;
    cr_assert_eq(settings_resolve(&newer.opt, &s, &err), 0, "%s", err.text);
    settings_free(&s);
    newer.later[1] = 1;
    cr_assert_eq(settings_resolve(&newer.opt, &s, &err), -E2BIG);
    cr_assert(strstr(err.text, "update libpoise"), "%s", err.text);
    cr_assert_eq(settings_resolve(NULL, &s, &err), -EINVAL);
    cr_assert_eq(settings_resolve(&newer.opt, &s, NULL), -E2BIG);
}

/* All ranks ask, rank 0 writes; a restart by the launcher writes a file of its own. */
Test(options_env, a_record_is_asked_for_by_all_and_written_by_one)
{
    struct poise_options opt = usual();

    struct settings s = resolved(opt);
    cr_assert(!s.record && !s.options.record);
    settings_free(&s);
    setenv("POISE_RECORD", "/tmp/a", 1);
    s = resolved(opt); /* rank 1 */
    cr_assert(!s.record && s.options.record == 1);
    settings_free(&s);
    opt.rank = 0;
    s = resolved(opt);
    cr_assert_str_eq(s.record, "/tmp/a");
    cr_assert_eq(s.record_max_bytes, UINT64_C(1) << 30);
    settings_free(&s);
    opt.record = "/tmp/b";
    opt.attempt = 2;
    s = resolved(opt);
    cr_assert_str_eq(s.record, "/tmp/b.2");
    settings_free(&s);
    opt.record_max_bytes = 1000;
    refused(opt, -EINVAL, "record_max_bytes is 1000", "65536");
    opt.record_max_bytes = 0;
    opt.record = "";
    refused(opt, -EINVAL, "record is empty", "");
}

/* The option wins; both reach every coordinator as text. */
Test(options_env, an_audit_is_asked_for_by_option_or_environment)
{
    struct poise_options opt = usual();
    struct settings s = resolved(opt);

    cr_assert_eq(s.options.audit, 0);
    settings_free(&s);
    setenv("POISE_AUDIT", "20", 1);
    s = resolved(opt);
    cr_assert_eq(s.options.audit, 20);
    settings_free(&s);
    opt.audit = 7;
    s = resolved(opt);
    cr_assert_eq(s.options.audit, 7);
    bool there = false;
    for (uint32_t i = 0; i < s.join.n_options; i++)
        there |= strcmp(s.join.options[i].key, "audit") == 0 && strcmp(s.join.options[i].value, "7") == 0;
    cr_assert(there);
    settings_free(&s);
    opt.audit = 0;
    setenv("POISE_AUDIT", "often", 1);
    refused(opt, -EINVAL, "POISE_AUDIT", "often");
}

/* A program that was built before there were records passes a smaller struct. */
Test(options_env, options_of_an_older_header_are_taken)
{
    struct poise_options opt = usual();

    opt.rank = 0;
    opt.size = offsetof(struct poise_options, record);
    opt.record = "/tmp/not-looked-at";
    struct settings s = resolved(opt);
    cr_assert(!s.record && !s.options.record);
    settings_free(&s);
}

static void expect_coordinators(const char *option, const char *list)
{
    struct poise_options opt = usual();

    opt.coordinators = option;
    struct settings s = resolved(opt);
    cr_assert_str_eq(s.join.coordinators, list);
    settings_free(&s);
}

/* Every process of a job must come to the same text. */
Test(options_env, coordinators_follow_from_the_launcher)
{
    static const struct {
        const char *master, *world, *local, *nodes, *list;
    } cases[] = {
        {"head", "16", "8", NULL, "tcp://head:29410"},       {"10.0.0.1", "9", "1", NULL, "tcp://10.0.0.1:29410"},
        {"fd00::1", "16", "8", NULL, "tcp://[fd00::1]:29410"}, {"[fd00::1]", "16", "8", NULL, "tcp://[fd00::1]:29410"},
        {"head", "8", "8", NULL, ""},                        {"head", "16", NULL, NULL, ""},
        {"head", NULL, NULL, "2", "tcp://head:29410"},       {"head", "16", NULL, "1", ""},
        {"head", "8", "8", "2", ""},                         {"127.0.0.1", "16", "8", NULL, ""},
        {"localhost", "16", "8", NULL, ""},                  {"::1", "16", "8", NULL, ""},
        {"", "16", "8", NULL, ""},                           {NULL, "16", "8", NULL, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const values[][2] = {{"MASTER_ADDR", cases[i].master}, {"WORLD_SIZE", cases[i].world},
                                         {"LOCAL_WORLD_SIZE", cases[i].local}, {"SLURM_STEP_NUM_NODES", cases[i].nodes}};
        for (size_t k = 0; k < 4; k++) {
            unsetenv(values[k][0]);
            if (values[k][1])
                setenv(values[k][0], values[k][1], 1);
        }
        expect_coordinators(NULL, cases[i].list);
        expect_coordinators("tcp://other", "tcp://other");
        expect_coordinators("", "");
    }
}

Test(options_env, coordinators_of_the_user_win)
{
    char longest[1100] = "tcp://";
    struct poise_options opt = usual();

    setenv("MASTER_ADDR", "head", 1);
    setenv("WORLD_SIZE", "16", 1);
    setenv("LOCAL_WORLD_SIZE", "8", 1);
    setenv("POISE_COORDINATORS", "tcp://a,tcp://b:5", 1);
    expect_coordinators(NULL, "tcp://a,tcp://b:5");
    expect_coordinators("tcp://c", "tcp://c");
    setenv("POISE_COORDINATORS", "", 1); /* the local daemon is asked for */
    expect_coordinators(NULL, "");
    memset(longest + 6, 'x', 1030);
    opt.coordinators = longest;
    refused(opt, -EINVAL, "coordinators has 1036 bytes", "1023");
    opt.coordinators = "tcp://a\nb";
    refused(opt, -EINVAL, "coordinators has a control character", "byte 7");
    opt.coordinators = NULL;
    unsetenv("POISE_COORDINATORS");
    setenv("LOCAL_WORLD_SIZE", "8x", 1);
    refused(opt, -EINVAL, "LOCAL_WORLD_SIZE", "8x");
}

Test(options_env, an_interface_is_taken_from_option_or_environment)
{
    struct poise_options opt = usual();
    struct settings s = resolved(opt);

    cr_assert_str_eq(s.interface, "");
    settings_free(&s);
    setenv("POISE_INTERFACE", "^docker", 1);
    s = resolved(opt);
    cr_assert_str_eq(s.interface, "^docker");
    settings_free(&s);
    opt.interface = "=eth1";
    s = resolved(opt);
    cr_assert_str_eq(s.interface, "=eth1");
    settings_free(&s);
    opt.interface = "";
    refused(opt, -EINVAL, "interface is empty", "255");
}

/* The option wins. How payload goes must agree over the group; the limit and the threads are this process's own. */
Test(options_env, payload_between_nodes)
{
    struct poise_options opt = usual();
    struct settings s = resolved(opt);

    cr_assert(s.options.payload == OPTIONS_PAYLOAD_CURVE && s.max_bytes_per_s == 0 && s.payload_threads == 2);
    for (uint32_t i = 0; i < s.join.n_options; i++)
        cr_assert_str_neq(s.join.options[i].key, "payload"); /* the default is said by not saying it */
    settings_free(&s);
    setenv("POISE_PAYLOAD", "plain", 1);
    opt.max_bytes_per_s = 1000;
    opt.payload_threads = 64;
    s = resolved(opt);
    cr_assert(s.options.payload == OPTIONS_PAYLOAD_PLAIN && s.max_bytes_per_s == 1000 && s.payload_threads == 64);
    settings_free(&s);
    opt.payload = "curve";
    s = resolved(opt);
    cr_assert_eq(s.options.payload, OPTIONS_PAYLOAD_CURVE);
    settings_free(&s);
    opt.payload = "tls";
    refused(opt, -EINVAL, "payload is \"tls\"", "\"plain\"");
    opt.payload = NULL;
    setenv("POISE_PAYLOAD", "PLAIN", 1);
    refused(opt, -EINVAL, "environment variable POISE_PAYLOAD is \"PLAIN\"", "\"plain\"");
    unsetenv("POISE_PAYLOAD");
    opt.payload_threads = 65;
    refused(opt, -EINVAL, "payload_threads is 65", "64");
}
