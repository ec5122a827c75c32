/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to poised against one that misbehaves. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/link.h"
#include "fake_daemon.h"
#include "samples.h"

static struct fake_daemon fake;
static struct seen {
    uint32_t n_up, n_down, n_messages, n_segments;
    uint64_t last_step;
    char why[256];
} seen;
static struct link *link_;

static void up(void *context, const struct wire_message *welcome)
{
    ((struct seen *)context)->n_up++;
    cr_assert_eq(welcome->type, WIRE_WELCOME);
}

static void down(void *context, const char *why)
{
    ((struct seen *)context)->n_down++;
    snprintf(((struct seen *)context)->why, sizeof seen.why, "%s", why);
}

static void message(void *context, struct wire_message *msg)
{
    ((struct seen *)context)->n_messages++;
    if (msg->type == WIRE_NEED)
        ((struct seen *)context)->last_step = msg->ask.step;
    wire_free(msg);
}

static void segment(void *context, const struct local_message *what, int fd)
{
    ((struct seen *)context)->n_segments++;
    cr_assert_eq(what->type == LOCAL_OFFER, fd >= 0);
    if (fd >= 0)
        close(fd);
}

static const struct link_calls calls = {up, down, message, segment};

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Steps the link until a number is reached or it fails; returns what link_step() said. */
static int step_until(const uint32_t *count, uint32_t n, struct poise_err *err)
{
    for (uint64_t end_ms = now_ms() + 10000; now_ms() < end_ms;) {
        struct pollfd fds[LINK_N_FDS];
        int rc = link_step(link_, now_ms(), err);
        if (rc < 0 || (count && *count >= n))
            return rc;
        if (link_drain(link_) > 0)
            continue;
        link_poll(link_, fds);
        poll(fds, LINK_N_FDS, 5);
    }
    cr_assert_fail("the link stands still: %s", link_trouble(link_));
    return 0;
}

static void begin(void)
{
    seen = (struct seen){0};
    fake_start(&fake);
    cr_assert_eq(link_new(fake.dir, 3000, &calls, &seen, &link_, NULL), 0);
}

static void end(void)
{
    link_free(link_, 0);
    fake_end(&fake);
}

TestSuite(link, .init = begin, .fini = end);

/* Through the whole handshake. */
static void come_up(uint32_t n)
{
    struct wire_message *hello;

    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    fake_accept(&fake);
    fake_token(&fake);
    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    hello = fake_expect(&fake, WIRE_HELLO);
    cr_assert_eq(hello->hello.token.lo, 12);
    cr_assert_eq(hello->hello.wire_version, WIRE_VERSION);
    wire_free(hello);
    cr_assert(!link_is_up(link_));
    fake_welcome(&fake);
    cr_assert_eq(step_until(&seen.n_up, n, NULL), 0);
    cr_assert(link_is_up(link_));
}

static void say_need(uint64_t step)
{
    struct wire_message msg = {.type = WIRE_NEED, .ask = {.epoch = {1, 1}, .step = step}};

    fake_say(&fake, &msg);
}

/* ZMQ_FD tells once for many. */
Test(link, a_burst_of_messages_arrives_whole)
{
    come_up(1);
    for (uint64_t i = 0; i < 500; i++)
        say_need(i);
    cr_assert_eq(step_until(&seen.n_messages, 500, NULL), 0);
    cr_assert_eq(seen.last_step, 499);
}

Test(link, bytes_that_are_no_message_are_dropped)
{
    unsigned char noise[300];
    uint64_t seed = samples_seed("link");

    come_up(1);
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (unsigned char)samples_random(&seed);
        fake_say_bytes(&fake, noise, 1 + samples_below(&seed, sizeof noise));
    }
    fake_say_bytes(&fake, "", 0);
    say_need(7);
    cr_assert_eq(step_until(&seen.n_messages, 1, NULL), 0);
    cr_assert_eq(seen.last_step, 7);
}

Test(link, the_end_of_the_local_connection_ends_both_and_is_made_good)
{
    come_up(1);
    fake_hang_up(&fake);
    cr_assert_eq(step_until(&seen.n_down, 1, NULL), 0);
    cr_assert(strstr(seen.why, "ended the connection"), "%s", seen.why);
    cr_assert(!link_is_up(link_));
    cr_assert_eq(link_send_bytes(link_, "x", 1), -EAGAIN);
    while (link_next_ms(link_) > now_ms())
        poll(NULL, 0, 1);
    come_up(2);
    say_need(1);
    cr_assert_eq(step_until(&seen.n_messages, 1, NULL), 0);
}

Test(link, packets_that_are_none_end_the_connection)
{
    struct local_message packet = {.magic = 1, .version = WIRE_VERSION, .type = LOCAL_OFFER};

    come_up(1);
    fake_packet(&fake, &packet, sizeof packet, -1);
    cr_assert_eq(step_until(&seen.n_down, 1, NULL), 0);
    cr_assert(strstr(seen.why, "packet"), "%s", seen.why);
    cr_assert_eq(seen.n_segments, 0);
}

Test(link, offers_come_with_their_descriptor_and_none_leaks)
{
    struct local_message offer = {
        .magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_OFFER, .kind = LOCAL_DOORBELL, .epoch = {1, 1}};
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), fds;

    come_up(1);
    fds = samples_n_fds();
    for (int i = 0; i < 20; i++)
        fake_packet(&fake, &offer, sizeof offer, bell);
    cr_assert_eq(step_until(&seen.n_segments, 20, NULL), 0);
    cr_assert_eq(samples_n_fds(), fds);
    close(bell);
}

Test(link, a_refusal_on_either_socket_is_told_in_its_own_words)
{
    struct local_message no = {
        .magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_REFUSED, .text = "uid 65534 is nobody's"};
    struct poise_err err = {0};

    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    fake_accept(&fake);
    fake_packet(&fake, &no, sizeof no, -1);
    cr_assert_lt(step_until(NULL, 0, &err), 0);
    cr_assert(strstr(err.text, "uid 65534"), "%s", err.text);
}

Test(link, a_version_that_differs)
{
    struct wire_message no = {
        .type = WIRE_REFUSED,
        .refused = {.who = {.job = "j", .group = "dp"}, .error = {.code = -EPROTONOSUPPORT, .text = "wire 2"}}};
    struct poise_err err = {0};

    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    fake_accept(&fake);
    fake_token(&fake);
    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    wire_free(fake_expect(&fake, WIRE_HELLO));
    fake_say(&fake, &no);
    fake_hang_up(&fake); /* it may be seen before the message */
    cr_assert_eq(step_until(NULL, 0, &err), -EPROTONOSUPPORT);
    cr_assert_str_eq(err.text, "wire 2");
}

/* The token came from a poised that was killed, the ZeroMQ socket belongs to the next one. */
Test(link, a_token_that_is_unknown_is_worth_another_try)
{
    struct wire_message no = {.type = WIRE_REFUSED,
                              .refused = {.who = {.job = "j", .group = "dp"},
                                          .error = {.code = -EACCES, .text = "no such token"}}};
    uint64_t end_ms = now_ms() + 5000;

    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    fake_accept(&fake);
    fake_token(&fake);
    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    wire_free(fake_expect(&fake, WIRE_HELLO));
    fake_say(&fake, &no);
    while (strcmp(link_trouble(link_), "no such token") != 0 && now_ms() < end_ms) {
        cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
        poll(NULL, 0, 1);
    }
    fake_hang_up(&fake);
    while (link_next_ms(link_) > now_ms())
        poll(NULL, 0, 1);
    come_up(1);
}

Test(link, no_welcome_is_no_hang)
{
    struct poise_err err = {0};
    struct link *other = link_;

    cr_assert_eq(link_new(fake.dir, 100, &calls, &seen, &link_, NULL), 0);
    cr_assert_eq(link_step(link_, now_ms(), NULL), 0);
    fake_accept(&fake);
    fake_token(&fake);
    cr_assert_eq(step_until(NULL, 0, &err), -ETIMEDOUT);
    cr_assert(strstr(err.text, "does not answer"), "%s", err.text);
    link_free(link_, 0);
    link_ = other;
}
