/* SPDX-License-Identifier: Apache-2.0 */
/* See the header. Bytes are handed to ZeroMQ without another copy. */
#include "daemon/shell/zframe.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/planner/err.h"

#define ID_BYTES 5 /* of an id that a ROUTER assigned: 0 and a counter */

uint64_t zframe_id(zmq_msg_t *frame)
{
    const uint8_t *b = zmq_msg_data(frame);
    if (zmq_msg_size(frame) != ID_BYTES || b[0] != 0)
        return 0;
    return ZFRAME_ID_FLAG | (uint64_t)b[1] << 24 | (uint64_t)b[2] << 16 | (uint64_t)b[3] << 8 | b[4];
}

static void id_write(uint64_t id, uint8_t bytes[ID_BYTES])
{
    bytes[0] = 0;
    for (int i = 1; i < ID_BYTES; i++)
        bytes[i] = (uint8_t)(id >> (32 - 8 * i));
}

static void free_bytes(void *bytes, void *hint)
{
    (void)hint;
    free(bytes);
}

/* first: a frame before it, of n_first bytes; 0: none. Takes bytes. */
static int send_frames(void *socket, const uint8_t *first, size_t n_first, uint8_t *bytes, size_t n_bytes)
{
    zmq_msg_t frame;
    if (n_first && zmq_send(socket, first, n_first, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        int code = -errno;
        free(bytes);
        return code;
    }
    if (zmq_msg_init_data(&frame, bytes, n_bytes, free_bytes, NULL) < 0) {
        free(bytes);
        zmq_msg_init(&frame); /* an empty one ends the message that has begun: the other end drops it as bad */
    }
    if (zmq_msg_send(&frame, socket, ZMQ_DONTWAIT) < 0) {
        int code = -errno;
        zmq_msg_close(&frame);
        return code;
    }
    return 0;
}

static int send_behind(void *socket, const uint8_t *first, size_t n_first, const struct wire_message *msg,
                       size_t *ret_bytes, struct poise_err *err)
{
    uint8_t *bytes;
    size_t n_bytes;
    int rc = wire_encode(msg, &bytes, &n_bytes, err);
    if (rc < 0)
        return rc;
    rc = send_frames(socket, first, n_first, bytes, n_bytes);
    if (rc < 0)
        return err_set(err, rc, "%s: %s", wire_type_name(msg->type), zmq_strerror(-rc));
    *ret_bytes = n_bytes;
    return 0;
}

int zframe_send(void *socket, uint64_t id, const struct wire_message *msg, size_t *ret_bytes, struct poise_err *err)
{
    uint8_t id_bytes[ID_BYTES];
    id_write(id, id_bytes);
    return send_behind(socket, id_bytes, id ? sizeof id_bytes : 0, msg, ret_bytes, err);
}

void zframe_topic(struct wire_id epoch, uint8_t topic[ZFRAME_TOPIC_BYTES])
{
    for (int i = 0; i < 8; i++) {
        topic[i] = (uint8_t)(epoch.hi >> (56 - 8 * i));
        topic[8 + i] = (uint8_t)(epoch.lo >> (56 - 8 * i));
    }
}

int zframe_publish(void *socket, struct wire_id epoch, const struct wire_message *msg, struct poise_err *err)
{
    uint8_t topic[ZFRAME_TOPIC_BYTES];
    size_t n_bytes;
    zframe_topic(epoch, topic);
    return send_behind(socket, topic, sizeof topic, msg, &n_bytes, err);
}

int zframe_receive(void *socket, zmq_msg_t *frames, uint32_t n_frames)
{
    uint32_t n = 0;
    bool more = true;
    while (more && zmq_msg_recv(&frames[n < n_frames ? n : n_frames - 1], socket, ZMQ_DONTWAIT) >= 0) {
        more = zmq_msg_more(&frames[n < n_frames ? n : n_frames - 1]);
        n++;
    }
    if (n == 0)
        return 0;
    return n == n_frames && !more ? 1 : -EPROTO;
}

bool zframe_set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}
