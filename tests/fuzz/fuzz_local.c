/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes local_check(): the first byte says how many descriptors came and from whom, the rest is the packet. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/local.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct poise_err err = {0};
    struct local_message msg;

    if (n_bytes == 0)
        return 0;
    int rc = local_check(bytes + 1, n_bytes - 1, bytes[0] >> 1, bytes[0] & 1, &err);
    if (rc < 0) {
        if ((rc != -EPROTO && rc != -EPROTONOSUPPORT) || err.code != rc || !err.text[0])
            abort();
        return 0;
    }
    /* What passed is what its users count on. */
    memcpy(&msg, bytes + 1, sizeof msg);
    if (n_bytes - 1 != sizeof msg || !memchr(msg.text, 0, sizeof msg.text))
        abort();
    if ((msg.type == LOCAL_OFFER || msg.type == LOCAL_RETRACT) && msg.segment >= LOCAL_MAX_SEGMENTS)
        abort();
    return 0;
}
