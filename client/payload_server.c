/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A receiver is known by the routing id that the ROUTER gave to its connection, bound at HELLO to a process of the
 * roster: rank, replica and incarnation, which only members know. What it asks for must name the step's plan and be
 * given to it by that plan; anything else is answered with a refusal and counted. An ask that comes before this rank
 * knows the outcome is kept: the nodes of a group hear of it within milliseconds of each other.
 *
 * Receivers are served in turn, one answer each, as long as not too much is under way and the limit on bytes a second
 * allows; what is kept of one receiver is bounded by a number that ours never reaches.
 */
#include "client/payload_server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/payload_answer.h"
#include "daemon/planner/err.h"

#define MESSAGES_A_TURN 64
#define ANSWERS_A_TURN  16 /* up to 16 MB, which cost little: nothing is copied */
#define ID_BYTES        5u /* of a routing id that the ROUTER made */
#define BURST_NS        UINT64_C(100000000) /* of the limit: a tenth of a second's bytes may go at once */

struct kept { /* an ask that is not answered yet */
    struct kept *next;
    struct payload_message msg; /* items point behind it */
};

struct conn { /* a receiver that said HELLO */
    struct conn *next;
    unsigned char id[ID_BYTES];
    uint32_t rank;
    struct kept *asks, **last;
    uint32_t n_asks;
};

struct payload_server {
    const struct payload_group *group;
    void *router;
    const struct payload_server_calls *calls;
    void *context;
    struct answer_gauge gauge;
    struct conn *conns, *turn; /* turn: whose answer is the next; NULL: the first's */
    uint64_t rate;             /* bytes a second, 0: no limit */
    double tokens;             /* bytes that may go now; below 0 after a large answer */
    uint64_t tokens_ns, next_ns;
    struct value *values; /* [POISE_MAX_FIELDS] */
    unsigned char *room;  /* for ENTRIES */
    struct payload_server_stats stats;
};

int payload_server_new(const struct payload_group *group, void *router, uint64_t max_bytes_per_s,
                       const struct payload_server_calls *calls, void *context, struct payload_server **ret_server,
                       struct poise_err *err)
{
    struct payload_server *server = calloc(1, sizeof *server);

    if (server) {
        *server = (struct payload_server){.group = group, .router = router, .calls = calls, .context = context};
        server->gauge.landed = calls->landed;
        server->gauge.context = context;
        server->gauge.full = PAYLOAD_FLYING_BYTES;
        server->rate = max_bytes_per_s;
        server->tokens = (double)max_bytes_per_s * BURST_NS / 1e9;
        server->next_ns = UINT64_MAX;
        server->values = calloc(POISE_MAX_FIELDS, sizeof *server->values);
        server->room = malloc(PAYLOAD_PIECE_BYTES + PAYLOAD_ENTRY_BYTES);
    }
    if (!server || !server->values || !server->room) {
        payload_server_free(server);
        return err_set(err, -ENOMEM, "no memory to serve payload");
    }
    *ret_server = server;
    return 0;
}

static void drop_ask(struct conn *conn)
{
    struct kept *kept = conn->asks;

    conn->asks = kept->next;
    if (!conn->asks)
        conn->last = &conn->asks;
    conn->n_asks--;
    free(kept);
}

static void drop_conn(struct payload_server *server, struct conn *gone)
{
    struct conn **at = &server->conns;

    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    if (server->turn == gone)
        server->turn = gone->next;
    server->stats.n_conns--;
    while (gone->asks)
        drop_ask(gone);
    free(gone);
}

void payload_server_free(struct payload_server *server)
{
    if (!server)
        return;
    while (server->conns)
        drop_conn(server, server->conns);
    free(server->values);
    free(server->room);
    free(server);
}

/* ---------------------------------------------------------------------------------------------------------- replies */

static struct payload_message reply_to(const struct payload_server *server, const struct payload_message *msg,
                                       enum payload_type type)
{
    const struct payload_group *group = server->group;

    return (struct payload_message){.type = type,
                                    .request = msg->request,
                                    .epoch = group->epoch,
                                    .step = msg->step,
                                    .rank = group->rank,
                                    .replica = group->replica,
                                    .incarnation = group->incarnation};
}

/* A refusal that cannot be sent is no loss: whoever is there asks again. */
__attribute__((format(printf, 5, 6))) static void refuse(struct payload_server *server, const unsigned char *id,
                                                         const struct payload_message *msg, uint32_t code,
                                                         const char *format, ...)
{
    struct payload_message refusal = reply_to(server, msg, PAYLOAD_REFUSED);
    char text[PAYLOAD_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    refusal.code = code;
    refusal.items = (const unsigned char *)text;
    refusal.n_item_bytes = refusal.count = (uint32_t)strlen(text);
    server->stats.refused += code != PAYLOAD_NOT_YET && code != PAYLOAD_OVER;
    payload_send(server->router, id, ID_BYTES, &refusal);
}

static struct conn *conn_of(const struct payload_server *server, const unsigned char *id)
{
    struct conn *conn = server->conns;

    while (conn && memcmp(conn->id, id, ID_BYTES) != 0)
        conn = conn->next;
    return conn;
}

void payload_server_forget(struct payload_server *server, uint32_t rank)
{
    for (struct conn *conn = server->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->rank == rank)
            drop_conn(server, conn);
    }
}

/* ------------------------------------------------------------------------------------------------------------ HELLO */

static bool is_member(const struct payload_group *group, const struct payload_message *msg)
{
    return wire_id_is(msg->epoch, group->epoch) && msg->rank < group->n_ranks && msg->rank != group->rank &&
           msg->replica == group->replica &&
           wire_incarnation_compare(&msg->incarnation, &group->members[msg->rank].incarnation) == 0;
}

/* A new connection of a rank takes the place of its old one, which is lost, or about to be. */
static void take_hello(struct payload_server *server, const unsigned char *id, const struct payload_message *msg)
{
    struct payload_message welcome = reply_to(server, msg, PAYLOAD_WELCOME);
    struct conn *conn;

    if (!is_member(server->group, msg)) {
        refuse(server, id, msg, PAYLOAD_STRANGER, "rank %" PRIu32 ", replica %" PRIu32 " of another epoch or process",
               msg->rank, msg->replica);
        return;
    }
    conn = calloc(1, sizeof *conn);
    if (!conn)
        return; /* it tries again */
    payload_server_forget(server, msg->rank);
    memcpy(conn->id, id, ID_BYTES);
    conn->rank = msg->rank;
    conn->last = &conn->asks;
    conn->next = server->conns;
    server->conns = conn;
    server->stats.n_conns++;
    payload_send(server->router, id, ID_BYTES, &welcome);
}

/* -------------------------------------------------------------------------------------------------------- answering */

/* Why a step is not served, as a refusal. 0: it is. -EAGAIN: later. */
static int check_step(struct payload_server *server, const struct conn *conn, const struct payload_message *msg,
                      struct payload_step *step)
{
    int rc = server->calls->step(server->context, msg->step, step);

    if (rc == -EAGAIN)
        return rc;
    if (rc == -ESHUTDOWN) {
        refuse(server, conn->id, msg, PAYLOAD_OVER, "the epoch has ended at rank %" PRIu32, server->group->rank);
    } else if (rc < 0) {
        refuse(server, conn->id, msg, PAYLOAD_STALE, "step %" PRIu64 " is over at rank %" PRIu32, msg->step,
               server->group->rank);
    } else if (!wire_id_is(step->plan_id, msg->plan_id) || !wire_id_is(step->table_hash, msg->table_hash)) {
        refuse(server, conn->id, msg, PAYLOAD_OTHER_PLAN,
               "step %" PRIu64 " has another plan or field table at rank %" PRIu32, msg->step, server->group->rank);
        rc = -EPERM;
    }
    return rc;
}

/* 0; -EAGAIN it cannot be read yet; else it was refused. */
static int read_sample(struct payload_server *server, const struct conn *conn, const struct payload_message *msg,
                       const struct payload_step *step, uint32_t index, struct directory_sample *ret_sample)
{
    struct poise_err why;
    int rc;

    if (index >= step->n_out || step->out_rank[index] != conn->rank) {
        refuse(server, conn->id, msg, PAYLOAD_NOT_YOURS,
               "sample %" PRIu32 " of step %" PRIu64 " is not rank %" PRIu32 "'s", index, msg->step, conn->rank);
        return -EPERM;
    }
    rc = server->calls->sample(server->context, msg->step, index, ret_sample, server->values, &why);
    if (rc == 0 || rc == -EAGAIN)
        return rc;
    refuse(server, conn->id, msg, PAYLOAD_STALE, "%.150s", why.text);
    return -EIO;
}

/* 0 answered or refused; -EAGAIN the connection takes no more, or a sample cannot be read yet; -EHOSTUNREACH it is
 * gone. */
static int answer_entries(struct payload_server *server, const struct conn *conn, const struct payload_message *msg,
                          const struct payload_step *step)
{
    struct payload_message reply = reply_to(server, msg, PAYLOAD_ENTRIES);
    struct directory_sample sample;

    for (uint32_t i = 0; i < msg->count && reply.n_item_bytes < PAYLOAD_PIECE_BYTES; i++) {
        int rc = read_sample(server, conn, msg, step, payload_index(msg, i), &sample);

        if (rc < 0)
            return rc == -EAGAIN ? rc : 0;
        reply.n_item_bytes +=
            payload_put_entry(server->room + reply.n_item_bytes, &sample, server->values, step->table->n_fields);
        reply.count++;
    }
    reply.items = server->room;
    return payload_send(server->router, conn->id, ID_BYTES, &reply);
}

/* Bytes [offset, offset + n) of a sample. */
static int add_extent(struct payload_server *server, const struct payload_step *step,
                      const struct payload_extent *extent, struct answer *answer)
{
    uint64_t at = 0, begin = extent->offset, end = extent->offset + extent->bytes;

    for (uint32_t f = 0; f < step->table->n_fields && at < end; f++) {
        const struct value *value = &server->values[f];
        uint64_t n_bytes, from, to;
        int rc;

        if (!value->present || value_bytes(value, step->table->fields[f].dtype, &n_bytes) < 0)
            continue;
        from = begin > at ? begin - at : 0;
        to = end - at < n_bytes ? end - at : n_bytes;
        rc = from < to ? answer_add(answer, (const unsigned char *)value->data + from, to - from) : 0;
        if (rc < 0)
            return rc;
        at += n_bytes;
    }
    return 0;
}

static int answer_data(struct payload_server *server, const struct conn *conn, const struct payload_message *msg,
                       const struct payload_step *step)
{
    struct payload_message reply = reply_to(server, msg, PAYLOAD_DATA);
    struct answer *answer = NULL;
    int rc = answer_new(&server->gauge, step->flying, &answer);

    for (uint32_t i = 0; rc == 0 && i < msg->count; i++) {
        struct payload_extent extent = payload_extent(msg, i);
        struct directory_sample sample;
        int read = read_sample(server, conn, msg, step, extent.index, &sample);

        if (read < 0) {
            answer_drop(answer);
            return read == -EAGAIN ? read : 0;
        }
        if (extent.offset > sample.bytes || extent.bytes > sample.bytes - extent.offset) {
            refuse(server, conn->id, msg, PAYLOAD_MALFORMED, "sample %" PRIu32 " has %" PRIu64 " bytes", extent.index,
                   sample.bytes);
            answer_drop(answer);
            return 0;
        }
        rc = add_extent(server, step, &extent, answer);
    }
    if (rc < 0) {
        answer_drop(answer);
        return -EAGAIN; /* no memory: again in a moment */
    }
    reply.bytes = answer_bytes(answer);
    rc = answer_send(answer, server->router, conn->id, ID_BYTES, &reply);
    if (rc < 0)
        return rc == -ENOMEM ? -EAGAIN : rc;
    server->tokens -= (double)reply.bytes;
    server->stats.bytes += reply.bytes;
    server->stats.answers++;
    return 0;
}

/* The oldest ask of a connection. True: something was done. */
static bool serve(struct payload_server *server, struct conn *conn)
{
    const struct payload_message *msg = &conn->asks->msg;
    struct payload_step step;
    int rc = check_step(server, conn, msg, &step);

    if (rc == -EAGAIN)
        return false;
    if (rc == 0)
        rc = msg->type == PAYLOAD_ASK_DATA ? answer_data(server, conn, msg, &step)
                                           : answer_entries(server, conn, msg, &step);
    else
        rc = 0; /* refused */
    if (rc == -EAGAIN || rc == -ENOMEM)
        return false;
    if (rc < 0)
        drop_conn(server, conn);
    else
        drop_ask(conn);
    return true;
}

/* Whether payload may go now. */
static bool may_send(struct payload_server *server, uint64_t now_ns)
{
    double burst = (double)server->rate * BURST_NS / 1e9;

    if (atomic_load(&server->gauge.bytes) >= PAYLOAD_FLYING_BYTES)
        return false; /* landed() wakes */
    if (!server->rate)
        return true;
    server->tokens += (double)(now_ns - server->tokens_ns) * (double)server->rate / 1e9;
    server->tokens_ns = now_ns;
    if (server->tokens > burst)
        server->tokens = burst;
    if (server->tokens > 0)
        return true;
    server->next_ns = now_ns + (uint64_t)(-server->tokens / (double)server->rate * 1e9) + 1000000;
    return false;
}

static bool serve_some(struct payload_server *server, uint64_t now_ns)
{
    struct conn *conn = server->turn ? server->turn : server->conns, *next;
    uint32_t n_idle = 0, n_answers = 0;
    bool any = false;

    server->next_ns = UINT64_MAX;
    while (conn && n_idle < server->stats.n_conns && n_answers < ANSWERS_A_TURN) {
        next = conn->next ? conn->next : server->conns;
        if (conn->asks && conn->asks->msg.type == PAYLOAD_ASK_DATA && !may_send(server, now_ns))
            break;
        if (conn->asks && serve(server, conn)) {
            any = true;
            n_idle = 0;
            n_answers++;
        } else {
            n_idle++;
        }
        conn = server->conns ? next : NULL; /* it may be gone, and have been the only one */
        server->turn = conn;
    }
    return any;
}

/* -------------------------------------------------------------------------------------------------------- receiving */

static void keep(struct payload_server *server, struct conn *conn, const struct payload_message *msg)
{
    struct kept *kept;

    if (conn->n_asks >= PAYLOAD_CONN_ASKS) {
        refuse(server, conn->id, msg, PAYLOAD_NOT_YET, "%u asks are under way", conn->n_asks);
        return;
    }
    kept = malloc(sizeof *kept + msg->n_item_bytes);
    if (!kept) {
        refuse(server, conn->id, msg, PAYLOAD_NOT_YET, "no memory");
        return;
    }
    kept->next = NULL;
    kept->msg = *msg;
    memcpy(kept + 1, msg->items, msg->n_item_bytes);
    kept->msg.items = (const unsigned char *)(kept + 1);
    *conn->last = kept;
    conn->last = &kept->next;
    conn->n_asks++;
}

static void take_done(struct payload_server *server, const struct conn *conn, const struct payload_message *msg)
{
    struct payload_message heard = reply_to(server, msg, PAYLOAD_DONE_HEARD);

    server->calls->done(server->context, msg->step, conn->rank);
    payload_send(server->router, conn->id, ID_BYTES, &heard); /* lost: it is said again on the next connection */
}

/* Who asks is who said HELLO on this connection; what a message says of itself must be the same. */
static void take(struct payload_server *server, const unsigned char *id, const struct payload_message *msg)
{
    struct conn *conn = conn_of(server, id);

    if (msg->type == PAYLOAD_HELLO) {
        take_hello(server, id, msg);
    } else if (!conn) {
        refuse(server, id, msg, PAYLOAD_STRANGER, "no HELLO came on this connection");
    } else if (msg->rank != conn->rank || !is_member(server->group, msg)) {
        refuse(server, id, msg, PAYLOAD_STRANGER, "this connection is rank %" PRIu32 "'s", conn->rank);
    } else if (msg->type == PAYLOAD_ASK_ENTRIES || msg->type == PAYLOAD_ASK_DATA) {
        keep(server, conn, msg);
    } else if (msg->type == PAYLOAD_DONE) {
        take_done(server, conn, msg);
    } else {
        refuse(server, id, msg, PAYLOAD_MALFORMED, "a receiver does not send %s", payload_type_name(msg->type));
    }
}

/* Id and one frame. Returns false where there is nothing to read. */
static bool receive(struct payload_server *server)
{
    struct payload_message msg;
    unsigned char id[ID_BYTES];
    zmq_msg_t frame;
    bool has_id, good = false;

    if (payload_receive(server->router, &frame) <= 0)
        return false;
    has_id = zmq_msg_size(&frame) == ID_BYTES && zmq_msg_more(&frame);
    if (has_id)
        memcpy(id, zmq_msg_data(&frame), ID_BYTES);
    if (!has_id) { /* its sender chose its own */
        payload_drain(server->router, &frame);
        zmq_msg_close(&frame);
        server->stats.bad++;
        return true;
    }
    zmq_msg_close(&frame);
    if (payload_receive(server->router, &frame) <= 0)
        return true;
    if (!zmq_msg_more(&frame))
        good = payload_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &msg, NULL) == 0;
    if (good)
        take(server, id, &msg);
    else
        server->stats.bad++;
    payload_drain(server->router, &frame);
    zmq_msg_close(&frame);
    return true;
}

bool payload_server_turn(struct payload_server *server, uint64_t now_ns)
{
    uint32_t n = 0;
    bool any = false;
    uint64_t flying;

    while (n < MESSAGES_A_TURN && receive(server))
        n++;
    any = serve_some(server, now_ns);
    flying = atomic_load(&server->gauge.bytes);
    if (flying > server->stats.most_flying)
        server->stats.most_flying = flying;
    return any || n > 0;
}

uint64_t payload_server_next_ns(const struct payload_server *server)
{
    return server->next_ns;
}

void payload_server_stats(const struct payload_server *server, struct payload_server_stats *ret_stats)
{
    *ret_stats = server->stats;
}
