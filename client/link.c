/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to poised. The order is fixed: connect to local.sock; poised sends a token; answer with the own pidfd;
 * connect a DEALER to the path that came with the token and say HELLO with it; WELCOME makes the link carry messages.
 * The end of either connection is the end of both: they are closed and made again, with a delay that grows, for as long
 * as the user of the link has patience (before the first WELCOME: first_timeout_ms).
 *
 * A client without permission "connects" to an ipc endpoint and nothing ever arrives, so the permission is looked at
 * first and every handshake has a deadline. Linger is 0: a trainer must not hang at exit because its daemon does.
 */
#include "client/link.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "client/settings.h"
#include "daemon/planner/err.h"

#define RETRY_FIRST_MS   10   /* a restarted poised is back within a few of these */
#define RETRY_MAX_MS     500  /* and does not drown in connections of all ranks of a node when it takes longer */
#define HANDSHAKE_MS     2000 /* from connect to WELCOME: a daemon that needs longer is stuck; try again */
#define REFUSAL_GRACE_MS 250  /* between a starting daemon's bind and its chmod the socket may not be opened */
#define LAST_WORDS_MS    20   /* a message sent before poised ended the connection may arrive this much after its end */
#define SHORT_MS         20   /* until memory that was short for a message is asked for again */
#define DRAIN_MAX        64   /* messages at a time, so that the rest of the engine has its turn */

enum link_state { LINK_DOWN, LINK_TOKEN_WAIT, LINK_WELCOME_WAIT, LINK_UP };

struct link {
    enum link_state state;
    const struct link_calls *calls;
    void *context;
    char path[LOCAL_PATH_BYTES];
    void *zmq, *dealer;
    int local_fd, zmq_fd;
    struct wire_id token;
    bool was_up;
    uint64_t first_timeout_ms, started_ms; /* 0: link_step() was never called */
    uint64_t retry_ms, retry_delay_ms;     /* LINK_DOWN: when to connect */
    uint64_t handshake_ms;                 /* *_WAIT: deadline */
    int trouble_code;
    char trouble[400];
    bool refused; /* by poised, in words: trying again is useless */
    bool broken;  /* what makes the connection one could not be said: it is to be made anew */
    bool holds;   /* memory was too short for a message: it is kept and read again at held_ms */
    zmq_msg_t held;
    uint64_t held_ms;
};

static void set_trouble(struct link *link, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void set_trouble(struct link *link, int code, const char *format, ...)
{
    va_list args;

    link->trouble_code = code;
    va_start(args, format);
    vsnprintf(link->trouble, sizeof link->trouble, format, args);
    va_end(args);
}

static void close_both(struct link *link)
{
    if (link->dealer)
        zmq_close(link->dealer);
    if (link->local_fd >= 0)
        close(link->local_fd);
    link->dealer = NULL;
    link->local_fd = link->zmq_fd = -1;
}

static void drop_held(struct link *link)
{
    if (link->holds)
        zmq_msg_close(&link->held);
    link->holds = false;
}

static void go_down(struct link *link, uint64_t now_ms)
{
    bool was_up = link->state == LINK_UP;

    link->broken = false;
    drop_held(link);
    close_both(link);
    link->state = LINK_DOWN;
    link->retry_ms = now_ms + link->retry_delay_ms;
    link->retry_delay_ms = 2 * link->retry_delay_ms > RETRY_MAX_MS ? RETRY_MAX_MS : 2 * link->retry_delay_ms;
    if (was_up)
        link->calls->down(link->context, link->trouble);
}

/* ------------------------------------------------------------------------------------------------------- connecting */

static void connect_failed(struct link *link, int error)
{
    if (error == EACCES || error == EPERM)
        set_trouble(
            link, -EACCES,
            "%s may not be opened by uid %u: it needs write permission on the socket and search permission on its "
            "folders",
            link->path, (unsigned)geteuid());
    else if (error == EMFILE || error == ENFILE)
        set_trouble(link, -error, "no file descriptor left to connect to %s: raise `ulimit -n`", link->path);
    else
        set_trouble(link, -ECONNREFUSED, "no poised answers at %s (%s): start `poised --socket-dir %.*s` on this node",
                    link->path, strerror(error), (int)(strlen(link->path) - strlen("/" SETTINGS_LOCAL_SOCK)),
                    link->path);
}

static void connect_local(struct link *link, uint64_t now_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(address.sun_path, link->path);
    link->local_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->local_fd < 0 || connect(link->local_fd, (struct sockaddr *)&address, sizeof address) < 0) {
        connect_failed(link, errno);
        go_down(link, now_ms);
        return;
    }
    link->state = LINK_TOKEN_WAIT;
    link->handshake_ms = now_ms + HANDSHAKE_MS;
    set_trouble(link, -ETIMEDOUT, "%s was opened, but poised does not answer: it is stopped or overloaded", link->path);
}

/* pids mean nothing across pid namespaces; a kernel without pidfds leaves poised its own means. */
static void send_pidfd(struct link *link)
{
    struct local_message packet = {
        .magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_PIDFD, .token = link->token};
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd < 0)
        return;
    link_send_local(link, &packet, fd);
    close(fd);
}

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

/* Queues are without limit, as the ledger's window bounds what is under way; the message size is bounded. Connecting
 * again is the link's own business: a new connection would have a routing id that no session belongs to. */
static int open_dealer(struct link *link, const char *endpoint)
{
    int64_t max = WIRE_MAX_BYTES;
    size_t n = sizeof link->zmq_fd;

    link->dealer = zmq_socket(link->zmq, ZMQ_DEALER);
    if (!link->dealer)
        return -errno;
    if (set_int(link->dealer, ZMQ_LINGER, 0) < 0 || set_int(link->dealer, ZMQ_SNDHWM, 0) < 0 ||
        set_int(link->dealer, ZMQ_RCVHWM, 0) < 0 || set_int(link->dealer, ZMQ_RECONNECT_IVL, -1) < 0 ||
        zmq_setsockopt(link->dealer, ZMQ_MAXMSGSIZE, &max, sizeof max) < 0 || zmq_connect(link->dealer, endpoint) < 0 ||
        zmq_getsockopt(link->dealer, ZMQ_FD, &link->zmq_fd, &n) < 0)
        return -errno;
    return 0;
}

static int say_hello(struct link *link, const struct local_message *packet)
{
    struct wire_message hello = {.type = WIRE_HELLO, .hello = {.wire_version = WIRE_VERSION, .token = packet->token}};
    char endpoint[sizeof packet->text + 8];
    int rc;

    link->token = packet->token;
    if (access(packet->text, R_OK | W_OK) < 0) {
        set_trouble(link, errno == EACCES ? -EACCES : -ECONNREFUSED,
                    "%s of poised may not be opened by uid %u (%s): it needs write permission", packet->text,
                    (unsigned)geteuid(), strerror(errno));
        return -1;
    }
    snprintf(endpoint, sizeof endpoint, "ipc://%s", packet->text);
    rc = open_dealer(link, endpoint);
    if (rc < 0) {
        set_trouble(link, rc, "%s: %s", endpoint, zmq_strerror(-rc));
        return -1;
    }
    send_pidfd(link);
    if (link_send(link, &hello, NULL) < 0) {
        set_trouble(link, -ENOMEM, "no memory to say HELLO");
        return -1;
    }
    link->state = LINK_WELCOME_WAIT;
    set_trouble(link, -ETIMEDOUT, "poised at %s gave a token, but does not answer on %s", link->path, packet->text);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- packets */

/* One packet with at most one descriptor. Returns bytes, 0 at the end, -EAGAIN, another negative errno. */
static ssize_t receive_packet(int local_fd, struct local_message *packet, int *ret_fd, uint32_t *ret_n_fds)
{
    union {
        char room[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = packet, .iov_len = sizeof *packet};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(local_fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *ret_fd = -1;
    *ret_n_fds = 0;
    if (n < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if ((*ret_n_fds)++ == 0)
                *ret_fd = fd;
            else
                close(fd);
        }
    }
    return msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : n;
}

/* Returns < 0 where the connection is of no use any more. */
static int take_packet(struct link *link, const struct local_message *packet, int fd)
{
    switch (packet->type) {
    case LOCAL_TOKEN:
        return link->state == LINK_TOKEN_WAIT ? say_hello(link, packet) : 0;
    case LOCAL_REFUSED:
        set_trouble(link, -ECONNREFUSED, "poised at %s refuses this process: %s", link->path, packet->text);
        link->refused = true;
        return -1;
    default: /* OFFER, RETRACT */
        if (link->state == LINK_UP)
            link->calls->segment(link->context, packet, fd);
        else if (fd >= 0)
            close(fd);
        return 0;
    }
}

/* Reads all packets. False: the connection ended. */
static bool read_packets(struct link *link)
{
    while (link->local_fd >= 0) {
        struct local_message packet;
        struct poise_err bad;
        uint32_t n_fds;
        int fd;
        ssize_t n = receive_packet(link->local_fd, &packet, &fd, &n_fds);

        if (n == -EAGAIN || n == -EINTR)
            return true;
        if (n > 0 && local_check(&packet, (size_t)n, n_fds, false, &bad) == 0) {
            bool keep = packet.type == LOCAL_OFFER;
            if (!keep && fd >= 0)
                close(fd);
            if (take_packet(link, &packet, keep ? fd : -1) < 0)
                return false;
            continue;
        }
        if (fd >= 0)
            close(fd);
        if (n > 0)
            set_trouble(link, -EPROTO, "poised at %s sent a packet that is none: %s", link->path, bad.text);
        else
            set_trouble(link, -ECONNREFUSED, "poised at %s ended the connection%s%s", link->path, n < 0 ? ": " : "",
                        n < 0 ? strerror((int)-n) : "");
        return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------------- messages */

static void take_message(struct link *link, struct wire_message *msg)
{
    if (link->state == LINK_UP) {
        link->calls->message(link->context, msg);
        return;
    }
    if (msg->type == WIRE_WELCOME) {
        link->state = LINK_UP;
        link->was_up = true;
        link->retry_delay_ms = RETRY_FIRST_MS;
        set_trouble(link, 0, "the link to poised at %s is up", link->path);
        link->calls->up(link->context, msg);
    } else if (msg->type == WIRE_REFUSED) {
        const struct poise_err *why = &msg->refused.error;
        set_trouble(link, why->code < 0 ? why->code : -ECONNREFUSED, "%s", why->text);
        link->refused = why->code == -EPROTONOSUPPORT;
        link->handshake_ms = 0; /* else it is worth another try: the token may be of a poised that has just died */
    }
    wire_free(msg);
}

/* False: memory is short. Nobody says a ROSTER or an ABORT twice, so the message must not be lost. */
static bool take_frame(struct link *link, zmq_msg_t *frame)
{
    struct wire_message *msg;
    int rc = zmq_msg_more(frame) ? -EPROTO
                                 : wire_decode(zmq_msg_data(frame), zmq_msg_size(frame), 0, &msg, NULL);

    if (rc == 0)
        take_message(link, msg);
    return rc != -ENOMEM;
}

uint32_t link_drain(struct link *link)
{
    uint32_t n_messages = 0;

    while (link->dealer && !link->holds && n_messages < DRAIN_MAX) {
        zmq_msg_t frame;

        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, link->dealer, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            break;
        }
        n_messages++;
        if (!take_frame(link, &frame)) {
            zmq_msg_init(&link->held);
            zmq_msg_move(&link->held, &frame);
            link->holds = true;
            link->held_ms = 0; /* at the next step */
        }
        zmq_msg_close(&frame);
    }
    return n_messages;
}

static void read_held(struct link *link, uint64_t now_ms)
{
    zmq_msg_t frame;

    if (!link->holds || now_ms < link->held_ms)
        return;
    zmq_msg_init(&frame);
    zmq_msg_move(&frame, &link->held);
    drop_held(link);
    if (!take_frame(link, &frame)) {
        zmq_msg_init(&link->held);
        zmq_msg_move(&link->held, &frame);
        link->holds = true;
        link->held_ms = now_ms + SHORT_MS;
    }
    zmq_msg_close(&frame);
}

void link_renew(struct link *link)
{
    link->broken = true;
}

int link_send_bytes(struct link *link, const void *bytes, size_t n_bytes)
{
    int rc;

    if (!link->dealer)
        return -EAGAIN;
    do {
        rc = zmq_send(link->dealer, bytes, n_bytes, ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
}

int link_send(struct link *link, const struct wire_message *msg, struct poise_err *err)
{
    uint8_t *bytes;
    size_t n_bytes;
    int rc;

    if (!link->dealer)
        return err_set(err, -EAGAIN, "%s", link->trouble);
    rc = wire_encode(msg, &bytes, &n_bytes, err);
    if (rc < 0)
        return rc;
    rc = link_send_bytes(link, bytes, n_bytes);
    free(bytes);
    return rc < 0 ? err_set(err, rc, "send %s: %s", wire_type_name(msg->type), zmq_strerror(-rc)) : 0;
}

int link_send_local(struct link *link, const struct local_message *what, int fd)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)what, .iov_len = sizeof *what};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (link->local_fd < 0)
        return -EAGAIN;
    if (fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(link->local_fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* ------------------------------------------------------------------------------------------------------------ steps */

/* What poised said last, such as why it refuses, still counts; the two connections are not ordered. */
static void hear_last_words(struct link *link)
{
    struct pollfd fd = {.fd = link->zmq_fd, .events = POLLIN};

    if (!link->dealer)
        return;
    if (link_drain(link) == 0 && poll(&fd, 1, LAST_WORDS_MS) > 0)
        link_drain(link);
}

static int first_deadline(const struct link *link, uint64_t now_ms, struct poise_err *err)
{
    uint64_t patience = link->first_timeout_ms;

    if (link->trouble_code == -EACCES && patience > REFUSAL_GRACE_MS)
        patience = REFUSAL_GRACE_MS;
    if (link->was_up || now_ms - link->started_ms < patience)
        return 0;
    return err_set(err, link->trouble_code < 0 ? link->trouble_code : -ETIMEDOUT, "%s (waited %llu ms)", link->trouble,
                   (unsigned long long)(now_ms - link->started_ms));
}

int link_step(struct link *link, uint64_t now_ms, struct poise_err *err)
{
    if (link->started_ms == 0)
        link->started_ms = link->retry_ms = now_ms;
    if (link->state == LINK_DOWN && now_ms >= link->retry_ms)
        connect_local(link, now_ms);
    if (link->state != LINK_DOWN && !read_packets(link)) {
        hear_last_words(link);
        go_down(link, now_ms);
    }
    read_held(link, now_ms);
    link_drain(link);
    if (link->broken)
        go_down(link, now_ms);
    if (link->refused)
        return err_set(err, link->trouble_code, "%s", link->trouble);
    if ((link->state == LINK_TOKEN_WAIT || link->state == LINK_WELCOME_WAIT) && now_ms >= link->handshake_ms)
        go_down(link, now_ms);
    return link->state == LINK_UP ? 0 : first_deadline(link, now_ms, err);
}

uint64_t link_next_ms(const struct link *link)
{
    uint64_t next = link->state == LINK_UP     ? UINT64_MAX
                    : link->state == LINK_DOWN ? link->retry_ms
                                               : link->handshake_ms;
    uint64_t deadline = link->started_ms + link->first_timeout_ms;

    if (link->holds && link->held_ms < next)
        next = link->held_ms;
    return !link->was_up && deadline < next ? deadline : next;
}

void link_poll(const struct link *link, struct pollfd fds[LINK_N_FDS])
{
    fds[0] = (struct pollfd){.fd = link->local_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = link->zmq_fd, .events = POLLIN};
}

bool link_is_up(const struct link *link)
{
    return link->state == LINK_UP;
}

const char *link_trouble(const struct link *link)
{
    return link->trouble;
}

int link_new(const char *socket_dir, uint64_t first_timeout_ms, const struct link_calls *calls, void *context,
             struct link **ret_link, struct poise_err *err)
{
    struct link *link = calloc(1, sizeof *link);

    if (!link)
        return err_set(err, -ENOMEM, "no memory for the connection to poised");
    link->zmq = zmq_ctx_new();
    if (!link->zmq) {
        int rc = err_set(err, -errno, "zmq_ctx_new: %s", zmq_strerror(errno));
        free(link);
        return rc;
    }
    zmq_ctx_set(link->zmq, ZMQ_BLOCKY, 0);
    snprintf(link->path, sizeof link->path, "%s/%s", socket_dir, SETTINGS_LOCAL_SOCK);
    link->first_timeout_ms = first_timeout_ms;
    link->calls = calls;
    link->context = context;
    link->local_fd = link->zmq_fd = -1;
    link->retry_delay_ms = RETRY_FIRST_MS;
    set_trouble(link, -ECONNREFUSED, "no connection to poised at %s was tried yet", link->path);
    *ret_link = link;
    return 0;
}

void link_free(struct link *link, int linger_ms)
{
    if (!link)
        return;
    drop_held(link);
    if (link->dealer)
        set_int(link->dealer, ZMQ_LINGER, linger_ms);
    if (link->dealer)
        zmq_close(link->dealer);
    link->dealer = NULL;
    zmq_ctx_term(link->zmq);
    close_both(link); /* last: poised takes the end of this one for the end of the process */
    free(link);
}

void link_forked(struct link *link)
{
    if (link->local_fd >= 0)
        close(link->local_fd);
    link->local_fd = -1;
}
