#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The unit is what systemd accepts, and as closed as it is meant to be: verify has nothing to say, the exposure level is
# at most 1.4, and what would break trainers (one uid for all, sockets that go away at a restart) is not there.
set -eu
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is missing (package systemd)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }

san=
case "$BUILD" in *san-*) san=$(basename "$BUILD" | sed 's/^san-//; s/-/,/g') ;; esac
make --no-print-directory SETUP=0 ${san:+SAN="$san"} install DESTDIR="$work/root" PREFIX=/usr \
    BUILD="$BUILD" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
unit=$work/poised.service
grep -qx 'ExecStart=/usr/bin/poised' "$work/root/usr/lib/systemd/system/poised.service" ||
    fail "the unit starts another poised"
sed "s|^ExecStart=.*|ExecStart=$BUILD/poised|" "$work/root/usr/lib/systemd/system/poised.service" >"$unit"

systemd-analyze verify --man=no "$unit" >"$work/verify" 2>&1 || fail "verify: $(cat "$work/verify")"
# Units of the machine itself may have complaints of their own.
! grep -F "poised.service" "$work/verify" || fail "verify complains"
if systemd-analyze --help | grep -q -- --offline; then
    systemd-analyze security --no-pager --offline=true --threshold=14 "$unit" >"$work/security" ||
        fail "the exposure level is above 1.4: $(tail -n 1 "$work/security")"
fi

for line in Type=notify User=poise RuntimeDirectory=poise RuntimeDirectoryPreserve=yes NoNewPrivileges=yes; do
    grep -qx "$line" "$unit" || fail "the unit lacks $line"
done
grep -q '^WatchdogSec=' "$unit" || fail "a loop that hangs is not seen"
! grep -qE '^(PrivateUsers|PrivatePIDs|PrivateNetwork)=' "$unit" || fail "trainers cannot be told apart"

# The user and the folder are made as the unit needs them.
if command -v systemd-sysusers >/dev/null; then
    mkdir -p "$work/root/etc"
    systemd-sysusers --root="$work/root" poise.conf >"$work/sysusers" 2>&1 || fail "sysusers: $(cat "$work/sysusers")"
    grep -q '^poise:.*:/usr/sbin/nologin$' "$work/root/etc/passwd" || fail "no user: $(cat "$work/root/etc/passwd")"
fi
if command -v systemd-tmpfiles >/dev/null && [ "$(id -u)" = 0 ]; then
    systemd-tmpfiles --root="$work/root" --create poise.conf >"$work/tmpfiles" 2>&1 ||
        fail "tmpfiles: $(cat "$work/tmpfiles")"
    [ "$(stat -c %a "$work/root/run/poise")" = 755 ] || fail "not everybody may enter /run/poise"
fi
