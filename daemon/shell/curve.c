/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CURVE server proves that it has the cluster's secret, since clients name its public half; that a client has it is
 * for ZAP to ask: without a handler libzmq admits every client that knows the public key. Requests come by a REP socket
 * at a name that is fixed by ZAP (RFC 27), one at a time, and are answered in the loop; a handshake waits that long.
 */
#include "daemon/shell/curve.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "daemon/planner/err.h"
#include "daemon/shell/log.h"
#include "daemon/shell/zframe.h"
#include "daemon/shell/zwatch.h"

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_FRAMES 7 /* version, request, domain, address, identity, mechanism, credentials */

struct request {
    char frame[ZAP_FRAMES][64];
    size_t n[ZAP_FRAMES];
    int n_frames;
};

enum { ZAP_VERSION, ZAP_REQUEST, ZAP_DOMAIN, ZAP_ADDRESS, ZAP_IDENTITY, ZAP_MECHANISM, ZAP_CREDENTIALS };

static bool is(const struct request *r, int frame, const void *bytes, size_t n)
{
    return r->n[frame] == n && memcmp(r->frame[frame], bytes, n) == 0;
}

static bool admit(struct curve *curve, const struct request *r)
{
    bool ours = r->n_frames == ZAP_FRAMES && is(r, ZAP_VERSION, "1.0", 3) && is(r, ZAP_MECHANISM, "CURVE", 5) &&
                is(r, ZAP_DOMAIN, CURVE_DOMAIN, strlen(CURVE_DOMAIN));
    bool known = ours && is(r, ZAP_CREDENTIALS, curve->public, sizeof curve->public);
    char address[64];
    snprintf(address, sizeof address, "%.*s", (int)r->n[ZAP_ADDRESS], r->frame[ZAP_ADDRESS]);
    curve->counters.admitted += known;
    curve->counters.denied += !known;
    if (!known)
        log_line(LOG_LINE_WARNING,
                 "node at %s is not admitted: its key is not this poised's; copy the same file of keys "
                 "to all nodes",
                 *address ? zwatch_plain(address) : "(this host)");
    return known;
}

static void answer(struct curve *curve, const struct request *r, bool known)
{
    const char *const parts[] = {known ? "200" : "400", known ? "OK" : "not a key of this cluster", known ? "node" : "",
                                 ""};
    zmq_send(curve->socket, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(curve->socket, r->frame[ZAP_REQUEST], r->n[ZAP_REQUEST], ZMQ_SNDMORE | ZMQ_DONTWAIT);
    for (int i = 0; i < 4; i++)
        zmq_send(curve->socket, parts[i], strlen(parts[i]), (i < 3 ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
}

/* False: none is there. A frame that is longer than any of a node is cut, and so is not equal to what it should be. */
static bool receive(struct curve *curve, struct request *r)
{
    int more = 1;
    size_t n_more = sizeof more;
    *r = (struct request){.n_frames = 0};
    for (; more; r->n_frames++) {
        char spare[64];
        int i = r->n_frames < ZAP_FRAMES ? r->n_frames : -1;
        int n = zmq_recv(curve->socket, i < 0 ? spare : r->frame[i], sizeof spare, ZMQ_DONTWAIT);
        if (n < 0)
            return false;
        if (i >= 0)
            r->n[i] = (size_t)n < sizeof spare ? (size_t)n : sizeof spare;
        if (zmq_getsockopt(curve->socket, ZMQ_RCVMORE, &more, &n_more) < 0)
            return false;
    }
    return true;
}

static void on_request(struct zpoll *zpoll)
{
    struct curve *curve = zpoll->data;
    struct request r;
    while (receive(curve, &r))
        answer(curve, &r, admit(curve, &r));
}

int curve_init(struct curve *curve, uv_loop_t *loop, void *context, const struct keys *keys, struct poise_err *err)
{
    *curve = (struct curve){.keys = keys, .zpoll = {.data = curve}};
    if (!keys->set)
        return 0;
    if (!zmq_z85_decode(curve->public, keys->public))
        return err_set(err, -EINVAL, "keys: the public key is no Z85");
    curve->socket = zmq_socket(context, ZMQ_REP);
    if (!curve->socket || !zframe_set(curve->socket, ZMQ_LINGER, 0) || zmq_bind(curve->socket, ZAP_ENDPOINT) < 0)
        return err_set(err, -errno, "keys: no socket to admit nodes: %s", zmq_strerror(errno));
    return zpoll_init(&curve->zpoll, loop, curve->socket, on_request, err);
}

void curve_close(struct curve *curve)
{
    if (curve->socket)
        zpoll_close(&curve->zpoll, NULL);
}

void curve_fini(struct curve *curve)
{
    if (curve->socket)
        zmq_close(curve->socket);
    curve->socket = NULL;
}

int curve_serve(void *socket, const struct keys *keys)
{
    if (!keys->set)
        return 0;
    if (!zframe_set(socket, ZMQ_CURVE_SERVER, 1) ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, KEYS_TEXT) < 0 ||
        zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, CURVE_DOMAIN, strlen(CURVE_DOMAIN)) < 0)
        return -errno;
    return 0;
}

int curve_connect(void *socket, const struct keys *keys)
{
    if (!keys->set)
        return 0;
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->public, KEYS_TEXT) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public, KEYS_TEXT) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, KEYS_TEXT) < 0)
        return -errno;
    return 0;
}
