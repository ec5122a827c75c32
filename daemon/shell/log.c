/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whoever decides logs, once; here it is only written. Three things matter: a line that comes from others' bytes (job
 * names, error texts) stays one line, a fault that repeats does not fill the disk, and standard error that blocks or is
 * gone never harms the daemon: a line that a full pipe would not take at once is dropped.
 *
 * Repeats are known by their shape: the text without its digits, so "rank 3" and "rank 4" are one kind. 100 lines of a
 * kind in 10 s are written: more than a node's ranks joining at once, less than what anybody could read.
 */
#include "daemon/shell/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BURST 100u
#define WINDOW_MS 10000u
#define N_SHAPES 64u /* a shape that falls on a taken place replaces it: forgetting only means writing more */

struct shape {
    uint64_t hash, since_ms;
    uint32_t written, left_out;
    int level;
    char text[160]; /* the last one left out */
};

static struct {
    uint32_t level;
    bool journal;
    struct shape shapes[N_SHAPES];
} state = {.level = LOG_LINE_INFO};

/* systemd says which device and inode its journal stream has; standard error may have been sent elsewhere since. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat st;
    unsigned long long device, inode;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           st.st_dev == device && st.st_ino == inode;
}

void log_init(uint32_t level)
{
    state.level = level;
    state.journal = is_journal();
}

bool log_in_journal(void)
{
    return state.journal;
}

void log_level(uint32_t level)
{
    state.level = level;
}

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static const char *level_word(int level)
{
    return level <= LOG_LINE_ERROR     ? "error"
           : level == LOG_LINE_WARNING ? "warning"
           : level < LOG_LINE_DEBUG    ? "info"
                                       : "debug";
}

static void put(int level, const char *text)
{
    char line[1200], when[40] = "";
    int n;
    if (state.journal) {
        n = snprintf(line, sizeof line, "<%d>%s\n", level, text);
    } else {
        struct timespec ts;
        struct tm tm;
        clock_gettime(CLOCK_REALTIME, &ts);
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&ts.tv_sec, &tm));
        n = snprintf(line, sizeof line, "%s.%03ldZ poised[%d] %s: %s\n", when, ts.tv_nsec / 1000000, (int)getpid(),
                     level_word(level), text);
    }
    if (n >= (int)sizeof line) {
        n = (int)sizeof line - 1;
        line[n - 1] = '\n';
    }
    struct pollfd writable = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&writable, 1, 0) == 1 && (writable.revents & POLLOUT) && write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* nobody left to tell */
}

static void tell_left_out(struct shape *s)
{
    char text[240];
    if (!s->left_out)
        return;
    snprintf(text, sizeof text, "%u more lines like: %s", s->left_out, s->text);
    put(s->level, text);
    s->left_out = 0;
}

static uint64_t shape_hash(int level, const char *text)
{
    uint64_t hash = 1469598103934665603u + (uint64_t)level; /* FNV-1a */
    for (; *text; text++)
        if (*text < '0' || *text > '9')
            hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

/* Whether this line is above its kind's limit. */
static bool limited(int level, const char *text)
{
    uint64_t now = now_ms(), hash = shape_hash(level, text);
    struct shape *s = &state.shapes[hash % N_SHAPES];
    if (s->hash != hash || now - s->since_ms >= WINDOW_MS) {
        tell_left_out(s);
        *s = (struct shape){.hash = hash, .since_ms = now, .level = level};
    }
    if (s->written < BURST) {
        s->written++;
        return false;
    }
    s->left_out++;
    snprintf(s->text, sizeof s->text, "%.150s", text);
    return true;
}

void log_line(int level, const char *format, ...)
{
    char text[1024];
    va_list ap;
    if (level > (int)state.level)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?'; /* others' bytes must not make lines or move a terminal's cursor */
    if (level >= LOG_LINE_DEBUG || !limited(level, text)) /* who asks for debug wants all */
        put(level, text);
}

void log_flush(void)
{
    for (uint32_t i = 0; i < N_SHAPES; i++)
        tell_left_out(&state.shapes[i]);
}
