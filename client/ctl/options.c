/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines: one table of options a command gives parsing, help, and errors that list what there is. Not
 * getopt_long, which accepts abbreviations (a script would break when a new option shares the prefix) and cannot say
 * what exists.
 */
#include "client/ctl/ctl.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 24 /* where the explanations of options begin: the longest option with its argument fits before */

int ctl_fail(const struct ctl_command *command, int status, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "poisectl %s: ", command->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return status;
}

const char *ctl_socket_dir(const char *option)
{
    const char *env = getenv("POISE_SOCKET_DIR");

    if (option)
        return option;
    return env && *env ? env : "/run/poise";
}

static void print_default(const struct ctl_option *option)
{
    if (option->kind == CTL_NUMBER && *(uint64_t *)option->value > 0)
        printf(" (%llu)", (unsigned long long)*(uint64_t *)option->value);
    if (option->kind == CTL_STRING && *(const char **)option->value)
        printf(" (%s)", *(const char **)option->value);
}

static void print_help(const struct ctl_command *command, const struct ctl_option *options, size_t n_options)
{
    printf("poisectl %s%s%s%s: %s\n\n%s", command->name, n_options ? " [OPTION ...]" : "",
           *command->positional ? " " : "", command->positional, command->summary, command->help);
    printf("\nOptions, with their defaults:\n");
    for (size_t i = 0; i < n_options; i++) {
        int n = printf("  --%s%s%s", options[i].name, options[i].argument ? " " : "",
                       options[i].argument ? options[i].argument : "");
        printf("%*s%s", n < HELP_COLUMN ? HELP_COLUMN - n : 1, "", options[i].help);
        print_default(&options[i]);
        printf("\n");
    }
    printf("  --help%*sthis text\n", HELP_COLUMN - 8, "");
}

static const struct ctl_option *find(const struct ctl_option *options, size_t n_options, const char *name,
                                     size_t n_name)
{
    for (size_t i = 0; i < n_options; i++)
        if (strlen(options[i].name) == n_name && !strncmp(options[i].name, name, n_name))
            return &options[i];
    return NULL;
}

static int unknown_option(const struct ctl_command *command, const struct ctl_option *options, size_t n_options,
                          const char *word)
{
    fprintf(stderr, "poisectl %s: there is no option %s. There are:", command->name, word);
    for (size_t i = 0; i < n_options; i++)
        fprintf(stderr, " --%s", options[i].name);
    fprintf(stderr, " --help\n");
    return CTL_BAD_INPUT;
}

static int set_number(const struct ctl_command *command, const struct ctl_option *option, const char *text)
{
    unsigned long long value;
    char *end;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || value < option->least || value > option->most)
        return ctl_fail(command, CTL_BAD_INPUT, "--%s %s: must be a whole number from %llu to %llu", option->name, text,
                        (unsigned long long)option->least, (unsigned long long)option->most);
    *(uint64_t *)option->value = value;
    return CTL_OK;
}

/* Sets one option from argv[*at] (and the word after it); moves *at to the last word used. */
static int set_option(const struct ctl_command *command, const struct ctl_option *option, int argc, char **argv,
                      int *at)
{
    const char *equals = strchr(argv[*at], '=');
    const char *text = equals ? equals + 1 : NULL;

    if (option->kind == CTL_FLAG) {
        if (text)
            return ctl_fail(command, CTL_BAD_INPUT, "--%s takes no value", option->name);
        *(bool *)option->value = true;
        return CTL_OK;
    }
    if (!text) {
        if (*at + 1 >= argc)
            return ctl_fail(command, CTL_BAD_INPUT, "--%s needs a value: --%s %s", option->name, option->name,
                            option->argument);
        text = argv[++*at];
    }
    if (option->kind == CTL_NUMBER)
        return set_number(command, option, text);
    *(const char **)option->value = text;
    return CTL_OK;
}

int ctl_parse(const struct ctl_command *command, const struct ctl_option *options, size_t n_options, int argc,
              char **argv, const char **words, size_t n_words, int *ret_status)
{
    size_t n = 0;

    *ret_status = CTL_BAD_INPUT;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) {
            print_help(command, options, n_options);
            *ret_status = CTL_OK;
            return 1;
        }
    for (int i = 1; i < argc; i++) {
        const struct ctl_option *option;

        if (strncmp(argv[i], "-", 1) != 0) {
            if (n == n_words)
                return ctl_fail(command, 1, "\"%s\" is one word too many%s%s; see poisectl %s --help", argv[i],
                                n_words ? ": give only " : "", command->positional, command->name);
            words[n++] = argv[i];
            continue;
        }
        option = strncmp(argv[i], "--", 2) ? NULL : find(options, n_options, argv[i] + 2, strcspn(argv[i] + 2, "="));
        if (!option)
            return unknown_option(command, options, n_options, argv[i]);
        *ret_status = set_option(command, option, argc, argv, &i);
        if (*ret_status != CTL_OK)
            return 1;
        *ret_status = CTL_BAD_INPUT;
    }
    if (n < n_words)
        return ctl_fail(command, 1, "give %s; see poisectl %s --help", command->positional, command->name);
    return 0;
}
