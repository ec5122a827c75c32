/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of payload: memcpy for what is small, stores past the caches for what is large. */
#ifndef POISE_CLIENT_COPY_H
#define POISE_CLIENT_COPY_H

#include <stddef.h>

/* As memcpy(); 0 bytes with NULL are allowed. What was written is ordered before any later release, as ordinary stores
 * are. */
void copy_bytes(void *to, const void *from, size_t bytes);

#endif
