/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of a node to a coordinator: part of links.c, in a file of its own: the sockets. */
#ifndef POISE_SHELL_UPLINK_H
#define POISE_SHELL_UPLINK_H

#include "daemon/shell/links.h"
#include "daemon/shell/zwatch.h"

struct channel { /* a socket, and the one that tells whether it is connected */
    void *socket, *monitor;
    struct zpoll zpoll;
    bool watched; /* zpoll is in use */
    bool up;
    bool ended; /* ZeroMQ gave up: after a handshake that makes no sense it does not connect again */
    const char *trouble; /* why the newest attempts failed; NULL: nobody answered */
    char local[ZWATCH_ADDRESS], peer[ZWATCH_ADDRESS]; /* of the newest connection */
};

struct uplink {
    struct links *links;
    struct uplink *next;
    uint64_t number;
    char *text; /* the endpoint as the job names it */
    struct endpoint endpoint;
    struct channel control, beacons;
    struct wire_id *epochs; /* [cap_epochs] that beacons are subscribed to */
    uint32_t n_epochs, cap_epochs;
    bool open, closing;
    bool again; /* it is closed to be opened anew */
    bool told_up, told_down; /* what the handler was told last; neither: nothing yet */
    const char *told_trouble; /* with it */
    bool warned;             /* that beacons do not come */
    uint64_t opened_ms, used_ms, state_ms, beacon_ms;
    uint64_t sent, received, dropped, bad;
};

/* Makes and connects the sockets. Errors: nothing is open. */
int uplink_open(struct uplink *link, struct poise_err *err);

/* Beacons of these epochs come from now on; `all`: and of no others. What cannot be had for lack of memory comes with
 * the next heartbeat. */
void uplink_subscribe(struct uplink *link, const struct wire_id *epochs, uint32_t n_epochs, bool all);

/* Begins to close; link->open and link->closing are false when it is done. */
void uplink_close(struct uplink *link);

/* Reads what ZeroMQ tells of the connections. */
void uplink_look(struct uplink *link);

/* Closes what is left, frees. The loop has ended. */
void uplink_free(struct uplink *link);

#endif
