/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts of a cluster have several networks, and which one is meant is the user's to say. Who runs NCCL or gloo has said
 * it already, so their variables count in their own syntax. Otherwise the kernel's choice of a route toward the
 * coordinator is right: an address that packets to the coordinator leave from is one that the coordinator can answer
 * to. No packet is sent to find it out: a UDP socket that is connected has its source address.
 *
 * Only addresses that other hosts can use without knowing the interface are taken: no link-local IPv6 ones.
 */
#include "client/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/planner/err.h"

#define HOST_BYTES 256 /* a name in DNS has at most 253 */
#define ANY_PORT "9"   /* of the route: nothing is sent there */
#define FAR_V4 "192.0.2.1"   /* of documentation: whatever the default route is, it leads there */
#define FAR_V6 "2001:db8::1"

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
};

static bool is_loopback(const union address *a)
{
    if (a->any.sa_family == AF_INET)
        return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr) && a->v6.sin6_addr.s6_addr[12] == 127);
}

static bool is_usable(const union address *a)
{
    if (a->any.sa_family == AF_INET)
        return a->v4.sin_addr.s_addr != 0;
    return a->any.sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr) &&
           !IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr);
}

static int print(const union address *a, char *ret_addr, size_t n_addr, struct poise_err *err)
{
    char text[INET6_ADDRSTRLEN];
    bool v6 = a->any.sa_family == AF_INET6;
    const void *from = v6 ? (const void *)&a->v6.sin6_addr : (const void *)&a->v4.sin_addr;

    if (v6 && IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr)) { /* a route of IPv4 behind a socket of IPv6 */
        from = &a->v6.sin6_addr.s6_addr[12];
        v6 = false;
    }
    inet_ntop(v6 ? AF_INET6 : AF_INET, from, text, sizeof text);
    if ((size_t)snprintf(NULL, 0, v6 ? "[%s]" : "%s", text) >= n_addr)
        return err_set(err, -EINVAL, "no room for the address %s", text);
    snprintf(ret_addr, n_addr, v6 ? "[%s]" : "%s", text);
    return 0;
}

static bool read_literal(const char *text, union address *ret_address)
{
    *ret_address = (union address){.any = {.sa_family = AF_UNSPEC}};
    if (inet_pton(AF_INET, text, &ret_address->v4.sin_addr) == 1) {
        ret_address->v4.sin_family = AF_INET;
        return true;
    }
    if (inet_pton(AF_INET6, text, &ret_address->v6.sin6_addr) == 1) {
        ret_address->v6.sin6_family = AF_INET6;
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------------- interfaces */

bool address_matches(const char *list, const char *name)
{
    bool except = *list == '^', exact, found = false;

    list += except;
    exact = *list == '=';
    list += exact;
    while (*list && !found) {
        size_t n = strcspn(list, ","), n_name = strcspn(list, ",:"); /* NCCL takes a port after a colon */

        found = n_name && strncmp(name, list, n_name) == 0 && (!exact || !name[n_name]);
        list += n + (list[n] == ',');
    }
    return found != except;
}

static int no_match(const struct ifaddrs *all, const char *what, const char *list, struct poise_err *err)
{
    char names[160] = "";

    for (const struct ifaddrs *at = all; at; at = at->ifa_next)
        if (at->ifa_addr && (at->ifa_flags & IFF_UP) && is_usable((const union address *)at->ifa_addr))
            snprintf(names + strlen(names), sizeof names - strlen(names), " %s", at->ifa_name);
    return err_set(err, -ENODEV, "%s is \"%.60s\": no interface that is up and has an address matches; there are:%s",
                   what, list, names);
}

/* How well an interface's address fits, 0: not at all. Names that are given in full come before prefixes ("eth1" before
 * "eth10"), the family of the other end before the other, hosts' addresses before loopback. */
static int fitness(const struct ifaddrs *at, const char *list, const union address *literal, int family)
{
    union address a = {.any = {.sa_family = AF_UNSPEC}};
    char exact[256];

    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP) ||
        (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
        return 0;
    memcpy(&a, at->ifa_addr, at->ifa_addr->sa_family == AF_INET ? sizeof a.v4 : sizeof a.v6);
    if (literal->any.sa_family != AF_UNSPEC)
        return a.any.sa_family == literal->any.sa_family &&
               (a.any.sa_family == AF_INET
                    ? a.v4.sin_addr.s_addr == literal->v4.sin_addr.s_addr
                    : memcmp(&a.v6.sin6_addr, &literal->v6.sin6_addr, sizeof a.v6.sin6_addr) == 0);
    if (!is_usable(&a) || !address_matches(list, at->ifa_name))
        return 0;
    snprintf(exact, sizeof exact, "=%s", list);
    return 1 + 8 * address_matches(exact, at->ifa_name) + 4 * !is_loopback(&a) +
           2 * (family != AF_UNSPEC && a.any.sa_family == family) + (a.any.sa_family == AF_INET);
}

/* what: where the list comes from, for errors. */
static int by_interface(const char *list, const char *what, int family, char *ret_addr, size_t n_addr,
                        struct poise_err *err)
{
    struct ifaddrs *all, *best = NULL;
    union address literal, found;
    int most = 0, rc;

    read_literal(list, &literal);
    if (getifaddrs(&all) < 0)
        return err_set(err, -errno, "the interfaces of this host: %s", strerror(errno));
    for (struct ifaddrs *at = all; at; at = at->ifa_next) {
        int fit = fitness(at, list, &literal, family);

        if (fit > most) {
            most = fit;
            best = at;
        }
    }
    if (best) {
        memcpy(&found, best->ifa_addr, best->ifa_addr->sa_family == AF_INET ? sizeof found.v4 : sizeof found.v6);
        rc = print(&found, ret_addr, n_addr, err);
    } else {
        rc = no_match(all, what, list, err);
    }
    freeifaddrs(all);
    return rc;
}

/* ------------------------------------------------------------------------------------------------------------ route */

static int by_route(const struct sockaddr *to, socklen_t n_to, union address *ret_from)
{
    socklen_t n = sizeof *ret_from;
    int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc = 0;

    if (fd < 0)
        return -errno;
    if (connect(fd, to, n_to) < 0 || getsockname(fd, &ret_from->any, &n) < 0)
        rc = -errno;
    close(fd);
    return rc;
}

static int by_default_route(union address *ret_from)
{
    union address far;

    read_literal(FAR_V4, &far);
    far.v4.sin_port = htons(9);
    if (by_route(&far.any, sizeof far.v4, ret_from) == 0)
        return 0;
    read_literal(FAR_V6, &far);
    far.v6.sin6_port = htons(9);
    return by_route(&far.any, sizeof far.v6, ret_from);
}

/* HOST of an endpoint, without brackets; false: it has none. */
static bool host_of(const char *toward, char host[HOST_BYTES], bool *ret_local)
{
    size_t n;

    *ret_local = !toward || !*toward || *toward == ',' || strncmp(toward, "ipc://", 6) == 0;
    if (*ret_local)
        return true;
    if (strncmp(toward, "tcp://", 6) == 0)
        toward += 6;
    if (*toward == '[')
        n = strcspn(++toward, "]");
    else if (strchr(toward, ':') && strchr(strchr(toward, ':') + 1, ':') && !strchr(toward, ','))
        n = strlen(toward); /* an IPv6 address by itself */
    else
        n = strcspn(toward, ":,");
    if (n == 0 || n >= HOST_BYTES)
        return false;
    memcpy(host, toward, n);
    host[n] = 0;
    return true;
}

static int route_to(const char *host, union address *ret_from, struct poise_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    int error = getaddrinfo(host, ANY_PORT, &hints, &list), rc = -EHOSTUNREACH;
    union address literal;

    if (error)
        return err_set(err, -EHOSTUNREACH, "host %s: %s: check the name, DNS and /etc/hosts", host,
                       gai_strerror(error));
    for (const struct addrinfo *at = list; at && rc < 0; at = at->ai_next)
        rc = by_route(at->ai_addr, at->ai_addrlen, ret_from);
    freeaddrinfo(list);
    if (rc < 0)
        return err_set(err, rc, "host %s: no route: %s", host, strerror(-rc));
    if (is_loopback(ret_from) && !read_literal(host, &literal))
        by_default_route(ret_from); /* without one the loopback address stays: this host has no network */
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------- public */

bool address_is_loopback(const char *host)
{
    union address a;
    char bare[INET6_ADDRSTRLEN + 2];
    size_t n = strlen(host);

    if (strcmp(host, "localhost") == 0)
        return true;
    if (n < 2 || n >= sizeof bare)
        return false;
    if (*host == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    }
    snprintf(bare, sizeof bare, "%.*s", (int)n, host);
    return read_literal(bare, &a) && is_loopback(&a);
}

int endpoint_local_address(const char *toward, const char *interface, char *ret_addr, size_t n_addr,
                           struct poise_err *err)
{
    const char *nccl = getenv("NCCL_SOCKET_IFNAME"), *gloo = getenv("GLOO_SOCKET_IFNAME");
    char host[HOST_BYTES] = "127.0.0.1", exact[256];
    union address to = {.any = {.sa_family = AF_UNSPEC}}, from;
    bool local;
    int rc;

    if (!host_of(toward, host, &local))
        return err_set(err, -EINVAL, "\"%.200s\" names no host: tcp://HOST:PORT", toward);
    if (!local)
        read_literal(host, &to);
    if (interface && *interface)
        return by_interface(interface, "interface", to.any.sa_family, ret_addr, n_addr, err);
    if (local || address_is_loopback(host)) {
        read_literal(to.any.sa_family == AF_INET6 ? "::1" : "127.0.0.1", &from);
        return print(&from, ret_addr, n_addr, err);
    }
    if (nccl && *nccl)
        return by_interface(nccl, "NCCL_SOCKET_IFNAME", to.any.sa_family, ret_addr, n_addr, err);
    if (gloo && *gloo) { /* gloo takes whole names only */
        snprintf(exact, sizeof exact, "=%s", gloo);
        return by_interface(exact, "GLOO_SOCKET_IFNAME", to.any.sa_family, ret_addr, n_addr, err);
    }
    rc = route_to(host, &from, err);
    return rc < 0 ? rc : print(&from, ret_addr, n_addr, err);
}
