#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The n-th allocation fails, for many n: first in a trainer's libpoise, from opening to closing, then in poised. The trainer ends
# well or with a text, never with a signal or a hang; poised does not start and says why, or stays, and serves the next job as if
# nothing had been. FAULTS=all walks over every n; else a random start in each stride, whose seed is printed.
set -eu
fail() { echo "FAILED: $*" >&2; tail -n 15 "$work"/trainer* "$work"/log >&2 2>/dev/null || true; exit 1; }
case "$(nm -C "$BUILD/poised" 2>/dev/null)" in *__asan_init* | *__tsan_init*)
    echo "a sanitizer has an allocator of its own, which cannot be made to fail from outside"; exit 77 ;;
esac
command -v "${CC:-cc}" >/dev/null || { echo "no compiler"; exit 77; }
unset POISE_SOCKET_DIR
RUNS=${RUNS:-10} # about so many faults in each of the two
seed=${POISE_SEED:-$RANDOM}
echo "POISE_SEED=$seed"
RANDOM=$seed
work=$(mktemp -d)
pids=()
trap 'kill -9 ${pids[@]+"${pids[@]}"} 2>/dev/null || true; rm -rf "$work"' EXIT
"${CC:-cc}" -shared -fPIC -O1 -D_GNU_SOURCE -o "$work/fault.so" tests/system/faulty/malloc_fault.c
mkfifo "$work/ready"

poised() { # ENVIRONMENT...: 0 it is ready, 1 it has ended
    env "$@" "$BUILD/poised" --config /dev/null --socket-dir "$work/run" --ready-fd 8 8>"$work/ready" 2>>"$work/log" &
    pids=($!)
    read -r _ <"$work/ready"
}
trainers() { # N ENVIRONMENT...: of rank 0; statuses in $status
    local n=$1 r
    shift
    status=()
    for ((r = 1; r < n; r++)); do
        "$BUILD/trainer" --rank $r --ranks "$n" --steps 4 --per-rank 3 --timeout-ms 10000 --job "job$round" --socket-dir "$work/run" \
            >"$work/trainer$r" 2>&1 &
        pids+=($!)
    done
    status[0]=0
    timeout -k 1 60 env "$@" "$BUILD/trainer" --rank 0 --ranks "$n" --steps 4 --per-rank 3 --timeout-ms 10000 --job "job$round" \
        --socket-dir "$work/run" >"$work/trainer0" 2>&1 || status[0]=$?
    for ((r = 1; r < n; r++)); do
        status[r]=0
        wait "${pids[r]}" || status[r]=$?
    done
    pids=("${pids[0]}")
}
next() { # the next n after $1 of $2 allocations
    [ "${FAULTS:-}" = all ] && { echo $(($1 + 1)); return; }
    local stride=$(($2 / RUNS + 1))
    echo $(($1 + 1 + RANDOM % (2 * stride)))
}

# ------------------------------------------------------------------------------------------------------------ libpoise
round=0
poised A=1 || fail "poised does not start"
trainers 2 LD_PRELOAD="$work/fault.so" POISE_FAULT_OBJECT=libpoise POISE_FAULT_COUNT="$work/count"
[ "${status[*]}" = "0 0" ] || fail "nothing failed, and yet ${status[*]}"
count=$(cat "$work/count") runs=0 errors=0
[ "$count" -gt 50 ] || fail "only $count allocations: the wrong object"
for ((n = 0; n < count; n = $(next $n "$count"))); do
    round=$((round + 1)) runs=$((runs + 1))
    trainers 2 LD_PRELOAD="$work/fault.so" POISE_FAULT_OBJECT=libpoise POISE_FAULT_AT=$n
    for r in 0 1; do
        [ "${status[r]}" -le 1 ] || fail "allocation $n: rank $r ended with ${status[r]}"
        [ "${status[r]}" = 0 ] || [ -s "$work/trainer$r" ] || fail "allocation $n: rank $r ended without a word"
    done
    [ "${status[0]}" = 0 ] || errors=$((errors + 1))
    [ "${status[0]}" = 0 ] || grep -qiE "memory|ENOMEM|Cannot allocate" "$work/trainer0" || fail "allocation $n: rank 0 does not say why"
done
echo "libpoise: $count allocations, $runs of them failed, $errors errors"
kill "${pids[0]}" && wait "${pids[0]}" || fail "poised ended with $?"

# -------------------------------------------------------------------------------------------------------------- poised
: >"$work/log"
round=1000
poised LD_PRELOAD="$work/fault.so" POISE_FAULT_OBJECT=poised POISE_FAULT_COUNT="$work/count" || fail "poised does not start"
trainers 2 A=1
kill "${pids[0]}" && wait "${pids[0]}" || fail "poised ended with $?"
count=$(cat "$work/count") runs=0 refused=0 errors=0
[ "$count" -gt 50 ] || fail "only $count allocations: the wrong object"
for ((n = 0; n < count; n = $(next $n "$count"))); do
    round=$((round + 1)) runs=$((runs + 1))
    : >"$work/log"
    if ! poised LD_PRELOAD="$work/fault.so" POISE_FAULT_OBJECT=poised POISE_FAULT_AT=$n; then
        code=0
        wait "${pids[0]}" || code=$?
        [ $code = 1 ] || [ $code = 2 ] || fail "allocation $n: poised ended with $code"
        [ -s "$work/log" ] || fail "allocation $n: poised does not say why it does not start"
        refused=$((refused + 1))
        continue
    fi
    trainers 2 A=1
    for r in 0 1; do
        [ "${status[r]}" -le 1 ] || fail "allocation $n of poised: rank $r ended with ${status[r]}"
    done
    [ "${status[*]}" = "0 0" ] || errors=$((errors + 1))
    round=$((round + 1000))
    trainers 2 A=1
    [ "${status[*]}" = "0 0" ] || fail "allocation $n of poised: the next job ended with ${status[*]}"
    kill "${pids[0]}" && wait "${pids[0]}" || fail "allocation $n: poised ended with $?"
    [ -z "$(ls "$work/run")" ] || fail "allocation $n: left behind $(ls "$work/run")"
done
echo "poised: $count allocations, $runs of them failed, $refused times it did not start, $errors jobs had an error"
