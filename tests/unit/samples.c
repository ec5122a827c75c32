/* SPDX-License-Identifier: Apache-2.0 */
#include "samples.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct wire_field samples_field(const char *name, uint32_t dtype, uint32_t assembly, uint32_t axis, uint32_t n_dims,
                                const int64_t *shape)
{
    struct wire_field field = { .dtype = dtype, .assembly = assembly, .axis = axis, .n_dims = n_dims,
                                .pad_multiple = 1 };

    snprintf(field.name, sizeof field.name, "%s", name);
    for (uint32_t i = 0; i < n_dims; i++) {
        field.shape[i] = shape[i];
        if (assembly == POISE_PADDED && shape[i] < 0)
            snprintf(field.axis_name[i], sizeof field.axis_name[i], "a%" PRIu32, i);
    }
    return field;
}

struct value samples_value(const void *data, uint32_t n_dims, const int64_t *shape)
{
    struct value value = { .data = data, .present = true, .n_dims = n_dims };

    if (n_dims > 0)
        memcpy(value.shape, shape, n_dims * sizeof *shape);
    return value;
}

uint64_t samples_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull;
}

uint64_t samples_below(uint64_t *state, uint64_t n)
{
    return (samples_random(state) >> 11) % n;
}

uint64_t samples_seed(const char *test)
{
    const char *given = getenv("POISE_SEED");
    struct timespec now;
    uint64_t seed;

    clock_gettime(CLOCK_REALTIME, &now);
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)now.tv_sec * 1000003u + (uint64_t)now.tv_nsec;
    fprintf(stderr, "%s: POISE_SEED=%" PRIu64 "\n", test, seed);
    return seed ? seed : 1;
}

int samples_n_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = -1; /* the directory itself */

    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

bool samples_readable(const void *at)
{
    int fds[2];
    bool readable;

    if (pipe(fds) < 0)
        return false;
    readable = write(fds[1], at, 1) == 1;
    close(fds[0]);
    close(fds[1]);
    return readable;
}
