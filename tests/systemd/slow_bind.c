/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into poised by test_systemd.sh: every bind() of a unix socket takes its time, so that a READY=1 that came
 * before the last socket would be seen by whoever is started after it.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>

#define DELAY_MS 400

int bind(int fd, const struct sockaddr *addr, socklen_t n)
{
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");

    poll(NULL, 0, DELAY_MS);
    return real(fd, addr, n);
}
