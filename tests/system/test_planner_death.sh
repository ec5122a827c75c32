#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An input that kills the planner: every rank gets the reason, the daemon is not killed by it again, the next epoch works.
# A kill that has nothing to do with the plan costs nothing.
set -eu
unset POISE_SOCKET_DIR POISE_TEST_PLAN_DIES
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:handle_segv=0" # a sanitizer that reports the signal would end poised in its own way
work=$(mktemp -d)
poiseds=() trainers=()
trap 'kill -9 "${poiseds[@]}" "${trainers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "$*" >&2; tail -n 30 "$work"/*.log "$work"/trainer* >&2 || true; exit 1; }
. "$(dirname "$0")/lib.sh"

start() { # NAME [FLAGS]: the poised of folder NAME, ready; its pid in $poised
    local name=$1
    shift
    rm -f "$work/ready" && mkfifo "$work/ready" # the one before may still have its end of the old one open
    "$BUILD/tests/poised_faulty" --config /dev/null --socket-dir "$work/$name" --node-name "$name" --ready-fd 8 "$@" \
        8>"$work/ready" 2>>"$work/$name.log" &
    poised=$!
    poiseds+=("$poised")
    read -r _ <"$work/ready" || fail "poised $name does not start"
}

train() { # JOB STEPS COORDINATORS NAME...: a rank on each daemon named
    local rank=0 job=$1 steps=$2 coordinators=$3 name
    shift 3
    trainers=()
    for name in "$@"; do
        POISE_COORDINATORS=$coordinators "$BUILD/trainer" --rank $rank --ranks $# --steps "$steps" --per-rank 4 \
            --socket-dir "$work/$name" --job "$job" >"$work/trainer$rank" 2>&1 &
        trainers+=($!)
        rank=$((rank + 1))
    done
}

ends() { # SIGNAL: the newest poised dies of it
    local status=0
    until_true '[ ! -e /proc/$poised/exe ] || grep -q "^State:.Z" /proc/$poised/status'
    wait "$poised" || status=$?
    [ $status = $((128 + $1)) ] || fail "poised ended with $status, not by signal $1"
}

all_told() { # TEXT: every trainer ends with an error that says so
    local rank=0 pid
    for pid in "${trainers[@]}"; do
        wait "$pid" && fail "rank $rank ended well"
        grep -q -- "$1" "$work/trainer$rank" || fail "rank $rank was not told: $1"
        rank=$((rank + 1))
    done
}

all_end_well() {
    local pid
    for pid in "${trainers[@]}"; do wait "$pid" || fail "a trainer failed"; done
}

stop() {
    kill "$1"
    wait "$1" || fail "poised ended with $?"
}

for signal in 6 11; do # abort() and a wild pointer
    export POISE_TEST_PLAN_DIES="5 $signal"
    start one
    train crash$signal 40 '' one one one
    ends $signal
    start one # with the same fault: it must not plan that step again
    all_told "planning step 5 killed the coordinator of node one (signal $signal; poised .*, planner "
    train next$signal 4 '' one one one # steps 0 to 3, and the end at 4
    all_end_well
    stop "$poised"
    [ -z "$(ls "$work/one")" ] || fail "left behind: $(ls "$work/one")"
done

# kill -9 in the very moment of a plan, once: a pause.
touch "$work/once"
export POISE_TEST_PLAN_DIES="5 9 $work/once"
start one
train once 20 '' one one
ends 9
start one
all_end_well
stop "$poised"

# The same step twice is no accident any more (the OOM killer comes as SIGKILL).
export POISE_TEST_PLAN_DIES="5 9"
start one
train twice 20 '' one one
ends 9
start one
ends 9
start one
all_told "planning step 5 killed the coordinator of node one (no signal of its own"
stop "$poised"

# Two coordinators get the same input, and both die of it. The first that is back ends it for all.
export POISE_TEST_PLAN_DIES="5 6"
list="ipc://$work/left.zmq,ipc://$work/right.zmq"
start left --listen "ipc://$work/left.zmq"
left=$poised
start right --listen "ipc://$work/right.zmq"
right=$poised
train both 40 "$list" left left
for poised in $left $right; do ends 6; done
start left --listen "ipc://$work/left.zmq"
left=$poised
start right --listen "ipc://$work/right.zmq"
right=$poised
all_told "planning step 5 killed the coordinator of node \(left\|right\) (signal 6"
train after 4 "$list" left left
all_end_well
stop "$left"
stop "$right"
echo "planner deaths: told to all, once each"
