/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts for chaos: each is a network namespace, held by a process of ours and connected by a pair of interfaces to a
 * bridge that has a namespace of its own; so nothing of it shows on the machine, and all of it goes when the driver
 * dies, however it does. Where namespaces may not be made, hosts are folders of sockets on this one machine, and what
 * needs a network of its own is left out.
 */
#include "tests/chaos/chaos.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 20000
#define END_MS 10000

/* ------------------------------------------------------------------------------------------------------- namespaces */

/* A process that has a new network and a host's name of its own, and waits until we die. 0 where that is not allowed.
 */
static pid_t hold_namespace(const char *name)
{
    const pid_t parent = getpid();
    int ready[2];
    char byte;
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) < 0)
        return 0;
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        if (getppid() != parent || unshare(CLONE_NEWNET | CLONE_NEWUTS) < 0 || sethostname(name, strlen(name)) < 0 ||
            write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    if (pid < 0 || read(ready[0], &byte, 1) != 1) {
        if (pid > 0)
            waitpid(pid, NULL, 0);
        pid = 0;
    }
    close(ready[0]);
    return pid;
}

static int enter_one(pid_t holder, const char *kind, int flag)
{
    char path[64];
    int fd, rc;

    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)holder, kind);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    rc = fd < 0 ? -1 : setns(fd, flag);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int enter(pid_t holder)
{
    return enter_one(holder, "net", CLONE_NEWNET) < 0 ? -1 : enter_one(holder, "uts", CLONE_NEWUTS);
}

int hosts_enter(const struct chaos_net *net, uint32_t host)
{
    return net->namespaces ? enter(net->hosts[host].holder) : 0;
}

static int command_in(pid_t holder, const char *format, va_list args)
{
    char text[512];
    int status = -1;
    pid_t pid;

    vsnprintf(text, sizeof text, format, args);
    pid = fork();
    if (pid == 0) {
        if (holder && enter(holder) < 0)
            _exit(126);
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
        _exit(127);
    }
    if (pid > 0)
        waitpid(pid, &status, 0);
    if (status != 0)
        fprintf(stderr, "chaos: `%s` ended with status %d\n", text, status);
    return status;
}

int hosts_command(struct chaos_net *net, uint32_t host, const char *format, ...)
{
    va_list args;
    int rc;

    va_start(args, format);
    rc = command_in(net->hosts[host].holder, format, args);
    va_end(args);
    return rc;
}

int hosts_command_bridge(struct chaos_net *net, const char *format, ...)
{
    va_list args;
    int rc;

    va_start(args, format);
    rc = command_in(net->bridge, format, args);
    va_end(args);
    return rc;
}

/* The firewall's chain is made here, empty: faults add rules to it and flush it. */
static int connect_host(struct chaos_net *net, struct chaos_host *host)
{
    char name[16];

    snprintf(name, sizeof name, "host%u", host->number);
    host->holder = hold_namespace(name);
    if (!host->holder)
        return -1;
    snprintf(host->address, sizeof host->address, "10.77.0.%u", host->number + 1);
    if (hosts_command_bridge(net, "ip link add h%u type veth peer name eth0 netns %d && ip link set h%u master br0 up",
                             host->number, (int)host->holder, host->number) != 0)
        return -1;
    return hosts_command(
        net, host->number,
        "ip link set lo up && ip addr add %s/24 dev eth0 && ip link set eth0 up && nft add table inet chaos && "
        "nft add chain inet chaos in '{ type filter hook input priority 0; }'",
        host->address);
}

static int make_namespaces(struct chaos_net *net)
{
    if (net->n_hosts > 1)
        net->bridge = hold_namespace("bridge");
    if (!net->bridge) {
        if (net->n_hosts > 1)
            fprintf(stderr, "chaos: no network namespaces may be made here: hosts are folders of sockets on this "
                            "machine, and no link is cut\n");
        for (uint32_t h = 0; h < net->n_hosts; h++)
            snprintf(net->hosts[h].address, sizeof net->hosts[h].address, "127.0.0.1");
        return 0;
    }
    net->namespaces = true;
    if (hosts_command_bridge(net, "ip link add br0 type bridge && ip link set br0 up") != 0)
        return -1;
    for (uint32_t h = 0; h < net->n_hosts; h++)
        if (connect_host(net, &net->hosts[h]) != 0)
            return -1;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- daemons */

static uint32_t port_of(const struct chaos_net *net, uint32_t host)
{
    return net->namespaces ? 29410 : 29410 + 1000 + 2 * host + (uint32_t)getpid() % 1000 * 32;
}

static void become_daemon(const struct chaos_net *net, const struct chaos_host *host, pid_t parent, int ready_fd)
{
    char binary[512], listen[96], fd_text[16], keys[128];
    const char *argv[16] = {binary,  "--socket-dir", host->dir, "--config", "/dev/null", "--ready-fd",
                            fd_text, "--node-name",  NULL,      "--listen", listen,      NULL};
    char name[16];
    int n = 11, log_fd;

    snprintf(binary, sizeof binary, "%s/poised", net->bin);
    snprintf(listen, sizeof listen, net->n_hosts > 1 ? "tcp://%s:%u" : "none", host->address,
             port_of(net, host->number));
    snprintf(fd_text, sizeof fd_text, "%d", ready_fd);
    snprintf(name, sizeof name, "host%u", host->number);
    snprintf(keys, sizeof keys, "%s/keys", net->top);
    argv[8] = name;
    argv[n++] = net->keys ? "--keys" : "--insecure";
    argv[n++] = net->keys ? keys : "yes";
    argv[n] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    log_fd = open(host->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (getppid() != parent || log_fd < 0 || hosts_enter(net, host->number) < 0)
        _exit(126);
    dup2(log_fd, 1);
    dup2(log_fd, 2);
    fcntl(ready_fd, F_SETFD, 0);
    execv(binary, (char *const *)argv);
    fprintf(stderr, "%s: %s\n", binary, strerror(errno));
    _exit(127);
}

int hosts_start_daemon(struct chaos_net *net, uint32_t number)
{
    struct chaos_host *host = &net->hosts[number];
    const pid_t parent = getpid();
    struct pollfd ready = {.events = POLLIN};
    int fds[2], rc;
    char byte;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    host->daemon = fork();
    if (host->daemon == 0)
        become_daemon(net, host, parent, fds[1]);
    close(fds[1]);
    ready.fd = fds[0];
    do
        rc = poll(&ready, 1, READY_MS);
    while (rc < 0 && errno == EINTR);
    rc = rc == 1 && read(fds[0], &byte, 1) == 1 ? 0 : -1;
    close(fds[0]);
    if (rc < 0)
        fprintf(stderr, "chaos: the daemon of host %u does not get ready: see %s\n", number, host->log);
    host->stopped = false;
    return rc;
}

void hosts_kill_daemon(struct chaos_net *net, uint32_t number, int signal)
{
    struct chaos_host *host = &net->hosts[number];

    if (host->daemon <= 0)
        return;
    kill(host->daemon, signal);
    if (signal == SIGSTOP || signal == SIGCONT) {
        host->stopped = signal == SIGSTOP;
        return;
    }
    kill(host->daemon, SIGCONT);
    waitpid(host->daemon, NULL, 0);
    host->daemon = 0;
}

void hosts_show_status(const struct chaos_net *net, uint32_t number)
{
    char text[256];
    int rc;

    snprintf(text, sizeof text, "%s/poisectl status --socket-dir %s >&2; tail -n 5 %s >&2", net->bin,
             net->hosts[number].dir, net->hosts[number].log);
    fprintf(stderr, "chaos: host %u:\n", number);
    rc = system(text);
    if (rc != 0)
        fprintf(stderr, "chaos: no status of host %u\n", number);
}

/* ------------------------------------------------------------------------------------------------------ all of them */

static int make_keys(struct chaos_net *net)
{
    char text[640];

    snprintf(text, sizeof text, "%s/poisectl keygen %s/keys >/dev/null", net->bin, net->top);
    return system(text) == 0 ? 0 : -1;
}

static int enter_bridge(void *net)
{
    return enter(((struct chaos_net *)net)->bridge);
}

/* Where trainers reach the coordinator on that host; where there is a delay, a relay that is there. -1: no relay. */
static int reach(struct chaos_net *net, uint32_t host, char address[64])
{
    snprintf(address, 64, "%s", net->hosts[host].address);
    if (!net->delay_ms)
        return 0;
    if (!net->namespaces) {
        fprintf(stderr, "chaos: --delay-ms needs network namespaces\n");
        return -1;
    }
    snprintf(address, 64, "10.77.0.%u", 200 + host);
    if (hosts_command_bridge(net, "ip addr add %s/24 dev br0", address) != 0)
        return -1;
    net->relays[host] =
        relay_start(enter_bridge, net, address, net->hosts[host].address, port_of(net, host), net->delay_ms);
    return net->relays[host] < 0 ? -1 : 0;
}

int hosts_new(struct chaos_net *net)
{
    char address[64];
    int n = 0;

    snprintf(net->top, sizeof net->top, "/tmp/poise-chaos-XXXXXX");
    if (!mkdtemp(net->top) || chmod(net->top, 0755) < 0) {
        fprintf(stderr, "chaos: no temporary folder: %s\n", strerror(errno));
        return -1;
    }
    for (uint32_t h = 0; h < net->n_hosts; h++) {
        struct chaos_host *host = &net->hosts[h];
        host->number = h;
        snprintf(host->dir, sizeof host->dir, "%s/h%u", net->top, h);
        snprintf(host->log, sizeof host->log, "%s/h%u.log", net->top, h);
        cgroup_new(host);
    }
    if (make_namespaces(net) < 0 || (net->keys && make_keys(net) < 0))
        return -1;
    for (uint32_t h = 0; h < net->n_hosts; h++) {
        if (hosts_start_daemon(net, h) < 0)
            return -1;
        if (h >= net->n_coordinators || net->n_hosts == 1) /* one host needs no configuration */
            continue;
        if (reach(net, h, address) < 0)
            return -1;
        n += snprintf(net->coordinators + n, sizeof net->coordinators - (size_t)n, "%stcp://%s:%u", h ? "," : "",
                      address, port_of(net, h));
    }
    return 0;
}

static uint32_t count_left(const char *folder)
{
    uint32_t n = 0;
    DIR *dir = opendir(folder);

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        fprintf(stderr, "chaos: left behind: %s/%s\n", folder, entry->d_name);
        n++;
    }
    if (dir)
        closedir(dir);
    return n;
}

/* In order, since a daemon that is told to end must take its sockets with it. */
static uint32_t end_daemon(struct chaos_net *net, struct chaos_host *host)
{
    struct pollfd end = {.events = POLLIN};
    int status = 0;

    if (host->daemon <= 0)
        return 0;
    end.fd = (int)syscall(SYS_pidfd_open, host->daemon, 0);
    kill(host->daemon, SIGCONT);
    kill(host->daemon, SIGTERM);
    if (poll(&end, 1, END_MS) != 1) {
        fprintf(stderr, "chaos: the daemon of host %u does not end\n", host->number);
        hosts_show_status(net, host->number);
        kill(host->daemon, SIGKILL);
    }
    close(end.fd);
    waitpid(host->daemon, &status, 0);
    host->daemon = 0;
    if (status != 0)
        fprintf(stderr, "chaos: the daemon of host %u ended with status %d: see %s\n", host->number, status, host->log);
    return status != 0;
}

static void end_process(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

uint32_t hosts_end(struct chaos_net *net)
{
    char text[128];
    uint32_t n = 0;

    for (uint32_t h = 0; h < net->n_hosts; h++) {
        n += end_daemon(net, &net->hosts[h]);
        n += count_left(net->hosts[h].dir);
        end_process(net->hosts[h].holder);
        if (!cgroup_end(&net->hosts[h])) {
            fprintf(stderr, "chaos: left behind: %s\n", net->hosts[h].cgroup);
            n++;
        }
    }
    for (uint32_t h = 0; h < net->n_hosts; h++)
        end_process(net->relays[h]);
    end_process(net->bridge);
    if (n > 0) {
        fprintf(stderr, "chaos: logs are kept in %s\n", net->top);
        return n;
    }
    snprintf(text, sizeof text, "rm -rf %s", net->top);
    return system(text) == 0 ? 0 : 1;
}
