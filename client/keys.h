/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster's key: one CURVE pair in one file that all nodes have a copy of. Whoever has it may be a node and a
 * coordinator of the cluster, and speak for any user there: so it is a secret of root and of poised's user.
 *
 *     # any comment
 *     public = 40 characters of Z85
 *     secret = 40 characters of Z85
 */
#ifndef POISE_CLIENT_KEYS_H
#define POISE_CLIENT_KEYS_H

#include <stdbool.h>

#include "poise.h"

#define KEYS_TEXT 41 /* 32 bytes in Z85, with the 0 */

struct keys {
    bool set; /* false: there is none, nothing is encrypted */
    char public[KEYS_TEXT], secret[KEYS_TEXT];
};

/*
 * Reads a file that only its owner, who is root or this process's user, may read. Errors: -EACCES, -EPERM owner or
 * mode, -EINVAL content, -EOPNOTSUPP libzmq has no CURVE, -ENOENT and the like; each names the file and what to do.
 */
int keys_read(const char *path, struct keys *ret_keys, struct poise_err *err);

/* A new random pair. Errors: -EOPNOTSUPP, -EIO. */
int keys_make(struct keys *ret_keys, struct poise_err *err);

/*
 * Writes a new file of mode 0600; uid POISE_NONE: of this process's user. Errors: -EEXIST there is one already (it is
 * not replaced), those of open(), chown() and write(); then no file is left.
 */
int keys_write(const char *path, const struct keys *keys, uint32_t uid, uint32_t gid, struct poise_err *err);

#endif
