/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poisectl top: asks the daemon again and again, and shows what changed. A daemon that goes away is waited for, since
 * it may only be restarted; one that never was is an error at once.
 */
#include "client/ctl/top.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/http.h"

#define ONCE_LINES 1000  /* for scripts: nothing is left out of a frame of usual size */
#define ASK_MS 1000L     /* keys wait for as long */

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The daemon's report, NULL where there is none now. */
static json_t *ask(const char *dir)
{
    const char *why;
    char *body;
    long code;
    json_t *report = NULL;

    if (http_try(dir, "/status", false, ASK_MS, &code, &body, &why) != 0)
        return NULL;
    if (code == 200)
        report = json_loads(body, 0, NULL);
    free(body);
    if (json_is_object(report))
        return report;
    json_decref(report);
    return NULL;
}

/* Until it is quit. Two reports an interval apart give the rates: the first frame has none. */
static void watch(struct top_screen *screen, const char *dir, uint64_t interval_ms)
{
    json_t *before = NULL, *now = ask(dir);
    enum top_event event = TOP_TIME;
    uint64_t next = now_ms() + interval_ms;

    while (event != TOP_QUIT) {
        const uint64_t at = now_ms();

        if (event == TOP_TIME && at >= next) {
            json_t *fresh = ask(dir);

            json_decref(before);
            before = now;
            now = fresh;
            next = at + interval_ms;
        }
        char *frame = top_frame(before, now, dir, screen->n_rows);

        if (frame)
            top_screen_draw(screen, frame);
        free(frame);
        const uint64_t after = now_ms();
        event = top_screen_wait(screen, next > after ? (int)(next - after) : 0);
    }
    json_decref(before);
    json_decref(now);
}

static int once(const struct ctl_command *command, const char *dir, const json_t *before, uint64_t interval_ms)
{
    json_t *now;
    char *frame;

    poll(NULL, 0, (int)interval_ms); /* rates are those of this time */
    now = ask(dir);
    frame = top_frame(before, now, dir, ONCE_LINES);
    if (frame)
        for (const char *at = frame; *at; at++)
            if (*at != TOP_BOLD)
                putchar(*at);
    free(frame);
    json_decref(now);
    if (!frame)
        return ctl_fail(command, CTL_FAILED, "no memory");
    return now ? CTL_OK : ctl_fail(command, CTL_FAILED, "poised in %s does not answer any more", dir);
}

int top_command(const struct ctl_command *command, int argc, char **argv)
{
    const char *dir = NULL;
    uint64_t interval_s = 1;
    bool only_once = false;
    const struct ctl_option options[] = {
        {"interval", CTL_NUMBER, &interval_s, "S", "seconds between two looks", 1, 3600},
        {"once", CTL_FLAG, &only_once, NULL, "print one frame, of one interval, and end", 0, 0},
        {"socket-dir", CTL_STRING, &dir, "DIR", "poised's folder; default: $POISE_SOCKET_DIR, else /run/poise", 0, 0},
    };
    struct top_screen screen;
    json_t *first;
    char *body;
    long code;
    int status, rc;

    if (ctl_parse(command, options, sizeof options / sizeof *options, argc, argv, NULL, 0, &status) != 0)
        return status;
    if (!only_once && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
        return ctl_fail(command, CTL_BAD_INPUT, "this is no terminal: give --once, or use poisectl status --json");
    dir = ctl_socket_dir(dir);
    status = http_ask(command, dir, "/status", false, &code, &body);
    if (status != CTL_OK)
        return status;
    first = json_loads(body, 0, NULL);
    free(body);
    if (only_once) {
        status = once(command, dir, first, interval_s * 1000);
    } else if ((rc = top_screen_open(&screen)) < 0) {
        status = ctl_fail(command, CTL_FAILED, "the terminal cannot be used: %s", strerror(-rc));
    } else {
        watch(&screen, dir, interval_s * 1000);
        top_screen_close(&screen);
    }
    json_decref(first);
    return status;
}
