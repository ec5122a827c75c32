/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints as users write them: what they become for ZeroMQ, and what is said of those that cannot be used. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/shell/endpoint.h"

static int parse(const char *text, enum endpoint_use use, bool allowed, struct endpoint *e, struct poise_err *err)
{
    return endpoint_parse(text, strlen(text), use, allowed, e, err);
}

Test(endpoint, tcp_has_beacons_on_the_next_port)
{
    static const char *const cases[][3] = {
        {"tcp://127.0.0.1", "tcp://127.0.0.1:29410", "tcp://127.0.0.1:29411"},
        {"tcp://127.8.0.1:1", "tcp://127.8.0.1:1", "tcp://127.8.0.1:2"},
        {"tcp://localhost:65534", "tcp://127.0.0.1:65534", "tcp://127.0.0.1:65535"},
        {"tcp://[::1]", "tcp://[::1]:29410", "tcp://[::1]:29411"},
        {"tcp://[::1]:5", "tcp://[::1]:5", "tcp://[::1]:6"},
        {"ipc:///run/c", "ipc:///run/c", "ipc:///run/c.beacon"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct endpoint e;
        struct poise_err err;
        cr_assert_eq(parse(cases[i][0], ENDPOINT_CONNECT, false, &e, &err), 0, "%s", err.text);
        cr_assert_str_eq(e.control, cases[i][1]);
        cr_assert_str_eq(e.beacon, cases[i][2]);
        cr_assert_eq(e.is_ipc, i == 5);
    }
}

Test(endpoint, beyond_loopback_only_where_told)
{
    static const char *const cases[] = {"tcp://10.0.0.1", "tcp://head.cluster:5", "tcp://[fe80::1]:5", "tcp://0.0.0.0:5",
                                        "tcp://[::]:5", "tcp://*", "tcp://128.0.0.1", "tcp://[::ffff:127.0.0.1]"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct endpoint e;
        struct poise_err err;
        cr_assert_eq(parse(cases[i], ENDPOINT_LISTEN, false, &e, &err), -EPERM, "%s", cases[i]);
        cr_assert(strstr(err.text, cases[i]) && strstr(err.text, "insecure = yes"), "%s", err.text);
        cr_assert_eq(parse(cases[i], ENDPOINT_LISTEN, true, &e, &err), 0, "%s", err.text);
    }
}

Test(endpoint, what_cannot_be_used_is_named)
{
    static const char *const cases[] = {"",           "tcp://",          "tcp://:5",        "tcp://127.0.0.1:",
                                        "tcp://h:0",  "tcp://h:65535",   "tcp://h:99999",   "tcp://h:5x",
                                        "tcp://::1",  "tcp://[::1",      "tcp://[x]:5",     "tcp://[::1]5",
                                        "tcp://a;b",  "tcp://a b",       "tcp://e th0",     "udp://127.0.0.1:5",
                                        "127.0.0.1",  "ipc://",          "ipc://x",         "ipc://@x",
                                        "inproc://x", "tcp://h:5/x",     "TCP://127.0.0.1", "tcp://h:-1"};
    char longest[400] = "ipc:///";
    struct endpoint e = {.control = "kept"};
    struct poise_err err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(parse(cases[i], ENDPOINT_CONNECT, true, &e, &err), -EINVAL, "%s", cases[i]);
        cr_assert(strstr(err.text, cases[i]), "%s", err.text);
    }
    cr_assert_eq(parse("tcp://*:5", ENDPOINT_CONNECT, true, &e, &err), -EINVAL);
    memset(longest + 7, 'x', 100); /* the path has 101 bytes */
    cr_assert_eq(parse(longest, ENDPOINT_CONNECT, true, &e, &err), -EINVAL);
    memset(longest + 7, 'x', 380);
    cr_assert_eq(parse(longest, ENDPOINT_CONNECT, true, &e, &err), -EINVAL);
    cr_assert_str_eq(e.control, "kept");
    longest[6 + 100] = 0; /* 100 bytes fit */
    cr_assert_eq(parse(longest, ENDPOINT_CONNECT, true, &e, &err), 0, "%s", err.text);
}

Test(endpoint, one_that_leaves_from_an_address_says_so_to_zeromq)
{
    struct endpoint e;
    cr_assert_eq(parse("tcp://head:7", ENDPOINT_CONNECT, true, &e, NULL), 0);
    cr_assert_not(e.is_loopback);
    endpoint_leave_from(&e, "10.0.0.1");
    cr_assert_str_eq(e.control, "tcp://10.0.0.1:0;head:7");
    cr_assert_str_eq(e.beacon, "tcp://10.0.0.1:0;head:8");
    cr_assert_eq(parse("tcp://[fd00::1]", ENDPOINT_CONNECT, true, &e, NULL), 0);
    endpoint_leave_from(&e, "[fd00::2]");
    cr_assert_str_eq(e.control, "tcp://[fd00::2]:0;[fd00::1]:29410");
    cr_assert_eq(parse("ipc:///a", ENDPOINT_CONNECT, true, &e, NULL), 0);
    endpoint_leave_from(&e, "10.0.0.1");
    cr_assert_str_eq(e.control, "ipc:///a");
    cr_assert_eq(parse("tcp://[::1]", ENDPOINT_CONNECT, false, &e, NULL), 0);
    cr_assert(e.is_loopback);
}

Test(endpoint, lists_have_commas_in_between)
{
    struct endpoint e[ENDPOINTS_MAX];
    struct poise_err err;
    uint32_t n = 0;
    cr_assert_eq(endpoints_parse("ipc:///a,tcp://127.0.0.1:7,ipc:///b", ENDPOINT_CONNECT, false, e, &n, &err), 0);
    cr_assert(n == 3 && strcmp(e[2].control, "ipc:///b") == 0 && strcmp(e[1].beacon, "tcp://127.0.0.1:8") == 0);
    cr_assert_eq(endpoints_parse("ipc:///a,,ipc:///b", ENDPOINT_CONNECT, false, e, &n, &err), -EINVAL);
    cr_assert_eq(endpoints_parse("ipc:///a,", ENDPOINT_CONNECT, false, e, &n, &err), -EINVAL);
    cr_assert_eq(endpoints_parse("", ENDPOINT_CONNECT, false, e, &n, &err), -EINVAL);
    const char *nine = "ipc:///1,ipc:///2,ipc:///3,ipc:///4,ipc:///5,ipc:///6,ipc:///7,ipc:///8,ipc:///9";
    cr_assert_eq(endpoints_parse(nine, ENDPOINT_CONNECT, false, e, &n, &err), -EINVAL);
    cr_assert(strstr(err.text, "more than 8"), "%s", err.text);
    cr_assert_eq(n, 3);
}
