#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl doctor finds what it is there to find: no daemon, a folder that is none, permissions (as another user, where
# root runs the test), limits, coordinators that do not listen; and nothing where all is well.
set -eu
ctl="$BUILD/poisectl"
. tests/system/lib.sh
working_folder
finds() { # level, check, words of its text; then how poisectl is called. Leaves the report in $work/out
    local level=$1 check=$2 words=$3 status=0
    shift 3
    "$@" --json >"$work/out" 2>"$work/err" || status=$?
    [ ! -s "$work/err" ] || fail "$* says: $(cat "$work/err")"
    jq -e --arg l "$level" --arg c "$check" --arg w "$words" \
        'any(.checks[]; .check == $c and .level == $l and (.text | contains($w)))' "$work/out" >/dev/null ||
        fail "$*: no \"$level $check ... $words\""
    jq -e 'all(.checks[]; .level == "ok" or (.todo | length > 0)) and .ok == (.n_fail == 0) and
        .n_ok + .n_warn + .n_fail == (.checks | length)' "$work/out" >/dev/null || fail "$*: the report"
    [ "$status" = "$(jq 'if .ok then 0 else 1 end' "$work/out")" ] || fail "$*: status $status"
}
doctor=("$ctl" doctor --socket-dir "$dir")

# No daemon: no folder, a file in its place, a folder without sockets, sockets that nobody listens on.
finds fail folder "No such file" "${doctor[@]}"
touch "$work/file"
finds fail folder "is no folder" "$ctl" doctor --socket-dir "$work/file"
mkdir "$dir"
finds fail daemon "local.sock is not there" "${doctor[@]}"
touch "$dir/local.sock" "$dir/poised.zmq" "$dir/status.sock"
finds fail daemon "no poised answers" "${doctor[@]}"
rm "$dir"/*

"$BUILD/poised" --socket-dir "$dir" 2>"$work/poised.log" &
pids+=($!)
until_true '"$ctl" status --socket-dir "$dir" >"$work/out" 2>&1'
finds ok daemon "protocol" "${doctor[@]}"
for check in folder sockets daemon processes kernel memfd descriptors "file size" memory "huge pages" cores; do
    jq -e --arg c "$check" 'any(.checks[]; .check == $c)' "$work/out" >/dev/null || fail "nothing of $check"
done
jq -e 'all(.checks[] | select(.check | IN("folder", "sockets", "daemon", "processes", "memfd")); .level == "ok")' \
    "$work/out" >/dev/null || fail "a daemon that is well"

# In words, and an exit status for scripts.
status=0
POISE_SOCKET_DIR="$dir" "$ctl" doctor >"$work/out" || status=$?
grep -qE '^ok    daemon +poised [0-9.]+, pid ' "$work/out" || fail "no line of the daemon"
grep -qE '^[0-9]+ ok, [0-9]+ to look at, [0-9]+ failed$' "$work/out" || fail "no last line"
[ "$status" = "$(grep -c . < <(grep '^fail' "$work/out" | head -n 1))" ] || fail "status $status"

# Limits of the shell that it is called from.
(ulimit -f 1024; finds fail "file size" "1.0 MB" "${doctor[@]}")
(ulimit -n 64; finds fail descriptors "64 open files" "${doctor[@]}")
(ulimit -n 512; finds warn descriptors "512 open files" "${doctor[@]}")

# Permissions: root may all, so another user asks.
chmod 0777 "$dir"
finds warn folder "writable by everybody" "${doctor[@]}"
chmod 0755 "$dir"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    chmod 0755 "$work"
    as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    if "${as_nobody[@]}" "$ctl" --version >/dev/null 2>&1; then
        finds ok sockets "uid 65534" "${as_nobody[@]}" "${doctor[@]}"
        chmod 0600 "$dir/poised.zmq"
        finds fail sockets "poised.zmq: uid 65534 may not use it" "${as_nobody[@]}" "${doctor[@]}"
        chmod 0666 "$dir/poised.zmq"
        chmod 0700 "$dir"
        finds fail folder "uid 65534 may not open" "${as_nobody[@]}" "${doctor[@]}"
        chmod 0755 "$dir"
    fi
fi

# Coordinators: one that listens (files, as a free port is nobody's for long), some that do not, and no endpoints.
ln -s status.sock "$dir/status.sock.beacon"
finds ok coordinator "can be connected" "${doctor[@]}" --coordinators "ipc://$dir/status.sock"
rm "$dir/status.sock.beacon"
finds fail coordinator "status.sock.beacon" "${doctor[@]}" --coordinators "ipc://$dir/status.sock"
finds fail coordinator "port 1: Connection refused" "${doctor[@]}" \
    --coordinators "ipc://$dir/status.sock,tcp://127.0.0.1:1"
finds fail coordinator "poise.invalid" "${doctor[@]}" --coordinators tcp://poise.invalid
for word in tcp://:1 tcp://host:port tcp://host:65535 'tcp://[::1' udp://host tcp://; do
    finds fail coordinator "\"$word\" is no endpoint" "${doctor[@]}" --coordinators "$word"
done
