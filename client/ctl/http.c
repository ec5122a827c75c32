/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP by libcurl, which knows unix sockets, time limits and half answers; what is left is to say what went wrong. */
#include "client/ctl/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_MS 10000L      /* the daemon answers from memory */
#define BODY_MOST (256u << 20) /* a report of a hundred thousand ranks is far smaller */

struct body {
    char *text; /* ends with a 0 */
    size_t n;
};

static size_t take(char *data, size_t size, size_t n, void *arg)
{
    struct body *body = arg;
    const size_t bytes = size * n;
    char *text;

    if (bytes > BODY_MOST - body->n)
        return 0;
    text = realloc(body->text, body->n + bytes + 1);
    if (!text)
        return 0;
    memcpy(text + body->n, data, bytes);
    body->text = text;
    body->n += bytes;
    text[body->n] = 0;
    return bytes;
}

/* libcurl only says that it could not connect: the reason is in errno of a connect of our own. */
static int explain(const struct ctl_command *command, const char *path, const char *text)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, error = 0;

    if (strlen(path) >= sizeof address.sun_path)
        return ctl_fail(command, CTL_FAILED,
                        "%s: the path of a socket has at most %zu bytes; give a shorter --socket-dir", path,
                        sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path));
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR)
        return ctl_fail(command, CTL_FAILED,
                        "no poised answers at %s (%s): start it, or give its folder with --socket-dir or "
                        "POISE_SOCKET_DIR",
                        path, strerror(error));
    if (error)
        return ctl_fail(command, CTL_FAILED, "%s cannot be opened: %s", path, strerror(error));
    return ctl_fail(command, CTL_FAILED, "poised at %s did not answer: %s", path, text);
}

int http_try(const char *dir, const char *path, bool post, long timeout_ms, long *ret_code, char **ret_body,
             const char **ret_why)
{
    char url[4096], socket_path[4096];
    struct body body = {0};
    CURL *curl = curl_easy_init();
    CURLcode rc;

    *ret_why = "libcurl does not start";
    if (!curl)
        return -1;
    snprintf(url, sizeof url, "http://localhost%s", path);
    snprintf(socket_path, sizeof socket_path, "%s/status.sock", dir);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket_path);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
    if (post)
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    rc = curl_easy_perform(curl);
    if (rc == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, ret_code);
    curl_easy_cleanup(curl);
    if (rc != CURLE_OK || !body.text) {
        free(body.text);
        *ret_why = rc != CURLE_OK ? curl_easy_strerror(rc) : "the answer is empty";
        return -1;
    }
    *ret_body = body.text;
    return 0;
}

int http_ask(const struct ctl_command *command, const char *dir, const char *path, bool post, long *ret_code,
             char **ret_body)
{
    char socket_path[4096];
    const char *why;

    if (http_try(dir, path, post, TIMEOUT_MS, ret_code, ret_body, &why) == 0)
        return CTL_OK;
    snprintf(socket_path, sizeof socket_path, "%s/status.sock", dir);
    return explain(command, socket_path, why);
}

char *http_escape(const char *text)
{
    char *escaped = curl_easy_escape(NULL, text, 0);
    char *copy = escaped ? strdup(escaped) : NULL;

    curl_free(escaped);
    return copy;
}
