/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the ABI. A program built with an older header passes smaller structs: what it does not have is 0,
 * the default. One built with a newer header passes larger ones: fine as long as the members that this library does not
 * know are 0, an error otherwise, since ignoring an option silently is worse than refusing it.
 */
#include "client/sized.h"

#include <errno.h>
#include <string.h>

#include "daemon/planner/err.h"

#define SIZED_MAX 65536 /* above any struct of the header to come: a larger size is garbage */

static int check_size(size_t n_to, size_t n_from, size_t n_first, const char *what, struct poise_err *err)
{
    if (n_from < n_first || n_from > SIZED_MAX)
        return err_set(err, -EINVAL, "%s has size %zu: set it to sizeof(%s), which is %zu here", what, n_from, what,
                       n_to);
    return 0;
}

static int check_tail(const void *from, size_t n_to, size_t n_from, const char *what, struct poise_err *err)
{
    const unsigned char *bytes = from;

    for (size_t i = n_to; i < n_from; i++) {
        if (bytes[i] != 0)
            return err_set(
                err, -E2BIG,
                "%s of %zu bytes sets a member at byte %zu that libpoise %s does not know: update libpoise or "
                "leave that member 0",
                what, n_from, i, POISE_VERSION);
    }
    return 0;
}

int sized_in(void *to, size_t n_to, const void *from, size_t n_from, size_t n_first, const char *what,
             struct poise_err *err)
{
    int rc = check_size(n_to, n_from, n_first, what, err);

    if (rc < 0)
        return rc;
    rc = check_tail(from, n_to, n_from, what, err);
    if (rc < 0)
        return rc;
    memset(to, 0, n_to);
    memcpy(to, from, n_from < n_to ? n_from : n_to);
    return 0;
}

int sized_check(const void *array, size_t n, size_t n_to, size_t n_from, size_t n_first, const char *what,
                struct poise_err *err)
{
    int rc = check_size(n_to, n_from, n_first, what, err);

    for (size_t i = 0; rc == 0 && n_from > n_to && i < n; i++)
        rc = check_tail((const unsigned char *)array + i * n_from, n_to, n_from, what, err);
    return rc;
}

void sized_out(void *to, size_t n_to, const void *from, size_t n_from)
{
    memcpy(to, from, n_to < n_from ? n_to : n_from);
    if (n_to > n_from)
        memset((unsigned char *)to + n_from, 0, n_to - n_from);
}
