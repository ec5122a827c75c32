/* SPDX-License-Identifier: Apache-2.0 */
/* Which address of this host others are told: interfaces in NCCL's and gloo's syntax on what this host really has, and
 * the route. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/address.h"

static void clear(void)
{
    unsetenv("NCCL_SOCKET_IFNAME");
    unsetenv("GLOO_SOCKET_IFNAME");
}

TestSuite(address, .init = clear);

static const char *ask(const char *toward, const char *interface)
{
    static char text[ADDRESS_BYTES];
    struct poise_err err;
    int rc = endpoint_local_address(toward, interface, text, sizeof text, &err);
    cr_assert_eq(rc, 0, "%s, %s: %d %s", toward ? toward : "-", interface ? interface : "-", rc, err.text);
    return text;
}

/* An interface besides lo with an IPv4 address, if this host has one. */
static bool other_interface(char name[IF_NAMESIZE], char addr[INET_ADDRSTRLEN])
{
    struct ifaddrs *all;
    bool found = false;
    cr_assert_eq(getifaddrs(&all), 0);
    for (struct ifaddrs *at = all; at && !found; at = at->ifa_next) {
        found = at->ifa_addr && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_UP) &&
                !(at->ifa_flags & IFF_LOOPBACK);
        if (!found)
            continue;
        snprintf(name, IF_NAMESIZE, "%s", at->ifa_name);
        inet_ntop(AF_INET, &((struct sockaddr_in *)at->ifa_addr)->sin_addr, addr, INET_ADDRSTRLEN);
    }
    freeifaddrs(all);
    return found;
}

Test(address, lists_match_as_nccl_matches_them)
{
    static const struct {
        const char *list, *name;
        bool matches;
    } cases[] = {
        {"eth", "eth0", true},      {"eth0", "eth01", true},   {"=eth0", "eth01", false},   {"=eth0", "eth0", true},
        {"ib,eth", "eth2", true},   {"ib,eth", "lo", false},   {"=ib0,eth0", "eth0", true}, {"=ib,eth", "eth0", false},
        {"^docker,lo", "lo", false}, {"^docker,lo", "docker7", false}, {"^docker,lo", "eth0", true},
        {"^=eth0", "eth0", false},  {"^=eth0", "eth01", true}, {"eth0:4321", "eth0", true}, {"", "eth0", false},
        {",,eth0", "eth0", true},   {"^", "eth0", true},       {"=", "eth0", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(address_matches(cases[i].list, cases[i].name), cases[i].matches, "%s takes %s", cases[i].list,
                     cases[i].name);
}

Test(address, loopback_is_known_by_its_text)
{
    static const char *const yes[] = {"localhost", "127.0.0.1", "127.255.0.9", "::1", "[::1]", "::ffff:127.0.0.1"};
    static const char *const no[] = {"", "h", "10.0.0.1", "head", "::2", "[::1", "[]", "128.0.0.1", "127.head", "0.0.0.0"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        cr_assert(address_is_loopback(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        cr_assert_not(address_is_loopback(no[i]), "%s", no[i]);
}

Test(address, local_coordinators_are_reached_by_loopback)
{
    setenv("NCCL_SOCKET_IFNAME", "=nosuch0", 1); /* of no account here */
    cr_assert_str_eq(ask(NULL, NULL), "127.0.0.1");
    cr_assert_str_eq(ask("", ""), "127.0.0.1");
    cr_assert_str_eq(ask("ipc:///run/c,tcp://10.0.0.1", NULL), "127.0.0.1");
    cr_assert_str_eq(ask("tcp://127.0.0.1:29410", NULL), "127.0.0.1");
    cr_assert_str_eq(ask("tcp://localhost", NULL), "127.0.0.1");
    cr_assert_str_eq(ask("tcp://[::1]:5", NULL), "[::1]");
    cr_assert_str_eq(ask("::1", NULL), "[::1]");
}

Test(address, interfaces_are_taken_by_option_then_nccl_then_gloo)
{
    char name[IF_NAMESIZE], addr[INET_ADDRSTRLEN], toward[64], list[64];
    cr_assert_str_eq(ask("tcp://192.0.2.77:5", "lo"), "127.0.0.1");
    cr_assert_str_eq(ask("tcp://192.0.2.77:5", "127.0.0.1"), "127.0.0.1");
    if (!other_interface(name, addr))
        cr_skip_test("no interface besides lo is up");
    snprintf(toward, sizeof toward, "tcp://%s:29410", addr);
    cr_assert_str_eq(ask(toward, NULL), addr, "the route to oneself");
    cr_assert_str_eq(ask(toward, name), addr);
    cr_assert_str_eq(ask("tcp://127.0.0.1", name), addr, "an option counts everywhere");
    cr_assert_str_eq(ask(toward, addr), addr);
    setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    cr_assert_str_eq(ask(toward, NULL), "127.0.0.1");
    snprintf(list, sizeof list, "=%s", name);
    setenv("NCCL_SOCKET_IFNAME", list, 1);
    cr_assert_str_eq(ask(toward, NULL), addr, "NCCL's comes first");
    cr_assert_str_eq(ask(toward, "lo"), "127.0.0.1", "and the option before it");
    setenv("NCCL_SOCKET_IFNAME", "^lo", 1);
    cr_assert_str_neq(ask(toward, NULL), "127.0.0.1");
}

Test(address, what_matches_nothing_is_named_with_what_there_is)
{
    struct poise_err err;
    char text[ADDRESS_BYTES] = "kept";
    setenv("NCCL_SOCKET_IFNAME", "nosuch", 1);
    cr_assert_eq(endpoint_local_address("tcp://192.0.2.77:5", NULL, text, sizeof text, &err), -ENODEV);
    cr_assert(strstr(err.text, "NCCL_SOCKET_IFNAME") && strstr(err.text, "nosuch") && strstr(err.text, " lo"), "%s",
              err.text);
    unsetenv("NCCL_SOCKET_IFNAME");
    setenv("GLOO_SOCKET_IFNAME", "l", 1); /* gloo has no prefixes */
    cr_assert_eq(endpoint_local_address("tcp://192.0.2.77:5", NULL, text, sizeof text, &err), -ENODEV);
    cr_assert(strstr(err.text, "GLOO_SOCKET_IFNAME"), "%s", err.text);
    cr_assert_eq(endpoint_local_address(NULL, "192.0.2.99", text, sizeof text, &err), -ENODEV);
    unsetenv("GLOO_SOCKET_IFNAME");
    cr_assert_eq(endpoint_local_address("tcp://no-such-host.invalid", NULL, text, sizeof text, &err), -EHOSTUNREACH);
    cr_assert(strstr(err.text, "no-such-host.invalid"), "%s", err.text);
    cr_assert_eq(endpoint_local_address("tcp://:5", NULL, text, sizeof text, &err), -EINVAL);
    cr_assert_eq(endpoint_local_address("tcp://[]", NULL, text, sizeof text, &err), -EINVAL);
    cr_assert_eq(endpoint_local_address(NULL, NULL, text, 5, &err), -EINVAL);
    cr_assert_str_eq(text, "kept");
}

/* Debian's /etc/hosts has a host's own name at 127.0.1.1: other hosts cannot use that. */
Test(address, a_name_that_is_loopback_here_is_not_told_to_others)
{
    char name[IF_NAMESIZE], addr[INET_ADDRSTRLEN], host[256];
    if (!other_interface(name, addr))
        cr_skip_test("no interface besides lo is up");
    cr_assert_eq(gethostname(host, sizeof host), 0);
    struct poise_err err;
    char text[ADDRESS_BYTES];
    if (endpoint_local_address(host, NULL, text, sizeof text, &err) < 0)
        cr_skip_test("the host's own name is not known to its resolver");
    cr_assert(strncmp(text, "127.", 4) != 0 && strcmp(text, "[::1]") != 0, "%s is %s", host, text);
}
