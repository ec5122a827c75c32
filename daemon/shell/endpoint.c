/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads endpoints as users write them. ZeroMQ takes more than is good here (interfaces, source addresses, abstract
 * names), so only what is understood is passed on. A name is not looked up: whether it means loopback must not depend
 * on a resolver, so of names only "localhost" does.
 */
#include "daemon/shell/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/err.h"

#define TCP "tcp://"
#define IPC "ipc://"
#define BEACON_SUFFIX ".beacon"
#define PATH_MAX_BYTES (107 - (sizeof BEACON_SUFFIX - 1)) /* of sun_path, without its 0 */
#define HOST_BYTES 256 /* a name in DNS has at most 253 */
#define PORT_MAX 65534 /* the beacons have the next one */

struct host {
    char name[HOST_BYTES]; /* without the brackets of IPv6 */
    bool is_v6;
    uint32_t port;
};

static int bad(struct poise_err *err, int code, const char *text, const char *why)
{
    return err_set(err, code, "endpoint %.200s: %s", text, why);
}

static bool is_loopback(const struct host *host)
{
    struct in6_addr v6;
    struct in_addr v4;
    if (host->is_v6)
        return inet_pton(AF_INET6, host->name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
    return inet_pton(AF_INET, host->name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

static int read_port(const char *at, uint32_t *ret_port)
{
    uint32_t port = 0;
    if (!*at)
        return -EINVAL;
    for (; *at; at++) {
        if (*at < '0' || *at > '9')
            return -EINVAL;
        port = port * 10 + (uint32_t)(*at - '0');
        if (port > PORT_MAX)
            return -EINVAL;
    }
    if (port == 0)
        return -EINVAL;
    *ret_port = port;
    return 0;
}

/* HOST, HOST:PORT, [IPV6], [IPV6]:PORT. */
static int split(const char *text, const char *at, struct host *host, struct poise_err *err)
{
    size_t n;
    host->is_v6 = *at == '[';
    at += host->is_v6;
    n = strcspn(at, host->is_v6 ? "]" : ":");
    if (n == 0 || n >= sizeof host->name)
        return bad(err, -EINVAL, text, "it has no host");
    snprintf(host->name, sizeof host->name, "%.*s", (int)n, at);
    at += n;
    if (host->is_v6 && *at++ != ']')
        return bad(err, -EINVAL, text, "']' is missing");
    host->port = ENDPOINT_PORT;
    if (!*at)
        return 0;
    if (!host->is_v6 && strchr(at + 1, ':'))
        return bad(err, -EINVAL, text, "an IPv6 address goes into brackets: tcp://[::1]:29410");
    if (*at != ':' || read_port(at + 1, &host->port) < 0)
        return bad(err, -EINVAL, text, "its port is no number from 1 to 65534 (beacons have the next one)");
    return 0;
}

static int check_name(const char *text, const struct host *host, enum endpoint_use use, struct poise_err *err)
{
    struct in6_addr v6;
    if (host->is_v6) {
        if (inet_pton(AF_INET6, host->name, &v6) != 1)
            return bad(err, -EINVAL, text, "what stands in brackets is no IPv6 address");
        return 0;
    }
    if (strcmp(host->name, "*") == 0) {
        if (use == ENDPOINT_CONNECT)
            return bad(err, -EINVAL, text, "'*' is where to listen, not where to connect: name the host");
        return 0;
    }
    for (const char *at = host->name; *at; at++)
        if (!((*at >= '0' && *at <= '9') || ((*at | 32) >= 'a' && (*at | 32) <= 'z') || strchr("-._", *at)))
            return bad(err, -EINVAL, text, "its host is neither a name nor an address");
    return 0;
}

static int parse_tcp(const char *text, enum endpoint_use use, bool allowed, struct endpoint *endpoint,
                     struct poise_err *err)
{
    struct host host;
    int rc = split(text, text + strlen(TCP), &host, err);
    if (rc == 0)
        rc = check_name(text, &host, use, err);
    if (rc < 0)
        return rc;
    if (strcmp(host.name, "localhost") == 0)
        strcpy(host.name, "127.0.0.1");
    if (!is_loopback(&host) && !allowed)
        return bad(
            err, -EPERM, text,
            "it is beyond loopback, and poised has no keys: make them with poisectl keygen FILE, copy FILE to all "
            "nodes and set keys = FILE (or set insecure = yes on a network that you trust)");
    endpoint->is_loopback = is_loopback(&host);
    endpoint->is_any = strcmp(host.name, "*") == 0 || strcmp(host.name, "0.0.0.0") == 0 || strcmp(host.name, "::") == 0;
    endpoint->port = host.port;
    const char *open = host.is_v6 ? "[" : "", *close = host.is_v6 ? "]" : "";
    snprintf(endpoint->control, sizeof endpoint->control, TCP "%s%s%s:%u", open, host.name, close, host.port);
    snprintf(endpoint->beacon, sizeof endpoint->beacon, TCP "%s%s%s:%u", open, host.name, close, host.port + 1);
    return 0;
}

static int parse_ipc(const char *text, struct endpoint *endpoint, struct poise_err *err)
{
    const char *path = endpoint_path(text);
    if (*path != '/')
        return bad(err, -EINVAL, text, "its path does not begin with '/' (three slashes: ipc:///run/poise-head/c)");
    if (strlen(path) > PATH_MAX_BYTES)
        return bad(err, -EINVAL, text, "its path is longer than 100 bytes");
    snprintf(endpoint->control, sizeof endpoint->control, "%s", text);
    snprintf(endpoint->beacon, sizeof endpoint->beacon, "%s" BEACON_SUFFIX, text);
    endpoint->is_ipc = true;
    return 0;
}

/* ZeroMQ has the source address before the other, with a semicolon in between. */
static void leave_from(char text[ENDPOINT_BYTES], const char *address)
{
    char rest[ENDPOINT_BYTES];
    memcpy(rest, text + strlen(TCP), ENDPOINT_BYTES - strlen(TCP));
    snprintf(text, ENDPOINT_BYTES, TCP "%.60s:0;%.230s", address, rest);
}

void endpoint_leave_from(struct endpoint *endpoint, const char *address)
{
    if (endpoint->is_ipc)
        return;
    leave_from(endpoint->control, address);
    leave_from(endpoint->beacon, address);
}

const char *endpoint_path(const char *text)
{
    return text + strlen(IPC);
}

int endpoint_parse(const char *bytes, size_t n_bytes, enum endpoint_use use, bool allowed,
                   struct endpoint *ret_endpoint, struct poise_err *err)
{
    struct endpoint endpoint = {.is_ipc = false};
    char text[ENDPOINT_BYTES - 32]; /* room for a port and the suffix */
    int rc;
    if (n_bytes == 0)
        return err_set(err, -EINVAL, "an endpoint is empty: tcp://HOST:PORT or ipc:///PATH, with commas in between");
    if (n_bytes >= sizeof text)
        return err_set(err, -EINVAL, "endpoint %.40s... is longer than %zu bytes", bytes, sizeof text - 1);
    snprintf(text, sizeof text, "%.*s", (int)n_bytes, bytes);
    for (const char *at = text; *at; at++)
        if (*at <= ' ' || *at == 127)
            return bad(err, -EINVAL, text, "it has a space or a control character in it");
    if (strncmp(text, TCP, strlen(TCP)) == 0)
        rc = parse_tcp(text, use, allowed, &endpoint, err);
    else if (strncmp(text, IPC, strlen(IPC)) == 0)
        rc = parse_ipc(text, &endpoint, err);
    else
        rc = bad(err, -EINVAL, text, "it begins neither with tcp:// nor with ipc://");
    if (rc == 0)
        *ret_endpoint = endpoint;
    return rc;
}

int endpoints_parse(const char *list, enum endpoint_use use, bool allowed, struct endpoint *ret_endpoints,
                    uint32_t *ret_n, struct poise_err *err)
{
    struct endpoint endpoints[ENDPOINTS_MAX];
    uint32_t n = 0;
    const char *at = list;
    do {
        size_t n_bytes = strcspn(at, ",");
        if (n == ENDPOINTS_MAX)
            return err_set(err, -EINVAL, "more than %d endpoints: one to three are useful", ENDPOINTS_MAX);
        int rc = endpoint_parse(at, n_bytes, use, allowed, &endpoints[n++], err);
        if (rc < 0)
            return rc;
        at += n_bytes;
    } while (*at++ == ',');
    if (ret_endpoints)
        memcpy(ret_endpoints, endpoints, n * sizeof *endpoints);
    if (ret_n)
        *ret_n = n;
    return 0;
}
