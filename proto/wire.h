/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages as plain structs, and their encoding.
 *
 * Every message between a trainer, its poised and the coordinators is one struct wire_message. wire_encode() turns it
 * into the bytes of poise.proto's Envelope; wire_decode() turns bytes back, with every count, range and sum checked,
 * and never allocates more than the caller's budget. No I/O, no state: core, client and shell hand messages over as
 * they are.
 *
 * Memory: a decoded message is one block; its arrays and strings point into it and live until wire_free(). Whoever
 * builds a message to encode lends its arrays for the call.
 */
#ifndef POISE_PROTO_WIRE_H
#define POISE_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "poise.h"

#define WIRE_VERSION 1u       /* of the messages; a peer of another version is refused by name */
#define WIRE_MAX_BYTES (256u << 20) /* of one message: 131,072 samples are about 4 MB */
#define WIRE_MAX_RANKS (1u << 20)
#define WIRE_MAX_SAMPLES (1u << 24) /* of one rank's step */
#define WIRE_MAX_REPLICAS 4096u
#define WIRE_WINDOW 8u /* W: a rank submits step s only when s - W is decided */
#define WIRE_JOB_BYTES 128 /* of a job's name with its 0 */
#define WIRE_ADDRESS_BYTES 96u /* "tcp://[address of IPv6 with its scope]:port" with its 0 */
#define WIRE_LISTEN_BYTES 128 /* of a coordinator's endpoint with its 0 */
#define WIRE_MAX_LISTENS 16u  /* in a roster: more coordinators than anybody asks, and as little to send to many
                               * nodes */
#define WIRE_KEY_BYTES 32u     /* of a payload key: a secret key of CURVE */

struct wire_id { /* 128 bits: epoch, plan id, digest, table hash, token. All zero: none */
    uint64_t hi, lo;
};

/* Ordered by (attempt, opened_ns, random): a higher one of the same (job, group, rank, replica) supersedes a lower
 * one. */
struct wire_incarnation {
    uint32_t attempt;
    uint64_t opened_ns; /* CLOCK_REALTIME at open */
    uint64_t random;
};

struct wire_option {
    char *key, *value;
};

/* ----------------------------------------------------------------------------------------------------------- schema */

struct wire_field { /* as struct poise_field, self-contained */
    char name[POISE_MAX_NAME];
    uint32_t dtype, assembly, n_dims, axis;
    int64_t shape[POISE_MAX_DIMS];
    char axis_name[POISE_MAX_DIMS][POISE_MAX_NAME]; /* "" where not ragged and padded */
    uint32_t pad_side, pad_scope, pad_multiple, n_divisors;
    uint64_t pad_to, pad_bits;
    char rows_of[POISE_MAX_NAME]; /* "": not tied */
    uint32_t divisor[POISE_MAX_DIMS];
};

struct wire_table {
    uint32_t n_fields;
    struct wire_field *fields;
};

/* ------------------------------------------------------------------------------------------------- what a rank says */

struct wire_join { /* one process; CLIENT -> node, and inside MEMBERS */
    char job[WIRE_JOB_BYTES];
    char group[POISE_MAX_NAME];
    uint32_t rank, n_ranks, replica, n_replicas;
    struct wire_incarnation incarnation;
    struct wire_id epoch; /* that the process is in; none: it wants to join a new one */
    uint64_t first_step;
    uint32_t wire_version, planner_version;
    uint32_t sync_set;
    uint32_t pid;
    uint32_t uid; /* filled by the node from kernel credentials; ignored from a client */
    char host[POISE_MAX_NAME];
    char *coordinators; /* "": the local daemon */
    uint32_t n_options; /* sorted by key; what must agree (proto/options.h) */
    struct wire_option *options;
    char payload[WIRE_ADDRESS_BYTES]; /* where peers on other nodes fetch payload, "tcp://ADDR:PORT"; "": nowhere */
    uint8_t payload_key[WIRE_KEY_BYTES]; /* of the epoch, made by rank 0, replica 0; all zero: none. Only over secure
                                          * links */
};

#define WIRE_META_SAMPLES 0
#define WIRE_META_END 1  /* no data from this step on */
#define WIRE_META_BAD 2  /* poise_fail: error says why */

/* A rank's metadata of a step. Replica 0 sends columns; the others only n_samples and the digest. Write-once. */
struct wire_meta {
    struct wire_id epoch;
    uint64_t step;
    uint32_t rank, replica;
    struct wire_incarnation incarnation;
    uint32_t kind; /* WIRE_META_* */
    uint32_t mode; /* POISE_MODE_*: of this rank's node at submit; the most cautious of the step wins (off > shadow >
                    * on) */
    uint32_t speed_ppm;
    struct wire_id digest;     /* wire_meta_digest() of count, tags and features */
    struct wire_id table_hash; /* of this rank's field table so far; none: it has declared no field */
    struct wire_table *table;  /* NULL unless it changed since this rank's last step, or was asked for */
    uint32_t n_samples, n_phases, n_extents;
    bool has_columns;
    uint64_t *tag;          /* [n_samples]; NULL unless recording asks for it */
    uint64_t *bytes;        /* [n_samples] payload */
    uint64_t *packed_bytes; /* [n_samples] of these, in fields that are not padded; NULL: all */
    uint64_t *loss_tokens;  /* [n_samples] */
    uint32_t *micro_batch;  /* [n_samples] arrival; NULL: consecutive equal pieces */
    uint64_t *unit;         /* [n_samples]; NULL: all alone */
    uint8_t *unit_layout;   /* [n_samples]; NULL: all POISE_UNIT_TOGETHER */
    uint64_t *length;       /* [n_phases][n_samples] */
    uint64_t *attention;    /* [n_phases][n_samples]; NULL: length squared */
    uint32_t *extent;       /* [n_extents][n_samples], axes in the order of schema_axes() of the rank's table */
    struct poise_err error; /* WIRE_META_BAD */
    uint32_t node, sync_set; /* of the rank; filled by a coordinator that sends it down for a record, else 0 */
};

#define WIRE_WAIT_NOTHING 0
#define WIRE_WAIT_LOADER 1  /* this rank's own trainer has not submitted */
#define WIRE_WAIT_PLAN 2    /* metadata sent, outcome not here */
#define WIRE_WAIT_SHUFFLE 3
#define WIRE_WAIT_TRAINER 4 /* batches are ready, the trainer does not ask */

struct wire_report { /* what a rank tells its node for status; once a step and once a second while it waits */
    struct wire_id epoch;
    uint32_t rank, replica;
    uint64_t step;      /* delivered to the trainer last */
    uint64_t submitted; /* steps submitted so far, counted from first_step */
    uint32_t waiting;   /* WIRE_WAIT_* */
    uint64_t compute_ns; /* of report_step, from poise_report; 0: not told */
    uint64_t report_step;
    uint64_t pipeline_ns, exposed_ns; /* of the last step */
    uint64_t arena_bytes, budget_bytes;
    uint64_t samples_in, samples_out, samples_dropped, samples_verified, samples_corrupt;
};

/* ------------------------------------------------------------------------------------------- what coordinators say */

struct wire_member {
    uint32_t rank, replica;
    uint32_t node; /* number: nodes are numbered in the order of the lowest (rank, replica) that they host */
    uint32_t pid;
    struct wire_incarnation incarnation;
    char host[POISE_MAX_NAME];
    char payload[WIRE_ADDRESS_BYTES]; /* as in its JOIN */
};

struct wire_roster { /* coordinator -> nodes -> processes: the epoch begins */
    struct wire_id epoch;
    char job[WIRE_JOB_BYTES];
    char group[POISE_MAX_NAME];
    uint32_t uid;
    uint32_t n_ranks, n_replicas, n_nodes;
    uint64_t first_step;
    uint32_t n_members; /* n_ranks * n_replicas, ordered by (rank, replica) */
    struct wire_member *members;
    uint8_t *payload_key; /* 32 bytes, NULL: none; only ever over an encrypted connection */
    uint32_t n_listens; /* nodes that may coordinate where those of the list are gone, ascending by node */
    struct wire_listen {
        uint32_t node;
        char endpoint[WIRE_LISTEN_BYTES];
    } *listens;
};

#define WIRE_OUTCOME_PLAN 0
#define WIRE_OUTCOME_ERROR 1
#define WIRE_OUTCOME_END 2

struct wire_slice { /* a step's plan as one rank needs it */
    uint32_t rank;
    uint32_t n_in, n_out;
    uint32_t *in_rank, *in_index; /* [n_in] origins in delivered order */
    uint64_t *in_bytes;           /* [n_in] payload, to check the sender's directory against */
    uint32_t *count;              /* [n_micro_batches] how many of them are in each micro-batch; sum n_in */
    uint32_t *out_rank, *out_micro_batch, *out_row, *out_place; /* [n_out] where this rank's own samples go, by index */
};

struct wire_outcome { /* coordinator -> node with the slices of its ranks; node -> process with one */
    struct wire_id epoch;
    uint64_t step;
    uint32_t kind; /* WIRE_OUTCOME_* */
    struct wire_id plan_id;
    uint32_t n_micro_batches;
    struct poise_totals totals;
    struct wire_id table_hash; /* of the merged table; none: no fields */
    struct wire_table *table;  /* NULL unless it changed since the last step, or was asked for */
    uint32_t n_extents;        /* largest of the whole group's step, in the order of schema_axes() of the merged
                                * table */
    uint32_t extent[POISE_MAX_EXTENTS];
    struct poise_err error; /* WIRE_OUTCOME_ERROR */
    uint32_t n_slices;      /* PLAN */
    struct wire_slice *slices;
};

/* Why an epoch or an attempt to open one is over. */
struct wire_abort {
    struct wire_id epoch; /* none: the attempt to open */
    char job[WIRE_JOB_BYTES];
    char group[POISE_MAX_NAME];
    uint32_t rank, replica; /* whom it is about; POISE_NONE */
    bool left;              /* that one left in order: steps up to `step` are still delivered */
    uint64_t step;          /* the last one it took part in */
    struct poise_err error;
};

struct wire_beacon {
    struct wire_id instance; /* of the coordinator */
    struct wire_id epoch;
    uint64_t decided; /* number of steps decided, counted from first_step: first_step + decided - 1 is the highest */
    uint32_t n_plans; /* plan ids of the last steps, the newest last; at most WIRE_WINDOW */
    struct wire_id plan_id[WIRE_WINDOW];
    uint32_t n_missing; /* ranks whose metadata of the oldest open step is not here, at most 16 of them named */
    uint32_t missing[16];
    uint32_t missing_total;
};

struct wire_forming { /* coordinator -> node -> process: who is not there yet */
    char job[WIRE_JOB_BYTES];
    char group[POISE_MAX_NAME];
    uint32_t uid;
    uint32_t n_missing; /* processes that are named: the lowest by (rank, replica), at most 16 */
    uint32_t missing[16], missing_replica[16];
    uint32_t missing_total;
};

struct wire_heartbeat { /* node -> coordinator, once a second */
    struct wire_id instance; /* of the node */
    uint32_t n_epochs;
    struct wire_heartbeat_epoch {
        struct wire_id epoch;
        uint64_t oldest_open;
        uint32_t n_missing; /* local ranks that have not submitted it, at most 16 named */
        uint32_t missing[16];
    } *epochs;
};

/* --------------------------------------------------------------------------------------------------------- messages */

enum wire_type {
    WIRE_HELLO = 1, /* process -> node: hello */
    WIRE_WELCOME,   /* node -> process: welcome */
    WIRE_REFUSED,   /* node -> process, coordinator -> node: refused */
    WIRE_JOIN,      /* process -> node: join */
    WIRE_META,      /* process -> node: metas with one entry; node -> coordinator: metas of its ranks; coordinator ->
                     * node -> process (rank 0, replica 0), only where the option `record` asks: replica 0's metas of
                     * all ranks */
    WIRE_PULL,      /* process -> node -> coordinator: asks for a step's outcome (want_table: with the merged table) */
    WIRE_NEED,      /* coordinator -> node -> process: asks for a step's metadata (want_table: with the field table);
                     * process -> node -> coordinator: asks for the metas of a step for its record again */
    WIRE_LEAVE,     /* process -> node: leave */
    WIRE_REPORT,    /* process -> node: report */
    WIRE_ROSTER,    /* coordinator -> node -> process: roster */
    WIRE_OUTCOME,   /* coordinator -> node -> process: outcome */
    WIRE_ABORT,     /* coordinator -> node -> process, node -> coordinator when a local process died or left: abort */
    WIRE_MODE,      /* node -> process: mode */
    WIRE_MEMBERS,   /* node -> coordinator: members */
    WIRE_HEARTBEAT, /* node -> coordinator: heartbeat */
    WIRE_UNKNOWN,   /* coordinator -> node: this epoch is unknown here, send its members: epoch */
    WIRE_BEACON,    /* coordinator -> nodes: beacon */
    WIRE_FORMING,   /* coordinator -> node -> process: forming; an answer to MEMBERS of a group that is not whole */
    WIRE_N_TYPES
};

struct wire_message {
    enum wire_type type;
    union {
        struct {
            uint32_t wire_version;
            struct wire_id token; /* from the SEQPACKET connection */
        } hello;
        struct {
            uint32_t wire_version;
            struct wire_id instance; /* of the node */
            uint32_t mode;           /* POISE_MODE_*: the node's for this process's job so far */
        } welcome;
        struct {
            struct wire_join_name {
                char job[WIRE_JOB_BYTES];
                char group[POISE_MAX_NAME];
                uint32_t rank, replica;
                struct wire_incarnation incarnation;
            } who;
            struct poise_err error;
        } refused;
        struct wire_join join;
        struct {
            uint32_t n_metas;
            struct wire_meta *metas;
        } meta;
        struct {
            struct wire_id epoch;
            uint64_t step;
            bool want_table;
        } ask; /* PULL and NEED */
        struct {
            struct wire_id epoch;
            uint64_t submitted; /* steps taken part in, counted from first_step */
            bool ended;         /* after the outcome END: nobody misses it */
        } leave;
        struct wire_report report;
        struct wire_roster roster;
        struct wire_outcome outcome;
        struct wire_abort abort;
        struct {
            struct wire_id epoch;
            uint32_t mode;
        } mode;
        struct {
            struct wire_id instance; /* of the node */
            char name[POISE_MAX_NAME]; /* of the node, for messages */
            uint32_t n_joins;
            struct wire_join *joins;
            char listen[WIRE_LISTEN_BYTES]; /* where its coordinator is reached by other nodes; "": nowhere */
        } members;
        struct wire_heartbeat heartbeat;
        struct {
            struct wire_id epoch;
        } unknown;
        struct wire_beacon beacon;
        struct wire_forming forming;
    };
};

/*
 * Encodes. *ret_bytes: caller frees with free(). Errors: -EINVAL a count that contradicts its arrays or a value that
 * wire_decode would refuse, -E2BIG above WIRE_MAX_BYTES, -ENOMEM. Texts of errors are mended where they are not UTF-8.
 * Not sent: an error where `kind` says that there is none, columns where has_columns is false, attention that is length
 * squared (all phases: it comes back as NULL).
 */
int wire_encode(const struct wire_message *msg, uint8_t **ret_bytes, size_t *ret_n_bytes, struct poise_err *err);

/*
 * Decodes bytes from outside; borrows them. Allocates at most `budget` bytes in all, half of it to unpack (0: 32 times
 * n_bytes plus 2 MB, at most WIRE_MAX_BYTES x 4). Checked: version, type, every length of every column, counts that sum
 * up, ranks below n_ranks where known, n_ranks x n_replicas at most WIRE_MAX_RANKS, strings without zero bytes and with
 * valid UTF-8, dtype and rule codes. *ret_msg: caller frees with wire_free(). Errors: -EPROTO (says which field and
 * value), -EPROTONOSUPPORT another wire version, -E2BIG, -ENOMEM.
 */
int wire_decode(const uint8_t *bytes, size_t n_bytes, size_t budget, struct wire_message **ret_msg,
                struct poise_err *err);

/* Frees a message that wire_decode or wire_copy made. NULL is allowed. */
void wire_free(struct wire_message *msg);

/* A deep copy in one block. *ret_msg: caller frees with wire_free(). Errors: -ENOMEM. */
int wire_copy(const struct wire_message *msg, struct wire_message **ret_msg);

const char *wire_type_name(enum wire_type type); /* "HELLO"; "?" for an unknown one */

static inline bool wire_key_there(const uint8_t key[WIRE_KEY_BYTES]) /* not all zero */
{
    uint8_t any = 0;

    for (uint32_t i = 0; i < WIRE_KEY_BYTES; i++)
        any |= key[i];
    return any != 0;
}

static inline bool wire_id_is(struct wire_id a, struct wire_id b) { return a.hi == b.hi && a.lo == b.lo; }
static inline bool wire_id_none(struct wire_id a) { return a.hi == 0 && a.lo == 0; }

#define WIRE_ID_TEXT 33
/* 32 hexadecimal digits and a 0. Returns text. */
const char *wire_id_format(struct wire_id id, char text[WIRE_ID_TEXT]);

/* < 0, 0, > 0 */
int wire_incarnation_compare(const struct wire_incarnation *a, const struct wire_incarnation *b);

/* The hash that all replicas of a rank must agree on: kind, count, tags, lengths, attention, loss tokens, arrival
 * micro-batches, units. `tags` [n_samples] may be NULL where n_samples is 0. */
struct wire_id wire_meta_digest(const struct wire_meta *meta, const uint64_t *tags);

/* The epoch's id: a hash of job, group, n, m, options, wire and planner version, first step, and every process's
 * incarnation, sync set and node number. `joins` and `nodes` are ordered by (rank, replica), [n_ranks * n_replicas]. */
struct wire_id wire_epoch_id(const struct wire_join *const *joins, const uint32_t *nodes);

#endif
