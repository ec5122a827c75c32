#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The man pages keep up: poise.3 has every public function with its prototype of include/poise.h, every option and
# environment variable; the pages name poisectl's commands; man shows them all without a complaint.
set -eu
page=docs/man/poise.3
fail() { echo "$*" >&2; exit 1; }

# Prototypes of the header, one a line without comments, and those of the page made alike.
prototypes=$(awk '
    /^[a-z].*[ *]poise_[a-z_]*\(/ { inside = 1; line = "" }
    inside { sub(/^ +/, " "); line = line $0 }
    inside && /;/ { sub(/;.*/, "", line); print line; inside = 0 }' include/poise.h | sort)
shown=$(sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/p' $page | awk '
    /^\.Ft/ { type = $0; gsub(/^\.Ft "|"$/, "", type); if (type !~ /\*$/) type = type " " }
    /^\.Fo/ { line = type $2 "("; comma = "" }
    /^\.Fa/ { arg = $0; gsub(/^\.Fa "|"$/, "", arg); line = line comma arg; comma = ", " }
    /^\.Fc/ { print line ")" }' | sort)
[ "$(wc -l <<<"$prototypes")" -ge 25 ] || fail "only these are found in include/poise.h: $prototypes"
[ "$prototypes" = "$shown" ] || fail "$page is not include/poise.h: $(diff <(echo "$prototypes") <(echo "$shown"))"

described=$(sed -n '/^\.Sh DESCRIPTION/,$p' $page)
for function in $(sed -n 's/^[a-z].*[ *]\(poise_[a-z_]*\)(.*/\1/p' include/poise.h); do
    grep -q "^\.Fn $function\b" <<<"$described" || fail "$page does not describe $function"
done
options=$(sed -n '/^struct poise_options {/,/^};/{s|/\*.*||; s/\[[^]]*\]//g; /;/p}' include/poise.h |
    grep -o '[a-z_0-9]*[,;]' | tr -d ',;')
[ "$(wc -w <<<"$options")" -ge 40 ] || fail "only these options are found in include/poise.h: $options"
for option in $options; do
    grep -qw -- "$option" <<<"$described" || fail "$page does not name the option $option"
done
for variable in $(cat client/*.c | grep -o '\(getenv\|env_[a-z]*\)("[A-Z_]*"' | cut -d'"' -f2 | sort -u); do
    grep -qw "$variable" <<<"$described" || fail "$page does not name the environment variable $variable"
done

for command in $("$BUILD/poisectl" --help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p'); do
    grep -qw -- "$command" docs/man/poisectl.1 || [ -e "docs/man/poisectl-$command.1" ] ||
        fail "no page names poisectl $command"
done

command -v man >/dev/null && command -v groff >/dev/null || exit 0 # compared, not shown
for page in docs/man/*; do
    complaints=$(LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -l "$page" 2>&1 >/dev/null)
    [ -z "$complaints" ] || fail "$page: $complaints"
done
