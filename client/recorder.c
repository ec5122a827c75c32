/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two halves. The engine's: a ring of steps whose outcome or metadata is here; in step order, whole ones go into a
 * queue. The metadata of a step comes once from a coordinator and may be lost: it is asked for again until the ranks
 * have forgotten it, and the step is then recorded as missing. The thread's: takes from the queue, encodes, writes. A
 * disk that is slower than training fills the queue, and steps that find it full are recorded as missing, too.
 */
#include "client/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "proto/record.h"

#define WINDOW (4u * WIRE_WINDOW) /* what is kept for GIVE_UP steps, and 2 W that other ranks may be ahead */
#define GIVE_UP 12u               /* steps behind the newest: ranks have forgotten 8, a coordinator is late by some */
#define ASK_MS 200u               /* longer than an answer takes */
#define MAX_STEPS 256u            /* in the queue */
#define MAX_SAMPLES (1u << 20)    /* of them together: about 100 MB */

struct entry {
    uint64_t step;
    struct wire_message *outcome, *metas; /* both NULL: not used */
    uint64_t since_ms, asked_ms;          /* the outcome came; metadata was asked for last */
};

struct item {
    struct item *next;
    uint32_t kind, n_samples;
    uint64_t step;
    struct wire_message *outcome, *metas;
};

struct recorder {
    char *path;
    int fd;
    uint64_t max_bytes;
    uint32_t n_ranks;
    bool made; /* the file was not there before */

    /* the engine's */
    struct entry ring[WINDOW];
    uint64_t first_step;
    uint64_t next;    /* the step to hand over next */
    uint64_t decided; /* the step whose outcome comes next */

    /* the thread's */
    uint64_t n_written;
    uint8_t *group; /* the first block's part, until it is written */
    size_t n_group;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct item *queue, **tail; /* under lock, as all below */
    uint32_t n_steps, n_samples;
    bool over; /* nothing is recorded any more */
    bool stop, ended;
    bool orphan; /* nobody joins the thread: it frees all when it ends */
    bool noted;
    uint32_t severity; /* not 0: there is a note */
    uint64_t note_step;
    char note[RECORDER_TEXT];
};

static void item_free(struct item *item)
{
    wire_free(item->outcome);
    wire_free(item->metas);
    free(item);
}

static void entry_clear(struct entry *entry)
{
    wire_free(entry->outcome);
    wire_free(entry->metas);
    memset(entry, 0, sizeof *entry);
}

static void recorder_free(struct recorder *rec)
{
    for (uint32_t i = 0; i < WINDOW; i++)
        entry_clear(&rec->ring[i]);
    while (rec->queue) {
        struct item *next = rec->queue->next;
        item_free(rec->queue);
        rec->queue = next;
    }
    if (rec->fd >= 0)
        close(rec->fd);
    pthread_mutex_destroy(&rec->lock);
    pthread_cond_destroy(&rec->cond);
    free(rec->group);
    free(rec->path);
    free(rec);
}

/* ------------------------------------------------------------------------------------------------------------ writing
 */

static void end_with_note(struct recorder *rec, uint32_t severity, uint64_t step, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void end_with_note(struct recorder *rec, uint32_t severity, uint64_t step, const char *format, ...)
{
    va_list args;

    pthread_mutex_lock(&rec->lock);
    rec->over = true;
    if (!rec->severity) {
        rec->severity = severity;
        rec->note_step = step;
        va_start(args, format);
        vsnprintf(rec->note, sizeof rec->note, format, args);
        va_end(args);
    }
    pthread_mutex_unlock(&rec->lock);
}

static int write_all(int fd, const uint8_t *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = write(fd, bytes, n_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

/* Whole or not at all: a full disk leaves the record as it was before this block. */
static int write_block(struct recorder *rec, const struct record_block *block)
{
    uint8_t head[RECORD_HEAD_BYTES];
    int rc;

    record_head(block, head);
    rc = write_all(rec->fd, head, sizeof head);
    if (rc == 0)
        rc = write_all(rec->fd, block->first, block->n_first);
    if (rc == 0)
        rc = write_all(rec->fd, block->second, block->n_second);
    if (rc < 0) {
        (void)!ftruncate(rec->fd, (off_t)rec->n_written); /* where it fails, readers know a torn tail */
        return rc;
    }
    rec->n_written += sizeof head + (uint64_t)block->n_first + block->n_second;
    return 0;
}

/* The file's beginning, when there is something to follow it. */
static int write_group(struct recorder *rec)
{
    struct record_block block = {.kind = RECORD_GROUP, .first = rec->group, .n_first = (uint32_t)rec->n_group};
    uint8_t start[RECORD_START_BYTES];
    int rc;

    if (!rec->group)
        return 0;
    record_start(start);
    rc = write_all(rec->fd, start, sizeof start);
    if (rc == 0) {
        rec->n_written = sizeof start;
        rc = write_block(rec, &block);
    }
    if (rc < 0) {
        rec->n_written = 0;
        (void)!ftruncate(rec->fd, 0);
        return rc;
    }
    free(rec->group);
    rec->group = NULL;
    return 0;
}

static int encode(const struct wire_message *msg, uint8_t **ret_bytes, uint32_t *ret_n, struct poise_err *err)
{
    size_t n_bytes;
    int rc = wire_encode(msg, ret_bytes, &n_bytes, err);

    if (rc == 0)
        *ret_n = (uint32_t)n_bytes; /* at most WIRE_MAX_BYTES */
    return rc;
}

static void write_full(struct recorder *rec, uint64_t step)
{
    struct record_block block = {.kind = RECORD_FULL, .step = step};

    write_block(rec, &block);
    end_with_note(
        rec, POISE_WARNING, step,
        "the record %.200s has reached its limit of %llu bytes before step %llu: what is in it stays readable, "
        "later steps are not recorded (record_max_bytes)",
        rec->path, (unsigned long long)rec->max_bytes, (unsigned long long)step);
}

/* -E2BIG: the limit. */
static int write_item(struct recorder *rec, const struct item *item, struct poise_err *err)
{
    struct record_block block = {.kind = item->kind, .step = item->step};
    uint8_t *first = NULL, *second = NULL;
    uint64_t need = 2 * RECORD_HEAD_BYTES; /* this block's, and that of the last one */
    int rc = 0;

    if (item->outcome)
        rc = encode(item->outcome, &first, &block.n_first, err);
    if (rc == 0 && item->metas)
        rc = encode(item->metas, &second, &block.n_second, err);
    block.first = first;
    block.second = second;
    need += (uint64_t)block.n_first + block.n_second;
    if (rc == 0) {
        rc = write_group(rec);
        if (rc == 0 && item->kind != RECORD_END && rec->n_written + need > rec->max_bytes)
            rc = -E2BIG;
        else if (rc == 0)
            rc = write_block(rec, &block);
        if (rc < 0)
            err_set(err, rc, "%s", strerror(-rc));
    }
    free(first);
    free(second);
    return rc;
}

static void take_item(struct recorder *rec, const struct item *item)
{
    struct poise_err why;
    int rc = write_item(rec, item, &why);

    if (rc == -E2BIG)
        write_full(rec, item->step);
    else if (rc < 0)
        end_with_note(
            rec, POISE_ERROR, item->step,
            "the record %.200s cannot be written on from step %llu: %.120s; training goes on, nothing more is "
            "recorded",
            rec->path, (unsigned long long)item->step, why.text);
}

static void *run(void *context)
{
    struct recorder *rec = context;
    struct item *item;
    bool orphan, over;

    pthread_mutex_lock(&rec->lock);
    for (;;) {
        while (!rec->queue && !rec->stop)
            pthread_cond_wait(&rec->cond, &rec->lock);
        item = rec->queue;
        if (!item)
            break;
        rec->queue = item->next;
        if (!rec->queue)
            rec->tail = &rec->queue;
        over = rec->over;
        pthread_mutex_unlock(&rec->lock);
        if (!over)
            take_item(rec, item);
        pthread_mutex_lock(&rec->lock);
        rec->n_steps--;
        rec->n_samples -= item->n_samples;
        item_free(item);
    }
    orphan = rec->orphan;
    rec->ended = true;
    pthread_mutex_unlock(&rec->lock);
    if (orphan)
        recorder_free(rec);
    return NULL;
}

/* --------------------------------------------------------------------------------------------------- the engine's half
 */

static bool is_over(struct recorder *rec)
{
    pthread_mutex_lock(&rec->lock);
    bool over = rec->over;
    pthread_mutex_unlock(&rec->lock);
    return over;
}

static struct entry *entry_of(struct recorder *rec, uint64_t step)
{
    return &rec->ring[step % WINDOW];
}

static uint32_t count_samples(const struct wire_message *metas)
{
    uint64_t n = 0;

    for (uint32_t i = 0; metas && i < metas->meta.n_metas; i++)
        n += metas->meta.metas[i].has_columns ? metas->meta.metas[i].n_samples : 0;
    return n > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)n;
}

/* Puts an item at the end of the queue; takes both messages. */
static void hand_over(struct recorder *rec, uint32_t kind, uint64_t step, struct wire_message *outcome,
                      struct wire_message *metas)
{
    struct item *item = calloc(1, sizeof *item);

    if (!item) {
        wire_free(outcome);
        wire_free(metas);
        return; /* readers see that the step is missing */
    }
    *item = (struct item){
        .kind = kind, .step = step, .outcome = outcome, .metas = metas, .n_samples = count_samples(metas)};
    pthread_mutex_lock(&rec->lock);
    if (kind == RECORD_STEP && rec->queue &&
        (rec->n_steps >= MAX_STEPS || rec->n_samples + (uint64_t)item->n_samples > MAX_SAMPLES)) {
        wire_free(item->metas);
        item->metas = NULL;
        item->n_samples = 0;
        item->kind = RECORD_MISSING;
    }
    if (kind != RECORD_END && rec->n_steps >= 4 * MAX_STEPS) { /* even words that steps are missing pile up */
        pthread_mutex_unlock(&rec->lock);
        item_free(item);
        return;
    }
    rec->n_steps++;
    rec->n_samples += item->n_samples;
    *rec->tail = item;
    rec->tail = &item->next;
    pthread_cond_signal(&rec->cond);
    pthread_mutex_unlock(&rec->lock);
}

static void hand_entry(struct recorder *rec, struct entry *entry)
{
    hand_over(rec, entry->metas ? RECORD_STEP : RECORD_MISSING, entry->step, entry->outcome, entry->metas);
    entry->outcome = entry->metas = NULL;
    entry_clear(entry);
    rec->next++;
}

void recorder_outcome(struct recorder *rec, const struct wire_outcome *outcome, uint64_t now_ms)
{
    struct wire_message msg = {.type = WIRE_OUTCOME, .outcome = *outcome};
    struct entry *entry = entry_of(rec, outcome->step);

    rec->decided = outcome->step + 1;
    if (is_over(rec) || outcome->step < rec->next || outcome->step - rec->next >= WINDOW)
        return;
    msg.outcome.table = NULL; /* it follows from the ranks' own */
    msg.outcome.slices = NULL;
    msg.outcome.n_slices = 0;
    entry->step = outcome->step;
    entry->since_ms = now_ms;
    if (!entry->outcome && wire_copy(&msg, &entry->outcome) < 0)
        entry->outcome = NULL; /* recorded as missing */
}

/* Bytes from a daemon: what does not fit is not recorded. */
static bool fits(const struct recorder *rec, const struct wire_message *msg)
{
    uint64_t step = msg->meta.n_metas ? msg->meta.metas[0].step : 0;

    if (msg->meta.n_metas != rec->n_ranks || step < rec->next || step - rec->next >= WINDOW)
        return false;
    for (uint32_t i = 0; i < msg->meta.n_metas; i++) {
        if (msg->meta.metas[i].rank != i || msg->meta.metas[i].replica != 0 || msg->meta.metas[i].step != step)
            return false;
    }
    return true;
}

void recorder_metas(struct recorder *rec, struct wire_message *msg)
{
    struct entry *entry;

    if (!fits(rec, msg) || is_over(rec)) {
        wire_free(msg);
        return;
    }
    entry = entry_of(rec, msg->meta.metas[0].step);
    if (entry->metas) { /* a second coordinator's, or asked for twice */
        wire_free(msg);
        return;
    }
    entry->step = msg->meta.metas[0].step;
    entry->metas = msg;
}

static bool is_decided(const struct recorder *rec, uint64_t step)
{
    return step < rec->decided;
}

/* Where that of a later step is here, it was lost: asked for at once, since ranks that train fast forget it soon. */
static bool is_due(const struct recorder *rec, const struct entry *entry, uint64_t now_ms)
{
    bool lost = false;

    if (entry->asked_ms)
        return now_ms >= entry->asked_ms + ASK_MS;
    for (uint32_t i = 0; i < WINDOW; i++)
        lost |= rec->ring[i].metas && rec->ring[i].step > entry->step;
    return lost || now_ms >= entry->since_ms + ASK_MS;
}

bool recorder_turn(struct recorder *rec, uint64_t now_ms, uint64_t *ret_step)
{
    if (is_over(rec)) {
        for (uint32_t i = 0; i < WINDOW; i++)
            entry_clear(&rec->ring[i]);
        return false;
    }
    while (is_decided(rec, rec->next)) {
        struct entry *entry = entry_of(rec, rec->next);

        if (!entry->outcome || entry->metas || rec->decided - rec->next > GIVE_UP) {
            entry->step = rec->next;
            if (!entry->outcome) { /* no memory for it */
                wire_free(entry->metas);
                entry->metas = NULL;
            }
            hand_entry(rec, entry);
            continue;
        }
        break;
    }
    for (uint64_t step = rec->next; ret_step && is_decided(rec, step); step++) {
        struct entry *entry = entry_of(rec, step);

        if (!entry->outcome || entry->metas || !is_due(rec, entry, now_ms))
            continue;
        entry->asked_ms = now_ms;
        *ret_step = step;
        return true; /* the caller comes again for the next */
    }
    return false;
}

bool recorder_waits(const struct recorder *rec, uint64_t now_ms, uint64_t patience_ms)
{
    for (uint32_t i = 0; i < WINDOW; i++) {
        const struct entry *entry = &rec->ring[i];

        if (entry->outcome && !entry->metas && now_ms - entry->since_ms <= patience_ms)
            return true;
    }
    return false;
}

bool recorder_note(struct recorder *rec, uint32_t *ret_severity, uint64_t *ret_step, char ret_text[RECORDER_TEXT])
{
    bool there;

    pthread_mutex_lock(&rec->lock);
    there = rec->severity && !rec->noted;
    if (there) {
        rec->noted = true;
        *ret_severity = rec->severity;
        *ret_step = rec->note_step;
        memcpy(ret_text, rec->note, RECORDER_TEXT);
    }
    pthread_mutex_unlock(&rec->lock);
    return there;
}

/* ------------------------------------------------------------------------------------------------------ life and death
 */

/* A file that is new, or empty: left by a process that was killed before its first step. */
static int open_file(struct recorder *rec, struct poise_err *err)
{
    struct stat st;

    rec->fd = open(rec->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NONBLOCK, 0666);
    rec->made = rec->fd >= 0;
    if (rec->fd < 0 && errno == EEXIST)
        rec->fd = open(rec->path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (rec->fd < 0)
        return err_set(err, -errno, "record %.300s cannot be made: %s", rec->path, strerror(errno));
    if (fstat(rec->fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "record %.300s is no regular file", rec->path);
    if (st.st_size > 0)
        return err_set(err, -EEXIST, "record %.300s is there already, with %llu bytes: name another file, or remove it",
                       rec->path, (unsigned long long)st.st_size);
    if (flock(rec->fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, -EBUSY, "record %.300s is being written by another process: name another file", rec->path);
    return 0;
}

static int start_thread(struct recorder *rec, struct poise_err *err)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&rec->thread, NULL, run, rec);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_set(err, -rc, "the recorder's thread could not be made: %s", strerror(rc));
    pthread_setname_np(rec->thread, "poise-record");
    return 0;
}

int recorder_new(const char *path, uint64_t max_bytes, const struct wire_join *join, struct recorder **ret_recorder,
                 struct poise_err *err)
{
    struct wire_message msg = {.type = WIRE_JOIN, .join = *join};
    struct recorder *rec = calloc(1, sizeof *rec);
    int rc = 0;

    if (!rec)
        return err_set(err, -ENOMEM, "no memory for the record");
    rec->fd = -1;
    rec->max_bytes = max_bytes;
    rec->n_ranks = join->n_ranks;
    rec->first_step = rec->next = rec->decided = join->first_step;
    rec->tail = &rec->queue;
    pthread_mutex_init(&rec->lock, NULL);
    pthread_cond_init(&rec->cond, NULL);
    rec->path = strdup(path);
    if (!rec->path)
        rc = err_set(err, -ENOMEM, "no memory for the record");
    if (rc == 0)
        rc = wire_encode(&msg, &rec->group, &rec->n_group, err);
    if (rc == 0)
        rc = open_file(rec, err);
    if (rc == 0)
        rc = start_thread(rec, err);
    if (rc < 0) {
        if (rec->made)
            unlink(rec->path);
        recorder_free(rec);
        return rc;
    }
    *ret_recorder = rec;
    return 0;
}

/* True: the thread has ended. Else it hangs in a write, and frees all when it has ended. */
static bool stop_thread(struct recorder *rec, uint64_t timeout_ms)
{
    pthread_t thread = rec->thread;
    struct timespec until;
    bool ended;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout_ms / 1000 + 1);
    pthread_mutex_lock(&rec->lock);
    rec->stop = true;
    pthread_cond_signal(&rec->cond);
    pthread_mutex_unlock(&rec->lock);
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return true;
    pthread_mutex_lock(&rec->lock);
    ended = rec->ended;
    rec->over = true;
    rec->orphan = !ended;
    pthread_mutex_unlock(&rec->lock);
    if (ended)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    return ended;
}

void recorder_close(struct recorder *rec, uint64_t timeout_ms)
{
    if (!rec)
        return;
    while (is_decided(rec, rec->next) && rec->decided - rec->next <= WINDOW) {
        struct entry *entry = entry_of(rec, rec->next);

        entry->step = rec->next;
        hand_entry(rec, entry);
    }
    if (rec->decided > rec->first_step)
        hand_over(rec, RECORD_END, rec->next, NULL, NULL);
    if (!stop_thread(rec, timeout_ms))
        return;
    if (rec->n_written == 0 && rec->made)
        unlink(rec->path);
    recorder_free(rec);
}
