/* SPDX-License-Identifier: Apache-2.0 */
/* Reads seeds from the source tree; tests run from its root. */
#include "seeds.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED_BYTES (1u << 20)

static void run_cut(const uint8_t *bytes, size_t n_bytes, int (*entry)(const uint8_t *bytes, size_t n_bytes))
{
    /* In a block of just that size, so that a sanitizer sees a read past its end. */
    for (size_t cut = 0; cut <= n_bytes; cut += 1 + n_bytes / 16) {
        uint8_t *copy = malloc(n_bytes - cut);
        if (!copy)
            abort();
        memcpy(copy, bytes, n_bytes - cut);
        entry(copy, n_bytes - cut);
        free(copy);
    }
}

int seeds_run(const char *name, int (*entry)(const uint8_t *bytes, size_t n_bytes))
{
    static uint8_t bytes[SEED_BYTES];
    char path[512];
    int n = 0;

    snprintf(path, sizeof path, "tests/fuzz/seeds/%s", name);
    DIR *folder = opendir(path);
    for (struct dirent *file; folder && (file = readdir(folder));) {
        if (file->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "tests/fuzz/seeds/%s/%s", name, file->d_name);
        FILE *in = fopen(path, "rb");
        if (!in)
            continue;
        run_cut(bytes, fread(bytes, 1, sizeof bytes, in), entry);
        fclose(in);
        n++;
    }
    if (folder)
        closedir(folder);
    return n;
}
