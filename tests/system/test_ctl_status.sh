#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# poisectl status and mode against a real daemon and real trainers, and without a daemon; help and unknown words.
set -eu
ctl="$BUILD/poisectl"
. tests/system/lib.sh
working_folder
refused() { # status, what stderr must say, command
    local want=$1 what=$2 status=0
    shift 2
    "$ctl" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" = "$want" ] || fail "$*: status $status"
    [ -s "$work/out" ] && fail "$*: something on stdout"
    grep -qF -- "$what" "$work/err" || fail "$*: does not say $what"
}

# Help teaches; what is unknown is answered with what there is.
for command in plan status mode demo; do
    "$ctl" --help | grep -q "^  $command " || fail "--help lacks $command"
    "$ctl" $command --help | grep -q "^poisectl $command" || fail "$command --help"
    "$ctl" help $command | cmp -s - <("$ctl" $command --help) || fail "help $command"
done
"$ctl" --version | grep -qE '^poisectl [0-9]+\.[0-9]+\.[0-9]+$' || fail "--version"
refused 2 "  status " 
refused 2 'no command "stats"' stats
refused 2 "--socket-dir" status --socket
refused 2 "one word too many" status now
refused 2 "give GROUP on|shadow|off" mode all
refused 2 "on, shadow or off" mode all fast
refused 2 "is empty" mode "" on

# No daemon, a path that cannot be a socket's, a file in its place.
refused 1 "no poised answers at $dir/status.sock" status --socket-dir "$dir"
refused 1 "start it" mode all off --socket-dir "$dir"
refused 1 "at most 107 bytes" status --socket-dir "/$(printf 'x%.0s' {1..120})"
touch "$work/file"
refused 1 "no poised answers" status --socket-dir "$work/file"

# A daemon without groups.
mkdir "$dir"
"$BUILD/poised" --socket-dir "$dir" 2>"$work/poised.log" &
pids+=($!)
until_true '"$ctl" status --socket-dir "$dir" >"$work/out" 2>"$work/err"'
grep -q "no group has come yet" "$work/out" || fail "$(cat "$work/out")"
POISE_SOCKET_DIR="$dir" "$ctl" status --json | jq -e '.groups == []' >/dev/null || fail "--json"
refused 1 "nobody" mode nobody/dp off --socket-dir "$dir"

# With trainers that would run for hours.
for rank in 0 1; do
    "$BUILD/trainer" --rank $rank --ranks 2 --steps 10000000 --per-rank 4 --job run/7 --socket-dir "$dir" \
        2>>"$work/trainers" &
    pids+=($!)
done
show='"$ctl" status --json --socket-dir "$dir" >"$work/json"'
until_true "$show"' && jq -e ".groups[0].planned > 3" "$work/json" >/dev/null'
until_true "$show"' && jq -e ".groups[0].measured | .ranks == 2 and .imbalance >= 1 and .imbalance <= 2" "$work/json" >/dev/null'
jq -e '.groups[0].processes | all(.samples_verified > 0 and .budget_bytes > 0 and (.cause | length > 0))' "$work/json" \
    >/dev/null || fail "processes: $(cat "$work/json")"
"$ctl" status --socket-dir "$dir" >"$work/out" || fail "status"
for words in "run/7/dp (uid $(id -u)): running, mode on" "2 ranks x 1 replicas on 1 nodes" "largest/mean rank cost" \
    "largest micro-batch" "measured   compute of step" "slowest rank" " verified"; do
    grep -qF -- "$words" "$work/out" || fail "status lacks $words: $(cat "$work/out")"
done
[ "$(grep -cE "^ +[01] +0 +[0-9]+ +running" "$work/out")" = 2 ] || fail "not two processes: $(cat "$work/out")"
"$ctl" mode run/7/dp off --socket-dir "$dir" >/dev/null || fail "mode"
until_true "$show"' && jq -e ".groups[0].predicted.mode == \"off\"" "$work/json" >/dev/null'
"$ctl" mode run/7 shadow --socket-dir "$dir" >/dev/null || fail "mode of a job"
until_true "$show"' && jq -e ".groups[0].predicted.mode == \"shadow\"" "$work/json" >/dev/null'
"$ctl" mode all on --socket-dir "$dir" >/dev/null || fail "mode of all"
until_true "$show"' && jq -e ".groups[0].predicted.mode == \"on\"" "$work/json" >/dev/null'
# Links: a node that has its coordinator elsewhere, and that one.
mkdir "$work/far"
"$BUILD/poised" --socket-dir "$work/far" --listen "ipc://$work/far/coordinator" 2>"$work/far.log" &
far=$!
pids+=($far)
until_true '"$ctl" status --socket-dir "$work/far" >"$work/out" 2>"$work/err"'
grep -q "listens at ipc://$work/far/coordinator" "$work/out" || fail "no endpoint: $(cat "$work/out")"
for rank in 0 1; do
    POISE_COORDINATORS="ipc://$work/far/coordinator" "$BUILD/trainer" --rank $rank --ranks 2 --steps 10000000 \
        --per-rank 4 --job linked --socket-dir "$dir" 2>>"$work/linked" &
    pids+=($!)
done
link="coordinator ipc://$work/far/coordinator: "
until_true '"$ctl" status --socket-dir "$dir" >"$work/out" &&
    grep -qE "$link""up for [0-9.]+ s, .*newest beacon [0-9.]+ s ago, [0-9]+ messages sent, [1-9]" "$work/out"'
until_true '"$ctl" status --socket-dir "$work/far" >"$work/out" && grep -qE "node +[^ ]+: heard [0-9.]+ s ago" "$work/out"'
kill -9 "$far"
until_true '"$ctl" status --socket-dir "$dir" >"$work/out" && grep -qE "$link(down|connecting) for" "$work/out"'
[ ! -s "$work/trainers" ] || fail "trainers say: $(cat "$work/trainers")"
