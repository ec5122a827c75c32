/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of the SEQPACKET connection: what is fine, and one case for everything that is not. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/local.h"

static struct local_message packet(uint32_t type)
{
    struct local_message msg = {.magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = type};

    if (type == LOCAL_TOKEN) {
        msg.token = (struct wire_id){1, 2};
        strcpy(msg.text, "/run/poise/poised.zmq");
    }
    if (type == LOCAL_OFFER || type == LOCAL_RETRACT) {
        msg.kind = LOCAL_ARENA;
        msg.segment = LOCAL_MAX_SEGMENTS - 1;
        msg.bytes = 4096;
        msg.epoch = (struct wire_id){3, 4};
    }
    return msg;
}

static void fine(const struct local_message *msg, uint32_t n_fds, bool from_process)
{
    struct poise_err err;

    cr_assert(local_check(msg, sizeof *msg, n_fds, from_process, &err) == 0, "%s", err.text);
}

static void refused(const struct local_message *msg, uint32_t n_fds, bool from_process, const char *part)
{
    struct poise_err err = {0};

    cr_assert(local_check(msg, sizeof *msg, n_fds, from_process, &err) == -EPROTO, "%s is accepted", part);
    cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text);
    cr_assert(local_check(msg, sizeof *msg, n_fds, from_process, NULL) == -EPROTO);
}

Test(local, good_packets_pass)
{
    struct local_message token = packet(LOCAL_TOKEN), pidfd = packet(LOCAL_PIDFD), offer = packet(LOCAL_OFFER);
    struct local_message retract = packet(LOCAL_RETRACT), no = packet(LOCAL_REFUSED), bell = packet(LOCAL_OFFER);

    fine(&token, 0, false);
    fine(&pidfd, 1, true);
    fine(&offer, 1, true);
    fine(&offer, 1, false);
    fine(&retract, 0, true);
    fine(&retract, 0, false);
    fine(&no, 0, false);
    bell.kind = LOCAL_DOORBELL;
    bell.bytes = 0; /* an eventfd has none */
    fine(&bell, 1, true);
    offer.rank = offer.replica = UINT32_MAX; /* poised fills them in */
    fine(&offer, 1, true);
    memset(no.text, 'x', sizeof no.text - 1);
    fine(&no, 0, false);
}

/* Also where that version has packets of another size. */
Test(local, another_version_is_said_to_be_one)
{
    struct local_message msg = packet(LOCAL_TOKEN);
    struct poise_err err;

    msg.version = 2;
    for (size_t n = 12; n <= sizeof msg; n++) {
        cr_assert(local_check(&msg, n, 0, false, &err) == -EPROTONOSUPPORT);
        cr_assert(strstr(err.text, "version is 2, this side speaks 1"), "%s", err.text);
    }
}

Test(local, every_size_but_the_right_one_is_refused)
{
    struct local_message msg = packet(LOCAL_TOKEN);
    struct poise_err err;

    for (size_t n = 0; n < sizeof msg; n++) {
        void *cut = malloc(n);
        memcpy(cut, &msg, n);
        cr_assert(local_check(cut, n, 0, false, &err) == -EPROTO);
        free(cut);
    }
    cr_assert(local_check(&msg, sizeof msg + 1, 0, false, &err) == -EPROTO);
}

#define BAD(type, n_fds, from_process, part, ...)                                                                      \
    do {                                                                                                               \
        struct local_message msg = packet(type);                                                                       \
        __VA_ARGS__;                                                                                                   \
        refused(&msg, n_fds, from_process, part);                                                                      \
    } while (0)

Test(local, bad_packets_are_refused_by_member_and_value)
{
    BAD(LOCAL_TOKEN, 0, false, "magic is 0x7", msg.magic = 7);
    BAD(LOCAL_TOKEN, 0, false, "type is 0", msg.type = 0);
    BAD(LOCAL_TOKEN, 0, false, "type is 6", msg.type = 6);
    BAD(LOCAL_TOKEN, 0, false, "type is 4294967295", msg.type = UINT32_MAX);
    BAD(LOCAL_TOKEN, 0, true, "a process never sends TOKEN", (void)0);
    BAD(LOCAL_REFUSED, 0, true, "a process never sends REFUSED", (void)0);
    BAD(LOCAL_PIDFD, 1, false, "poised never sends PIDFD", (void)0);
    BAD(LOCAL_TOKEN, 1, false, "TOKEN with 1 descriptors, not 0", (void)0);
    BAD(LOCAL_PIDFD, 0, true, "PIDFD with 0 descriptors, not 1", (void)0);
    BAD(LOCAL_OFFER, 2, true, "OFFER with 2 descriptors, not 1", (void)0);
    BAD(LOCAL_OFFER, 1, true, "kind is 0", msg.kind = 0);
    BAD(LOCAL_RETRACT, 0, true, "kind is 4", msg.kind = 4);
    BAD(LOCAL_OFFER, 1, true, "segment is 16", msg.segment = LOCAL_MAX_SEGMENTS);
    BAD(LOCAL_OFFER, 1, true, "bytes is 0", msg.bytes = 0);
    BAD(LOCAL_OFFER, 1, false, "bytes is 18446744073709551615", msg.bytes = UINT64_MAX);
    BAD(LOCAL_OFFER, 1, false, "rank is 1048576", msg.rank = WIRE_MAX_RANKS);
    BAD(LOCAL_OFFER, 1, false, "replica 4096", msg.replica = WIRE_MAX_REPLICAS);
    BAD(LOCAL_OFFER, 1, true, "epoch is none", msg.epoch = (struct wire_id){0});
    BAD(LOCAL_TOKEN, 0, false, "text is empty", msg.text[0] = 0);
    BAD(LOCAL_TOKEN, 0, false, "token is empty", msg.token = (struct wire_id){0});
    BAD(LOCAL_TOKEN, 0, false, "text has 108 bytes", memset(msg.text, 'x', LOCAL_PATH_BYTES));
    BAD(LOCAL_REFUSED, 0, false, "text has 256 bytes or more", memset(msg.text, 'x', sizeof msg.text));
    BAD(LOCAL_REFUSED, 0, false, "not valid UTF-8", msg.text[0] = '\x80');
}
