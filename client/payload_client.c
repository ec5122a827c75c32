/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pull at a time for each sender (a step is collected as a whole), all senders side by side. Asks go out as far as
 * credit allows, in the order of the micro-batches; answers are written to their places as they come. So a sender
 * never has more than PAYLOAD_PEER_ASKS of this rank's asks, and ZeroMQ never holds more than PAYLOAD_ALL_BYTES for
 * it.
 *
 * A sender that is slow, or says "not yet", is waited for. One that refuses what the plan gives, or answers with what
 * does not fit, ends the epoch with its name: nothing else could be done about it. Bytes that are no message end the
 * connection.
 */
#include "client/payload_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/payload_peer.h"
#include "client/payload_pull.h"
#include "client/payload_socket.h"
#include "daemon/planner/err.h"

#define MESSAGES_A_TURN 16    /* of one sender: up to 16 MB, 2 to 4 ms of copying; then other work has its turn */
#define IDLE_MS         60000 /* a connection that nothing was asked on for so long is closed */
#define NOT_YET_MS      5     /* nodes hear of an outcome within a few milliseconds of each other */
#define OVER_MS         200   /* poised tells why, within a second */

struct sender {
    struct payload_peer peer;
    struct pull *pull;
    uint64_t done, said, heard; /* DONE: steps below are done here, were said to be, were heard to be; counted + 1 */
    bool forgotten;
};

struct payload_client {
    const struct payload_group *group;
    struct sender **senders; /* [n_ranks], NULL: nothing was ever asked of it */
    uint32_t *active, n_active; /* ranks with a sender */
    uint32_t request;        /* the last number given */
    uint64_t n_bytes;        /* asked for and not here */
    struct payload_client_stats stats;
    unsigned char *room; /* [PAYLOAD_ASK_BYTES] for an ask's items */
};

int payload_client_new(const struct payload_group *group, struct payload_client **ret_client, struct poise_err *err)
{
    struct payload_client *client = calloc(1, sizeof *client);

    if (client) {
        client->group = group;
        client->senders = calloc(group->n_ranks, sizeof *client->senders);
        client->active = calloc(group->n_ranks, sizeof *client->active);
        client->room = malloc(PAYLOAD_ASK_BYTES);
    }
    if (!client || !client->senders || !client->active || !client->room) {
        payload_client_free(client);
        return err_set(err, -ENOMEM, "no memory to fetch payload of %u ranks", group->n_ranks);
    }
    *ret_client = client;
    return 0;
}

void payload_client_free(struct payload_client *client)
{
    if (!client)
        return;
    for (uint32_t i = 0; i < client->n_active; i++) {
        struct sender *sender = client->senders[client->active[i]];

        payload_peer_close(&sender->peer);
        pull_free(sender->pull);
        free(sender);
    }
    free(client->senders);
    free(client->active);
    free(client->room);
    free(client);
}

static struct sender *sender_of(struct payload_client *client, uint32_t rank)
{
    struct sender *sender = client->senders[rank];

    if (sender)
        return sender;
    sender = calloc(1, sizeof *sender);
    if (!sender)
        return NULL;
    sender->peer = (struct payload_peer){
        .rank = rank, .address = client->group->members[rank].address, .fd = -1, .monitor_fd = -1};
    client->senders[rank] = sender;
    client->active[client->n_active++] = rank;
    return sender;
}

static bool wants_connection(const struct sender *sender)
{
    return !sender->forgotten && (sender->pull || sender->done != sender->heard);
}

/* ------------------------------------------------------------------------------------------------------------ pulls */

static int begin(struct payload_client *client, const struct transport_step *step, struct source *source,
                 struct poise_err *err)
{
    struct sender *sender = sender_of(client, source->rank);
    int rc;

    if (!sender)
        return err_set(err, -ENOMEM, "out of memory");
    rc = pull_new(step, source, &source->pull, err);
    if (rc == 0)
        sender->pull = source->pull;
    return rc;
}

static int failed(const struct pull *pull, struct poise_err *err)
{
    if (err)
        *err = pull->error;
    return pull->error.code;
}

/* It left before this rank had all: its close did not wait so long. What it had is lost. */
static void say_gone(struct pull *pull)
{
    if (pull->error.code == 0)
        err_set_at(&pull->error, -ESHUTDOWN, pull->source->rank, POISE_NONE, NULL,
                   "rank %u left before its samples of step %" PRIu64 " were fetched: raise its close_timeout_ms",
                   pull->source->rank, pull->step->step);
}

int payload_client_entries(struct payload_client *client, const struct transport_step *step, struct source *source,
                           struct poise_err *err)
{
    int rc = source->pull ? 0 : begin(client, step, source, err);

    if (rc < 0)
        return rc;
    if (client->senders[source->rank]->forgotten)
        say_gone(source->pull);
    if (source->pull->error.code < 0)
        return failed(source->pull, err);
    return source->n_entries == source->n ? 0 : -EAGAIN;
}

int payload_client_fetch(struct payload_client *client, const struct transport_step *step, struct source *source,
                         struct poise_err *err)
{
    struct pull *pull = source->pull;

    if (client->senders[source->rank]->forgotten && !(pull->fetching && pull->n_left == 0))
        say_gone(pull);
    if (pull->error.code < 0)
        return failed(pull, err);
    if (!pull->fetching && step->tensors)
        pull_begin_payload(pull);
    return pull->fetching && pull->n_left == 0 ? 0 : -EAGAIN;
}

void payload_client_close(struct payload_client *client, struct source *source)
{
    struct sender *sender = client->senders[source->rank];

    if (!source->pull)
        return;
    client->n_bytes -= source->pull->n_asked_bytes;
    if (sender->pull == source->pull)
        sender->pull = NULL;
    pull_free(source->pull);
    source->pull = NULL;
}

void payload_client_done(struct payload_client *client, uint64_t step, uint32_t rank)
{
    struct sender *sender = sender_of(client, rank);

    if (sender && step + 1 > sender->done) /* no memory: the sender hears of the next step's */
        sender->done = step + 1;
}

void payload_client_forget(struct payload_client *client, uint32_t rank)
{
    struct sender *sender = client->senders[rank];

    if (!sender)
        return;
    sender->forgotten = true;
    payload_peer_close(&sender->peer);
}

bool payload_client_is_idle(const struct payload_client *client)
{
    for (uint32_t i = 0; i < client->n_active; i++) {
        const struct sender *sender = client->senders[client->active[i]];
        if (!sender->forgotten && sender->done != sender->heard)
            return false;
    }
    return true;
}

const char *payload_client_waits_for(struct payload_client *client, const struct source *source,
                                     char text[TRANSPORT_WAIT_TEXT])
{
    const struct sender *sender = client->senders[source->rank];
    const char *what = source->n_entries < source->n ? "the directory" : "payload", *trouble = "";

    if (sender && sender->peer.trouble[0])
        trouble = sender->peer.trouble;
    else if (sender && sender->peer.state == PEER_CLOSED && client->stats.n_open >= PAYLOAD_MAX_PEERS)
        trouble = "as many connections as may be are open";
    else if (sender && sender->peer.state != PEER_UP)
        trouble = "it is not connected yet";
    snprintf(text, TRANSPORT_WAIT_TEXT, "%s of rank %u at %s%s%.100s%s", what, source->rank,
             client->group->members[source->rank].address, *trouble ? " (" : "", trouble, *trouble ? ")" : "");
    return text;
}

/* ---------------------------------------------------------------------------------------------------------- sending */

static int say_done(struct payload_client *client, struct sender *sender)
{
    const struct payload_group *group = client->group;
    struct payload_message done = {.type = PAYLOAD_DONE,
                                   .epoch = group->epoch,
                                   .step = sender->done - 1,
                                   .rank = group->rank,
                                   .replica = group->replica,
                                   .incarnation = group->incarnation};
    int rc = payload_send(sender->peer.dealer, NULL, 0, &done);

    if (rc == 0)
        sender->said = sender->done;
    return rc;
}

static int send_ask(struct payload_client *client, struct sender *sender, struct ask *ask)
{
    struct payload_message msg;
    int rc;

    pull_message(sender->pull, ask, client->group, client->room, &msg);
    rc = payload_send(sender->peer.dealer, NULL, 0, &msg);
    if (rc < 0)
        return rc;
    client->stats.asks++;
    client->stats.again += ask->again;
    ask->sent = ask->again = true;
    return 0;
}

/* New asks, as far as credit allows. */
static int make_asks(struct payload_client *client, struct sender *sender)
{
    struct pull *pull = sender->pull;
    struct ask *ask;
    int rc = 0;

    while (rc == 0 && pull->error.code == 0 && pull->n_asks < PAYLOAD_PEER_ASKS) {
        uint64_t own = PAYLOAD_PEER_BYTES - pull->n_asked_bytes;
        uint64_t all = client->n_bytes < PAYLOAD_ALL_BYTES ? PAYLOAD_ALL_BYTES - client->n_bytes : 0;
        uint64_t max_bytes = own < all ? own : all;

        if (pull->fetching && max_bytes < PAYLOAD_PIECE_BYTES)
            return 0;
        rc = pull_next(pull, !pull->fetching, max_bytes, ++client->request, &ask);
        if (rc < 0 || !ask)
            return rc;
        client->n_bytes += ask->n_bytes;
        if (client->n_bytes > client->stats.most_bytes)
            client->stats.most_bytes = client->n_bytes;
    }
    return rc;
}

static bool send_some(struct payload_client *client, struct sender *sender, uint64_t now_ms)
{
    struct pull *pull = sender->pull;
    bool any = false;

    if (sender->said < sender->done)
        any = say_done(client, sender) == 0;
    if (!pull)
        return any;
    make_asks(client, sender); /* no memory: at the next turn */
    for (struct ask *ask = pull->asks; ask; ask = ask->next) {
        if (ask->sent || now_ms < ask->not_before_ms)
            continue;
        if (send_ask(client, sender, ask) < 0)
            break;
        any = true;
    }
    if (any)
        sender->peer.used_ms = now_ms;
    return any;
}

/* -------------------------------------------------------------------------------------------------------- receiving */

/* The connection is a new one: nothing that was said on the old one counts. */
static void say_all_again(struct sender *sender)
{
    sender->said = sender->heard;
    for (struct ask *ask = sender->pull ? sender->pull->asks : NULL; ask; ask = ask->next)
        ask->sent = false;
}

static void take_data(struct payload_client *client, struct sender *sender, struct ask *ask,
                      const struct payload_message *msg, zmq_msg_t *last)
{
    struct pull *pull = sender->pull;
    bool more = zmq_msg_more(last);
    struct pull_at at;
    zmq_msg_t frame;
    int rc = 0;

    pull_at_begin(pull, ask, &at);
    if (ask->entries || msg->bytes != ask->n_bytes)
        rc = err_set_at(&pull->error, -EPROTO, sender->peer.rank, POISE_NONE, NULL,
                        "rank %u answers with %" PRIu64 " bytes where %" PRIu64 " were asked for", sender->peer.rank,
                        msg->bytes, ask->n_bytes);
    while (more && payload_receive(sender->peer.dealer, &frame) > 0) {
        more = zmq_msg_more(&frame);
        if (rc == 0)
            rc = pull_put(&at, zmq_msg_data(&frame), zmq_msg_size(&frame), &pull->error);
        zmq_msg_close(&frame);
    }
    if (rc == 0 && at.n_left)
        rc = err_set_at(&pull->error, -EPROTO, sender->peer.rank, POISE_NONE, NULL,
                        "rank %u sends %" PRIu64 " bytes less than it announced", sender->peer.rank, at.n_left);
    if (rc < 0)
        return;
    client->stats.bytes += msg->bytes;
    client->n_bytes -= ask->n_bytes;
    pull_forget(pull, ask);
}

static void take_refusal(struct payload_client *client, struct sender *sender, struct ask *ask,
                         const struct payload_message *msg, uint64_t now_ms)
{
    int n = (int)msg->count;
    const char *words = n ? (const char *)msg->items : "";

    if (msg->code == PAYLOAD_STRANGER) { /* a HELLO that was refused, or lost with the connection */
        payload_peer_fail(&sender->peer, now_ms, "it refuses this rank: %.*s", n, words);
        say_all_again(sender);
    } else if (!ask) {
        client->stats.bad++;
    } else if (msg->code == PAYLOAD_NOT_YET || msg->code == PAYLOAD_OVER) {
        ask->sent = false;
        ask->not_before_ms = now_ms + (msg->code == PAYLOAD_OVER ? OVER_MS : NOT_YET_MS);
    } else {
        err_set_at(&sender->pull->error, -EPROTO, sender->peer.rank, POISE_NONE, NULL,
                   "rank %u refuses what the plan of step %" PRIu64 " gives to rank %u: %s (%.*s)", sender->peer.rank,
                   sender->pull->step->step, client->group->rank, payload_refusal_text(msg->code), n, words);
    }
}

static void take(struct payload_client *client, struct sender *sender, const struct payload_message *msg,
                 zmq_msg_t *last, uint64_t now_ms)
{
    struct pull *pull = sender->pull;
    struct ask *ask = pull && pull->error.code == 0 ? pull_find(pull, msg->request) : NULL;

    sender->peer.used_ms = now_ms;
    if (msg->type == PAYLOAD_WELCOME) {
        payload_peer_welcomed(client->group, &sender->peer, msg, now_ms);
        say_all_again(sender);
    } else if (msg->type == PAYLOAD_DONE_HEARD) {
        if (msg->step + 1 > sender->heard && msg->step + 1 <= sender->said)
            sender->heard = msg->step + 1;
    } else if (msg->type == PAYLOAD_REFUSED) {
        take_refusal(client, sender, ask, msg, now_ms);
    } else if (ask && msg->type == PAYLOAD_DATA && ask->sent) {
        take_data(client, sender, ask, msg, last);
    } else if (ask && msg->type == PAYLOAD_ENTRIES && ask->entries && ask->sent) {
        pull_take_entries(pull, ask, msg, &pull->error);
    } else {
        client->stats.bad++; /* an old one, of a step that was given up */
    }
}

/* At most some messages. True: there were any. */
static bool receive(struct payload_client *client, struct sender *sender, uint64_t now_ms)
{
    bool any = false;

    for (uint32_t i = 0; i < MESSAGES_A_TURN && sender->peer.dealer; i++) {
        void *dealer = sender->peer.dealer;
        struct payload_message msg;
        struct poise_err bad;
        zmq_msg_t frame;
        bool more, ours;

        if (payload_receive(dealer, &frame) <= 0)
            break;
        any = true;
        more = zmq_msg_more(&frame);
        ours = payload_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &msg, &bad) == 0;
        if (ours)
            take(client, sender, &msg, &frame, now_ms);
        if (more && sender->peer.dealer && !(ours && msg.type == PAYLOAD_DATA))
            payload_drain(dealer, &frame);
        zmq_msg_close(&frame);
        if (ours)
            continue;
        client->stats.bad++;
        payload_peer_fail(&sender->peer, now_ms, "it sends what is no answer: %s", bad.text);
        say_all_again(sender);
    }
    return any;
}

/* ------------------------------------------------------------------------------------------------------------ turns */

/* Closes the idle connection that was used last the longest ago. */
static bool close_idle(struct payload_client *client)
{
    struct sender *oldest = NULL;

    for (uint32_t i = 0; i < client->n_active; i++) {
        struct sender *sender = client->senders[client->active[i]];
        if (sender->peer.state != PEER_CLOSED && !wants_connection(sender) &&
            (!oldest || sender->peer.used_ms < oldest->peer.used_ms))
            oldest = sender;
    }
    if (!oldest)
        return false;
    payload_peer_close(&oldest->peer);
    client->stats.n_open--;
    return true;
}

static bool connect_some(struct payload_client *client, struct sender *sender, uint64_t now_ms)
{
    if (sender->peer.state != PEER_CLOSED || now_ms < sender->peer.retry_ms)
        return false;
    if (client->stats.n_open >= PAYLOAD_MAX_PEERS && !close_idle(client))
        return false;
    if (payload_peer_open(client->group, &sender->peer, now_ms) < 0)
        return false;
    client->stats.n_open++;
    return true;
}

static bool turn(struct payload_client *client, struct sender *sender, uint64_t now_ms)
{
    bool was_open = sender->peer.state != PEER_CLOSED, any = false;

    if (was_open) {
        any = receive(client, sender, now_ms);
        any |= payload_peer_look(client->group, &sender->peer, now_ms);
    }
    if (was_open && sender->peer.state == PEER_CLOSED)
        say_all_again(sender);
    if (sender->peer.state == PEER_UP)
        any |= send_some(client, sender, now_ms);
    if (wants_connection(sender))
        any |= connect_some(client, sender, now_ms);
    else if (sender->peer.state != PEER_CLOSED && now_ms >= sender->peer.used_ms + IDLE_MS)
        payload_peer_close(&sender->peer);
    return any;
}

bool payload_client_turn(struct payload_client *client, uint64_t now_ms)
{
    bool any = false;

    for (uint32_t i = 0; i < client->n_active; i++)
        any |= turn(client, client->senders[client->active[i]], now_ms);
    client->stats.n_open = 0;
    for (uint32_t i = 0; i < client->n_active; i++)
        client->stats.n_open += client->senders[client->active[i]]->peer.state != PEER_CLOSED;
    return any;
}

uint32_t payload_client_poll(const struct payload_client *client, struct pollfd *fds, uint32_t max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < client->n_active && n + 2 <= max; i++) {
        const struct payload_peer *peer = &client->senders[client->active[i]]->peer;
        if (peer->state == PEER_CLOSED)
            continue;
        fds[n++] = (struct pollfd){.fd = peer->fd, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = peer->monitor_fd, .events = POLLIN};
    }
    return n;
}

static uint64_t next_of(const struct payload_client *client, const struct sender *sender)
{
    uint64_t next = payload_peer_next_ms(&sender->peer);

    if (sender->peer.state == PEER_CLOSED)
        return wants_connection(sender) && client->stats.n_open < PAYLOAD_MAX_PEERS ? sender->peer.retry_ms
                                                                                   : UINT64_MAX;
    if (!wants_connection(sender))
        return sender->peer.used_ms + IDLE_MS;
    for (const struct ask *ask = sender->pull ? sender->pull->asks : NULL; ask; ask = ask->next)
        if (!ask->sent && sender->peer.state == PEER_UP && ask->not_before_ms < next)
            next = ask->not_before_ms;
    return next;
}

uint64_t payload_client_next_ms(const struct payload_client *client, uint64_t now_ms)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t i = 0; i < client->n_active; i++) {
        uint64_t at = next_of(client, client->senders[client->active[i]]);
        next = at < next ? at : next;
    }
    return next > now_ms ? next : now_ms + 1; /* what is due and could not be done (no memory) is tried again soon */
}

void payload_client_stats(const struct payload_client *client, struct payload_client_stats *ret_stats)
{
    *ret_stats = client->stats;
}
