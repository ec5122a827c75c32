/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `make chaos`: real trainers and daemons on hosts of their own (network namespaces, where they may be made), to which
 * bad things are done at random times. One driver process does them (main.c, actions.c), keeps hosts (hosts.c) and
 * trainers (job.c), and judges: every sample of every finished step came exactly once and unaltered, every error that a
 * trainer saw was due, nothing hung, nothing was left behind (report.c). Trainers are the same binary (worker.c).
 *
 * What the driver and the trainers share is one board in a memfd. Random choices follow from the seed alone; when they
 * meet a trainer does not.
 */
#ifndef POISE_TESTS_CHAOS_H
#define POISE_TESTS_CHAOS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "client/examples/payload.h"

#define CHAOS_HOSTS 16
#define CHAOS_RANKS 64
#define CHAOS_SAMPLES 8 /* most that a rank has in a step */
#define CHAOS_WINDOW 64 /* steps on the board: trainers sync each step, so they are at most one apart */
#define CHAOS_PAUSES 4096
#define CHAOS_PAUSE_MS 100 /* a wait for a batch that is worth noting: undisturbed ones take microseconds */

/* ------------------------------------------------------------------------------------------------------------ board */

struct chaos_pause { /* of a trainer: a wait that was long */
    uint64_t from_ms, ms, step;
};

struct chaos_attempt {         /* of a rank, zero at its start */
    _Atomic uint64_t done;     /* steps that it is past: the next one to be read */
    _Atomic uint64_t error_ms; /* when an error that ends the attempt came; 0: none */
    int32_t error_code;
    char error[512];
    _Atomic uint32_t left; /* it ends in order */
    _Atomic uint32_t complained;
    char complaint[512]; /* the first thing that was not right: corrupt bytes, a step's error that was not due */
    _Atomic uint64_t samples_in, samples_out, corrupt, strays, step_errors;
};

struct chaos_rank { /* written by that rank */
    struct chaos_attempt attempt;
    _Atomic uint32_t n_pauses; /* of all attempts */
    struct chaos_pause pauses[CHAOS_PAUSES];
};

struct chaos_board {
    uint64_t seed;
    uint32_t n_ranks;
    _Atomic uint64_t end_step; /* trainers end before this step */
    struct chaos_rank ranks[CHAOS_RANKS];
    _Atomic uint32_t came[CHAOS_WINDOW][CHAOS_RANKS][CHAOS_SAMPLES]; /* how often a sample was delivered */
};

uint64_t chaos_now_ms(void);

/* A well mixed number of two; the only source of chance. */
uint64_t chaos_mix(uint64_t a, uint64_t b);

/* What the loader of a rank has in a step: the number of samples, whether it is bad (one rank fails it), sizes. */
uint32_t chaos_n_samples(const struct chaos_board *board, uint64_t step, uint32_t rank);
bool chaos_is_bad(const struct chaos_board *board, uint64_t step, uint32_t *ret_rank);
struct payload_size chaos_size(const struct payload_origin *origin);

/* The trainer: argv of `chaos --worker`. Returns the exit status. */
#define CHAOS_EXIT_ABORTED 3 /* the epoch was aborted */
int chaos_worker(int argc, char **argv);

/* ------------------------------------------------------------------------------------------------------------ hosts */

struct chaos_host {
    uint32_t number;
    pid_t holder; /* holds the network namespace; 0: the driver's own */
    pid_t daemon; /* 0: not running */
    bool stopped; /* by SIGSTOP */
    char address[64];
    char dir[96]; /* of the sockets */
    char log[96];
    char cgroup[96]; /* of its trainers; "": none may be made */
};

struct chaos_net {
    bool namespaces;
    pid_t bridge; /* holds the namespace with the bridge */
    char top[64]; /* temporary folder */
    uint32_t n_hosts, n_coordinators;
    struct chaos_host hosts[CHAOS_HOSTS];
    char coordinators[512]; /* as trainers name them */
    const char *bin;        /* folder of poised and this program */
    bool keys;              /* CURVE between nodes and for payload */
    uint64_t delay_ms;      /* of what goes between nodes and coordinators; 0: none */
    pid_t relays[CHAOS_HOSTS];
};

/* Makes namespaces (where allowed) and starts a daemon on each host. -1: said why. */
int hosts_new(struct chaos_net *net);
/* Ends all. Returns the number of things left behind, each named on standard error. */
uint32_t hosts_end(struct chaos_net *net);

int hosts_start_daemon(struct chaos_net *net, uint32_t host); /* waits until it is ready */
void hosts_kill_daemon(struct chaos_net *net, uint32_t host, int signal);
/* Runs a command in the host's network namespace; bridge: in the one of the bridge. Returns its status. */
int hosts_command(struct chaos_net *net, uint32_t host, const char *format, ...) __attribute__((format(printf, 3, 4)));
int hosts_command_bridge(struct chaos_net *net, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* In a child: enters the host's namespace. */
int hosts_enter(const struct chaos_net *net, uint32_t host);
/* The body of /status of the host's daemon, to standard error. */
void hosts_show_status(const struct chaos_net *net, uint32_t host);

/* ----------------------------------------------------------------------------------------------------------- memory */

void cgroup_new(struct chaos_host *host);
void cgroup_enter(const struct chaos_host *host);   /* in a child: all it takes counts there */
bool cgroup_squeeze(const struct chaos_host *host); /* little is left beyond what is in use; false: no cgroup */
void cgroup_relax(const struct chaos_host *host);
bool cgroup_end(struct chaos_host *host); /* false: it cannot be removed */

/* -------------------------------------------------------------------------------------------------------------- job */

enum chaos_due { DUE_NOTHING, DUE_KILLED_RANK, DUE_VANISHED_HOST };

struct chaos_job {
    struct chaos_net *net;
    struct chaos_board *board;
    int board_fd;
    uint32_t n_ranks, ranks_a_host, attempt;
    pid_t pids[CHAOS_RANKS]; /* 0: ended */
    uint64_t first_step;     /* of this attempt */
    uint64_t checked;        /* steps below are judged */
    uint64_t progress_ms;    /* when the slowest rank went on last */
    /* A fault after which the attempt must end on every rank. */
    enum chaos_due due;
    uint32_t due_rank, due_host;
    uint64_t due_ms;
    bool host_away;        /* no attempt can begin before it is back */
    bool due_clean;        /* its daemon knew it: no fault had just ended on its host */
    uint64_t named_ms_max; /* longest from the death of a rank to its name on another rank */
    /* Sums. */
    uint64_t steps, samples_in, samples_out, lost, doubled, corrupt, strays, dropped_bad, dropped_abort, step_errors;
    uint64_t undue;       /* errors that no fault explains */
    uint64_t attempts;    /* epochs */
    uint64_t not_named;   /* a due error whose text does not name the dead one, although its daemon saw it die */
    uint64_t second_hand; /* likewise, where nobody saw it: names a rank that gave up waiting for it */
};

int job_new(struct chaos_job *job, struct chaos_net *net, uint32_t ranks_a_host, uint64_t seed);
void job_free(struct chaos_job *job);
int job_start(struct chaos_job *job);
/* Reaps, judges finished steps, starts the next attempt after a due end. -1: something is wrong, and was said. */
int job_look(struct chaos_job *job);
/* All trainers have ended in order. */
bool job_ended(const struct chaos_job *job);
/* After that: judges the last steps, and that what went in came out or was dropped with its step. -1: said why. */
int job_finish(struct chaos_job *job);
void job_kill_all(struct chaos_job *job);
uint64_t job_slowest(const struct chaos_job *job);

/* ---------------------------------------------------------------------------------------------------------- actions */

struct chaos_action; /* a kind of fault */

struct chaos_fault { /* one that is under way, or was */
    const struct chaos_action *action;
    uint32_t host, rank;
    uint64_t from_ms, until_ms; /* until: when it is taken back */
    bool active;
};

#define CHAOS_FAULTS 4096

struct chaos_run {
    struct chaos_net net;
    struct chaos_job job;
    uint64_t seed, chance; /* chance: how many random numbers were taken */
    struct chaos_fault faults[CHAOS_FAULTS];
    uint32_t n_faults;
    const char *only; /* names of actions with commas; NULL: all */
    bool each;        /* each action once, in the table's order */
    bool quiet;
};

enum chaos_at { AT_ANY, AT_COORDINATOR, AT_ALL }; /* which host it meets */
enum chaos_needs { NEEDS_NOTHING, NEEDS_NETWORK, NEEDS_CGROUP };

struct chaos_action {
    const char *name, *text;
    uint32_t weight;
    uint32_t min_ms, max_ms;                                         /* how long it lasts */
    bool (*begin)(struct chaos_run *run, struct chaos_fault *fault); /* false: not possible now */
    void (*end)(struct chaos_run *run, struct chaos_fault *fault);   /* NULL: nothing to take back */
    enum chaos_at at;
    enum chaos_needs needs;
};
extern const struct chaos_action chaos_actions[];
extern const uint32_t chaos_n_actions;

uint64_t run_chance(struct chaos_run *run, uint64_t below);
/* Begins a fault that is possible now; false if there is none. */
bool actions_begin(struct chaos_run *run, uint64_t now_ms);
/* Takes back what is over. */
void actions_step(struct chaos_run *run, uint64_t now_ms);
uint32_t actions_active(const struct chaos_run *run);
/* Each that is possible here was done. */
bool actions_all_done(const struct chaos_run *run);
/* Every name of the list is one of an action; else says which are there. */
bool actions_known(const char *only);

/* ------------------------------------------------------------------------------------------------------------ relay */

/* Starts a process that takes connections to `from` at port and port + 1, and passes both ways what comes to `to`, each
 * byte delay_ms later. enter(context) moves it to where it shall be. Returns its pid, -1. */
pid_t relay_start(int (*enter)(void *), void *context, const char *from, const char *to, uint32_t port,
                  uint64_t delay_ms);

/* ----------------------------------------------------------------------------------------------------------- report */

/* Prints what was done and what came of it; true: all is as it must be. */
bool report_print(const struct chaos_run *run, FILE *out, uint32_t left_behind, double minutes);
int report_json(const struct chaos_run *run, const char *path, uint32_t left_behind, bool ok);

#endif
