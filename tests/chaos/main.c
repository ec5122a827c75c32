/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chaos: see chaos.h. Parses, starts hosts and trainers, does bad things until the time or the steps are over, lets the
 * job go on undisturbed to its end, ends everything, reports.
 */
#include "tests/chaos/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define LOOK_MS 20
#define GAP_MS 1500   /* at most, between two faults */
#define CALM_STEPS 20 /* at the end, undisturbed */
#define WARM_STEPS 3  /* before the first fault */
#define END_MS 60000  /* for the trainers to reach the last step */

struct options {
    double minutes;
    uint32_t ranks;  /* a host */
    uint64_t faults; /* 0: until the time is over */
    const char *json;
};

static const char usage[] =
    "chaos [--seed N] [--minutes 5] [--faults N] [--hosts 4] [--ranks 2] [--coordinators 2] [--only NAME,...]\n"
    "      [--each] [--keys] [--delay-ms MS] [--json FILE] [--quiet] [--list]\n\n"
    "Runs trainers and daemons on hosts of their own and does bad things to them at random times, for so many minutes "
    "or\n"
    "until so many were done; --each: each kind once. Ends with a report; status 1 where a sample was lost, doubled or "
    "corrupt, an error was not\n"
    "due, or something hung or was left behind.\n";

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static int parse(int argc, char **argv, struct chaos_run *run, struct options *opt)
{
    static const struct option options[] = {
        {"seed", 1, NULL, 's'},     {"minutes", 1, NULL, 'm'},      {"faults", 1, NULL, 'f'}, {"hosts", 1, NULL, 'h'},
        {"ranks", 1, NULL, 'r'},    {"coordinators", 1, NULL, 'c'}, {"only", 1, NULL, 'o'},   {"json", 1, NULL, 'j'},
        {"delay-ms", 1, NULL, 'd'}, {"each", 0, NULL, 'e'},         {"keys", 0, NULL, 'k'},   {"quiet", 0, NULL, 'q'},
        {"list", 0, NULL, 'l'},     {"help", 0, NULL, 'H'},         {NULL, 0, NULL, 0},
    };

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's':
            run->seed = strtoull(optarg, NULL, 10);
            break;
        case 'm':
            opt->minutes = strtod(optarg, NULL);
            break;
        case 'f':
            opt->faults = strtoull(optarg, NULL, 10);
            break;
        case 'h':
            run->net.n_hosts = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'r':
            opt->ranks = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'c':
            run->net.n_coordinators = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'o':
            run->only = optarg;
            break;
        case 'j':
            opt->json = optarg;
            break;
        case 'd':
            run->net.delay_ms = strtoull(optarg, NULL, 10);
            break;
        case 'e':
            run->each = true;
            break;
        case 'k':
            run->net.keys = true;
            break;
        case 'q':
            run->quiet = true;
            break;
        case 'l':
            actions_known("list");
            exit(0);
        case 'H':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            return -1;
        }
    }
    if (run->net.n_hosts < 1 || run->net.n_hosts > CHAOS_HOSTS || opt->ranks < 1 ||
        run->net.n_hosts * opt->ranks > CHAOS_RANKS || run->net.n_coordinators < 1 ||
        run->net.n_coordinators > run->net.n_hosts) {
        fprintf(stderr, "chaos: 1 to %d hosts, at most %d ranks in all, 1 coordinator to as many as there are hosts\n",
                CHAOS_HOSTS, CHAOS_RANKS);
        return -1;
    }
    return run->only && !actions_known(run->only) ? -1 : 0;
}

static const char *own_folder(void)
{
    static char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    path[n < 0 ? 0 : n] = 0;
    return dirname(path);
}

static void nap(void)
{
    poll(NULL, 0, LOOK_MS);
}

/* Bad things at random times. 0, or -1 where the job is not well. */
static int disturb(struct chaos_run *run, const struct options *opt)
{
    const uint64_t begin_ms = chaos_now_ms(), end_ms = begin_ms + (uint64_t)(opt->minutes * 60000);
    uint64_t next_ms = begin_ms;

    while (!interrupted) {
        const uint64_t now_ms = chaos_now_ms();
        const bool over =
            now_ms >= end_ms || (opt->faults && run->n_faults >= opt->faults) || (run->each && actions_all_done(run));

        actions_step(run, now_ms);
        if (job_look(&run->job) < 0)
            return -1;
        if (over && actions_active(run) == 0 && run->job.due == DUE_NOTHING)
            return 0;
        if (!over && now_ms >= next_ms && actions_active(run) < 2 &&
            job_slowest(&run->job) >= run->job.first_step + WARM_STEPS && actions_begin(run, now_ms))
            next_ms = now_ms + run_chance(run, GAP_MS);
        nap();
    }
    return 0;
}

/* The last steps, and the orderly end. */
static int calm_down(struct chaos_run *run)
{
    struct chaos_job *job = &run->job;
    const uint64_t begin_ms = chaos_now_ms(), end_step = job_slowest(job) + CALM_STEPS;

    atomic_store(&job->board->end_step, end_step);
    while (!job_ended(job)) {
        if (job_look(job) < 0)
            return -1;
        if (chaos_now_ms() - begin_ms > END_MS) {
            fprintf(stderr, "chaos: trainers do not reach step %llu\n", (unsigned long long)end_step);
            job->undue++;
            return -1;
        }
        nap();
    }
    return job_finish(job);
}

int main(int argc, char **argv)
{
    static struct chaos_run run = {.net = {.n_hosts = 4, .n_coordinators = 2}};
    struct options opt = {.minutes = 5, .ranks = 2};
    const uint64_t begin_ms = chaos_now_ms();
    uint32_t left_behind;
    bool ok;
    int rc;

    if (argc > 1 && !strcmp(argv[1], "--worker"))
        return chaos_worker(argc, argv);
    if (getrandom(&run.seed, 4, 0) != 4 || parse(argc, argv, &run, &opt) < 0)
        return 2;
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    fprintf(stderr, "chaos: seed %llu\n", (unsigned long long)run.seed);
    run.net.bin = own_folder();
    rc = hosts_new(&run.net);
    if (rc == 0)
        rc = job_new(&run.job, &run.net, opt.ranks, run.seed);
    if (rc == 0)
        rc = job_start(&run.job);
    if (rc == 0)
        rc = disturb(&run, &opt);
    if (rc == 0)
        rc = calm_down(&run);
    job_kill_all(&run.job);
    left_behind = hosts_end(&run.net);
    if (!run.job.board)
        return 1;
    ok = report_print(&run, stdout, left_behind, (double)(chaos_now_ms() - begin_ms) / 60000) && rc == 0;
    if (opt.json && report_json(&run, opt.json, left_behind, ok) < 0)
        ok = false;
    job_free(&run.job);
    return ok ? 0 : 1;
}
