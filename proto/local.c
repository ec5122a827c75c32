/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of packets of the SEQPACKET connection. A packet is one struct that the other process filled, so nothing in it
 * can be trusted: not its size, not its type, not that a text ends. Only what is checked here may be used.
 */
#include "proto/local.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/planner/err.h"
#include "proto/codec.h"

#define LOCAL_N_TYPES 6u
#define LOCAL_MAX_SEGMENT_BYTES ((uint64_t)1 << 46) /* more than any machine has; sums of 16 of them fit 64 bits */

static const struct {
    const char *name;
    bool from_process, from_poised;
    uint32_t n_fds;
} types[LOCAL_N_TYPES] = {
    [LOCAL_TOKEN] = {"TOKEN", false, true, 0},     [LOCAL_PIDFD] = {"PIDFD", true, false, 1},
    [LOCAL_OFFER] = {"OFFER", true, true, 1},      [LOCAL_RETRACT] = {"RETRACT", true, true, 0},
    [LOCAL_REFUSED] = {"REFUSED", false, true, 0},
};

static int check_head(const struct local_message *msg, size_t n_bytes, uint32_t n_fds, bool from_process,
                      struct poise_err *err)
{
    const char *sender = from_process ? "a process" : "poised";

    /* Magic and version first: a packet of another version may have another size. */
    if (n_bytes < offsetof(struct local_message, type))
        return err_set(err, -EPROTO, "a packet of %zu bytes from %s, not %zu", n_bytes, sender, sizeof *msg);
    if (msg->magic != LOCAL_MAGIC)
        return err_set(err, -EPROTO, "magic is 0x%" PRIx64 ": %s is not poise", msg->magic, sender);
    if (msg->version != WIRE_VERSION)
        return err_set(err, -EPROTONOSUPPORT, "version is %u, this side speaks %u: install the same poise on both",
                       msg->version, WIRE_VERSION);
    if (n_bytes != sizeof *msg)
        return err_set(err, -EPROTO, "a packet of %zu bytes from %s, not %zu", n_bytes, sender, sizeof *msg);
    if (msg->type == 0 || msg->type >= LOCAL_N_TYPES)
        return err_set(err, -EPROTO, "type is %u, below %u", msg->type, LOCAL_N_TYPES);
    if (!(from_process ? types[msg->type].from_process : types[msg->type].from_poised))
        return err_set(err, -EPROTO, "type is %u: %s never sends %s", msg->type, sender, types[msg->type].name);
    if (n_fds != types[msg->type].n_fds)
        return err_set(err, -EPROTO, "%s with %u descriptors, not %u", types[msg->type].name, n_fds,
                       types[msg->type].n_fds);
    return 0;
}

static int check_segment(const struct local_message *msg, bool from_process, struct poise_err *err)
{
    const char *name = types[msg->type].name;

    if (msg->kind < LOCAL_CONTROL || msg->kind > LOCAL_DOORBELL)
        return err_set(err, -EPROTO, "%s: kind is %u, from %d to %d", name, msg->kind, LOCAL_CONTROL, LOCAL_DOORBELL);
    if (msg->segment >= LOCAL_MAX_SEGMENTS)
        return err_set(err, -EPROTO, "%s: segment is %u, below %u", name, msg->segment, LOCAL_MAX_SEGMENTS);
    if (msg->type == LOCAL_OFFER && msg->kind != LOCAL_DOORBELL &&
        (msg->bytes == 0 || msg->bytes > LOCAL_MAX_SEGMENT_BYTES))
        return err_set(err, -EPROTO, "%s: bytes is %" PRIu64 ", from 1 to 2^46", name, msg->bytes);
    /* From a process these are not looked at: poised fills in what it knows. */
    if (!from_process && (msg->rank >= WIRE_MAX_RANKS || msg->replica >= WIRE_MAX_REPLICAS))
        return err_set(err, -EPROTO, "%s: rank is %u, replica %u: below %u and %u", name, msg->rank, msg->replica,
                       WIRE_MAX_RANKS, WIRE_MAX_REPLICAS);
    if (wire_id_none(msg->epoch))
        return err_set(err, -EPROTO, "%s: epoch is none", name);
    return 0;
}

static int check_text(const struct local_message *msg, struct poise_err *err)
{
    const char *name = types[msg->type].name;
    size_t n = strnlen(msg->text, sizeof msg->text);
    size_t most = msg->type == LOCAL_TOKEN ? LOCAL_PATH_BYTES : sizeof msg->text;

    if (n >= most)
        return err_set(err, -EPROTO, "%s: text has %zu bytes or more, at most %zu", name, n, most - 1);
    if (msg->type == LOCAL_TOKEN && (n == 0 || wire_id_none(msg->token)))
        return err_set(err, -EPROTO, "%s: %s is empty", name, n == 0 ? "text" : "token");
    if (!wire_text_valid(msg->text, n))
        return err_set(err, -EPROTO, "%s: text is not valid UTF-8", name);
    return 0;
}

int local_check(const void *packet, size_t n_bytes, uint32_t n_fds, bool from_process, struct poise_err *err)
{
    struct local_message msg = {0};

    /* A copy: the packet may lie anywhere in a receive buffer. */
    memcpy(&msg, packet, n_bytes < sizeof msg ? n_bytes : sizeof msg);
    int rc = check_head(&msg, n_bytes, n_fds, from_process, err);
    if (rc < 0)
        return rc;
    if ((msg.type == LOCAL_OFFER || msg.type == LOCAL_RETRACT) && check_segment(&msg, from_process, err) < 0)
        return -EPROTO;
    return check_text(&msg, err);
}
