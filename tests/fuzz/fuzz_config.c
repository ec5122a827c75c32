/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the configuration file of poised: any file is refused with a text that names it, or gives settings that print
 * as a file which gives them again. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/shell/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void must(bool fine)
{
    if (!fine)
        abort();
}

static int parse(const uint8_t *bytes, size_t n_bytes, struct config *config, struct poise_err *err)
{
    char path[32];
    char *argv[] = {"poised", "--config", path, NULL};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t)n_bytes)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = config_parse(3, argv, config, err);
    close(fd);
    return rc;
}

static char *print(const struct config *config, size_t *ret_n)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_n);

    if (!out)
        abort();
    config_print(config, out);
    fclose(out);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static struct config config, again;
    struct poise_err err = {0};
    size_t n, n_again;

    int rc = parse(bytes, n_bytes, &config, &err);
    if (rc < 0) {
        must(err.code == rc && err.text[0] && !strchr(err.text, '\n'));
        return 0;
    }
    char *text = print(&config, &n);
    must(parse((const uint8_t *)text, n, &again, &err) == 0);
    char *text_again = print(&again, &n_again);
    must(n == n_again && memcmp(text, text_again, n) == 0);
    free(text);
    free(text_again);
    return 0;
}
