/* SPDX-License-Identifier: Apache-2.0 */
/* One question to poised over HTTP on its status socket. */
#ifndef POISE_CTL_HTTP_H
#define POISE_CTL_HTTP_H

#include "client/ctl/ctl.h"

/*
 * GET or POST (with an empty body) of a path with its query to DIR/status.sock. 0 and the HTTP code and body (caller
 * frees with free()); else CTL_FAILED after a message that says why and what to do. Waits ten seconds at most.
 */
int http_ask(const struct ctl_command *command, const char *dir, const char *path, bool post, long *ret_code,
             char **ret_body);

/* The same without a message, and with a time of one's own. 0, or -1 and why (a text that is not freed). */
int http_try(const char *dir, const char *path, bool post, long timeout_ms, long *ret_code, char **ret_body,
             const char **ret_why);

/* Text as a query's value. NULL: no memory. Caller frees with free(). */
char *http_escape(const char *text);

#endif
