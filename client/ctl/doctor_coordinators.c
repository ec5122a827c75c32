/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether coordinators can be reached: a connection to the endpoint and one to where its beacons come from (of tcp the
 * port after, of ipc the file beside), as a firewall often opens one port only. Nothing is said over them.
 */
#include "client/ctl/doctor.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECT_MS 3000 /* two retries of a lost first packet of TCP */
#define PORT_DEFAULT 29410
#define PORT_MOST 65534 /* the next one is needed as well */

/* 0: there is somebody; else -errno. */
static int try_address(const struct sockaddr *address, socklen_t n_address)
{
    struct pollfd wait = {.events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;

    wait.fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (wait.fd < 0)
        return -errno;
    if (connect(wait.fd, address, n_address) < 0)
        error = errno;
    if (error == EINPROGRESS) {
        error = ETIMEDOUT;
        if (poll(&wait, 1, CONNECT_MS) == 1 && getsockopt(wait.fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0)
            error = errno;
    }
    close(wait.fd);
    return -error;
}

static const char todo_tcp[] = "start the coordinator's poised, check name and port, open both ports in the firewall";

static bool try_port(struct doctor *doctor, const char *endpoint, const char *host, unsigned port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    char service[16];
    int rc = -EHOSTUNREACH, error;

    snprintf(service, sizeof service, "%u", port);
    error = getaddrinfo(host, service, &hints, &list);
    if (error) {
        doctor_say(doctor, "coordinator", DOCTOR_FAIL, "check the name, DNS and /etc/hosts", "%s: %s: %s", endpoint,
                   host, gai_strerror(error));
        return false;
    }
    for (const struct addrinfo *at = list; at && rc < 0; at = at->ai_next)
        rc = try_address(at->ai_addr, at->ai_addrlen);
    freeaddrinfo(list);
    if (rc < 0)
        doctor_say(doctor, "coordinator", DOCTOR_FAIL, todo_tcp, "%s: port %u: %s", endpoint, port, strerror(-rc));
    return rc == 0;
}

static bool try_file(struct doctor *doctor, const char *endpoint, const char *path, const char *suffix)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int rc = -ENAMETOOLONG;

    if (snprintf(address.sun_path, sizeof address.sun_path, "%s%s", path, suffix) < (int)sizeof address.sun_path)
        rc = try_address((struct sockaddr *)&address, sizeof address);
    if (rc < 0)
        doctor_say(doctor, "coordinator", DOCTOR_FAIL, "start the coordinator's poised, check the path", "%s%s: %s",
                   endpoint, suffix, strerror(-rc));
    return rc == 0;
}

/* HOST[:PORT] or [IPV6][:PORT], changed in place; false: neither. */
static bool split(char *text, char **ret_host, unsigned *ret_port)
{
    char *end = *text == '[' ? strchr(text, ']') : NULL, *colon = strrchr(end ? end : text, ':'), *rest;
    unsigned long port = PORT_DEFAULT;

    if (*text == '[' && !end)
        return false;
    if (colon) {
        port = strtoul(colon + 1, &rest, 10);
        if (colon[1] < '0' || colon[1] > '9' || *rest || port == 0 || port > PORT_MOST)
            return false;
        *colon = 0;
    }
    if (end && end[1])
        return false;
    if (end)
        *end = 0;
    *ret_host = end ? text + 1 : text;
    *ret_port = (unsigned)port;
    return **ret_host != 0;
}

static void check_endpoint(struct doctor *doctor, const char *endpoint)
{
    char text[300], *host;
    unsigned port;
    bool reached;

    if (strncmp(endpoint, "ipc://", 6) == 0) {
        reached = try_file(doctor, endpoint, endpoint + 6, "") && try_file(doctor, endpoint, endpoint + 6, ".beacon");
    } else {
        if (strncmp(endpoint, "tcp://", 6) != 0 ||
            snprintf(text, sizeof text, "%s", endpoint + 6) >= (int)sizeof text || !split(text, &host, &port)) {
            doctor_say(doctor, "coordinator", DOCTOR_FAIL, "write tcp://HOST[:PORT] or ipc:///PATH",
                       "\"%s\" is no endpoint", endpoint);
            return;
        }
        reached = try_port(doctor, endpoint, host, port) && try_port(doctor, endpoint, host, port + 1);
    }
    if (reached)
        doctor_say(doctor, "coordinator", DOCTOR_OK, NULL, "%s can be connected, and so can its beacons", endpoint);
}

void doctor_coordinators(struct doctor *doctor)
{
    char *list = doctor->coordinators ? strdup(doctor->coordinators) : NULL, *save = NULL;

    if (doctor->coordinators && !list)
        doctor_say(doctor, "coordinator", DOCTOR_FAIL, NULL, "no memory");
    for (char *at = list ? strtok_r(list, ", ", &save) : NULL; at; at = strtok_r(NULL, ", ", &save))
        check_endpoint(doctor, at);
    free(list);
}
