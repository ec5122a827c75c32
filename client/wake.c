/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An eventfd that may be rung after its owner is gone. Batches outlive their handle, and the last release of a step
 * tells the engine that there is room; so what they ring is counted, and closed under a lock, as a closed descriptor's
 * number may belong to someone else by then.
 */
#include "client/wake.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/planner/err.h"

struct wake {
    atomic_uint refs;
    pthread_mutex_t lock; /* of the descriptor's end */
    int fd;               /* -1: closed */
};

int wake_new(struct wake **ret_wake, struct poise_err *err)
{
    struct wake *wake = calloc(1, sizeof *wake);

    if (!wake)
        return err_set(err, -ENOMEM, "no memory for the handle");
    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake->fd < 0) {
        int rc = err_set(err, -errno, "eventfd: %s%s", strerror(errno), errno == EMFILE ? ": raise `ulimit -n`" : "");
        free(wake);
        return rc;
    }
    pthread_mutex_init(&wake->lock, NULL);
    atomic_init(&wake->refs, 1);
    *ret_wake = wake;
    return 0;
}

struct wake *wake_ref(struct wake *wake)
{
    atomic_fetch_add_explicit(&wake->refs, 1, memory_order_relaxed);
    return wake;
}

void wake_unref(struct wake *wake)
{
    if (!wake || atomic_fetch_sub_explicit(&wake->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (wake->fd >= 0)
        close(wake->fd);
    pthread_mutex_destroy(&wake->lock);
    free(wake);
}

void wake_close(struct wake *wake)
{
    pthread_mutex_lock(&wake->lock);
    if (wake->fd >= 0)
        close(wake->fd);
    wake->fd = -1;
    pthread_mutex_unlock(&wake->lock);
}

void wake_signal(struct wake *wake)
{
    uint64_t one = 1;
    int saved = errno;
    ssize_t n = write(wake->fd, &one, sizeof one); /* it only fails when it is already full of wake-ups */

    (void)n;
    errno = saved;
}

void wake_ring(struct wake *wake)
{
    pthread_mutex_lock(&wake->lock);
    if (wake->fd >= 0)
        wake_signal(wake);
    pthread_mutex_unlock(&wake->lock);
}

int wake_fd(const struct wake *wake)
{
    return wake->fd;
}

void wake_drain(struct wake *wake)
{
    uint64_t count;
    ssize_t n = read(wake->fd, &count, sizeof count); /* EAGAIN: nobody rang */

    (void)n;
}

void wake_child(struct wake *wake)
{
    if (wake->fd >= 0)
        close(wake->fd);
    wake->fd = -1;
}
