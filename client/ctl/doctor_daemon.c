/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poised as a rank finds it: the folder, whether this user may open the sockets in it, who answers there, and whether
 * both speak one version. The daemon sends its greeting to whoever connects, so that nothing has to join.
 */
#include "client/ctl/doctor.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/http.h"
#include "proto/local.h"
#include "proto/wire.h"

#define GREETING_MS 5000 /* as long as the library waits for a daemon by default */

static const char start[] = "start it (systemctl start poised), or give its folder by --socket-dir or POISE_SOCKET_DIR";

static bool check_folder(struct doctor *doctor)
{
    struct stat st;

    if (stat(doctor->dir, &st) < 0) {
        doctor_say(doctor, "folder", DOCTOR_FAIL, errno == EACCES ? "let this user into the folders above" : start,
                   "%s: %s", doctor->dir, strerror(errno));
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        doctor_say(doctor, "folder", DOCTOR_FAIL, start, "%s is no folder", doctor->dir);
        return false;
    }
    if (access(doctor->dir, X_OK) < 0) {
        doctor_say(doctor, "folder", DOCTOR_FAIL, "chmod a+x it, or add the user to its group",
                   "%s: uid %u may not open what is in it", doctor->dir, (unsigned)geteuid());
        return false;
    }
    if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
        doctor_say(doctor, "folder", DOCTOR_WARN,
                   "chmod 755 it: anybody can put a socket of theirs in the daemon's place",
                   "%s is writable by everybody (mode %04o)", doctor->dir, st.st_mode & 07777);
    else
        doctor_say(doctor, "folder", DOCTOR_OK, NULL, "%s, of uid %u, mode %04o", doctor->dir, (unsigned)st.st_uid,
                   st.st_mode & 07777);
    return true;
}

/* Whether all are there and open to this user. */
static bool check_sockets(struct doctor *doctor)
{
    static const char *const names[] = {"local.sock", "poised.zmq", "status.sock"};
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", doctor->dir, names[i]);
        if (access(path, R_OK | W_OK) == 0)
            continue;
        if (errno == ENOENT)
            doctor_say(doctor, "daemon", DOCTOR_FAIL, start, "no poised answers in %s: %s is not there", doctor->dir,
                       names[i]);
        else
            doctor_say(doctor, "sockets", DOCTOR_FAIL, "chmod a+rw it; poised makes it so",
                       "%s: uid %u may not use it: %s", path, (unsigned)geteuid(), strerror(errno));
        return false;
    }
    doctor_say(doctor, "sockets", DOCTOR_OK, NULL, "uid %u may use them", (unsigned)geteuid());
    return true;
}

/* 0: connected, *ret_fd; else -errno. */
static int connect_local(const char *dir, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, rc;

    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/local.sock", dir) >= (int)sizeof address.sun_path)
        return -ENAMETOOLONG;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        rc = -errno;
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

/* The daemon's first packet. */
static bool check_greeting(struct doctor *doctor)
{
    struct pollfd wait = {.events = POLLIN};
    struct local_message message;
    struct poise_err err = {0};
    int rc = connect_local(doctor->dir, &wait.fd);

    if (rc < 0) {
        doctor_say(doctor, "daemon", DOCTOR_FAIL, rc == -ENAMETOOLONG ? "choose a shorter folder" : start,
                   "no poised answers at %s/local.sock: %s", doctor->dir, strerror(-rc));
        return false;
    }
    const ssize_t n = poll(&wait, 1, GREETING_MS) == 1 ? recv(wait.fd, &message, sizeof message, MSG_DONTWAIT) : -1;
    close(wait.fd);
    if (n <= 0) {
        doctor_say(doctor, "daemon", DOCTOR_FAIL, "see its log (journalctl -u poised), restart it",
                   "poised takes connections, but does not greet");
        return false;
    }
    rc = local_check(&message, (size_t)n, 0, false, &err);
    if (rc == 0 && message.type == LOCAL_REFUSED) {
        doctor_say(doctor, "daemon", DOCTOR_FAIL, "end processes, or raise max_processes in poised.conf",
                   "poised refuses: %s", message.text);
        return false;
    }
    if (rc < 0)
        doctor_say(doctor, "daemon", DOCTOR_FAIL, "install poised and the library of one version; restart poised",
                   "its greeting is not understood: %s", err.text);
    return rc == 0;
}

static int64_t number(const json_t *report, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(report, key));
}

static void check_report(struct doctor *doctor, const json_t *report)
{
    const char *version = json_string_value(json_object_get(report, "version"));
    const int64_t wire = number(report, "wire_version"), n = number(report, "processes");
    const int64_t most = number(report, "max_processes");

    if (!version)
        version = "?";
    if (wire != WIRE_VERSION)
        doctor_say(doctor, "daemon", DOCTOR_FAIL, "install both of one version; restart poised",
                   "poised %s speaks protocol %lld, this tool %d", version, (long long)wire, WIRE_VERSION);
    else if (strcmp(version, poise_version()) != 0)
        doctor_say(doctor, "daemon", DOCTOR_WARN, "restart poised after an update",
                   "poised is %s, this tool %s; both speak protocol %d", version, poise_version(), WIRE_VERSION);
    else
        doctor_say(doctor, "daemon", DOCTOR_OK, NULL, "poised %s, pid %lld, protocol %d", version,
                   (long long)number(report, "pid"), WIRE_VERSION);
    if (n < most)
        doctor_say(doctor, "processes", DOCTOR_OK, NULL, "%lld of %lld", (long long)n, (long long)most);
    else
        doctor_say(doctor, "processes", DOCTOR_FAIL, "end processes, or raise max_processes in poised.conf",
                   "%lld of %lld: there is no room for another", (long long)n, (long long)most);
}

void doctor_daemon(struct doctor *doctor)
{
    json_t *report;
    char *body;
    long code;

    if (!check_folder(doctor) || !check_sockets(doctor) || !check_greeting(doctor))
        return;
    if (http_ask(doctor->command, doctor->dir, "/status", false, &code, &body) != CTL_OK) {
        doctor_say(doctor, "daemon", DOCTOR_FAIL, "see its log (journalctl -u poised), restart it",
                   "poised greets, but does not answer on its status socket");
        return;
    }
    report = json_loads(body, 0, NULL);
    if (code == 200 && json_is_object(report))
        check_report(doctor, report);
    else
        doctor_say(doctor, "daemon", DOCTOR_FAIL, "install both of one version; restart poised",
                   "its status is not understood (HTTP %ld)", code);
    json_decref(report);
    free(body);
}
