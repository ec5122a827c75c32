/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this daemon was planning when it died: a page of memory in DIR/poised.mark that the next daemon on the folder
 * reads. See daemon/core/poison.h for what it is good for.
 */
#ifndef POISE_SHELL_MARK_H
#define POISE_SHELL_MARK_H

#include "daemon/core/coordinator.h"
#include "daemon/shell/lock.h"

struct mark_page;

struct mark {
    struct mark_page *page; /* NULL: not in use */
    char path[LOCK_DIR_BYTES + 16];
};

/* Maps the page and notes what it says of the daemon before this one. Needs the folder's lock. Without a page (a full
 * disk) the daemon works as well, so that is a line in the log and no error. */
void mark_open(struct mark *mark, const char *dir);

/* Where the coordinator writes what it plans; NULL where there is no page. */
struct coordinator_mark *mark_memory(const struct mark *mark);

/* The i-th input that killed a planner here, from 0 on; false: there are no more. *ret_who: "of node X (signal 11;
 * poised 0.1.0, planner 3)". */
bool mark_poison(const struct mark *mark, uint32_t i, const char *node_name, struct coordinator_mark *ret_what,
                 char *ret_who, size_t n_who);

/* An orderly end: removes the file. */
void mark_close(struct mark *mark);

#endif
