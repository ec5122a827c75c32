#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Many steps of small samples through real processes (STEPS=10000 for the long one); their sizes come again every 50.
# After two fifths nothing grows any more: poised has the same descriptors and mappings, a trainer at most one block more of
# the few that it may have (how far ranks run ahead of each other differs), and resident memory is the same.
set -eu
STEPS=${STEPS:-1000}
RANKS=3
GROWTH_KB=1024          # allocators and statistics settle; poised's leak of 200 bytes a step shows in 10,000 steps
GROWTH_TRAINER_KB=12288 # two of those blocks
SLACK=0
SLACK_TRAINER=4         # of descriptors and mappings; a leak of one in 100 steps is more
work=$(mktemp -d)
pids=()
declare -A early late
trap 'kill -KILL "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    tail -n 20 "$work"/log.*
    exit 1
}
case "$(nm -C "$BUILD/poised" 2>/dev/null)" in *__asan_init* | *__tsan_init*) # they keep freed memory, 256 MB by default
    export ASAN_OPTIONS="${ASAN_OPTIONS:-}:quarantine_size_mb=8"
    GROWTH_KB=65536 GROWTH_TRAINER_KB=131072 SLACK=64 SLACK_TRAINER=64 ;;
esac

"$BUILD/poised" --socket-dir "$work/run" --config /dev/null 2>"$work/log.poised" &
pids=($!)
for ((r = 0; r < RANKS; r++)); do
    "$BUILD/trainer" --rank $r --ranks $RANKS --steps "$STEPS" --per-rank 2 --micro-batch 1 --cycle 50 --depth 1 \
        --job long --socket-dir "$work/run" 2>"$work/log.$r" &
    pids+=($!)
done

step() { # the last one decided
    curl -s --max-time 5 --unix-socket "$work/run/status.sock" http://poised/status | jq '[.groups[].decided] | max // 0'
}
wait_step() {
    local i
    for ((i = 0; i < 6000; i++)); do
        now=$(step 2>/dev/null || echo 0)
        [ "${now:-0}" -ge "$1" ] && return
        for pid in "${pids[@]}"; do [ -d "/proc/$pid" ] || fail "process $pid ended before step $1"; done
        sleep 0.05 # between two looks
    done
    fail "step $1 never came"
}
# The least of some looks: a look may meet a process inside a step. Rank 0 stands still meanwhile, so that nobody ends.
look() { # pid
    local i fds=999999 maps=999999 rss=999999999 key value rest n
    for ((i = 0; i < 8; i++)); do
        n=("/proc/$1/fd/"*) && ((${#n[@]} < fds)) && fds=${#n[@]}
        mapfile -t n <"/proc/$1/maps" && ((${#n[@]} < maps)) && maps=${#n[@]}
        while read -r key value rest; do
            [ "$key" = VmRSS: ] && ((value < rss)) && rss=$value
        done <"/proc/$1/status"
    done
    echo "$fds $maps $rss"
}
look_at_all() { # name of the array
    local -n into=$1
    kill -STOP "${pids[1]}"
    for pid in "${pids[@]}"; do into[$pid]=$(look "$pid"); done
    kill -CONT "${pids[1]}"
}

wait_step $((STEPS / 5))
look_at_all early # ranks that wait for one that stands still hold a step more: that is warming up, too
wait_step $((STEPS * 2 / 5))
look_at_all early
echo "at step $now of $STEPS"
wait_step $((STEPS * 9 / 10))
look_at_all late
echo "at step $now: descriptors, mappings, resident KB (early -> late) of poised and the trainers"
for pid in "${pids[@]}"; do
    echo "  $pid: ${early[$pid]} -> ${late[$pid]}"
    read -r fds maps rss <<<"${early[$pid]}"
    read -r fds2 maps2 rss2 <<<"${late[$pid]}"
    growth=$GROWTH_TRAINER_KB slack=$SLACK_TRAINER
    [ "$pid" = "${pids[0]}" ] && growth=$GROWTH_KB slack=$SLACK
    [ "$fds2" -le $((fds + slack)) ] || fail "$pid: $fds descriptors became $fds2"
    [ "$maps2" -le $((maps + slack)) ] || fail "$pid: $maps mappings became $maps2"
    [ "$rss2" -le $((rss + growth)) ] || fail "$pid: $rss KB became $rss2"
done
for pid in "${pids[@]:1}"; do wait "$pid" || fail "trainer $pid ended with $?"; done
kill "${pids[0]}" && wait "${pids[0]}" || fail "poised ended with $?"
pids=()
