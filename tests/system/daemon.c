/* SPDX-License-Identifier: Apache-2.0 */
/* Starting and ending poised from tests; see the header. */
#include "tests/system/daemon.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 20000 /* far above what anything here takes, also under sanitizers on a busy machine */
#define MAX_FLAGS 32

static void __attribute__((noreturn)) fail(const struct test_daemon *daemon, const char *what)
{
    char line[512];
    FILE *log = daemon ? fopen(daemon->log, "re") : NULL;
    fprintf(stderr, "%s (%s)\n", what, strerror(errno));
    while (log && fgets(line, sizeof line, log))
        fprintf(stderr, "  poised: %s", line);
    abort();
}

const char *test_program(const char *name, char path[512])
{
    const char *build = getenv("BUILD");
    snprintf(path, 512, "%s/%s", build ? build : "build", name);
    return path;
}

static bool wait_readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n;
    do
        n = poll(&p, 1, ms);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

static void spawn(struct test_daemon *daemon, const char *const flags[], int ready_fd)
{
    char path[512], fd_text[16];
    const char *argv[MAX_FLAGS + 8] = {test_program("poised", path), "--socket-dir", daemon->dir, "--config",
                                       "/dev/null"};
    int n = 5;
    if (ready_fd >= 0) {
        snprintf(fd_text, sizeof fd_text, "%d", ready_fd);
        argv[n++] = "--ready-fd";
        argv[n++] = fd_text;
    }
    for (int i = 0; flags && flags[i] && i < MAX_FLAGS; i++)
        argv[n++] = flags[i];
    int log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_t parent = getpid();
    daemon->pid = fork();
    if (daemon->pid < 0 || log < 0)
        fail(daemon, "poised cannot be started");
    if (daemon->pid == 0) {
        syscall(SYS_prctl, 1 /* PR_SET_PDEATHSIG */, SIGKILL, 0, 0, 0); /* a test that dies leaves no daemon */
        if (getppid() != parent)
            _exit(126);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        execv(path, (char *const *)argv);
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        _exit(127);
    }
    close(log);
    daemon->pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
    if (daemon->pidfd < 0)
        fail(daemon, "pidfd_open");
}

void test_daemon_restart(struct test_daemon *daemon, const char *const flags[])
{
    int ready[2];
    char byte;
    if (pipe(ready) < 0)
        fail(daemon, "pipe");
    fcntl(ready[0], F_SETFD, FD_CLOEXEC);
    spawn(daemon, flags, ready[1]);
    close(ready[1]);
    if (!wait_readable(ready[0], WAIT_MS) || read(ready[0], &byte, 1) != 1)
        fail(daemon, "poised did not get ready");
    close(ready[0]);
}

static void make_folder(struct test_daemon *daemon)
{
    char top[32] = "/tmp/poise-test-XXXXXX";
    *daemon = (struct test_daemon){.pidfd = -1};
    if (!mkdtemp(top) || chmod(top, 0755) < 0)
        fail(NULL, "mkdtemp");
    snprintf(daemon->dir, sizeof daemon->dir, "%s/run", top);
    snprintf(daemon->log, sizeof daemon->log, "%s/log", top);
}

void test_daemon_start(struct test_daemon *daemon, const char *const flags[])
{
    make_folder(daemon);
    test_daemon_restart(daemon, flags);
}

static int reap(struct test_daemon *daemon)
{
    int status;
    if (!wait_readable(daemon->pidfd, WAIT_MS)) {
        kill(daemon->pid, SIGABRT);
        fail(daemon, "poised does not end");
    }
    if (waitpid(daemon->pid, &status, 0) != daemon->pid)
        fail(daemon, "waitpid");
    close(daemon->pidfd);
    daemon->pidfd = -1;
    daemon->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int test_daemon_fails(struct test_daemon *daemon, const char *const flags[])
{
    if (!daemon->dir[0])
        make_folder(daemon);
    struct test_daemon second = *daemon;
    spawn(&second, flags, -1);
    return reap(&second);
}

int test_daemon_stop(struct test_daemon *daemon)
{
    kill(daemon->pid, SIGTERM);
    return reap(daemon);
}

void test_daemon_kill(struct test_daemon *daemon)
{
    kill(daemon->pid, SIGKILL);
    reap(daemon);
}

bool test_daemon_logged(const struct test_daemon *daemon, const char *text)
{
    char line[2048];
    bool found = false;
    FILE *log = fopen(daemon->log, "re");
    while (log && !found && fgets(line, sizeof line, log))
        found = strstr(line, text) != NULL;
    if (log)
        fclose(log);
    return found;
}

void test_daemon_wait_log(const struct test_daemon *daemon, const char *text)
{
    for (int ms = 0; ms < 10000; ms += 5) {
        if (test_daemon_logged(daemon, text))
            return;
        poll(NULL, 0, 5);
    }
    fprintf(stderr, "no line with '%s' came\n", text);
    fail(daemon, "the log");
}

static int count_entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return -1;
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

int test_daemon_n_fds(const struct test_daemon *daemon)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon->pid);
    return count_entries(path);
}

int test_daemon_n_files(const struct test_daemon *daemon)
{
    return count_entries(daemon->dir);
}

void test_daemon_end(struct test_daemon *daemon)
{
    char top[64];
    if (daemon->pid && test_daemon_stop(daemon) != 0)
        fail(daemon, "poised ended with another status than 0");
    if (test_daemon_n_files(daemon) > 0)
        fail(daemon, "poised left files in its socket folder");
    rmdir(daemon->dir);
    unlink(daemon->log);
    snprintf(top, sizeof top, "%.*s", (int)(strlen(daemon->dir) - strlen("/run")), daemon->dir);
    if (rmdir(top) < 0)
        fail(daemon, top);
}

static bool try_port(int family, uint16_t port, uint16_t *ret_port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {.any = {.sa_family = (sa_family_t)family}};
    socklen_t n = family == AF_INET ? sizeof a.v4 : sizeof a.v6;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (family == AF_INET) {
        a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        a.v4.sin_port = htons(port);
    } else {
        a.v6.sin6_addr = in6addr_loopback;
        a.v6.sin6_port = htons(port);
    }
    bool free_one = fd >= 0 && bind(fd, &a.any, n) == 0 && getsockname(fd, &a.any, &n) == 0;
    if (fd >= 0)
        close(fd);
    *ret_port = ntohs(family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    return free_one;
}

uint16_t test_free_port(int family)
{
    uint16_t port, next;
    for (int tries = 0; tries < 100; tries++) {
        if (!try_port(family, 0, &port))
            return 0;
        if (port < 65535 && try_port(family, (uint16_t)(port + 1), &next))
            return port;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- HTTP */

static char *read_all(int fd)
{
    size_t n = 0, room = 65536;
    char *text = malloc(room);
    while (text && wait_readable(fd, WAIT_MS)) {
        ssize_t got = read(fd, text + n, room - n - 1);
        if (got <= 0)
            break;
        n += (size_t)got;
        if (room - n < 4096)
            text = realloc(text, room *= 2);
    }
    if (text)
        text[n] = 0;
    return text;
}

int test_daemon_http(const struct test_daemon *daemon, bool post, const char *url, char **ret_body)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char request[1024];
    int code = 0, n = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: poised\r\nConnection: close\r\n%s\r\n",
                               post ? "POST" : "GET", url, post ? "Content-Length: 0\r\n" : "");
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/status.sock", daemon->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0 || write(fd, request, (size_t)n) != n)
        fail(daemon, "the status socket cannot be used");
    char *text = read_all(fd), *body = text ? strstr(text, "\r\n\r\n") : NULL;
    close(fd);
    if (!body || sscanf(text, "HTTP/1.%*d %d", &code) != 1)
        fail(daemon, "no answer from the status socket");
    if (ret_body)
        *ret_body = strdup(body + 4);
    free(text);
    return code;
}
