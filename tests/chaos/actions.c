/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What chaos does: a table of faults, each with how long it lasts, how it begins and how it is taken back. Those that
 * only delay last shorter together than a node's timeout, so no error is due for them; a killed trainer and a vanished
 * host end the epoch, which is due.
 */
#include "tests/chaos/chaos.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct chaos_host *host_of(struct chaos_run *run, const struct chaos_fault *fault)
{
    return &run->net.hosts[fault->host];
}

static bool signal_daemon(struct chaos_run *run, struct chaos_fault *fault, int signal)
{
    if (host_of(run, fault)->daemon <= 0)
        return false;
    hosts_kill_daemon(&run->net, fault->host, signal);
    return true;
}

static bool kill_daemon(struct chaos_run *run, struct chaos_fault *fault)
{
    return signal_daemon(run, fault, SIGKILL);
}

static bool end_daemon(struct chaos_run *run, struct chaos_fault *fault)
{
    return signal_daemon(run, fault, SIGTERM);
}

static void start_daemon(struct chaos_run *run, struct chaos_fault *fault)
{
    if (hosts_start_daemon(&run->net, fault->host) < 0)
        run->job.undue++;
}

static bool kill_all_daemons(struct chaos_run *run, struct chaos_fault *fault)
{
    (void)fault;
    for (uint32_t h = 0; h < run->net.n_hosts; h++)
        if (run->net.hosts[h].daemon <= 0 || run->net.hosts[h].stopped)
            return false;
    for (uint32_t h = 0; h < run->net.n_hosts; h++)
        hosts_kill_daemon(&run->net, h, SIGKILL);
    return true;
}

static void start_all_daemons(struct chaos_run *run, struct chaos_fault *fault)
{
    (void)fault;
    for (uint32_t h = 0; h < run->net.n_hosts; h++)
        if (hosts_start_daemon(&run->net, h) < 0)
            run->job.undue++;
}

static bool stop_daemon(struct chaos_run *run, struct chaos_fault *fault)
{
    return !host_of(run, fault)->stopped && signal_daemon(run, fault, SIGSTOP);
}

static void continue_daemon(struct chaos_run *run, struct chaos_fault *fault)
{
    hosts_kill_daemon(&run->net, fault->host, SIGCONT);
}

/* -------------------------------------------------------------------------------------------------------- trainers */

/* A daemon that was away a moment ago may not know its trainers again yet; one that dies then is missed, not seen to
 * die. */
#define KNOWN_MS 3000

static bool was_calm(const struct chaos_run *run, uint32_t host)
{
    for (uint32_t i = 0; i < run->n_faults; i++)
        if (run->faults[i].host == host && run->faults[i].until_ms + KNOWN_MS > chaos_now_ms())
            return false;
    return true;
}

static bool kill_trainer(struct chaos_run *run, struct chaos_fault *fault)
{
    struct chaos_job *job = &run->job;

    if (job->due != DUE_NOTHING || job->pids[fault->rank] <= 0 || job_slowest(job) <= job->first_step)
        return false;
    job->due = DUE_KILLED_RANK;
    job->due_rank = fault->rank;
    job->due_host = fault->host;
    job->due_ms = chaos_now_ms();
    job->due_clean = was_calm(run, fault->host) && was_calm(run, 0);
    kill(job->pids[fault->rank], SIGKILL);
    return true;
}

static bool stop_trainer(struct chaos_run *run, struct chaos_fault *fault)
{
    return run->job.pids[fault->rank] > 0 && kill(run->job.pids[fault->rank], SIGSTOP) == 0;
}

static void continue_trainer(struct chaos_run *run, struct chaos_fault *fault)
{
    if (run->job.pids[fault->rank] > 0)
        kill(run->job.pids[fault->rank], SIGCONT);
}

/* Its daemon cannot see it die. */
static bool kill_both(struct chaos_run *run, struct chaos_fault *fault)
{
    if (!kill_daemon(run, fault))
        return false;
    if (kill_trainer(run, fault)) {
        run->job.due_clean = false;
        return true;
    }
    start_daemon(run, fault);
    return false;
}

/* Power is gone: daemon, trainers and link at once. */
static bool vanish(struct chaos_run *run, struct chaos_fault *fault)
{
    struct chaos_job *job = &run->job;

    if (job->due != DUE_NOTHING || run->net.n_hosts < 2 || host_of(run, fault)->daemon <= 0 ||
        job_slowest(job) <= job->first_step || fault->host < run->net.n_coordinators)
        return false;
    job->due = DUE_VANISHED_HOST;
    job->due_host = fault->host;
    job->due_ms = chaos_now_ms();
    job->due_clean = false;
    job->host_away = true;
    hosts_command(&run->net, fault->host, "ip link set eth0 down");
    for (uint32_t r = fault->host * job->ranks_a_host; r < (fault->host + 1) * job->ranks_a_host; r++)
        if (job->pids[r] > 0)
            kill(job->pids[r], SIGKILL);
    hosts_kill_daemon(&run->net, fault->host, SIGKILL);
    return true;
}

static void return_host(struct chaos_run *run, struct chaos_fault *fault)
{
    hosts_command(&run->net, fault->host, "ip link set eth0 up");
    start_daemon(run, fault);
    run->job.host_away = false;
}

/* --------------------------------------------------------------------------------------------------------- networks */

static bool rule(struct chaos_run *run, struct chaos_fault *fault, const char *what)
{
    return hosts_command(&run->net, fault->host, "nft add rule inet chaos in iifname eth0 %s", what) == 0;
}

static bool cut(struct chaos_run *run, struct chaos_fault *fault)
{
    return rule(run, fault, "drop");
}

static bool lose(struct chaos_run *run, struct chaos_fault *fault)
{
    return rule(run, fault, "numgen random mod 100 '<' 10 drop");
}

static bool reset(struct chaos_run *run, struct chaos_fault *fault)
{
    return rule(run, fault, "meta l4proto tcp reject with tcp reset");
}

static void flush(struct chaos_run *run, struct chaos_fault *fault)
{
    hosts_command(&run->net, fault->host, "nft flush chain inet chaos in");
}

static bool slow(struct chaos_run *run, struct chaos_fault *fault)
{
    return hosts_command(&run->net, fault->host,
                         "tc qdisc replace dev eth0 root tbf rate 40mbit burst 64kb latency 50ms") == 0;
}

static void fast(struct chaos_run *run, struct chaos_fault *fault)
{
    hosts_command(&run->net, fault->host, "tc qdisc del dev eth0 root");
}

/* ------------------------------------------------------------------------------------------------------------ mode */

static bool set_mode(struct chaos_run *run, struct chaos_fault *fault, const char *mode)
{
    char text[640];

    if (host_of(run, fault)->daemon <= 0 || host_of(run, fault)->stopped)
        return false;
    snprintf(text, sizeof text, "%s/poisectl mode chaos-%llu/dp %s --socket-dir %s >/dev/null 2>&1", run->net.bin,
             (unsigned long long)run->job.board->seed, mode, host_of(run, fault)->dir);
    return system(text) == 0;
}

static bool switch_mode(struct chaos_run *run, struct chaos_fault *fault)
{
    return set_mode(run, fault, run_chance(run, 2) ? "off" : "shadow");
}

static void switch_on(struct chaos_run *run, struct chaos_fault *fault)
{
    set_mode(run, fault, "on");
}

static bool squeeze(struct chaos_run *run, struct chaos_fault *fault)
{
    return cgroup_squeeze(host_of(run, fault));
}

static void relax(struct chaos_run *run, struct chaos_fault *fault)
{
    cgroup_relax(host_of(run, fault));
}

/* clang-format off */
const struct chaos_action chaos_actions[] = {
    {"kill-daemon", "kill -9 of a daemon, started again", 10, 20, 1000,
     kill_daemon, start_daemon, AT_ANY, NEEDS_NOTHING},
    {"kill-coordinator", "kill -9 of a coordinator, started again", 8, 20, 1000,
     kill_daemon, start_daemon, AT_COORDINATOR, NEEDS_NOTHING},
    {"kill-daemons", "kill -9 of all daemons at once, started again", 2, 20, 500,
     kill_all_daemons, start_all_daemons, AT_ALL, NEEDS_NOTHING},
    {"restart-daemon", "SIGTERM of a daemon, started again", 4, 20, 500,
     end_daemon, start_daemon, AT_ANY, NEEDS_NOTHING},
    {"stop-daemon", "a daemon is stopped, and continued", 6, 100, 3000,
     stop_daemon, continue_daemon, AT_ANY, NEEDS_NOTHING},
    {"stop-trainer", "a trainer is stopped, and continued", 4, 100, 3000,
     stop_trainer, continue_trainer, AT_ANY, NEEDS_NOTHING},
    {"kill-trainer", "kill -9 of a trainer: the epoch ends, a new one begins", 3, 0, 0,
     kill_trainer, NULL, AT_ANY, NEEDS_NOTHING},
    {"kill-both", "kill -9 of a daemon and a trainer of its host at once", 1, 20, 1000,
     kill_both, start_daemon, AT_ANY, NEEDS_NOTHING},
    {"mode", "the mode is switched, and back to on", 4, 50, 2000,
     switch_mode, switch_on, AT_ANY, NEEDS_NOTHING},
    {"memory", "trainers of a host have 48 MB beyond what they use (cgroup)", 3, 500, 3000,
     squeeze, relax, AT_ANY, NEEDS_CGROUP},
    {"cut", "a host's link is cut", 6, 100, 3000,
     cut, flush, AT_ANY, NEEDS_NETWORK},
    {"lose", "a host loses one packet in ten", 6, 500, 3000,
     lose, flush, AT_ANY, NEEDS_NETWORK},
    {"reset", "a host's connections are reset", 6, 20, 500,
     reset, flush, AT_ANY, NEEDS_NETWORK},
    {"slow", "a host's link has 40 Mbit/s", 4, 500, 3000,
     slow, fast, AT_ANY, NEEDS_NETWORK},
    {"vanish", "a host loses its power: the epoch ends, a new one begins", 1, 11000, 13000,
     vanish, return_host, AT_ANY, NEEDS_NETWORK},
};
/* clang-format on */
const uint32_t chaos_n_actions = sizeof chaos_actions / sizeof *chaos_actions;

/* --------------------------------------------------------------------------------------------------------- choosing */

uint64_t run_chance(struct chaos_run *run, uint64_t below)
{
    return chaos_mix(run->seed ^ 0xc4a05, run->chance++) % below;
}

static bool in_list(const char *list, const char *name)
{
    const size_t n = strlen(name);

    for (const char *at = list; at && (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ','))
            return true;
    return false;
}

static bool may(const struct chaos_run *run, const struct chaos_action *action)
{
    return (!run->only || in_list(run->only, action->name)) &&
           (action->needs != NEEDS_NETWORK || (run->net.namespaces && run->net.n_hosts > 1)) &&
           (action->needs != NEEDS_CGROUP || run->net.hosts[0].cgroup[0]);
}

bool actions_known(const char *only)
{
    size_t n_known = 0, n_names = 1;

    for (const char *at = only; *at; at++)
        n_names += *at == ',';
    for (uint32_t i = 0; i < chaos_n_actions; i++)
        n_known += in_list(only, chaos_actions[i].name);
    if (n_known == n_names)
        return true;
    fprintf(stderr, "chaos: '%s': the actions are\n", only);
    for (uint32_t i = 0; i < chaos_n_actions; i++)
        fprintf(stderr, "  %-18s%s\n", chaos_actions[i].name, chaos_actions[i].text);
    return false;
}

/* A fault under way on the same host would be taken back by the wrong one. */
static bool busy(const struct chaos_run *run, const struct chaos_fault *fault)
{
    for (uint32_t i = 0; i < run->n_faults; i++)
        if (run->faults[i].active &&
            (run->faults[i].host == fault->host || run->faults[i].action->at == AT_ALL || fault->action->at == AT_ALL))
            return true;
    return false;
}

uint32_t actions_active(const struct chaos_run *run)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < run->n_faults; i++)
        n += run->faults[i].active;
    return n;
}

/* The first one that was not done yet. */
static const struct chaos_action *choose_new(const struct chaos_run *run)
{
    for (uint32_t a = 0; a < chaos_n_actions; a++) {
        bool done = !may(run, &chaos_actions[a]);
        for (uint32_t i = 0; !done && i < run->n_faults; i++)
            done = run->faults[i].action == &chaos_actions[a];
        if (!done)
            return &chaos_actions[a];
    }
    return NULL;
}

bool actions_all_done(const struct chaos_run *run)
{
    return !choose_new(run);
}

static const struct chaos_action *choose(struct chaos_run *run)
{
    uint64_t total = 0, x;

    if (run->each)
        return choose_new(run);
    for (uint32_t i = 0; i < chaos_n_actions; i++)
        total += may(run, &chaos_actions[i]) ? chaos_actions[i].weight : 0;
    if (total == 0)
        return NULL;
    x = run_chance(run, total);
    for (uint32_t i = 0;; i++) {
        const uint32_t weight = may(run, &chaos_actions[i]) ? chaos_actions[i].weight : 0;
        if (x < weight)
            return &chaos_actions[i];
        x -= weight;
    }
}

bool actions_begin(struct chaos_run *run, uint64_t now_ms)
{
    const struct chaos_action *action = choose(run);
    struct chaos_fault fault = {.action = action, .rank = (uint32_t)run_chance(run, run->job.n_ranks)};

    if (!action || run->n_faults == CHAOS_FAULTS)
        return false;
    fault.host = action->at == AT_COORDINATOR ? (uint32_t)run_chance(run, run->net.n_coordinators)
                                              : fault.rank / run->job.ranks_a_host;
    fault.from_ms = now_ms;
    fault.until_ms = now_ms + action->min_ms + run_chance(run, action->max_ms - action->min_ms + 1);
    if (busy(run, &fault) || run->job.due != DUE_NOTHING || !action->begin(run, &fault))
        return false;
    fault.active = action->end;
    if (!run->quiet)
        fprintf(stderr, "chaos: step %llu: %s, host %u rank %u, %llu ms\n", (unsigned long long)job_slowest(&run->job),
                action->name, fault.host, fault.rank, (unsigned long long)(fault.until_ms - now_ms));
    run->faults[run->n_faults++] = fault;
    return true;
}

void actions_step(struct chaos_run *run, uint64_t now_ms)
{
    for (uint32_t i = 0; i < run->n_faults; i++) {
        struct chaos_fault *fault = &run->faults[i];
        if (!fault->active || fault->until_ms > now_ms)
            continue;
        fault->active = false;
        fault->action->end(run, fault);
    }
}
