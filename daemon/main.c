/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poised: node role and coordinator role in one process, each of which may serve others too. This file is the list of what it consists of: each part is
 * made in order, the loop runs until a signal ends it, and the parts go in reverse. What could not be made is not there
 * to be closed, so the same list serves a start that fails half-way.
 */
#include <assert.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "client/keys.h"
#include "daemon/shell/accept.h"
#include "daemon/shell/config.h"
#include "daemon/shell/curve.h"
#include "daemon/shell/links.h"
#include "daemon/shell/listener.h"
#include "daemon/shell/local.h"
#include "daemon/shell/lock.h"
#include "daemon/shell/log.h"
#include "daemon/shell/mark.h"
#include "daemon/shell/notify.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/router.h"
#include "daemon/shell/signals.h"
#include "daemon/shell/status.h"
#include "daemon/shell/usage.h"

#define EXIT_FAULT 1
#define EXIT_USAGE 2
#define KEEP_BYTES (64 << 20) /* more than a step of 4,096 ranks x 32 samples takes and gives back */
#define BLOCK_BYTES (32 << 20) /* larger ones go to the kernel at once: the most that the allocator lets us say */
#define RECONNECTING 64 /* connections of a user beside one a process: old ones end a moment after new ones begin */

struct poised {
    int argc;
    char **argv;
    struct config config;
    struct keys keys;
    uv_loop_t loop;
    struct lock lock;
    struct mark mark;
    struct roles roles;
    struct router router;
    struct accept_guard guard;
    struct local local;
    struct curve curve;
    struct links links;
    struct listener listener;
    struct status status;
    struct signals signals;
    struct notify notify;
};

/* A descriptor below 3 that is closed would become a socket, and log lines would be sent on it. */
static void hold_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd < 3);
    if (fd >= 0)
        close(fd);
}

/* Each process costs about four descriptors (two connections, a pidfd, ZeroMQ's own). */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
            log_line(LOG_LINE_WARNING, "the limit of open files cannot be raised to %llu",
                     (unsigned long long)limit.rlim_max);
    }
}

/* Each step takes some 20 MB and gives it back. Given back to the kernel it has to be cleared and mapped again for the
 * next: a tenth of a step. */
static void keep_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_TRIM_THRESHOLD, KEEP_BYTES);
    mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES);
#endif
}

static void on_end(void *data, const char *name)
{
    struct poised *poised = data;
    log_line(LOG_LINE_INFO, "%s: ending", name);
    uv_stop(&poised->loop);
}

static void on_reload(void *data)
{
    struct poised *poised = data;
    struct config config;
    struct poise_err err;
    if (config_parse(poised->argc, poised->argv, &config, &err) < 0) {
        log_line(LOG_LINE_ERROR, "SIGHUP: the configuration stays as it is: %s", err.text);
        return;
    }
    log_level(config.log_level);
    log_line(LOG_LINE_INFO, "SIGHUP: log-level taken; other settings need a restart");
}

/* To other daemons; in the context of the processes' socket. */
static int init_links(struct poised *p, struct poise_err *err)
{
    struct links_handler links_handler = roles_links_handler(&p->roles);
    struct listener_handler listener_handler = roles_listener_handler(&p->roles);
    void *context = p->router.context;
    bool allowed = config_beyond_loopback(&p->config);
    struct links_config links = {context, allowed, &p->keys, config_interface(&p->config)};
    struct listener_config listener = {context, config_listen(&p->config), allowed, &p->keys,
                                       2 * p->config.node_timeout_ms};
    int rc = curve_init(&p->curve, &p->loop, context, &p->keys, err);
    if (rc == 0)
        rc = links_init(&p->links, &p->loop, &links, &links_handler, err);
    if (rc == 0)
        rc = listener_init(&p->listener, &p->loop, &listener, &listener_handler, err);
    if (rc < 0)
        return rc;
    char reach[WIRE_LISTEN_BYTES];
    uint32_t port;
    listener_reach(&p->listener, config_interface(&p->config), reach, sizeof reach, &port);
    roles_reach(&p->roles, reach, port);
    return 0;
}

static int init_sockets(struct poised *p, struct poise_err *err)
{
    struct router_handler router_handler = roles_router_handler(&p->roles);
    struct local_handler local_handler = roles_local_handler(&p->roles);
    int rc = router_init(&p->router, &p->loop, p->lock.dir, &router_handler, err);
    if (rc < 0)
        return rc;
    rc = accept_guard_init(&p->guard, &p->loop, p->router.path, (uint32_t)(p->config.max_processes + 1) / 2 + RECONNECTING,
                           err);
    if (rc < 0)
        return rc;
    if ((rc = init_links(p, err)) < 0)
        return rc;
    struct local_config local = {p->lock.dir, p->router.path, p->roles.instance, (uint32_t)p->config.max_processes};
    if ((rc = local_init(&p->local, &p->loop, &local, &local_handler, err)) < 0)
        return rc;
    struct status_sources sources = {&p->config, p->lock.dir, &p->roles, &p->router, &p->local, &p->links,
                                     &p->listener};
    return status_init(&p->status, &p->loop, &sources, err);
}

/* What killed the poised before this one is not planned again. */
static void tell_poisons(struct poised *p)
{
    struct coordinator_mark what;
    char who[256];
    for (uint32_t i = 0; mark_poison(&p->mark, i, p->config.node_name, &what, who, sizeof who); i++)
        roles_poisoned(&p->roles, &what, who);
}

static int init(struct poised *p, struct poise_err *err)
{
    int rc = notify_init(&p->notify, &p->loop, p->config.ready_fd, err);
    if (rc == 0 && strcmp(p->config.keys, "none") != 0)
        rc = keys_read(p->config.keys, &p->keys, err);
    if (rc == 0)
        rc = lock_take(&p->lock, p->config.socket_dir, err);
    if (rc == 0)
        mark_open(&p->mark, p->lock.dir);
    if (rc == 0)
        rc = signals_init(&p->signals, &p->loop, on_end, on_reload, p, err);
    if (rc == 0)
        rc = roles_init(&p->roles, &p->loop, &p->config,
                        &(struct roles_sockets){&p->router, &p->local, &p->links, &p->listener, mark_memory(&p->mark)}, err);
    if (rc == 0) {
        tell_poisons(p);
        rc = init_sockets(p, err);
    }
    return rc;
}

static void fini(struct poised *p)
{
    status_close(&p->status, NULL);
    local_close(&p->local, NULL);
    listener_close(&p->listener);
    links_close(&p->links);
    curve_close(&p->curve);
    router_close(&p->router, NULL);
    accept_guard_close(&p->guard);
    roles_close(&p->roles, NULL);
    signals_close(&p->signals, NULL);
    notify_close(&p->notify, NULL);
    uv_run(&p->loop, UV_RUN_DEFAULT); /* until the last handle has closed */
    listener_fini(&p->listener);
    links_fini(&p->links);
    curve_fini(&p->curve);
    router_fini(&p->router);
    accept_guard_fini(&p->guard);
    roles_fini(&p->roles);
    mark_close(&p->mark);
    lock_release(&p->lock);
    int rc = uv_loop_close(&p->loop);
    assert(rc == 0);
    (void)rc;
    log_flush();
}

static int run(struct poised *p)
{
    struct poise_err err = {0};
    char text[256];
    log_init(p->config.log_level);
    raise_limit();
    keep_memory();
    int rc = uv_loop_init(&p->loop);
    if (rc < 0) {
        log_line(LOG_LINE_ERROR, "no event loop: %s", uv_strerror(rc));
        return EXIT_FAULT;
    }
    rc = init(p, &err);
    if (rc == 0) {
        snprintf(text, sizeof text, "poised %s serves %s as node %s", POISE_VERSION, p->lock.dir, p->config.node_name);
        log_line(LOG_LINE_INFO, "%s", text);
        notify_ready(&p->notify, text);
        uv_run(&p->loop, UV_RUN_DEFAULT);
        notify_stopping(&p->notify);
    } else {
        log_line(LOG_LINE_ERROR, "poised does not start: %s", err.text);
    }
    fini(p);
    return rc < 0 ? EXIT_FAULT : 0;
}

int main(int argc, char *argv[])
{
    static struct poised poised;
    struct poise_err err;
    hold_standard_descriptors();
    log_init(LOG_LINE_INFO); /* until the configuration says otherwise */
    if (config_parse(argc, argv, &poised.config, &err) < 0) {
        fprintf(stderr, "%spoised: %s\n", log_in_journal() ? "<3>" : "", err.text);
        return EXIT_USAGE;
    }
    poised.argc = argc;
    poised.argv = argv;
    switch (poised.config.action) {
    case CONFIG_HELP:
        usage_print(stdout);
        return 0;
    case CONFIG_VERSION:
        printf("poised %s (wire version %u)\n", POISE_VERSION, WIRE_VERSION);
        return 0;
    case CONFIG_CHECK:
        config_print(&poised.config, stdout);
        return 0;
    default:
        return run(&poised);
    }
}
