/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poise: keeps the data-parallel ranks of a training run evenly loaded.
 *
 * Every rank submits the samples that its loader gave it; poise decides, outside the trainer, which rank trains on
 * which sample, moves the samples peer to peer, and hands back assembled, balanced micro-batches. Order inside a global
 * batch does not change the gradient, so no sample is lost, doubled or altered, and training stays the same.
 *
 * Link with `pkg-config --cflags --libs poise`. A daemon, `poised`, must run on the node.
 *
 *     struct poise_err err;
 *     struct poise_options opt = { .size = sizeof opt, .job = "vlm-7b", .rank = rank, .n_ranks = n,
 *                                  .cost = "qwen2.5-vl-7b", .micro_batch_size = 2 };
 *     struct poise *p;
 *     if (poise_open(&opt, &p, &err) < 0) die(err.text);
 *     poise_declare(p, fields, n_fields, sizeof *fields, &err);
 *     for (uint64_t step = 0; step < n_steps; step++) {
 *         poise_submit(p, step, samples, n_samples, sizeof *samples, -1, &err);
 *         for (int last = 0; !last;) {
 *             const struct poise_batch *b;
 *             if (poise_next(p, 0, -1, &b, &err) < 0) die(err.text);
 *             train(b);
 *             last = b->micro_batch + 1 == b->n_micro_batches;
 *             poise_release(b);
 *         }
 *     }
 *     poise_close(p, &err);
 *
 * Threads.  One handle may be used from several threads: one submits, one reads each iterator, any releases. The
 *           library runs one thread of its own a handle, with all signals blocked. It never logs: see poise_notice().
 * Fork.     After fork() the child may not use a handle of its parent: calls return -EPERM. Nothing of the parent's is
 *           mapped in the child, and the parent's death is seen although children live.
 * Blocking. poise_open, poise_alloc, poise_submit, poise_next and poise_close block, each with a deadline; a timeout_ms
 *           of -1 takes the deadline of the options, 0 polls. poise_interrupt() ends all waits with -EINTR.
 * Errors.   0, or a negative errno and a text in *err (which may be NULL) that names the thing, the value and what to
 *           do. On failure there is no side effect, outputs are untouched and ownership is unchanged. These have a
 *           meaning of their own:
 *             -ENODATA    poise_next: the data has ended on the ranks, as the option `end` says
 *             -EBADMSG    poise_next: this step's outcome is an error (the same text on every rank); the next goes on
 *             -ETIMEDOUT  nothing happened in time; the text says what was waited for
 *             -EINTR      poise_interrupt() was called
 *             -ESHUTDOWN  the epoch was aborted (a rank died, a node fell silent); only release and close are left
 *             -E2BIG      a struct of a newer version of this header has members set that this library does not know
 * Words.    rank: a data-parallel rank. replica: one of the m processes of a rank that must see the same micro-batches
 *           (tensor, context and pipeline parallel peers). length: the sequence length of a sample in a phase (tokens,
 *           patches). cost: in units of 1,024 FLOP.
 * Sizes.    Structs that may grow begin with their size, arrays cross with their element size. Zero is the default.
 */
#ifndef POISE_H
#define POISE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define POISE_VERSION "0.1.0"

#define POISE_MAX_DIMS 8     /* of a sample's field; the micro-batch may add one, so a sample has at most 7 */
#define POISE_MAX_PHASES 8   /* vision, audio, LLM ... */
#define POISE_MAX_EXTENTS 4  /* different ragged axes of padded fields, shared between fields by name */
#define POISE_MAX_FIELDS 256 /* fields of a group, over all ranks */
#define POISE_MAX_NAME 64    /* bytes of a name of a field, axis or phase, with its 0 */
#define POISE_NONE UINT32_MAX

/*
 * What went wrong. Fixed for ever: it never grows. `code` is the negative errno that was returned; rank, sample and
 * field are POISE_NONE or "" where they do not apply.
 */
struct poise_err {
    int32_t code;
    uint32_t rank;   /* whose input it was */
    uint32_t sample; /* index in that rank's submission */
    uint32_t reserved;
    uint64_t step;
    char field[POISE_MAX_NAME];
    char text[512]; /* one line, no newline at its end */
};

/* Element types of fields. */
#define POISE_BYTES 0 /* opaque bytes or a string: element size 1 */
#define POISE_BOOL 1
#define POISE_U8 2
#define POISE_I8 3
#define POISE_U16 4
#define POISE_I16 5
#define POISE_U32 6
#define POISE_I32 7
#define POISE_U64 8
#define POISE_I64 9
#define POISE_F16 10
#define POISE_BF16 11
#define POISE_F32 12
#define POISE_F64 13
#define POISE_F8E4M3 14
#define POISE_F8E5M2 15
#define POISE_C64 16
#define POISE_C128 17
#define POISE_N_DTYPES 18

/* The field's name for messages ("bfloat16"), NULL for an unknown code; its size in bytes, 0 for an unknown code. */
const char *poise_dtype_name(uint32_t dtype);
uint32_t poise_dtype_bytes(uint32_t dtype);

/* ---------------------------------------------------------------------------------------------------------- options */

/* How a sample's cost follows from its length and attention in one phase:
 * passes * (linear * length + quadratic * attention + constant), in units of 1,024 FLOP. */
struct poise_phase {
    char name[POISE_MAX_NAME];
    uint64_t linear;
    uint64_t quadratic;
    uint64_t constant; /* for each sample whose length in this phase is not 0 */
    uint32_t passes;   /* 1 frozen, 3 trained, 4 trained with recomputation; 0 is taken as 1 */
    uint32_t flags;    /* POISE_PHASE_* */
};
#define POISE_PHASE_PADDED 1u  /* a micro-batch costs its largest length x count */
#define POISE_PHASE_BARRIER 2u /* ranks meet after this phase: phases are summed outside the maximum */

#define POISE_MODE_ON 0     /* balance */
#define POISE_MODE_SHADOW 1 /* plan and report, deliver arrival order */
#define POISE_MODE_OFF 2    /* deliver arrival order */

#define POISE_COUNT_EQUAL 0   /* every rank keeps its own number of samples */
#define POISE_COUNT_BOUNDED 1 /* numbers differ by at most one */
#define POISE_COUNT_FREE 2    /* any; the loss must be normalised by the whole step: see weight_step */

#define POISE_OBJECTIVE_STEP 0       /* ranks meet once a step (DDP, ZeRO-1/2) */
#define POISE_OBJECTIVE_MICROBATCH 1 /* ranks of a sync set meet at every micro-batch (FSDP, expert parallel) */
#define POISE_OBJECTIVE_PIPELINE 2   /* pipeline stages: sum + (stages - 1) x largest micro-batch */

#define POISE_CUT_FIXED 0     /* micro_batch_size samples each */
#define POISE_CUT_BY_COST 1   /* n_micro_batches each, sizes free (packed training) */
#define POISE_CUT_AS_NEEDED 2 /* the smallest number that fits the caps */

#define POISE_END_STOP 0     /* the first rank that ends ends all */
#define POISE_END_CONTINUE 1 /* a rank that ended contributes nothing until all have */

#define POISE_PLAN_ONLY 1u /* flags: the group exchanges metadata and mappings, no payload */
#define POISE_DEBUG_SLOTS 2u /* flags: released slots are made inaccessible, so a use after release faults */

#define POISE_NO_CAP UINT64_MAX /* a cap of 0 is the default: the largest of arrival order */

struct poise_options {
    size_t size; /* sizeof(struct poise_options) */

    /* Who. All processes of a group must give the same job, group, n_ranks, n_replicas and the same "what" below. */
    const char *job;   /* NULL: from POISE_JOB, else made from the launcher's run id, master address, port and restart
                        * count */
    const char *group; /* NULL: "dp" */
    uint32_t rank;
    uint32_t n_ranks;    /* 0: rank and n_ranks from RANK and WORLD_SIZE */
    uint32_t replica;
    uint32_t n_replicas; /* 0: 1 */
    uint32_t attempt;    /* the launcher's restart count; POISE_NONE: from TORCHELASTIC_RESTART_COUNT, else 0 */
    uint32_t flags;      /* POISE_PLAN_ONLY, POISE_DEBUG_SLOTS */
    const char *socket_dir; /* where poised's sockets are; NULL: POISE_SOCKET_DIR, else /run/poise */
    const char *coordinators; /* endpoints, separated by commas; "": the local daemon. NULL: POISE_COORDINATORS, else
                               * tcp://MASTER_ADDR:29410 where the launcher says that the job spans hosts, else "" */
    uint64_t first_step; /* of this run; a resumed job begins where it left */

    /* What to balance. */
    const char *cost; /* a preset ("qwen2.5-vl-7b"), "length", "length_squared"; NULL where phases are given */
    const struct poise_phase *phases; /* custom coefficients */
    size_t phase_size;                /* sizeof *phases */
    uint32_t n_phases;
    uint32_t mode;            /* POISE_MODE_*: the starting mode */
    const char *algorithm;    /* NULL: the default */
    uint32_t objective;       /* POISE_OBJECTIVE_* */
    uint32_t count;           /* POISE_COUNT_* */
    uint32_t cut;             /* POISE_CUT_* */
    uint32_t tolerance_ppm;   /* how far above the lower bound is good enough; 0: 10,000 (1 %) */
    uint32_t micro_batch_size; /* samples; 0: all of a step (one micro-batch), or as n_micro_batches says */
    uint32_t n_micro_batches;  /* 0: as many as micro_batch_size makes */
    uint32_t stages;           /* pipeline stages; 0: 1 */
    uint32_t sync_set;         /* of this rank; ranks of the same number meet at every micro-batch */
    uint32_t speed_ppm;        /* of this rank; 0: 1,000,000 */
    uint32_t end;              /* POISE_END_* */
    uint32_t image_encoder_dp; /* the reference's algorithms only; 0: n_ranks */
    uint64_t cap_samples_rank, cap_samples_micro_batch; /* 0: none */
    uint64_t cap_bytes_rank;                            /* after padding; 0: the largest of arrival order */
    uint64_t cap_length_rank[POISE_MAX_PHASES];         /* 0: the largest of arrival order, or POISE_NO_CAP */
    uint64_t cap_length_micro_batch[POISE_MAX_PHASES];  /* likewise */

    /* How. */
    uint64_t memory_budget;  /* bytes of a rank's arenas; 0: a quarter of what is free, over the local ranks */
    uint32_t prefetch_depth; /* steps submitted ahead of the one being read, at most 8, of which 7 are used; 0: 2 */
    uint32_t n_iterators;    /* that each read every micro-batch (virtual pipeline stages); 0: 1 */
    uint32_t verify_first;   /* verify the hash of every sample in the first so many steps; 0: 20 */
    uint32_t verify_every;   /* and then in one step of so many; 0: 100; POISE_NONE: never */
    int64_t daemon_timeout_ms; /* 0: 5,000: no daemon answers at open */
    int64_t open_timeout_ms;   /* 0: 600,000: peers never come */
    int64_t peer_timeout_ms;   /* 0: 3,600,000: alive and slow; the deadline of submit and next */
    int64_t node_timeout_ms;   /* 0: 10,000: the local daemon is gone */
    int64_t close_timeout_ms;  /* 0: 30,000: peers still read what this rank sent */

    /* A record of the metadata and the outcome of each step, for `poisectl explain` and `simulate`. All processes must
     * ask for it; replica 0 of rank 0 writes it. */
    const char *record; /* the file: new or empty; ".1" is added at the launcher's first restart. NULL: POISE_RECORD,
                         * else none */
    uint64_t record_max_bytes; /* recording stops before the file is larger; 0: 1 GiB */

    /* The interface that peers on other nodes reach this process by: names in the syntax of NCCL_SOCKET_IFNAME
     * ("eth0,ib", "=eth0", "^docker,lo"), or an address of this host. NULL: POISE_INTERFACE, else NCCL_SOCKET_IFNAME,
     * else GLOO_SOCKET_IFNAME, else the route to the first coordinator. */
    const char *interface;

    /* Measures on the running job what balancing gives: so many steps balanced, so many in arrival order, and so on;
     * `poisectl status` shows both measured step times (of poise_report) and the speed-up, with 95 % intervals. 0:
     * POISE_AUDIT, else off. */
    uint64_t audit;

    /* Payload between nodes; within a node it never leaves memory. */
    const char *payload; /* "curve" (encrypted) or "plain", alike on all ranks. NULL: POISE_PAYLOAD, else "curve" */
    uint64_t max_bytes_per_s; /* that this node serves to others, shared equally by its ranks; 0: no limit */
    uint32_t payload_threads; /* that send, receive and encrypt, of this process; 0: 2 */
};

/* ------------------------------------------------------------------------------------------------------- the handle */

struct poise;

/* The library's version, "0.1.0"; static. */
const char *poise_version(void);

/*
 * Joins the group: blocks until all n_ranks * n_replicas processes have, at most open_timeout_ms. Copies the options.
 * *ret_p: caller frees with poise_close(). Errors: -EINVAL bad option or one that differs from a peer's (both are
 * named); -ECONNREFUSED no daemon; -EACCES its socket may not be opened; -ETIMEDOUT peers did not come (see `poisectl
 * status`); -EPROTONOSUPPORT daemon and library have different wire versions; -ENOMEM; -EMFILE.
 */
int poise_open(const struct poise_options *opt, struct poise **ret_p, struct poise_err *err);

/*
 * Leaves in order: serves what this rank took part in until its receivers are done (at most close_timeout_ms), tells
 * the daemon, frees the handle. Calls that wait in other threads return -ESHUTDOWN; none may begin from now on. Batches
 * that are still held stay valid until they are released. NULL is allowed. Returns
 * -ETIMEDOUT, with the handle freed all the same, where receivers were not done.
 */
int poise_close(struct poise *p, struct poise_err *err);

/* Ends every wait of other threads in this handle with -EINTR, and the next one that would begin if none waits now.
 * Only poise_close(), with which a program ends after an interrupt, is ended where it waits already, and not where it
 * would begin: peers still read what this rank sent. Async-signal-safe. */
void poise_interrupt(struct poise *p);

/* The poise_close() to come serves nobody: for a trainer that gives up, which peers learn the sooner the better. */
void poise_hurry(struct poise *p);

/* ----------------------------------------------------------------------------------------------------------- fields */

#define POISE_CONCAT 0 /* samples are concatenated along `axis` */
#define POISE_PADDED 1 /* samples are stacked at a new `axis`; ragged axes are padded */
#define POISE_OPAQUE 2 /* one after the other, 16-byte aligned, found through the sample's own tensor */

#define POISE_PAD_RIGHT 0
#define POISE_PAD_LEFT 1

#define POISE_PAD_MICRO_BATCH 0 /* to the micro-batch's maximum */
#define POISE_PAD_STEP 1        /* to the maximum of the whole group's step */
#define POISE_PAD_FIXED 2       /* to pad_to */

/*
 * One named part of a sample. Ranks need not declare the same fields, nor in the same order: they are merged by name;
 * only a different dtype, fixed axis or rule is an error (at next, on every rank). A field that a sample lacks is
 * empty.
 */
struct poise_field {
    const char *name; /* copied */
    uint32_t dtype;   /* POISE_BF16 ... */
    uint32_t assembly;
    uint32_t n_dims; /* of one sample, 0 (a scalar) to 7 */
    uint32_t axis;   /* concat: along which; padded: where the axis of samples is inserted */
    int64_t shape[POISE_MAX_DIMS]; /* -1: ragged */
    const char *axis_name[POISE_MAX_DIMS]; /* padded, of ragged axes: axes of one name are padded alike; NULL: the
                                            * field's own */
    uint32_t pad_side, pad_scope;
    uint32_t pad_multiple; /* the padded extent is rounded up to a multiple; 0: 1 */
    uint32_t n_divisors;
    uint64_t pad_to;   /* pad_scope POISE_PAD_FIXED */
    uint64_t pad_bits; /* the pad value: the bits of one element of up to 8 bytes, in its own byte order */
    const char *rows_of; /* a grid field (integers, 2-dimensional, ragged first axis): this field's first axis must have
                          * as many rows as the sum over the grid's rows of the product of their columns; NULL: not
                          * tied */
    uint32_t divisor[POISE_MAX_DIMS]; /* [n_divisors], by column of the grid: must divide it (spatial merge); rows count
                                       * after the division. 0 is taken as 1 */
};

/* Declares fields, before the first submission or between submissions (new ones only). Copies. field_size: sizeof
 * *fields. */
int poise_declare(struct poise *p, const struct poise_field *fields, uint32_t n_fields, size_t field_size,
                  struct poise_err *err);

/* ------------------------------------------------------------------------------------------------------- submission */

struct poise_value {
    const char *field; /* declared name */
    const void *data;  /* C-contiguous; NULL where empty */
    uint32_t n_dims;
    uint32_t reserved;
    int64_t shape[POISE_MAX_DIMS];
};

struct poise_sample {
    uint64_t tag;              /* the user's, travels with the sample */
    const int64_t *length;     /* [n_phases] >= 0 */
    const uint64_t *attention; /* [n_phases] sum of squared full-attention segments; NULL: length squared */
    int64_t loss_tokens;       /* >= 0 */
    int64_t micro_batch;       /* the arrival micro-batch; POISE_DEFAULT_MICRO_BATCH: consecutive equal pieces */
    uint64_t unit;             /* samples of this submission with the same unit move as one, in order; 0: alone */
    uint32_t unit_layout;      /* POISE_UNIT_* */
    uint32_t n_values;
    const struct poise_value *values; /* [n_values], at most one a field */
    size_t value_size;                /* sizeof *values */
    uint64_t bytes; /* plan-only groups: the payload that the trainer moves; else 0 (counted from the values) */
};
#define POISE_DEFAULT_MICRO_BATCH INT64_MIN
#define POISE_UNIT_TOGETHER 0   /* members are neighbours in the micro-batch */
#define POISE_UNIT_TRANSPOSED 1 /* all first members of the micro-batch's units, then all second ... (pairwise
                                 * batches) */

/*
 * Memory inside this rank's arena for the values of the next submission, so that submitting copies nothing. Blocks
 * while peers still read older steps and no room is left. Aligned to 64 bytes. Valid until the submission that uses it,
 * or poise_discard(). Errors: -ETIMEDOUT, -ENOMEM (says needed and available), -EINTR, -ESHUTDOWN.
 */
int poise_alloc(struct poise *p, uint64_t bytes, int64_t timeout_ms, void **ret_data, struct poise_err *err);

/* Gives back all that poise_alloc handed out since the last submission. */
int poise_discard(struct poise *p, struct poise_err *err);

/*
 * Submits this rank's samples of a step; steps are consecutive. Borrows everything for the call (copies values that are
 * not in memory of poise_alloc). n_samples may be 0. Blocks while it is more than prefetch_depth steps ahead of the one
 * that the slowest iterator reads, while step - 8 is undecided, or while no arena memory is free.
 * Errors: -EINVAL naming sample and field (nothing has happened: submit again, or poise_fail()), -ENOMEM (needed and
 * available), -ERANGE a cost above 2^63 - 1, -ETIMEDOUT (says what is waited for), -EINTR, -ESHUTDOWN, -EALREADY a step
 * that was submitted, -ENODATA the group's data has ended before it.
 */
int poise_submit(struct poise *p, uint64_t step, const struct poise_sample *samples, uint32_t n_samples,
                 size_t sample_size, int64_t timeout_ms, struct poise_err *err);

/* Makes `step`, the next unsubmitted one, bad on all ranks: their next returns -EBADMSG with `reason` and this rank. */
int poise_fail(struct poise *p, uint64_t step, const char *reason, int64_t timeout_ms, struct poise_err *err);

/* This rank has no data from `step` (the next unsubmitted one) on. Saying so again, or after the group has ended, is
 * fine. */
int poise_end(struct poise *p, uint64_t step, int64_t timeout_ms, struct poise_err *err);

/* -------------------------------------------------------------------------------------------------------- iteration */

struct poise_tensor {
    const char *name;
    void *data; /* writable; NULL only where bytes is 0 */
    uint32_t dtype, n_dims;
    int64_t shape[POISE_MAX_DIMS];
    int64_t stride[POISE_MAX_DIMS]; /* bytes */
    uint64_t bytes;                 /* product of shape times element size */
};

/* One sample of a micro-batch. In a plan-only group tag, arrival_micro_batch, loss_tokens and weight_arrival are those
 * of this rank's own samples and 0 in others' rows: the trainer that moves the payload sends them along. */
struct poise_row {
    uint64_t tag;
    uint32_t origin_rank, origin_index;
    uint32_t arrival_micro_batch, reserved;
    uint64_t loss_tokens;
    double weight_step;    /* 1 / loss tokens of the step, 0 without loss tokens: sum over ranks of weight x loss_tokens
                            * is 1 */
    double weight_arrival; /* 1 / (loss tokens of its arrival micro-batch x micro-batches of the step, over all ranks,
                            * that hold a sample): means of means as the unbalanced run has them */
};

struct poise_totals { /* of a step over all ranks; the same on every rank */
    uint64_t n_samples, loss_tokens, bytes;
    uint64_t arrival_micro_batches; /* that hold a sample, over all ranks */
    uint64_t bytes_moved, samples_moved;
    uint64_t cost_before, cost_after, cost_mean; /* predicted: the objective of arrival order, of this plan, and the
                                                  * mean rank's cost; in units of 2^10 FLOP, saturated at 2^64 - 1 */
    uint64_t length_micro_batch_before[POISE_MAX_PHASES]; /* largest of any micro-batch in arrival order */
    uint64_t length_micro_batch_after[POISE_MAX_PHASES];
    uint64_t lacking_before, lacking_after; /* micro-batches that lack a phase that some sample of the step has */
    uint64_t plan_ns;                        /* 0: not told */
    uint32_t mode; /* that this step was delivered in */
    uint32_t reserved;
    uint64_t oversize; /* samples (units) that alone exceed a cap: each has a micro-batch for itself */
    uint64_t bytes_between_nodes; /* of bytes_moved, those that change the node too */
};

struct poise_mapping_in {
    uint32_t rank, index; /* origin */
    uint32_t micro_batch, row;
};

struct poise_mapping_out { /* of this rank's own samples, by index */
    uint32_t rank; /* destination */
    uint32_t micro_batch, row;
    uint32_t place; /* position in the destination's whole delivered order */
};

struct poise_mapping { /* a step's rank mapping, as this rank sees it */
    uint32_t n_in, n_out;
    const struct poise_mapping_in *in; /* [n_in] in delivered order */
    size_t in_size;
    const struct poise_mapping_out *out; /* [n_out] */
    size_t out_size;
};

struct poise_batch {
    uint64_t step;
    uint32_t micro_batch, n_micro_batches;
    uint32_t n_samples, n_fields; /* n_samples may be 0; n_fields counts the group's fields so far */
    const struct poise_row *rows; /* [n_samples] */
    size_t row_size;
    const struct poise_tensor *fields; /* [n_fields] assembled */
    size_t tensor_size;
    const struct poise_tensor *values; /* [n_samples * n_fields] each sample's own part of fields[f], at s * n_fields +
                                        * f */
    const struct poise_totals *totals;
    const struct poise_mapping *mapping;
    unsigned char plan_id[16];
};

/*
 * The next micro-batch of iterator `iterator` (0 .. n_iterators - 1). Valid until poise_release(), never recycled by a
 * later next. Errors: -ENODATA, -EBADMSG, -ETIMEDOUT (names what is waited for: a loader by rank, plan, shuffle),
 * -EINTR, -ESHUTDOWN, -ENOMEM (held batches fill the memory: says who holds what).
 */
int poise_next(struct poise *p, uint32_t iterator, int64_t timeout_ms, const struct poise_batch **ret_batch,
               struct poise_err *err);

/* Gives the batch back. Any thread, also after poise_close(). NULL is allowed. */
void poise_release(const struct poise_batch *batch);

/* The field of that name in the batch, NULL if there is none. Valid as long as the batch. */
const struct poise_tensor *poise_batch_field(const struct poise_batch *batch, const char *name);

/* ---------------------------------------------------------------------------------------------------------- insight */

#define POISE_INFO 6 /* severities, as syslog's */
#define POISE_WARNING 4
#define POISE_ERROR 3

struct poise_note {
    uint64_t step;
    uint32_t severity;
    uint32_t dropped; /* notices that were lost because nobody polled */
    char text[512];
};

/* The oldest notice: 1 and *ret_note filled, or 0 if there is none. note_size: sizeof *ret_note. Never blocks. */
int poise_notice(struct poise *p, struct poise_note *ret_note, size_t note_size);

/* Tells what this rank's own compute of a step took, without waiting for others. Shown in status. */
int poise_report(struct poise *p, uint64_t step, uint64_t compute_ns, struct poise_err *err);

struct poise_stats {
    uint64_t steps_submitted, steps_decided, steps_delivered;
    uint64_t samples_in, samples_out, samples_dropped; /* dropped: of ERROR, END and aborted steps */
    uint64_t samples_verified, samples_corrupt;
    uint64_t bytes_out, bytes_local, bytes_remote; /* delivered; of these from this node's peers, from other nodes */
    uint64_t arena_bytes, budget_bytes;
    uint64_t pipeline_ns_last; /* of the last step: from the last rank's submission as seen here to all assembled */
    uint64_t shuffle_ns_total, assembled_bytes_total;
    uint32_t depth; /* steps that may be submitted ahead of the one being read now */
    uint32_t epoch_n_local; /* processes of the group on this node */
};

/* Fills *ret_stats; stats_size: sizeof *ret_stats. Never blocks. */
int poise_stats(struct poise *p, struct poise_stats *ret_stats, size_t stats_size);

/* ---------------------------------------------------------------------------------------------------------- planner */

/* A padded field's share of memory: count x unit_bytes x product over the axes in axis_mask of the padded extent. */
struct poise_pad {
    uint32_t axis_mask; /* bits of extents */
    uint32_t multiple;
    uint64_t fixed[POISE_MAX_EXTENTS]; /* not 0: that extent is fixed, or the group's maximum */
    uint64_t unit_bytes;
};

struct poise_plan_request {
    size_t size; /* sizeof(struct poise_plan_request) */
    uint32_t n_ranks, n_phases;
    const uint32_t *n_samples; /* [n_ranks]; S is their sum. Columns are ordered by (rank, index) */
    const uint64_t *length;    /* [n_phases][S] */
    const uint64_t *attention; /* [n_phases][S]; NULL: length squared */
    const uint64_t *bytes;     /* [S] payload, padded fields at their own size; NULL: 1 each */
    const uint32_t *micro_batch; /* [S] arrival; NULL: consecutive equal pieces */
    const uint64_t *unit;        /* [S]; 0 alone; NULL: all alone */
    const uint32_t *extent;      /* [n_extents][S]; NULL */
    const struct poise_pad *pads; /* [n_pads] */
    size_t pad_size;
    uint32_t n_extents, n_pads;
    const uint64_t *packed_bytes; /* [S] bytes of fields that are not padded; NULL: bytes */
    const uint32_t *node;      /* [n_ranks]; NULL: all on one */
    const uint32_t *speed_ppm; /* [n_ranks]; NULL: all alike */
    const uint32_t *sync_set;  /* [n_ranks]; NULL: all in one, for objective microbatch */
    const struct poise_phase *phases; /* [n_phases] */
    size_t phase_size;
    const char *algorithm; /* NULL: the default */
    uint32_t objective, count, cut, stages;
    uint32_t tolerance_ppm; /* 0: 10,000; 1 is the least */
    uint32_t micro_batch_size, n_micro_batches;
    uint32_t image_encoder_dp;
    uint32_t reserved;
    uint64_t cap_samples_rank, cap_samples_micro_batch;
    uint64_t cap_bytes_rank;         /* after padding; 0: the largest of arrival order; POISE_NO_CAP */
    const uint64_t *cap_length_rank; /* [n_phases], each as above; NULL: the default for all */
    const uint64_t *cap_length_micro_batch;
};

struct poise_quality { /* costs in units of 1,024 FLOP, saturated at 2^64 - 1 */
    uint64_t objective_before, objective_after, objective_bound; /* of arrival order, of the plan, no plan can be
                                                                  * below */
    uint64_t rank_max_before, rank_max_after, rank_mean;         /* summed cost of a rank */
    uint64_t samples_moved, bytes_moved, bytes_total;
    uint64_t bytes_floor; /* the least bytes, samples divisible, that bring every rank to the target */
    uint64_t bytes_between_nodes;
    uint64_t length_micro_batch_before[POISE_MAX_PHASES], length_micro_batch_after[POISE_MAX_PHASES];
    uint64_t length_rank_before[POISE_MAX_PHASES], length_rank_after[POISE_MAX_PHASES];
    uint64_t bytes_rank_before, bytes_rank_after; /* largest, after padding */
    uint64_t lacking_before, lacking_after; /* micro-batches that lack a phase that some sample has */
    uint64_t oversize; /* units that alone exceed a cap */
};

/* Why a sample is where it is. */
#define POISE_REASON_KEPT 0       /* stays: its rank had room */
#define POISE_REASON_TOLERANCE 1  /* stays: arrival order is within the tolerance */
#define POISE_REASON_ZERO 2       /* stays: it costs nothing */
#define POISE_REASON_SHED 3       /* moved: its rank was above the target */
#define POISE_REASON_FILL 4       /* moved: taken to fill a light rank */
#define POISE_REASON_SWAP 5       /* moved: exchanged to close the gap */
#define POISE_REASON_COUNT 6      /* moved: to keep the number of samples */
#define POISE_REASON_CAP 7        /* stays or moves because of a cap */
#define POISE_REASON_NOT_WORSE 8  /* stays: the algorithm's plan was not better than arrival order */
#define POISE_REASON_ALGORITHM 9  /* placed by an algorithm that does not look at origins */
#define POISE_N_REASONS 10
const char *poise_reason_text(uint32_t reason); /* static; NULL for an unknown code */

/* Caller's memory; row is the position in the micro-batch. */
struct poise_plan {
    size_t size;           /* sizeof(struct poise_plan) */
    uint32_t *rank;        /* [S] destination */
    uint32_t *micro_batch; /* [S] */
    uint32_t *row;         /* [S] */
    uint8_t *reason;       /* [S]; NULL: not wanted */
    uint32_t n_micro_batches; /* the same on every rank */
    uint32_t reserved;
    struct poise_quality quality;
    unsigned char plan_id[16]; /* hash of the canonical input and the algorithm's version */
};

/*
 * Plans one step offline: pure, deterministic, thread-safe, no daemon. Errors: -EINVAL naming rank and sample or the
 * option, -ERANGE a cost or sum that does not fit, -ENOMEM.
 */
int poise_plan(const struct poise_plan_request *req, struct poise_plan *plan, struct poise_err *err);

/* The i-th algorithm's or preset's name, NULL past the end; what it is in one line. */
const char *poise_algorithm_name(uint32_t i);
const char *poise_algorithm_text(uint32_t i);
const char *poise_preset_name(uint32_t i);
const char *poise_preset_text(uint32_t i);

/* Fills phases (room for POISE_MAX_PHASES) from a preset's name. Errors: -EINVAL lists what there is. */
int poise_preset(const char *name, struct poise_phase *phases, size_t phase_size, uint32_t *ret_n_phases,
                 struct poise_err *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
