/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terminal, by the control sequences that all of today's understand: the other screen keeps what was there, a frame
 * is one write from the top left corner that clears behind each line instead of before it. Signals come by descriptor,
 * so that the terminal is given back by plain code whatever ends it.
 */
#include "client/ctl/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

static struct termios before; /* one process has one terminal */
static sigset_t mask_before;

static void measure(struct top_screen *screen)
{
    struct winsize size;

    screen->n_rows = 24;
    screen->n_columns = 80;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
        screen->n_rows = size.ws_row;
        screen->n_columns = size.ws_col;
    }
}

static void put(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);

        if (done < 0 && errno != EINTR)
            return; /* it is gone; the next wait sees that */
        if (done > 0) {
            text += done;
            n -= (size_t)done;
        }
    }
}

int top_screen_open(struct top_screen *screen)
{
    static const char enter[] = "\033[?1049h\033[?25l";
    struct termios raw;
    sigset_t mask;

    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return -errno;
    sigemptyset(&mask);
    for (size_t i = 0; i < 4; i++)
        sigaddset(&mask, (int[]){SIGWINCH, SIGINT, SIGTERM, SIGHUP}[i]);
    sigprocmask(SIG_BLOCK, &mask, &mask_before);
    screen->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (screen->signals < 0) {
        int rc = -errno;

        sigprocmask(SIG_SETMASK, &mask_before, NULL);
        return rc;
    }
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* stopped, it would leave the shell with this screen */
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    put(enter, sizeof enter - 1);
    measure(screen);
    return 0;
}

void top_screen_close(struct top_screen *screen)
{
    static const char leave[] = "\033[?25h\033[?1049l";

    put(leave, sizeof leave - 1);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    close(screen->signals);
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
}

/* One line, cut before the last column, where terminals differ in what comes next: a character is a column, which wide
 * ones of a name may break, and nothing else. */
static const char *draw_line(FILE *out, const char *line, unsigned n_columns)
{
    const bool bold = *line == TOP_BOLD;
    unsigned n = 0;

    if (bold)
        fputs("\033[1m", out);
    for (line += bold; *line && *line != '\n'; line++) {
        if (((unsigned char)*line & 0xc0) != 0x80) /* begins a character of UTF-8 */
            n++;
        if (n < n_columns)
            fputc(*line, out);
    }
    fputs(bold ? "\033[0m\033[K" : "\033[K", out);
    return *line ? line + 1 : line;
}

void top_screen_draw(const struct top_screen *screen, const char *frame)
{
    char *text = NULL;
    size_t n_text;
    FILE *out = open_memstream(&text, &n_text);

    if (!out)
        return;
    fputs("\033[H", out);
    for (unsigned row = 0; row < screen->n_rows && *frame; row++) {
        if (row)
            fputs("\r\n", out);
        frame = draw_line(out, frame, screen->n_columns);
    }
    fputs("\033[J", out);
    if (fclose(out) == 0)
        put(text, n_text);
    free(text);
}

enum top_event top_screen_wait(struct top_screen *screen, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = screen->signals, .events = POLLIN}};
    struct signalfd_siginfo signal;
    char key;

    if (poll(fds, 2, timeout_ms) <= 0)
        return TOP_TIME;
    if (fds[0].revents) {
        if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q' || key == 4) /* 4: Ctrl-D */
            return TOP_QUIT;
    }
    if (fds[1].revents && read(screen->signals, &signal, sizeof signal) == (ssize_t)sizeof signal) {
        if (signal.ssi_signo != SIGWINCH)
            return TOP_QUIT;
        measure(screen);
    }
    return TOP_RESIZED; /* drawn again, asked only when it is time */
}
