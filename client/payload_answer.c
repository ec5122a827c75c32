/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeroMQ sends a frame of more than 8 KB from where it lies; what is shorter it copies into a buffer of that size, and
 * each frame costs an allocation and a header. So runs of a sample that are short are gathered here into larger frames,
 * one copy of what is small anyhow, and long ones are frames of their own, without a copy.
 *
 * All frames share one record with a count; the last one that ZeroMQ lets go lowers the gauge and the step's count.
 */
#include "client/payload_answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GATHER_BYTES (16u << 10) /* a run below this is copied: a frame of its own would cost more */
#define CHUNK_BYTES  (64u << 10)
#define MAX_CHUNKS   (PAYLOAD_PIECE_BYTES / CHUNK_BYTES + 1)
/* Each long run ends a gathered frame, and each full chunk does. */
#define MAX_FRAMES   (2 * (PAYLOAD_PIECE_BYTES / GATHER_BYTES) + MAX_CHUNKS + 2)

struct part {
    const void *bytes;
    size_t n_bytes;
};

struct answer {
    atomic_uint refs; /* frames that ZeroMQ has, and one while it is built */
    struct answer_gauge *gauge;
    atomic_uint *flying;
    uint64_t n_bytes;
    uint32_t n_parts, n_chunks;
    size_t chunk_used, chunk_begin; /* of the newest chunk; where its open frame begins */
    unsigned char *chunks[MAX_CHUNKS];
    struct part parts[MAX_FRAMES];
};

int answer_new(struct answer_gauge *gauge, atomic_uint *flying, struct answer **ret_answer)
{
    struct answer *answer = malloc(sizeof *answer);

    if (!answer)
        return -ENOMEM;
    memset(answer, 0, offsetof(struct answer, chunks));
    atomic_init(&answer->refs, 1);
    answer->gauge = gauge;
    answer->flying = flying;
    *ret_answer = answer;
    if (flying)
        atomic_fetch_add(flying, 1);
    return 0;
}

static void unref(struct answer *answer)
{
    struct answer_gauge *gauge = answer->gauge;

    bool wake;

    if (atomic_fetch_sub(&answer->refs, 1) != 1)
        return;
    wake = atomic_fetch_sub(&gauge->bytes, answer->n_bytes) >= gauge->full;
    if (answer->flying && atomic_fetch_sub(answer->flying, 1) == 1)
        wake = true; /* the step's memory may be used again from here on */
    for (uint32_t i = 0; i < answer->n_chunks; i++)
        free(answer->chunks[i]);
    free(answer);
    if (wake)
        gauge->landed(gauge->context);
}

void answer_drop(struct answer *answer)
{
    if (!answer)
        return;
    answer->n_bytes = 0; /* the gauge does not count it yet */
    unref(answer);
}

uint64_t answer_bytes(const struct answer *answer)
{
    return answer->n_bytes;
}

/* What was gathered becomes a frame. */
static void end_gathered(struct answer *answer)
{
    size_t n = answer->chunk_used - answer->chunk_begin;

    if (n == 0)
        return;
    answer->parts[answer->n_parts++] =
        (struct part){answer->chunks[answer->n_chunks - 1] + answer->chunk_begin, n};
    answer->chunk_begin = answer->chunk_used;
}

static int gather(struct answer *answer, const unsigned char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        size_t n = answer->n_chunks ? CHUNK_BYTES - answer->chunk_used : 0;

        if (n == 0) {
            end_gathered(answer);
            if (answer->n_chunks == MAX_CHUNKS || !(answer->chunks[answer->n_chunks] = malloc(CHUNK_BYTES)))
                return -ENOMEM;
            answer->n_chunks++;
            answer->chunk_used = answer->chunk_begin = 0;
            continue;
        }
        n = n < n_bytes ? n : n_bytes;
        memcpy(answer->chunks[answer->n_chunks - 1] + answer->chunk_used, bytes, n);
        answer->chunk_used += n;
        bytes += n;
        n_bytes -= n;
    }
    return 0;
}

int answer_add(struct answer *answer, const void *bytes, size_t n_bytes)
{
    if (answer->n_bytes + n_bytes > PAYLOAD_PIECE_BYTES)
        return -E2BIG;
    answer->n_bytes += n_bytes;
    if (n_bytes < GATHER_BYTES)
        return gather(answer, bytes, n_bytes);
    end_gathered(answer);
    answer->parts[answer->n_parts++] = (struct part){bytes, n_bytes};
    return 0;
}

static void landed(void *bytes, void *answer)
{
    (void)bytes;
    unref(answer);
}

/* All frames first, so that nothing can fail half-way through a message. */
static int make_frames(struct answer *answer, zmq_msg_t *frames)
{
    for (uint32_t i = 0; i < answer->n_parts; i++) {
        const struct part *part = &answer->parts[i];

        atomic_fetch_add(&answer->refs, 1);
        if (zmq_msg_init_data(&frames[i], (void *)(uintptr_t)part->bytes, part->n_bytes, landed, answer) == 0)
            continue;
        atomic_fetch_sub(&answer->refs, 1);
        while (i-- > 0)
            zmq_msg_close(&frames[i]);
        return -ENOMEM;
    }
    return 0;
}

int answer_send(struct answer *answer, void *router, const void *id, size_t n_id, const struct payload_message *head)
{
    zmq_msg_t frames[MAX_FRAMES];
    unsigned char header[PAYLOAD_HEADER_BYTES];
    uint32_t n_sent = 0;
    int rc;

    end_gathered(answer);
    payload_wire_encode(head, header);
    rc = make_frames(answer, frames);
    if (rc < 0) {
        answer_drop(answer);
        return rc;
    }
    atomic_fetch_add(&answer->gauge->bytes, answer->n_bytes);
    if (zmq_send(router, id, n_id, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0 ||
        zmq_send(router, header, sizeof header, ZMQ_DONTWAIT | (answer->n_parts ? ZMQ_SNDMORE : 0)) < 0)
        rc = -errno;
    while (rc == 0 && n_sent < answer->n_parts) { /* a ROUTER that took the id takes the rest, or throws it away */
        if (zmq_msg_send(&frames[n_sent], router, ZMQ_DONTWAIT | (n_sent + 1 < answer->n_parts ? ZMQ_SNDMORE : 0)) < 0)
            rc = -errno;
        else
            n_sent++;
    }
    for (uint32_t i = n_sent; i < answer->n_parts; i++)
        zmq_msg_close(&frames[i]);
    unref(answer);
    return rc;
}
