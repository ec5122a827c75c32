/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes csv_open() and csv_next(): any file is refused with a text, or gives rows of as many fields as there are
 * columns. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/ctl/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void must(bool fine)
{
    if (!fine)
        abort();
}

static void read_rows(struct csv *csv)
{
    struct poise_err err = {0};
    char list[100];
    double number;
    int rc;

    csv_find(csv, "length");
    must(strlen(csv_list(csv, list, sizeof list)) < sizeof list);
    while ((rc = csv_next(csv, &err)) == 1) {
        for (uint32_t i = 0; i < csv->n_columns; i++) {
            must(strlen(csv->field[i]) < SIZE_MAX / 2); /* reads it to its end */
            csv_number(csv->field[i], 1e9, &number);
        }
        must(strlen(csv->problem) < sizeof csv->problem);
    }
    must(rc == 0 || (rc == -EINVAL && err.text[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct csv csv = {0};
    struct poise_err err = {0};
    char path[32];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t)n_bytes)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = csv_open(path, &csv, &err);
    must(rc == 0 || (rc < 0 && err.code == rc && err.text[0]));
    if (rc == 0)
        read_rows(&csv);
    csv_close(&csv);
    close(fd);
    return 0;
}
