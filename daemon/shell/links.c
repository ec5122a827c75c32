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

#include "daemon/planner/err.h"
#include "daemon/shell/uplink.h"
#include "daemon/shell/log.h"
#include "daemon/shell/roles.h"
#include "daemon/shell/zframe.h"

#define LOOK_MS 250     /* a beacon's period */
#define CONNECT_MS 1000 /* not connected after so long is worth a line: a handshake takes a few milliseconds */
#define IDLE_MS 60000   /* without a message to it; a job sends one a second, and the next one may come soon */
#define BEACONS_MS 5000 /* connected, and its beacons are not: the port is shut */

static struct uplink *find(const struct links *links, uint64_t number)
{
    for (struct uplink *link = links->first; link; link = link->next)
        if (link->number == number)
            return link;
    return NULL;
}

static struct uplink *add(struct links *links, uint64_t number, const char *text, struct poise_err *err)
{
    struct uplink *link = calloc(1, sizeof *link), **last = &links->first;
    if (!link || !(link->text = strdup(text))) {
        free(link);
        err_set(err, -ENOMEM, "no memory for a connection to coordinator %s", text);
        return NULL;
    }
    if (endpoint_parse(text, strlen(text), ENDPOINT_CONNECT, links->insecure, &link->endpoint, err) < 0) {
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

static void tell(struct uplink *link, bool up, uint64_t now_ms)
{
    struct links *links = link->links;
    if (up)
        log_line(LOG_LINE_INFO, "coordinator %s: connected", link->text);
    else
        log_line(LOG_LINE_WARNING, "coordinator %s: %s (%s), trying again", link->text,
                 link->told_up ? "the connection is lost" : "cannot be reached",
                 link->control.trouble ? link->control.trouble : "nobody answers");
    link->told_up = up;
    link->told_down = !up;
    link->state_ms = now_ms;
    links->handler.change(links->handler.data, link->number, up);
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
    warn_of_beacons(link, now_ms);
    if (now_ms < link->used_ms + IDLE_MS)
        return;
    log_line(LOG_LINE_DEBUG, "coordinator %s: not in use, closed", link->text);
    uplink_close(link);
}

static void on_timer(uv_timer_t *timer)
{
    struct links *links = timer->data;
    uint64_t now = roles_now_ms();
    bool any = false;
    for (struct uplink *link = links->first; link; link = link->next) {
        if (link->open && !link->closing)
            judge(link, now);
        any |= link->open;
    }
    if (!any)
        uv_timer_stop(timer);
}

static int open_again(struct uplink *link, struct poise_err *err)
{
    int rc = uplink_open(link, err);
    if (rc < 0)
        return rc;
    link->told_up = link->told_down = link->warned = false;
    link->opened_ms = link->state_ms = roles_now_ms();
    if (!uv_is_active((uv_handle_t *)&link->links->timer))
        uv_timer_start(&link->links->timer, on_timer, LOOK_MS, LOOK_MS);
    return 0;
}

/* ----------------------------------------------------------------------------------------------------------- public */

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
    if (link->closing)
        rc = -EAGAIN; /* in the next turn of the loop it is closed, and opened again */
    else if (!link->open)
        rc = open_again(link, &err);
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
        if (link->beacon_ms)
            reports[n].beacon_ms = now_ms - link->beacon_ms;
    }
    return n;
}

int links_init(struct links *links, uv_loop_t *loop, void *context, bool insecure, const struct links_handler *handler,
               struct poise_err *err)
{
    *links = (struct links){.context = context, .insecure = insecure, .handler = *handler};
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
