#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What poised says of itself: --help, --version and --check-config work, and the man page and the example file name every
# setting that there is, so that they cannot drift apart.
set -eu
poised=$BUILD/poised
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset POISE_SOCKET_DIR

fail() { echo "$*" >&2; exit 1; }

"$poised" --help >"$work/help"
for word in USAGE EXAMPLES FLAGS FILES SIGNALS 'EXIT STATUS'; do
    grep -q "^$word" "$work/help" || fail "--help has no section $word"
done
"$poised" --version | grep -q "^poised $(sed -n 's/^.define POISE_VERSION "\(.*\)"/\1/p' include/poise.h) " || fail "--version"

"$poised" --config /dev/null --check-config >"$work/settings"
while read -r key _ value; do
    grep -q "^\.It Ic $key No = " docs/man/poised.conf.5 || fail "docs/man/poised.conf.5 does not explain $key"
    grep -q "^# $key = *" systemd/poised.conf || fail "systemd/poised.conf does not name $key"
    grep -q -- "--$key " "$work/help" || fail "--help does not name --$key"
    [ "$key" = node-name ] && continue
    grep -q "^# $key = $value\$" systemd/poised.conf || fail "systemd/poised.conf: $key has another default than $value"
done <"$work/settings"
[ "$(wc -l <"$work/settings")" = "$(grep -c '^# [a-z-]* =' systemd/poised.conf)" ] || fail "systemd/poised.conf has other keys"

# The example file works as it stands, and with every line made effective.
"$poised" --config systemd/poised.conf --check-config >/dev/null
sed 's/^# \([a-z-]* = \)/\1/; s/^node-name = *$/node-name = n1/' systemd/poised.conf >"$work/all.conf"
"$poised" --config "$work/all.conf" --check-config >/dev/null

# A fault is named by file, line, key and value, with exit status 2.
printf '[poised]\nlog-level = loud\n' >"$work/bad.conf"
status=0
"$poised" --config "$work/bad.conf" --check-config >"$work/out" 2>"$work/err" || status=$?
[ $status = 2 ] || fail "bad file: exit status $status"
grep -q "$work/bad.conf:2: log-level: 'loud'" "$work/err" || fail "$(cat "$work/err")"
[ ! -s "$work/out" ] || fail "a bad file is printed"

grep -q '^Type=notify' systemd/poised.service || fail "the unit does not wait for readiness"
! grep -q '^PrivateUsers' systemd/poised.service || fail "PrivateUsers makes all users one"
