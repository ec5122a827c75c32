/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a handle: what the trainer's threads and the engine's thread share, and how they wait for each other.
 *
 * Two locks. `produce` belongs to whoever submits: it guards the arena and the field table and is held while payload is
 * copied; the engine only tries it. `lock` guards everything else that is shared and is never held for longer than a
 * few microseconds, as poise_next() takes it. Order: produce before lock. What is marked "engine" needs no lock: its
 * thread alone touches it.
 */
#ifndef POISE_CLIENT_HANDLE_H
#define POISE_CLIENT_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/arena.h"
#include "client/control.h"
#include "client/delivered.h"
#include "client/ledger.h"
#include "client/link.h"
#include "client/memory.h"
#include "client/notice.h"
#include "client/peers.h"
#include "client/receive.h"
#include "client/recorder.h"
#include "client/settings.h"
#include "client/transport_memory.h"
#include "client/transport_tcp.h"

#define HANDLE_STEPS                                                                                                   \
    CONTROL_STEPS /* rings by step: a rank is at most W ahead of itself, and of the slowest rank 2 W                   \
                   */

enum handle_state {
    HANDLE_OPENING, /* no epoch yet */
    HANDLE_RUNNING,
    HANDLE_LEFT,    /* a rank left: steps up to last_step are still delivered */
    HANDLE_ABORTED, /* only release and close are left */
};

enum step_state {
    STEP_NONE,
    STEP_SUBMITTED, /* its metadata is in the ledger */
    STEP_DECIDED,   /* PLAN; micro-batches below n_ready may be read */
    STEP_ERROR,
    STEP_END,
};

struct step { /* of this rank, under lock */
    uint64_t step;
    enum step_state state;
    uint32_t n_samples; /* submitted by this rank */
    uint32_t n_in;      /* that the plan gives to this rank */
    uint32_t n_micro_batches, n_ready;
    uint32_t n_passed;     /* iterators that are past it */
    struct delivered *set; /* its micro-batches; one reference an iterator and micro-batch that was not taken yet */
    uint64_t exposed_ns;   /* that poise_next() waited in it */
    struct directory_sample *own; /* plan-only groups: what this rank's own rows say; [n_samples] */
    struct poise_err error;       /* STEP_ERROR */
};

struct sent { /* engine: a step of this rank whose receivers still read */
    uint64_t step;
    uint32_t n_left; /* receivers that are not done; 0: to be recycled when `produce` is free */
    uint32_t *left;  /* their ranks */
    bool active;
    /* For ranks on other nodes, which ask for what the plan gives them: */
    struct wire_id plan_id;
    struct merged *merged; /* the step's field table; one reference */
    uint32_t n_out, *out_rank; /* [n_out] */
    struct directory dir;  /* of the own arena */
    bool dir_open;
};

struct iterator {
    uint64_t step;
    uint32_t micro_batch;
};

struct outgoing { /* an encoded message on its way from a trainer's thread to the engine's */
    struct outgoing *next;
    size_t n_bytes;
    uint8_t *bytes;
};

struct shuffle;

enum shuffle_wait { SHUFFLE_WAITS_NOT, SHUFFLE_WAITS_SEGMENT, SHUFFLE_WAITS_ROOM, SHUFFLE_WAITS_PEER };

struct own_segment { /* engine: of the own arena, as far as it was offered */
    const void *base;
    uint64_t bytes;
    uint32_t generation;
};

struct poise {
    struct settings settings;
    uint32_t generation; /* of forks: another one now means that this is a child */
    struct wake *wake;   /* tells the engine that a trainer's thread did something; outlives the handle */
    atomic_int interrupted;
    atomic_int hurried; /* poise_hurry() */
    atomic_int wants_produce; /* the engine tried `produce` in vain */
    atomic_uint n_producing;  /* calls that use `produce`: poise_close() lets them go before it frees the handle */

    /* produce */
    pthread_mutex_t produce;
    struct arena *arena;     /* NULL in plan-only groups */
    struct wire_table table; /* declared so far; room for POISE_MAX_FIELDS, only ever grows */
    struct wire_id table_hash;
    uint32_t table_told; /* number of fields when the table was last sent along */

    /* lock */
    pthread_mutex_t lock;
    pthread_cond_t cond; /* something in this section changed */
    uint64_t progress;   /* counts these changes */
    uint32_t n_waiting;  /* threads in handle_wait() */
    bool wakes_due;      /* the engine shall wake them: handle_changed_softly() */
    uint32_t interrupt_seq;
    enum handle_state state;
    uint64_t last_step;     /* HANDLE_LEFT; the step before the first one: none */
    struct poise_err error; /* HANDLE_LEFT, HANDLE_ABORTED */
    struct ledger *ledger;
    struct step steps[HANDLE_STEPS];
    uint32_t table_of[HANDLE_STEPS]; /* number of fields when that step was submitted */
    struct wire_id hash_told;        /* of the table of the newest step */
    uint32_t fields_told;
    uint64_t sent_step; /* the oldest step that receivers still read, */
    uint32_t sent_rank; /* one of them; POISE_NONE: there is none */
    uint64_t receive_budget;
    struct iterator *iterators;
    uint64_t cursor;        /* the lowest step that an iterator has not passed */
    atomic_bool rank_ended; /* poise_end() was called: the engine sends END from here on */
    bool group_ended;       /* the outcome END came, */
    uint64_t end_step;      /* for this step */
    uint32_t mode;          /* POISE_MODE_* to stamp on metadata */
    bool oversize_told;     /* the notice about samples above a cap */
    struct outgoing *outbox, **outbox_tail;
    struct notices notices;
    struct poise_stats stats;
    enum shuffle_wait shuffle_wait;
    uint32_t shuffle_rank; /* SHUFFLE_WAITS_SEGMENT: whose */
    char shuffle_text[TRANSPORT_WAIT_TEXT]; /* SHUFFLE_WAITS_PEER: what for */
    uint32_t n_missing;    /* same-node ranks that have not submitted */
    uint32_t missing_rank; /* the lowest of them */
    uint64_t missing_step; /* of this step */
    uint64_t shuffle_at;   /* the step that is shuffled */
    uint64_t compute_ns, report_step; /* told last, */
    struct computed {                 /* and what the engine has not sent yet, oldest first */
        uint64_t step, ns;
    } computed[WIRE_WINDOW]; /* a trainer passes at most so many steps before the engine turns */
    uint32_t n_computed;
    uint64_t exposed_ns;    /* of the step read last */
    atomic_bool report_due; /* these the engine looks at without the lock */
    atomic_bool closing;    /* close was asked for */
    bool served, stop;      /* nothing is left to serve; the engine shall end */
    struct wire_id epoch;   /* written once, before state becomes HANDLE_RUNNING */

    /* engine */
    pthread_t thread;
    struct wire_forming forming; /* who was missing when that was told last; missing_total 0: not told */
    struct link *link;
    struct peers *peers;
    struct control control;
    struct receive *receive;
    int doorbell_fd; /* peers write to it */
    struct own_segment own[LOCAL_MAX_SEGMENTS];
    struct merged *merged;                  /* the group's field table so far */
    struct merged *merged_of[HANDLE_STEPS]; /* and as it was when a step was decided */
    struct sent sent[HANDLE_STEPS];
    uint32_t *gone; /* engine only: ranks that left before all their steps were decided; retire_forget() */
    uint32_t n_gone;
    struct shuffle *shuffle;
    struct transport_memory memory; /* to ranks on this node */
    struct transport_tcp *tcp;      /* to others; NULL: the group cannot span nodes */
    uint64_t *remote_done;          /* [n_ranks] steps below are done at that rank of another node; NULL with tcp */
    uint64_t closing_ms;            /* since when the handle closes; 0: it does not */
    struct recorder *recorder; /* NULL: this process writes no record */
    uint32_t twin, twin_steps;  /* a rank that submitted the same as this one in so many steps on end */
    struct arena_change change; /* that could not be sent yet */
    bool change_waits, control_offered, doorbell_offered;
    bool arena_again; /* segments must be offered once more */
    bool rostered;    /* poised knows that this process is in the epoch */
    uint64_t opened_ms;
    uint64_t lost_ms;            /* since when poised does not know this process; 0: it does. Also read under lock */
    uint64_t pull_ms, report_ms; /* when next */
    uint64_t missing_ms;
    uint64_t offer_ms;                       /* when to try again to send one; 0: nothing waits */
    uint64_t waiting_since_ms, waiting_step; /* for the notice about a long wait */
    uint64_t highest_seen;                   /* outcome that came too early */
    bool saw_later;
    uint64_t decided_ns[HANDLE_STEPS]; /* when the outcome came */
    bool wants_table;                  /* an outcome named a merged table that is not here */
    bool settled;                      /* after an abort: what was under way is given back */
    bool leave_sent;
};

/* --------------------------------------------------------------------------------------------------------- handle.c */

uint64_t handle_now_ms(void);
uint64_t handle_now_ns(void);

/* 0, or -EPERM in the child of a fork and -EINVAL for NULL. First line of every public function. */
int handle_check(const struct poise *p, struct poise_err *err);

/* -1: the options' peer_timeout_ms; else from now. Saturates. */
uint64_t handle_deadline(const struct poise *p, int64_t timeout_ms);

/* Under lock. Takes a poise_interrupt() that nobody has taken yet: the waits of all that wait end when they are
 * woken. */
bool handle_interrupted(struct poise *p);

/* Under lock. Waits while p->progress is `seen`. 0, -EINTR or -ETIMEDOUT (no text set). */
int handle_wait(struct poise *p, uint64_t seen, uint64_t deadline_ms);

/* Under lock: something changed; wakes who waits. */
void handle_changed(struct poise *p);

/* Under lock: the same for the trainer's own thread in poise_next(). Where threads outnumber processors, whoever it
 * woke would run in its place, and the trainer would wait for its own loader; so the engine wakes them. */
void handle_changed_softly(struct poise *p);

/* Under lock: the error of a handle that is aborted, or of a step above the last one. 0 if it goes on. */
int handle_dead(const struct poise *p, uint64_t step, struct poise_err *err);

/* Under lock: ends the epoch for this handle; the first reason stays, unless only a departure was known. */
void handle_abort(struct poise *p, const struct poise_err *why);

/* Under lock: rank left; steps up to last_step are still delivered. */
void handle_left(struct poise *p, uint64_t last_step, const struct poise_err *why);

/* Under lock: the record of a step; NULL where there is none. */
struct step *handle_step(struct poise *p, uint64_t step);

void handle_notice(struct poise *p, uint64_t step, uint32_t severity, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Under lock: who has not submitted `step`, in words for a message. Returns text. */
#define HANDLE_MISSING_TEXT 96
const char *handle_missing(const struct poise *p, uint64_t step, char text[HANDLE_MISSING_TEXT]);

/* handle_check(), and poise_close() waits until handle_leave(). Around calls that take `produce`. */
int handle_enter(struct poise *p, struct poise_err *err);
void handle_leave(struct poise *p);

/* Takes `produce`; gives it back and tells the engine if it wanted it. */
void handle_produce(struct poise *p);
void handle_produced(struct poise *p);

/* Empty, with its locks. *ret_p: handle_free(). Takes settings on success. */
int handle_new(struct settings *settings, struct poise **ret_p, struct poise_err *err);

/* Frees everything but what held batches need; the engine must not run. NULL is allowed. */
void handle_free(struct poise *p);

/* --------------------------------------------------------------------------------------------------------- submit.c */

/* Under lock: the engine's own END metadata of the next step. 0, -EAGAIN not yet. */
int submit_end(struct poise *p, struct poise_err *err);

/* Under lock: makes the next step bad with this reason, so that every rank hears it. */
int submit_bad(struct poise *p, const struct poise_err *why, struct poise_err *err);

/* Under lock: a step's metadata, encoded again with or without the field table. -ENOENT: it is not kept any more. */
int submit_again(struct poise *p, uint64_t step, bool want_table, uint8_t **ret_bytes, size_t *ret_n_bytes,
                 struct poise_err *err);

/* Under lock: how many steps may be submitted ahead of the one being read. */
uint32_t submit_depth(const struct poise *p);

/* -------------------------------------------------------------------------------------------------------- iterate.c */

/* Under lock, when closing or aborted, after shuffle_abandon(): gives back what no iterator will take. */
void iterate_drop(struct poise *p);

/* --------------------------------------------------------------------------------------------------------- engine.c */

int engine_start(struct poise *p, struct poise_err *err);
void engine_join(struct poise *p);

/* Engine: ends the epoch because of something found here, and lets every rank know by a bad step. */
void engine_fail(struct poise *p, const struct poise_err *why);

/* -------------------------------------------------------------------------------------------------------- session.c */

extern const struct link_calls session_calls; /* context: struct poise */

/* The memory of an epoch, as soon as it is known how many processes share the node. */
int session_memory(struct poise *p, uint32_t n_local, struct poise_err *err);

void session_offers(struct poise *p, uint64_t now_ms); /* sends what has not been offered yet */
void session_outbox(struct poise *p);                  /* sends what trainers' threads left */
void session_pull(struct poise *p);                    /* asks for the outcomes of all undecided steps */
void session_report(struct poise *p);
void session_record(struct poise *p, uint64_t now_ms); /* goes on with the record */
void session_leave(struct poise *p);

/* --------------------------------------------------------------------------------------------------------- decide.c */

/* An outcome of this epoch. True: it was taken; else the caller frees it. */
bool decide_take(struct poise *p, struct wire_message *msg);

/* -------------------------------------------------------------------------------------------------------- shuffle.c */

int shuffle_new(uint64_t first_step, uint32_t n_ranks, struct shuffle **ret_shuffle, struct poise_err *err);
void shuffle_free(struct shuffle *shuffle);

/* Does a bounded piece of work for the lowest step that is decided and not assembled. True: there is more to do now.
 * When the handle closes nothing is collected any more, and senders are told so. */
bool shuffle_step(struct poise *p);

/* Forgets the step that is being collected; its micro-batches are not filled any further. */
void shuffle_abandon(struct poise *p);

/* ------------------------------------------------------------------------------------------------------ neighbours.c */

/* Looks at this node's ranks when a step is collected: a notice where one submitted the same samples as this one again and
 * again. Returns the time from the last rank's submission to the outcome here; 0: not known. */
uint64_t neighbours_look(struct poise *p, uint64_t step);

/* --------------------------------------------------------------------------------------------------------- retire.c */

/* A step of this rank was decided: its receivers are awaited. PLAN only. */
int retire_begin(struct poise *p, const struct wire_outcome *outcome, struct poise_err *err);

/* Recycles what all receivers have. */
void retire_check(struct poise *p);

/* That rank, on another node, has all it takes of this step and those before it. */
void retire_done(struct poise *p, uint64_t step, uint32_t rank);

/* That rank is no receiver any more. */
void retire_forget(struct poise *p, uint32_t rank);

/* Recycles this step whoever still reads it. */
void retire_drop(struct poise *p, uint64_t step);

/* Frees what is kept of it. */
void retire_free(struct sent *sent);

/* Whether no decided step waits for receivers, or to be recycled. */
bool retire_idle(const struct poise *p);

#endif
