#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kill -9 of poised, again and again, in the middle of a run: trainers pause, connect to the next one, and end well; every
# byte that they receive is verified by themselves. KILLS=100 for the long run.
set -eu
kills=${KILLS:-12} ranks=4
work=$(mktemp -d)
pids=() poised=
trap 'kill -9 "${pids[@]}" $poised 2>/dev/null || true; rm -rf "$work"' EXIT
unset POISE_SOCKET_DIR
mkfifo "$work/ready"

start() { # waits until all sockets are bound
    "$BUILD/poised" --config /dev/null --socket-dir "$work/run" --ready-fd 8 8>"$work/ready" 2>>"$work/log" &
    poised=$!
    read -r _ <"$work/ready" || { cat "$work/log" >&2; exit 1; }
}

start
for ((rank = 0; rank < ranks; rank++)); do
    "$BUILD/trainer" --rank $rank --ranks $ranks --steps $((kills * 25)) --per-rank 4 --socket-dir "$work/run" --job kills \
        >"$work/trainer$rank" 2>&1 &
    pids+=($!)
done
done_kills=0
for ((k = 0; k < kills; k++)); do
    # Not readiness but chance decides where in a step it hits: 0.05 to 0.35 s.
    read -r -t "0.$(printf %02d $((5 + RANDOM % 31)))" _ <> <(:) || true
    kill -0 "${pids[@]}" 2>/dev/null || break
    kill -9 $poised
    wait $poised 2>/dev/null || true
    start
    done_kills=$((done_kills + 1))
done
for pid in "${pids[@]}"; do
    wait "$pid" || { cat "$work"/trainer* "$work/log" >&2; exit 1; }
done
pids=()
kill $poised
wait $poised || { echo "poised ended with status $?" >&2; exit 1; }
poised=
[ -z "$(ls "$work/run")" ] || { echo "left behind: $(ls "$work/run")" >&2; exit 1; }
[ $done_kills -gt $((kills / 3)) ] || { echo "only $done_kills kills hit the run" >&2; exit 1; }
echo "$done_kills kills, 0 trainer errors"
