#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Memory short while an arena grows: a trainer in a cgroup of 96 MB that asks for more gets an error that says what is needed and
# what is there; neither a signal nor the OOM killer ends it, and a smaller one in the same cgroup runs.
set -eu
[ "$(id -u)" = 0 ] || { echo "only root makes cgroups"; exit 77; }
case "$(nm -C "$BUILD/poised" 2>/dev/null)" in *__asan_init* | *__tsan_init*)
    echo "sanitizers need more memory than the cgroup has"; exit 77 ;;
esac
unset POISE_SOCKET_DIR
work=$(mktemp -d)
group= poised=
cleanup() {
    [ -z "$poised" ] || kill -9 "$poised" 2>/dev/null || true
    wait 2>/dev/null || true
    [ -z "$group" ] || rmdir "$group" || true
    rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "FAILED: $*" >&2; cat "$work"/trainer* "$work/log" >&2 || true; exit 1; }
limit=$((96 << 20))
for base in /sys/fs/cgroup/memory /sys/fs/cgroup; do # version 1, version 2
    path=$base/poise-test-$$
    [ -f "$base/cgroup.procs" ] && mkdir "$path" 2>/dev/null || continue
    group=$path
    { echo $limit >"$path/memory.limit_in_bytes"; } 2>/dev/null && break
    { echo $limit >"$path/memory.max"; } 2>/dev/null && break
    rmdir "$path"
    group=
done
[ -n "$group" ] || { echo "no cgroup with a memory limit can be made here"; exit 77; }
mkfifo "$work/ready"
"$BUILD/poised" --config /dev/null --socket-dir "$work/run" --ready-fd 8 8>"$work/ready" 2>>"$work/log" &
poised=$!
read -r _ <"$work/ready" || fail "poised does not start"

train() { # JOB PER-RANK: the status
    (
        echo $BASHPID >"$group/cgroup.procs"
        exec timeout 120 "$BUILD/trainer" --rank 0 --ranks 1 --steps 3 --per-rank "$2" --timeout-ms 20000 --job "$1" \
            --socket-dir "$work/run"
    ) >"$work/trainer.$1" 2>&1
}
status=0
train large 4000 || status=$?
[ "$status" = 1 ] || fail "the large one ended with $status"
grep -qE "memory" "$work/trainer.large" && grep -qE "[0-9.]+ [KMG]i?B|available|budget" "$work/trainer.large" ||
    fail "it does not say what is needed and available"
status=0
train small 4 || status=$?
[ "$status" = 0 ] || fail "the small one ended with $status"
kill "$poised"
wait "$poised" || fail "poised ended with $?"
poised=
sed 's/^/  /' "$work/trainer.large"
