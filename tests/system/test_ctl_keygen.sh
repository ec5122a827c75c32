#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl keygen makes a file that poised takes, keeps what is there, shows the public half only, and says what is wrong
# with a file as poised would.
set -eu
ctl=$BUILD/poisectl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }

umask 000 # of no account
"$ctl" keygen "$work/keys" >"$work/out"
[ "$(stat -c %a "$work/keys")" = 600 ] || fail "mode $(stat -c %a "$work/keys")"
public=$(sed -n 's/^public = //p' "$work/keys")
secret=$(sed -n 's/^secret = //p' "$work/keys")
[ ${#public} = 40 ] && [ ${#secret} = 40 ] || fail "no keys in the file"
grep -qF "$public" "$work/out" || fail "the public half is not shown"
! grep -qF "$secret" "$work/out" || fail "the secret is shown"
[ "$("$ctl" keygen --show-public "$work/keys")" = "$public" ] || fail "--show-public"

cp "$work/keys" "$work/before"
! "$ctl" keygen "$work/keys" >"$work/out" 2>&1 || fail "a file was replaced"
grep -q exists "$work/out" || fail "$(cat "$work/out")"
cmp "$work/keys" "$work/before"
"$ctl" keygen "$work/second" >/dev/null
[ "$("$ctl" keygen --show-public "$work/second")" != "$public" ] || fail "twice the same key"

! "$ctl" keygen "$work/none/keys" >"$work/out" 2>&1 || fail "no folder, and no error"
grep -q "$work/none/keys: No such file" "$work/out" || fail "$(cat "$work/out")"
chmod 644 "$work/second"
! "$ctl" keygen --show-public "$work/second" >"$work/out" 2>&1 || fail "mode 644 is taken"
grep -q "mode is 0644" "$work/out" || fail "$(cat "$work/out")"
status=0
"$ctl" keygen >/dev/null 2>&1 || status=$?
[ $status = 2 ] || fail "without a file: exit status $status"
