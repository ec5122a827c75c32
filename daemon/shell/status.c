/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmicrohttpd without a thread: it keeps its sockets in an epoll descriptor of its own, which the loop watches; what
 * is ready is served by MHD_run(), which never blocks, and a timer comes back where the library wants to. A reader that
 * is slow or silent holds one of a limited number of connections until its time is up, nothing else.
 */
#include "daemon/shell/status.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"

#define MAX_CONNECTIONS 64
#define CONNECTION_BYTES 16384u /* for one request's head: ours have a few hundred */
#define TIMEOUT_S 10u
#define BACKLOG 64
#define UID_NOBODY 65534

static void serve(struct status *status);

/* ---------------------------------------------------------------------------------------------------------- answers */

static const char plain[] = "text/plain; charset=utf-8";

/* Takes text (malloc), NULL: no memory. allow: the methods that would do, or NULL. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type, char *text,
                              const char *allow)
{
    struct MHD_Response *response;
    if (!text)
        return MHD_NO; /* ends the connection */
    response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (allow)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
    enum MHD_Result rc = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result __attribute__((format(printf, 3, 4)))
say(struct MHD_Connection *connection, unsigned code, const char *format, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, format);
    if (vasprintf(&text, format, ap) < 0)
        text = NULL;
    va_end(ap);
    return answer(connection, code, plain, text, NULL);
}

static void report_free(struct shell_report *report)
{
    free(report->groups);
    free(report->idle_ms);
    free(report->links);
    free(report->node.processes);
}

static int gather_links(const struct status_sources *s, struct shell_report *report)
{
    report->n_links = links_report(s->links, report->now_ms, NULL, 0);
    report->links = calloc(report->n_links + 1, sizeof *report->links);
    if (!report->links)
        return -ENOMEM;
    links_report(s->links, report->now_ms, report->links, report->n_links);
    return 0;
}

/* Caller frees with report_free(). */
static int gather(const struct status *status, struct shell_report *ret_report)
{
    const struct status_sources *s = &status->sources;
    uint64_t now = roles_now_ms();
    struct shell_report report = {.pid = (uint32_t)getpid(), .uptime_ms = now - status->started_ms,
                                  .socket_dir = s->socket_dir, .mode = s->config->mode,
                                  .n_connections = s->local->n_conns, .max_processes = s->local->max_processes,
                                  .n_queued = s->roles->n_queued, .router = s->router->counters,
                                  .now_ms = now, .listener = s->listener,
                                  .local = s->local->counters, .roles = s->roles->counters};
    int rc = node_report(s->roles->node, &report.node);
    if (rc < 0)
        return rc;
    rc = coordinator_report(s->roles->coordinator, now, &report.groups, &report.n_groups);
    if (rc == 0)
        rc = gather_links(s, &report);
    if (rc == 0 && !(report.idle_ms = calloc(report.n_groups + 1, sizeof *report.idle_ms)))
        rc = -ENOMEM;
    if (rc < 0) {
        report_free(&report);
        return rc;
    }
    for (uint32_t i = 0; i < report.n_groups; i++)
        report.idle_ms[i] = roles_idle_ms(s->roles, report.groups[i].epoch);
    *ret_report = report;
    return 0;
}

static enum MHD_Result answer_report(const struct status *status, struct MHD_Connection *connection, const char *type,
                                     char *(*write_text)(const struct shell_report *))
{
    struct shell_report report;
    if (gather(status, &report) < 0)
        return say(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory for the report\n");
    char *text = write_text(&report);
    report_free(&report);
    return answer(connection, MHD_HTTP_OK, type, text, NULL);
}

static bool peer_uid(struct MHD_Connection *connection, uint32_t *ret_uid)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct ucred who;
    socklen_t n = sizeof who;
    if (!info || getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0 || who.uid == UID_NOBODY)
        return false;
    *ret_uid = who.uid;
    return true;
}

static const char *argument(struct MHD_Connection *connection, const char *name)
{
    const char *value = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name);
    return value ? value : "";
}

static enum MHD_Result answer_mode(struct status *status, struct MHD_Connection *connection)
{
    const char *job = argument(connection, "job"), *group = argument(connection, "group");
    const char *text = argument(connection, "mode");
    uint32_t mode, uid;
    struct poise_err err = {0};
    if (!mode_read(text, &mode))
        return say(connection, MHD_HTTP_BAD_REQUEST, "mode '%s' is none of on, shadow, off\n", text);
    if (!peer_uid(connection, &uid))
        return say(connection, MHD_HTTP_FORBIDDEN, "the kernel does not say who you are\n");
    int rc = roles_set_mode(status->sources.roles, job, group, mode, uid, &err);
    const char *why = err.text[0] ? err.text : strerror(-rc);
    if (rc == -EACCES)
        return say(connection, MHD_HTTP_FORBIDDEN, "%s\n", why);
    if (rc == -ENOENT)
        return say(connection, MHD_HTTP_NOT_FOUND, "%s\n", why);
    if (rc < 0)
        return say(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "%s\n", why);
    log_line(LOG_LINE_INFO, "uid %u sets %s%s%s to mode %s", uid, *job ? job : "all jobs", *group ? "/" : "", group,
             text);
    return say(connection, MHD_HTTP_OK, "%s%s%s: mode %s\n", *job ? job : "all jobs", *group ? "/" : "", group, text);
}

static enum MHD_Result wrong_method(struct MHD_Connection *connection, const char *url, const char *method,
                                    const char *allow)
{
    char *text = NULL;
    if (asprintf(&text, "%s takes %s, not %s\n", url, allow, method) < 0)
        text = NULL;
    return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain, text, allow);
}

static enum MHD_Result route(struct status *status, struct MHD_Connection *connection, const char *url,
                             const char *method)
{
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, post = strcmp(method, "POST") == 0;
    bool is_mode = strcmp(url, "/mode") == 0;
    bool is_report = strcmp(url, "/status") == 0 || strcmp(url, "/metrics") == 0 || strcmp(url, "/healthz") == 0;
    if (!is_mode && !is_report)
        return say(connection, MHD_HTTP_NOT_FOUND, "%s: not here; there are /status, /metrics, /healthz and /mode\n",
                   url);
    if (is_mode ? !post : !get)
        return wrong_method(connection, url, method, is_mode ? "POST" : "GET, HEAD");
    if (is_mode)
        return answer_mode(status, connection);
    if (strcmp(url, "/healthz") == 0)
        return say(connection, MHD_HTTP_OK, "ok\n");
    if (strcmp(url, "/metrics") == 0)
        return answer_report(status, connection, "text/plain; version=0.0.4; charset=utf-8", status_metrics);
    return answer_report(status, connection, "application/json", status_json);
}

/* Called once with the head, then with pieces of a body, which nothing here needs, then to answer. */
static enum MHD_Result on_request(void *data, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *body, size_t *n_body, void **state)
{
    static char begun;
    (void)version, (void)body;
    if (!*state) {
        *state = &begun;
        return MHD_YES;
    }
    if (*n_body) {
        *n_body = 0;
        return MHD_YES;
    }
    return route(data, connection, url, method);
}

static void __attribute__((format(printf, 2, 0))) on_log(void *data, const char *format, va_list ap)
{
    char text[256];
    (void)data;
    vsnprintf(text, sizeof text, format, ap);
    text[strcspn(text, "\n")] = 0;
    log_line(LOG_LINE_DEBUG, "status socket: %s", text);
}

/* ------------------------------------------------------------------------------------------------------------- loop */

static void on_timer(uv_timer_t *timer)
{
    serve(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    serve(poll->data);
}

static void serve(struct status *status)
{
    MHD_UNSIGNED_LONG_LONG ms;
    /* Twice: at the limit of connections or descriptors it stops listening, a run that closes connections only notes that
     * there is room again, and the next one listens. Without it nobody may ever call that next one. */
    MHD_run(status->http);
    MHD_run(status->http);
    if (MHD_get_timeout(status->http, &ms) == MHD_YES)
        uv_timer_start(&status->timer, on_timer, ms, 0);
    else
        uv_timer_stop(&status->timer);
}

static int listen_at(struct status *status, struct poise_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memcpy(addr.sun_path, status->path, sizeof addr.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(status->path);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0 && chmod(status->path, 0666) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int code = -errno;
    if (fd >= 0)
        close(fd);
    return err_set(err, code, "%s: %s", status->path, strerror(-code));
}

/* Takes fd. */
static int start_http(struct status *status, int fd, struct poise_err *err)
{
    status->http = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, status, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_END);
    if (!status->http) {
        close(fd);
        return err_set(err, -EIO, "%s: the HTTP server does not start", status->path);
    }
    return 0;
}

int status_init(struct status *status, uv_loop_t *loop, const struct status_sources *sources, struct poise_err *err)
{
    *status = (struct status){.sources = *sources, .started_ms = roles_now_ms()};
    snprintf(status->path, sizeof status->path, "%s/status.sock", sources->socket_dir);
    int fd = listen_at(status, err), rc = fd;
    if (fd < 0 || (rc = start_http(status, fd, err)) < 0)
        return rc;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(status->http, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info || (rc = uv_poll_init(loop, &status->poll, info->epoll_fd)) < 0) {
        MHD_stop_daemon(status->http);
        unlink(status->path);
        return err_set(err, info ? rc : -EIO, "%s: cannot be watched", status->path);
    }
    uv_timer_init(loop, &status->timer);
    status->poll.data = status->timer.data = status;
    status->n_open = 2;
    status->loop = loop;
    uv_poll_start(&status->poll, UV_READABLE, on_poll);
    return 0;
}

static void status_maybe_closed(struct status *status)
{
    if (status->n_open)
        return;
    MHD_stop_daemon(status->http); /* also closes the listening socket */
    unlink(status->path);
    if (status->closed)
        status->closed(status);
}

static void on_closed(uv_handle_t *handle)
{
    struct status *status = handle->data;
    status->n_open--;
    status_maybe_closed(status);
}

void status_close(struct status *status, void (*closed)(struct status *))
{
    if (!status->loop)
        return;
    status->loop = NULL;
    status->closed = closed;
    uv_poll_stop(&status->poll);
    uv_close((uv_handle_t *)&status->poll, on_closed);
    uv_close((uv_handle_t *)&status->timer, on_closed);
}
