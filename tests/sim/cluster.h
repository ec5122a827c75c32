/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster in one process on a virtual clock: nodes, coordinators, and training processes that keep their ledgers. Every
 * message goes through wire_encode and wire_decode. Between nodes and coordinators messages are lost, doubled, delayed and
 * overtaken as the configuration says; between a process and its node they are reliable, as a unix socket is.
 *
 * cluster.c is the network and the clock, trainer.c a process, oracle.c checks every step: each sample is delivered once, all
 * processes get the same outcome.
 */
#ifndef TESTS_SIM_CLUSTER_H
#define TESTS_SIM_CLUSTER_H

#include "client/ledger.h"
#include "daemon/core/coordinator.h"
#include "daemon/core/node.h"
#include "proto/options.h"

#define SIM_COORDINATORS 3

struct sim_config {
    uint64_t seed;
    uint32_t n_ranks, n_replicas, n_nodes, n_coordinators;
    uint64_t n_steps; /* that each process wants to train */
    uint64_t first_step;
    uint32_t loss_ppm, double_ppm; /* of messages between nodes and coordinators */
    uint32_t delay_ms;             /* each takes 0 to delay_ms, so they overtake each other */
    uint32_t max_samples;          /* of a rank's step */
    uint32_t depth;                /* steps submitted ahead; 0: 4 */
    uint32_t compute_ms, load_ms;  /* at most */
    uint32_t mode;
    uint32_t end;         /* POISE_END_* */
    uint64_t end_step[8]; /* ranks 0 to 7 say END from this step on; 0: never */
    uint32_t bad_rank;    /* fails bad_step */
    uint64_t bad_step;    /* 0: none */
    uint32_t leave_rank;
    uint64_t leave_after; /* steps after which that rank leaves; 0: with all */
    bool leave_hasty;     /* it leaves when it has submitted them, not when its peers have what they need of it */
    bool spread;          /* replicas of a rank are on different nodes */
    uint32_t differ_rank; /* has another micro_batch_size: 1 + rank; 0: none */
    uint32_t missing_rank; /* never comes: 1 + rank */
    uint64_t audit;        /* the option */
    bool nodes_listen; /* node i has coordinator n_coordinators + i, as far as there are so many, which others may ask */
    /* Rules broken on purpose: the simulation must notice. */
    bool forget_early;     /* a rank forgets one step too early */
    bool answer_undecided; /* NEED is answered only for steps that are undecided at that rank */
    bool one_coordinator;  /* each node sends to one coordinator of its list */
    bool rewrite;          /* a rank that is asked again says something else */
};

struct sim_step { /* what the oracle has seen of a step */
    bool used, checked;
    uint64_t step;
    uint32_t n_decided;
    uint32_t kind;
    struct wire_id plan_id;
    struct poise_totals totals;
    uint32_t n_micro_batches;
    struct wire_message **slices; /* [n_ranks] a copy of the outcome that a process of the rank got first */
    char error[512];
    struct { /* what coordinators decided, each for itself: also what nobody takes */
        struct wire_id epoch, plan_id;
        uint32_t kind;
    } pure;
};

struct sim_process {
    uint32_t rank, replica, node;
    uint64_t session;
    struct wire_incarnation incarnation;
    bool alive, connected, running, left, over;
    bool ended;             /* END was decided */
    bool leaving;           /* someone left: steps up to leave_step are delivered */
    uint64_t leave_step;
    struct wire_id epoch;
    struct ledger *ledger;
    uint64_t n_consumed;    /* steps, counted from first_step */
    uint64_t load_ready_ms, compute_ready_ms, progress_ms, pull_ms, wake_ms;
    uint32_t n_roster, n_aborts, n_bad;
    uint32_t mode;
    struct wire_id told; /* merged table that it has */
    struct wire_id told_own; /* its own, that it sent last */
    uint64_t n_tables;
    struct wire_forming forming; /* the newest */
    struct poise_err error; /* of ABORT or REFUSED */
    uint64_t error_ms;
};

struct sim_event;

struct sim {
    struct sim_config config;
    uint64_t random, now_ms, n_events, seq;
    struct sim_event **heap;
    uint32_t n_heap, cap_heap;
    struct sim_node {
        struct node *node;
        uint32_t generation;
        uint64_t tick_ms;
        bool stalled; /* does not turn; what comes waits */
    } *nodes;
    struct sim_coordinator {
        struct coordinator *coordinator;
        uint32_t generation;
        uint64_t tick_ms;
        bool stalled;
        struct coordinator_mark mark; /* outlives it */
        uint32_t n_deaths;            /* by planning fatal_step */
    } coordinators[SIM_COORDINATORS];
    uint64_t fatal_step; /* planning it kills; 0: none */
    bool keeps_down;     /* who died of it is not started again at once */
    struct sim_process *processes; /* [n_ranks * n_replicas] by (rank, replica) */
    uint32_t n_processes;
    struct wire_option *options, *other_options;
    uint32_t n_options;
    uint64_t next_session, next_instance;
    uint32_t *of_session; /* [cap_sessions] index of the process */
    uint64_t cap_sessions;
    uint64_t cut[SIM_COORDINATORS]; /* bits of nodes below 64 that this coordinator cannot reach, nor they it */
    struct sim_step *steps; /* [n_steps + slack] */
    uint32_t n_step_slots;
    uint64_t n_checked; /* steps delivered to all and found right */
    uint64_t n_samples; /* in them */
    bool quiet; /* a broken rule is expected to show: failures are counted, not reported */
    uint32_t n_failures;
    char failure[400];
    char *log; /* info lines of coordinators and nodes, one after another */
    size_t n_log;
    bool trace; /* every message to stdout */
};

/* Compares what a coordinator decided with what the others did of this epoch. */
void oracle_pure(struct sim *sim, const struct wire_message *outcome);

/* Everything up at time 0; processes open within the first 50 ms. */
void sim_start(struct sim *sim, const struct sim_config *config);
void sim_stop(struct sim *sim);
/* What was seen so far is of another epoch. */
void sim_forget_steps(struct sim *sim);

/* Until all processes that live have finished (or `until` says true), at most limit_ms of virtual time from now. True if so. */
bool sim_run(struct sim *sim, uint64_t limit_ms, bool (*until)(const struct sim *));
bool sim_finished(const struct sim *sim);
/* A process has consumed so many steps. */
bool sim_run_to_step(struct sim *sim, uint64_t n_steps, uint64_t limit_ms);

void sim_kill_process(struct sim *sim, uint32_t rank, uint32_t replica);
/* A new incarnation of a dead process. */
void sim_reopen_process(struct sim *sim, uint32_t rank, uint32_t replica);
void sim_kill_node(struct sim *sim, uint32_t node);
void sim_start_node(struct sim *sim, uint32_t node); /* its processes connect again */
void sim_kill_coordinator(struct sim *sim, uint32_t i);
void sim_start_coordinator(struct sim *sim, uint32_t i);

/* To a coordinator as if from a node, now: what a broken node may say. */
void sim_inject(struct sim *sim, uint32_t coordinator, uint32_t node, const struct wire_message *msg);

/* What is on its way from coordinators to a node is lost. */
void sim_lose(struct sim *sim, uint32_t node);

/* All processes are in an epoch. All that live were told that it is over, or have left. */
bool sim_all_running(const struct sim *sim);
bool sim_all_over(const struct sim *sim);

bool sim_logged(const struct sim *sim, const char *text);

/* cluster.c for trainer.c */
uint64_t sim_new_session(struct sim *sim, const struct sim_process *process);
uint64_t sim_random(struct sim *sim, uint64_t below);
void sim_to_node(struct sim *sim, struct sim_process *process, const struct wire_message *msg);
void sim_node_event(struct sim *sim, uint32_t node, const struct node_event *event);
void sim_end_session(struct sim *sim, struct sim_process *process); /* after what it has sent */
void sim_wake(struct sim *sim, struct sim_process *process, uint64_t at_ms);
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* trainer.c */
void trainer_open(struct sim *sim, struct sim_process *process);
void trainer_reconnect(struct sim *sim, struct sim_process *process);
void trainer_message(struct sim *sim, struct sim_process *process, const struct wire_message *msg);
void trainer_pump(struct sim *sim, struct sim_process *process);

/* What the process would submit at a step. Valid until the next call or submission of any process. */
const struct wire_message *trainer_meta(struct sim *sim, const struct sim_process *process, uint64_t step);

/* oracle.c: what a rank's step holds is a function of (seed, rank, step), so the oracle knows it too */
uint32_t oracle_n_samples(const struct sim_config *config, uint32_t rank, uint64_t step);
uint64_t oracle_length(const struct sim_config *config, uint32_t rank, uint64_t step, uint32_t index);
uint64_t oracle_hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
void oracle_outcome(struct sim *sim, const struct sim_process *process, const struct wire_message *msg);

#endif
