/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: sources and their precedence, and that every bad one is named by file, line, key and value. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/shell/config.h"

static char path[] = "/tmp/poise-config-XXXXXX";

static void write_file(const void *text, size_t n)
{
    strcpy(strrchr(path, '-') + 1, "XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
}

static int parse(struct config *config, struct poise_err *err, int argc, ...)
{
    char *argv[16] = {(char *)"poised"};
    va_list ap;
    va_start(ap, argc);
    for (int i = 0; i < argc; i++)
        argv[i + 1] = va_arg(ap, char *);
    va_end(ap);
    return config_parse(argc + 1, argv, config, err);
}

static int parse_file(const char *text, struct config *config, struct poise_err *err)
{
    write_file(text, strlen(text));
    int rc = parse(config, err, 2, "--config", path);
    unlink(path);
    return rc;
}

static void assert_text(const struct poise_err *err, const char *part)
{
    cr_assert(strstr(err->text, part), "'%s' does not say '%s'", err->text, part);
}

Test(config, defaults_are_those_of_the_contracts)
{
    struct config c;
    unsetenv("POISE_SOCKET_DIR");
    cr_assert_eq(parse(&c, NULL, 2, "--config", "/dev/null"), 0);
    cr_assert_str_eq(c.socket_dir, "/run/poise");
    cr_assert_eq(c.log_level, 6);
    cr_assert_eq(c.mode, POISE_MODE_ON);
    cr_assert_eq(c.heartbeat_ms, 1000);
    cr_assert_eq(c.pull_delay_ms, 20);
    cr_assert_eq(c.silence_ms, 2000);
    cr_assert_eq(c.node_timeout_ms, 10000);
    cr_assert_eq(c.beacon_ms, 250);
    cr_assert_eq(c.warn_ms, 60000);
    cr_assert_eq(c.forget_ms, 30000);
    cr_assert_eq(c.ready_fd, CONFIG_NO_FD);
    cr_assert_eq(c.action, CONFIG_RUN);
    cr_assert(c.node_name[0]);
}

Test(config, a_flag_beats_the_environment_beats_the_file_beats_the_default)
{
    struct config c;
    static const char text[] = "# comment\n[poised]\nsocket-dir = /from/file\nlog-level = debug\nheartbeat-ms=500\n";
    write_file(text, sizeof text - 1);
    unsetenv("POISE_SOCKET_DIR");
    cr_assert_eq(parse(&c, NULL, 2, "--config", path), 0);
    cr_assert_str_eq(c.socket_dir, "/from/file");
    cr_assert_str_eq(c.config, path);
    cr_assert_eq(c.log_level, 7);
    cr_assert_eq(c.heartbeat_ms, 500);
    setenv("POISE_SOCKET_DIR", "/from/env", 1);
    cr_assert_eq(parse(&c, NULL, 2, "--config", path), 0);
    cr_assert_str_eq(c.socket_dir, "/from/env");
    cr_assert_eq(parse(&c, NULL, 4, "--config", path, "--socket-dir=/from/flag", "--log-level=error"), 0);
    cr_assert_str_eq(c.socket_dir, "/from/flag");
    cr_assert_eq(c.log_level, 3);
    unsetenv("POISE_SOCKET_DIR");
    unlink(path);
}

Test(config, an_unknown_key_names_file_line_key_and_value)
{
    struct config c = {.log_level = 42};
    struct poise_err err;
    cr_assert_eq(parse_file("[poised]\n\nsocket-dri = /x\n", &c, &err), -EINVAL);
    assert_text(&err, path);
    assert_text(&err, ":3:");
    assert_text(&err, "socket-dri");
    assert_text(&err, "/x");
    cr_assert_eq(c.log_level, 42, "outputs untouched");
}

Test(config, a_bad_value_names_file_line_key_and_value)
{
    static const struct {
        const char *text, *parts[4];
    } cases[] = {
        {"log-level = loud\n", {":1:", "log-level", "'loud'", "error, warning, info, debug"}},
        {"\nheartbeat-ms = soon\n", {":2:", "heartbeat-ms", "'soon'", "10 to 86400000"}},
        {"heartbeat-ms = -5\n", {":1:", "heartbeat-ms", "'-5'", "10"}},
        {"heartbeat-ms = 5\n", {":1:", "heartbeat-ms", "'5'", "10"}},
        {"heartbeat-ms = 1e3\n", {":1:", "heartbeat-ms", "'1e3'", ""}},
        {"heartbeat-ms = 99999999999999999999\n", {":1:", "heartbeat-ms", "99999999999999999999", ""}},
        {"mode = maybe\n", {":1:", "mode", "'maybe'", "on, shadow, off"}},
        {"socket-dir =\n", {":1:", "socket-dir", "empty", ""}},
        {"[other]\nmode = on\n", {":2:", "[other]", "[poised]", ""}},
        {"mode = on\nmode = off\n", {":2:", "mode", "'off'", "second"}},
        {"mode = on\n  off\n", {":2:", "mode", "'off'", "second"}},
        {"just words\n", {":1:", "KEY = VALUE", "", ""}},
        {"config = /x\n", {":1:", "config", "unknown key", ""}},
        {"ready-fd = 3\n", {":1:", "ready-fd", "unknown key", ""}},
        {"node-timeout-ms = 900\n", {"node-timeout-ms", "900", "heartbeat-ms", "1000"}},
        {"silence-ms = 250\n", {"silence-ms", "250", "beacon-ms", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct poise_err err;
        cr_assert_eq(parse_file(cases[i].text, &c, &err), -EINVAL, "%s", cases[i].text);
        for (int j = 0; j < 4; j++)
            assert_text(&err, cases[i].parts[j]);
    }
}

Test(config, the_first_of_several_faults_is_named)
{
    struct config c;
    struct poise_err err;
    cr_assert_eq(parse_file("mode = maybe\nlog-level = loud\n", &c, &err), -EINVAL);
    assert_text(&err, ":1:");
    assert_text(&err, "maybe");
}

Test(config, files_that_are_none)
{
    struct config c;
    struct poise_err err;
    cr_assert_eq(parse(&c, &err, 2, "--config", "/no/such/file"), -ENOENT);
    assert_text(&err, "/no/such/file");
    cr_assert_eq(parse(&c, &err, 2, "--config", "/tmp"), -EISDIR);
    assert_text(&err, "/tmp");
    static const char binary[] = "\x7f" "ELF\0\0\1\2\3\n\xff\xfe\0\n";
    write_file(binary, sizeof binary);
    cr_assert_lt(parse(&c, &err, 2, "--config", path), 0);
    assert_text(&err, path);
    unlink(path);
    cr_assert_eq(parse_file("\xef\xbb\xbf[poised]\r\nmode = shadow\r\n", &c, &err), 0, "%s", err.text);
    cr_assert_eq(c.mode, POISE_MODE_SHADOW);
}

Test(config, bad_flags_are_named)
{
    struct config c;
    struct poise_err err;
    cr_assert_eq(parse(&c, &err, 1, "--frobnicate"), -EINVAL);
    assert_text(&err, "--frobnicate");
    cr_assert_eq(parse(&c, &err, 1, "--mode"), -EINVAL);
    assert_text(&err, "--mode");
    cr_assert_eq(parse(&c, &err, 1, "-x"), -EINVAL);
    assert_text(&err, "-x");
    cr_assert_eq(parse(&c, &err, 1, "start"), -EINVAL);
    assert_text(&err, "'start'");
    cr_assert_eq(parse(&c, &err, 2, "--config=/dev/null", "--ready-fd=-1"), -EINVAL);
    assert_text(&err, "--ready-fd: '-1'");
    char longest[600];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    cr_assert_eq(parse(&c, &err, 3, "--config=/dev/null", "--socket-dir", longest), -EINVAL);
    assert_text(&err, "longer than");
}

Test(config, help_and_version_win_over_faults_of_the_file)
{
    struct config c;
    cr_assert_eq(parse(&c, NULL, 3, "--config", "/no/such/file", "--help"), 0);
    cr_assert_eq(c.action, CONFIG_HELP);
    cr_assert_eq(parse(&c, NULL, 1, "-V"), 0);
    cr_assert_eq(c.action, CONFIG_VERSION);
    cr_assert_eq(parse(&c, NULL, 3, "--check-config", "--config", "/dev/null"), 0);
    cr_assert_eq(c.action, CONFIG_CHECK);
}

Test(config, what_is_printed_gives_the_same_configuration)
{
    struct config c, again;
    char *text = NULL;
    size_t n = 0;
    cr_assert_eq(parse(&c, NULL, 6, "--config=/dev/null", "--mode=shadow", "--warn-ms=777", "--log-level=debug",
                       "--socket-dir=/a/b", "--node-name=n1"), 0);
    FILE *out = open_memstream(&text, &n);
    config_print(&c, out);
    fclose(out);
    cr_assert_eq(parse_file(text, &again, NULL), 0);
    cr_assert_eq(again.mode, POISE_MODE_SHADOW);
    cr_assert_eq(again.warn_ms, 777);
    cr_assert_eq(again.log_level, 7);
    cr_assert_str_eq(again.socket_dir, "/a/b");
    cr_assert_str_eq(again.node_name, "n1");
    free(text);
}

/* Who has given a key to a node wants it to be reached. */
Test(config, listens_by_itself_where_there_are_keys)
{
    struct config c;
    struct poise_err err;
    cr_assert_eq(parse_file("[poised]\n", &c, &err), 0, "%s", err.text);
    cr_assert_str_eq(config_listen(&c), "none");
    cr_assert(!config_beyond_loopback(&c) && !config_interface(&c));
    cr_assert_eq(parse_file("keys = /etc/poise/keys\ninterface = ^docker,lo\n", &c, &err), 0, "%s", err.text);
    cr_assert_str_eq(config_listen(&c), "tcp://*");
    cr_assert(config_beyond_loopback(&c));
    cr_assert_str_eq(config_interface(&c), "^docker,lo");
    cr_assert_eq(parse_file("keys = /etc/poise/keys\nlisten = none\n", &c, &err), 0, "%s", err.text);
    cr_assert_str_eq(config_listen(&c), "none");
    cr_assert_eq(parse_file("keys = k\nlisten = tcp://10.0.0.1:7\n", &c, &err), 0, "%s", err.text);
    cr_assert_str_eq(config_listen(&c), "tcp://10.0.0.1:7");
    cr_assert_eq(parse_file("insecure = yes\n", &c, &err), 0, "%s", err.text);
    cr_assert_str_eq(config_listen(&c), "none"); /* without a key nobody is let in unasked */
    cr_assert_eq(parse_file("listen = tcp://*\n", &c, &err), -EPERM);
    assert_text(&err, "poisectl keygen");
}
