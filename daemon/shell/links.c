/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which links there are and how they do. A timer looks at the connections four times a second while any is open: that
 * is soon enough for what follows from it (status, one line a change, and after node-timeout the end of attempts to
 * open that wait for a coordinator which nobody can reach).
 */
#include "daemon/shell/links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/address.h"
#include "daemon/planner/err.h"
#include "daemon/shell/uplink.h"
#include "daemon/shell/log.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/zframe.h"

#define LOOK_MS 250     /* a beacon's period */
#define CONNECT_MS 1000 /* not connected after so long is worth a line: a handshake takes a few milliseconds */
#define IDLE_MS 60000   /* without a message to it; a job sends one a second, and the next one may come soon */
#define AGAIN_MS 1000   /* between attempts where ZeroMQ makes none by itself */
#define BEACONS_MS 5000 /* connected, and its beacons are not: the port is shut */

static struct uplink *find(const struct links *links, uint64_t number)
{
    for (struct uplink *link = links->first; link; link = link->next)
        if (link->number == number)
            return link;
    return NULL;
}

/* The interface is asked for at each link: addresses come and go. */
static int leave_from(const struct links *links, struct endpoint *endpoint, struct poise_err *err)
{
    char address[ADDRESS_BYTES];
    if (!links->interface || endpoint->is_ipc || endpoint->is_loopback)
        return 0;
    int rc = endpoint_local_address(endpoint->control, links->interface, address, sizeof address, err);
    if (rc == 0)
        endpoint_leave_from(endpoint, address);
    return rc;
}

static struct uplink *add(struct links *links, uint64_t number, const char *text, struct poise_err *err)
{
    struct uplink *link = calloc(1, sizeof *link), **last = &links->first;
    if (!link || !(link->text = strdup(text))) {
        free(link);
        err_set(err, -ENOMEM, "no memory for a connection to coordinator %s", text);
        return NULL;
    }
    if (endpoint_parse(text, strlen(text), ENDPOINT_CONNECT, links->allowed, &link->endpoint, err) < 0 ||
        leave_from(links, &link->endpoint, err) < 0) {
        uplink_free(link);
        return NULL;
    }
    link->links = links;
    link->number = number;
    while (*last)
        last = &(*last)->next;
    *last = link;
    return link;
}

/* ------------------------------------------------------------------------------------------------------------ state */

/* Whether nobody between can read it. */
static bool is_secure(const struct uplink *link)
{
    return link->links->keys->set || link->endpoint.is_ipc || link->endpoint.is_loopback;
}

static void tell(struct uplink *link, bool up, uint64_t now_ms)
{
    struct links *links = link->links;
    struct links_change change = {up, up && is_secure(link), link->control.local, up ? NULL : link->control.trouble};
    if (up)
        log_line(LOG_LINE_INFO, "coordinator %s: connected%s%s%s", link->text, links->keys->set ? ", encrypted" : "",
                 *link->control.local ? ", from " : "", link->control.local);
    else
        log_line(LOG_LINE_WARNING, "coordinator %s: %s (%s), trying again", link->text,
                 link->told_up ? "the connection is lost" : "cannot be reached",
                 link->control.trouble ? link->control.trouble : "nobody answers");
    link->told_up = up;
    link->told_down = !up;
    link->told_trouble = link->control.trouble;
    link->state_ms = now_ms;
    links->handler.change(links->handler.data, link->number, &change);
}

static void warn_of_beacons(struct uplink *link, uint64_t now_ms)
{
    if (link->beacons.up) {
        link->warned = false;
    } else if (!link->warned && link->told_up && now_ms >= link->state_ms + BEACONS_MS) {
        link->warned = true;
        log_line(LOG_LINE_WARNING, "coordinator %s: its beacons at %s cannot be reached, lost messages show late",
                 link->text, link->endpoint.beacon);
    }
}

static void judge(struct uplink *link, uint64_t now_ms)
{
    uplink_look(link);
    if (link->control.up && !link->told_up)
        tell(link, true, now_ms);
    else if (!link->control.up && link->told_up)
        tell(link, false, now_ms);
    else if (!link->control.up && !link->told_down && now_ms >= link->opened_ms + CONNECT_MS)
        tell(link, false, now_ms);
    else if (link->told_down && link->control.trouble != link->told_trouble)
        tell(link, false, now_ms);
    warn_of_beacons(link, now_ms);
    if (now_ms >= link->used_ms + IDLE_MS) {
        log_line(LOG_LINE_DEBUG, "coordinator %s: not in use, closed", link->text);
        uplink_close(link);
    } else if ((link->control.ended || link->beacons.ended) && now_ms >= link->opened_ms + AGAIN_MS) {
        link->again = true;
        uplink_close(link);
    }
}

/* What was told of it stays: it is the same trouble until something else happens. */
static void open_anew(struct uplink *link, uint64_t now_ms)
{
    struct poise_err err = {0};
    if (uplink_open(link, &err) < 0) {
        log_line(LOG_LINE_ERROR, "%s", err.text);
        return; /* in the next turn of the timer */
    }
    link->again = false;
    link->opened_ms = now_ms;
}

static void on_timer(uv_timer_t *timer)
{
    struct links *links = timer->data;
    uint64_t now = roles_now_ms();
    bool any = false;
    for (struct uplink *link = links->first; link; link = link->next) {
        if (link->open && !link->closing)
            judge(link, now);
        else if (link->again && !link->open)
            open_anew(link, now);
        any |= link->open || link->again;
    }
    if (!any)
        uv_timer_stop(timer);
}

static int open_again(struct uplink *link, struct poise_err *err)
{
    int rc = uplink_open(link, err);
    if (rc < 0)
        return rc;
    link->told_up = link->told_down = link->warned = link->again = false;
    link->control.trouble = link->beacons.trouble = NULL;
    link->opened_ms = link->state_ms = roles_now_ms();
    if (!uv_is_active((uv_handle_t *)&link->links->timer))
        uv_timer_start(&link->links->timer, on_timer, LOOK_MS, LOOK_MS);
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------- public */

/* What is said to a coordinator tells which epochs it works for: a heartbeat names all, other messages one that may be
 * new. */
static void subscribe(struct uplink *link, const struct wire_message *msg)
{
    struct wire_id epochs[64]; /* more jobs than a node has; a heartbeat of more leaves the others subscribed */
    uint32_t n = 0;
    if (msg->type == WIRE_META && msg->meta.n_metas)
        epochs[n++] = msg->meta.metas[0].epoch;
    else if (msg->type == WIRE_PULL || msg->type == WIRE_NEED)
        epochs[n++] = msg->ask.epoch;
    else if (msg->type == WIRE_MEMBERS)
        for (uint32_t i = 0; i < msg->members.n_joins && n < 64; i++)
            epochs[n++] = msg->members.joins[i].epoch; /* none where it forms: that is no topic */
    else if (msg->type == WIRE_HEARTBEAT)
        for (; n < msg->heartbeat.n_epochs && n < 64; n++)
            epochs[n] = msg->heartbeat.epochs[n].epoch;
    uplink_subscribe(link, epochs, n, msg->type == WIRE_HEARTBEAT && n < 64);
}

void links_send(struct links *links, uint64_t number, const char *endpoint, const struct wire_message *msg)
{
    struct poise_err err = {0};
    struct uplink *link = find(links, number);
    size_t n_bytes = 0;
    int rc = 0;
    if (!links->loop)
        return;
    if (!link && !(link = add(links, number, endpoint, &err))) {
        log_line(LOG_LINE_ERROR, "%s", err.text);
        return;
    }
    link->used_ms = roles_now_ms();
    if (link->closing || link->again)
        rc = -EAGAIN; /* it is closed soon, and opened again */
    else if (!link->open)
        rc = open_again(link, &err);
    subscribe(link, msg);
    if (rc == 0)
        rc = zframe_send(link->control.socket, 0, msg, &n_bytes, &err);
    link->sent += rc == 0;
    link->dropped += rc < 0;
    if (rc < 0 && rc != -EAGAIN)
        log_line(LOG_LINE_ERROR, "%s", err.text);
}

uint32_t links_report(const struct links *links, uint64_t now_ms, struct link_report *reports, uint32_t max)
{
    uint32_t n = 0;
    for (const struct uplink *link = links->first; link; link = link->next, n++) {
        if (n >= max)
            continue;
        reports[n] = (struct link_report){.number = link->number, .endpoint = link->text, .sent = link->sent,
                                          .received = link->received, .dropped = link->dropped, .bad = link->bad,
                                          .state_ms = now_ms - link->state_ms, .beacon_ms = UINT64_MAX,
                                          .beacons_up = link->open && link->beacons.up};
        reports[n].state = !link->open || link->closing ? LINK_IDLE : link->told_up ? LINK_UP
                           : link->told_down            ? LINK_DOWN
                                                        : LINK_CONNECTING;
        reports[n].encrypted = links->keys->set;
        reports[n].local = link->control.local;
        reports[n].peer = link->control.peer;
        reports[n].trouble = link->control.up ? NULL : link->control.trouble;
        if (link->beacon_ms)
            reports[n].beacon_ms = now_ms - link->beacon_ms;
    }
    return n;
}

int links_init(struct links *links, uv_loop_t *loop, const struct links_config *config,
               const struct links_handler *handler, struct poise_err *err)
{
    *links = (struct links){.context = config->context, .allowed = config->allowed, .keys = config->keys,
                            .interface = config->interface, .handler = *handler};
    int rc = uv_timer_init(loop, &links->timer);
    if (rc < 0)
        return err_set(err, rc, "a timer: %s", uv_strerror(rc));
    links->timer.data = links;
    links->loop = loop;
    return 0;
}

void links_close(struct links *links)
{
    if (!links->loop)
        return;
    links->loop = NULL;
    uv_close((uv_handle_t *)&links->timer, NULL);
    for (struct uplink *link = links->first; link; link = link->next)
        uplink_close(link);
}

void links_fini(struct links *links)
{
    for (struct uplink *link = links->first, *next; link; link = next) {
        next = link->next;
        uplink_free(link);
    }
    links->first = NULL;
}
