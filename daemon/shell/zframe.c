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

/* Takes bytes. */
static int send_frames(void *socket, uint64_t id, uint8_t *bytes, size_t n_bytes)
{
    uint8_t id_bytes[ID_BYTES];
    zmq_msg_t frame;
    id_write(id, id_bytes);
    if (id && zmq_send(socket, id_bytes, sizeof id_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
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

int zframe_send(void *socket, uint64_t id, const struct wire_message *msg, size_t *ret_bytes, struct poise_err *err)
{
    uint8_t *bytes;
    size_t n_bytes;
    int rc = wire_encode(msg, &bytes, &n_bytes, err);
    if (rc < 0)
        return rc;
    rc = send_frames(socket, id, bytes, n_bytes);
    if (rc < 0)
        return err_set(err, rc, "%s: %s", wire_type_name(msg->type), zmq_strerror(-rc));
    *ret_bytes = n_bytes;
    return 0;
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
