/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's insides, shared by its files: node.c (events, timers), node_join.c (processes come and go), node_links.c
 * (coordinators), node_epoch.c (how an epoch begins and ends here), node_steps.c (metadata up, outcomes down),
 * node_report.c.
 */
#ifndef POISE_CORE_NODE_STATE_H
#define POISE_CORE_NODE_STATE_H

#include "daemon/core/out.h"
#include "daemon/core/tables.h"
#include "node.h"

#define NODE_MAX_LINKS 8u /* coordinators of a job: one to three, and those that are asked when all are gone */
/* Twice the coordinator's window: local ranks may be a window apart from each other, and from what is asked for. */
#define NODE_SLOTS (4u * WIRE_WINDOW)
#define NODE_LINKS 256u      /* different coordinators of all jobs here: a connection each, so users may not make them
                              * up */
#define NODE_ASKED 2u        /* coordinators of further nodes at a time: the first is often on the host that is gone */
#define NODE_PULL_MS 100u    /* a step is not asked for again sooner: longer than an answer takes */
#define NODE_MEMBERS_MS 200u /* nor are members told again to a coordinator that keeps asking */
#define NODE_VOTE_MS 2500u   /* coordinators repeat each second that a node is silent; two may be lost */

enum session_state {
    SESSION_NEW,
    SESSION_JOINING, /* waits for the epoch to begin */
    SESSION_RUNNING,
    SESSION_OVER, /* left, refused or aborted: only the connection remains */
    SESSION_N_STATES
};

enum local_epoch_state {
    LOCAL_RUNNING,
    LOCAL_LEAVING, /* abort says who left after which step */
    LOCAL_ENDED,
    LOCAL_ABORTED,
    LOCAL_N_STATES
};

struct job {
    char job[WIRE_JOB_BYTES], group[POISE_MAX_NAME];
    uint32_t uid;
    uint32_t n_links, links[NODE_MAX_LINKS]; /* indices of node->links */
    uint32_t n_listed; /* of these, those that the job names: the others are asked while those are silent */
    uint32_t mode;
    uint32_t n_sessions, n_epochs;
    struct wire_join *joins; /* [2 * cap_joins] for a MEMBERS message: with payload keys, and without */
    uint32_t cap_joins;
    uint64_t members_ms; /* when MEMBERS is sent again while some process waits */
};

struct session {
    uint64_t id;
    uint32_t uid, pid;
    enum session_state state;
    struct wire_message *join; /* NULL before JOIN */
    struct job *job;
    struct local_epoch *epoch;
    uint32_t local;    /* index in epoch->locals */
    uint64_t joined_ms;
    bool rostered;     /* it was sent the roster since its JOIN */
    uint64_t decided;  /* highest step whose outcome it was sent + 1, counted from first_step */
    struct wire_id told; /* hash of the merged table that it has */
    struct wire_report last;
    struct node_computed computed[NODE_COMPUTED];
    uint32_t n_computed; /* of all times: the next one goes to this modulo NODE_COMPUTED */
    struct session *next_dead;
};

struct local { /* a process of an epoch on this node; stays when its session ends */
    uint32_t rank, replica;
    struct wire_incarnation incarnation;
    struct session *session; /* NULL: gone */
    bool awaited; /* it was on this node before its poised was restarted, and has not come back */
};

struct local_slot {
    bool used;
    uint64_t step;
    uint32_t n, sent; /* gathered; the first `sent` of them are on their way */
    struct wire_meta *gathered;     /* [cap_locals] in the order in which they came; arrays in kept */
    struct wire_message **kept;     /* [cap_locals] */
    uint32_t *at;                   /* [cap_locals] index in gathered + 1; 0: not here */
    bool needed;                    /* a coordinator asked: send parts as they come */
    struct wire_message *outcome;   /* NULL: not here */
    uint64_t proven_ms, pulled_ms;  /* a beacon proved that the outcome exists; asked for last. 0: never */
};

struct epoch_link { /* what a coordinator says of an epoch */
    uint64_t decided;    /* of its newest beacon */
    uint64_t members_ms; /* MEMBERS was sent on its request */
    uint64_t vote_ms;    /* it said that a node is silent; 0: never */
    struct wire_abort vote;
    bool echoed; /* it knows of the abort or leave that this node told */
};

struct local_epoch {
    struct wire_id id;
    char label[WIRE_JOB_BYTES + POISE_MAX_NAME];
    struct job *job;
    enum local_epoch_state state;
    uint64_t state_ms;
    uint32_t n_ranks, n_replicas;
    uint64_t first_step;
    uint32_t n_locals, cap_locals, n_live; /* with a session */
    struct local *locals;
    struct local_slot slots[NODE_SLOTS];
    uint64_t highest; /* highest step seen + 1, counted from first_step */
    uint64_t highest_outcome; /* likewise, with an outcome */
    uint32_t n_awaited;
    uint64_t awaited_ms;   /* since when */
    struct tables tables; /* merged ones, to hand them to processes that lack them */
    struct epoch_link links[NODE_MAX_LINKS]; /* as job->links */
    struct wire_abort abort; /* LEAVING, ABORTED */
    bool tell_up; /* abort is told to coordinators until they echo it */
    uint32_t number; /* of this node */
    uint32_t n_listens, next_listen; /* coordinators of further nodes; the next one to ask */
    struct wire_listen listens[WIRE_MAX_LISTENS];
    uint64_t further_ms; /* one was asked last */
    uint64_t conflicts;
    struct audit audit;
    struct local_epoch *next_dead;
};

struct node_link {
    char *endpoint;
    uint64_t heard_ms;
    uint64_t down_ms; /* since when there is no connection; 0: there is one, or nobody knows */
    bool secure;      /* payload keys may go there */
    char why[96];     /* that it is down; "": nobody answers */
};

struct node {
    struct node_config config;
    uint64_t now_ms;
    struct session **sessions; /* sorted by id */
    uint32_t n_sessions, cap_sessions;
    struct job **jobs;
    uint32_t n_jobs, cap_jobs;
    struct local_epoch **epochs;
    uint32_t n_epochs, cap_epochs;
    struct node_link *links;
    uint32_t n_links, cap_links;
    struct wire_heartbeat_epoch *beats;
    uint32_t cap_beats;
    uint64_t beat_ms, expected_ms;
    struct session *dead_sessions; /* freed at the next event */
    struct local_epoch *dead_epochs;
    uint64_t messages, stale, refused, pulls;
    struct wire_message *passed; /* on to a process as it came; freed at the next event */
    struct core_out out;
};

/* node.c */
struct session *node_session(const struct node *node, uint64_t id);
/* node_report.c */
void node_on_report(struct session *session, const struct wire_report *report);
void node_audit(struct local_epoch *epoch, const struct wire_outcome *outcome); /* a new outcome */

struct local_epoch *node_epoch(const struct node *node, struct wire_id id);
struct job *node_job(const struct node *node, uint32_t uid, const char *job, const char *group);
/* Which of the job's links a link number is; POISE_NONE: none. */
uint32_t job_link(const struct job *job, uint64_t link);
void job_send_up(struct node *node, const struct job *job, const struct wire_message *msg);
void session_turn(struct node *node, struct session *session, enum session_state to, const char *why);

/* node_join.c. Those that return int: 0 or -ENOMEM without effect. */
int node_on_session(struct node *node, uint64_t id, uint32_t uid, uint32_t pid);
int node_on_join(struct node *node, struct session *session, const struct wire_message *msg);
void node_on_session_end(struct node *node, struct session *session);
void node_on_leave(struct node *node, struct session *session, const struct wire_message *msg);
void node_on_refused(struct node *node, const struct wire_message *msg);
/* For the rest of its group: it is new, or its poised was restarted. */
bool node_session_waits(const struct session *session);
void node_on_forming(struct node *node, const struct wire_message *msg);
void node_send_members(struct node *node, struct job *job, uint64_t link); /* UINT64_MAX: to all of its links */
void session_detach(struct node *node, struct session *session);
void session_abort(struct node *node, struct session *session, const struct wire_abort *abort);

/* node_links.c */
int node_add_links(struct node *node, struct job *job, const char *list); /* 0 or -ENOMEM without effect */
uint32_t node_count_endpoints(const char *list);
void node_ask_further(struct node *node, struct local_epoch *epoch);
void node_link_down(const struct node *node, struct node_link *link, const char *why);
void node_check_links(struct node *node, struct job *job);

/* node_epoch.c */
struct local_epoch *local_epoch_new(struct node *node, struct job *job, const struct wire_join *join,
                                    struct wire_id id);
void local_epoch_free(struct local_epoch *epoch);
int local_epoch_reserve(struct local_epoch *epoch, uint32_t n_locals);
void local_epoch_attach(struct local_epoch *epoch, struct session *session); /* there is room */
int node_on_roster(struct node *node, uint64_t link, const struct wire_message *msg);
void node_on_abort(struct node *node, uint64_t link, const struct wire_message *msg);
void local_epoch_end(struct node *node, struct local_epoch *epoch, const struct wire_abort *abort, bool tell_up,
                     const struct session *except);
void local_epoch_turn(struct node *node, struct local_epoch *epoch, enum local_epoch_state to, const char *why);
void node_tick_epochs(struct node *node);
void node_check_votes(struct node *node, struct local_epoch *epoch);

/* node_steps.c */
int node_on_meta(struct node *node, struct session *session, const struct wire_message *msg);
int node_on_outcome(struct node *node, const struct wire_message *msg);
void node_on_pull(struct node *node, struct session *session, const struct wire_message *msg);
void node_on_need(struct node *node, uint64_t link, const struct wire_message *msg);
int node_on_record(struct node *node, const struct wire_message *msg);                            /* META from above */
void node_on_record_need(struct node *node, struct session *session, const struct wire_message *msg); /* NEED from
                                                                                                       * below */
void node_on_beacon(struct node *node, uint64_t link, const struct wire_message *msg);
void local_epoch_resend(struct node *node, struct local_epoch *epoch, uint64_t link);
void local_epoch_pull_proven(struct node *node, struct local_epoch *epoch);
void local_epoch_beat(const struct local_epoch *epoch, struct wire_heartbeat_epoch *beat);
uint64_t local_epoch_next_ms(const struct node *node, const struct local_epoch *epoch);
void local_slots_free(struct local_epoch *epoch);

#endif
