/* SPDX-License-Identifier: Apache-2.0 */
/* The socket folder, and the one daemon that may serve it. */
#ifndef POISE_SHELL_LOCK_H
#define POISE_SHELL_LOCK_H

#include <stdbool.h>

#include "poise.h"

#define LOCK_DIR_BYTES 96 /* with its 0: DIR/poised.zmq must fit a unix address of 108 bytes */

struct lock {
    bool held;
    int fd;
    char dir[LOCK_DIR_BYTES]; /* absolute: clients with another working folder are told paths below it */
};

/*
 * Makes the folder if it is missing and takes its lock. Errors: -EEXIST another daemon serves it (names its pid; it is
 * not disturbed), -ENOTDIR, -EACCES, -ENAMETOOLONG ...: each says what to do.
 */
int lock_take(struct lock *lock, const char *dir, struct poise_err *err);

/* Removes the lock's file and lets go; nothing where it is not held. */
void lock_release(struct lock *lock);

#endif
