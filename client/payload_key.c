/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One key pair for all: a key a rank would be a roster of 122 MB at 4,096 ranks, and whoever is in the epoch may read
 * its payload anyhow. ZeroMQ asks a ZAP handler of the same context about every connection to a CURVE server and
 * waits; the engine answers from its loop. What is asked is bounded by what libzmq makes of it: six short frames and
 * the key.
 */
#include "client/payload_key.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "daemon/planner/err.h"

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_VERSION  "1.0"
#define ZAP_FRAMES   7u /* version, request id, domain, address, routing id, mechanism, key */
#define ZAP_A_TURN   64 /* then other sockets have their turn */
#define Z85_BYTES    41 /* 32 bytes as text, with the 0 */

int payload_key_check(struct poise_err *err)
{
    if (zmq_has("curve"))
        return 0;
    return err_set(err, -ENOTSUP,
                   "the libzmq of this process was built without CURVE, so payload cannot be encrypted between nodes: "
                   "install one with libsodium, or set payload=plain where the network is trusted");
}

int payload_key_make(uint8_t ret_secret[WIRE_KEY_BYTES], struct poise_err *err)
{
    char public[Z85_BYTES], secret[Z85_BYTES];
    int rc = payload_key_check(err);

    if (rc == 0 && (zmq_curve_keypair(public, secret) < 0 || !zmq_z85_decode(ret_secret, secret)))
        rc = err_set(err, -errno, "no key for the payload: %s", zmq_strerror(errno));
    explicit_bzero(secret, sizeof secret);
    return rc;
}

int payload_key_load(const uint8_t secret[WIRE_KEY_BYTES], struct payload_key *ret_key, struct poise_err *err)
{
    char text[Z85_BYTES], public[Z85_BYTES];
    int rc = payload_key_check(err);

    if (rc < 0)
        return rc;
    if (!zmq_z85_encode(text, secret, WIRE_KEY_BYTES) || zmq_curve_public(public, text) < 0 ||
        !zmq_z85_decode(ret_key->public, public))
        rc = err_set(err, -EPROTO, "the key of the payload in the roster is none: %s", zmq_strerror(errno));
    else
        memcpy(ret_key->secret, secret, WIRE_KEY_BYTES);
    explicit_bzero(text, sizeof text);
    return rc;
}

int payload_key_use(void *socket, const struct payload_key *key, bool server)
{
    int one = 1;

    if (zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, key->secret, WIRE_KEY_BYTES) < 0)
        return -errno;
    if (server)
        return zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one) < 0 ? -errno : 0;
    if (zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, key->public, WIRE_KEY_BYTES) < 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, key->public, WIRE_KEY_BYTES) < 0)
        return -errno;
    return 0;
}

/* -------------------------------------------------------------------------------------------------------------- ZAP */

struct payload_zap {
    void *socket;
    int fd;
    struct payload_key key;
};

int payload_zap_new(void *zmq, const struct payload_key *key, struct payload_zap **ret_zap, struct poise_err *err)
{
    struct payload_zap *zap = calloc(1, sizeof *zap);
    size_t n = sizeof zap->fd;
    int zero = 0;

    if (!zap)
        return err_set(err, -ENOMEM, "out of memory");
    zap->key = *key;
    zap->socket = zmq_socket(zmq, ZMQ_REP);
    if (!zap->socket || zmq_setsockopt(zap->socket, ZMQ_LINGER, &zero, sizeof zero) < 0 ||
        zmq_bind(zap->socket, ZAP_ENDPOINT) < 0 || zmq_getsockopt(zap->socket, ZMQ_FD, &zap->fd, &n) < 0) {
        int rc = err_set(err, -errno, "who may fetch payload cannot be asked: %s", zmq_strerror(errno));
        payload_zap_free(zap);
        return rc;
    }
    *ret_zap = zap;
    return 0;
}

void payload_zap_free(struct payload_zap *zap)
{
    if (!zap)
        return;
    if (zap->socket)
        zmq_close(zap->socket);
    explicit_bzero(&zap->key, sizeof zap->key);
    free(zap);
}

int payload_zap_fd(const struct payload_zap *zap)
{
    return zap->fd;
}

static void answer(struct payload_zap *zap, zmq_msg_t *request_id, bool admit)
{
    const char *frames[] = {admit ? "200" : "400", admit ? "" : "not the key of this epoch", "poise", ""};

    zmq_send(zap->socket, ZAP_VERSION, strlen(ZAP_VERSION), ZMQ_DONTWAIT | ZMQ_SNDMORE);
    zmq_msg_send(request_id, zap->socket, ZMQ_DONTWAIT | ZMQ_SNDMORE);
    for (int i = 0; i < 4; i++)
        zmq_send(zap->socket, frames[i], strlen(frames[i]), ZMQ_DONTWAIT | (i < 3 ? ZMQ_SNDMORE : 0));
}

static bool is_key(const uint8_t *key, zmq_msg_t *frame)
{
    const uint8_t *other = zmq_msg_data(frame);
    uint8_t differs = 0;

    if (zmq_msg_size(frame) != WIRE_KEY_BYTES)
        return false;
    for (uint32_t i = 0; i < WIRE_KEY_BYTES; i++)
        differs |= key[i] ^ other[i];
    return differs == 0;
}

static bool is_text(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) && memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

/* Reads one request. Returns its frames, more than ZAP_FRAMES counted and dropped; 0: there is none. */
static uint32_t receive(struct payload_zap *zap, zmq_msg_t frames[ZAP_FRAMES])
{
    uint32_t n = 0;
    bool more = true;

    while (more) {
        zmq_msg_t extra, *frame = n < ZAP_FRAMES ? &frames[n] : &extra;

        if (n >= ZAP_FRAMES)
            zmq_msg_init(&extra);
        if (zmq_msg_recv(frame, zap->socket, ZMQ_DONTWAIT) < 0)
            return n;
        more = zmq_msg_more(frame);
        if (n >= ZAP_FRAMES)
            zmq_msg_close(&extra);
        n++;
    }
    return n;
}

uint32_t payload_zap_turn(struct payload_zap *zap, uint64_t *ret_refused, char from[WIRE_ADDRESS_BYTES])
{
    uint32_t n_asked = 0;

    for (uint32_t n = 1; n > 0 && n_asked < ZAP_A_TURN;) {
        zmq_msg_t frames[ZAP_FRAMES];

        for (uint32_t i = 0; i < ZAP_FRAMES; i++)
            zmq_msg_init(&frames[i]);
        n = receive(zap, frames);
        if (n > 1) {
            bool admit = n == ZAP_FRAMES && is_text(&frames[5], "CURVE") && is_key(zap->key.public, &frames[6]);
            n_asked++;
            answer(zap, &frames[1], admit);
            if (!admit && ret_refused)
                ++*ret_refused;
            if (!admit && n > 3 && from) {
                size_t size = zmq_msg_size(&frames[3]) < WIRE_ADDRESS_BYTES ? zmq_msg_size(&frames[3]) : 0;
                memcpy(from, zmq_msg_data(&frames[3]), size);
                from[size] = 0;
            }
        }
        for (uint32_t i = 0; i < ZAP_FRAMES; i++)
            zmq_msg_close(&frames[i]);
    }
    return n_asked;
}
