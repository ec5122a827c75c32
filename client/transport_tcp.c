/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where payload between nodes meets the engine: the port and its address, the sockets' ZeroMQ context, who may
 * connect, and what the server is told of this rank's steps. Asking is payload_client.c, serving payload_server.c.
 *
 * The port is taken before the JOIN, which announces it, but the key comes with the roster, and ZeroMQ wants it before
 * it binds: so a plain socket listens first (early peers wait in its backlog) and is handed to ZeroMQ then.
 */
#include "client/transport_tcp.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/address.h"
#include "client/handle.h"
#include "client/payload_socket.h"
#include "daemon/planner/err.h"

#define LISTEN_BACKLOG 1024  /* all ranks connect within a moment when the first step goes out */
#define LAST_WORDS_MS  200   /* for DONE_HEARD, for which a receiver that closes too would wait, to leave this process */
#define TELL_MS        60000 /* between two notices about strangers at the port */
#define MONITOR        "inproc://payload-server"
#define EVENTS                                                                                                         \
    (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
/* Of a connection to a sender: TCP, the DEALER's mailbox, and the two ends of its monitor. */
#define FDS_A_PEER 4u
#define FDS_A_THREAD 2u /* its epoll and mailbox */
#define FDS_SERVER   16u /* the port, ROUTER, ZAP, monitor, and ZeroMQ's own threads; peers' connections come on top */

struct transport_tcp {
    struct transport transport;
    struct poise *p;
    int listen_fd;
    char address[WIRE_ADDRESS_BYTES]; /* "tcp://ADDR:PORT" */
    uint8_t secret[WIRE_KEY_BYTES];   /* rank 0: the epoch's, if this process comes to be in one */
    struct poise_err no_address; /* code < 0: why there is none */
    bool started;
    void *zmq, *router, *monitor;
    int router_fd, monitor_fd;
    struct payload_key key;
    struct payload_zap *zap;
    struct payload_group group;
    struct payload_client *client;
    struct payload_server *server;
    atomic_uint flying[HANDLE_STEPS]; /* as p->sent */
    uint64_t n_strangers, told_strangers, told_ms;
    char stranger[WIRE_ADDRESS_BYTES];
};

static struct transport_tcp *tcp_of(struct transport *t)
{
    return (struct transport_tcp *)t;
}

/* ------------------------------------------------------------------------------------------------- port and address */

/* Only named coordinators are seen by other nodes: with the local daemon alone a group stays on its node. */
bool transport_tcp_wanted(const struct settings *settings)
{
    const struct wire_join *join = &settings->join;

    return !settings->plan_only && join->n_ranks > 1 && join->coordinators && join->coordinators[0];
}

uint32_t transport_tcp_n_fds(const struct settings *settings)
{
    uint32_t n_peers = settings->join.n_ranks - 1;

    if (!transport_tcp_wanted(settings))
        return 0;
    return FDS_SERVER + FDS_A_THREAD * settings->payload_threads + n_peers +
           FDS_A_PEER * (n_peers < PAYLOAD_MAX_PEERS ? n_peers : PAYLOAD_MAX_PEERS);
}

/* A listening socket at that address (IPv6 in brackets, or not) and a port of the kernel's choice. */
static int listen_at(const char *address, int *ret_fd, uint32_t *ret_port, struct poise_err *err)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_PASSIVE};
    struct addrinfo *info = NULL;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char host[ADDRESS_BYTES], port[16];
    int fd = -1, rc;

    snprintf(host, sizeof host, "%.*s", (int)(strcspn(address + (*address == '['), "]")), address + (*address == '['));
    rc = getaddrinfo(host, "0", &hints, &info);
    if (rc != 0)
        return err_set(err, -EINVAL, "%s is no address to serve payload at: %s", address, gai_strerror(rc));
    fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, LISTEN_BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &n) < 0 ||
        getnameinfo((struct sockaddr *)&bound, n, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0) {
        rc = err_set(err, -errno, "payload cannot be served at %s: %s", address, strerror(errno));
        if (fd >= 0)
            close(fd);
    } else {
        *ret_fd = fd;
        *ret_port = (uint32_t)strtoul(port, NULL, 10);
    }
    freeaddrinfo(info);
    return rc;
}

static int take_port(struct transport_tcp *tcp, struct poise_err *err)
{
    const struct wire_join *join = &tcp->p->settings.join;
    char address[ADDRESS_BYTES];
    uint32_t port = 0;
    int rc = endpoint_local_address(join->coordinators, tcp->p->settings.interface, address, sizeof address, err);

    if (rc == 0)
        rc = listen_at(address, &tcp->listen_fd, &port, err);
    if (rc == 0)
        snprintf(tcp->address, sizeof tcp->address, "tcp://%s:%u", address, port);
    return rc;
}

static const struct transport_calls calls;

int transport_tcp_new(struct poise *p, struct transport_tcp **ret_tcp, struct poise_err *err)
{
    const struct wire_join *join = &p->settings.join;
    struct transport_tcp *tcp = calloc(1, sizeof *tcp);
    int rc = 0;

    if (!tcp)
        return err_set(err, -ENOMEM, "no memory for payload between nodes");
    tcp->transport.calls = &calls;
    tcp->p = p;
    tcp->listen_fd = tcp->router_fd = tcp->monitor_fd = -1;
    if (p->settings.options.payload == OPTIONS_PAYLOAD_CURVE)
        rc = join->rank == 0 && join->replica == 0 ? payload_key_make(tcp->secret, err) : payload_key_check(err);
    if (rc < 0) {
        transport_tcp_free(tcp);
        return rc;
    }
    take_port(tcp, &tcp->no_address);
    *ret_tcp = tcp;
    return 0;
}

void transport_tcp_join(const struct transport_tcp *tcp, struct wire_join *join)
{
    memcpy(join->payload, tcp->address, sizeof join->payload);
    memcpy(join->payload_key, tcp->secret, sizeof join->payload_key);
}

/* --------------------------------------------------------------------------------------------------- what is served */

/* Server: what a step gives to whom. */
static int step_of(void *context, uint64_t step, struct payload_step *ret_step)
{
    struct transport_tcp *tcp = context;
    struct poise *p = tcp->p;
    const struct sent *sent = &p->sent[step % HANDLE_STEPS];
    uint64_t next;

    if (p->state == HANDLE_ABORTED)
        return -ESHUTDOWN;
    if (sent->active && sent->step == step && sent->n_left && sent->merged) {
        *ret_step = (struct payload_step){.plan_id = sent->plan_id,
                                          .table_hash = sent->merged->hash,
                                          .table = &sent->merged->table,
                                          .n_out = sent->n_out,
                                          .out_rank = sent->out_rank,
                                          .flying = &tcp->flying[step % HANDLE_STEPS]};
        return 0;
    }
    pthread_mutex_lock(&p->lock);
    next = ledger_next_decide(p->ledger);
    pthread_mutex_unlock(&p->lock);
    return step >= next && step - next < WIRE_WINDOW ? -EAGAIN : -ESTALE;
}

static int sample_of(void *context, uint64_t step, uint32_t index, struct directory_sample *ret_sample,
                     struct value *values, struct poise_err *err)
{
    struct transport_tcp *tcp = context;
    struct sent *sent = &tcp->p->sent[step % HANDLE_STEPS];
    int rc = 0;

    if (!sent->dir_open)
        rc = transport_memory_own(tcp->p, step, &sent->merged->table, &sent->dir, err);
    if (rc < 0)
        return rc;
    sent->dir_open = true;
    return directory_read(&sent->dir, index, DIRECTORY_ANY_BYTES, transport_memory_lookup, tcp->p, ret_sample, values,
                          err);
}

static void on_done(void *context, uint64_t step, uint32_t rank)
{
    struct transport_tcp *tcp = context;

    retire_done(tcp->p, step, rank);
}

/* From a thread of ZeroMQ. */
static void on_landed(void *context)
{
    struct transport_tcp *tcp = context;

    wake_ring(tcp->p->wake);
}

static void note(void *context, uint64_t step, uint32_t severity, const char *text)
{
    struct transport_tcp *tcp = context;
    struct poise *p = tcp->p;

    pthread_mutex_lock(&p->lock);
    handle_notice(p, step ? step : p->cursor, severity, "%s", text);
    pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------------------------------------------------ start */

/* Who is where, of this replica. */
static int take_members(struct transport_tcp *tcp, const struct wire_roster *roster, struct poise_err *err)
{
    const struct wire_join *join = &tcp->p->settings.join;
    const struct wire_member *own = &roster->members[(size_t)join->rank * roster->n_replicas + join->replica];

    tcp->group.members = calloc(join->n_ranks, sizeof *tcp->group.members);
    if (!tcp->group.members)
        return err_set(err, -ENOMEM, "no memory for %u peers", join->n_ranks);
    for (uint32_t rank = 0; rank < join->n_ranks; rank++) {
        const struct wire_member *member = &roster->members[(size_t)rank * roster->n_replicas + join->replica];
        struct payload_member *to = &tcp->group.members[rank];

        to->incarnation = member->incarnation;
        if (member->node == own->node)
            continue;
        if (!member->payload[0])
            return err_set_at(err, -EOPNOTSUPP, rank, POISE_NONE, NULL,
                              "rank %u is on node %s, rank %u on %s, and rank %u serves no payload: name the "
                              "coordinators on every rank, and an interface that other nodes reach",
                              rank, member->host, join->rank, own->host, rank);
        memcpy(to->address, member->payload, sizeof to->address);
    }
    return 0;
}

static int load_key(struct transport_tcp *tcp, const struct wire_roster *roster, struct poise_err *err)
{
    if (tcp->p->settings.options.payload == OPTIONS_PAYLOAD_PLAIN)
        return 0;
    if (!roster->payload_key)
        return err_set(err, -ENOKEY,
                       "the key of the payload could not travel to this node: its connection to the coordinator is not "
                       "encrypted; give every poised keys (`poisectl keygen`), or set payload=plain where the network "
                       "is trusted");
    tcp->group.key = &tcp->key;
    return payload_key_load(roster->payload_key, &tcp->key, err);
}

static int bind_router(struct transport_tcp *tcp)
{
    int rc = payload_socket_new(tcp->zmq, true, tcp->group.key, &tcp->router);

    if (rc < 0)
        return rc;
    if (zmq_setsockopt(tcp->router, ZMQ_USE_FD, &tcp->listen_fd, sizeof tcp->listen_fd) < 0)
        return -errno;
    rc = payload_monitor_new(tcp->zmq, tcp->router, MONITOR, EVENTS, &tcp->monitor);
    if (rc == 0 && zmq_bind(tcp->router, tcp->address) < 0)
        rc = -errno;
    if (rc == 0)
        tcp->listen_fd = -1; /* ZeroMQ's from now on */
    tcp->router_fd = payload_socket_fd(tcp->router);
    tcp->monitor_fd = payload_socket_fd(tcp->monitor);
    return rc;
}

static int make_sockets(struct transport_tcp *tcp, struct poise_err *err)
{
    int rc = 0;

    tcp->zmq = zmq_ctx_new();
    if (!tcp->zmq)
        return err_set(err, -errno, "zmq_ctx_new: %s", zmq_strerror(errno));
    zmq_ctx_set(tcp->zmq, ZMQ_BLOCKY, 0);
    zmq_ctx_set(tcp->zmq, ZMQ_IO_THREADS, (int)tcp->p->settings.payload_threads);
    tcp->group.zmq = tcp->zmq;
    if (tcp->group.key) /* before the ROUTER binds: from then on ZeroMQ asks it */
        rc = payload_zap_new(tcp->zmq, &tcp->key, &tcp->zap, err);
    if (rc < 0)
        return rc;
    rc = bind_router(tcp);
    return rc < 0 ? err_set(err, rc, "payload cannot be served at %s: %s", tcp->address,
                            zmq_strerror(-rc))
                  : 0;
}

/* The limit is a node's: its ranks take equal parts. */
static uint64_t rate_of(const struct poise *p)
{
    uint64_t rate = p->settings.max_bytes_per_s, n = p->stats.epoch_n_local ? p->stats.epoch_n_local : 1;

    return rate && rate < n ? 1 : rate / n;
}

int transport_tcp_start(struct transport_tcp *tcp, const struct wire_roster *roster, struct poise_err *err)
{
    static const struct payload_server_calls server_calls = {step_of, sample_of, on_done, on_landed};
    const struct wire_join *join = &tcp->p->settings.join;
    int rc;

    if (tcp->no_address.code < 0) {
        if (err)
            *err = tcp->no_address;
        return tcp->no_address.code;
    }
    tcp->group = (struct payload_group){.epoch = roster->epoch,
                                        .rank = join->rank,
                                        .replica = join->replica,
                                        .n_ranks = join->n_ranks,
                                        .incarnation = join->incarnation,
                                        .note = note,
                                        .context = tcp};
    rc = take_members(tcp, roster, err);
    if (rc == 0)
        rc = load_key(tcp, roster, err);
    if (rc == 0)
        rc = make_sockets(tcp, err);
    if (rc == 0)
        rc = payload_client_new(&tcp->group, &tcp->client, err);
    if (rc == 0)
        rc = payload_server_new(&tcp->group, tcp->router, rate_of(tcp->p), &server_calls, tcp, &tcp->server, err);
    tcp->started = rc == 0;
    return rc;
}

void transport_tcp_free(struct transport_tcp *tcp)
{
    if (!tcp)
        return;
    payload_client_free(tcp->client);
    payload_zap_free(tcp->zap);
    if (tcp->router) {
        int linger_ms = tcp->p->state == HANDLE_ABORTED ? 0 : LAST_WORDS_MS;
        payload_monitor_free(tcp->router, tcp->monitor);
        zmq_setsockopt(tcp->router, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close(tcp->router);
    }
    if (tcp->zmq)
        zmq_ctx_term(tcp->zmq); /* all that was under way has landed */
    payload_server_free(tcp->server);
    if (tcp->listen_fd >= 0)
        close(tcp->listen_fd);
    free(tcp->group.members);
    explicit_bzero(&tcp->key, sizeof tcp->key);
    explicit_bzero(tcp->secret, sizeof tcp->secret);
    free(tcp);
}

void transport_tcp_child(struct transport_tcp *tcp)
{
    if (tcp->listen_fd >= 0)
        close(tcp->listen_fd);
    tcp->listen_fd = -1;
}

/* ------------------------------------------------------------------------------------------------------------ turns */

/* Whoever knocks without the key is told about, not more than once a minute. */
static void tell_strangers(struct transport_tcp *tcp, uint64_t now_ms)
{
    char text[400];

    if (tcp->n_strangers == tcp->told_strangers || (tcp->told_ms && now_ms < tcp->told_ms + TELL_MS))
        return;
    snprintf(text, sizeof text,
             "%llu connections to %s were refused: whoever made them%s%s has not the payload key of this epoch",
             (unsigned long long)(tcp->n_strangers - tcp->told_strangers), tcp->address,
             tcp->stranger[0] ? ", at last " : "", tcp->stranger);
    tcp->told_strangers = tcp->n_strangers;
    tcp->told_ms = now_ms;
    note(tcp, 0, POISE_WARNING, text);
}

static bool look_at_port(struct transport_tcp *tcp, uint64_t now_ms)
{
    struct payload_event event;
    bool any = tcp->zap && payload_zap_turn(tcp->zap, &tcp->n_strangers, tcp->stranger) > 0;

    while (payload_monitor_next(tcp->monitor, &event)) {
        any = true;
        tcp->n_strangers += event.event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL; /* of AUTH the ZAP handler tells */
    }
    tell_strangers(tcp, now_ms);
    return any;
}

bool transport_tcp_turn(struct transport_tcp *tcp)
{
    uint64_t now_ns = handle_now_ns();
    bool any;

    if (!tcp->started)
        return false;
    any = look_at_port(tcp, now_ns / 1000000u);
    any |= payload_server_turn(tcp->server, now_ns);
    any |= payload_client_turn(tcp->client, now_ns / 1000000u);
    return any;
}

uint32_t transport_tcp_poll(const struct transport_tcp *tcp, struct pollfd fds[TRANSPORT_TCP_MAX_FDS])
{
    uint32_t n = 0;

    if (!tcp->started)
        return 0;
    fds[n++] = (struct pollfd){.fd = tcp->router_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = tcp->monitor_fd, .events = POLLIN};
    if (tcp->zap)
        fds[n++] = (struct pollfd){.fd = payload_zap_fd(tcp->zap), .events = POLLIN};
    return n + payload_client_poll(tcp->client, fds + n, TRANSPORT_TCP_MAX_FDS - n);
}

uint64_t transport_tcp_next_ms(const struct transport_tcp *tcp, uint64_t now_ms)
{
    uint64_t client, server;

    if (!tcp->started)
        return UINT64_MAX;
    client = payload_client_next_ms(tcp->client, now_ms);
    server = payload_server_next_ns(tcp->server);
    server = server == UINT64_MAX ? UINT64_MAX : server / 1000000u;
    return client < server ? client : server;
}

/* -------------------------------------------------------------------------------------------------------- transport */

static int entries(struct transport *t, const struct transport_step *step, struct source *source, struct poise_err *err)
{
    return payload_client_entries(tcp_of(t)->client, step, source, err);
}

static int fetch(struct transport *t, const struct transport_step *step, struct source *source, struct poise_err *err)
{
    return payload_client_fetch(tcp_of(t)->client, step, source, err);
}

static void done(struct transport *t, uint64_t step, uint32_t rank)
{
    payload_client_done(tcp_of(t)->client, step, rank);
}

static void close_source(struct transport *t, struct source *source)
{
    payload_client_close(tcp_of(t)->client, source);
}

static const char *waits_for(struct transport *t, const struct source *source, char text[TRANSPORT_WAIT_TEXT])
{
    return payload_client_waits_for(tcp_of(t)->client, source, text);
}

static const struct transport_calls calls = {.name = "tcp",
                                             .writes = true,
                                             .entries = entries,
                                             .fetch = fetch,
                                             .done = done,
                                             .close = close_source,
                                             .waits_for = waits_for};

struct transport *transport_tcp_transport(struct transport_tcp *tcp)
{
    return &tcp->transport;
}

bool transport_tcp_has(const struct transport_tcp *tcp, uint32_t rank)
{
    return tcp->started && tcp->group.members[rank].address[0];
}

bool transport_tcp_flies(const struct transport_tcp *tcp, uint64_t step)
{
    return atomic_load(&tcp->flying[step % HANDLE_STEPS]) > 0;
}

bool transport_tcp_is_idle(const struct transport_tcp *tcp)
{
    return !tcp->started || payload_client_is_idle(tcp->client);
}

void transport_tcp_forget(struct transport_tcp *tcp, uint32_t rank)
{
    if (!transport_tcp_has(tcp, rank))
        return;
    payload_client_forget(tcp->client, rank);
    payload_server_forget(tcp->server, rank);
}
